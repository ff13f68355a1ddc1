//! A prepared launch: everything about a launch that depends only on the problem.

use std::sync::Arc;

use super::Host;
use super::device_checks;
use super::error::{LaunchError, check_architecture, device_of};
use super::params::ParameterBlock;
use super::promotion::Promotion;
use crate::compile::Program;
use crate::driver::{Device, DriverError, EncodedConfig, Function, KernelCall, LaunchConfig};
use crate::epilogue::BoundEpilogue;
use crate::kernel::{
    Addresses, Kernel, Launch, Pack, PackOperand, Reduce, ReduceOperand, Rows, RowsParams, Target,
    at,
};
use crate::operand::View;
use crate::problem::{Problem, activation_bytes};

/// The launch of one kernel on one problem, ready to enqueue: configurations, parameters and the
/// loaded program.
#[derive(Clone)]
pub struct PreparedLaunch {
    promotion: Promotion,
    /// None if the launch is not one kernel call.
    function: Option<Function>,
    device: &'static Device,
    /// The kernel's position, as `kernel::at` counts.
    position: usize,
    problem: Problem,
    /// The address of a dual GEMM's second matrix B, else 0.
    factor: u64,
    /// The further matrices B of a joint GEMM.
    panels: Box<[View]>,
    /// None if the output is empty: there is nothing to launch.
    main: Option<MainLaunch>,
    /// The launch of the row kernel that computes the prologue.
    rows: Option<Box<RowsLaunch>>,
    /// The parameter block of the epilogue; empty without one.
    epilogue: Vec<u64>,
    /// The launch that finishes the epilogue's reductions.
    reduce: Option<(EncodedConfig, Vec<ReduceOperand>)>,
    /// Whether the operands' addresses are the only ones in the launch.
    has_operands_only: bool,
    checks_offsets: bool,
    program: Arc<Program>,
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

    #[inline(always)]
    fn call<'a>(&'a self, function: Function, epilogue: &'a [u64]) -> KernelCall<'a> {
        KernelCall {
            function,
            config: &self.config,
            params: self.block.pointer(),
            epilogue_params: epilogue,
        }
    }
}

/// The launch of the row kernel.
#[derive(Clone)]
struct RowsLaunch {
    config: EncodedConfig,
    params: RowsParams,
    /// The parameter block of the prologue.
    prologue: Vec<u64>,
}

impl RowsLaunch {
    /// `product`: with the activations in workspace as A.
    fn new(product: &Problem, bound: &BoundEpilogue, target: Target) -> Option<Box<RowsLaunch>> {
        let (Problem::Gemm(gemm), Some(operands)) = (product, &bound.prologue) else { return None };
        let Rows { grid, block, params } =
            Rows::new(gemm, bound.epilogue.prologue.as_ref()?, target);
        let overlapping = target.cc >= 90;
        let config = LaunchConfig { overlapping, ..LaunchConfig::plain(grid, block) };
        Some(Box::new(RowsLaunch { config: config.into(), params, prologue: operands.params() }))
    }
}

impl PreparedLaunch {
    /// Prepares the launch of a problem that passes [`check`](super::check), and loads the program
    /// onto the device if needed. `workspace` is the address of `Kernel::workspace_bytes` bytes, 0
    /// if the kernel needs none. `program` must be the program of the kernel.
    ///
    /// # Errors
    /// If the problem is not on a GPU, the program does not run on the device or a driver call
    /// fails.
    pub fn new(
        position: usize,
        problem: &Problem,
        epilogue: Option<&BoundEpilogue>,
        workspace: u64,
        program: Arc<Program>,
    ) -> Result<PreparedLaunch, LaunchError> {
        let (kernel, device) = (at(position), device_of(problem)?);
        let target = Target::from(device);
        let user_problem = problem;
        let (product, workspace) = product_in(kernel, problem, workspace);
        let problem = product.as_ref().unwrap_or(problem);
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
        let launch = kernel.launch(problem, target, workspace, epilogue);
        let _current = device.make_current()?; // for `ParameterBlock::new`
        let main = launch.map(|launch| MainLaunch::new(&launch)).transpose()?;
        check_architecture(&program, device)?;
        let function = program.function(device)?;
        let rows = product.filter(|_| main.is_some()).zip(epilogue);
        let rows = rows.and_then(|(product, bound)| RowsLaunch::new(&product, bound, target));
        let is_one_call = reduce.is_none()
            && rows.is_none()
            && main.as_ref().is_some_and(|main| main.pack.is_none());
        Ok(PreparedLaunch {
            promotion: Promotion::of(is_one_call.then(|| kernel.seconds(problem, target))),
            function: is_one_call.then_some(function),
            device,
            position,
            problem: *user_problem,
            rows,
            factor: factor_address(epilogue),
            panels: epilogue.map(panels).unwrap_or_default(),
            main,
            epilogue: epilogue_block,
            reduce,
            has_operands_only: epilogue.is_none() && workspace == 0,
            checks_offsets: device_checks::checked(user_problem).is_some(),
            program,
        })
    }

