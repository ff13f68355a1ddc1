//! The `elementwise` family: out = A + B at the speed of memory.

use super::name::append;
use super::{Launch, Params, Types, Unsupported};
use crate::operand::View;
use crate::problem::ElementwiseProblem;

/// The family's one configuration. It serves any operands, and is fast where all three lie side by side.
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
    /// From the first element's first byte to past the last one's last.
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

    /// Appends the configuration as kernel names spell it.
    pub fn append_to(self, types: Types, name: &mut String) {
        let [m, n, k] = self.tile(types);
        append!(name, m, "x", n, "x", k);
    }

    /// `joined`: as for `launch`.
    pub fn check_extents(
        self,
        problem: &ElementwiseProblem,
        joined: bool,
    ) -> Result<(), Unsupported> {
        // Rows are counted in 32 bits, and so are columns by an epilogue.
        const LIMIT: i64 = i32::MAX as i64;
        let [batch, m, n] = frame(problem, joined)[2].shape;
        let columns = if joined { 0 } else { n };
        for (dimension, extent) in
            [("the number of rows", batch.saturating_mul(m)), ("the last dimension", columns)]
        {
            if extent > LIMIT {
                return Err(Unsupported::Extent { dimension, extent, limit: LIMIT });
            }
        }
        Ok(())
    }

    /// `joined`: whether dimensions may be put in another order and joined, which an epilogue would not stand.
    pub fn launch(self, types: Types, problem: &ElementwiseProblem, joined: bool) -> Launch {
        let operands = frame(problem, joined);
        let ([a, b, out], vectors) = (operands, Vectors::of(&operands, joined));
        let width = i64::from(self.width(types));
        let [batch, m, n] = out.shape;
        // A row that begins in the middle of a chunk may end in the middle of one, too.
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

/// How the elements of a chunk are moved: `ElementwiseParams::vectors` of the kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Vectors {
    None = 0,
    Aligned = 1,
    Loose = 2,
}

impl Vectors {
    /// `joined`: as for `launch`. An epilogue wants chunks to begin at multiples of their width.
    fn of(operands: &[View; 3], joined: bool) -> Vectors {
        let side_by_side = operands.iter().all(|view| view.stride[2] == 1);
        let aligned =
            operands.iter().all(|view| view.alignment(2) >= i64::from(Elementwise::CHUNK_BYTES));
        match (side_by_side, aligned) {
            (true, true) => Vectors::Aligned,
            (true, false) if joined => Vectors::Loose,
            _ => Vectors::None,
        }
    }
}

/// Bytes from the first element's to past the last one's.
fn reach(view: &View) -> i64 {
    let last: i64 =
        view.shape.iter().zip(view.stride).map(|(extent, stride)| (extent - 1) * stride).sum();
    (last + 1) * view.dtype.bytes()
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
            Some((outer, outer_strides))
                if *outer_strides == strides.map(|stride| stride * extent) =>
            {
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
        assert_eq!(size_of::<ElementwiseParams>(), 152);
    }

    #[test]
    fn chunks_are_moved_at_once_where_operands_lie_side_by_side() {
        let types =
            Types { a: DType::F16, b: DType::F16, accumulator: DType::F32, out: DType::F16 };
        let rows = |data: u64, pitch: i64, step: i64| View {
            data,
            dtype: DType::F16,
            ..view([1, 10, 100], [0, pitch, step])
        };
        let (whole, odd) = (1 << 20, (1 << 20) + 2);
        // One operand's address, the pitch of all rows, and what comes of it: how chunks are moved, rows, chunks of one.
        let cases = [
            (whole, 100, 1, Vectors::Aligned, (1, 125)),
            (whole, 104, 1, Vectors::Aligned, (10, 13)),
            (odd, 100, 1, Vectors::Loose, (1, 126)),
            (whole, 101, 1, Vectors::Loose, (10, 14)),
            (whole, 200, 2, Vectors::None, (1, 125)),
        ];
        for (address, pitch, step, vectors, expected) in cases {
            let (aligned, other) = (rows(1 << 22, pitch, step), rows(address, pitch, step));
            for [a, b, out] in
                [[other, aligned, aligned], [aligned, other, aligned], [aligned, aligned, other]]
            {
                let problem = ElementwiseProblem { a, b, out };
                let launch = Elementwise.launch(types, &problem, true);
                let Params::Elementwise(params) = launch.params else {
                    panic!("not its parameters")
                };
                assert_eq!(params.vectors, vectors as i32, "{address:#x} {pitch}");
                assert_eq!(
                    (i64::from(params.rows), params.chunks),
                    expected,
                    "{address:#x} {pitch}"
                );
                assert_eq!(params.a_bytes, 2 * (9 * pitch + 99 * step + 1));
                assert_eq!((launch.grid, launch.block), (1, Elementwise::THREADS));
                // An epilogue sees the rows as they are.
                let Params::Elementwise(params) = Elementwise.launch(types, &problem, false).params
                else {
                    panic!()
                };
                assert_eq!((params.rows, params.n, params.chunks), (10, 100, 13));
                assert!(params.vectors != Vectors::Loose as i32);
            }
        }
    }
}
