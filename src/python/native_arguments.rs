//! The arguments of built-in kernels: operands, problem, epilogue, and the launch to repeat.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrayvec::ArrayVec;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::{PyTraverseError, PyVisit};

use super::dispatch::AutogradQuery;
use super::epilogue::EpilogueArguments;
use super::joint::matrices_of;
use super::parameter::Parameter;
use super::prologue::PrologueArguments;
use super::tensors::{DenseTensor, ScaledTensor};
use crate::epilogue::{BoundEpilogue, MAIN_OUTPUT};
use crate::launch::PreparedLaunch;
use crate::operand::{self, DType, Operand, View};
use crate::problem::{MOST_VIEWS, Problem, ProblemError};

/// Arguments of built-in kernels.
pub struct NativeArguments {
    pub operands: ArrayVec<Operand, MOST_VIEWS>,
    pub problem: Problem,
    /// The epilogue as the user passed it.
    pub epilogue: Option<Py<PyAny>>,
    /// The prologue, which `fused` contains.
    pub prologue: Option<Py<PrologueArguments>>,
    /// The epilogue bound to the problem, if it is `EpilogueArguments`, a prologue precedes it or
    /// operands have scales.
    pub fused: Option<Box<(Py<EpilogueArguments>, BoundEpilogue)>>,
    /// The operands with scales.
    pub scaled: Option<Box<ScaledOperands>>,
    /// Whether an object with `__cutlass_operand__` stands for an operand or the epilogue, or the
    /// core does not know the class of the epilogue.
    pub has_stand_ins: bool,
    /// The matrices B of a joint GEMM, as the user passed them.
    pub matrices: Option<Py<PyAny>>,
    /// The kernel of the last run on unchanged operands. The kernel can address the operands.
    pub last_run: LastKernel,
    /// The kernel of the last successful `supports`.
    pub last_supported: LastKernel,
    /// The launch that later runs on unchanged operands repeat. Boxed, so that arguments that run
    /// once do not allocate it.
    kept: OnceLock<Box<KeptLaunch>>,
}

/// Operands with scales, which `NativeArguments::fused` applies unless no kernel reads them.
#[derive(Default)]
pub struct ScaledOperands {
    /// Index among the operands, and the user's `ScaledTensor`.
    pub tensors: Vec<(usize, Py<ScaledTensor>)>,
    /// Why no built-in kernel reads the scales.
    pub refusal: Option<String>,
}

/// A launch on unchanged operands, with its kernel and artifact.
pub struct KeptLaunch {
    pub kernel: Py<PyAny>,
    pub artifact: Py<PyAny>,
    pub rounds_to_tf32: bool,
    pub launch: PreparedLaunch,
}

/// The position of a built-in kernel, as `kernel::at` counts, or `NONE`.
pub struct LastKernel(AtomicUsize);

impl Default for LastKernel {
    fn default() -> LastKernel {
        LastKernel(AtomicUsize::new(LastKernel::NONE))
    }
}

impl LastKernel {
    const NONE: usize = usize::MAX;

    pub fn is(&self, position: usize) -> bool {
        self.0.load(Ordering::Relaxed) == position
    }

    pub fn is_none(&self) -> bool {
        self.is(LastKernel::NONE)
    }

    pub fn note(&self, position: usize) {
        self.0.store(position, Ordering::Relaxed);
    }
}

impl NativeArguments {
    /// Arguments before `read`.
    pub fn unread(problem: Problem, epilogue: Option<Py<PyAny>>) -> NativeArguments {
        NativeArguments {
            operands: ArrayVec::new(),
            problem,
            epilogue,
            prologue: None,
            fused: None,
            scaled: None,
            has_stand_ins: false,
            matrices: None,
            last_run: LastKernel::default(),
            last_supported: LastKernel::default(),
            kept: OnceLock::new(),
        }
    }