    pub fn device(&self) -> &'static Device {
        self.device
    }

    /// The kernel's position, as `kernel::at` counts.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Whether the launch has neither an epilogue nor a workspace.
    pub fn has_operands_only(&self) -> bool {
        self.has_operands_only
    }

    /// Whether the launch runs this program.
    pub fn runs(&self, program: &Arc<Program>) -> bool {
        Arc::ptr_eq(&self.program, program)
    }

    /// The kernel call. None if the output is empty, or the launch is several kernel calls.
    #[inline(always)]
    pub fn call(&self) -> Option<KernelCall<'_>> {
        self.function
            .and_then(|function| self.main.as_ref().map(|main| main.call(function, &self.epilogue)))
    }

    /// Enqueues the launch on a stream of its device, as a kernel or as its promoted graph.
    ///
    /// The caller owns the tensors at the addresses in the launch. As for any CUDA launch, their
    /// memory must stay valid until the launch has completed on the stream.
    #[inline(always)] // into `Kernel.run`
    pub fn enqueue(&self, host: &impl Host, stream: u64) -> Result<(), LaunchError> {
        if self.checks_offsets {
            self.check_offsets(host, stream)?;
        }
        Ok(self.enqueue_unchecked(host, stream)?)
    }

    #[cold]
    fn check_offsets(&self, host: &impl Host, stream: u64) -> Result<(), LaunchError> {
        let Some(grouped) = device_checks::checked(&self.problem) else { return Ok(()) };
        // SAFETY: as for a launch, the caller owns the offsets; the problem's check ensures int32.
        host.unlocked(|| unsafe { device_checks::check_offsets(grouped, self.device, stream) })
    }

    #[inline(always)]
    fn enqueue_unchecked(&self, host: &impl Host, stream: u64) -> Result<(), DriverError> {
        host.unlocked(|| {
            let call = self.call();
            // SAFETY: the program belongs to the kernel; the addresses are valid as documented
            // above.
            unsafe {
                match &call {
                    Some(call) => self.promotion.enqueue(self.device, stream, call),
                    None => self.enqueue_kernels(stream),
                }
            }
        })
    }

    /// Whether the launch serves another problem once the operands' addresses are replaced.
    pub fn fits(&self, problem: &Problem) -> bool {
        let same_operation =
            std::mem::discriminant(&self.problem) == std::mem::discriminant(problem);
        // `move_to` replaces no addresses in a pack or a reduction. An operand without elements has
        // a null address in its tensor map.
        same_operation
            && self.problem.options().free_multiprocessors == problem.options().free_multiprocessors
            && self.reduce.is_none()
            && self.main.as_ref().is_none_or(|main| main.pack.is_none())
            && self
                .problem
                .views()
                .iter()
                .zip(problem.views())
                .all(|(before, now)| before.differs_only_in_address(now) && now.numel() > 0)
    }

    /// Whether the further matrices B of a joint GEMM differ from those of this launch in their
    /// addresses only.
    pub fn fits_panels(&self, epilogue: Option<&BoundEpilogue>) -> bool {
        let Some(bound) = epilogue else { return self.panels.is_empty() };
        let panels = panels(bound);
        let mut both = self.panels.iter().zip(&panels);
        self.panels.len() == panels.len()
            && both.all(|(before, now)| before.differs_only_in_address(now) && now.numel() > 0)
    }

    /// Replaces the addresses of the operands, of the workspace (0 without one) and of the
    /// epilogue's operands. The problem must fit, and the kernel must fuse the epilogue.
    ///
    /// # Errors
    /// If a driver call fails. The launch must not be enqueued afterwards.
    pub fn move_to(
        &mut self,
        problem: &Problem,
        workspace: u64,
        epilogue: Option<&BoundEpilogue>,
    ) -> Result<(), DriverError> {
        let kernel = at(self.position);
        let earlier = self.rows.as_ref().map(|rows| rows.params.activations);
        let activations = earlier.map(|_| workspace);
        let before = addresses(kernel, &self.problem, earlier);
        let now = addresses(kernel, problem, activations);
        let product_workspace = match activations {
            Some(_) => product_in(kernel, problem, workspace).1,
            None => workspace,
        };
        let factor = factor_address(epilogue);
        let of_panels = match (self.panels.is_empty(), epilogue) {
            (false, Some(bound)) => self.move_panels(bound),
            _ => Vec::new(),
        };
        let mut moved = before != now
            || workspace != 0
            || factor != self.factor
            || of_panels.iter().any(|[before, now]| before != now);
        if moved && let Some(main) = &mut self.main {
            let _current = self.device.make_current()?;
            main.block.move_to(before, now, product_workspace, factor, &of_panels)?;
        }
        (self.problem, self.factor) = (*problem, factor);
        if let (Some(rows), Some(operands)) =
            (&mut self.rows, epilogue.and_then(|bound| bound.prologue.as_ref()))
        {
            (rows.params.activations, rows.prologue) = (workspace, operands.params());
        }
        let epilogue_block = epilogue_params(kernel, epilogue, &[]);
        if epilogue_block != self.epilogue {
            self.epilogue = epilogue_block;
            moved = true;
        }
        if moved {
            self.promotion.note_new_parameters();
        }
        Ok(())
    }

    /// Replaces the further matrices B of a joint GEMM; returns the address of each before and now.
    #[cold]
    fn move_panels(&mut self, bound: &BoundEpilogue) -> Vec<[u64; 2]> {
        let now = panels(bound);
        let both = self.panels.iter().zip(&now);
        let addresses = both.map(|(before, now)| [before.data, now.data]).collect();
        self.panels = now;
        addresses
    }

    /// Enqueues every kernel of the launch, in order: rows, pack, kernel, reduction. Does not
    /// promote.
    ///
    /// # Safety
    /// Every address in the launch is valid on the device until the kernels have completed.
    pub unsafe fn enqueue_kernels(&self, stream: u64) -> Result<(), DriverError> {
        let (device, program) = (self.device, &self.program);
        // `compile` makes a row program for every kernel with a prologue.
        if let (Some(rows), Some(program)) = (&self.rows, &program.prologue) {
            let RowsLaunch { config, params, prologue } = &**rows;
            let (function, params) = (program.function(device)?, std::ptr::from_ref(params).cast());
            // SAFETY: guaranteed by the caller; both parameters are laid out as the row kernel
            // declares them.
            unsafe {
                KernelCall { function, config, params, epilogue_params: prologue }
                    .launch(device, stream)?;
            }
        }
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

/// The product of the activations that the kernel's prologue stores at the start of the workspace,
/// and the workspace behind them; the same workspace and `None` without a prologue.
#[inline(never)] // keeps launches without a prologue short
fn product_in(kernel: &Kernel, problem: &Problem, workspace: u64) -> (Option<Problem>, u64) {
    let (Some(prologue), Problem::Gemm(gemm)) = (kernel.prologue(), problem) else {
        return (None, workspace);
    };
    let mut product = gemm.of_activations(prologue);
    product.a.data = workspace;
    (Some(Problem::Gemm(product)), workspace + activation_bytes(gemm, prologue))
}

/// As `Kernel::addresses_in`, with the address of the activations of a prologue in place of A's.
#[inline(always)]
fn addresses(kernel: &Kernel, problem: &Problem, activations: Option<u64>) -> Addresses {
    let mut addresses = kernel.addresses_in(problem);
    if let Some(activations) = activations {
        addresses[kernel.address_of_a()] = activations;
    }
    addresses
}

/// The address of a dual GEMM's second matrix B, else 0.
fn factor_address(epilogue: Option<&BoundEpilogue>) -> u64 {
    epilogue.and_then(BoundEpilogue::factor).map_or(0, |(_, view)| view.data)
}

/// The further matrices B of a joint GEMM. Without any, nothing is allocated.
fn panels(bound: &BoundEpilogue) -> Box<[View]> {
    bound.panels().map(|(_, view)| *view).collect()
}

/// The parameter block of an epilogue, empty without one. `partials`: the tensors of its
/// reductions' partial results.
fn epilogue_params(
    kernel: &Kernel,
    epilogue: Option<&BoundEpilogue>,
    partials: &[[u64; 4]],
) -> Vec<u64> {
    let (accumulator, transposed) = (kernel.types.accumulator, kernel.frame.is_transposed());
    let epilogue = epilogue.filter(|bound| !bound.epilogue.is_prologue_only());
    epilogue.map(|epilogue| epilogue.params(accumulator, transposed, partials)).unwrap_or_default()
}
