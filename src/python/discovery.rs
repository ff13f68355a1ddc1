//! Finding kernels: the built-in ones by their index, registered classes by asking them.

use std::sync::Mutex;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::arguments::RuntimeArguments;
use super::kernel;
use crate::driver::{Device, DriverError};
use crate::kernel as kernels;
use crate::operand;
use crate::problem::Problem;

/// Kernel classes written in Python, with the name of their provider.
static REGISTERED: Mutex<Vec<(String, Py<PyAny>)>> = Mutex::new(Vec::new());

/// Adds a kernel class to a provider. `get_kernels` asks it for its kernels from then on.
#[pyfunction]
pub fn register_kernel_class(provider: String, class: Py<PyAny>) {
    let mut registered = REGISTERED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !registered.iter().any(|(name, known)| *name == provider && known.is(&class)) {
        registered.push((provider, class));
    }
}

/// Kernels, best guess first.
///
/// args: those that serve these arguments; None: every kernel there is. metadata_filter: a predicate over
/// `KernelMetadata`. cc: GPU kernels that run on this compute capability (90 for an H100), whatever device the operands
/// are on; None: those for the operands' own device. providers: names of providers; an unknown one raises ValueError.
#[pyfunction]
#[pyo3(signature = (args = None, metadata_filter = None, cc = None, providers = None))]
pub fn get_kernels<'py>(
    py: Python<'py>,
    args: Option<&Bound<'py, PyAny>>,
    metadata_filter: Option<&Bound<'py, PyAny>>,
    cc: Option<i64>,
    providers: Option<Vec<String>>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let cc = cc.map(compute_capability).transpose()?;
    if let Some(names) = &providers {
        let known = py.import("cutlass_api.providers")?.getattr("available_providers")?;
        if let Some(unknown) = names.iter().find(|name| !known.contains(name.as_str()).unwrap_or(false)) {
            let known: Vec<String> = known.try_iter()?.map(|name| name?.extract()).collect::<PyResult<_>>()?;
            return Err(PyValueError::new_err(format!(
                "unknown provider {unknown:?}; available: {}",
                known.join(", ")
            )));
        }
    }
    let wanted = |name: &str| providers.as_ref().is_none_or(|names| names.iter().any(|n| n == name));
    let arguments = args.map(kernel::arguments).transpose()?;

    let mut found = Vec::new();
    for position in built_in(py, arguments, cc)? {
        let gpu = kernels::at(position).runs_on_gpu();
        if wanted(if gpu { "nvrtc" } else { "reference" }) {
            let object = kernel::object(py, position)?;
            if keep(metadata_filter, object.as_any())? {
                found.push(object.into_any());
            }
        }
    }
    let registered: Vec<(String, Py<PyAny>)> = {
        let registered = REGISTERED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        registered.iter().map(|(name, class)| (name.clone(), class.clone_ref(py))).collect()
    };
    let epilogue = args.map(|args| args.getattr_opt("epilogue")).transpose()?.flatten();
    // Operands on a GPU ask for what that GPU runs.
    let native = arguments.and_then(|arguments| arguments.get().native.as_ref());
    let on_gpu = native.filter(|native| native.problem.device() != operand::Device::Cpu);
    let chip = match (cc, on_gpu) {
        (None, Some(native)) => Some(target_of(&native.problem, None)?.cc),
        _ => cc,
    };
    for (_, class) in registered.iter().filter(|(provider, _)| wanted(provider)) {
        let generated = class.bind(py).call_method1("generate_kernels", (metadata_filter, epilogue.clone(), cc))?;
        for kernel in generated.try_iter()? {
            let kernel = kernel?;
            let serves = match args {
                Some(args) => kernel.call_method1("supports", (args,))?.is_truthy()?,
                None => true,
            };
            let least: Option<u32> = kernel.getattr("metadata")?.getattr("min_cc")?.extract()?;
            if serves && chip.is_none_or(|cc| least.is_none_or(|least| least <= cc)) && keep(metadata_filter, &kernel)?
            {
                found.push(kernel);
            }
        }
    }
    Ok(found)
}

fn compute_capability(cc: i64) -> PyResult<u32> {
    u32::try_from(cc).map_err(|_| {
        PyValueError::new_err(format!("cc is {cc}; give ten times major plus minor, such as 90 for an H100"))
    })
}

fn keep(metadata_filter: Option<&Bound<'_, PyAny>>, kernel: &Bound<'_, PyAny>) -> PyResult<bool> {
    metadata_filter.map_or(Ok(true), |filter| filter.call1((kernel.getattr("metadata")?,))?.is_truthy())
}

/// Positions of the built-in kernels that are asked for.
fn built_in(py: Python<'_>, arguments: Option<&Bound<'_, RuntimeArguments>>, cc: Option<u32>) -> PyResult<Vec<usize>> {
    let Some(arguments) = arguments else {
        let fits = |kernel: &kernels::Kernel| cc.is_none_or(|cc| kernel.runs_on_gpu() && kernel.runs_on(cc));
        return Ok((0..kernels::all().len()).filter(|position| fits(&kernels::all()[*position])).collect());
    };
    let Some(native) = &arguments.get().native else {
        return Ok(Vec::new());
    };
    let (problem, target) = match cc {
        Some(cc) => (native.problem.on(operand::Device::Cuda(0)), Some(target_of(&native.problem, Some(cc))?)),
        None => match native.problem.device() {
            operand::Device::Cpu => (native.problem, None),
            operand::Device::Cuda(_) => (native.problem, Some(target_of(&native.problem, None)?)),
        },
    };
    let (mut positions, mut tf32) = (Vec::new(), None);
    for position in kernels::ranked(&problem, target, native.bound_epilogue().is_some()) {
        let position = native.bound_epilogue().map_or(position, |bound| kernels::fused(position, bound.epilogue));
        if kernel::policy(py, position, native, &mut tf32)?.is_none() {
            positions.push(position);
        }
    }
    Ok(positions)
}

/// The chip to rank for: the operands' own, unless another capability is asked for. Where the machine has none
/// (FakeTensors on a machine without a GPU), a typical one.
pub fn target_of(problem: &Problem, cc: Option<u32>) -> PyResult<kernels::Target> {
    let typical = || kernels::Target::typical(cc.unwrap_or(90));
    let operand::Device::Cuda(ordinal) = problem.device() else {
        return Ok(typical());
    };
    match Device::get(ordinal) {
        Ok(device) if cc.is_none_or(|cc| cc == device.cc) => {
            Ok(kernels::Target { cc: device.cc, multiprocessors: device.multiprocessors })
        }
        Ok(_) => Ok(typical()),
        Err(error) if DriverError::means_no_gpu(&error) => Ok(typical()),
        Err(error) => Err(error.into()),
    }
}