    /// The operands.
    pub fn objects<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyAny>> {
        self.operands.iter().map(|operand| operand.object.bind(py).clone()).collect()
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        for operand in &self.operands {
            visit.call(&operand.object)?;
        }
        visit.call(&self.epilogue)?;
        visit.call(&self.matrices)?;
        visit.call(&self.prologue)?;
        if let Some(fused) = &self.fused {
            visit.call(&fused.0)?;
        }
        for (_, wrapped) in self.scaled.iter().flat_map(|scaled| &scaled.tensors) {
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
        let py = tensors[0].1.py();
        if self.epilogue.is_some() {
            self.convert_epilogue(py)?;
        }
        let unbound = self
            .epilogue
            .as_ref()
            .and_then(|epilogue| UnboundEpilogue::of(epilogue, &tensors))
            .transpose()?;
        let matrices = matrices_in(&tensors)?;
        for ((name, mut tensor), view) in tensors.into_iter().zip(self.problem.views_mut()) {
            if let (Some(matrices), "B") = (&matrices, name) {
                tensor = &matrices[0];
            }
            if let (Some(unbound), "out") = (&unbound, name) {
                tensor = &unbound.main_output;
            }
            let operand = match Operand::of_known_type(name, tensor) {
                Some(plain) => {
                    plain.read(tensor.py(), view)?;
                    plain
                }
                None => {
                    self.has_stand_ins |= tensor.hasattr(intern!(py, "__cutlass_operand__"))?;
                    let at = self.operands.len();
                    let scaled =
                        |wrapped| self.scaled.get_or_insert_default().tensors.push((at, wrapped));
                    let (operand, read) = unwrapped(name, tensor, scaled)?;
                    *view = read;
                    operand
                }
            };
            self.operands.push(operand);
        }
        if let Some(matrices) = matrices {
            self.bind_matrices(tensors[1].1, &matrices, unbound)?;
            return self.bind_prologue(py);
        }
        self.problem.check()?;
        self.fused = unbound.map(|unbound| unbound.bind(&self.problem)).transpose()?;
        if self.prologue.is_some() {
            self.bind_prologue(py)?;
        }
        if self.scaled.is_some() {
            self.bind_scales(py)?;
        }
        Ok(())
    }

    /// Replaces an epilogue that stands for `EpilogueArguments`, as an operand may.
    #[cold]
    fn convert_epilogue(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(epilogue) = &self.epilogue else { return Ok(()) };
        let convert = epilogue.bind(py).getattr_opt(intern!(py, "__cutlass_operand__"))?;
        if let Some(convert) = convert {
            self.epilogue = Some(convert.call0()?.unbind());
            self.has_stand_ins = true;
        } else if !epilogue.bind(py).is_instance_of::<EpilogueArguments>() {
            self.has_stand_ins = true;
        }
        Ok(())
    }

    /// Binds the further matrices B of a joint GEMM in front of the user's epilogue. `list`: all
    /// matrices as the user passed them.
    #[cold]
    fn bind_matrices(
        &mut self,
        list: &Bound<'_, PyAny>,
        matrices: &[Bound<'_, PyAny>],
        unbound: Option<UnboundEpilogue<'_>>,
    ) -> PyResult<()> {
        let py = list.py();
        if self.scaled.is_some() {
            return Err(PyValueError::new_err(
                "B is a list of matrices, and an operand has scales; pass one matrix B",
            ));
        }
        let user = unbound.map(|unbound| unbound.epilogue);
        let epilogue =
            EpilogueArguments::of_matrices(py, user.as_ref().map(|user| user.get()), matrices)?;
        let Problem::Gemm(gemm) = &mut self.problem else {
            return Err(ProblemError::JointOperation.into());
        };
        gemm.further_columns = epilogue.further_columns()?;
        self.problem.check()?;
        let bound = epilogue.bind(&self.problem)?;
        self.fused = Some(Box::new((Py::new(py, epilogue)?, bound)));
        self.matrices = Some(list.clone().unbind());
        Ok(())
    }

    /// Puts the prologue in front of the epilogue. Raises TypeError for an epilogue of a class that
    /// built-in kernels do not fuse, RuntimeError if an operand requires a gradient.
    #[cold]
    fn bind_prologue(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(prologue) = &self.prologue else { return Ok(()) };
        if let (Some(epilogue), None) = (&self.epilogue, &self.fused) {
            return Err(PyTypeError::new_err(format!(
                "epilogue is a {}; behind a prologue, pass EpilogueArguments",
                epilogue.bind(py).get_type().name()?
            )));
        }
        let of_prologue = prologue.get().operands.iter();
        let of_prologue = of_prologue.filter_map(|(name, _, parameter)| match parameter {
            Parameter::Tensor(operand, _) => Some((*name, operand)),
            Parameter::Number(_) | Parameter::List(_) => None,
        });
        let own = self.operands.iter().map(|operand| (operand.name, operand));
        let mut query = AutogradQuery::default();
        for (name, operand) in own.chain(of_prologue) {
            query.add(py, name, operand.object.bind(py))?;
            if query.wants_gradient {
                return Err(PyRuntimeError::new_err(format!(
                    "{name} requires a gradient, and a product with a prologue has none; build the \
                     arguments under torch.no_grad(), or pass {name}.detach()"
                )));
            }
        }
        let user = self.fused.as_ref().map(|fused| fused.0.get());
        let epilogue = EpilogueArguments::behind(py, user, prologue.get())?;
        let bound = epilogue.bind(&self.problem)?;
        self.fused = Some(Box::new((Py::new(py, epilogue)?, bound)));
        Ok(())
    }

    /// Puts the scales of operands in front of the epilogue, or records why no kernel reads them.
    #[cold]
    fn bind_scales(&mut self, py: Python<'_>) -> PyResult<()> {
        let Some(scaled) = &mut self.scaled else { return Ok(()) };
        let user = self.fused.as_ref().map(|fused| fused.0.get());
        scaled.refusal = match EpilogueArguments::of_scaled(py, user, &scaled.tensors)? {
            Err(reason) => Some(reason),
            Ok(epilogue) => match epilogue.bind(&self.problem) {
                Ok(bound) => {
                    self.fused = Some(Box::new((Py::new(py, epilogue)?, bound)));
                    None
                }
                Err(error) => Some(error.value(py).to_string()),
            },
        };
        Ok(())
    }

    /// The launch to repeat while the operands are unchanged.
    pub fn kept(&self) -> Option<&KeptLaunch> {
        self.kept.get().map(|kept| &**kept)
    }

    /// The scales of an operand that replaces the one at this position, by the names of the
    /// epilogue's operands. Raises ValueError for scales that the bound operand does not have.
    pub fn scales_of<'py>(
        &self,
        position: usize,
        new: &Bound<'py, ScaledTensor>,
    ) -> PyResult<Vec<(&'static str, Bound<'py, PyAny>)>> {
        let (py, name) = (new.py(), self.operands[position].name);
        let mut scaled = self.scaled.iter().flat_map(|scaled| &scaled.tensors);
        let bound = scaled.find(|(at, _)| *at == position).map(|(_, tensor)| tensor.get());
        let found = match (bound, &self.fused) {
            (Some(bound), Some(fused)) if bound.has_scales_like(py, new.get())? => {
                Some(fused.0.get().scales_of(py, position, new.get()))
            }
            _ => None,
        };
        found.ok_or_else(|| {
            let facts = new.get().facts_of_scales(py);
            PyValueError::new_err(format!(
                "{name} has scales {facts}, but the launch was bound for other ones"
            ))
        })
    }

    /// Keeps a launch unless one is kept already.
    pub fn keep(&self, launch: KeptLaunch) {
        let _ = self.kept.set(Box::new(launch));
    }

    /// Whether all operands, including the epilogue's, still have the memory and shape that they
    /// had at construction.
    #[inline(always)] // in every repeated launch
    pub fn are_unchanged(&self, py: Python<'_>) -> PyResult<bool> {
        for (operand, view) in self.operands.iter().zip(self.problem.views().iter()) {
            if !operand.matches_view(py, view)? {
                return Ok(false);
            }
        }
        match &self.fused {
            None => Ok(true),
            Some(fused) => fused.0.get().is_unchanged(py),
        }
    }

    /// The epilogue bound to a problem, with the current views of its operands.
    pub fn current_epilogue(
        &self,
        py: Python<'_>,
        problem: &Problem,
        stream: Option<u64>,
    ) -> PyResult<Option<BoundEpilogue>> {
        self.fused.as_ref().map(|fused| fused.0.get().bind_current(py, problem, stream)).transpose()
    }

    /// The epilogue bound to the problem, with the views from construction.
    pub fn bound_epilogue(&self) -> Option<&BoundEpilogue> {
        self.fused.as_ref().map(|fused| &fused.1)
    }

    /// The problem, or the product of the activations that the prologue computes.
    #[inline]
    pub fn product(&self) -> Cow<'_, Problem> {
        match self.prologue {
            None => Cow::Borrowed(&self.problem),
            Some(_) => self.product_of_activations(),
        }
    }

