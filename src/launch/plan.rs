//! A launch plan: everything about a launch that depends only on the problem.

use super::error::{LaunchError, device_of, target};
use super::params::ParameterBlock;
use crate::compile::Program;
use crate::driver::{Device, DriverError, EncodedConfig, Function, KernelCall, LaunchConfig};
use crate::epilogue::BoundEpilogue;
use crate::kernel::{Kernel, Launch, Pack, PackOperand, Reduce, ReduceOperand, at};
use crate::problem::Problem;

/// The launch configurations and parameters of a problem for one kernel.
#[derive(Clone)]
pub struct LaunchPlan {
    device: &'static Device,
    /// The kernel's position, as `kernel::at` counts.
    position: usize,
    problem: Problem,
    /// The address of a dual GEMM's second matrix B, else 0.
    factor: u64,
    /// None if the output is empty: there is nothing to launch.
    main: Option<MainLaunch>,
    /// The parameter block of the epilogue; empty without one.
    epilogue: Vec<u64>,
    /// The launch that finishes the epilogue's reductions.
    reduce: Option<(EncodedConfig, Vec<ReduceOperand>)>,
    /// Whether the operands' addresses are the only ones in the plan.
    has_operands_only: bool,
}

/// The launch of the kernel itself, and the launch before it that packs operands, if there is one.
#[derive(Clone)]
struct MainLaunch {
    config: EncodedConfig,
    /// Boxed for its size and its alignment of 64 bytes.
    block: Box<ParameterBlock>,
    pack: Option<Box<(EncodedConfig, [PackOperand; 2])>>,
}

impl MainLaunch {
    fn new(launch: &Launch) -> Result<MainLaunch, DriverError> {
        let overlapping = launch.overlapping;
        let config = LaunchConfig {
            cluster: [launch.cluster, 1, 1],
            shared_bytes: launch.shared_bytes,
            overlapping,
            ..LaunchConfig::plain(launch.grid, launch.block)
        };
        let pack = launch.pack.as_ref().filter(|pack| pack.grid() > 0).map(|pack| {
            let config =
                LaunchConfig { overlapping, ..LaunchConfig::plain(pack.grid(), Pack::THREADS) };
            Box::new((config.into(), pack.params()))
        });
        let block = Box::new(ParameterBlock::new(&launch.params)?);
        Ok(MainLaunch { config: config.into(), block, pack })
    }

    fn call<'a>(&'a self, function: Function, epilogue: &'a [u64]) -> KernelCall<'a> {
        KernelCall {
            function,
            config: &self.config,
            params: self.block.pointer(),
            epilogue_params: epilogue,
        }
    }
}

impl LaunchPlan {
    /// Plans the launch of a problem that passes [`check`](super::check). `workspace` is the
    /// address of `Kernel::workspace_bytes` bytes, 0 if the kernel needs none.
    ///
    /// # Errors
    /// If the problem is not on a GPU or a driver call fails.
    pub fn new(
        position: usize,
        problem: &Problem,
        epilogue: Option<&BoundEpilogue>,
        workspace: u64,
    ) -> Result<LaunchPlan, LaunchError> {
        let (kernel, device) = (at(position), device_of(problem)?);
        let reduce = epilogue.and_then(|epilogue| kernel.reduce(problem, epilogue, workspace));
        let partials = reduce.as_ref().map_or(&[][..], |reduce| &reduce.partial);
        let epilogue_block = epilogue_params(kernel, epilogue, partials);
        let reduce = reduce.filter(|reduce| reduce.grid() > 0).map(|reduce| {
            let config = LaunchConfig {
                overlapping: device.cc >= 90,
                ..LaunchConfig::plain(reduce.grid(), Reduce::THREADS)
            };
            (config.into(), reduce.operands)
        });
        let launch = kernel.launch(problem, target(device), workspace, epilogue);
        let _current = device.make_current()?; // for `ParameterBlock::new`
        Ok(LaunchPlan {
            device,
            position,
            problem: *problem,
            factor: factor_address(epilogue),
            main: launch.map(|launch| MainLaunch::new(&launch)).transpose()?,
            epilogue: epilogue_block,
            reduce,
            has_operands_only: epilogue.is_none() && workspace == 0,
        })
    }

