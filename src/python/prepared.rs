//! `Kernel.bind`: launches that are prepared once and called many times.

use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

use super::arguments::{RuntimeArguments, as_arguments};
use super::compilation::{artifact_or_compile, check_artifact, program_of};
use super::host::Interpreter;
use super::kernel::PyKernel;
use super::native_arguments::{NativeArguments, unwrapped};
use super::ranges::Range;
use super::replace::{matching, replacement};
use super::run::run_reference;
use super::stream::{StreamArgument, optional_handle, stream_handle};
use super::support::refusal;
use crate::compile::Program;
use crate::epilogue::BoundEpilogue;
use crate::kernel::at;
use crate::launch::{
    LastLaunch, LaunchError, LaunchRequest, PreparedLaunch, check, check_architecture, device_of,
};
use crate::operand::Operand;
use crate::problem::Problem;

/// A prepared launch, as `Kernel.bind` returns it. Each call enqueues the launch on the operands'
/// current memory.
///
/// An operand passed by keyword replaces the bound operand in that call. It must have the same
/// dtype, shape, strides and device. A bound FakeTensor must be replaced. An epilogue's
/// operand has its name in the epilogue function as keyword (D has `out`); a number replaces a
/// number. An epilogue's operand named A, B, out or stream cannot be replaced. A weight of
/// `cutlass_api.weights` replaces a weight of its format, with its scales.
#[pyclass(name = "PreparedLaunch", module = "cutlass_api", frozen)]
pub struct PyPreparedLaunch {
    position: usize,
    arguments: Py<RuntimeArguments>,
    /// None for a CPU kernel.
    program: Option<Arc<Program>>,
    /// None if each call allocates a workspace, or operands are FakeTensors.
    launch: Option<PreparedLaunch>,
    stream: Option<u64>,
    last: LastLaunch,
}

#[pymethods]
impl PyKernel {
    /// Prepares a launch for repeated calls: computes everything except the operands' addresses
    /// now. A launch that needs a workspace allocates it at each call.
    ///
    /// args, compiled_artifact, stream: as for `run`; with stream None, each call uses its current
    /// stream. The launch keeps the operands alive. Raises as `run` does.
    #[pyo3(signature = (args, compiled_artifact = None, stream = None))]
    fn bind(
        slf: &Bound<'_, Self>,
        args: &Bound<'_, PyAny>,
        compiled_artifact: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyPreparedLaunch> {
        let arguments = as_arguments(args)?;
        let (Some(position), Some(native)) =
            (slf.get().position, arguments.get().native.as_deref())
        else {
            return Err(PyTypeError::new_err(
                "only built-in kernels and cutlass_api's own arguments can be bound",
            ));
        };
        if let Some(reason) = refusal(slf.py(), position, Some(native))? {
            return Err(LaunchError::unsupported(reason).into());
        }
        let program = if at(position).runs_on_gpu() {
            let artifact = artifact_or_compile(slf, args, compiled_artifact)?;
            Some(program_of(slf, artifact.get())?.clone())
        } else {
            check_artifact(slf, compiled_artifact)?;
            None
        };
        let stream = optional_handle(stream)?;
        PyPreparedLaunch::new(slf.py(), position, arguments.clone().unbind(), program, stream)
    }
}

impl PyPreparedLaunch {
    /// Prepares the launch. The kernel supports the arguments, and the program is the kernel's.
    fn new(
        py: Python<'_>,
        position: usize,
        arguments: Py<RuntimeArguments>,
        program: Option<Arc<Program>>,
        stream: Option<u64>,
    ) -> PyResult<Self> {
        let mut launch = None;
        if let (Some(native), Some(program)) = (&arguments.get().native, &program) {
            let problem = &native.problem;
            // FakeTensors have no addresses.
            if !problem.is_fake() {
                let (kernel, device) = (at(position), device_of(problem)?);
                check_architecture(program, device)?;
                py.detach(|| program.load(kernel, device))?;
                if kernel.workspace_bytes(problem) == 0 {
                    let (epilogue, program) = (native.bound_epilogue(), program.clone());
                    launch = Some(PreparedLaunch::new(position, problem, epilogue, 0, program)?);
                }
            }
            if stream.is_some() {
                let tensor = native.operands[0].object.bind(py);
                StreamArgument { handle: stream, is_trusted: false }
                    .resolve(tensor, problem.device())?;
            }
        }
        let last = LastLaunch::default();
        Ok(PyPreparedLaunch { position, arguments, program, launch, stream, last })
    }

    fn native(&self) -> PyResult<&NativeArguments> {
        let native = self.arguments.get().native.as_deref();
        native.ok_or_else(|| PyTypeError::new_err("the bound arguments are not cutlass_api's own"))
    }

