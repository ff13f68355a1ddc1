//! The last stretch of the road: from a checked problem and a compiled program to the driver's launch call.

use std::time::Instant;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::arguments::RuntimeArguments;
use super::artifact::CompiledArtifact;
use super::kernel::{kernel_of, unsupported};
use super::stream::stream_handle;
use crate::compile::Program;
use crate::driver::{Device, DriverError, EncodedTensorMap, Grid};
use crate::epilogue::Bound as BoundEpilogue;
use crate::kernel::{
    GemmParams, Launch, Pack, PackOperand, Params, Reduce, ReduceOperand, Sm90Scalars, Target, TensorMap, at,
};
use crate::operand;
use crate::problem::{GemmProblem, Problem};

/// The stream to launch on.
pub struct Stream {
    /// None: the current stream of the framework that owns the operands.
    pub handle: Option<u64>,
    /// Whether the caller vouches that it belongs to the operands' device.
    pub trusted: bool,
}

impl Stream {
    /// The handle, of a stream of this device.
    fn resolve(&self, tensor: &Bound<'_, PyAny>, device: &Device) -> PyResult<u64> {
        match self.handle {
            Some(handle) if !self.trusted && !device.owns_stream(handle)? => Err(PyValueError::new_err(format!(
                "stream {handle:#x} belongs to another device than the operands, which are on cuda:{}",
                device.ordinal
            ))),
            Some(handle) => Ok(handle),
            None => operand::current_stream(tensor, device.ordinal),
        }
    }
}

/// The parameter of an sm90 kernel: `Sm90Params` of `kernels/sm90.cuh`, byte for byte.
#[repr(C, align(64))]
struct Sm90Block {
    maps: [EncodedTensorMap; 3],
    scalars: Sm90Scalars,
}

#[allow(clippy::large_enum_variant)] // as in `kernel::Params`
enum Block {
    Gemm(GemmParams),
    Sm90(Sm90Block),
}

impl Block {
    fn new(params: &Params) -> Result<Block, DriverError> {
        Ok(match params {
            Params::Gemm(params) => Block::Gemm(*params),
            Params::Sm90(params) => {
                let mut maps = [EncodedTensorMap::UNUSED; 3];
                for (encoded, map) in maps.iter_mut().zip(params.maps) {
                    if let Some(TensorMap { data_type, address, extents, strides, box_extents, swizzle }) = map {
                        *encoded =
                            EncodedTensorMap::encode(data_type, address, &extents, &strides, &box_extents, swizzle)?;
                    }
                }
                Block::Sm90(Sm90Block { maps, scalars: params.scalars })
            }
        })
    }
}

/// A launch with everything packed that depends on the problem alone, kept from one run to the next.
pub struct Packed {
    /// The kernel's position, as `kernel::at` counts.
    pub position: usize,
    /// None where the output is empty, and there is nothing to launch.
    launch: Option<Calls>,
    /// The parameter block of the epilogue; empty where there is none.
    epilogue: Vec<u64>,
    /// The launch that finishes reductions.
    reduce: Option<(Grid, Vec<ReduceOperand>)>,
    device: &'static Device,
}

/// The driver calls of a launch: of the kernel, and of the copy of operands in front where there is one.
struct Calls {
    grid: Grid,
    block: Block,
    copy: Option<Box<(Grid, [PackOperand; 2])>>,
}

impl Calls {
    fn new(launch: &Launch) -> Result<Calls, DriverError> {
        let grid = Grid {
            ctas: launch.grid,
            threads: launch.block,
            cluster: launch.cluster,
            shared_bytes: launch.shared_bytes,
            overlapping: launch.overlapping,
        };
        let copy = launch.pack.as_ref().filter(|pack| pack.grid() > 0).map(|pack| {
            let grid = Grid {
                ctas: pack.grid(),
                threads: Pack::THREADS,
                cluster: 1,
                shared_bytes: 0,
                overlapping: launch.overlapping,
            };
            Box::new((grid, pack.params()))
        });
        Ok(Calls { grid, block: Block::new(&launch.params)?, copy })
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
        let library = program.library(device)?;
        // SAFETY: the caller's; the blocks are laid out as the kernels declare them.
        unsafe {
            // A kernel that copies has a program that does: `compile` and `from_bytes` see to it.
            if let (Some(copy), Some(first)) = (&self.copy, &program.first) {
                let (grid, params) = &**copy;
                first.library(device)?.launch(device, stream, *grid, params, &[])?;
            }
            match &self.block {
                Block::Gemm(params) => library.launch(device, stream, self.grid, params, epilogue),
                Block::Sm90(params) => library.launch(device, stream, self.grid, params, epilogue),
            }
        }
    }
}