    pub fn device(&self) -> &'static Device {
        self.device
    }

    /// The kernel's position, as `kernel::at` counts.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Whether the plan has neither an epilogue nor a workspace.
    pub fn has_operands_only(&self) -> bool {
        self.has_operands_only
    }

    /// The kernel's duration in seconds, as the cost model estimates it.
    pub fn estimated_seconds(&self) -> f64 {
        at(self.position).seconds(&self.problem, target(self.device))
    }

    /// Whether the plan is one kernel launch.
    pub fn is_one_call(&self) -> bool {
        self.reduce.is_none() && self.main.as_ref().is_some_and(|main| main.pack.is_none())
    }

    /// The launch of the kernel itself. None if the output is empty.
    pub fn main_call(&self, function: Function) -> Option<KernelCall<'_>> {
        self.main.as_ref().map(|main| main.call(function, &self.epilogue))
    }

    /// Whether the plan serves another problem once the operands' addresses are replaced.
    pub fn fits(&self, problem: &Problem) -> bool {
        let same_operation =
            std::mem::discriminant(&self.problem) == std::mem::discriminant(problem);
        // `move_to` replaces no addresses in a pack or a reduction. An operand without elements has
        // a null address in its tensor map.
        same_operation
            && self.problem.free_multiprocessors() == problem.free_multiprocessors()
            && self.reduce.is_none()
            && self.main.as_ref().is_none_or(|main| main.pack.is_none())
            && self
                .problem
                .views()
                .iter()
                .zip(problem.views())
                .all(|(before, now)| before.differs_only_in_address(now) && now.numel() > 0)
    }

    /// Replaces the addresses of the operands, of the workspace (0 without one) and of the
    /// epilogue's operands. The problem must fit, and the kernel must fuse the epilogue. Returns
    /// whether a parameter changed.
    ///
    /// # Errors
    /// If a driver call fails. The plan must not be launched afterwards.
    pub fn move_to(
        &mut self,
        problem: &Problem,
        workspace: u64,
        epilogue: Option<&BoundEpilogue>,
    ) -> Result<bool, DriverError> {
        let kernel = at(self.position);
        let (before, now) = (kernel.addresses_in(&self.problem), kernel.addresses_in(problem));
        let factor = factor_address(epilogue);
        let mut moved = before != now || workspace != 0 || factor != self.factor;
        if moved && let Some(main) = &mut self.main {
            let _current = self.device.make_current()?;
            main.block.move_to(before, now, workspace, factor)?;
        }
        (self.problem, self.factor) = (*problem, factor);
        let epilogue_block = epilogue_params(kernel, epilogue, &[]);
        if epilogue_block != self.epilogue {
            self.epilogue = epilogue_block;
            moved = true;
        }
        Ok(moved)
    }

    /// Enqueues every launch of the plan, in order: pack, kernel, reduction.
    ///
    /// # Safety `program` is the program of the kernel. Every address in the plan is valid on the
    /// device until the launches have completed.
    pub unsafe fn enqueue(&self, program: &Program, stream: u64) -> Result<(), DriverError> {
        let device = self.device;
        if let Some(main) = &self.main {
            // `compile` makes a pack program for every kernel that packs.
            if let (Some(pack), Some(program)) = (&main.pack, &program.pack) {
                let (config, params) = &**pack;
                let (function, params) = (program.function(device)?, params.as_ptr().cast());
                // SAFETY: guaranteed by the caller; the parameter is laid out as the pack kernel
                // declares it.
                unsafe {
                    KernelCall { function, config, params, epilogue_params: &[] }
                        .launch(device, stream)?;
                }
            }
            // SAFETY: guaranteed by the caller; the block is laid out as the kernel declares it.
            unsafe {
                main.call(program.function(device)?, &self.epilogue).launch(device, stream)?;
            }
        }
        // `compile` makes a reduction program for every kernel with a reducing epilogue.
        if let (Some((config, operands)), Some(program)) = (&self.reduce, &program.reduce) {
            let (function, params) = (program.function(device)?, operands.as_ptr().cast());
            // SAFETY: guaranteed by the caller; the parameter is laid out as the reduction kernel
            // declares it.
            unsafe {
                KernelCall { function, config, params, epilogue_params: &[] }
                    .launch(device, stream)?
            };
        }
        Ok(())
    }
}

/// The address of a dual GEMM's second matrix B, else 0.
fn factor_address(epilogue: Option<&BoundEpilogue>) -> u64 {
    epilogue.and_then(BoundEpilogue::factor).map_or(0, |(_, view)| view.data)
}

/// The parameter block of an epilogue, empty without one. `partials`: the tensors of its
/// reductions' partial results.
fn epilogue_params(
    kernel: &Kernel,
    epilogue: Option<&BoundEpilogue>,
    partials: &[[u64; 4]],
) -> Vec<u64> {
    let (accumulator, transposed) = (kernel.types.accumulator, kernel.is_transposed());
    epilogue.map(|epilogue| epilogue.params(accumulator, transposed, partials)).unwrap_or_default()
}
