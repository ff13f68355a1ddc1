//! `Kernel.run`: from arguments to a launch.

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::arguments::{RuntimeArguments, native, native_part};
use super::artifact::CompiledArtifact;
use super::compilation::{artifact_or_compile, check_artifact, program_of};
use super::host::Interpreter;
use super::kernel::{PyKernel, must_define, name_of, rounds_to_tf32};
use super::native_arguments::{KeptLaunch, NativeArguments};
use super::ranges::Range;
use super::stream::{StreamArgument, current_stream, optional_handle, torch_stream};
use super::support::refusal;
use crate::epilogue::BoundEpilogue;
use crate::kernel;
use crate::launch::{self, LaunchError, LaunchRequest};
use crate::operand::{self, View};
use crate::problem::Problem;
use crate::reference::{self, ReferenceError};

#[pymethods]
impl PyKernel {
    /// Runs the kernel on the arguments. A GPU kernel enqueues its launch on a stream; a CPU kernel
    /// returns after the computation. A kernel with `packed` operands in its metadata first
    /// enqueues a launch that copies them.
    ///
    /// compiled_artifact: from `compile`; None compiles through the cache. stream: a
    /// `torch.cuda.Stream`, a CuPy stream, a `CUstream`, an integer handle; None: the current
    /// stream of the framework that owns the operands. workspace: device memory of
    /// `get_workspace_size` bytes; None allocates it if the kernel needs it.
    /// assume_supported_args: skips `supports`, but still checks that the kernel computes the
    /// arguments, if slowly: code compiled for one size may run at others. A workspace that is too
    /// small for them is not used; `run` allocates one.
    ///
    /// A launch that the cost model estimates at 2 us or less and that repeats on one stream is
    /// promoted to a CUDA graph, which profilers show as a graph launch;
    /// `GlobalOptions().launch_graphs` switches this off.
    ///
    /// Unlike `cutlass_api.matmul`, `run` does not report the write to `out` to autograd. If
    /// autograd saved `out` or a view of its memory, call
    /// `torch.autograd.graph.increment_version(out)`.
    ///
    /// Raises ValueError if the kernel does not serve the arguments, RuntimeError with CUDA's error
    /// name if the launch fails.
    #[pyo3(signature = (
        args,
        compiled_artifact = None,
        stream = None,
        workspace = None,
        assume_supported_args = false
    ))]
    pub fn run(
        slf: &Bound<'_, Self>,
        args: &Bound<'_, PyAny>,
        compiled_artifact: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
        workspace: Option<&Bound<'_, PyAny>>,
        assume_supported_args: bool,
    ) -> PyResult<()> {
        let py = slf.py();
        let native = native_part(args);
        let _range = Range::of_call(py, "cutlass_api::run", || {
            let inputs = native.map_or_else(Vec::new, |native| native.objects(py));
            Ok((PyTuple::new(py, inputs)?, name_of(slf)))
        });
        if let Some(native) = native
            && let Some(repeated) =
                repeat(slf, native, compiled_artifact, stream, assume_supported_args)
        {
            return repeated;
        }
        run_once(slf, args, compiled_artifact, stream, workspace, assume_supported_args)
    }

    /// Launches the compiled kernel. Subclasses define it. `stream` is the object that `run`
    /// received, or the handle of the current stream if that was None:
    /// `cutlass_api.utils.to_cuda_stream` accepts both.
    #[pyo3(signature = (args, compiled_artifact, stream, workspace = None))]
    #[allow(unused_variables)]
    fn _run(
        slf: &Bound<'_, Self>,
        args: &Bound<'_, PyAny>,
        compiled_artifact: &Bound<'_, PyAny>,
        stream: &Bound<'_, PyAny>,
        workspace: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        Err(must_define(slf, "_run"))
    }

    /// Bytes of workspace that `run` needs; 0 if it needs none.
    fn get_workspace_size(&self, args: &Bound<'_, PyAny>) -> PyResult<u64> {
        match (self.position, native(args)?) {
            (Some(position), Some(native)) => {
                Ok(kernel::at(position).workspace_bytes(&native.problem))
            }
            _ => Ok(0),
        }
    }

    /// Prepares workspace for its first use. Built-in kernels need no preparation.
    #[allow(unused_variables)]
    fn initialize_workspace(&self, args: &Bound<'_, PyAny>, workspace: &Bound<'_, PyAny>) {}
}