impl Packed {
    /// Packs a problem that the kernel addresses, with the epilogue that it fuses. `workspace`: the address of as much memory as the
    /// kernel asks for, if it asks for any.
    pub fn new(
        position: usize,
        problem: &GemmProblem,
        epilogue: Option<&BoundEpilogue>,
        workspace: u64,
    ) -> PyResult<Packed> {
        let (kernel, device) = (at(position), device_of(problem)?);
        let reduce = epilogue.and_then(|epilogue| kernel.reduce(problem, epilogue, workspace));
        let partial = reduce.as_ref().map_or(&[][..], |reduce| &reduce.partial);
        let epilogue = epilogue
            .map(|epilogue| epilogue.params(kernel.types.accumulator, kernel.is_transposed(), partial))
            .unwrap_or_default();
        let reduce = reduce.filter(|reduce| reduce.grid() > 0).map(|reduce| {
            let overlapping = device.cc >= 90;
            let grid = Grid { ctas: reduce.grid(), threads: Reduce::THREADS, cluster: 1, shared_bytes: 0, overlapping };
            (grid, reduce.operands)
        });
        let launch = kernel.launch(problem, target(device), workspace);
        // Encoding a tensor map needs a context, of whichever device.
        let _current = device.make_current()?;
        let launch = launch.map(|launch| Calls::new(&launch)).transpose()?;
        Ok(Packed { position, launch, epilogue, reduce, device })
    }

    /// Enqueues the launch. `tensor` is one of the operands, for asking its framework for the current stream.
    pub fn enqueue(&self, tensor: &Bound<'_, PyAny>, program: &Program, stream: &Stream) -> PyResult<()> {
        let device = self.device;
        if !program.architecture.runs_on(device.cc) {
            return Err(PyValueError::new_err(format!(
                "compiled_artifact is for {}, which does not run on cuda:{} of compute capability {}.{}",
                program.architecture,
                device.ordinal,
                device.cc / 10,
                device.cc % 10
            )));
        }
        let stream = stream.resolve(tensor, device)?;
        // The driver may block when the stream's queue is full; other Python threads run meanwhile.
        tensor.py().detach(|| {
            // SAFETY: the program is the kernel's for which all this was packed. The addresses are those of tensors that the
            // caller holds; as everywhere in CUDA, their memory must stay theirs until the stream has come past.
            unsafe {
                if let Some(launch) = &self.launch {
                    launch.enqueue(program, device, stream, &self.epilogue)?;
                }
                // A kernel that reduces has a program that does: `compile` and `from_bytes` see to it.
                match (&self.reduce, &program.last) {
                    (Some((grid, operands)), Some(last)) => {
                        last.library(device)?.launch(device, stream, *grid, &operands[0], &[])
                    }
                    _ => Ok(()),
                }
            }
        })?;
        Ok(())
    }
}

fn target(device: &Device) -> Target {
    Target { cc: device.cc, multiprocessors: device.multiprocessors }
}

fn device_of(problem: &GemmProblem) -> PyResult<&'static Device> {
    match problem.out.device {
        operand::Device::Cuda(ordinal) => Ok(Device::get(ordinal)?),
        operand::Device::Cpu => Err(unsupported(&"the operands are on the CPU, the kernel runs on a CUDA device")),
    }
}

/// What to run: a kernel that addresses this problem, its program, the epilogue that it fuses.
pub struct Work<'a> {
    pub position: usize,
    pub problem: &'a GemmProblem,
    pub epilogue: Option<&'a BoundEpilogue>,
    pub program: &'a Program,
}

