//! out = A @ B, for one pair of matrices, a batch or groups.

use std::ops::Range;

use rayon::prelude::*;

use super::ReferenceError;
use super::epilogue::{EpilogueScratch, store_reductions, store_region, totals};
use super::prologue::activations;
use super::scales::{Origin, scale_factors};
use super::scratch::{Region, ScratchMatrix, load_side_by_side, regions};
use crate::epilogue::BoundEpilogue;
use crate::operand::{DType, View};
use crate::problem::{GemmProblem, GroupedGemmProblem};

/// Rows and columns per region of the output: large enough to amortize decoding, small enough to
/// occupy many cores.
const TILE: i64 = 128;

/// Extent of K that is decoded at once.
const DEPTH: i64 = 1024;

/// # Safety
/// As for [`run`](super::run). [`multiplies`](super::multiplies) holds for the types.
pub unsafe fn multiply(
    problem: &GemmProblem,
    epilogue: Option<&BoundEpilogue>,
) -> Result<(), ReferenceError> {
    let prologue = epilogue
        .and_then(|bound| Some((bound.epilogue.prologue.as_ref()?, bound.prologue.as_ref()?)));
    // SAFETY, for both calls: guaranteed by the caller.
    let Some((prologue, bound)) = prologue else {
        return unsafe { multiply_at(problem, epilogue, Origin::default()) };
    };
    let activations = unsafe { activations(problem, prologue, bound) }?;
    // SAFETY: as above; the activations live until the product is computed.
    unsafe { multiply_at(&activations.of(problem), epilogue, Origin::default()) }
}

/// # Safety
/// As for [`multiply`].
unsafe fn multiply_at(
    problem: &GemmProblem,
    epilogue: Option<&BoundEpilogue>,
    origin: Origin,
) -> Result<(), ReferenceError> {
    let GemmProblem { a, b, out, accumulator, .. } = problem;
    let integers = a.dtype.is_integer() && b.dtype.is_integer();
    // Products of 8-bit integers are below 2^16: float64 sums stay exact for any K that fits in
    // memory.
    let wide = integers && (a.dtype == DType::I32 || b.dtype == DType::I32);
    let factor = epilogue.and_then(|bound| bound.factor()).map(|(_, view)| view);
    let panels: Vec<&View> = std::iter::once(b)
        .chain(epilogue.into_iter().flat_map(|bound| bound.panels()).map(|(_, view)| view))
        .collect();
    let accumulate = if wide { accumulate_wrapping } else { accumulate };
    let totals = totals(epilogue, *accumulator)?;
    let partials = regions(out.shape, TILE, TILE).map_init(
        <([ScratchMatrix; 5], EpilogueScratch)>::default,
        |([left, right, sum, products, panel], scratch), region| {
            let Region { batch, rows, columns } = &region;
            let extents = [rows, columns].map(|range| (range.end - range.start) as usize);
            sum.clear(extents[0], extents[1]);
            if factor.is_some() {
                products.clear(extents[0], extents[1]);
            }
            for start in (0..problem.k()).step_by(DEPTH as usize) {
                let depth = start..(start + DEPTH).min(problem.k());
                let across = Region { batch: *batch, rows: rows.clone(), columns: depth.clone() };
                let down = Region { batch: *batch, rows: depth, columns: columns.clone() };
                // SAFETY: rows, columns and depth lie within the operands' common extents, and the
                // types are supported.
                unsafe {
                    left.load(a, &across);
                    match panels.as_slice() {
                        [b] => right.load(b, &down),
                        panels => load_side_by_side(panels, &down, right, panel),
                    }
                    scale_factors(epilogue, origin, (left, &across), (right, &down));
                }
                accumulate(left, right, sum);
                if let Some(factor) = factor {
                    // SAFETY: as above; a factor has B's shape.
                    unsafe { right.load(factor, &down) };
                    accumulate(left, right, products);
                }
            }
            // SAFETY: as above; regions of the output are disjoint.
            let partial = unsafe {
                store_region(
                    [&*sum, &*products],
                    *accumulator,
                    epilogue,
                    out,
                    &region,
                    integers,
                    scratch,
                )
            };
            (region, partial)
        },
    );
    if totals.is_empty() {
        partials.for_each(drop);
    } else {
        // SAFETY: guaranteed by the caller.
        unsafe { store_reductions(epilogue, *accumulator, &partials.collect::<Vec<_>>(), totals) };
    }
    Ok(())
}

