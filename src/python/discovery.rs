//! Kernel discovery: ranks the built-in kernels, and calls `generate_kernels` of registered
//! classes.

use std::collections::HashSet;
use std::sync::{LazyLock, Mutex};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyList, PyTuple, PyType};

use super::arguments::{RuntimeArguments, as_arguments};
use super::kernel;
use super::options::tf32_allowed;
use super::support::policy;
use super::tuning::ranked;
use super::utils::{ComputeCapability, shown};
use crate::driver::{Device, DriverError};
use crate::kernel as kernels;
use crate::operand;
use crate::operand::OnceValue;
use crate::problem::Problem;

/// Kernel classes written in Python.
static REGISTERED: Mutex<Vec<Registered>> = Mutex::new(Vec::new());

struct Registered {
    provider: String,
    class: Py<PyType>,
    /// Module and qualified name. They identify a redefined class, as when a notebook cell runs
    /// again.
    name: (String, String),
}

/// Adds a kernel class to a provider, so that `get_kernels` finds its kernels. Replaces a class of
/// the same provider, module and qualified name. Raises TypeError unless the class derives from
/// `Kernel`.
#[pyfunction]
pub fn register_kernel_class(provider: String, class: &Bound<'_, PyAny>) -> PyResult<()> {
    let Some(class) = class
        .cast::<PyType>()
        .ok()
        .filter(|class| class.is_subclass_of::<kernel::PyKernel>().unwrap_or(false))
    else {
        return Err(PyTypeError::new_err(format!(
            "{} is not a kernel class and cannot be registered with {provider}; pass a class \
             derived from cutlass_api.Kernel",
            class.repr()?
        )));
    };
    let name = (class.module()?.to_string(), class.qualname()?.to_string());
    let mut registered = REGISTERED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    // Local classes of a function all have the same name.
    let local = name.1.contains("<locals>");
    let earlier = registered.iter_mut().find(|known| {
        known.provider == provider && (known.class.is(class) || (!local && known.name == name))
    });
    let class = class.clone().unbind();
    match earlier {
        Some(earlier) => {
            // Drop the class without the lock: that may run Python code that registers a class.
            let earlier = std::mem::replace(&mut earlier.class, class);
            drop(registered);
            drop(earlier);
        }
        None => registered.push(Registered { provider, class, name }),
    }
    Ok(())
}

