//! Scratch matrices: regions of an operand, decoded to float64 on load and rounded on store.

use std::ops::Range;

use rayon::prelude::*;

use super::ReferenceError;
use super::element::{Element, code_at, with_element};
use crate::operand::View;

/// A rectangle of one matrix of a batch.
#[derive(Clone, Debug)]
pub struct Region {
    pub batch: i64,
    pub rows: Range<i64>,
    pub columns: Range<i64>,
}

/// The regions of at most `rows` by `columns` that cover `shape`, as a parallel iterator. The
/// partition depends only on the arguments, so that results do not depend on the number of
/// threads.
pub fn regions(
    shape: [i64; 3],
    rows: i64,
    columns: i64,
) -> impl IndexedParallelIterator<Item = Region> {
    let [batch, m, n] = shape.map(|extent| extent as usize);
    let (down, across) = (m.div_ceil(rows as usize), n.div_ceil(columns as usize));
    (0..batch * down * across).into_par_iter().map(move |index| {
        let (row, column) =
            ((index / across % down) as i64 * rows, (index % across) as i64 * columns);
        Region {
            batch: (index / across / down) as i64,
            rows: row..(row + rows).min(shape[1]),
            columns: column..(column + columns).min(shape[2]),
        }
    })
}

/// A float64 matrix whose buffer is reused from region to region.
#[derive(Default)]
pub struct ScratchMatrix {
    pub values: Vec<f64>,
    pub rows: usize,
    pub columns: usize,
    pub row_stride: isize,
    pub column_stride: isize,
}

impl ScratchMatrix {
    /// An empty matrix with room for so many elements.
    pub fn with_room(elements: usize) -> Result<ScratchMatrix, ReferenceError> {
        Ok(ScratchMatrix { values: room(elements)?, ..ScratchMatrix::default() })
    }

    /// Resizes to a row-major matrix of zeros.
    pub fn clear(&mut self, rows: usize, columns: usize) {
        self.values.clear();
        self.values.resize(rows * columns, 0.0);
        (self.rows, self.columns) = (rows, columns);
        (self.row_stride, self.column_stride) = (columns as isize, 1);
    }

    /// Loads a region of an operand, in its order in memory.
    ///
    /// # Safety
    /// The region is within the view, whose elements are live memory of a supported type.
    pub unsafe fn load(&mut self, view: &View, region: &Region) {
        let (start, row, column) = axes(view, region);
        (self.rows, self.columns) = (row.extent, column.extent);
        let by_rows = is_row_major(row, column);
        let (outer, inner) = if by_rows { (row, column) } else { (column, row) };
        (self.row_stride, self.column_stride) =
            if by_rows { (inner.extent as isize, 1) } else { (1, inner.extent as isize) };
        self.values.clear();
        let address = start as usize;
        if let Some(row) = view.dtype.element().filter(|row| !row.codes.is_empty()) {
            let start: *const u8 = std::ptr::with_exposed_provenance(address);
            // SAFETY: guaranteed by the caller; the axes stay within the region.
            let code = |index| unsafe { code_at(row.dtype, start, index as usize) };
            return gather(outer, inner, &mut self.values, |at| f64::from(row.codes[code(at)]));
        }
        with_element!(view.dtype, T => {
            let start: *const T = std::ptr::with_exposed_provenance(address);
            // SAFETY: as above. Unaligned, since fields of NumPy records may be.
            let element = |index| unsafe { start.offset(index).read_unaligned() };
            gather(outer, inner, &mut self.values, |index| element(index).decode());
        })
    }

    /// The index of an element in `values`.
    pub fn index(&self, row: usize, column: usize) -> usize {
        row * self.row_stride as usize + column * self.column_stride as usize
    }

    /// Stores the matrix to a region of an operand. `wrap`: the values are integers; store their
    /// low 32 bits.
    ///
    /// # Safety
    /// As for [`ScratchMatrix::load`]. The region has the matrix's extents and no concurrent users.
    pub unsafe fn store(&self, view: &View, region: &Region, wrap: bool) {
        let (start, row, column) = axes(view, region);
        let down = (row, self.row_stride);
        let across = (column, self.column_stride);
        let (outer, inner) =
            if is_row_major(row, column) { (down, across) } else { (across, down) };
        // SAFETY: guaranteed by the caller; the axes stay within the region.
        with_element!(view.dtype, T => unsafe {
            match wrap {
                true => scatter::<T>(start, outer, inner, &self.values, |sum| {
                    T::encode(f64::from(wrap_to_i32(sum)))
                }),
                false => scatter::<T>(start, outer, inner, &self.values, T::encode),
            }
        })
    }
}

