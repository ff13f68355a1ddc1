//! A prepared launch: a plan with its loaded program.

use std::sync::Arc;

use super::error::{LaunchError, check_architecture};
use super::promotion::Promotion;
use super::{Host, LaunchPlan};
use crate::compile::Program;
use crate::driver::{Device, DriverError, Function};
use crate::epilogue::BoundEpilogue;
use crate::problem::Problem;

/// A launch that is ready to enqueue.
#[derive(Clone)]
pub struct PreparedLaunch {
    promotion: Promotion,
    /// None if the plan is not one kernel launch.
    function: Option<Function>,
    plan: LaunchPlan,
    program: Arc<Program>,
}

impl PreparedLaunch {
    /// Loads the program onto the plan's device if needed. `program` must be the program of the
    /// plan's kernel.
    ///
    /// # Errors
    /// If the program does not run on the device or a driver call fails.
    pub fn new(plan: LaunchPlan, program: Arc<Program>) -> Result<PreparedLaunch, LaunchError> {
        check_architecture(&program, plan.device())?;
        let function = program.function(plan.device())?;
        Ok(PreparedLaunch {
            promotion: Promotion::of(&plan),
            function: plan.is_one_call().then_some(function),
            plan,
            program,
        })
    }

    pub fn device(&self) -> &'static Device {
        self.plan.device()
    }

    /// Whether the launch runs this program.
    pub fn runs(&self, program: &Arc<Program>) -> bool {
        Arc::ptr_eq(&self.program, program)
    }

    pub fn plan(&self) -> &LaunchPlan {
        &self.plan
    }

    /// Enqueues the launch on a stream of its device, as a kernel or as its promoted graph.
    ///
    /// The caller owns the tensors at the addresses in the plan. As for any CUDA launch, their
    /// memory must stay valid until the launch has completed on the stream.
    #[inline(always)] // into `Kernel.run`
    pub fn enqueue(&self, host: &impl Host, stream: u64) -> Result<(), DriverError> {
        host.unlocked(|| {
            let call = self.function.and_then(|function| self.plan.main_call(function));
            // SAFETY: the program belongs to the plan's kernel; the addresses are valid as
            // documented above.
            unsafe {
                match &call {
                    Some(call) => self.promotion.enqueue(self.plan.device(), stream, call),
                    None => self.plan.enqueue(&self.program, stream),
                }
            }
        })
    }

    /// As [`LaunchPlan::move_to`].
    pub fn move_to(
        &mut self,
        problem: &Problem,
        workspace: u64,
        epilogue: Option<&BoundEpilogue>,
    ) -> Result<(), DriverError> {
        if self.plan.move_to(problem, workspace, epilogue)? {
            self.promotion.note_new_parameters();
        }
        Ok(())
    }
}
