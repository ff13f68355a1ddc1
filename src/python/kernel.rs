//! Kernels as users hold them, and the run: from arguments to a launch.

use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use pyo3::exceptions::{PyNotImplementedError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rustc_hash::FxHashMap;

use super::arguments::{Kept, NativeArguments, RuntimeArguments};
use super::artifact::{CompiledArtifact, PyProgram};
use super::launch::{Stream, Work};
use super::metadata;
use super::options::tf32_allowed;
use super::prepared::PreparedLaunch;
use super::status::Status;
use super::stream::optional_handle;
use super::utils::{ComputeCapability, set_package_directories};
use crate::compile;
use crate::driver;
use crate::epilogue::{BoundEpilogue, Epilogue, intern};
use crate::kernel::{self, Design};
use crate::operand::{self, DType};
use crate::problem::Problem;
use crate::reference;

/// A kernel: what it computes is in `.metadata`; `supports`, `compile` and `run` do the rest.
///
/// Built-in kernels come from `cutlass_api.get_kernels`. A subclass of one's own gives `__init__(metadata)`, `compile`,
/// `_run(args, compiled_artifact, stream, workspace=None)`, optionally `_supports(args)`, and a static
/// `generate_kernels(metadata_filter, epilogue_args=None, cc=None)`; a provider's `register` makes it known.
// No `dict`: Python 3.11 and 3.12 would make one for each of thousands. Classes written in Python have theirs all the same. Nor does the
// collector of cycles follow `metadata`, for which it would keep a list of thousands: those of a user's should not hold the kernel.
#[pyclass(name = "Kernel", module = "cutlass_api", subclass, frozen)]
pub struct PyKernel {
    /// The position of a built-in kernel, as `kernel::at` counts; None for one written in Python.
    position: Option<usize>,
    /// Not a `PyOnceLock`, which lets other threads take the interpreter each time that it is filled.
    metadata: OnceLock<Py<PyAny>>,
}

/// Plain multiply-adds: any types, any strides. Compute capability 8.0 and later.
#[pyclass(module = "cutlass_api._core", extends = PyKernel, frozen)]
pub struct SimtGemmKernel;

/// Few rows or few columns, at the speed at which memory delivers the other operand. Compute capability 8.0 and later.
#[pyclass(module = "cutlass_api._core", extends = PyKernel, frozen)]
pub struct SkinnyGemmKernel;

/// Tensor cores through `mma.sync` and `cp.async`. Compute capability 8.0 and later.
#[pyclass(module = "cutlass_api._core", extends = PyKernel, frozen)]
pub struct Sm80GemmKernel;

/// Hopper's tensor cores through `wgmma`, fed by its copy engine. Compute capability 9.0, and no other.
#[pyclass(module = "cutlass_api._core", extends = PyKernel, frozen)]
pub struct Sm90GemmKernel;

/// A + B, element by element, at the speed of memory. Compute capability 8.0 and later.
#[pyclass(module = "cutlass_api._core", extends = PyKernel, frozen)]
pub struct ElementwiseKernel;

/// Computed on the CPU in float64 (integers exactly) and rounded once. The oracle of the tests.
#[pyclass(module = "cutlass_api._core", extends = PyKernel, frozen)]
pub struct ReferenceKernel;

/// The Python object of the built-in kernel at a position. There is one object a kernel in a process.
pub fn object<'py>(py: Python<'py>, position: usize) -> PyResult<Bound<'py, PyKernel>> {
    static OBJECTS: LazyLock<Vec<OnceLock<Py<PyKernel>>>> =
        LazyLock::new(|| kernel::all().iter().map(|_| OnceLock::new()).collect());
    // Of kernels with an epilogue, whose number grows.
    static FUSED: Mutex<Option<FxHashMap<usize, Py<PyKernel>>>> = Mutex::new(None);
    let make = |position: usize| -> PyResult<Py<PyKernel>> {
        let base = PyClassInitializer::from(PyKernel {
            position: Some(position),
            metadata: OnceLock::new(),
        });
        let object = match kernel::at(position).design {
            Design::Reference(_) => {
                Bound::new(py, base.add_subclass(ReferenceKernel))?.into_super()
            }
            Design::Simt(_) => Bound::new(py, base.add_subclass(SimtGemmKernel))?.into_super(),
            Design::Skinny(_) => Bound::new(py, base.add_subclass(SkinnyGemmKernel))?.into_super(),
            Design::Sm80(_) => Bound::new(py, base.add_subclass(Sm80GemmKernel))?.into_super(),
            Design::Sm90(_) => Bound::new(py, base.add_subclass(Sm90GemmKernel))?.into_super(),
            Design::Elementwise(_) => {
                Bound::new(py, base.add_subclass(ElementwiseKernel))?.into_super()
            }
        };
        Ok(object.unbind())
    };
    if let Some(kept) = OBJECTS.get(position) {
        let object = match kept.get() {
            Some(object) => object,
            None => {
                let made = make(position)?;
                kept.get_or_init(|| made)
            }
        };
        return Ok(object.bind(py).clone());
    }
    let lock = || FUSED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(known) = lock().get_or_insert_default().get(&position) {
        return Ok(known.bind(py).clone());
    }
    // Python may run other threads while an object is made: not under the lock.
    let made = make(position)?;
    Ok(lock().get_or_insert_default().entry(position).or_insert(made).bind(py).clone())
}

