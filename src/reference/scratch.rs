//! Blocks: rectangles of an operand, decoded to float64 on the way in and rounded to the operand's type on the way out.

use std::ops::Range;

use rayon::prelude::*;

use super::element::{Element, with_element};
use crate::operand::View;

/// A rectangle of one matrix of a batch.
#[derive(Clone, Debug)]
pub struct Region {
    pub batch: i64,
    pub rows: Range<i64>,
    pub columns: Range<i64>,
}

/// All regions of at most `rows` by `columns` that together make up `shape`, to be worked on in parallel. The cut depends on
/// nothing but the arguments, so that results do not depend on the number of threads.
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

/// A float64 matrix in scratch memory, kept from one region to the next.
#[derive(Default)]
pub struct ScratchMatrix {
    pub values: Vec<f64>,
    pub rows: usize,
    pub columns: usize,
    pub row_stride: isize,
    pub column_stride: isize,
}

impl ScratchMatrix {
    /// Becomes a row-major matrix of zeros.
    pub fn clear(&mut self, rows: usize, columns: usize) {
        self.values.clear();
        self.values.resize(rows * columns, 0.0);
        (self.rows, self.columns) = (rows, columns);
        (self.row_stride, self.column_stride) = (columns as isize, 1);
    }

    /// Becomes a region of an operand, in the order in which that lies in memory.
    ///
    /// # Safety
    /// The region is within the view, whose elements are live memory of a type other than `Other`.
    pub unsafe fn load(&mut self, view: &View, region: &Region) {
        let (start, row, column) = axes(view, region);
        (self.rows, self.columns) = (row.extent, column.extent);
        let by_rows = is_row_major(row, column);
        let (outer, inner) = if by_rows { (row, column) } else { (column, row) };
        (self.row_stride, self.column_stride) =
            if by_rows { (inner.extent as isize, 1) } else { (1, inner.extent as isize) };
        self.values.clear();
        // SAFETY: the caller's; the axes step through nothing but the region.
        with_element!(view.dtype, T => unsafe { gather::<T>(start, outer, inner, &mut self.values) })
    }

    /// Where `values` holds an element.
    pub fn index(&self, row: usize, column: usize) -> usize {
        row * self.row_stride as usize + column * self.column_stride as usize
    }

    /// Writes the matrix to a region of an operand. `wrap`: the values are integers, of which an int32 holds the low bits.
    ///
    /// # Safety
    /// As for [`ScratchMatrix::load`], with as many rows and columns as the block has, and nobody else uses that region.
    pub unsafe fn store(&self, view: &View, region: &Region, wrap: bool) {
        let (start, row, column) = axes(view, region);
        let down = (row, self.row_stride);
        let across = (column, self.column_stride);
        let (outer, inner) =
            if is_row_major(row, column) { (down, across) } else { (across, down) };
        // SAFETY: the caller's; the axes step through nothing but the region.
        with_element!(view.dtype, T => unsafe {
            match wrap {
                true => scatter::<T>(start, outer, inner, &self.values, |sum| T::encode(f64::from(wrap_to_i32(sum)))),
                false => scatter::<T>(start, outer, inner, &self.values, T::encode),
            }
        })
    }
}

/// The low 32 bits of a whole number below 2^63.
fn wrap_to_i32(whole: f64) -> i32 {
    whole as i64 as i32
}

/// One dimension of a region: how many elements, and how far apart in memory.
#[derive(Clone, Copy)]
struct Axis {
    extent: usize,
    stride: isize,
}

/// Whether stepping through the elements row by row is the order of memory. A dimension without steps has no say.
fn is_row_major(row: Axis, column: Axis) -> bool {
    let step =
        |axis: Axis| if axis.extent == 1 || axis.stride == 0 { isize::MAX } else { axis.stride };
    step(column) <= step(row)
}

/// Where a region starts, and its rows and columns.
fn axes(view: &View, region: &Region) -> (u64, Axis, Axis) {
    let first = [region.batch, region.rows.start, region.columns.start];
    let offset: i64 = first.iter().zip(view.stride).map(|(index, stride)| index * stride).sum();
    let axis = |range: &Range<i64>, stride: i64| Axis {
        extent: (range.end - range.start) as usize,
        stride: stride as isize,
    };
    let start = view.data + (offset * view.dtype.bytes()) as u64;
    (start, axis(&region.rows, view.stride[1]), axis(&region.columns, view.stride[2]))
}

/// Appends the decoded elements, `inner` running fastest.
///
/// # Safety
/// Every element that the axes reach from `start` can be read.
unsafe fn gather<T: Element>(start: u64, outer: Axis, inner: Axis, values: &mut Vec<f64>) {
    let start: *const T = std::ptr::with_exposed_provenance(start as usize);
    for line in 0..outer.extent as isize {
        // SAFETY: within the region by the caller's word. Unaligned, because a NumPy field of packed records can be.
        let at = |index: isize| unsafe {
            start.offset(line * outer.stride + index).read_unaligned().decode()
        };
        match inner.stride {
            // Of its own, for the compiler to see that it can be vectorized.
            1 => values.extend((0..inner.extent as isize).map(at)),
            stride => values.extend((0..inner.extent as isize).map(|index| at(index * stride))),
        }
    }
}

/// Writes `values` to the elements; each axis comes with the stride that it has in `values`.
///
/// # Safety
/// Every element that the axes reach from `start` can be written.
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
            // SAFETY: within the region by the caller's word.
            unsafe {
                start
                    .offset(line * outer.stride + index * inner.stride)
                    .write_unaligned(encode(value))
            };
        }
    }
}
