//! Problems: the operation and its operand views, independent of the kernel that computes it.

mod check;
mod elementwise;
mod error;
mod fused;
mod gemm;
mod grouped;
mod joint;
mod prologue;
mod scaled;
mod variants;

pub use elementwise::ElementwiseProblem;
pub use error::{GroupsError, ProblemError};
pub use fused::{OperandValue, fuse, rebind};
pub use gemm::{GemmProblem, ProblemOptions};
pub use grouped::GroupedGemmProblem;
pub use prologue::{PrologueOperands, activation_bytes, precede};
pub use variants::{MOST_VIEWS, Problem};