/// The built-in kernel of this name, with this epilogue behind it.
pub fn by_name(
    py: Python<'_>,
    name: &str,
    epilogue: Option<&Epilogue>,
) -> PyResult<Option<Py<PyKernel>>> {
    let Some(plain) = kernel::all().iter().position(|kernel| kernel.name() == name) else {
        return Ok(None);
    };
    let position =
        epilogue.map_or(plain, |epilogue| kernel::fused(plain, intern(epilogue.clone())));
    object(py, position).map(|object| Some(object.unbind()))
}

/// The built-in kernel that an object stands for.
pub fn kernel_of(object: &Bound<'_, PyAny>) -> PyResult<&'static kernel::Kernel> {
    let position = object.cast::<PyKernel>()?.get().position;
    position.map(kernel::at).ok_or_else(|| PyValueError::new_err("this is no built-in kernel"))
}

/// Whether the built-in kernel at a position takes float32 operands through tf32.
pub fn rounds_to_tf32(position: usize) -> bool {
    let kernel = kernel::at(position);
    matches!(kernel.design, Design::Sm80(_) | Design::Sm90(_)) && kernel.types.a == DType::F32
}

/// Why a built-in kernel must not serve arguments that it could: what they carry beside the problem, and what the user
/// has decided about precision. None where nothing stands against it. `tf32` is that decision, once it has been asked for, which
/// takes a call into torch.
pub fn policy(
    py: Python<'_>,
    position: usize,
    arguments: &NativeArguments,
    tf32: &mut Option<bool>,
) -> PyResult<Option<String>> {
    if let (Some(epilogue), None) = (&arguments.epilogue, &arguments.fused) {
        let class = epilogue.bind(py).get_type().name()?;
        return Ok(Some(format!("the epilogue is a {class}, and it fuses EpilogueArguments only")));
    }
    if let Some((at, _)) = arguments.scaled.first() {
        return Ok(Some(format!(
            "{} is a ScaledTensor, and it reads no scales",
            arguments.operands[*at].name
        )));
    }
    if !rounds_to_tf32(position) {
        return Ok(None);
    }
    let allowed = match *tf32 {
        Some(allowed) => allowed,
        None => *tf32.insert(tf32_allowed(py)?),
    };
    if !allowed {
        let reason = "it rounds float32 operands to tf32, which torch.set_float32_matmul_precision(\"high\") would allow";
        return Ok(Some(reason.to_owned()));
    }
    Ok(None)
}

impl PyKernel {
    fn native_supports(
        &self,
        py: Python<'_>,
        position: usize,
        args: &Bound<'_, PyAny>,
    ) -> PyResult<Option<String>> {
        let Some(native) = native(args)? else {
            return Ok(Some("built-in kernels take cutlass_api's own arguments".to_owned()));
        };
        let kernel = kernel::at(position);
        if let Err(reason) = kernel.supports(&native.problem) {
            return Ok(Some(reason.to_string()));
        }
        // A FakeTensor may be on a device that this machine does not have.
        if let operand::Device::Cuda(ordinal) = native.problem.device()
            && let Ok(device) = driver::Device::get(ordinal)
            && !kernel.runs_on(device.cc)
        {
            let (has, chips) = (device.cc, kernel.chips());
            return Ok(Some(format!(
                "cuda:{ordinal} has compute capability {}.{}, the kernel runs on {chips}",
                has / 10,
                has % 10
            )));
        }
        if let Err(reason) = kernel::at(position).fuses(native.bound_epilogue()) {
            return Ok(Some(reason.to_string()));
        }
        policy(py, position, native, &mut None)
    }
}

impl PyKernel {
    /// The run of a kernel that has run the arguments before, with the same artifact, if the operands are as they were read: the launch that
    /// was kept then is enqueued again. None where it is not that, and `run` has to see.
    #[inline(always)] // most runs are that
    pub fn run_again(
        kernel: &Bound<'_, PyAny>,
        native: &NativeArguments,
        artifact: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
        assume_supported_args: bool,
    ) -> Option<PyResult<()>> {
        let Some(kept) = native.kept() else {
            return PyKernel::run_like_last(
                kernel,
                native,
                artifact,
                stream,
                assume_supported_args,
            )
            .transpose();
        };
        // What a kernel supports does not change with the arguments unchanged, except where the user's wish decides.
        let supported = || native.known_supported(kept.position) && !kept.rounds_to_tf32;
        let same = kept.kernel.is(kernel) && kept.artifact.is(artifact);
        if !same || !(assume_supported_args || supported()) {
            return None;
        }
        let stream = match optional_handle(stream) {
            Ok(handle) => Stream { handle, trusted: assume_supported_args },
            Err(error) => return Some(Err(error)),
        };
        match native.are_as_read(kernel.py()) {
            Ok(true) => {
                Some(kept.ready.enqueue(native.operands[0].object.bind(kernel.py()), &stream))
            }
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// The first run of some arguments, which may be one like the last that ran with the artifact: generated code makes its arguments anew
    /// each time.
    #[inline(never)] // beside what runs again
    fn run_like_last(
        kernel: &Bound<'_, PyAny>,
        native: &NativeArguments,
        artifact: &Bound<'_, PyAny>,
        stream: Option<&Bound<'_, PyAny>>,
        assume_supported_args: bool,
    ) -> PyResult<Option<()>> {
        if !assume_supported_args || !native.are_new() || native.bound_epilogue().is_some() {
            return Ok(None);
        }
        let Ok(artifact) = artifact.cast::<CompiledArtifact>() else { return Ok(None) };
        // A user's own kernel takes the stream as it was given.
        let built_in =
            kernel.cast::<PyKernel>().is_ok_and(|kernel| kernel.get().position.is_some());
        if !built_in || !artifact.get().is_for(kernel) {
            return Ok(None);
        }
        let stream = Stream { handle: optional_handle(stream)?, trusted: true };
        if !native.are_as_read(kernel.py())? {
            return Ok(None);
        }
        let tensor = native.operands[0].object.bind(kernel.py());
        let Some(position) = artifact.get().last.enqueue_like(&native.problem, tensor, &stream)?
        else {
            return Ok(None);
        };
        native.note_addressed(position);
        Ok(Some(()))
    }

    /// The artifact that the user gave, or the one that compilation finds.
    fn artifact<'py>(
        slf: &Bound<'py, PyKernel>,
        args: &Bound<'py, PyAny>,
        given: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, CompiledArtifact>> {
        match given {
            Some(artifact) => Ok(as_artifact(artifact)?.clone()),
            None => Bound::new(slf.py(), PyKernel::compile(slf, args, None)?),
        }
    }

    /// The program in an artifact, which must be this kernel's.
    fn program<'a>(
        slf: &'a Bound<'_, PyKernel>,
        artifact: &'a CompiledArtifact,
    ) -> PyResult<&'a Arc<compile::Program>> {
        PyKernel::check_artifact(slf, artifact)?;
        let nothing = || PyValueError::new_err("compiled_artifact holds no program for the GPU");
        artifact.program(slf.py()).ok_or_else(nothing)
    }

    fn check_artifact(slf: &Bound<'_, PyKernel>, artifact: &CompiledArtifact) -> PyResult<()> {
        if !artifact.is_for(slf.as_any()) {
            let py = slf.py();
            let (other, this) = (artifact.kernel(py).repr()?, slf.repr()?);
            return Err(PyValueError::new_err(format!(
                "compiled_artifact is of another kernel, {other}; this is {this}"
            )));
        }
        Ok(())
    }
}

/// What our kernels can read of some arguments; None for arguments of the user's own class.
fn native<'a>(args: &'a Bound<'_, PyAny>) -> PyResult<Option<&'a NativeArguments>> {
    Ok(arguments(args)?.get().native.as_deref())
}

/// Arguments, our own or of a class derived from them.
pub fn arguments<'a, 'py>(
    args: &'a Bound<'py, PyAny>,
) -> PyResult<&'a Bound<'py, RuntimeArguments>> {
    args.cast::<RuntimeArguments>().map_err(|_| {
        let name =
            args.get_type().name().map_or_else(|_| "an object".to_owned(), |name| name.to_string());
        PyTypeError::new_err(format!(
            "args is a {name}; give GemmArguments or another of cutlass_api.arguments"
        ))
    })
}

#[pymethods]
impl PyKernel {
    #[new]
    #[pyo3(signature = (*args, **kwargs))]
    #[allow(unused_variables)]
    fn new(args: &Bound<'_, PyTuple>, kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        PyKernel { position: None, metadata: OnceLock::new() }
    }

    fn __init__(&self, metadata: Py<PyAny>) -> PyResult<()> {
        let set = match self.position {
            // Described when somebody asks.
            Some(_) => Err(metadata),
            None => self.metadata.set(metadata),
        };
        set.map_err(|_| PyValueError::new_err("a kernel's metadata is set once, by its __init__"))
    }

    /// What the kernel computes, on what, and how.
    #[getter]
    fn metadata<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        let metadata = match (this.metadata.get(), this.position) {
            (Some(known), _) => known,
            (None, Some(position)) => {
                // Python may run other threads meanwhile; the first one's is kept.
                let made =
                    metadata::describe(py, kernel::at(position), slf.get_type().as_any())?.unbind();
                this.metadata.get_or_init(|| made)
            }
            (None, None) => {
                return Err(PyValueError::new_err(
                    "this kernel has no metadata: call super().__init__(metadata) in its __init__",
                ));
            }
        };
        Ok(metadata.bind(py).clone())
    }

    /// A `Status`: truthy if the kernel computes these arguments, else with the reason.
    fn supports(slf: &Bound<'_, Self>, args: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let py = slf.py();
        if let Some(position) = slf.get().position {
            let status = match slf.get().native_supports(py, position, args)? {
                None => Status::ok(),
                Some(reason) => Status::because(reason),
            };
            return Ok(Py::new(py, status)?.into_any());
        }
        let described = PyKernel::metadata(slf)?.call_method1("supports", (args,))?;
        if !described.is_truthy()? {
            return Ok(described.unbind());
        }
        Ok(slf.call_method1("_supports", (args,))?.unbind())
    }

    /// For subclasses: what `supports` checks beyond the metadata.
    #[allow(unused_variables)]
    fn _supports(&self, args: &Bound<'_, PyAny>) -> Status {
        Status::ok()
    }

    /// For subclasses: launches the compiled kernel.
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

    /// For subclasses: the kernels of this class.
    #[staticmethod]
    #[pyo3(signature = (metadata_filter = None, epilogue_args = None, cc = None))]
    #[allow(unused_variables)]
    fn generate_kernels(
        metadata_filter: Option<&Bound<'_, PyAny>>,
        epilogue_args: Option<&Bound<'_, PyAny>>,
        cc: Option<u32>,
    ) -> Vec<Py<PyAny>> {
        Vec::new()
    }

    /// Compiles the kernel, or finds it compiled: in this process, else in the cache on disk, else by NVRTC.
    ///
    /// cc: the compute capability to compile for; None: that of the device that holds the operands. A given one needs
    /// no GPU. Raises RuntimeError with NVRTC's log where compilation fails, or with what to install where NVRTC is
    /// missing.
    #[pyo3(signature = (args, cc = None))]
    fn compile(
        slf: &Bound<'_, Self>,
        args: &Bound<'_, PyAny>,
        cc: Option<ComputeCapability>,
    ) -> PyResult<CompiledArtifact> {
        let py = slf.py();
        let Some(position) = slf.get().position else {
            return Err(must_define(slf, "compile"));
        };
        let kernel = kernel::at(position);
        let this = slf.clone().into_any().unbind();
        if !kernel.runs_on_gpu() {
            return Ok(CompiledArtifact::of(py.None(), this));
        }
        set_package_directories(py)?;
        let arguments = native(args)?;
        let device = match arguments.map(|a| a.problem.device()) {
            // A FakeTensor may be on a device that this machine does not have.
            Some(operand::Device::Cuda(ordinal))
                if cc.is_none() || driver::Device::get(ordinal).is_ok() =>
            {
                Some(driver::Device::get(ordinal)?)
            }
            _ => None,
        };
        let Some(cc) = cc.map(|cc| cc.0).or(device.map(|device| device.cc)) else {
            return Err(PyValueError::new_err(
                "the operands are on the CPU, so there is no device to compile for; name a compute capability: compile(args, cc=90)",
            ));
        };
        let program = py.detach(|| compile::compile(kernel, cc))?;
        // Loading now leaves nothing to be done in a first launch, which may be under graph capture.
        if let Some(device) = device.filter(|device| program.architecture.runs_on(device.cc)) {
            py.detach(|| program.load(kernel, device))?;
        }
        Ok(CompiledArtifact::of(Py::new(py, PyProgram(program))?.into_any(), this))
    }

    /// Computes the arguments: enqueues the launch on a stream (behind one that copies operands, for a kernel whose metadata
    /// say `packed`), or computes at once on the CPU.
    ///
    /// compiled_artifact: from `compile`; None compiles through the cache. stream: a `torch.cuda.Stream`, a CuPy stream, a
    /// `CUstream`, an integer handle; None: the current stream of the framework that owns the operands. workspace: device
    /// memory of `get_workspace_size` bytes; None allocates where any is needed. assume_supported_args: skip `supports`
    /// (not the check, of nanoseconds, that the operands' types and layouts are the kernel's).
    /// Short launches (2 us by the model) that are repeated on one stream become CUDA graphs, which profilers then show.
    /// Raises ValueError for what the kernel does not serve, RuntimeError with CUDA's error name if the launch fails.
    ///
    /// Autograd is not told that `out` was written, as it is by `cutlass_api.matmul`: where it has saved the tensor, or a view of it shares
    /// the memory, call `torch.autograd.graph.increment_version(out)`.
    #[pyo3(signature = (args, compiled_artifact = None, stream = None, workspace = None, assume_supported_args = false))]
    pub fn run(
        slf: &Bound<'_, Self>,
        args: &Bound<'_, PyAny>,
        compiled_artifact: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
        workspace: Option<&Bound<'_, PyAny>>,
        assume_supported_args: bool,
    ) -> PyResult<()> {
        let Some(position) = slf.get().position else {
            return run_python(
                slf,
                args,
                compiled_artifact,
                stream,
                workspace,
                assume_supported_args,
            );
        };
        let py = slf.py();
        let kernel = kernel::at(position);
        let Some(native) = native(args)? else {
            return Err(PyTypeError::new_err("built-in kernels take cutlass_api's own arguments"));
        };
        let checked = assume_supported_args
            || (native.known_supported(position) && !rounds_to_tf32(position));
        if !checked && let Some(reason) = slf.get().native_supports(py, position, args)? {
            return Err(unsupported(&reason));
        }
        let stream = Stream { handle: optional_handle(stream)?, trusted: assume_supported_args };
        let tensor = native.operands[0].object.bind(py);
        let as_read = native.are_as_read(py)?;
        let moved = if as_read { None } else { Some(native.current_problem(py, stream.handle)?) };
        let problem = moved.as_ref().unwrap_or(&native.problem);
        let fused_anew = match &moved {
            Some(problem) => native.current_epilogue(py, problem, stream.handle)?,
            None => None,
        };
        let epilogue = fused_anew.as_ref().or(native.bound_epilogue());
        let known_addressed = moved.is_none() && native.known_addressed(position);
        match &kernel.design {
            Design::Reference(_) => {
                if !known_addressed {
                    kernel.addresses(problem).map_err(|reason| unsupported(&reason))?;
                    kernel.fuses(epilogue).map_err(|reason| unsupported(&reason))?;
                }
                if let Some(artifact) = compiled_artifact {
                    PyKernel::check_artifact(slf, as_artifact(artifact)?.get())?;
                }
                run_reference(py, problem, epilogue)?;
            }
            _ => {
                let made;
                let artifact = match compiled_artifact {
                    Some(artifact) => as_artifact(artifact)?,
                    None => {
                        made = Bound::new(py, PyKernel::compile(slf, args, None)?)?;
                        &made
                    }
                };
                let program = PyKernel::program(slf, artifact.get())?;
                let last = &artifact.get().last;
                let work = Work { position, problem, epilogue, program, last, known_addressed };
                // What runs for the second time on operands as they were read is kept.
                let keep =
                    known_addressed && compiled_artifact.is_some() && native.kept().is_none();
                let ready = work.enqueue(tensor, workspace, &stream, keep)?;
                if moved.is_none() {
                    native.note_addressed(position);
                }
                if let Some(ready) = ready {
                    native.keep(Kept {
                        kernel: slf.clone().unbind(),
                        artifact: artifact.clone().unbind(),
                        position,
                        rounds_to_tf32: rounds_to_tf32(position),
                        ready: *ready,
                    });
                }
            }
        }
        if !checked {
            native.note_supported(position);
        }
        Ok(())
    }

    /// Prepares a launch that `PreparedLaunch.__call__` replays: everything but the operands' addresses is settled now,
    /// except for a kernel that needs a workspace, which is allocated at each call.
    ///
    /// args, compiled_artifact, stream: as for `run`; a stream of None is the current one at each call. The operands are
    /// kept alive. Raises as `run` does.
    #[pyo3(signature = (args, compiled_artifact = None, stream = None))]
    fn bind(
        slf: &Bound<'_, Self>,
        args: &Bound<'_, PyAny>,
        compiled_artifact: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PreparedLaunch> {
        let py = slf.py();
        let (Some(position), Some(_)) = (slf.get().position, native(args)?) else {
            return Err(PyTypeError::new_err(
                "only built-in kernels and cutlass_api's own arguments can be bound",
            ));
        };
        if let Some(reason) = slf.get().native_supports(py, position, args)? {
            return Err(unsupported(&reason));
        }
        let program = if kernel::at(position).runs_on_gpu() {
            let artifact = PyKernel::artifact(slf, args, compiled_artifact)?;
            Some(PyKernel::program(slf, artifact.get())?.clone())
        } else {
            if let Some(artifact) = compiled_artifact {
                PyKernel::check_artifact(slf, as_artifact(artifact)?.get())?;
            }
            None
        };
        let arguments = args.cast::<RuntimeArguments>()?.clone().unbind();
        let stream = optional_handle(stream)?;
        PreparedLaunch::new(py, position, arguments, program, stream)
    }

    /// Bytes of device memory that `run` needs beside the operands; 0 where it needs none.
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

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let class = slf.get_type().name()?;
        match slf.get().position {
            Some(position) => Ok(format!("<{class} {}>", kernel::at(position).name())),
            None => Ok(format!("<{class} {}>", PyKernel::metadata(slf)?.getattr("kernel_name")?)),
        }
    }
}

