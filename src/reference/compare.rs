//! Compares an output with the reference's.

use rayon::prelude::*;

use super::element::{Element, with_element};
use super::pool;
use crate::operand::View;

/// By how much an element may differ from the reference's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Relative to the element's magnitude plus the root mean square of all elements: rounding
    /// errors of sums grow with their terms, not with the sum.
    pub relative: f64,
    pub absolute: f64,
}

/// An element that differs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// Batch, row and column.
    pub index: [i64; 3],
    pub actual: f64,
    pub expected: f64,
}

/// The first element of `actual` that differs from `expected` by more than the tolerance. NaNs are
/// equal, and infinities of one sign.
///
/// # Safety
/// Both views are on the CPU, of one shape and one supported type, and readable.
pub unsafe fn first_difference(
    actual: &View,
    expected: &View,
    tolerance: Tolerance,
) -> Option<Difference> {
    // SAFETY: guaranteed by the caller.
    pool::run(
        || with_element!(expected.dtype, T => unsafe { compare::<T>(actual, expected, tolerance) }),
    )
}

/// # Safety
/// As for [`first_difference`]; the views have elements of type `T`.
unsafe fn compare<T: Element>(
    actual: &View,
    expected: &View,
    tolerance: Tolerance,
) -> Option<Difference> {
    let [batch, rows, columns] = expected.shape;
    let indices = |line: i64| (0..columns).map(move |column| [line / rows, line % rows, column]);
    let lines = || (0..batch * rows).into_par_iter();
    let value = |view: &View, index: [i64; 3]| {
        let offset: i64 = index.iter().zip(view.stride).map(|(at, stride)| at * stride).sum();
        let address = view.data as usize + offset as usize * size_of::<T>();
        // SAFETY: the index lies within the shape; the rest is guaranteed by the caller.
        unsafe { std::ptr::with_exposed_provenance::<T>(address).read_unaligned() }.decode()
    };
    let squares = |line| -> (f64, u64) {
        let values = indices(line).map(|index| value(expected, index));
        values
            .filter(|value| value.is_finite())
            .fold((0.0, 0), |(sum, count), value| (sum + value * value, count + 1))
    };
    let add = |one: (f64, u64), other: (f64, u64)| (one.0 + other.0, one.1 + other.1);
    let (sum, count) = lines().map(squares).reduce(|| (0.0, 0), add);
    let scale = (sum / count.max(1) as f64).sqrt();
    let differs = |index: &[i64; 3]| {
        let (actual, expected) = (value(actual, *index), value(expected, *index));
        let allowed = tolerance.relative * (expected.abs() + scale) + tolerance.absolute;
        let is_equal = actual == expected || (actual.is_nan() && expected.is_nan());
        // An infinite allowance is that of an infinite element.
        let is_close = (actual - expected).abs() <= allowed && expected.is_finite();
        !(is_equal || is_close)
    };
    let index = lines().find_map_first(|line| indices(line).find(differs))?;
    let (actual, expected) = (value(actual, index), value(expected, index));
    Some(Difference { index, actual, expected })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operand::{DType, DeviceId};

    const EXACT: Tolerance = Tolerance { relative: 0.0, absolute: 0.0 };

    fn difference(actual: &[f32], expected: &[f32], tolerance: Tolerance) -> Option<[i64; 3]> {
        let columns = expected.len() as i64 / 2;
        let view = |values: &[f32]| View {
            data: values.as_ptr().expose_provenance() as u64,
            dtype: DType::F32,
            device: DeviceId::Cpu,
            rank: 2,
            shape: [1, 2, columns],
            stride: [0, columns, 1],
            ..View::UNREAD
        };
        // SAFETY: the slices outlive the call.
        unsafe { first_difference(&view(actual), &view(expected), tolerance) }.map(|of| of.index)
    }

    #[test]
    fn the_first_element_beyond_the_tolerance_is_found() {
        let expected = [1.0, -1.0, 0.0, 1.0];
        assert_eq!(difference(&expected, &expected, EXACT), None);
        assert_eq!(difference(&[1.0, -1.0, 0.001, 9.0], &expected, EXACT), Some([0, 1, 0]));
        // The root mean square is 0.87.
        let tolerance = Tolerance { relative: 0.01, absolute: 0.0 };
        assert_eq!(difference(&[1.018, -1.0, 0.008, 9.0], &expected, tolerance), Some([0, 1, 1]));
        assert_eq!(difference(&[1.02, -1.0, 0.0, 1.0], &expected, tolerance), Some([0, 0, 0]));
        let tolerance = Tolerance { relative: 0.0, absolute: 1.0 };
        assert_eq!(difference(&[2.0, 0.0, 1.0, 0.0], &expected, tolerance), None);
    }

    #[test]
    fn values_that_are_not_finite() {
        let (nan, infinity) = (f32::NAN, f32::INFINITY);
        let wide = Tolerance { relative: 1.0, absolute: 1.0 };
        let expected = [nan, infinity, -infinity, 1.0];
        assert_eq!(difference(&expected, &expected, EXACT), None);
        assert_eq!(difference(&[0.0, infinity, -infinity, 1.0], &expected, wide), Some([0, 0, 0]));
        assert_eq!(difference(&[nan, 1.0, -infinity, 1.0], &expected, wide), Some([0, 0, 1]));
        assert_eq!(difference(&[nan, infinity, infinity, 1.0], &expected, wide), Some([0, 1, 0]));
        assert_eq!(difference(&[nan, infinity, -infinity, nan], &expected, wide), Some([0, 1, 1]));
    }
}
