//! What built-in kernels know of arguments: operands, problem, epilogue, and the launch to repeat.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrayvec::ArrayVec;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use super::epilogue::EpilogueArguments;
use super::tensors::{DenseTensor, ScaledTensor};
use crate::epilogue::{BoundEpilogue, MAIN_OUTPUT};
use crate::launch::PreparedLaunch;
use crate::operand::{self, DType, Operand, View};
use crate::problem::{Problem, ProblemError};

/// Arguments of built-in kernels.
pub struct NativeArguments {
    pub operands: ArrayVec<Operand, 4>,
    pub problem: Problem,
    /// The epilogue as the user passed it.
    pub epilogue: Option<Py<PyAny>>,
    /// The epilogue bound to the problem, if it is `EpilogueArguments`.
    pub fused: Option<Box<(Py<EpilogueArguments>, BoundEpilogue)>>,
    /// Operands with scales: index among the operands, and the tensor as the user wrapped it.
    pub scaled: Vec<(usize, Py<ScaledTensor>)>,
    /// The last kernel that ran on these operands.
    addressed: LastKernel,
    /// The last kernel that supports these arguments.
    supported: LastKernel,
    /// The launch that runs on these operands repeat. Boxed: arguments that run once never allocate
    /// it.
    kept: OnceLock<Box<KeptLaunch>>,
}

/// The launch of a kernel that ran these arguments with an artifact. Kernel and artifact are
/// compared by identity.
pub struct KeptLaunch {
    pub kernel: Py<PyAny>,
    pub artifact: Py<PyAny>,
    pub rounds_to_tf32: bool,
    pub launch: PreparedLaunch,
}

/// The position of a built-in kernel, as `kernel::at` counts, or `NONE`.
struct LastKernel(AtomicUsize);

impl LastKernel {
    const NONE: usize = usize::MAX;

    fn none() -> LastKernel {
        LastKernel(AtomicUsize::new(LastKernel::NONE))
    }

    fn is(&self, position: usize) -> bool {
        self.0.load(Ordering::Relaxed) == position
    }

    fn note(&self, position: usize) {
        self.0.store(position, Ordering::Relaxed);
    }
}

impl NativeArguments {
    /// Arguments whose tensors are not read yet.
    pub fn unread(problem: Problem, epilogue: Option<Py<PyAny>>) -> NativeArguments {
        NativeArguments {
            operands: ArrayVec::new(),
            problem,
            epilogue,
            fused: None,
            scaled: Vec::new(),
            addressed: LastKernel::none(),
            supported: LastKernel::none(),
            kept: OnceLock::new(),
        }
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        for operand in &self.operands {
            visit.call(&operand.object)?;
        }
        visit.call(&self.epilogue)?;
        if let Some(fused) = &self.fused {
            visit.call(&fused.0)?;
        }
        for (_, wrapped) in &self.scaled {
            visit.call(wrapped)?;
        }
        if let Some(kept) = self.kept() {
            visit.call(&kept.kernel)?;
            visit.call(&kept.artifact)?;
        }
        Ok(())
    }

    /// Reads the tensors, in the order of the problem's views.
    pub fn read<const N: usize>(
        &mut self,
        tensors: [(&'static str, &Bound<'_, PyAny>); N],
    ) -> PyResult<()> {
        let fusing = self
            .epilogue
            .as_ref()
            .and_then(|epilogue| Fusing::of(epilogue, &tensors))
            .transpose()?;
        for ((name, mut tensor), view) in tensors.into_iter().zip(self.problem.views_mut()) {
            if let (Some(fusing), "out") = (&fusing, name) {
                tensor = &fusing.main_output;
            }
            let operand = match Operand::of_known_type(name, tensor) {
                Some(plain) => {
                    plain.read(tensor.py(), view)?;
                    plain
                }
                None => {
                    let scaled = |wrapped| self.scaled.push((self.operands.len(), wrapped));
                    let (operand, read) = unwrapped(name, tensor, scaled)?;
                    *view = read;
                    operand
                }
            };
            self.operands.push(operand);
        }
        self.problem.check()?;
        self.fused = fusing.map(|fusing| fusing.behind(&self.problem)).transpose()?;
        Ok(())
    }

    /// The launch that is kept, on the operands as they were read.
    pub fn kept(&self) -> Option<&KeptLaunch> {
        self.kept.get().map(|kept| &**kept)
    }

    /// Keeps a launch unless one is kept already.
    pub fn keep(&self, launch: KeptLaunch) {
        let _ = self.kept.set(Box::new(launch));
    }

    /// Notes that a kernel ran on the operands as they were read.
    pub fn note_addressed(&self, position: usize) {
        self.addressed.note(position);
    }

    /// Whether no kernel ran on the operands as they were read.
    pub fn are_new(&self) -> bool {
        self.addressed.is(LastKernel::NONE)
    }

    /// Whether the kernel at a position is known to address the operands as they were read.
    pub fn known_addressed(&self, position: usize) -> bool {
        self.addressed.is(position)
    }

    /// Whether the kernel at a position is known to support these arguments.
    pub fn known_supported(&self, position: usize) -> bool {
        self.supported.is(position)
    }

