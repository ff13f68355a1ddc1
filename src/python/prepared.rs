//! A launch prepared once and replayed: kernel, program, operands and stream are settled when it is made.

use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::{PyTraverseError, PyVisit};

use super::arguments::{NativeArguments, RuntimeArguments};
use super::kernel::{run_reference, unsupported};
use super::launch::{LastLaunch, Packed, Ready, Stream, Work, check_architecture, device_of};
use super::replace::replacement;
use super::stream::stream_handle;
use crate::compile::Program;
use crate::kernel::at;

/// What `Kernel.bind` returns. Calling it enqueues the launch again, on the operands' memory as it is at the call; an
/// operand given by keyword stands in for the bound one in that call, and must have its dtype, shape, strides and device. Where the bound
/// one is a FakeTensor, one must be given. Those of an epilogue are given by the names that its function has for them (D is `out`); where
/// a number was bound, another number. An epilogue's operand that is named A, B, out or stream cannot be swapped.
#[pyclass(module = "cutlass_api", frozen)]
pub struct PreparedLaunch {
    position: usize,
    arguments: Py<RuntimeArguments>,
    /// None for a kernel of the CPU.
    program: Option<Arc<Program>>,
    /// None where a workspace is allocated at each call, and where operands are FakeTensors.
    ready: Option<Ready>,
    stream: Option<u64>,
    last: LastLaunch,
}

impl PreparedLaunch {
    /// The caller has checked that the kernel supports the arguments, and the program is the kernel's.
    pub fn new(
        py: Python<'_>,
        position: usize,
        arguments: Py<RuntimeArguments>,
        program: Option<Arc<Program>>,
        stream: Option<u64>,
    ) -> PyResult<Self> {
        let native = arguments.get().native.as_deref();
        let epilogue = native.and_then(NativeArguments::bound_epilogue);
        let ready = match (native.map(|native| native.problem), &program) {
            // FakeTensors have no addresses to pack.
            (Some(problem), Some(program)) if !problem.is_fake() => {
                let (kernel, device) = (at(position), device_of(&problem)?);
                check_architecture(program, device)?;
                py.detach(|| program.load(kernel, device))?;
                match kernel.workspace_bytes(&problem) {
                    0 => Some(Ready::new(
                        Packed::new(position, &problem, epilogue, 0)?,
                        program.clone(),
                    )?),
                    _ => None,
                }
            }
            _ => None,
        };
        if let (Some(native), Some(_), Some(_)) = (native, &program, stream) {
            let tensor = native.operands[0].object.bind(py);
            Stream { handle: stream, trusted: false }
                .resolve(tensor, device_of(&native.problem)?)?;
        }
        Ok(PreparedLaunch {
            position,
            arguments,
            program,
            ready,
            stream,
            last: LastLaunch::default(),
        })
    }

    fn native(&self) -> PyResult<&NativeArguments> {
        self.arguments
            .get()
            .native
            .as_deref()
            .ok_or_else(|| PyTypeError::new_err("the bound arguments are not our own"))
    }
}

#[pymethods]
impl PreparedLaunch {
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
        if let Some(fused) = &native.fused {
            let given = [("A", A), ("B", B), ("out", out), ("stream", stream)];
            if let Some((name, _)) = given
                .iter()
                .find(|(name, given)| given.is_some() && fused.0.get().has_operand(name))
            {
                return Err(PyValueError::new_err(format!(
                    "{name} may mean the launch's or the epilogue's; name the epilogue's operand otherwise to swap either"
                )));
            }
        }
        // That the bound one is of the operands' device was found when it was bound.
        let trusted = stream.is_none();
        let stream = match stream {
            Some(stream) => Some(stream_handle(stream)?),
            None => self.stream,
        };
        let tensor = native.operands[0].object.bind(py);
        let on = Stream { handle: stream, trusted };
        let swaps = [A, B, out];
        if let Some(ready) = &self.ready
            && swaps.iter().all(Option::is_none)
            && epilogue.is_none()
            && native.are_as_read(py)?
        {
            return ready.enqueue(tensor, &on);
        }
        let problem = native.problem_with(|position, operand| {
            match swaps.get(position).copied().flatten() {
                Some(tensor) => replacement(operand.name, native.problem.views()[position], tensor),
                None => operand.reread(py, stream),
            }
        })?;
        let epilogue = match (&native.fused, epilogue) {
            (None, Some(given)) if !given.is_empty() => {
                let name =
                    given.iter().map(|(name, _)| name.to_string()).next().unwrap_or_default();
                let message =
                    format!("the bound arguments have no operand '{name}', and no epilogue");
                return Err(PyTypeError::new_err(message));
            }
            (Some(fused), Some(given)) => {
                Some(fused.0.get().bind_replaced(py, &problem, stream, given)?)
            }
            _ => native.current_epilogue(py, &problem, stream)?,
        };
        let epilogue = epilogue.as_ref();
        match &self.program {
            Some(program) => {
                let (position, problem, last) = (self.position, &problem, &self.last);
                // Another address may be aligned otherwise.
                let work =
                    Work { position, problem, epilogue, program, last, known_addressed: false };
                work.enqueue(tensor, None, &on, false).map(|_| ())
            }
            None => {
                let kernel = at(self.position);
                kernel.addresses(&problem).map_err(|reason| unsupported(&reason))?;
                kernel.fuses(epilogue).map_err(|reason| unsupported(&reason))?;
                run_reference(py, &problem, epilogue)
            }
        }
    }

    /// For the collector of cycles: what the arguments lead to may hold the launch.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.arguments)
    }

    fn __repr__(&self) -> String {
        format!("<PreparedLaunch of {}>", at(self.position).name())
    }
}
