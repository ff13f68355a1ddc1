//! The `elementwise` family: out = A + B at the speed of memory.

use super::{Launch, Params, Types, Unsupported};
use crate::operand::View;
use crate::problem::ElementwiseProblem;

/// The family's one configuration. It serves any operands, and is fast where all three lie side by side, aligned to 16 bytes.
///
/// A second one, which moved single elements, was slower in all but the sum of a matrix and a transposed one in float32
/// (docs/notes/elementwise.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Elementwise;

/// The parameter of the kernel: `ElementwiseParams` of `kernels/elementwise.cuh`, byte for byte.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ElementwiseParams {
    pub a: u64,
    pub b: u64,
    pub out: u64,
    /// Batch, m, n; in elements.
    pub a_stride: [i64; 3],
    pub b_stride: [i64; 3],
    pub out_stride: [i64; 3],
    pub n: i64,
    pub chunks: i64,
    pub step_at: i64,
    pub step_row: i32,
    pub m: i32,
    pub rows: i32,
    pub vectors: i32,
}

impl Elementwise {
    pub const THREADS: u32 = 256;
    /// Bytes that one load or store moves, and how many of each operand a thread moves.
    const CHUNK_BYTES: u32 = 16;
    const CHUNKS: u32 = 4;

    /// Elements of a chunk.
    fn width(self, types: Types) -> u32 {
        Elementwise::CHUNK_BYTES / types.out.bytes() as u32
    }

    /// What a CTA computes, as M, N and K of a tile.
    pub fn tile(self, types: Types) -> [u32; 3] {
        [1, Elementwise::THREADS * Elementwise::CHUNKS * self.width(types), 1]
    }

    pub fn name(self, types: Types) -> String {
        let [m, n, k] = self.tile(types);
        format!("{m}x{n}x{k}")
    }

    /// `joined`: as for `launch`.
    pub fn supports(self, problem: &ElementwiseProblem, joined: bool) -> Result<(), Unsupported> {
        // Rows are counted in 32 bits, and so are columns by an epilogue.
        const LIMIT: i64 = i32::MAX as i64;
        let [batch, m, n] = frame(problem, joined)[2].shape;
        let columns = if joined { 0 } else { n };
        for (dimension, extent) in [("the number of rows", batch.saturating_mul(m)), ("the last dimension", columns)] {
            if extent > LIMIT {
                return Err(Unsupported::Extent { dimension, extent, limit: LIMIT });
            }
        }
        Ok(())
    }

    /// `joined`: whether dimensions may be put in another order and joined, which an epilogue would not stand.
    pub fn launch(self, types: Types, problem: &ElementwiseProblem, joined: bool) -> Launch {
        let [a, b, out] = frame(problem, joined);
        let width = i64::from(self.width(types));
        let [batch, m, n] = out.shape;
        let chunks = (n + width - 1) / width;
        let threads = i64::from(Elementwise::THREADS);
        let params = ElementwiseParams {
            a: a.data,
            b: b.data,
            out: out.data,
            a_stride: a.stride,
            b_stride: b.stride,
            out_stride: out.stride,
            n,
            chunks,
            step_at: threads % chunks,
            step_row: (threads / chunks) as i32,
            m: m as i32,
            rows: (batch * m) as i32,
            vectors: i32::from([a, b, out].iter().all(side_by_side)),
        };
        let chunks_a_cta = u64::from(Elementwise::THREADS * Elementwise::CHUNKS);
        Launch {
            grid: (batch * m * chunks).unsigned_abs().div_ceil(chunks_a_cta) as u32,
            block: Elementwise::THREADS,
            cluster: 1,
            shared_bytes: 0,
            overlapping: false,
            params: Params::Elementwise(params),
            pack: None,
        }
    }
}

/// Whether the elements of a chunk can be moved at once.
fn side_by_side(view: &View) -> bool {
    view.stride[2] == 1 && view.alignment(2) >= i64::from(Elementwise::CHUNK_BYTES)
}