/// `run` without repeating an earlier launch.
#[inline(never)] // keeps `run` short
fn run_once(
    slf: &Bound<'_, PyKernel>,
    args: &Bound<'_, PyAny>,
    compiled_artifact: Option<&Bound<'_, PyAny>>,
    stream: Option<&Bound<'_, PyAny>>,
    workspace: Option<&Bound<'_, PyAny>>,
    assume_supported_args: bool,
) -> PyResult<()> {
    let Some(position) = slf.get().position else {
        if !assume_supported_args {
            let status = slf.call_method1("supports", (args,))?;
            if !status.is_truthy()? {
                return Err(LaunchError::unsupported(status.getattr("error")?).into());
            }
        }
        return run_subclass(slf, args, compiled_artifact, stream, workspace);
    };
    let py = slf.py();
    let Some(native) = native(args)? else {
        return Err(PyTypeError::new_err("built-in kernels take cutlass_api's own arguments"));
    };
    let rounds_to_tf32 = rounds_to_tf32(position);
    let is_supported =
        assume_supported_args || (native.last_supported.is(position) && !rounds_to_tf32);
    if !is_supported && let Some(reason) = refusal(py, position, Some(native))? {
        return Err(LaunchError::unsupported(reason).into());
    }
    let stream =
        StreamArgument { handle: optional_handle(stream)?, is_trusted: assume_supported_args };
    // Operands whose memory or shape changed since construction are read again.
    let reread = match native.are_unchanged(py)? {
        true => None,
        false => Some(native.current_problem(py, stream.handle)?),
    };
    let reread_epilogue = match &reread {
        Some(problem) => native.current_epilogue(py, problem, stream.handle)?,
        None => None,
    };
    let problem = reread.as_ref().unwrap_or(&native.problem);
    let epilogue = reread_epilogue.as_ref().or(native.bound_epilogue());
    let is_checked = reread.is_none() && native.last_run.is(position);
    if kernel::at(position).runs_on_gpu() {
        let artifact = artifact_or_compile(slf, args, compiled_artifact)?;
        let program = program_of(slf, artifact.get())?;
        let last = &artifact.get().last;
        let request = LaunchRequest { position, problem, epilogue, program, last, is_checked };
        // The second run on unchanged operands keeps its launch for later runs.
        let keep = is_checked && native.kept().is_none();
        let workspace = match workspace {
            Some(workspace) => {
                usable_workspace(position, problem, workspace, assume_supported_args)?
            }
            None => None,
        };
        let handle = stream.resolve(native.operands[0].object.bind(py), problem.device())?;
        let kept = request.enqueue(&Interpreter(py), handle, workspace.as_ref(), keep)?;
        if reread.is_none() {
            native.last_run.note(position);
        }
        if let Some(launch) = kept {
            native.keep(KeptLaunch {
                kernel: slf.clone().into_any().unbind(),
                artifact: artifact.into_any().unbind(),
                rounds_to_tf32,
                launch: *launch,
            });
        }
    } else {
        check_artifact(slf, compiled_artifact)?;
        if !is_checked {
            launch::check(kernel::at(position), problem, epilogue)?;
        }
        run_reference(py, problem, epilogue)?;
    }
    if !is_supported {
        native.last_supported.note(position);
    }
    Ok(())
}

/// Repeats the launch that the arguments keep, or the artifact's last launch with new addresses.
/// None if neither serves this run.
#[inline(always)] // in every run
fn repeat(
    kernel: &Bound<'_, PyKernel>,
    native: &NativeArguments,
    artifact: Option<&Bound<'_, PyAny>>,
    stream: Option<&Bound<'_, PyAny>>,
    assume_supported_args: bool,
) -> Option<PyResult<()>> {
    let Some(kept) = native.kept() else {
        let artifact = artifact?;
        return repeat_last(kernel, native, artifact, stream, assume_supported_args).transpose();
    };
    // For unchanged arguments, only torch's float32 precision setting can change the result of
    // `supports`.
    let is_supported = || native.last_supported.is(kept.launch.position()) && !kept.rounds_to_tf32;
    let is_same = kept.kernel.is(kernel) && artifact.is_none_or(|artifact| serves(kept, artifact));
    if !is_same || !(assume_supported_args || is_supported()) {
        return None;
    }
    let py = kernel.py();
    let enqueue = || {
        let stream =
            StreamArgument { handle: optional_handle(stream)?, is_trusted: assume_supported_args };
        if !native.are_unchanged(py)? {
            return Ok(None);
        }
        let tensor = native.operands[0].object.bind(py);
        let handle = stream.resolve(tensor, native.problem.device())?;
        Ok(Some(kept.launch.enqueue(&Interpreter(py), handle)?))
    };
    enqueue().transpose()
}

/// Whether a run with this artifact may repeat a kept launch: with that launch's own, or with
/// another one of the same program, as each run without an artifact makes one.
#[inline(always)] // in every repeated launch
fn serves(kept: &KeptLaunch, artifact: &Bound<'_, PyAny>) -> bool {
    kept.artifact.is(artifact) || has_program_of(kept, artifact)
}

