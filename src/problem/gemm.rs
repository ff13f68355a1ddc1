//! out = A @ B, for one pair of matrices or a batch.

use super::ProblemError;
use super::check::{check_operands, same_extent, same_rank};
use crate::operand::{DType, View};

/// `A (L, M, K)`, `B (L, K, N)` and `out (L, M, N)`; L = 1 for operands of rank 2.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GemmProblem {
    pub a: View,
    pub b: View,
    pub out: View,
    pub accumulator: DType,
    pub options: ProblemOptions,
    /// The columns of `out` that the further matrices B of a joint GEMM yield; 0 for one matrix B.
    pub further_columns: i64,
}

/// How a product may be computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProblemOptions {
    /// Whether sums of float8 products may keep fewer bits than the accumulator type.
    pub fast_sums: bool,
    /// Multiprocessors that persistent kernels leave to other work, such as communication.
    pub free_multiprocessors: u32,
}

impl GemmProblem {
    /// A product before its operands are read.
    pub const UNREAD: GemmProblem = GemmProblem::unread(
        DType::F32,
        ProblemOptions { fast_sums: false, free_multiprocessors: 0 },
    );

    /// The same with an accumulator and options. Constructed in place.
    #[inline(always)]
    pub const fn unread(accumulator: DType, options: ProblemOptions) -> GemmProblem {
        let (a, b, out) = (View::UNREAD, View::UNREAD, View::UNREAD);
        GemmProblem { a, b, out, accumulator, options, further_columns: 0 }
    }

    pub fn new(a: View, b: View, out: View, accumulator: DType) -> Result<Self, ProblemError> {
        let problem = GemmProblem { a, b, out, accumulator, ..GemmProblem::UNREAD };
        problem.check().map(|()| problem)
    }

    /// Checks that the operands fit each other.
    pub fn check(&self) -> Result<(), ProblemError> {
        let GemmProblem { a, b, out, .. } = self;
        for (name, view) in [("A", a), ("B", b), ("out", out)] {
            if !(2..=3).contains(&view.rank) {
                return Err(ProblemError::rank(name, "2 or 3", view));
            }
            same_rank(name, view, a)?;
        }
        same_extent("K", ("A", a, 2), ("B", b, 1))?;
        same_extent("M", ("out", out, 1), ("A", a, 1))?;
        match self.further_columns {
            0 => same_extent("N", ("out", out, 2), ("B", b, 2))?,
            further => self.check_columns(further)?,
        }
        same_extent("L", ("B", b, 0), ("A", a, 0))?;
        same_extent("L", ("out", out, 0), ("A", a, 0))?;
        check_operands(&[("A", a), ("B", b)], out)
    }

    /// Checks the number of columns of a joint GEMM.
    #[cold]
    fn check_columns(&self, further: i64) -> Result<(), ProblemError> {
        let (columns, out_shape) = (self.n() + further, self.out.user_shape().to_vec());
        match self.out.shape[2] == columns {
            true => Ok(()),
            false => Err(ProblemError::JointColumns { columns, out_shape }),
        }
    }

    /// A joint GEMM as a product by one matrix B of all columns, of which the memory holds the
    /// first ones only; another product unchanged.
    pub fn joined(&self) -> GemmProblem {
        let mut joined = *self;
        joined.b.shape[2] += joined.further_columns;
        joined.further_columns = 0;
        joined
    }

    /// The multiprocessors of a chip that the product may use, at least one.
    pub fn multiprocessors(&self, of_chip: u32) -> u32 {
        of_chip.saturating_sub(self.options.free_multiprocessors).max(1)
    }

    pub fn batch(&self) -> i64 {
        self.out.shape[0]
    }

    pub fn m(&self) -> i64 {
        self.a.shape[1]
    }

    pub fn n(&self) -> i64 {
        self.b.shape[2]
    }

    pub fn k(&self) -> i64 {
        self.a.shape[2]
    }

    /// The transposed product `out^T = B^T @ A^T`, which turns a column-major output into a
    /// row-major one.
    pub fn transposed(&self) -> GemmProblem {
        let [a, b, out] = [&self.b, &self.a, &self.out].map(View::transposed);
        GemmProblem { a, b, out, ..*self }
    }
}
