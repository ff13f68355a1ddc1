//! Parameters of GEMM kernels, byte for byte as the device reads them.

use super::fields::assert_fields;
use crate::epilogue::Joint;
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

/// A further matrix B of a joint GEMM: `GemmPanel` of `kernels/common/params.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GemmPanel {
    pub b: u64,
    /// Stride along n, in elements.
    pub stride: i64,
    /// Its first column among those of all matrices; beyond all columns if there is no matrix.
    pub start: i64,
}

/// The parameter of a joint skinny kernel: `JointGemmParams` of `kernels/common/params.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JointGemmParams {
    pub gemm: GemmParams,
    pub panels: [GemmPanel; Joint::MOST - 1],
}

impl JointGemmParams {
    /// `gemm`: the parameters of the product by all columns. `panels`: the further matrices B.
    pub fn new(gemm: GemmParams, panels: &[View]) -> JointGemmParams {
        let starts = starts(gemm.n.into(), panels, 2);
        let mut all = [GemmPanel { start: i64::MAX, ..Default::default() }; Joint::MOST - 1];
        for ((panel, view), start) in all.iter_mut().zip(panels).zip(starts) {
            *panel = GemmPanel { b: view.data, stride: view.stride[2], start };
        }
        JointGemmParams { gemm, panels: all }
    }
}

/// Where further matrices of a joint GEMM begin along a dimension, whose extent is that of all
/// matrices.
pub fn starts(extent: i64, panels: &[View], dim: usize) -> impl Iterator<Item = i64> {
    let mut start = extent - panels.iter().map(|view| view.shape[dim]).sum::<i64>();
    panels.iter().map(move |view| {
        let first = start;
        start += view.shape[dim];
        first
    })
}

assert_fields!(GemmPanel, 24, stride: 8, start: 16);
assert_fields!(JointGemmParams, 200, panels: 128);
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
