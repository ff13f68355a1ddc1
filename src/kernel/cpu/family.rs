use super::config::Reference;
use crate::epilogue::{Joint, Scaling};
use crate::kernel::description::Description;
use crate::kernel::family::{Facts, Family, LaunchInput};
use crate::kernel::frame::Frame;
use crate::kernel::launch::Launch;
use crate::kernel::operation::Operation;
use crate::kernel::reduction::Partials;
use crate::kernel::types::Types;
use crate::kernel::unsupported::Unsupported;
use crate::problem::GemmProblem;

impl Family for Reference {
    fn space() -> impl Iterator<Item = (Types, Reference)> {
        let of = |operation| {
            let types = match operation {
                Operation::Elementwise => Types::elementwise(),
                Operation::Gemm | Operation::GroupedGemm | Operation::GroupedGemmAlongK => {
                    [Types::gemm(), Types::seldom_stored()].concat()
                }
            };
            types.into_iter().map(move |types| (types, Reference(operation)))
        };
        Operation::ALL.into_iter().flat_map(of)
    }

    fn facts(&self, _types: Types) -> Facts {
        Facts {
            min_cc: 0,
            fuses_dual: matches!(self.0, Operation::Gemm | Operation::GroupedGemm),
            gathers: true,
            stores_partials: false,
            ..Facts::new("reference", self.0, 0)
        }
    }

    fn append_to(&self, _types: Types, _frame: Frame, _name: &mut String) {}

    fn describe(&self, _types: Types) -> Option<Description> {
        None
    }

    fn check_joint(&self, _types: Types, _joint: &Joint, _at: usize) -> Result<(), Unsupported> {
        match self.0 {
            Operation::Gemm => Ok(()),
            _ => Err(Unsupported::NoPanels),
        }
    }

    fn takes_scaling(&self, _types: Types, _scaling: &Scaling) -> bool {
        true
    }

    fn partials(&self, _types: Types, problem: &GemmProblem) -> Partials {
        Partials::per_call(problem, 1)
    }

    fn launch(&self, _request: &LaunchInput) -> Option<Launch> {
        None
    }
}
