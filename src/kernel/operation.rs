//! The operations that kernels compute.

use crate::problem::Problem;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Gemm,
    GroupedGemm,
    Elementwise,
}

impl Operation {
    pub const ALL: [Operation; 3] =
        [Operation::Gemm, Operation::GroupedGemm, Operation::Elementwise];

    /// The operation of a problem.
    pub fn of(problem: &Problem) -> Operation {
        match problem {
            Problem::Gemm(_) => Operation::Gemm,
            Problem::GroupedGemm(_) => Operation::GroupedGemm,
            Problem::Elementwise(_) => Operation::Elementwise,
        }
    }

    /// A plain or a grouped GEMM.
    pub fn gemm(grouped: bool) -> Operation {
        if grouped { Operation::GroupedGemm } else { Operation::Gemm }
    }

    pub fn name(self) -> &'static str {
        match self {
            Operation::Gemm => "gemm",
            Operation::GroupedGemm => "grouped_gemm",
            Operation::Elementwise => "elementwise_add",
        }
    }
}
