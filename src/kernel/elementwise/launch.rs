//! Launch parameters.

use super::config::Elementwise;
use super::dimensions::merged;
use crate::kernel::fields::assert_fields;
use crate::kernel::limits::check_index;
use crate::kernel::types::Types;
use crate::kernel::unsupported::Unsupported;
use crate::operand::View;
use crate::problem::ElementwiseProblem;

/// The kernel's parameter: `ElementwiseParams` of `kernels/elementwise.cuh`, byte for byte.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ElementwiseParams {
    pub a: u64,
    pub b: u64,
    pub out: u64,
    /// Strides along batch, m, n, in elements.
    pub a_stride: [i64; 3],
    pub b_stride: [i64; 3],
    pub out_stride: [i64; 3],
    /// Bytes from the first element to the end of the last.
    pub a_bytes: i64,
    pub b_bytes: i64,
    pub n: i64,
    pub chunks: i64,
    pub step_at: i64,
    pub step_row: i32,
    pub m: i32,
    pub rows: i32,
    pub vectors: i32,
}

assert_fields!(ElementwiseParams, 152, a_stride: 24, a_bytes: 96, step_row: 136);

/// How the program loads and stores a chunk: `ElementwiseParams::vectors`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Vectors {
    /// Element by element.
    None = 0,
    /// Aligned loads and stores of whole chunks.
    Aligned = 1,
    /// Aligned loads, shifted into place.
    Loose = 2,
}

impl Vectors {
    /// `joined`: as for [`merged`]. With an epilogue, chunks begin at multiples of their width.
    fn of(operands: &[View; 3], joined: bool) -> Vectors {
        let contiguous = operands.iter().all(|view| view.stride[2] == 1);
        let aligned =
            operands.iter().all(|view| view.alignment(2) >= i64::from(Elementwise::CHUNK_BYTES));
        match (contiguous, aligned) {
            (true, true) => Vectors::Aligned,
            (true, false) if joined => Vectors::Loose,
            _ => Vectors::None,
        }
    }
}

/// Bytes from the first element to the end of the last.
fn reach(view: &View) -> i64 {
    let last: i64 =
        view.shape.iter().zip(view.stride).map(|(extent, stride)| (extent - 1) * stride).sum();
    view.dtype.bytes_of(last + 1)
}

/// Checks that the number of rows fits 32 bits; with an epilogue, also the number of columns.
pub fn check_extents(problem: &ElementwiseProblem, joined: bool) -> Result<(), Unsupported> {
    let [batch, m, n] = merged(problem, joined)[2].shape;
    check_index("the number of rows", batch.saturating_mul(m))?;
    if joined { Ok(()) } else { check_index("the last dimension", n) }
}

/// CTAs and the parameter of a launch.
pub fn params(
    config: Elementwise,
    types: Types,
    problem: &ElementwiseProblem,
    joined: bool,
) -> (u64, ElementwiseParams) {
    let operands = merged(problem, joined);
    let ([a, b, out], vectors) = (operands, Vectors::of(&operands, joined));
    let width = i64::from(config.width(types));
    let [batch, m, n] = out.shape;
    // A row that begins inside a chunk may also end inside one.
    let spare = if vectors == Vectors::Loose { 2 * (width - 1) } else { width - 1 };
    let chunks = (n + spare) / width;
    let threads = i64::from(Elementwise::THREADS);
    let params = ElementwiseParams {
        a: a.data,
        b: b.data,
        out: out.data,
        a_stride: a.stride,
        b_stride: b.stride,
        out_stride: out.stride,
        a_bytes: reach(&a),
        b_bytes: reach(&b),
        n,
        chunks,
        step_at: threads % chunks,
        step_row: (threads / chunks) as i32,
        m: m as i32,
        rows: (batch * m) as i32,
        vectors: vectors as i32,
    };
    let chunks_of_cta = u64::from(Elementwise::THREADS * Elementwise::CHUNKS);
    ((batch * m * chunks).unsigned_abs().div_ceil(chunks_of_cta), params)
}