/// Kernels, ranked by estimated time, fastest first.
///
/// args: return the kernels that support these arguments; None: return all kernels.
/// metadata_filter: a predicate over `KernelMetadata`.
/// cc: return GPU kernels for this compute capability (90 for an H100), regardless of the operands'
/// device; None: return kernels for the operands' device.
/// providers: names of providers; None: all.
///
/// A notebook shows the list as a table: `cutlass_api.explanation.KernelList`.
///
/// If no kernel serves the arguments, the list is empty, and indexing it raises IndexError with the
/// reasons that `cutlass_api.explain` prints.
///
/// Raises ValueError for an unknown provider, and for two kernels of the same name. Exceptions of a
/// registered class propagate.
#[pyfunction]
#[pyo3(signature = (args = None, metadata_filter = None, cc = None, providers = None))]
pub fn get_kernels<'py>(
    py: Python<'py>,
    args: Option<&Bound<'py, PyAny>>,
    metadata_filter: Option<&Bound<'py, PyAny>>,
    cc: Option<&Bound<'py, PyAny>>,
    providers: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    // Check `args` first: if the caller passes operands by position, the error names the first.
    let arguments = args.map(as_arguments).transpose()?;
    let cc = cc.map(|cc| cc.extract::<ComputeCapability>()).transpose()?.map(|cc| cc.0);
    let provider_names = |names: &Bound<'py, PyAny>| {
        let error =
            || PyTypeError::new_err(format!("providers is {}; pass a list of names", shown(names)));
        names.extract::<Vec<String>>().map_err(|_| error())
    };
    let providers = providers.map(provider_names).transpose()?;
    if let Some(names) = &providers {
        let known = py.import("cutlass_api.providers")?.getattr("available_providers")?;
        if let Some(unknown) =
            names.iter().find(|name| !known.contains(name.as_str()).unwrap_or(false))
        {
            let known: Vec<String> =
                known.try_iter()?.map(|name| name?.extract()).collect::<PyResult<_>>()?;
            return Err(PyValueError::new_err(format!(
                "unknown provider {unknown:?}; available: {}",
                known.join(", ")
            )));
        }
    }
    let wanted =
        |name: &str| providers.as_ref().is_none_or(|names| names.iter().any(|n| n == name));

    let mut found = Vec::new();
    let (on_gpu, on_cpu) = (wanted("nvrtc"), wanted("reference"));
    let is_wanted = |runs_on_gpu: bool| if runs_on_gpu { on_gpu } else { on_cpu };
    let (positions, ranked_for) = built_in(py, arguments, cc, is_wanted)?;
    for position in positions {
        let object = kernel::object(py, position)?;
        if keep(metadata_filter, object.as_any())? {
            found.push(object.into_any());
        }
    }
    let registered: Vec<Bound<'py, PyType>> = {
        let registered = REGISTERED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        registered
            .iter()
            .filter(|known| wanted(&known.provider))
            .map(|known| known.class.bind(py).clone())
            .collect()
    };
    let epilogue = args.map(|args| args.getattr_opt("epilogue")).transpose()?.flatten();
    // For operands on a GPU, find kernels for that GPU.
    let native = arguments.and_then(|arguments| arguments.get().native.as_ref());
    let on_gpu = native.filter(|native| native.problem.device() != operand::DeviceId::Cpu);
    let chip = match (cc, on_gpu) {
        (None, Some(native)) => Some(target_of(&native.problem, None)?.cc),
        _ => cc,
    };
    let mut names = HashSet::new();
    for class in registered {
        // Kernel classes call the filter, so they receive one in any case.
        let filter = metadata_filter.map_or_else(|| accept_all(py), Ok)?;
        let mut generate = || -> PyResult<()> {
            let generated =
                class.call_method1("generate_kernels", (filter, epilogue.clone(), cc))?;
            let kernels = generated.try_iter().map_err(|_| not_a_kernel(&class, &generated))?;
            for kernel in kernels {
                let kernel = kernel?;
                if !kernel.is_instance_of::<kernel::PyKernel>() {
                    return Err(not_a_kernel(&class, &kernel));
                }
                let metadata = kernel.getattr("metadata")?;
                let name: String = metadata.getattr("kernel_name")?.extract()?;
                if BUILT_IN.contains(&name) || !names.insert(name.clone()) {
                    return Err(PyValueError::new_err(format!(
                        "{} has a kernel named {name:?}, a name that another kernel has; make the \
                         name unique",
                        class.qualname()?
                    )));
                }
                let supported = match args {
                    Some(args) => kernel.call_method1("supports", (args,))?.is_truthy()?,
                    None => true,
                };
                let least: Option<u32> = metadata.getattr("min_cc")?.extract()?;
                let runs = chip.is_none_or(|cc| least.is_none_or(|least| least <= cc));
                if supported && runs && keep(metadata_filter, &kernel)? {
                    found.push(kernel);
                }
            }
            Ok(())
        };
        generate().map_err(|error| with_note(error, &class))?;
    }
    if let Some(args) = args.filter(|_| found.is_empty()) {
        return py.import("cutlass_api.explanation")?.getattr("NoKernels")?.call1((args, cc));
    }
    static KERNEL_LIST: OnceValue<Py<PyType>> = OnceValue::new();
    let class = KERNEL_LIST.import(py, "cutlass_api.explanation", "KernelList")?;
    let seconds = ranked_for.map(|of| seconds_of(py, of)).transpose()?;
    class.call1((PyList::new(py, found)?, seconds))
}

/// A problem, and the chip that its kernels are ranked for.
type RankedFor = (Problem, kernels::Target);

/// A function from a kernel to its estimated seconds, or None. It holds the problem, not the
/// operands: a list of kernels must not keep the memory of tensors.
fn seconds_of(py: Python<'_>, (problem, target): RankedFor) -> PyResult<Bound<'_, PyCFunction>> {
    let seconds = move |args: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| {
        let kernel = kernel::kernel_of(&args.get_item(0)?).ok();
        // Clients may add kernels of other problems to the list.
        let serving = kernel.filter(|kernel| kernel.supports(&problem).is_ok());
        let seconds = serving.map(|kernel| kernel.seconds(&problem, target));
        PyResult::Ok(seconds.filter(|seconds| seconds.is_finite()))
    };
    PyCFunction::new_closure(py, None, None, seconds)
}

/// The names of the built-in kernels.
static BUILT_IN: LazyLock<HashSet<String>> =
    LazyLock::new(|| kernels::all().iter().map(|kernel| kernel.name().to_string()).collect());

fn not_a_kernel(class: &Bound<'_, PyType>, object: &Bound<'_, PyAny>) -> PyErr {
    let name =
        class.qualname().map_or_else(|_| "a kernel class".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!(
        "generate_kernels of {name} returned {}; it must return instances of classes derived from \
         Kernel",
        shown(object)
    ))
}

/// Adds a note to the error that names the kernel class (Python 3.11 and later).
fn with_note<'py>(error: PyErr, class: &Bound<'py, PyType>) -> PyErr {
    let py = class.py();
    let note = class
        .repr()
        .map(|class| format!("while generating the kernels of the registered class {class}"));
    if let (Ok(note), Ok(Some(add))) = (note, error.value(py).getattr_opt("add_note")) {
        // If `add_note` raises, the original error is still the one to report.
        let _ = add.call1((note,));
    }
    error
}

