//! `EpilogueArguments`: an epilogue function with its operands, which each launch binds to a
//! problem.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use pyo3::{PyTraverseError, PyVisit};

use super::dtype;
use super::parameter::{NamedOperand, Parameter, describe, operands, parameter, traverse};
use super::prologue::{PrologueArguments, PrologueFunction};
use super::replace::{in_memory, replacement};
use super::tensors::{ScaledTensor, TensorWrapper};
use super::trace::{TracedEpilogue, number, trace_epilogue};
use super::utils::class_name;
use crate::epilogue::{
    ACTIVATIONS, BlockScale, BoundEpilogue, ExpressionGraph, MAIN_OUTPUT, Number, Scaling,
    intern_name,
};
use crate::operand::{DType, Operand, View};
use crate::problem::{
    ElementwiseProblem, GemmProblem, OperandValue, Problem, ProblemError, PrologueOperands, fuse,
    precede,
};

/// An epilogue function with its operands.
///
/// epilogue_fn: a Python function, or its source as a string. Its first parameter is `accum`, the
/// accumulated product. One of the names that it returns is `D`, the main output. Every other
/// parameter and every returned name is a keyword of this constructor.
///
/// A parameter takes a number, which each launch passes to the kernel, or a tensor of any dtype and
/// strides. The tensor has the output's shape, or extent 1 in the dimensions along which it is
/// broadcast: (1, N), (N,), (M, 1), or a single element. In a GEMM with groups along M, a tensor of
/// shape (G, 1, N) or (G, 1, 1) has a row or an element for each group, such as a bias. An output
/// takes a writable tensor of the output's shape. Behind a GEMM, the tensor of a reduction such as
/// `sum(x, dim)` or `max(x, dim)` has extent 1 in the reduced dimensions, or omits them: (M, 1) or
/// (M,) for dim=-1, and one element without `dim`. `D` is normally the tensor that the operation's
/// arguments call `out`. If the two differ, the kernel writes `D`.
///
/// Behind a GEMM of a list of matrices B, a parameter also takes a list of contiguous vectors
/// (N_i,) of one dtype, one for the columns of each matrix.
///
/// A kernel is specialized for each tensor's dtype, and for broadcast and contiguity along the
/// output's last two dimensions. Other strides are launch parameters. `supports` returns whether a
/// kernel can run with other tensors.
///
/// The epilogue computes in float32, in float64 for a float64 accumulator, and in int32 for
/// operations among integers. It rounds once, when it stores a value. The summation order of a
/// reduction depends only on the kernel and the shape.
///
/// Raises ValueError if a name is missing or unknown. Raises ValueError with the source line for
/// unsupported Python code, and SyntaxError for source that does not parse.
#[pyclass(module = "cutlass_api.arguments", subclass, frozen)]
pub struct EpilogueArguments {
    /// The function or source that was passed.
    #[pyo3(get)]
    pub(super) epilogue_fn: Py<PyAny>,
    /// The function as an expression graph.
    #[pyo3(get)]
    pub(super) traced_epilogue: Py<TracedEpilogue>,
    /// A prologue function that precedes the epilogue. Its operands follow the epilogue's.
    pub(super) prologue: Option<PrologueFunction>,
    pub(super) operands: Vec<NamedOperand>,
}

#[pymethods]
impl EpilogueArguments {
    #[new]
    #[pyo3(signature = (epilogue_fn, **kwargs))]
    fn new(
        py: Python<'_>,
        epilogue_fn: &Bound<'_, PyAny>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<EpilogueArguments> {
        let traced_epilogue = trace_epilogue(py, epilogue_fn)?;
        let operands = operands(&traced_epilogue.get().graph, kwargs)?;
        Ok(EpilogueArguments {
            epilogue_fn: epilogue_fn.clone().unbind(),
            traced_epilogue,
            prologue: None,
            operands,
        })
    }

