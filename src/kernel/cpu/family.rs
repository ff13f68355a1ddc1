use super::config::Reference;
use crate::epilogue::{Joint, Scaling};
use crate::kernel::family::{Family, LaunchInput};
use crate::kernel::launch::Launch;
use crate::kernel::operation::Operation;
use crate::kernel::reduction::Partials;
use crate::kernel::types::Types;
use crate::kernel::unsupported::Unsupported;
use crate::problem::GemmProblem;

impl Family for Reference {
    fn family(&self) -> &'static str {
        "reference"
    }

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

    fn append_to(&self, _types: Types, _name: &mut String) {}

    fn threads(&self) -> u32 {
        0
    }

    fn operation(&self) -> Operation {
        self.0
    }

    fn min_cc(&self, _types: Types) -> u32 {
        0
    }

    fn runs_on_gpu(&self) -> bool {
        false
    }

    fn serves_dual(&self, _types: Types) -> bool {
        matches!(self.0, Operation::Gemm | Operation::GroupedGemm)
    }

    fn check_joint(&self, _types: Types, _joint: &Joint) -> Result<(), Unsupported> {
        match self.0 {
            Operation::Gemm => Ok(()),
            _ => Err(Unsupported::NoPanels),
        }
    }

    fn gathers(&self, _types: Types) -> bool {
        true
    }

    fn stores_partials(&self) -> bool {
        false
    }

    fn takes_scaling(&self, _types: Types, _scaling: &Scaling) -> bool {
        true
    }

    fn partials(&self, _types: Types, framed: &GemmProblem) -> Partials {
        Partials::per_call(framed, 1)
    }

    fn launch(&self, _request: &LaunchInput) -> Option<Launch> {
        None
    }
}
