//! The last stretch of the road: from a checked problem and a compiled program to the driver's launch call.

use std::ffi::c_void;
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::time::Instant;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;

use super::arguments::RuntimeArguments;
use super::artifact::CompiledArtifact;
use super::kernel::{kernel_of, unsupported};
use super::stream::stream_handle;
use crate::compile::Program;
use crate::driver::{
    Device, DriverError, EncodedConfig, EncodedTensorMap, Function, Graph, KernelCall,
    LaunchConfig, graphs,
};
use crate::epilogue::BoundEpilogue;
use crate::kernel::{
    ElementwiseParams, GemmParams, Kernel, Launch, Pack, PackOperand, Params, Reduce,
    ReduceOperand, Sm90Scalars, Target, TensorMap, at,
};
use crate::operand;
use crate::problem::Problem;

/// The stream to launch on.
pub struct Stream {
    /// None: the current stream of the framework that owns the operands.
    pub handle: Option<u64>,
    /// Whether the caller vouches that it belongs to the operands' device.
    pub trusted: bool,
}

impl Stream {
    /// The handle, of a stream of this device.
    #[inline(always)] // in every launch
    pub fn resolve(&self, tensor: &Bound<'_, PyAny>, device: &Device) -> PyResult<u64> {
        match self.handle {
            Some(handle) if !self.trusted && !device.owns_stream(handle)? => {
                Err(PyValueError::new_err(format!(
                    "stream {handle:#x} belongs to another device than the operands, which are on cuda:{}",
                    device.ordinal
                )))
            }
            Some(handle) => Ok(handle),
            None => operand::current_stream(tensor, device.ordinal),
        }
    }
}

/// The parameter of an sm90 kernel: `Sm90Params` of `kernels/sm90/params.cuh`, byte for byte.
#[repr(C, align(64))]
#[derive(Clone)]
struct Sm90Block {
    maps: [EncodedTensorMap; 3],
    scalars: Sm90Scalars,
    b_shorter: EncodedTensorMap,
}
const _: () = assert!(size_of::<Sm90Block>() == 640 && offset_of!(Sm90Block, b_shorter) == 512);

#[derive(Clone)]
#[allow(clippy::large_enum_variant)] // as in `kernel::Params`
enum Block {
    Gemm(GemmParams),
    Sm90(Sm90Block),
    Elementwise(ElementwiseParams),
}

impl Block {
    fn new(params: &Params) -> Result<Block, DriverError> {
        Ok(match params {
            Params::Gemm(params) => Block::Gemm(*params),
            Params::Elementwise(params) => Block::Elementwise(*params),
            Params::Sm90(params) => {
                let encoded = |map: Option<TensorMap>| match map {
                    Some(map) => EncodedTensorMap::encode(
                        map.data_type,
                        map.address,
                        &map.extents,
                        &map.strides,
                        &map.box_extents,
                        map.swizzle,
                        map.l2_promotion,
                    ),
                    None => Ok(EncodedTensorMap::UNUSED),
                };
                let [a, b, out] = params.maps;
                let maps = [encoded(a)?, encoded(b)?, encoded(out)?];
                let b_shorter = encoded(params.b_shorter)?;
                Block::Sm90(Sm90Block { maps, scalars: params.scalars, b_shorter })
            }
        })
    }

    /// The first parameter of the kernel.
    fn pointer(&self) -> *const c_void {
        match self {
            Block::Gemm(params) => std::ptr::from_ref(params).cast(),
            Block::Sm90(params) => std::ptr::from_ref(params).cast(),
            Block::Elementwise(params) => std::ptr::from_ref(params).cast(),
        }
    }