#[cold]
fn has_program_of(kept: &KeptLaunch, artifact: &Bound<'_, PyAny>) -> bool {
    let Ok(artifact) = artifact.cast::<CompiledArtifact>() else { return false };
    let py = artifact.py();
    artifact.get().is_for(kept.kernel.bind(py))
        && artifact.get().program(py).is_some_and(|program| kept.launch.runs(program))
}

/// Repeats the artifact's last launch for arguments that run for the first time: generated code
/// constructs new arguments at each call. None if that launch does not serve the arguments.
#[inline(never)] // keeps `repeat` short
fn repeat_last(
    kernel: &Bound<'_, PyKernel>,
    native: &NativeArguments,
    artifact: &Bound<'_, PyAny>,
    stream: Option<&Bound<'_, PyAny>>,
    assume_supported_args: bool,
) -> PyResult<Option<()>> {
    if !assume_supported_args || !native.last_run.is_none() || native.bound_epilogue().is_some() {
        return Ok(None);
    }
    let Ok(artifact) = artifact.cast::<CompiledArtifact>() else { return Ok(None) };
    // A subclass receives the user's stream object, so the fast path does not serve it.
    if kernel.get().position.is_none() || !artifact.get().is_for(kernel) {
        return Ok(None);
    }
    let py = kernel.py();
    let stream = StreamArgument { handle: optional_handle(stream)?, is_trusted: true };
    if !native.are_unchanged(py)? {
        return Ok(None);
    }
    let handle = stream.resolve(native.operands[0].object.bind(py), native.problem.device())?;
    let last = &artifact.get().last;
    let position = last.enqueue_like(&Interpreter(py), &native.problem, handle)?;
    Ok(position.map(|position| native.last_run.note(position)))
}

/// The user's workspace; `None` if the kernel needs none. Generated code passes the size for the
/// extents that it was compiled for: with `assume_supported_args`, also `None` if the workspace is
/// too small, so that the launch allocates its own.
fn usable_workspace(
    position: usize,
    problem: &Problem,
    workspace: &Bound<'_, PyAny>,
    assume_supported_args: bool,
) -> PyResult<Option<View>> {
    let needed = kernel::at(position).workspace_bytes(problem);
    if needed == 0 {
        return Ok(None);
    }
    let view: View = operand::read("workspace", workspace)?;
    let is_short = (view.bytes() as u64) < needed;
    Ok((!(assume_supported_args && is_short)).then_some(view))
}

/// Runs a kernel written in Python, which supports the arguments.
fn run_subclass(
    slf: &Bound<'_, PyKernel>,
    args: &Bound<'_, PyAny>,
    compiled_artifact: Option<&Bound<'_, PyAny>>,
    stream: Option<&Bound<'_, PyAny>>,
    workspace: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let artifact = match compiled_artifact {
        Some(artifact) => artifact.clone(),
        None => slf.call_method1("compile", (args,))?,
    };
    let py = slf.py();
    let stream = match stream {
        Some(stream) => stream.clone(),
        None => stream_of(args)?.into_bound_py_any(py)?,
    };
    let kwargs = PyDict::new(py);
    kwargs.set_item("workspace", workspace)?;
    slf.call_method("_run", (args, artifact, stream), Some(&kwargs))?;
    Ok(())
}

/// The handle of the current stream of the framework that owns the operands. For arguments of a
/// class written in Python, torch's current stream if torch uses CUDA, else 0.
fn stream_of(args: &Bound<'_, PyAny>) -> PyResult<u64> {
    match args.cast::<RuntimeArguments>().ok().and_then(|args| args.get().native.as_deref()) {
        Some(native) => {
            current_stream(native.operands[0].object.bind(args.py()), native.problem.device())
        }
        None => torch_stream(args.py()),
    }
}

/// Computes a problem on the CPU.
pub fn run_reference(
    py: Python<'_>,
    problem: &Problem,
    epilogue: Option<&BoundEpilogue>,
) -> PyResult<()> {
    if problem.device() != operand::DeviceId::Cpu {
        let reason = format!("out is on {}, the kernel runs on the CPU", problem.device());
        return Err(LaunchError::unsupported(reason).into());
    }
    // SAFETY: the caller holds the tensors of the views. All are on the CPU, and none is fake.
    let result = py.detach(|| unsafe { reference::run(problem, epilogue) });
    result.map_err(|error| match error {
        lack @ ReferenceError::Memory { .. } => lack.into(),
        refusal => LaunchError::unsupported(refusal).into(),
    })
}
