//! out = A + B, elementwise.

use super::ProblemError;
use super::check::{check_device, check_operands, same_extent, same_rank};
use crate::operand::View;

/// Three operands of one shape and of rank 1 to 3.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ElementwiseProblem {
    pub a: View,
    pub b: View,
    pub out: View,
}

impl ElementwiseProblem {
    /// A problem before its operands are read.
    pub const UNREAD: ElementwiseProblem =
        ElementwiseProblem { a: View::UNREAD, b: View::UNREAD, out: View::UNREAD };

    pub fn new(a: View, b: View, out: View) -> Result<Self, ProblemError> {
        let problem = ElementwiseProblem { a, b, out };
        problem.check().map(|()| problem)
    }

    /// Checks that the operands fit each other.
    pub fn check(&self) -> Result<(), ProblemError> {
        let ElementwiseProblem { a, b, out } = self;
        if a.rank == 0 {
            return Err(ProblemError::rank("A", "1 to 3", a));
        }
        for (name, view) in [("B", b), ("out", out)] {
            same_rank(name, view, a)?;
            for dim in 0..3 {
                same_extent(["first", "middle", "last"][dim], (name, view, dim), ("A", a, dim))?;
            }
        }
        // In place is safe per element. Only a shifted or reshaped alias would read overwritten
        // data.
        let same_elements = |view: &View| {
            view.data == out.data && view.stride == out.stride && view.dtype == out.dtype
        };
        let mut inputs = vec![("A", a), ("B", b)];
        inputs.iter().try_for_each(|(name, view)| check_device(name, view, out))?;
        inputs.retain(|(_, view)| !same_elements(view));
        check_operands(&inputs, out)
    }
}