    /// The same parameters with the program's operands at other addresses, which are as `Kernel::addresses_in` has them, and the workspace
    /// where K in parts has one.
    fn move_to(
        &mut self,
        before: [u64; 4],
        now: [u64; 4],
        workspace: u64,
    ) -> Result<(), DriverError> {
        match self {
            Block::Gemm(params) => [params.a, params.b, params.out, params.offsets.ends] = now,
            Block::Elementwise(params) => [params.a, params.b, params.out, _] = now,
            Block::Sm90(Sm90Block { maps, scalars, b_shorter }) => {
                [_, _, scalars.out, scalars.offsets.ends] = now;
                if scalars.workspace != 0 {
                    scalars.workspace = workspace;
                }
                let first = usize::from(scalars.a != 0);
                if first == 1 {
                    scalars.a = now[0];
                }
                let read = if scalars.out_by_copy_engine != 0 { 3 } else { 2 };
                for at in (first..read).filter(|at| now[*at] != before[*at]) {
                    maps[at].move_to(now[at])?;
                }
                if now[1] != before[1] && b_shorter.is_used() {
                    b_shorter.move_to(now[1])?;
                }
            }
        }
        Ok(())
    }
}

/// A launch with everything packed that depends on the problem alone, kept from one run to the next.
#[derive(Clone)]
#[repr(C)] // as `Ready`
pub struct Packed {
    device: &'static Device,
    /// The parameter block of the epilogue; empty where there is none.
    epilogue: Vec<u64>,
    /// None where the output is empty, and there is nothing to launch.
    launch: Option<Calls>,
    /// The launch that finishes reductions.
    reduce: Option<(EncodedConfig, Vec<ReduceOperand>)>,
    /// The kernel's position, as `kernel::at` counts.
    position: usize,
    /// Whether there is neither an epilogue to it nor workspace.
    plain: bool,
    problem: Problem,
}

/// The driver calls of a launch: of the kernel, and of the copy of operands in front where there is one.
#[derive(Clone)]
#[repr(C)] // as `Ready`
struct Calls {
    /// In a box, since it is aligned to 64 bytes, and would be all that is around it.
    block: Box<Block>,
    grid: EncodedConfig,
    copy: Option<Box<(EncodedConfig, [PackOperand; 2])>>,
}

impl Calls {
    fn new(launch: &Launch) -> Result<Calls, DriverError> {
        let overlapping = launch.overlapping;
        let grid = LaunchConfig {
            cluster: [launch.cluster, 1, 1],
            shared_bytes: launch.shared_bytes,
            overlapping,
            ..LaunchConfig::plain(launch.grid, launch.block)
        };
        let copy = launch.pack.as_ref().filter(|pack| pack.grid() > 0).map(|pack| {
            let grid =
                LaunchConfig { overlapping, ..LaunchConfig::plain(pack.grid(), Pack::THREADS) };
            Box::new((grid.into(), pack.params()))
        });
        Ok(Calls { grid: grid.into(), block: Box::new(Block::new(&launch.params)?), copy })
    }

    /// # Safety
    /// The program is the kernel's, and `epilogue` what it declares as its second parameter. The addresses in the parameters are
    /// valid on the device until the launch has run.
    unsafe fn enqueue(
        &self,
        program: &Program,
        device: &Device,
        stream: u64,
        epilogue: &[u64],
    ) -> Result<(), DriverError> {
        let call = self.call(program.function(device)?, epilogue);
        // SAFETY: the caller's; the blocks are laid out as the kernels declare them.
        unsafe {
            // A kernel that copies has a program that does: whatever makes a `CompiledArtifact` sees to it.
            if let (Some(copy), Some(first)) = (&self.copy, &program.first) {
                let (grid, params) = &**copy;
                let function = first.function(device)?;
                KernelCall { function, grid, params: params.as_ptr().cast(), more: &[] }
                    .launch(device, stream)?;
            }
            call.launch(device, stream)
        }
    }

    /// The kernel's own, behind what it copies.
    #[inline(always)] // in every launch that is repeated
    fn call<'a>(&'a self, function: Function, epilogue: &'a [u64]) -> KernelCall<'a> {
        KernelCall { function, grid: &self.grid, params: self.block.pointer(), more: epilogue }
    }
}

