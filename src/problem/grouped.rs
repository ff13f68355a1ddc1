//! Grouped GEMM: the groups divide the rows of A, or K, or are matrices of which some rows exist.

use std::mem::replace;
use std::ops::Range;

use super::check::{check_operands, same_extent};
use super::{GemmProblem, GroupsError, ProblemError, ProblemOptions};
use crate::operand::{DType, View};

/// Groups along M: `A (TotalM, K)` or `(1, TotalM, K)`, `B (G, K, N)`, `out` like A with N columns,
/// `offsets (G,)` int32: the end row of each group. Each group of rows has its own matrix of B.
/// Rows past the last offset belong to no group and stay unchanged.
///
/// Gathered ([`GroupedGemmProblem::index`]): the same with an int32 `index (TotalM,)`, the row of A
/// for each row of `out`. A may have any number of rows.
///
/// Masked ([`GroupedGemmProblem::is_masked`]): `A (G, M, K)`, `B (G, K, N)`, `out (G, M, N)`,
/// `offsets (G,)` int32: the count of rows of each group, the first of its matrix. The other rows
/// of `out` stay unchanged.
///
/// Groups along K ([`GroupedGemmProblem::is_along_k`]): `A (M, TotalK)` or `(1, M, TotalK)`,
/// `B (TotalK, N)`, `out (G, M, N)`, `offsets (G,)` int32: the end of each group along K. Each
/// group yields a matrix of `out`, an empty one zeros. What lies past the last offset belongs to no
/// group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupedGemmProblem {
    pub a: View,
    pub b: View,
    pub out: View,
    pub offsets: View,
    /// Of rank 0 if rows are not gathered.
    pub index: View,
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
        index: View::UNREAD,
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
        let (is_along_k, is_masked) = (self.is_along_k(), self.is_masked());
        for (name, view) in [("A", a), ("out", out)] {
            let is_matrix = view.rank == 2 || (view.rank == 3 && view.shape[0] == 1);
            if !is_matrix && !is_masked && (name == "A" || !is_along_k) {
                return Err(ProblemError::rank(name, "2, or 3 with a leading 1", view));
            }
        }
        if is_masked {
            same_extent("G", ("A", a, 0), ("B", b, 0))?;
            same_extent("G", ("out", out, 0), ("B", b, 0))?;
        }
        let [m, k] = match (is_along_k, is_masked) {
            (true, _) => ["M", "TotalK"],
            (_, true) => ["M", "K"],
            _ => ["TotalM", "K"],
        };
        if self.gathers() {
            self.check_index()?;
        } else {
            same_extent(m, ("out", out, 1), ("A", a, 1))?;
        }
        if b.rank == 3 || is_along_k {
            same_extent(k, ("A", a, 2), ("B", b, 1))?;
            same_extent("N", ("out", out, 2), ("B", b, 2))?;
        }
        if offsets.dtype != DType::I32 {
            return Err(ProblemError::OffsetsType { dtype: offsets.dtype });
        }
        check_operands(&[("A", a), ("B", b), ("offsets", offsets)], out)
    }

    /// Checks the index of A's rows.
    #[cold]
    fn check_index(&self) -> Result<(), ProblemError> {
        let GroupedGemmProblem { out, index, .. } = self;
        if index.dtype != DType::I32 {
            return Err(ProblemError::IndexType { dtype: index.dtype });
        }
        if index.rank != 1 {
            return Err(ProblemError::rank("index", "1", index));
        }
        if self.is_along_k() || self.is_masked() {
            return Err(ProblemError::IndexOfGroups);
        }
        same_extent("TotalM", ("out", out, 1), ("index", index, 2))?;
        check_operands(&[("index", index)], out)
    }

    /// Whether an index names the row of A for each row of `out`.
    #[inline]
    pub fn gathers(&self) -> bool {
        self.index.rank > 0
    }

    /// Whether the groups divide K: B is one matrix, and `out` a batch.
    #[inline]
    pub fn is_along_k(&self) -> bool {
        (self.b.rank, self.out.rank) == (2, 3)
    }

    /// Whether A and `out` have a matrix for each group, and the offsets are counts of rows. Of one
    /// group, this means the same as groups along M.
    #[inline]
    pub fn is_masked(&self) -> bool {
        (self.a.rank, self.b.rank) == (3, 3) && self.a.shape[0] != 1
    }

    pub fn groups(&self) -> i64 {
        if self.is_along_k() { self.out.shape[0] } else { self.b.shape[0] }
    }

    /// The rows of each group, or its part of K, for the values of `offsets`.
    ///
    /// # Errors
    /// If an offset decreases or exceeds what groups divide; of masked groups, if a count is
    /// negative or exceeds the rows of a matrix of A.
    pub fn parts(&self, values: &[i64]) -> Result<Vec<Range<i64>>, GroupsError> {
        let (divided, extent) = match self.is_along_k() {
            true => ("columns", self.a.shape[2]),
            // Of A too, unless rows are gathered.
            false => ("rows", self.out.shape[1]),
        };
        let mut start = 0;
        let part = |(group, end): (usize, &i64)| {
            let end = *end;
            let start = if self.is_masked() { 0 } else { replace(&mut start, end) };
            if start <= end && end <= extent {
                Ok(start..end)
            } else if self.is_masked() {
                Err(GroupsError::Count { group, count: end, rows: extent })
            } else {
                Err(GroupsError::Order { group, start, end, extent, divided })
            }
        };
        values.iter().enumerate().map(part).collect()
    }

    /// Checks the values of `index` in the rows of these groups.
    ///
    /// # Errors
    /// If one is no row of A.
    pub fn check_rows(&self, groups: &[Range<i64>], index: &[i64]) -> Result<(), GroupsError> {
        let last = self.a.shape[1] - 1;
        for (group, part) in groups.iter().enumerate() {
            for row in part.clone() {
                let index = index[row as usize];
                if !(0..=last).contains(&index) {
                    return Err(GroupsError::Index { row, group, index, last });
                }
            }
        }
        Ok(())
    }

    /// The operands without the offsets, as kernels address them. Groups along M: A and out hold
    /// the rows of all groups, B is a batch of one matrix per group. Masked: a batch. Groups along
    /// K: a batch whose matrices of A and of B have one address, the K of all groups and a batch
    /// stride of 0. Gathered: A has the rows of `out`, and may have no memory for them.
    pub fn stacked(&self) -> GemmProblem {
        let GroupedGemmProblem { mut a, mut b, out, accumulator, options, .. } = *self;
        a.shape[1] = out.shape[1];
        if self.is_along_k() {
            for view in [&mut a, &mut b] {
                (view.shape[0], view.stride[0]) = (out.shape[0], 0);
            }
        }
        GemmProblem { a, b, out, accumulator, options, further_columns: 0 }
    }

    /// [`GroupedGemmProblem::stacked`] as the cost model takes it: along K, a batch of groups of
    /// the mean K, since only the device knows the others.
    pub fn mean(&self) -> GemmProblem {
        let mut mean = self.stacked();
        if self.is_along_k() {
            let k = mean.k().unsigned_abs().div_ceil(self.groups().max(1).unsigned_abs()) as i64;
            (mean.a.shape[2], mean.b.shape[1]) = (k, k);
        }
        mean
    }

    /// The operand of a rank that no kernel serves: its name, its view and the rank that kernels
    /// require. As with a wrong number of offsets, discovery then finds no kernel and does not
    /// raise.
    pub fn misranked(&self) -> Option<(&'static str, &View, usize)> {
        let rank_of_b = if self.is_along_k() { 2 } else { 3 };
        let ranks = [("B", &self.b, rank_of_b), ("offsets", &self.offsets, 1)];
        ranks.into_iter().find(|(_, view, rank)| view.rank != *rank)
    }

    /// Whether there is one offset per group. If not, discovery finds no kernel and does not raise,
    /// like NVIDIA's `cutlass_api`.
    pub fn offsets_fit(&self) -> bool {
        self.offsets.shape[2] == self.groups()
    }
}
