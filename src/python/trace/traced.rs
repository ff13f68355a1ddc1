//! A traced epilogue, and the cache of traced epilogues.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use super::scope::{ResolvedName, Scope};
use super::source::{Source, plain_function};
use super::tracer::Tracer;
use crate::epilogue::{ExpressionGraph, Node, Stage};
use crate::operand::OnceValue;

/// An epilogue or prologue function as an expression graph: its inputs, operations and outputs.
#[pyclass(module = "cutlass_api.fusion", frozen)]
pub struct TracedEpilogue {
    pub graph: ExpressionGraph,
    /// The names that the function takes from outside, such as torch's functions and dtypes, with
    /// the objects that they resolved to. Empty for a function that was passed as a string.
    resolved: Vec<ResolvedName>,
}

impl TracedEpilogue {
    /// A graph that depends on no names from outside.
    pub fn of(graph: ExpressionGraph) -> TracedEpilogue {
        TracedEpilogue { graph, resolved: Vec::new() }
    }

    /// Whether the outside names of a function with the same code resolve to the same objects.
    fn is_valid_for(&self, function: &Bound<'_, PyAny>) -> PyResult<bool> {
        if self.resolved.is_empty() {
            return Ok(true);
        }
        let scope = Scope::of(function)?;
        for ResolvedName { path, object } in &self.resolved {
            let current = scope.find(path)?;
            if current.as_ref().map(Bound::as_ptr) != object.as_ref().map(Py::as_ptr) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[pymethods]
impl TracedEpilogue {
    /// The parameters without the first one, in the function's order.
    #[getter]
    fn inputs(&self) -> Vec<&str> {
        self.graph.inputs.iter().map(String::as_str).collect()
    }

    /// The returned names, in the order of the return.
    #[getter]
    fn outputs(&self) -> Vec<&str> {
        self.graph.outputs.iter().map(|output| output.name.as_str()).collect()
    }

    /// Source of a function that computes the same, which epilogue operators take as a string.
    #[getter]
    fn source(&self) -> String {
        self.graph.source()
    }

    /// The operations in topological order, each as a tuple: its name, then the indices of the
    /// operations that it reads. ("accum",), ("A",), ("scale_blocks",), ("input", position of the
    /// parameter), ("product", position of the parameter) and ("number", value) read none; ("cast",
    /// dtype, index) has the dtype's name. ("sum", index), ("mean", index) and ("amax", index) of a
    /// prologue reduce over K.
    #[getter]
    fn nodes<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyTuple>>> {
        let tuple = |node: &Node| match *node {
            Node::Accumulator => ("accum",).into_pyobject(py),
            Node::ScaledAccumulator => ("scale_blocks",).into_pyobject(py),
            Node::Input(at) => ("input", at).into_pyobject(py),
            Node::Product(at) => ("product", at).into_pyobject(py),
            Node::Panel(at) => ("panel", at).into_pyobject(py),
            Node::Segment { input, .. } => ("segment", input).into_pyobject(py),
            Node::Integer(value) => ("number", value).into_pyobject(py),
            Node::Float(bits) => ("number", f64::from_bits(bits)).into_pyobject(py),
            Node::Unary(operation, of) => (operation.name(), of).into_pyobject(py),
            Node::Binary(operation, left, right) => {
                (operation.name(), left, right).into_pyobject(py)
            }
            Node::Compare(comparison, left, right) => {
                (comparison.record().symbol, left, right).into_pyobject(py)
            }
            Node::Select { condition, yes, no } => ("where", condition, yes, no).into_pyobject(py),
            Node::Cast(dtype, of) => ("cast", dtype.to_string(), of).into_pyobject(py),
            Node::Activation => ("A",).into_pyobject(py),
            Node::Reduce(reduction, of) => (reduction.names()[0], of).into_pyobject(py),
        };
        self.graph.nodes.iter().map(tuple).collect()
    }

    /// Each output's name, the index of its operation in `nodes`, and whether it is reduced.
    #[getter]
    fn results(&self) -> Vec<(&str, u32, bool)> {
        let outputs = self.graph.outputs.iter();
        outputs.map(|output| (output.name.as_str(), output.node, output.fold.is_some())).collect()
    }

    /// The outputs as expressions of the inputs.
    fn __str__(&self) -> String {
        self.graph.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<TracedEpilogue {}>", self.graph)
    }
}

/// Translates an epilogue function into an expression graph. `epilogue_fn` is a Python function or
/// its source as a string. The result is cached.
///
/// Raises ValueError with the source line for unsupported Python code, and SyntaxError for source
/// that does not parse.
#[pyfunction]
pub fn trace_epilogue(
    py: Python<'_>,
    epilogue_fn: &Bound<'_, PyAny>,
) -> PyResult<Py<TracedEpilogue>> {
    trace_function(py, epilogue_fn, Stage::Epilogue)
}

/// Translates an epilogue or prologue function into an expression graph. The result is cached.
pub fn trace_function(
    py: Python<'_>,
    epilogue_fn: &Bound<'_, PyAny>,
    stage: Stage,
) -> PyResult<Py<TracedEpilogue>> {
    // Keyed by source string or code object. Code objects are equal for functions of the same text
    // at the same place in a file. Each key has a list, because such functions differ if their
    // outside names resolve to different objects.
    static CACHES: [OnceValue<Py<PyDict>>; 2] = [OnceValue::new(), OnceValue::new()];
    let cache = &CACHES[usize::from(stage == Stage::Prologue)];
    let cache = cache.get_or_init(py, || PyDict::new(py).unbind()).bind(py);
    let is_text = epilogue_fn.is_instance_of::<PyString>();
    let key = match is_text {
        true => epilogue_fn.clone(),
        false => plain_function(epilogue_fn)?.getattr(intern!(py, "__code__"))?,
    };
    let cached = match cache.get_item(&key)? {
        Some(cached) => cached.cast_into::<PyList>()?,
        None => PyList::empty(py),
    };
    for traced in &cached {
        let traced = traced.cast::<TracedEpilogue>()?;
        if traced.get().is_valid_for(epilogue_fn)? {
            return Ok(traced.clone().unbind());
        }
    }
    let source =
        if is_text { Source::of_text(epilogue_fn)? } else { Source::of_function(epilogue_fn)? };
    let (graph, resolved) = Tracer::new(&source, stage).trace(&source.definition()?)?;
    let traced = Py::new(py, TracedEpilogue { graph, resolved })?;
    cached.append(&traced)?;
    cache.set_item(key, cached)?;
    Ok(traced)
}