/// The operands with dimensions in the order in which the output lies in memory, and neighbours joined that are one dimension to
/// all three. A contiguous sum becomes a single row.
fn frame(problem: &ElementwiseProblem, joined: bool) -> [View; 3] {
    let operands = [problem.a, problem.b, problem.out];
    if !joined {
        return operands;
    }
    let mut order: Vec<usize> = (0..3).filter(|dim| problem.out.shape[*dim] != 1).collect();
    order.sort_by_key(|dim| std::cmp::Reverse(problem.out.stride[*dim]));
    // (extent, stride of each operand), outermost first.
    let mut dims: Vec<(i64, [i64; 3])> = Vec::new();
    for dim in order {
        let (extent, strides) = (problem.out.shape[dim], operands.map(|view| view.stride[dim]));
        match dims.last_mut() {
            Some((outer, outer_strides)) if *outer_strides == strides.map(|stride| stride * extent) => {
                (*outer, *outer_strides) = (*outer * extent, strides);
            }
            _ => dims.push((extent, strides)),
        }
    }
    let mut framed = operands;
    for (at, view) in framed.iter_mut().enumerate() {
        (view.shape, view.stride) = ([1; 3], [0, 0, 1]);
        for (place, (extent, strides)) in dims.iter().enumerate() {
            let dim = 3 - dims.len() + place;
            (view.shape[dim], view.stride[dim]) = (*extent, strides[at]);
        }
    }
    framed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operand::{DType, Device};

    fn view(shape: [i64; 3], stride: [i64; 3]) -> View {
        let (dtype, device) = (DType::F32, Device::Cuda(0));
        View { data: 1 << 20, dtype, device, rank: 3, shape, stride, read_only: false, fake: true }
    }

    fn framed(strides: [[i64; 3]; 3], shape: [i64; 3]) -> [View; 3] {
        let [a, b, out] = strides.map(|stride| view(shape, stride));
        frame(&ElementwiseProblem { a, b, out }, true)
    }

    #[test]
    fn contiguous_sums_are_a_single_row_in_any_order() {
        for stride in [[35, 7, 1], [1, 3, 15], [5, 1, 15]] {
            for view in framed([stride; 3], [3, 5, 7]) {
                assert_eq!((view.shape, view.stride), ([1, 1, 105], [0, 0, 1]), "{stride:?}");
            }
        }
    }

    #[test]
    fn rows_that_are_padded_or_repeated_stay_rows() {
        let [a, b, out] = framed([[0, 7, 1], [0, 0, 1], [0, 8, 1]], [1, 5, 7]);
        assert_eq!(out.shape, [1, 5, 7]);
        assert_eq!([a.stride, b.stride, out.stride], [[0, 7, 1], [0, 0, 1], [0, 8, 1]]);
        let [a, b, out] = framed([[0, 1, 5], [0, 7, 1], [0, 1, 5]], [1, 5, 7]);
        assert_eq!(out.shape, [1, 7, 5], "the output is column-major");
        assert_eq!([a.stride, b.stride, out.stride], [[0, 5, 1], [0, 1, 7], [0, 5, 1]]);
    }

    #[test]
    fn a_single_element_is_a_row_of_one() {
        let [a, _, out] = framed([[0; 3]; 3], [1; 3]);
        assert_eq!((a.shape, out.stride), ([1; 3], [0, 0, 1]));
    }

    #[test]
    fn parameters_are_what_the_header_says() {
        assert_eq!(size_of::<ElementwiseParams>(), 136);
    }

    #[test]
    fn chunks_are_moved_at_once_where_all_operands_are_aligned() {
        let types = Types { a: DType::F16, b: DType::F16, accumulator: DType::F32, out: DType::F16 };
        let half =
            |address: u64, pitch: i64| View { data: address, dtype: DType::F16, ..view([1, 10, 100], [0, pitch, 1]) };
        for (address, pitch, expected) in
            [(1 << 20, 100, 1), ((1 << 20) + 2, 100, 0), (1 << 20, 104, 1), (1 << 20, 101, 0)]
        {
            let (aligned, other) = (half(1 << 22, pitch), half(address, pitch));
            for [a, b, out] in [[other, aligned, aligned], [aligned, other, aligned], [aligned, aligned, other]] {
                let launch = Elementwise.launch(types, &ElementwiseProblem { a, b, out }, true);
                let Params::Elementwise(params) = launch.params else { panic!("not its parameters") };
                assert_eq!(params.vectors, expected, "{address:#x} {pitch}");
                let (rows, chunks) = if pitch == 100 { (1, 125) } else { (10, 13) };
                assert_eq!((params.rows, params.chunks), (rows, chunks));
                assert_eq!((launch.grid, launch.block), (1, Elementwise::THREADS));
            }
        }
    }
}
