//! The `elementwise` family: out = A + B at the speed of memory.

use super::{Launch, Params, Target, Types, Unsupported};
use crate::operand::View;
use crate::problem::ElementwiseProblem;

/// A point in the family's space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Elementwise {
    /// Bytes that one load or store moves: 16, or one element. Either serves any operands; wide ones are fast where all three lie
    /// side by side, aligned to 16 bytes.
    pub load_bytes: u32,
}

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
    const VECTOR_BYTES: u32 = 16;

    pub fn configs(types: Types) -> [Elementwise; 2] {
        [Elementwise::VECTOR_BYTES, types.out.bytes() as u32].map(|load_bytes| Elementwise { load_bytes })
    }

    /// Elements of a chunk.
    pub fn width(&self, types: Types) -> u32 {
        self.load_bytes / types.out.bytes() as u32
    }

    /// Chunks of a thread.
    fn count(&self) -> u32 {
        if self.load_bytes == Elementwise::VECTOR_BYTES { 4 } else { 8 }
    }

    /// What a CTA computes, as M, N and K of a tile.
    pub fn tile(&self, types: Types) -> [u32; 3] {
        [1, Elementwise::THREADS * self.count() * self.width(types), 1]
    }

    pub fn name(&self, types: Types) -> String {
        let [m, n, k] = self.tile(types);
        format!("{m}x{n}x{k}_load{}", self.load_bytes)
    }

    /// `joined`: as for `launch`.
    pub fn supports(&self, problem: &ElementwiseProblem, joined: bool) -> Result<(), Unsupported> {
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
    pub fn launch(&self, types: Types, problem: &ElementwiseProblem, joined: bool) -> Launch {
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
            vectors: i32::from(self.moves_vectors(&[a, b, out])),
        };
        let chunks_a_cta = u64::from(Elementwise::THREADS * self.count());
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

    fn moves_vectors(&self, operands: &[View; 3]) -> bool {
        let vector = i64::from(Elementwise::VECTOR_BYTES);
        let side_by_side = |view: &View| view.stride[2] == 1 && view.alignment(2) >= vector;
        self.load_bytes == Elementwise::VECTOR_BYTES && operands.iter().all(side_by_side)
    }

    /// Estimated seconds: what is moved, at a rate that falls where single elements are.
    pub fn seconds(&self, types: Types, problem: &ElementwiseProblem, target: Target) -> f64 {
        /// Bytes a second of device memory by multiprocessor, and how much longer single elements take: assumptions. All that
        /// ranking needs is their order.
        const RATE: f64 = 3.0e12 / 132.0;
        const BY_ELEMENT: f64 = 1.5;
        /// What stays of vectors where elements do not lie side by side: a thread's neighbours are far from its own.
        const SCATTERED: f64 = 2.0;
        let bytes = (3 * problem.out.numel() * types.out.bytes()) as f64;
        let vectors = self.load_bytes == Elementwise::VECTOR_BYTES;
        let slower = match (vectors, self.moves_vectors(&frame(problem, true))) {
            (true, true) => 1.0,
            (false, _) => BY_ELEMENT,
            (true, false) => SCATTERED,
        };
        bytes * slower / (RATE * f64::from(target.multiprocessors))
    }
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
    fn wide_loads_are_ranked_first_where_they_can_be_made() {
        let target = Target { cc: 90, multiprocessors: 132 };
        let types = Types { a: DType::F32, b: DType::F32, accumulator: DType::F32, out: DType::F32 };
        let [wide, single] = Elementwise::configs(types);
        let seconds = |config: Elementwise, address: u64| {
            let one = View { data: address, ..view([1, 1, 1000], [0, 0, 1]) };
            config.seconds(types, &ElementwiseProblem { a: one, b: one, out: one }, target)
        };
        assert!(seconds(wide, 1 << 20) < seconds(single, 1 << 20));
        assert!(seconds(wide, (1 << 20) + 4) > seconds(single, (1 << 20) + 4));
    }
}