impl Packed {
    /// Packs a problem that the kernel addresses, with the epilogue that it fuses. `workspace`: the address of as much memory as the
    /// kernel asks for, if it asks for any.
    pub fn new(
        position: usize,
        problem: &Problem,
        epilogue: Option<&BoundEpilogue>,
        workspace: u64,
    ) -> PyResult<Packed> {
        let (kernel, device) = (at(position), device_of(problem)?);
        let plain = epilogue.is_none() && workspace == 0;
        let reduce = epilogue.and_then(|epilogue| kernel.reduce(problem, epilogue, workspace));
        let partial = reduce.as_ref().map_or(&[][..], |reduce| &reduce.partial);
        let epilogue = epilogue_params(kernel, epilogue, partial);
        let reduce = reduce.filter(|reduce| reduce.grid() > 0).map(|reduce| {
            let grid = LaunchConfig {
                overlapping: device.cc >= 90,
                ..LaunchConfig::plain(reduce.grid(), Reduce::THREADS)
            };
            (grid.into(), reduce.operands)
        });
        let launch = kernel.launch(problem, target(device), workspace);
        // Encoding a tensor map needs a context, of whichever device.
        let _current = device.make_current()?;
        let launch = launch.map(|launch| Calls::new(&launch)).transpose()?;
        Ok(Packed { position, plain, problem: *problem, launch, epilogue, reduce, device })
    }

    /// Whether another problem differs from the packed one in the addresses of its operands alone, so that a kernel that addresses
    /// one addresses the other.
    fn fits(&self, problem: &Problem) -> bool {
        let same_operation =
            std::mem::discriminant(&self.problem) == std::mem::discriminant(problem);
        // What copies first or reduces has addresses in its other step, too; the map of an operand without elements does not show its
        // address.
        same_operation
            && self.reduce.is_none()
            && self.launch.as_ref().is_none_or(|launch| launch.copy.is_none())
            && self
                .problem
                .views()
                .iter()
                .zip(problem.views())
                .all(|(before, now)| before.lies_elsewhere(now) && now.numel() > 0)
    }

    /// As `Ready::move_to`. Whether it is another launch now.
    fn move_to(&mut self, problem: &Problem, workspace: u64) -> PyResult<bool> {
        let kernel = at(self.position);
        let (before, now) = (kernel.addresses_in(&self.problem), kernel.addresses_in(problem));
        let moved = before != now || workspace != 0;
        if moved && let Some(launch) = &mut self.launch {
            let _current = self.device.make_current()?;
            launch.block.move_to(before, now, workspace)?;
        }
        self.problem = *problem;
        Ok(moved)
    }

    /// The driver calls of the launch, one after the other.
    fn enqueue_all(&self, program: &Program, stream: u64) -> Result<(), DriverError> {
        let device = self.device;
        // SAFETY: the program is the kernel's for which all this was packed. The addresses are those of tensors that the
        // caller holds; as everywhere in CUDA, their memory must stay theirs until the stream has come past.
        unsafe {
            if let Some(launch) = &self.launch {
                launch.enqueue(program, device, stream, &self.epilogue)?;
            }
            // So has one that reduces.
            match (&self.reduce, &program.last) {
                (Some((grid, operands)), Some(last)) => {
                    let function = last.function(device)?;
                    KernelCall { function, grid, params: operands.as_ptr().cast(), more: &[] }
                        .launch(device, stream)
                }
                _ => Ok(()),
            }
        }
    }
}

/// A packed launch with the function of its program: what can be found out once about a launch that is repeated has been. Laid out with what
/// is looked at each time in front: each line of memory more has to be fetched first.
#[derive(Clone)]
#[repr(C)]
pub struct Ready {
    repeats: Repeats,
    /// None where it takes more, or less, than one call of the driver.
    function: Option<Function>,
    packed: Packed,
    program: Arc<Program>,
}

/// How often a launch has been repeated, and the graph that it becomes then.
#[repr(C)] // as `Ready`
struct Repeats {
    graph: OnceLock<Graph>,
    /// Whether the parameters are others than the graph's. Set by who has the launch alone.
    moved: AtomicBool,
    /// Whether it may become one.
    short: bool,
    /// Runs until it becomes one; 0 where it has become one, or is not to be one.
    left: AtomicU32,
}