pub fn unsupported(reason: &dyn ToString) -> PyErr {
    PyValueError::new_err(format!(
        "Kernel does not support the provided arguments: {}",
        reason.to_string()
    ))
}

fn must_define(kernel: &Bound<'_, PyKernel>, method: &str) -> PyErr {
    let class =
        kernel.get_type().name().map_or_else(|_| "the class".to_owned(), |name| name.to_string());
    PyNotImplementedError::new_err(format!("{class} must define {method}"))
}

fn as_artifact<'a, 'py>(
    object: &'a Bound<'py, PyAny>,
) -> PyResult<&'a Bound<'py, CompiledArtifact>> {
    object.cast::<CompiledArtifact>().map_err(|_| {
        let name = object
            .get_type()
            .name()
            .map_or_else(|_| "an object".to_owned(), |name| name.to_string());
        PyTypeError::new_err(format!(
            "compiled_artifact is a {name}; give what compile() returned, or None"
        ))
    })
}

/// The run of a kernel written in Python.
fn run_python(
    slf: &Bound<'_, PyKernel>,
    args: &Bound<'_, PyAny>,
    compiled_artifact: Option<&Bound<'_, PyAny>>,
    stream: Option<&Bound<'_, PyAny>>,
    workspace: Option<&Bound<'_, PyAny>>,
    assume_supported_args: bool,
) -> PyResult<()> {
    let py = slf.py();
    if !assume_supported_args {
        let status = slf.call_method1("supports", (args,))?;
        if !status.is_truthy()? {
            return Err(unsupported(&status.getattr("error")?));
        }
    }
    let artifact = match compiled_artifact {
        Some(artifact) => artifact.clone(),
        None => slf.call_method1("compile", (args,))?,
    };
    let kwargs = PyDict::new(py);
    kwargs.set_item("workspace", workspace)?;
    slf.call_method("_run", (args, artifact, stream), Some(&kwargs))?;
    Ok(())
}

pub fn run_reference(
    py: Python<'_>,
    problem: &Problem,
    epilogue: Option<&BoundEpilogue>,
) -> PyResult<()> {
    // SAFETY: the views were read from tensors that the arguments keep alive; `supports` has found them on the CPU, or
    // the device check below does; none is fake.
    if problem.device() != operand::Device::Cpu {
        return Err(unsupported(&format!(
            "out is on {}, the kernel runs on the CPU",
            problem.device()
        )));
    }
    py.detach(|| unsafe { reference::run(problem, epilogue) }).map_err(|error| unsupported(&error))
}
