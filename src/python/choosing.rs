//! The choice of a product's kernel, and the launch of the kernel.

use std::sync::Arc;

use pyo3::prelude::*;

use super::fused_operands::EpilogueOperands;
use super::serving::{log_choice, serving};
use super::tuning::record;
use super::utils::set_package_directories;
use crate::compile;
use crate::driver;
use crate::epilogue::{BoundEpilogue, Epilogue};
use crate::kernel as kernels;
use crate::launch::{ChoiceKey, KernelChoice, LastLaunch, LaunchRequest, choices};
use crate::operand::DeviceId;
use crate::problem::{OperandValue, Problem, rebind};
use crate::process::drop_unlocked;

/// A product whose kernel the core chooses.
pub struct Product<'a> {
    pub problem: &'a Problem,
    pub epilogue: Option<&'a EpilogueOperands<'a>>,
    pub allows_tf32: bool,
    /// The position of the kernel to choose if it serves the problem.
    pub preferred: Option<usize>,
    /// The bytes of workspace that the kernel may use.
    pub most_workspace: u64,
}

impl Product<'_> {
    pub fn key(&self) -> ChoiceKey {
        let Product { problem, allows_tf32, preferred, most_workspace, .. } = *self;
        let key = ChoiceKey::new(problem, allows_tf32, preferred, most_workspace);
        let Some(EpilogueOperands { graph, inputs, outputs, prologue }) = self.epilogue else {
            return key;
        };
        let key = key.with_epilogue(graph, inputs, outputs);
        match prologue {
            Some(prologue) => prologue.with_operands(|operands| key.with_prologue(operands)),
            None => key,
        }
    }

    /// Chooses a kernel, as [`Product::choose`], and keeps the choice.
    pub fn choose_and_keep(
        &self,
        py: Python<'_>,
        key: ChoiceKey,
        may_record: impl FnOnce() -> PyResult<bool>,
    ) -> PyResult<Arc<KernelChoice>> {
        let choice = self.choose(py, may_record)?;
        let (choice, dropped) = choices().keep(key, choice);
        // Each choice frees a CUDA graph.
        drop_unlocked(dropped);
        Ok(choice)
    }

    /// The epilogue with the operands of this call.
    pub fn bind(&self, choice: &KernelChoice) -> PyResult<Option<BoundEpilogue>> {
        let problem = self.problem;
        Ok(match (self.epilogue, choice.epilogue) {
            (Some(operands), Some(known)) if can_rebind(problem, operands) => {
                Some(rebind(problem, known, &operands.inputs, &operands.outputs)?)
            }
            (Some(operands), _) => Some(operands.fuse(problem)?),
            (None, _) => None,
        })
    }

    /// The launch to make. None for a kernel on the CPU.
    pub fn request<'a>(
        &'a self,
        choice: &'a KernelChoice,
        epilogue: Option<&'a BoundEpilogue>,
    ) -> Option<LaunchRequest<'a>> {
        Some(LaunchRequest {
            position: choice.position,
            problem: self.problem,
            epilogue,
            program: choice.program.as_ref()?,
            last: &choice.last,
            is_checked: true, // the kernel serves every problem of this key
        })
    }

    /// The bytes of workspace that the kernel of a position uses, fused with the epilogue.
    fn workspace(&self, position: usize, epilogue: Option<&'static Epilogue>) -> u64 {
        let fused = epilogue.map_or(position, |epilogue| kernels::fused(position, epilogue));
        kernels::at(fused).workspace_bytes(self.problem)
    }

    /// The bytes of workspace of the kernel that ranks first.
    pub fn first_workspace(&self, py: Python<'_>) -> PyResult<u64> {
        let bound = self.epilogue.map(|operands| operands.fuse(self.problem)).transpose()?;
        let epilogue = bound.as_ref().map(|bound| bound.epilogue);
        let ranked = serving(py, self.problem, epilogue, self.allows_tf32)?;
        Ok(self.workspace(ranked.positions[0], epilogue))
    }

    /// Chooses the preferred kernel if it serves the problem, else the one that ranks first, and
    /// compiles it. With `CUTLASS_API_TUNE=record`, a problem without results is tuned first, if
    /// `may_record` returns true.
    fn choose(
        &self,
        py: Python<'_>,
        may_record: impl FnOnce() -> PyResult<bool>,
    ) -> PyResult<KernelChoice> {
        let Product { allows_tf32, preferred, most_workspace, .. } = *self;
        let bound = self.epilogue.map(|operands| operands.fuse(self.problem)).transpose()?;
        let epilogue = bound.as_ref().map(|bound| bound.epilogue);
        let activations = self.problem.of_activations(epilogue);
        let problem = activations.as_ref().unwrap_or(self.problem);
        let mut ranked = serving(py, problem, epilogue, allows_tf32)?;
        if ranked.measured == 0 && preferred.is_none() && may_record()? {
            let fused = |at: &usize| epilogue.map_or(*at, |epilogue| kernels::fused(*at, epilogue));
            record(py, self.problem, bound.as_ref(), ranked.positions.iter().map(fused))?;
            ranked = serving(py, problem, epilogue, allows_tf32)?;
        }
        let fits = |position: &usize| self.workspace(*position, epilogue) <= most_workspace;
        let preferred = preferred.filter(|position| ranked.positions.contains(position));
        let first = preferred.or_else(|| ranked.positions.iter().copied().find(fits));
        let position = first.unwrap_or(ranked.positions[0]);
        log_choice(problem, epilogue, allows_tf32, &ranked, position);
        let position = epilogue.map_or(position, |epilogue| kernels::fused(position, epilogue));
        let last = LastLaunch::default();
        let DeviceId::Cuda(ordinal) = problem.device() else {
            return Ok(KernelChoice { position, program: None, epilogue, last });
        };
        let device = driver::Device::get(ordinal)?;
        set_package_directories(py)?;
        // Load now: the first launch may happen under stream capture.
        let program = py.detach(|| {
            let kernel = kernels::at(position);
            let program = compile::compile(kernel, device.cc)?;
            program.load(kernel, device)?;
            Ok::<_, compile::CompileError>(program)
        })?;
        Ok(KernelChoice { position, program: Some(program), epilogue, last })
    }
}

/// Whether `rebind` serves the operands: no prologue, no reduction, and no number to check as an
/// int32.
fn can_rebind(problem: &Problem, operands: &EpilogueOperands<'_>) -> bool {
    let has_number = operands.inputs.iter().any(|value| matches!(value, OperandValue::Number(_)));
    operands.prologue.is_none()
        && operands.graph.outputs.iter().all(|output| output.fold.is_none())
        && !(has_number && problem.accumulator().is_integer())
}