    /// For the garbage collector: the function may be a method of an object that holds the
    /// arguments.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.epilogue_fn)?;
        visit.call(&self.traced_epilogue)?;
        visit.call(self.prologue.as_ref().map(|prologue| &prologue.traced))?;
        traverse(&self.operands, &visit)
    }

    /// The operands: inputs in the order of the parameters, then outputs in the order of the
    /// return.
    #[getter]
    fn parameters(&self, py: Python<'_>) -> Vec<Py<PyAny>> {
        self.operands.iter().map(|(_, object, _)| object.clone_ref(py)).collect()
    }

    /// The names of `parameters`.
    #[getter]
    fn parameter_names(&self) -> Vec<&'static str> {
        self.operands.iter().map(|(name, ..)| *name).collect()
    }

    /// The tensors among `parameters`, by name.
    #[getter]
    fn tensors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let tensors = PyDict::new(py);
        for (name, object, parameter) in &self.operands {
            if let Parameter::Tensor(..) = parameter {
                tensors.set_item(name, object)?;
            }
        }
        Ok(tensors)
    }

    /// The tensors among `parameters`, by name, each as a `TensorWrapper`.
    fn to_tensor_wrappers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let wrappers = PyDict::new(py);
        for (name, object, parameter) in &self.operands {
            if let Parameter::Tensor(..) = parameter {
                wrappers.set_item(name, TensorWrapper::of(name, object.bind(py))?)?;
            }
        }
        Ok(wrappers)
    }

    /// The expression graph of the function, the same object as `traced_epilogue`. The constructor
    /// has traced the function; a call with parameters also checks the operands.
    ///
    /// accumulator_shape: the shape of the accumulated product; None: the shape of `D`.
    /// accumulator_type: the dtype of the accumulator; None: float32.
    ///
    /// Raises ValueError if `D` has another shape or an operand does not broadcast to the shape,
    /// TypeError if `accumulator_type` is no dtype.
    #[pyo3(signature = (accumulator_shape = None, accumulator_type = None))]
    fn trace(
        &self,
        py: Python<'_>,
        accumulator_shape: Option<Vec<i64>>,
        accumulator_type: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<TracedEpilogue>> {
        if accumulator_shape.is_some() || accumulator_type.is_some() {
            let accumulator = accumulator_type.map_or(Ok(DType::F32), dtype::accumulator_type)?;
            let problem = self.problem(accumulator)?;
            let out_shape = accumulator_shape.unwrap_or(problem.out().user_shape().to_vec());
            if problem.out().user_shape() != out_shape {
                let shape = problem.out().user_shape().to_vec();
                return Err(
                    ProblemError::OutputShape { name: MAIN_OUTPUT, shape, out_shape }.into()
                );
            }
            self.bind(&problem)?;
        }
        Ok(self.traced_epilogue.clone_ref(py))
    }

    fn __repr__(slf: &Bound<'_, Self>) -> String {
        let (class, this) = (class_name(slf.as_any()), slf.get());
        format!("<{class} {}:{}>", this.traced_epilogue.get().graph, describe(&this.operands))
    }
}

fn main_output_is_no_tensor() -> PyErr {
    PyValueError::new_err("D is the main output of the epilogue and must be a tensor")
}