/// sum += left @ right in float64.
fn accumulate(left: &ScratchMatrix, right: &ScratchMatrix, sum: &mut ScratchMatrix) {
    // SAFETY: the extents are those of the matrices, and the strides stay within their values.
    unsafe {
        matrixmultiply::dgemm(
            sum.rows,
            left.columns,
            sum.columns,
            1.0,
            left.values.as_ptr(),
            left.row_stride,
            left.column_stride,
            right.values.as_ptr(),
            right.row_stride,
            right.column_stride,
            1.0,
            sum.values.as_mut_ptr(),
            sum.row_stride,
            sum.column_stride,
        );
    }
}

/// sum += left @ right modulo 2^32, for int32 values whose products exceed float64's precision.
fn accumulate_wrapping(left: &ScratchMatrix, right: &ScratchMatrix, sum: &mut ScratchMatrix) {
    let integer =
        |matrix: &ScratchMatrix, row, column| matrix.values[matrix.index(row, column)] as i32;
    for row in 0..sum.rows {
        for depth in 0..left.columns {
            let factor = integer(left, row, depth);
            for column in 0..sum.columns {
                let (at, product) =
                    (sum.index(row, column), factor.wrapping_mul(integer(right, depth, column)));
                sum.values[at] = f64::from((sum.values[at] as i32).wrapping_add(product));
            }
        }
    }
}

/// # Safety
/// As for [`multiply`].
pub unsafe fn multiply_groups(
    problem: &GroupedGemmProblem,
    epilogue: Option<&BoundEpilogue>,
) -> Result<(), ReferenceError> {
    // SAFETY, for the three calls: guaranteed by the caller.
    let groups = unsafe { read_groups(problem) }?;
    if problem.gathers() {
        let index = unsafe { read_vector(&problem.index) };
        problem.check_rows(&groups, &index)?;
        let rows = unsafe { Gathered::new(&problem.a, &index) };
        return unsafe { multiply_parts(&rows.of(problem), &groups, epilogue) };
    }
    unsafe { multiply_parts(problem, &groups, epilogue) }
}

/// # Safety
/// As for [`multiply`]. The groups lie in the operands.
unsafe fn multiply_parts(
    problem: &GroupedGemmProblem,
    groups: &[Range<i64>],
    epilogue: Option<&BoundEpilogue>,
) -> Result<(), ReferenceError> {
    let GroupedGemmProblem { a, b, out, accumulator, options, .. } = *problem;
    if problem.is_along_k() {
        return groups.par_iter().enumerate().try_for_each(|(group, part)| {
            let matrix = |view: &View| View {
                shape: [1, view.shape[1], view.shape[2]],
                ..starting_at(view, 0, group as i64)
            };
            let (mut a, mut b) = (starting_at(&a, 2, part.start), starting_at(&b, 1, part.start));
            (a.shape[2], b.shape[1]) = (part.end - part.start, part.end - part.start);
            let (out, options) = (matrix(&out), options);
            let product = GemmProblem { a, b, out, accumulator, options, ..GemmProblem::UNREAD };
            let epilogue = epilogue.map(|bound| bound.of_group(matrix, View::clone));
            let origin = Origin { k: part.start, ..Origin::default() };
            // SAFETY: a group is a part of each operand, and groups share no matrix of the output.
            unsafe { multiply_at(&product, epilogue.as_ref(), origin) }
        });
    }
    groups.par_iter().enumerate().try_for_each(|(group, part)| {
        let rows = |view: &View| View {
            shape: [1, part.end - part.start, view.shape[2]],
            // Masked groups have a matrix each; an operand of the epilogue may have a row each.
            ..starting_at(&starting_at(view, 0, group as i64), 1, part.start)
        };
        let matrix = |b: &View| View {
            shape: [1, b.shape[1], b.shape[2]],
            ..starting_at(b, 0, group as i64)
        };
        let epilogue = epilogue.map(|bound| bound.of_group(rows, matrix));
        // SAFETY: a group is a part of each operand, and groups share no row of the output.
        unsafe {
            let product = GemmProblem {
                a: rows(&a),
                b: matrix(&b),
                out: rows(&out),
                accumulator,
                options,
                ..GemmProblem::UNREAD
            };
            let origin = Origin { row: part.start, group: group as i64, k: 0 };
            multiply_at(&product, epilogue.as_ref(), origin)
        }
    })
}

