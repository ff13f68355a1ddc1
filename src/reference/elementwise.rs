//! out = A + B, elementwise.

use rayon::prelude::*;

use super::epilogue::{EpilogueScratch, store_region};
use super::scratch::{ScratchMatrix, regions};
use crate::epilogue::BoundEpilogue;
use crate::problem::{ElementwiseProblem, Problem};

/// # Safety
/// As for [`run`](super::run). [`adds`](super::adds) holds for the types.
pub unsafe fn add(problem: &ElementwiseProblem, epilogue: Option<&BoundEpilogue>) {
    let ElementwiseProblem { a, b, out } = problem;
    let accumulator = Problem::Elementwise(*problem).accumulator();
    let integers = a.dtype.is_integer() && b.dtype.is_integer();
    regions(out.shape, 32, 1024).for_each_init(
        <(ScratchMatrix, ScratchMatrix, EpilogueScratch)>::default,
        |(left, right, scratch), region| {
            // SAFETY: regions lie within the shape that the views share, and the types are
            // supported.
            unsafe {
                left.load(a, &region);
                right.load(b, &region);
            }
            for row in 0..left.rows {
                for column in 0..left.columns {
                    let (at, term) =
                        (left.index(row, column), right.values[right.index(row, column)]);
                    left.values[at] += term;
                }
            }
            // SAFETY: as above; regions of the output are disjoint.
            unsafe {
                store_region([left, left], accumulator, epilogue, out, &region, integers, scratch)
            };
        },
    );
}