impl EpilogueArguments {
    /// The epilogue of scaled operands: `user`, or none, behind the scaled accumulator. `scaled`:
    /// index among the problem's operands, 0 for A and 1 for B, and the operand. The error says why
    /// kernels do not read the scales.
    pub fn of_scaled(
        py: Python<'_>,
        user: Option<&EpilogueArguments>,
        scaled: &[(usize, Py<ScaledTensor>)],
    ) -> PyResult<Result<EpilogueArguments, String>> {
        let plain = ExpressionGraph::of_accumulator();
        let graph = user.map_or(&plain, |user| &user.traced_epilogue.get().graph);
        let mut operands = Vec::new();
        for (name, object, parameter) in user.into_iter().flat_map(|user| &user.operands) {
            operands.push((*name, object.clone_ref(py), parameter.clone_ref(py)));
        }
        let mut scaling = Scaling { is_of_operands: true, ..Scaling::default() };
        let (mut parameters, mut factors) = (Vec::new(), Vec::new());
        for (at, tensor) in scaled {
            let tensor = tensor.get();
            let (side, of) = match at {
                0 => ("a", &mut scaling.a),
                1 => ("b", &mut scaling.b),
                _ => return Ok(Err("kernels scale A and B only".to_owned())),
            };
            let ([extent, depth], is_swizzled) = match tensor.layout(py)? {
                Ok(layout) => layout,
                Err(reason) => return Ok(Err(reason)),
            };
            let mut added = tensor.scales(py).into_iter().zip(["scale", "zero", "factor"]).map(
                |(object, kind)| -> PyResult<Option<u32>> {
                    let Some(object) = object else { return Ok(None) };
                    let mut name = format!("{kind}_{side}");
                    while graph.inputs.contains(&name)
                        || graph.outputs.iter().any(|output| output.name == name)
                    {
                        name.push('_');
                    }
                    let name = intern_name(&name);
                    operands.push((name, object.clone().unbind(), parameter(name, &object)?));
                    parameters.push(name);
                    Ok(Some((graph.inputs.len() + parameters.len() - 1) as u32))
                },
            );
            let mut next = || added.next().transpose().map(Option::flatten);
            let (scale, zero) = (next()?.unwrap_or_default(), next()?);
            factors.extend(next()?);
            *of = Some(BlockScale { scale, zero, extent, depth, is_swizzled });
        }
        let Some(graph) = graph.with_scaled_operands(scaling, &parameters, &factors) else {
            return Ok(Err("the epilogue calls scale_blocks, too".to_owned()));
        };
        let epilogue_fn = user.map_or(py.None(), |user| user.epilogue_fn.clone_ref(py));
        let traced_epilogue = Py::new(py, TracedEpilogue::of(graph))?;
        let prologue = user.and_then(|user| user.prologue.as_ref());
        let prologue = prologue.map(|prologue| prologue.clone_ref(py));
        Ok(Ok(EpilogueArguments { epilogue_fn, traced_epilogue, prologue, operands }))
    }

    /// A prologue in front of `user`, or of an epilogue that stores the product.
    ///
    /// # Errors
    /// If an operand of both has the same name.
    pub fn behind(
        py: Python<'_>,
        user: Option<&EpilogueArguments>,
        prologue: &PrologueArguments,
    ) -> PyResult<EpilogueArguments> {
        let mut operands = Vec::new();
        for (name, object, parameter) in user.into_iter().flat_map(|user| &user.operands) {
            let same_name = prologue.operands.iter().find(|(other, ..)| other == name);
            if same_name.is_some_and(|(_, other, of_other)| match (parameter, of_other) {
                (Parameter::Tensor(_, view), Parameter::Tensor(_, of_other)) => {
                    !other.is(object) && (view.fake || view != of_other)
                }
                _ => true,
            }) {
                return Err(PyValueError::new_err(format!(
                    "the prologue and the epilogue both have an operand {name}; rename one of them, or \
                     pass the same tensor to both"
                )));
            }
            operands.push((*name, object.clone_ref(py), parameter.clone_ref(py)));
        }
        let is_new = |(name, ..): &&NamedOperand| !operands.iter().any(|(known, ..)| known == name);
        let new: Vec<_> = prologue.operands.iter().filter(is_new).collect();
        for (name, object, parameter) in new {
            operands.push((*name, object.clone_ref(py), parameter.clone_ref(py)));
        }
        let traced_epilogue = match user {
            Some(user) => user.traced_epilogue.clone_ref(py),
            None => Py::new(py, TracedEpilogue::of(ExpressionGraph::of_accumulator()))?,
        };
        let epilogue_fn = user.map_or(py.None(), |user| user.epilogue_fn.clone_ref(py));
        let prologue = Some(prologue.function(py));
        Ok(EpilogueArguments { epilogue_fn, traced_epilogue, prologue, operands })
    }

