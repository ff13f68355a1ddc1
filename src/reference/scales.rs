//! Block scales on the CPU: scales the elements of a region before they are multiplied.

use std::ops::Range;

use super::element::{Element, with_element};
use super::scratch::{Region, ScratchMatrix};
use crate::epilogue::{BlockScale, BoundEpilogue, Value};
use crate::operand::{DType, View};

/// Where the rows, the matrix or the K of a group lie among those of a grouped GEMM; zeros for a
/// GEMM.
#[derive(Clone, Copy, Default)]
pub struct Origin {
    /// The group's first row in A.
    pub row: i64,
    pub group: i64,
    /// The group's first index of K, of groups along K.
    pub k: i64,
}

/// Replaces the elements of a region of A and of B by (element - zero point) * scale.
///
/// # Safety
/// The scales and zero points are readable and passed the checks of `fuse`; the regions lie within
/// the factors.
pub unsafe fn scale_factors(
    epilogue: Option<&BoundEpilogue>,
    origin: Origin,
    (left, left_region): (&mut ScratchMatrix, &Region),
    (right, right_region): (&mut ScratchMatrix, &Region),
) {
    let Some(bound) = epilogue else { return };
    let Some(scaling) = &bound.epilogue.graph.scaling else { return };
    if let Some(of) = scaling.a {
        let Region { batch, rows, columns } = left_region;
        let rows = rows.start + origin.row..rows.end + origin.row;
        let (row_step, step) = (left.row_stride, left.column_stride);
        let deep = columns.start + origin.k..columns.end + origin.k;
        let axes = (rows, row_step as usize, deep, step as usize);
        // SAFETY: guaranteed by the caller.
        unsafe { scale(bound, of, true, *batch + origin.group, axes, &mut left.values) };
    }
    if let Some(of) = scaling.b {
        let Region { batch, rows, columns } = right_region;
        let (row_step, step) = (right.row_stride, right.column_stride);
        let deep = rows.start + origin.k..rows.end + origin.k;
        let axes = (columns.clone(), step as usize, deep, row_step as usize);
        // SAFETY: guaranteed by the caller.
        unsafe { scale(bound, of, false, *batch + origin.group, axes, &mut right.values) };
    }
}

/// Scales the elements at `outer` (rows of A, columns of B) and `inner` (along K), each with its
/// stride in `values`.
///
/// # Safety
/// As for [`scale_factors`].
unsafe fn scale(
    bound: &BoundEpilogue,
    of: BlockScale,
    is_a: bool,
    matrix: i64,
    (outer, outer_step, inner, inner_step): (Range<i64>, usize, Range<i64>, usize),
    values: &mut [f64],
) {
    let (extent, depth) = (i64::from(of.extent), i64::from(of.depth));
    let element = |input: u32, along: i64, deep: i64, none: f64| {
        let Some(Value::Tensor(view)) = bound.inputs.get(input as usize) else { return none };
        let offset = match (of.is_swizzled, is_a) {
            (true, _) => BlockScale::swizzled_offset(view.stride[1], along, deep),
            (false, true) => view.stride[1] * along + view.stride[2] * deep,
            (false, false) => view.stride[1] * deep + view.stride[2] * along,
        };
        // SAFETY: guaranteed by the caller.
        unsafe { read(view, view.stride[0] * matrix + offset) }
    };
    for (at, along) in outer.clone().enumerate() {
        let mut k = inner.start;
        while k < inner.end {
            let block = k / depth;
            let end = ((block + 1) * depth).min(inner.end);
            let factor = element(of.scale, along / extent, block, 1.0);
            let zero = of.zero.map_or(0.0, |zero| element(zero, along / extent, block, 0.0));
            for k in k..end {
                let value = &mut values[at * outer_step + (k - inner.start) as usize * inner_step];
                *value = (*value - zero) * factor;
            }
            k = end;
        }
    }
}

/// # Safety
/// The element at this offset of the view is readable.
unsafe fn read(view: &View, offset: i64) -> f64 {
    let address = view.address_of(offset) as usize;
    if view.dtype == DType::E8M0 {
        // SAFETY: guaranteed by the caller.
        let bits = unsafe { std::ptr::with_exposed_provenance::<u8>(address).read() };
        return if bits == u8::MAX { f64::NAN } else { 2f64.powi(i32::from(bits) - 127) };
    }
    // SAFETY: guaranteed by the caller.
    with_element!(view.dtype, T => unsafe {
        std::ptr::with_exposed_provenance::<T>(address).read_unaligned().decode()
    })
}