impl Repeats {
    /// Making a graph takes 3 us, or 30 with new memory for it, and freeing it 2 to 9 (H100, driver 580; docs/notes/latency.md, version 9). Launching
    /// it saves 0.9 to 1.5: where a launch is not repeated any more just when it has become one, no more is lost than had gone before.
    const RUNS: u32 = 20;
    /// Runs until it is tried again where it did not work out, as there were too many graphs.
    const UNTIL_TRIED_AGAIN: u32 = 1000;
    /// Seconds of a kernel, as the model has them, up to which it becomes one. What follows a graph does not begin before it has ended, nor the graph
    /// before what precedes it has, by which a GPU that has work waiting loses 1.1 to 1.7 us. In a row of kernels as short as this none is waiting,
    /// since the host takes longer for each than the GPU does; among longer ones that the host is ahead of, that is what the host's time costs.
    const SHORT: f64 = 2e-6;

    fn none_yet(short: bool) -> Repeats {
        let left = AtomicU32::new(if short { Repeats::RUNS } else { 0 });
        Repeats { graph: OnceLock::new(), moved: AtomicBool::new(false), short, left }
    }

    /// Counts a run. Whether the launch is to become a graph now. (Of two threads one may be missed.)
    fn are_due(&self) -> bool {
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 {
            self.left.store(left - 1, Ordering::Relaxed);
        }
        left == 1
    }
}

impl Clone for Repeats {
    /// Those of a launch that is kept elsewhere: a graph is launched by one alone.
    fn clone(&self) -> Repeats {
        Repeats::none_yet(self.short)
    }
}

impl Ready {
    /// The program is the kernel's for which the launch was packed.
    pub fn new(packed: Packed, program: Arc<Program>) -> PyResult<Ready> {
        check_architecture(&program, packed.device)?;
        let function = program.function(packed.device)?;
        let alone = packed.reduce.is_none()
            && packed.launch.as_ref().is_some_and(|launch| launch.copy.is_none());
        let short =
            at(packed.position).seconds(&packed.problem, target(packed.device)) <= Repeats::SHORT;
        let repeats = Repeats::none_yet(alone && short);
        Ok(Ready { repeats, function: alone.then_some(function), packed, program })
    }

    /// Enqueues the launch. `tensor` is one of the operands, for asking its framework for the current stream.
    #[inline(always)] // in every launch that is repeated
    pub fn enqueue(&self, tensor: &Bound<'_, PyAny>, stream: &Stream) -> PyResult<()> {
        let device = self.packed.device;
        let stream = stream.resolve(tensor, device)?;
        released(tensor.py(), || {
            let Some(call) = self.call() else {
                return self.packed.enqueue_all(&self.program, stream);
            };
            let repeats = &self.repeats;
            // SAFETY: as in `Packed::enqueue_all`, which does the same.
            unsafe {
                if let Some(graph) = repeats.graph.get() {
                    let moved = repeats.moved.load(Ordering::Relaxed);
                    if graph.launch(device, stream, moved.then_some(&call)) {
                        repeats.moved.store(false, Ordering::Relaxed);
                        return Ok(());
                    }
                }
                call.launch(device, stream)?;
            }
            if repeats.are_due() {
                self.become_graph(stream, &call);
            }
            Ok(())
        })?;
        Ok(())
    }