    /// The scales of an operand in place of those that `of_scaled` added for an operand of this
    /// index, by their names. Names differ from the user's by underscores behind them.
    pub fn scales_of<'py>(
        &self,
        py: Python<'py>,
        at: usize,
        tensor: &ScaledTensor,
    ) -> Vec<(&'static str, Bound<'py, PyAny>)> {
        let plain = [["scale_a", "zero_a", "factor_a"], ["scale_b", "zero_b", "factor_b"]][at];
        let named = tensor.scales(py).into_iter().zip(plain).filter_map(|(object, plain)| {
            let mut names = self.operands.iter().map(|(name, ..)| *name);
            Some((names.rfind(|name| name.trim_end_matches('_') == plain)?, object?))
        });
        named.collect()
    }

    /// A problem with the output D, from inputs without memory.
    fn problem(&self, accumulator: DType) -> PyResult<Problem> {
        let out = match self.operands.iter().find(|(name, ..)| *name == MAIN_OUTPUT) {
            Some((.., Parameter::Tensor(_, view))) => *view,
            _ => return Err(main_output_is_no_tensor()),
        };
        let input = |shape: [i64; 3]| View { fake: true, data: 0, shape, ..out };
        let [batch, m, n] = out.shape;
        Ok(match out.rank {
            0 | 1 => {
                let [a, b] = [input(out.shape); 2];
                Problem::Elementwise(ElementwiseProblem { a, b, out })
            }
            _ => {
                // The argument of `product` has B's shape, dtype and strides.
                let factor = self.traced_epilogue.get().graph.factor();
                let factor = factor.and_then(|at| match &self.operands.get(at)?.2 {
                    Parameter::Tensor(_, view) => Some(*view),
                    Parameter::Number(_) | Parameter::List(_) => None,
                });
                let (depth, of_b) = factor.map_or((1, None), |view| (view.shape[1], Some(view)));
                let a = input([batch, m, depth]);
                let b = of_b.map_or(input([batch, 1, n]), |view| View { fake: true, ..view });
                Problem::Gemm(GemmProblem { a, b, out, accumulator, ..GemmProblem::UNREAD })
            }
        })
    }

    /// The epilogue in words, as the metadata of kernels that fuse it has it: the outputs as
    /// expressions of the inputs, with the types of both. Assumes a floating-point accumulator.
    pub fn describe(&self) -> PyResult<String> {
        Ok(self.bind(&self.problem(DType::F32)?)?.epilogue.to_string())
    }

    /// The user's tensor for D.
    pub fn main_output<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.operands.iter().find(|(name, ..)| *name == MAIN_OUTPUT) {
            Some((_, object, Parameter::Tensor(..))) => Ok(object.bind(py).clone()),
            _ => Err(main_output_is_no_tensor()),
        }
    }

    /// Binds the epilogue to a problem, with the views of its operands from construction.
    pub fn bind(&self, problem: &Problem) -> PyResult<BoundEpilogue> {
        self.bind_with(problem, |_, number| number, |_, view| Ok(*view))
    }

    /// Binds the epilogue to a problem, with the current views of its operands.
    pub fn bind_current(
        &self,
        py: Python<'_>,
        problem: &Problem,
        stream: Option<u64>,
    ) -> PyResult<BoundEpilogue> {
        let view =
            |operand: &Operand, _: &View| in_memory(operand.name, operand.reread(py, stream)?);
        self.bind_with(problem, |_, number| number, view)
    }

    /// Binds the epilogue to a problem, with `replacements` for some operands and the current views
    /// of the others.
    pub fn bind_replaced(
        &self,
        py: Python<'_>,
        problem: &Problem,
        stream: Option<u64>,
        replacements: &Bound<'_, PyDict>,
    ) -> PyResult<BoundEpilogue> {
        let mut numbers = Vec::new();
        for (key, object) in replacements {
            let key = key.to_string();
            let bound = self.operands.iter().find(|(name, ..)| *name == key && key != MAIN_OUTPUT);
            match bound {
                Some((name, _, Parameter::Number(_))) => match parameter(name, &object)? {
                    Parameter::Number(number) => numbers.push((*name, number)),
                    Parameter::Tensor(..) | Parameter::List(_) => {
                        let message = format!(
                            "{name} was bound as a number; a tensor in its place needs another \
                             kernel"
                        );
                        return Err(PyValueError::new_err(message));
                    }
                },
                Some((name, _, Parameter::Tensor(..))) if !matches!(number(&object), Ok(None)) => {
                    let message = format!(
                        "{name} was bound as a tensor; a number in its place needs another kernel"
                    );
                    return Err(PyValueError::new_err(message));
                }
                Some(_) => {}
                None => {
                    let names = self
                        .operands
                        .iter()
                        .map(|(name, ..)| *name)
                        .filter(|name| *name != MAIN_OUTPUT);
                    return Err(PyTypeError::new_err(format!(
                        "the bound arguments have no operand '{key}'; their epilogue has {}, and D \
                         is passed as out",
                        names.collect::<Vec<_>>().join(", ")
                    )));
                }
            }
        }
        let number = |name: &str, bound: Number| {
            numbers.iter().find(|(new, _)| *new == name).map_or(bound, |(_, number)| *number)
        };
        self.bind_with(problem, number, |operand, bound| {
            match replacements.get_item(operand.name)? {
                Some(tensor) if operand.name != MAIN_OUTPUT => {
                    replacement(operand.name, bound, &tensor)
                }
                _ => in_memory(operand.name, operand.reread(py, stream)?),
            }
        })
    }

    /// Whether an operand of the epilogue has this name.
    pub fn has_operand(&self, name: &str) -> bool {
        self.operands.iter().any(|(operand, ..)| *operand == name)
    }

    fn bind_with(
        &self,
        problem: &Problem,
        number: impl Fn(&str, Number) -> Number,
        view: impl Fn(&Operand, &View) -> PyResult<View>,
    ) -> PyResult<BoundEpilogue> {
        let graph = &self.traced_epilogue.get().graph;
        let operand = |wanted: &str| -> PyResult<(&'static str, OperandValue)> {
            match self.operands.iter().find(|(name, ..)| *name == wanted) {
                Some((name, _, Parameter::Tensor(operand, as_read))) => {
                    Ok((*name, OperandValue::Tensor(view(operand, as_read)?)))
                }
                Some((name, _, Parameter::Number(bound))) => {
                    Ok((*name, OperandValue::Number(number(name, *bound))))
                }
                Some((name, _, Parameter::List(_))) => Err(ProblemError::ListOfOne { name }.into()),
                None => Err(PyValueError::new_err(format!("Argument {wanted} is not provided"))),
            }
        };
        let inputs = graph.inputs.iter().map(|name| operand(name)).collect::<PyResult<Vec<_>>>()?;
        let outputs = graph.outputs.iter().map(|output| match output.name.as_str() {
            // The problem has already checked its output.
            MAIN_OUTPUT => Ok((MAIN_OUTPUT, OperandValue::Tensor(*problem.out()))),
            other => operand(other),
        });
        let outputs = outputs.collect::<PyResult<Vec<_>>>()?;
        let bound = fuse(problem, problem.accumulator(), graph, &inputs, &outputs)?;
        let Some(prologue) = &self.prologue else { return Ok(bound) };
        let PrologueFunction { traced, dtype } = prologue;
        let (graph, dtype) = (&traced.get().graph, *dtype);
        let inputs = graph.inputs.iter().map(|name| operand(name)).collect::<PyResult<Vec<_>>>()?;
        let outputs = graph.outputs.iter().map(|output| match output.name.as_str() {
            ACTIVATIONS => Ok((ACTIVATIONS, OperandValue::Tensor(*problem.views()[0]))),
            other => operand(other),
        });
        let outputs = outputs.collect::<PyResult<Vec<_>>>()?;
        let operands = PrologueOperands { graph, dtype, inputs: &inputs, outputs: &outputs };
        Ok(precede(problem, bound, &operands)?)
    }

    /// Whether the views of all tensors except the main output are still valid.
    #[inline(never)]
    pub fn is_unchanged(&self, py: Python<'_>) -> PyResult<bool> {
        for (name, _, parameter) in &self.operands {
            if let Parameter::Tensor(operand, view) = parameter
                && *name != MAIN_OUTPUT
                && !operand.matches_view(py, view)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