    #[cold]
    fn product_of_activations(&self) -> Cow<'_, Problem> {
        let epilogue = self.bound_epilogue().map(|bound| bound.epilogue);
        self.problem.of_activations(epilogue).map_or(Cow::Borrowed(&self.problem), Cow::Owned)
    }

    /// The problem with the current views of its operands. A changed problem is checked again.
    pub fn current_problem(&self, py: Python<'_>, stream: Option<u64>) -> PyResult<Problem> {
        self.problem_with(|_, operand| operand.reread(py, stream))
    }

    /// The problem with the views that `view` returns. A changed problem is checked again. Raises
    /// for the view of a FakeTensor.
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
        if let (1, Some(matrices)) = (position, &self.matrices) {
            return Ok(matrices.clone_ref(py));
        }
        let mut scaled = self.scaled.iter().flat_map(|scaled| &scaled.tensors);
        if let Some((_, wrapped)) = scaled.find(|(at, _)| *at == position) {
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

/// `EpilogueArguments` that are not bound to a problem yet.
struct UnboundEpilogue<'py> {
    epilogue: Bound<'py, EpilogueArguments>,
    /// The tensor passed for D: the output that the kernel writes.
    main_output: Bound<'py, PyAny>,
}

impl<'py> UnboundEpilogue<'py> {
    /// None for an epilogue of another class, which only a kernel written in Python can fuse.
    #[cold]
    fn of(
        epilogue: &Py<PyAny>,
        tensors: &[(&'static str, &Bound<'py, PyAny>)],
    ) -> Option<PyResult<UnboundEpilogue<'py>>> {
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
        Some(main_output().map(|main_output| UnboundEpilogue { epilogue, main_output }))
    }

    #[cold]
    fn bind(self, problem: &Problem) -> PyResult<Box<(Py<EpilogueArguments>, BoundEpilogue)>> {
        let bound = self.epilogue.get().bind(problem)?;
        Ok(Box::new((self.epilogue.unbind(), bound)))
    }
}

/// The matrices in B if it is a list or a tuple.
fn matrices_in<'py>(
    tensors: &[(&'static str, &Bound<'py, PyAny>)],
) -> PyResult<Option<Vec<Bound<'py, PyAny>>>> {
    let Some((_, b)) = tensors.iter().find(|(name, _)| *name == "B") else { return Ok(None) };
    matrices_of(b)
}

/// The operand in a tensor, a `DenseTensor` or a `ScaledTensor`. Calls `scaled` with the latter.
pub fn unwrapped(
    name: &'static str,
    tensor: &Bound<'_, PyAny>,
    scaled: impl FnOnce(Py<ScaledTensor>),
) -> PyResult<(Operand, View)> {
    if let Ok(dense) = tensor.cast::<DenseTensor>() {
        return Operand::new(name, &dense.get().object(tensor.py()));
    }
    if let Ok(wrapped) = tensor.cast::<ScaledTensor>() {
        scaled(wrapped.clone().unbind());
        return wrapped.get().base.get().operand(tensor.py(), name);
    }
    if let Some(weight) = tensor.getattr_opt(intern!(tensor.py(), "__cutlass_operand__"))? {
        return unwrapped(name, &weight.call0()?, scaled);
    }
    Operand::new(name, tensor)
}