    /// None where it takes more, or less, than one call of the driver.
    #[inline(always)] // as `enqueue`
    fn call(&self) -> Option<KernelCall<'_>> {
        let (function, calls) = self.function.zip(self.packed.launch.as_ref())?;
        Some(calls.call(function, &self.packed.epilogue))
    }

    #[cold]
    fn become_graph(&self, stream: u64, call: &KernelCall<'_>) {
        let repeats = &self.repeats;
        match Graph::new(self.packed.device, stream, call) {
            Some(graph) => {
                // Another thread's is as good, and has its own parameters.
                if repeats.graph.set(graph).is_ok() {
                    repeats.moved.store(false, Ordering::Relaxed);
                }
            }
            None => repeats.left.store(Repeats::UNTIL_TRIED_AGAIN, Ordering::Relaxed),
        }
    }

    /// Turns into the launch of a problem that fits, with this workspace (0 where none is needed) and another epilogue's operands, if it has one.
    /// After an error the launch is nobody's.
    fn move_to(
        &mut self,
        problem: &Problem,
        workspace: u64,
        epilogue: Option<&BoundEpilogue>,
    ) -> PyResult<()> {
        let mut moved = self.packed.move_to(problem, workspace)?;
        let params = epilogue_params(at(self.packed.position), epilogue, &[]);
        if params != self.packed.epilogue {
            self.packed.epilogue = params;
            moved = true;
        }
        if moved {
            self.repeats.moved.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Does without the GIL what the driver may block in, when a stream's queue is full: other Python threads run meanwhile. As
/// `Python::detach`, but for PyO3's count of attachments, in storage of the thread that takes longer to find than the rest.
#[inline(always)]
fn released<T>(_py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    struct Restore(*mut ffi::PyThreadState);
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: the state is the one that this thread has saved, once.
            unsafe { ffi::PyEval_RestoreThread(self.0) };
        }
    }
    // SAFETY: the thread has the GIL, and gets it back when `work` has ended, in whatever way. The work is the driver's: it has to do with
    // no Python object, so that PyO3 is not asked meanwhile who has the GIL.
    let _restore = Restore(unsafe { ffi::PyEval_SaveThread() });
    work()
}

/// That a program is for this device.
pub fn check_architecture(program: &Program, device: &Device) -> PyResult<()> {
    if program.architecture.runs_on(device.cc) {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "compiled_artifact is for {}, which does not run on cuda:{} of compute capability {}.{}",
        program.architecture,
        device.ordinal,
        device.cc / 10,
        device.cc % 10
    )))
}

fn target(device: &Device) -> Target {
    Target::from(device)
}

/// The GPU that a problem's operands are on.
pub fn device_of(problem: &Problem) -> PyResult<&'static Device> {
    match problem.device() {
        operand::Device::Cuda(ordinal) => Ok(Device::get(ordinal)?),
        operand::Device::Cpu => {
            Err(unsupported(&"the operands are on the CPU, the kernel runs on a CUDA device"))
        }
    }
}

/// The last launch of a program, which the next one is made from where their operands differ in no more than their addresses.
/// That is what generated code runs, which makes its arguments anew each time.
#[derive(Default)]
pub struct LastLaunch(Mutex<Option<Box<Ready>>>);

impl LastLaunch {
    /// Enqueues the launch of a problem that differs from the last one in its addresses alone, as they differ. Returns the kernel's
    /// position. None where there is another difference, or more to the last one than its operands.
    pub fn enqueue_like(
        &self,
        problem: &Problem,
        tensor: &Bound<'_, PyAny>,
        stream: &Stream,
    ) -> PyResult<Option<usize>> {
        // As in `Work`, nobody waits for the lock.
        let Ok(mut last) = self.0.try_lock() else { return Ok(None) };
        let Some(ready) =
            last.as_deref_mut().filter(|ready| ready.packed.plain && ready.packed.fits(problem))
        else {
            return Ok(None);
        };
        if let Err(error) = ready.move_to(problem, 0, None) {
            *last = None;
            return Err(error);
        }
        ready.enqueue(tensor, stream)?;
        Ok(Some(ready.packed.position))
    }
}

/// What to run: a kernel, a problem, the epilogue behind it, the kernel's program and its last launch.
pub struct Work<'a> {
    pub position: usize,
    pub problem: &'a Problem,
    pub epilogue: Option<&'a BoundEpilogue>,
    pub program: &'a Arc<Program>,
    pub last: &'a LastLaunch,
    /// Whether the kernel is known to address the problem and to fuse the epilogue. Elsewhere nothing is launched before it is found
    /// to.
    pub known_addressed: bool,
}