    pub fn note_supported(&self, position: usize) {
        self.supported.note(position);
    }

    /// Whether the operands, the epilogue's included, still are as they were read.
    #[inline(always)] // in every repeated launch
    pub fn are_as_read(&self, py: Python<'_>) -> PyResult<bool> {
        for (operand, view) in self.operands.iter().zip(self.problem.views().iter()) {
            if !operand.matches_view(py, view)? {
                return Ok(false);
            }
        }
        match &self.fused {
            None => Ok(true),
            Some(fused) => fused.0.get().is_as_read(py),
        }
    }

    /// The epilogue bound to a problem, with its operands as they are now.
    pub fn current_epilogue(
        &self,
        py: Python<'_>,
        problem: &Problem,
        stream: Option<u64>,
    ) -> PyResult<Option<BoundEpilogue>> {
        self.fused.as_ref().map(|fused| fused.0.get().bind_current(py, problem, stream)).transpose()
    }

    /// The epilogue bound to the problem as it was read.
    pub fn bound_epilogue(&self) -> Option<&BoundEpilogue> {
        self.fused.as_ref().map(|fused| &fused.1)
    }

    /// The problem with the operands as they are now. If an address or shape changed, it is
    /// validated again.
    pub fn current_problem(&self, py: Python<'_>, stream: Option<u64>) -> PyResult<Problem> {
        self.problem_with(|_, operand| operand.reread(py, stream))
    }

    /// The problem with the views that `view` returns, none of which may be a FakeTensor's. A
    /// changed problem is validated again.
    pub fn problem_with(
        &self,
        view: impl Fn(usize, &Operand) -> PyResult<View>,
    ) -> PyResult<Problem> {
        let mut problem = self.problem;
        for (position, (operand, now)) in self.operands.iter().zip(problem.views_mut()).enumerate()
        {
            *now = view(position, operand)?;
            if now.fake {
                return Err(operand::without_memory(operand.name));
            }
        }
        if problem != self.problem {
            problem.check()?;
        }
        Ok(problem)
    }

    pub fn operand(&self, py: Python<'_>, position: usize) -> PyResult<Py<PyAny>> {
        if let Some((_, wrapped)) = self.scaled.iter().find(|(at, _)| *at == position) {
            return Ok(wrapped.clone_ref(py).into_any());
        }
        let (operand, view) = (&self.operands[position], *self.problem.views()[position]);
        Ok(DenseTensor::over(py, operand.clone_ref(py), view)?.into_any())
    }

    pub fn accumulator(&self) -> Option<DType> {
        match &self.problem {
            Problem::Gemm(p) => Some(p.accumulator),
            Problem::GroupedGemm(p) => Some(p.accumulator),
            Problem::Elementwise(_) => None,
        }
    }
}

/// `EpilogueArguments` before the problem is read.
struct Fusing<'py> {
    epilogue: Bound<'py, EpilogueArguments>,
    /// The tensor passed for D: the output that the kernel writes.
    main_output: Bound<'py, PyAny>,
}

impl<'py> Fusing<'py> {
    /// None for an epilogue of another class, which a kernel written in Python may take.
    #[cold]
    fn of(
        epilogue: &Py<PyAny>,
        tensors: &[(&'static str, &Bound<'py, PyAny>)],
    ) -> Option<PyResult<Fusing<'py>>> {
        let (_, out) = tensors.iter().find(|(name, _)| *name == "out")?;
        let epilogue = epilogue.bind(out.py()).cast::<EpilogueArguments>().ok()?.clone();
        let main_output = || {
            let tensor = epilogue.get().main_output(out.py())?;
            if tensor.is(*out) {
                return Ok(tensor);
            }
            let ((_, out), (_, main)) =
                (unwrapped("out", out, |_| ())?, unwrapped(MAIN_OUTPUT, &tensor, |_| ())?);
            let (shape, out_shape) = (main.user_shape().to_vec(), out.user_shape().to_vec());
            match shape == out_shape {
                true => Ok(tensor),
                false => {
                    Err(ProblemError::OutputShape { name: MAIN_OUTPUT, shape, out_shape }.into())
                }
            }
        };
        Some(main_output().map(|main_output| Fusing { epilogue, main_output }))
    }

    #[cold]
    fn behind(self, problem: &Problem) -> PyResult<Box<(Py<EpilogueArguments>, BoundEpilogue)>> {
        let bound = self.epilogue.get().bind(problem)?;
        Ok(Box::new((self.epilogue.unbind(), bound)))
    }
}

/// The operand in a tensor, a `DenseTensor` or a `ScaledTensor`, with which `scaled` is called.
fn unwrapped(
    name: &'static str,
    tensor: &Bound<'_, PyAny>,
    scaled: impl FnOnce(Py<ScaledTensor>),
) -> PyResult<(Operand, View)> {
    if let Ok(dense) = tensor.cast::<DenseTensor>() {
        return Operand::new(name, &dense.get().object(tensor.py()));
    }
    if let Ok(wrapped) = tensor.cast::<ScaledTensor>() {
        scaled(wrapped.clone().unbind());
        return Operand::new(name, &wrapped.get().base.get().object(tensor.py()));
    }
    Operand::new(name, tensor)
}
