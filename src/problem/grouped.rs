//! Grouped GEMM: each group of A's rows times the group's own B.

use super::check::{check_operands, same_extent};
use super::{GemmProblem, ProblemError, ProblemOptions};
use crate::operand::{DType, View};

/// `A (TotalM, K)` or `(1, TotalM, K)`, `B (G, K, N)`, `out` like A with N columns, `offsets (G,)`
/// int32: the end row of each group. Rows past the last offset belong to no group and stay
/// unchanged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupedGemmProblem {
    pub a: View,
    pub b: View,
    pub out: View,
    pub offsets: View,
    pub accumulator: DType,
    /// No kernel leaves multiprocessors free: `free_multiprocessors` is 0.
    pub options: ProblemOptions,
}

impl GroupedGemmProblem {
    /// A problem before its operands are read.
    pub const UNREAD: GroupedGemmProblem = GroupedGemmProblem {
        a: View::UNREAD,
        b: View::UNREAD,
        out: View::UNREAD,
        offsets: View::UNREAD,
        accumulator: GemmProblem::UNREAD.accumulator,
        options: GemmProblem::UNREAD.options,
    };

    pub fn new(
        a: View,
        b: View,
        out: View,
        offsets: View,
        accumulator: DType,
    ) -> Result<Self, ProblemError> {
        let problem = GroupedGemmProblem { a, b, out, offsets, accumulator, ..Self::UNREAD };
        problem.check().map(|()| problem)
    }

    /// Checks that the operands fit each other. Kernels also require
    /// [`GroupedGemmProblem::offsets_fit`], and no operand in [`GroupedGemmProblem::misranked`].
    pub fn check(&self) -> Result<(), ProblemError> {
        let GroupedGemmProblem { a, b, out, offsets, .. } = self;
        for (name, view) in [("A", a), ("out", out)] {
            if !(view.rank == 2 || (view.rank == 3 && view.shape[0] == 1)) {
                return Err(ProblemError::rank(name, "2, or 3 with a leading 1", view));
            }
        }
        same_extent("TotalM", ("out", out, 1), ("A", a, 1))?;
        if b.rank == 3 {
            same_extent("K", ("A", a, 2), ("B", b, 1))?;
            same_extent("N", ("out", out, 2), ("B", b, 2))?;
        }
        if offsets.dtype != DType::I32 {
            return Err(ProblemError::OffsetsType { dtype: offsets.dtype });
        }
        check_operands(&[("A", a), ("B", b), ("offsets", offsets)], out)
    }

    pub fn groups(&self) -> i64 {
        self.b.shape[0]
    }

    /// The operands without the offsets, as kernels address them: A and out hold the rows of all
    /// groups, B is a batch of one matrix per group.
    pub fn stacked(&self) -> GemmProblem {
        let GroupedGemmProblem { a, b, out, accumulator, options, .. } = *self;
        GemmProblem { a, b, out, accumulator, options, further_columns: 0 }
    }

    /// The operand of a rank that no kernel serves: its name, its view and the rank that kernels
    /// require. As with a wrong number of offsets, discovery then finds no kernel and does not
    /// raise.
    pub fn misranked(&self) -> Option<(&'static str, &View, usize)> {
        let ranks = [("B", &self.b, 3), ("offsets", &self.offsets, 1)];
        ranks.into_iter().find(|(_, view, rank)| view.rank != *rank)
    }

    /// Whether there is one offset per group. If not, discovery finds no kernel and does not raise,
    /// like NVIDIA's `cutlass_api`.
    pub fn offsets_fit(&self) -> bool {
        self.offsets.shape[2] == self.groups()
    }
}
