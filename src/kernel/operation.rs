//! The operations that kernels compute.

use crate::problem::Problem;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Gemm,
    GroupedGemm,
    GroupedGemmAlongK,
    Elementwise,
}

/// What the groups of a product divide: `Groups` of `kernels/common/groups.cuh`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Groups {
    /// There are none.
    None,
    /// The rows of A and of the output. Each group has its own matrix B.
    AlongM,
    /// K of A and of B. Each group has its own matrix of the output.
    AlongK,
}

impl Groups {
    /// The name in CUDA C++.
    pub fn argument(self) -> &'static str {
        match self {
            Groups::None => "Groups::NONE",
            Groups::AlongM => "Groups::ALONG_M",
            Groups::AlongK => "Groups::ALONG_K",
        }
    }
}

impl Operation {
    pub const ALL: [Operation; 4] = [
        Operation::Gemm,
        Operation::GroupedGemm,
        Operation::GroupedGemmAlongK,
        Operation::Elementwise,
    ];

    /// The operation of a problem.
    pub fn of(problem: &Problem) -> Operation {
        match problem {
            Problem::Gemm(_) => Operation::Gemm,
            Problem::GroupedGemm(grouped) if grouped.is_along_k() => Operation::GroupedGemmAlongK,
            Problem::GroupedGemm(_) => Operation::GroupedGemm,
            Problem::Elementwise(_) => Operation::Elementwise,
        }
    }

    /// A plain or a grouped GEMM.
    pub fn gemm(groups: Groups) -> Operation {
        match groups {
            Groups::None => Operation::Gemm,
            Groups::AlongM => Operation::GroupedGemm,
            Groups::AlongK => Operation::GroupedGemmAlongK,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Operation::Gemm => "gemm",
            Operation::GroupedGemm => "grouped_gemm",
            Operation::GroupedGemmAlongK => "k_grouped_gemm",
            Operation::Elementwise => "elementwise_add",
        }
    }
}