impl Work<'_> {
    /// Packs and enqueues a launch. `workspace` is what the user gives; where that is nothing and something is needed, it is
    /// allocated, in the order of the stream. Returns the launch if it is to be kept with the arguments and may be, which one with a
    /// workspace may not.
    pub fn enqueue(
        &self,
        tensor: &Bound<'_, PyAny>,
        workspace: Option<&Bound<'_, PyAny>>,
        stream: &Stream,
        keep: bool,
    ) -> PyResult<Option<Box<Ready>>> {
        let bytes = at(self.position).workspace_bytes(self.problem);
        if bytes == 0 {
            return self.enqueue_with(0, tensor, stream, keep);
        }
        self.check()?;
        let device = device_of(self.problem)?;
        if let Some(workspace) = workspace {
            let address = given_workspace(workspace, bytes, self.problem, self.epilogue)?;
            return self.enqueue_with(address, tensor, stream, false);
        }
        let handle = stream.resolve(tensor, device)?;
        let py = tensor.py();
        let address = allocate(py, device, handle, bytes)?;
        let stream = Stream { handle: Some(handle), trusted: true };
        let enqueued = self.enqueue_with(address, tensor, &stream, false);
        let freed = py.detach(|| device.free(handle, address));
        enqueued?;
        freed?;
        Ok(None)
    }

    /// The same with the workspace that the kernel needs, 0 if none.
    fn enqueue_with(
        &self,
        workspace: u64,
        tensor: &Bound<'_, PyAny>,
        stream: &Stream,
        keep: bool,
    ) -> PyResult<Option<Box<Ready>>> {
        // The lock is held while the launch goes on without the GIL. Another thread does not wait for that, with the GIL in its hands, but
        // packs its own.
        let mut last = match self.last.0.try_lock() {
            Ok(last) => Some(last),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let mut own = None;
        let ready = self.ready_from(last.as_deref_mut().unwrap_or(&mut own), workspace)?;
        ready.enqueue(tensor, stream)?;
        Ok(keep.then(|| Box::new(ready.clone())))
    }

    /// The launch, made from the last one if that fits, and in its place.
    fn ready_from<'a>(
        &self,
        last: &'a mut Option<Box<Ready>>,
        workspace: u64,
    ) -> PyResult<&'a Ready> {
        let made = match last.take() {
            Some(mut ready) if ready.packed.fits(self.problem) => {
                at(self.position).fuses(self.epilogue).map_err(|reason| unsupported(&reason))?;
                ready.move_to(self.problem, workspace, self.epilogue)?;
                ready
            }
            _ => {
                self.check()?;
                let packed = Packed::new(self.position, self.problem, self.epilogue, workspace)?;
                Box::new(Ready::new(packed, self.program.clone())?)
            }
        };
        Ok(last.insert(made))
    }

    /// Whatever the caller was told to assume: nothing is launched that would miss its operands.
    fn check(&self) -> PyResult<()> {
        if self.known_addressed {
            return Ok(());
        }
        let kernel = at(self.position);
        kernel.addresses(self.problem).map_err(|reason| unsupported(&reason))?;
        kernel.fuses(self.epilogue).map_err(|reason| unsupported(&reason))
    }
}

/// Device memory in the order of a stream. torch keeps what its tensors had; where there is none left, it is asked to let go of that.
fn allocate(py: Python<'_>, device: &Device, stream: u64, bytes: u64) -> PyResult<u64> {
    let attempt = || device.allocate(stream, bytes);
    let ask_torch = || {
        py.import("sys")?
            .getattr("modules")?
            .get_item("torch")?
            .getattr("cuda")?
            .call_method0("empty_cache")
    };
    match py.detach(attempt) {
        // That there is no torch is no error of its own.
        Err(error) if error.means_no_memory() && ask_torch().is_ok() => Ok(py.detach(attempt)?),
        allocated => Ok(allocated?),
    }
}

/// The parameter block of an epilogue as a kernel takes it; empty where there is none.
/// `partial`: where the partial results of its reductions lie.
fn epilogue_params(
    kernel: &Kernel,
    epilogue: Option<&BoundEpilogue>,
    partial: &[[u64; 4]],
) -> Vec<u64> {
    let (accumulator, transposed) = (kernel.types.accumulator, kernel.is_transposed());
    epilogue.map(|epilogue| epilogue.params(accumulator, transposed, partial)).unwrap_or_default()
}

