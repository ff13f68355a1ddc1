//! Parameters of GEMM kernels, byte for byte as the device reads them.

use super::fields::assert_fields;
use crate::operand::View;
use crate::problem::GemmProblem;

/// The parameter of simt, skinny and sm80 kernels: `GemmParams` of `kernels/common/params.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GemmParams {
    pub a: u64,
    pub b: u64,
    pub out: u64,
    /// Strides along batch, m, k, in elements.
    pub a_stride: [i64; 3],
    /// Strides along batch, k, n, in elements.
    pub b_stride: [i64; 3],
    /// Strides along batch, m, n, in elements.
    pub out_stride: [i64; 3],
    pub m: i32,
    pub n: i32,
    pub k: i32,
    /// Number of matrices or groups.
    pub batch: i32,
    pub offsets: GroupOffsets,
}

/// Where the groups of a grouped GEMM end: `GroupOffsets` of `kernels/common/groups.cuh`. All zeros
/// for other operations.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupOffsets {
    /// Address of the end rows.
    pub ends: u64,
    /// Stride of the offsets, in elements.
    step: i64,
}

assert_fields!(GemmParams, 128, a_stride: 24, m: 96, offsets: 112);
assert_fields!(GroupOffsets, 16, step: 8);

impl GroupOffsets {
    pub fn new(offsets: Option<&View>) -> GroupOffsets {
        offsets.map_or_else(Self::default, |view| GroupOffsets {
            ends: view.data,
            step: view.stride[2],
        })
    }
}

impl GemmParams {
    /// The parameters of a problem whose extents fit 32 bits. `offsets`: the group offsets of a
    /// grouped GEMM.
    pub fn new(problem: &GemmProblem, offsets: Option<&View>) -> GemmParams {
        GemmParams {
            a: problem.a.data,
            b: problem.b.data,
            out: problem.out.data,
            a_stride: problem.a.stride,
            b_stride: problem.b.stride,
            out_stride: problem.out.stride,
            m: problem.m() as i32,
            n: problem.n() as i32,
            k: problem.k() as i32,
            batch: problem.b.shape[0] as i32,
            offsets: GroupOffsets::new(offsets),
        }
    }
}
