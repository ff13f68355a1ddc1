//! The frame of a program: the user's product, or the transposed product.
//!
//! Programs write row-major outputs, and those for few rows have them on M. A column-major output,
//! and one of few columns, is that of the transposed product `out^T = B^T @ A^T`. So each program
//! is up to two kernels. All that a family says of a configuration is in the program's frame.

use std::borrow::Cow;

use super::demand::Demand;
use super::layout::Layout;
use super::types::Types;
use crate::epilogue::Scaling;
use crate::operand::View;
use crate::problem::{GemmProblem, Problem};

/// Converts between the frames of the user and of a program. Each conversion is its own inverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Frame {
    User,
    Transposed,
}

impl Frame {
    pub fn is_transposed(self) -> bool {
        self == Frame::Transposed
    }

    pub fn other(self) -> Frame {
        if self.is_transposed() { Frame::User } else { Frame::Transposed }
    }

    /// Values of A and B, or of M and N.
    pub fn pair<T>(self, [a, b]: [T; 2]) -> [T; 2] {
        if self.is_transposed() { [b, a] } else { [a, b] }
    }

    /// Values of M, N and K.
    pub fn extents<T>(self, [m, n, k]: [T; 3]) -> [T; 3] {
        if self.is_transposed() { [n, m, k] } else { [m, n, k] }
    }

    pub fn types(self, types: Types) -> Types {
        if self.is_transposed() { types.transposed() } else { types }
    }

    pub fn layout(self, layout: Layout) -> Layout {
        if self.is_transposed() { layout.transposed() } else { layout }
    }

    /// Requirements on A, B and out.
    pub fn demands(self, demands: [Demand; 3]) -> [Demand; 3] {
        if !self.is_transposed() {
            return demands;
        }
        let [a, b, out] = demands.map(Demand::transposed);
        [b, a, out]
    }

    pub fn scaling(self, scaling: &Scaling) -> Scaling {
        if self.is_transposed() { scaling.transposed() } else { *scaling }
    }

    pub fn view(self, view: &View) -> View {
        if self.is_transposed() { view.transposed() } else { *view }
    }

    pub fn gemm(self, problem: &GemmProblem) -> Cow<'_, GemmProblem> {
        match self {
            Frame::User => Cow::Borrowed(problem),
            Frame::Transposed => Cow::Owned(problem.transposed()),
        }
    }

    /// A problem. Only a GEMM has a transposed frame.
    pub fn problem(self, problem: &Problem) -> Cow<'_, Problem> {
        match problem {
            Problem::Gemm(gemm) if self.is_transposed() => {
                Cow::Owned(Problem::Gemm(gemm.transposed()))
            }
            _ => Cow::Borrowed(problem),
        }
    }
}
