//! `Problem`: one variant for each operation.

use std::borrow::Cow;
use std::fmt;

use arrayvec::ArrayVec;

use super::{ElementwiseProblem, GemmProblem, GroupedGemmProblem, ProblemError, ProblemOptions};
use crate::operand::{DType, DeviceId, View};

/// Most operands of a problem.
pub const MOST_VIEWS: usize = 5;

/// Operands, accumulator type and operation: what a kernel computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Problem {
    Gemm(GemmProblem),
    GroupedGemm(GroupedGemmProblem),
    Elementwise(ElementwiseProblem),
}

impl Problem {
    /// An unread grouped GEMM whose views have an index of A's rows.
    pub fn with_index(self) -> Problem {
        let index = View { rank: 1, ..View::UNREAD };
        match self {
            Problem::GroupedGemm(grouped) => {
                Problem::GroupedGemm(GroupedGemmProblem { index, ..grouped })
            }
            other => other,
        }
    }

    /// The operands and their user-visible names, output last.
    pub fn operands(&self) -> Vec<(&'static str, &View)> {
        let mut operands: Vec<_> =
            ["A", "B", "out", "offsets", "index"].into_iter().zip(self.views()).collect();
        operands[2..].reverse();
        operands
    }

    /// The options; the default ones for an elementwise sum.
    pub fn options(&self) -> ProblemOptions {
        match self {
            Problem::Gemm(p) => p.options,
            Problem::GroupedGemm(p) => p.options,
            Problem::Elementwise(_) => ProblemOptions::default(),
        }
    }

    /// The views in the order of the constructors' parameters.
    #[inline(always)] // in every launch and every `GemmArguments`
    pub fn views(&self) -> ArrayVec<&View, MOST_VIEWS> {
        match self {
            Problem::Gemm(p) => ArrayVec::from_iter([&p.a, &p.b, &p.out]),
            Problem::GroupedGemm(p) => {
                let mut views = ArrayVec::from([&p.a, &p.b, &p.out, &p.offsets, &p.index]);
                views.truncate(4 + usize::from(p.gathers()));
                views
            }
            Problem::Elementwise(p) => ArrayVec::from_iter([&p.a, &p.b, &p.out]),
        }
    }

    /// The views, mutable. Callers must call `check` afterwards.
    pub fn views_mut(&mut self) -> ArrayVec<&mut View, MOST_VIEWS> {
        match self {
            Problem::Gemm(p) => ArrayVec::from_iter([&mut p.a, &mut p.b, &mut p.out]),
            Problem::GroupedGemm(p) => {
                let gathers = p.gathers();
                let GroupedGemmProblem { a, b, out, offsets, index, .. } = p;
                let mut views = ArrayVec::from([a, b, out, offsets, index]);
                views.truncate(4 + usize::from(gathers));
                views
            }
            Problem::Elementwise(p) => ArrayVec::from_iter([&mut p.a, &mut p.b, &mut p.out]),
        }
    }

    /// Checks that the operands fit each other.
    pub fn check(&self) -> Result<(), ProblemError> {
        match self {
            Problem::Gemm(p) => p.check(),
            Problem::GroupedGemm(p) => p.check(),
            Problem::Elementwise(p) => p.check(),
        }
    }

    pub fn out(&self) -> &View {
        match self {
            Problem::Gemm(p) => &p.out,
            Problem::GroupedGemm(p) => &p.out,
            Problem::Elementwise(p) => &p.out,
        }
    }

    /// The accumulator type; for an elementwise sum, the type of the addition.
    pub fn accumulator(&self) -> DType {
        match self {
            Problem::Gemm(p) => p.accumulator,
            Problem::GroupedGemm(p) => p.accumulator,
            Problem::Elementwise(p) => p.out.dtype.accumulator(),
        }
    }

    /// The matrix product; [`GroupedGemmProblem::stacked`] for a grouped GEMM, `None` for a sum.
    pub fn product(&self) -> Option<Cow<'_, GemmProblem>> {
        match self {
            Problem::Gemm(gemm) => Some(Cow::Borrowed(gemm)),
            Problem::GroupedGemm(grouped) => Some(Cow::Owned(grouped.stacked())),
            Problem::Elementwise(_) => None,
        }
    }

    /// [`Problem::product`] as the cost model takes it: [`GroupedGemmProblem::mean`] for a grouped
    /// GEMM.
    pub fn mean_product(&self) -> Option<Cow<'_, GemmProblem>> {
        match self {
            Problem::GroupedGemm(grouped) => Some(Cow::Owned(grouped.mean())),
            _ => self.product(),
        }
    }

    /// A joint GEMM as a product by one matrix B ([`GemmProblem::joined`]); `None` for others.
    #[inline]
    pub fn joined(&self) -> Option<Problem> {
        match self {
            Problem::Gemm(gemm) if gemm.further_columns > 0 => Some(Problem::Gemm(gemm.joined())),
            _ => None,
        }
    }

    /// The view of an epilogue's operand broadcast to the output. With groups along M, also that of
    /// an operand (G, 1, N), which has a row for each group. `None` if the shape fits neither.
    pub fn broadcast(&self, view: &View) -> Option<View> {
        let [batch, m, n] = self.out().shape;
        let of_groups = match self {
            Problem::GroupedGemm(grouped) if view.shape[1] == 1 => grouped.groups(),
            _ => batch,
        };
        view.broadcast([batch, m, n]).or_else(|| view.broadcast([of_groups, m, n]))
    }

    /// The device of all operands.
    pub fn device(&self) -> DeviceId {
        self.out().device
    }

    /// The same problem on another device, for a search of the kernels that serve it there. Its
    /// addresses are meaningless.
    pub fn on(&self, device: DeviceId) -> Problem {
        let mut moved = *self;
        moved.views_mut().into_iter().for_each(|view| view.device = device);
        moved
    }

    /// Whether any operand has no memory, so that the problem can be compiled for but not run.
    pub fn is_fake(&self) -> bool {
        self.views().iter().any(|view| view.fake)
    }
}

/// `A=float16[8, 4], B=float16[4, 6], out=float16[8, 6], accumulator_type=float32, on cuda:0`.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, view) in self.operands() {
            write!(f, "{name}={view}, ")?;
        }
        if !matches!(self, Problem::Elementwise(_)) {
            write!(f, "accumulator_type={}, ", self.accumulator())?;
        }
        let views = self.views();
        f.write_str(&views.iter().find(|view| view.fake).unwrap_or(&self.out()).place())
    }
}