    /// Launches other operands, or operands that changed since they were bound.
    fn launch_anew(
        &self,
        py: Python<'_>,
        problem: &Problem,
        epilogue: Option<&BoundEpilogue>,
        handle: u64,
    ) -> PyResult<()> {
        let Some(program) = &self.program else {
            check(at(self.position), problem, epilogue)?;
            return run_reference(py, problem, epilogue);
        };
        let request = LaunchRequest {
            position: self.position,
            problem,
            epilogue,
            program,
            last: &self.last,
            is_checked: false, // the alignment may differ
        };
        request.enqueue(&Interpreter(py), handle, None, false)?;
        Ok(())
    }
}

#[pymethods]
impl PyPreparedLaunch {
    #[pyo3(signature = (*, A = None, B = None, out = None, stream = None, **epilogue))]
    #[allow(non_snake_case)]
    fn __call__(
        &self,
        py: Python<'_>,
        A: Option<&Bound<'_, PyAny>>,
        B: Option<&Bound<'_, PyAny>>,
        out: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
        epilogue: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let native = self.native()?;
        let _range = Range::of_call(py, "cutlass_api::PreparedLaunch", || {
            let bound = native.objects(py).into_iter();
            let inputs = bound.zip([A, B, out]).map(|(bound, new)| new.cloned().unwrap_or(bound));
            Ok((PyTuple::new(py, inputs.collect::<Vec<_>>())?, Some(at(self.position).name())))
        });
        if let Some(fused) = &native.fused {
            let keywords = [("A", A), ("B", B), ("out", out), ("stream", stream)];
            let is_ambiguous = |(name, value): &&(&str, Option<&Bound<'_, PyAny>>)| {
                value.is_some() && fused.0.get().has_operand(name)
            };
            if let Some((name, _)) = keywords.iter().find(is_ambiguous) {
                return Err(PyValueError::new_err(format!(
                    "{name} names an operand of the launch and of the epilogue; \
                     rename the epilogue's operand to replace either"
                )));
            }
        }
        // `bind` has checked that the bound stream belongs to the operands' device.
        let is_trusted = stream.is_none();
        let stream = match stream {
            Some(stream) => Some(stream_handle(stream)?),
            None => self.stream,
        };
        let resolve = || {
            let tensor = native.operands[0].object.bind(py);
            StreamArgument { handle: stream, is_trusted }.resolve(tensor, native.problem.device())
        };
        let mut replacements = [A, B, out];
        if let Some(launch) = &self.launch
            && replacements.iter().all(Option::is_none)
            && epilogue.is_none()
            && native.are_unchanged(py)?
        {
            launch.enqueue(&Interpreter(py), resolve()?)?;
            return Ok(());
        }
        let (mut views, mut with_scales) = ([None; 2], None);
        for (position, (tensor, view)) in replacements.iter_mut().zip(&mut views).enumerate() {
            let name = native.operands[position].name;
            let wrapped = tensor.filter(|tensor| Operand::of_known_type(name, tensor).is_none());
            if let Some(wrapped) = wrapped {
                // The launch reads the memory after this call, in which no copy would live on.
                let as_is = wrapped.getattr_opt(intern!(py, "is_operand"))?;
                if as_is.is_some_and(|flag| matches!(flag.is_truthy(), Ok(false))) {
                    return Err(PyValueError::new_err(format!(
                        "kernels do not read the fields of {name} as they are; call repack() on \
                         it once, and make new arguments of zero points that are added"
                    )));
                }
                let mut scaled = None;
                let read = unwrapped(name, wrapped, |tensor| scaled = Some(tensor))?.1;
                *view = Some(matching(name, native.problem.views()[position], read)?);
                *tensor = None;
                if let Some(scaled) = scaled {
                    let operands = match with_scales.take().or_else(|| epilogue.cloned()) {
                        Some(operands) => operands.copy()?,
                        None => PyDict::new(py),
                    };
                    for (name, scales) in native.scales_of(position, scaled.bind(py))? {
                        operands.set_item(name, scales)?;
                    }
                    with_scales = Some(operands);
                }
            }
        }
        let epilogue = with_scales.as_ref().or(epilogue);
        let problem = native.problem_with(|position, operand| {
            if let Some(view) = views.get(position).copied().flatten() {
                return Ok(view);
            }
            match replacements.get(position).copied().flatten() {
                Some(tensor) => replacement(operand.name, native.problem.views()[position], tensor),
                None => operand.reread(py, stream),
            }
        })?;
        let epilogue = match (&native.fused, epilogue) {
            (None, Some(operands)) if !operands.is_empty() => {
                let name = operands.keys().iter().next().map(|name| name.to_string());
                return Err(PyTypeError::new_err(format!(
                    "the bound arguments have no operand '{}', and no epilogue",
                    name.unwrap_or_default()
                )));
            }
            (Some(fused), Some(operands)) => {
                Some(fused.0.get().bind_replaced(py, &problem, stream, operands)?)
            }
            _ => native.current_epilogue(py, &problem, stream)?,
        };
        self.launch_anew(py, &problem, epilogue.as_ref(), resolve()?)
    }

    /// For the garbage collector: operands may refer to the launch.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.arguments)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(format!(
            "cannot copy or pickle a PreparedLaunch of {}, which holds addresses on a device; call \
             kernel.bind on a copy of its arguments",
            at(self.position).name()
        )))
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let facts = self.arguments.get().facts(py);
        format!("<PreparedLaunch of {}: {facts}>", at(self.position).name())
    }
}
