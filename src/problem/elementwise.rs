//! out = A + B, elementwise.

use super::ProblemError;
use super::check::{check_operands, same_extent};
use crate::operand::View;

/// Three operands of one shape and of rank 1 to 3.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ElementwiseProblem {
    pub a: View,
    pub b: View,
    pub out: View,
}

impl ElementwiseProblem {
    pub fn new(a: View, b: View, out: View) -> Result<Self, ProblemError> {
        let problem = ElementwiseProblem { a, b, out };
        problem.check().map(|()| problem)
    }

    /// Checks that the operands fit each other.
    pub fn check(&self) -> Result<(), ProblemError> {
        let ElementwiseProblem { a, b, out } = self;
        if a.rank == 0 {
            return Err(ProblemError::Rank {
                name: "A",
                expected: "1 to 3",
                rank: 0,
                shape: Vec::new(),
            });
        }
        for (name, view) in [("B", b), ("out", out)] {
            if view.rank != a.rank {
                let (shape, a_shape) = (view.user_shape().to_vec(), a.user_shape().to_vec());
                return Err(ProblemError::MixedRanks { name, shape, a_shape });
            }
            for dim in 0..3 {
                same_extent(["first", "middle", "last"][dim], (name, view, dim), ("A", a, dim))?;
            }
        }
        // In place is safe per element. Only a shifted or reshaped alias would read overwritten
        // data.
        let same_elements = |view: &View| {
            view.data == out.data && view.stride == out.stride && view.dtype == out.dtype
        };
        let inputs: Vec<_> =
            [("A", a), ("B", b)].into_iter().filter(|(_, view)| !same_elements(view)).collect();
        check_operands(&inputs, out)?;
        for (name, view) in [("A", a), ("B", b)] {
            if view.device != out.device {
                return Err(ProblemError::MixedDevices {
                    name,
                    device: view.device,
                    out_device: out.device,
                });
            }
        }
        Ok(())
    }
}