/// The rows of each group, or its part of K.
///
/// # Safety
/// The offsets are readable.
unsafe fn read_groups(problem: &GroupedGemmProblem) -> Result<Vec<Range<i64>>, ReferenceError> {
    let (offsets, groups) = (&problem.offsets, problem.groups());
    if let Some((name, view, expected)) = problem.misranked() {
        return Err(ReferenceError::Rank { name, rank: view.rank, expected });
    }
    if !problem.offsets_fit() {
        return Err(ReferenceError::OffsetsLength { offsets: offsets.shape[2], groups });
    }
    // SAFETY: guaranteed by the caller.
    Ok(problem.parts(&unsafe { read_vector(offsets) })?)
}

/// The values of a vector of int32, as the problem's check ensures.
///
/// # Safety
/// The vector is readable.
unsafe fn read_vector(view: &View) -> Vec<i64> {
    let mut matrix = ScratchMatrix::default();
    // SAFETY: guaranteed by the caller.
    unsafe { matrix.load(view, &Region { batch: 0, rows: 0..1, columns: 0..view.shape[2] }) };
    matrix.values.iter().map(|value| *value as i64).collect()
}

/// The rows of A in the order of an index. Where the index names no row of A, which is behind the
/// last group, zeros.
struct Gathered {
    view: View,
    /// What the view describes.
    _elements: Vec<u8>,
}

impl Gathered {
    /// # Safety
    /// A is readable.
    unsafe fn new(a: &View, index: &[i64]) -> Gathered {
        let [_, rows, columns] = a.shape;
        let size = a.dtype.bytes() as usize;
        let mut elements = vec![0u8; index.len() * columns as usize * size];
        for (row, copy) in index.iter().zip(elements.chunks_mut((columns as usize * size).max(1))) {
            if !(0..rows).contains(row) {
                continue;
            }
            for (column, to) in copy.chunks_mut(size).enumerate() {
                let offset = row * a.stride[1] + column as i64 * a.stride[2];
                let from = std::ptr::with_exposed_provenance::<u8>(a.address_of(offset) as usize);
                // SAFETY: guaranteed by the caller; the element lies in A.
                unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), size) };
            }
        }
        let data = elements.as_ptr().expose_provenance() as u64;
        let (shape, stride) = ([1, index.len() as i64, columns], [0, columns, 1]);
        Gathered { view: View { data, shape, stride, ..*a }, _elements: elements }
    }

    /// The problem whose A has these rows.
    fn of(&self, problem: &GroupedGemmProblem) -> GroupedGemmProblem {
        GroupedGemmProblem { a: self.view, index: View::UNREAD, ..*problem }
    }
}

/// The view from `index` of one dimension on.
fn starting_at(view: &View, dim: usize, index: i64) -> View {
    View { data: view.address_of(index * view.stride[dim]), ..*view }
}