/// The address of a user's workspace, which must be large enough and where the operands are.
fn given_workspace(
    workspace: &Bound<'_, PyAny>,
    bytes: u64,
    problem: &Problem,
    epilogue: Option<&BoundEpilogue>,
) -> PyResult<u64> {
    let view = operand::read("workspace", workspace)?;
    let given = (view.numel() * view.dtype.bytes()) as u64;
    if view.fake || view.read_only {
        let what = if view.fake { "a FakeTensor, which has no memory" } else { "read-only" };
        return Err(PyValueError::new_err(format!(
            "workspace is {what}; pass a tensor that can be written"
        )));
    }
    let of_epilogue = epilogue.map(BoundEpilogue::tensors).unwrap_or_default();
    let mut operands = problem.operands().into_iter().chain(of_epilogue);
    if let Some((name, _)) = operands.find(|(_, operand)| view.may_alias(operand)) {
        return Err(PyValueError::new_err(format!(
            "workspace shares memory with {name}; pass memory of its own"
        )));
    }
    if view.device != problem.device() {
        return Err(PyValueError::new_err(format!(
            "workspace is on {}, the operands are on {}",
            view.device,
            problem.device()
        )));
    }
    if given < bytes || !view.is_contiguous() {
        return Err(PyValueError::new_err(format!(
            "workspace has {given} bytes, and {bytes} are needed, contiguous; get_workspace_size tells"
        )));
    }
    if view.data % 16 != 0 {
        return Err(PyValueError::new_err(format!(
            "workspace begins at {:#x}, which is not a multiple of 16",
            view.data
        )));
    }
    Ok(view.data)
}

/// Seconds that the host spends on one bare launch: the median over `rounds` loops of `launches` calls of the driver, with
/// nothing of ours around them. The stream is synchronized between loops. What benchmarks call the native floor.
#[pyfunction]
#[pyo3(signature = (args, compiled_artifact, stream, launches = 100, rounds = 30))]
pub fn native_floor(
    py: Python<'_>,
    args: &Bound<'_, RuntimeArguments>,
    compiled_artifact: &Bound<'_, CompiledArtifact>,
    stream: &Bound<'_, PyAny>,
    launches: u32,
    rounds: usize,
) -> PyResult<f64> {
    let stream = stream_handle(stream)?;
    let (Some(native), Some(program)) = (&args.get().native, compiled_artifact.get().program(py))
    else {
        return Err(PyValueError::new_err(
            "give arguments of our own and the artifact of a GPU kernel",
        ));
    };
    let kernel = kernel_of(compiled_artifact.get().kernel(py))?;
    let device = device_of(&native.problem)?;
    if kernel.packs() || kernel.workspace_bytes(&native.problem) > 0 {
        let message = "the kernel copies operands first, or needs workspace: that is more than a launch of these arguments";
        return Err(PyValueError::new_err(message));
    }
    kernel.addresses(&native.problem).map_err(|reason| unsupported(&reason))?;
    kernel.fuses(native.bound_epilogue()).map_err(|reason| unsupported(&reason))?;
    let Some(launch) = kernel.launch(&native.problem, target(device), 0) else {
        return Err(PyValueError::new_err("the problem is empty, so there is nothing to launch"));
    };
    let _current = device.make_current()?;
    let calls = Calls::new(&launch)?;
    let epilogue = epilogue_params(kernel, native.bound_epilogue(), &[]);
    let call = calls.call(program.function(device)?, &epilogue);
    let mut seconds = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        for _ in 0..launches {
            // SAFETY: as in `Calls::enqueue`; the arguments hold the tensors.
            unsafe { call.launch_current(stream)? };
        }
        seconds.push(start.elapsed().as_secs_f64() / f64::from(launches));
        device.synchronize(stream)?;
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds.get(seconds.len() / 2).copied().unwrap_or_default())
}

/// How many launches that were repeated are CUDA graphs now.
#[pyfunction]
pub fn launch_graphs() -> usize {
    graphs()
}