/// A metadata filter that every kernel passes.
fn accept_all(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static FILTER: OnceValue<Py<PyAny>> = OnceValue::new();
    let accept = |_: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| true;
    let make = || {
        PyCFunction::new_closure(py, None, None, accept).map(|filter| filter.into_any().unbind())
    };
    FILTER.get_or_try_init(py, make).map(|filter| filter.bind(py))
}

/// Whether a kernel passes the metadata filter.
fn keep(metadata_filter: Option<&Bound<'_, PyAny>>, kernel: &Bound<'_, PyAny>) -> PyResult<bool> {
    metadata_filter
        .map_or(Ok(true), |filter| filter.call1((kernel.getattr("metadata")?,))?.is_truthy())
}

/// Positions of the built-in kernels for some arguments and a compute capability, ranked, and the
/// problem and chip that the ranking is for. `is_wanted`: whether kernels are wanted that run on a
/// GPU, or those that do not.
fn built_in(
    py: Python<'_>,
    arguments: Option<&Bound<'_, RuntimeArguments>>,
    cc: Option<u32>,
    is_wanted: impl Fn(bool) -> bool,
) -> PyResult<(Vec<usize>, Option<RankedFor>)> {
    let Some(arguments) = arguments else {
        let fits = |kernel: &kernels::Kernel| {
            cc.is_none_or(|cc| kernel.runs_on_gpu() && kernel.runs_on(cc))
        };
        let is_listed = |position: &usize| {
            let kernel = kernels::at(*position);
            is_wanted(kernel.runs_on_gpu()) && fits(kernel)
        };
        return Ok((kernels::listed().iter().copied().filter(is_listed).collect(), None));
    };
    let Some(native) = &arguments.get().native else {
        return Ok((Vec::new(), None));
    };
    let (problem, target) = problem_and_target(&native.product(), cc)?;
    if !is_wanted(problem.device() != operand::DeviceId::Cpu) {
        return Ok((Vec::new(), None));
    }
    let epilogue = native.bound_epilogue().map(|bound| bound.epilogue);
    let allows_tf32 = tf32_allowed(py, &problem)?;
    let ranked = ranked(py, &problem, target, epilogue, allows_tf32, cc.is_none())?.positions;
    let (mut positions, mut tf32) = (Vec::with_capacity(ranked.len()), None);
    for position in ranked {
        // The epilogue does not affect the policy.
        if policy(py, position, native, &mut tf32)?.is_none() {
            positions
                .push(epilogue.map_or(position, |epilogue| kernels::fused(position, epilogue)));
        }
    }
    Ok((positions, target.map(|target| (problem, target))))
}

/// The problem, on a GPU if a compute capability is set, and the chip to rank kernels for; None on
/// the CPU.
pub fn problem_and_target(
    problem: &Problem,
    cc: Option<u32>,
) -> PyResult<(Problem, Option<kernels::Target>)> {
    match (cc, problem.device()) {
        (Some(_), _) => Ok((problem.on(operand::DeviceId::Cuda(0)), Some(target_of(problem, cc)?))),
        (None, operand::DeviceId::Cpu) => Ok((*problem, None)),
        (None, operand::DeviceId::Cuda(_)) => Ok((*problem, Some(target_of(problem, None)?))),
    }
}

/// The chip to rank kernels for: the operands' device, or a typical chip if `cc` differs from the
/// device's or if the machine has no GPU (FakeTensors).
pub fn target_of(problem: &Problem, cc: Option<u32>) -> PyResult<kernels::Target> {
    let typical = || kernels::Target::typical(cc.unwrap_or(90));
    let operand::DeviceId::Cuda(ordinal) = problem.device() else {
        return Ok(typical());
    };
    match Device::get(ordinal) {
        Ok(device) if cc.is_none_or(|cc| cc == device.cc) => Ok(kernels::Target::from(device)),
        Ok(_) => Ok(typical()),
        Err(error) if DriverError::means_no_gpu(&error) => Ok(typical()),
        Err(error) => Err(error.into()),
    }
}