impl Work<'_> {
    /// Packs and enqueues a launch. `workspace` is what the user gives; where that is nothing and something is needed, it is
    /// allocated, in the order of the stream. Returns the launch if it is to be kept and may be, which one with a workspace may not.
    pub fn enqueue(
        &self,
        tensor: &Bound<'_, PyAny>,
        workspace: Option<&Bound<'_, PyAny>>,
        stream: &Stream,
        keep: bool,
    ) -> PyResult<Option<Box<Packed>>> {
        let Work { position, problem, epilogue, program } = *self;
        let bytes = at(position).workspace_bytes(&Problem::Gemm(*problem));
        if bytes == 0 {
            let packed = Packed::new(position, problem, epilogue, 0)?;
            packed.enqueue(tensor, program, stream)?;
            return Ok(keep.then(|| Box::new(packed)));
        }
        let device = device_of(problem)?;
        if let Some(workspace) = workspace {
            let address = given_workspace(workspace, bytes, problem)?;
            Packed::new(position, problem, epilogue, address)?.enqueue(tensor, program, stream)?;
            return Ok(None);
        }
        let handle = stream.resolve(tensor, device)?;
        let py = tensor.py();
        let address = py.detach(|| device.allocate(handle, bytes))?;
        let stream = Stream { handle: Some(handle), trusted: true };
        let enqueued = Packed::new(position, problem, epilogue, address)
            .and_then(|packed| packed.enqueue(tensor, program, &stream));
        let freed = py.detach(|| device.free(handle, address));
        enqueued?;
        freed?;
        Ok(None)
    }
}

/// The address of a user's workspace, which must be large enough and where the operands are.
fn given_workspace(workspace: &Bound<'_, PyAny>, bytes: u64, problem: &GemmProblem) -> PyResult<u64> {
    let view = operand::read("workspace", workspace)?;
    let given = (view.numel() * view.dtype.bytes()) as u64;
    if view.fake || view.read_only {
        let what = if view.fake { "a FakeTensor, which has no memory" } else { "read-only" };
        return Err(PyValueError::new_err(format!("workspace is {what}; pass a tensor that can be written")));
    }
    if let Some(name) = [("A", &problem.a), ("B", &problem.b), ("out", &problem.out)]
        .into_iter()
        .find_map(|(name, operand)| view.may_alias(operand).then_some(name))
    {
        return Err(PyValueError::new_err(format!("workspace shares memory with {name}; pass memory of its own")));
    }
    if view.device != problem.out.device {
        return Err(PyValueError::new_err(format!(
            "workspace is on {}, the operands are on {}",
            view.device, problem.out.device
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
    let (Some(native), Some(program)) = (&args.get().native, compiled_artifact.get().program(py)) else {
        return Err(PyValueError::new_err("give GemmArguments and the artifact of a GPU kernel"));
    };
    let (Problem::Gemm(problem), operand::Device::Cuda(ordinal)) = (&native.problem, native.problem.device()) else {
        return Err(PyValueError::new_err("give a GEMM on a CUDA device"));
    };
    let kernel = kernel_of(compiled_artifact.get().kernel(py))?;
    let device = Device::get(ordinal)?;
    if kernel.packs() || !kernel.reductions().is_empty() {
        let message = "the kernel copies operands first, or reduces outputs afterwards: that is more than one launch";
        return Err(PyValueError::new_err(message));
    }
    let Some(launch) = kernel.launch(problem, target(device), 0) else {
        return Err(PyValueError::new_err("the problem is empty, so there is nothing to launch"));
    };
    kernel.addresses(&native.problem).map_err(|reason| unsupported(&reason))?;
    kernel.fuses(native.bound_epilogue()).map_err(|reason| unsupported(&reason))?;
    let _current = device.make_current()?;
    let Calls { grid, block, .. } = Calls::new(&launch)?;
    let epilogue = native
        .bound_epilogue()
        .map(|epilogue| epilogue.params(kernel.types.accumulator, kernel.is_transposed(), &[]))
        .unwrap_or_default();
    let library = program.library(device)?;
    let mut seconds = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let start = Instant::now();
        for _ in 0..launches {
            // SAFETY: as in `launch`; the arguments hold the tensors.
            unsafe {
                match &block {
                    Block::Gemm(params) => library.launch_current(stream, grid, params, &epilogue)?,
                    Block::Sm90(params) => library.launch_current(stream, grid, params, &epilogue)?,
                }
            }
        }
        seconds.push(start.elapsed().as_secs_f64() / f64::from(launches));
        device.synchronize(stream)?;
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds.get(seconds.len() / 2).copied().unwrap_or_default())
}