/// An empty vector with room for so many elements.
pub fn room(elements: usize) -> Result<Vec<f64>, ReferenceError> {
    let mut values = Vec::new();
    let bytes = elements.saturating_mul(size_of::<f64>());
    values.try_reserve_exact(elements).map_err(|_| ReferenceError::Memory { bytes })?;
    Ok(values)
}

/// The low 32 bits of an integer below 2^63.
fn wrap_to_i32(whole: f64) -> i32 {
    whole as i64 as i32
}

/// One dimension of a region: extent, and stride in elements.
#[derive(Clone, Copy)]
struct Axis {
    extent: usize,
    stride: isize,
}

/// Whether rows are the outer dimension in memory. A dimension without steps does not matter.
fn is_row_major(row: Axis, column: Axis) -> bool {
    let step =
        |axis: Axis| if axis.extent == 1 || axis.stride == 0 { isize::MAX } else { axis.stride };
    step(column) <= step(row)
}

/// The address of a region, and its axes.
fn axes(view: &View, region: &Region) -> (u64, Axis, Axis) {
    let first = [region.batch, region.rows.start, region.columns.start];
    let offset: i64 = first.iter().zip(view.stride).map(|(index, stride)| index * stride).sum();
    let axis = |range: &Range<i64>, stride: i64| Axis {
        extent: (range.end - range.start) as usize,
        stride: stride as isize,
    };
    (
        view.address_of(offset),
        axis(&region.rows, view.stride[1]),
        axis(&region.columns, view.stride[2]),
    )
}

/// Appends numbers, by their index from the start; `inner` varies fastest.
fn gather(outer: Axis, inner: Axis, values: &mut Vec<f64>, number: impl Fn(isize) -> f64) {
    for line in 0..outer.extent as isize {
        let at = |index: isize| number(line * outer.stride + index);
        match inner.stride {
            // A separate arm, so that the compiler vectorizes it.
            1 => values.extend((0..inner.extent as isize).map(at)),
            stride => values.extend((0..inner.extent as isize).map(|index| at(index * stride))),
        }
    }
}

/// Writes `values` to the elements; each axis is paired with its stride in `values`.
///
/// # Safety
/// Every element that the axes reach from `start` is writable.
unsafe fn scatter<T: Element>(
    start: u64,
    (outer, outer_step): (Axis, isize),
    (inner, inner_step): (Axis, isize),
    values: &[f64],
    encode: impl Fn(f64) -> T,
) {
    let start: *mut T = std::ptr::with_exposed_provenance_mut(start as usize);
    for line in 0..outer.extent as isize {
        for index in 0..inner.extent as isize {
            let value = values[(line * outer_step + index * inner_step) as usize];
            // SAFETY: the caller keeps the axes within live memory.
            unsafe {
                start
                    .offset(line * outer.stride + index * inner.stride)
                    .write_unaligned(encode(value))
            };
        }
    }
}

/// Loads a region of several matrices side by side.
///
/// # Safety
/// As for [`ScratchMatrix::load`], where the region is within the columns of all matrices.
pub unsafe fn load_side_by_side(
    views: &[&View],
    region: &Region,
    into: &mut ScratchMatrix,
    scratch: &mut ScratchMatrix,
) {
    let Region { batch, rows, columns } = region;
    into.clear((rows.end - rows.start) as usize, (columns.end - columns.start) as usize);
    let mut first = 0;
    for view in views {
        let end = first + view.shape[2];
        let [from, to] = [columns.start, columns.end].map(|column| column.clamp(first, end));
        if from < to {
            let within =
                Region { batch: *batch, rows: rows.clone(), columns: from - first..to - first };
            // SAFETY: guaranteed by the caller.
            unsafe { scratch.load(view, &within) };
            for row in 0..scratch.rows {
                for column in 0..scratch.columns {
                    let at = into.index(row, column + (from - columns.start) as usize);
                    into.values[at] = scratch.values[scratch.index(row, column)];
                }
            }
        }
        first = end;
    }
}
