//! From a Python function, or its source, to an expression graph: the function's syntax tree is walked node by node, and what is
//! not known here is refused with the user's own line.

use std::collections::HashMap;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyString};

use crate::epilogue::{
    ACCUMULATOR, Argument, Binary, Comparison, Graph, Id, MAIN_OUTPUT, Meaning, Node, Number, Output, Unary,
};
use crate::operand::DType;

/// An epilogue function as an expression graph: what it reads, what it computes, what it returns.
#[pyclass(module = "cutlass_api.fusion", frozen)]
pub struct TracedEpilogue {
    pub graph: Graph,
}

#[pymethods]
impl TracedEpilogue {
    /// The parameters, without the accumulator, in the function's order.
    #[getter]
    fn inputs(&self) -> Vec<&str> {
        self.graph.inputs.iter().map(String::as_str).collect()
    }

    /// The returned names, in the order returned.
    #[getter]
    fn outputs(&self) -> Vec<&str> {
        self.graph.outputs.iter().map(|output| output.name.as_str()).collect()
    }

    /// The outputs as expressions of the inputs.
    fn __str__(&self) -> String {
        self.graph.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<TracedEpilogue {}>", self.graph)
    }
}

/// The graph of an epilogue function: of a Python function, or of its source as a string. Each is parsed once.
///
/// Raises ValueError, with the line, for what an epilogue cannot do; SyntaxError for source that does not parse.
#[pyfunction]
pub fn trace_epilogue(py: Python<'_>, epilogue_fn: &Bound<'_, PyAny>) -> PyResult<Py<TracedEpilogue>> {
    static TRACED: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let traced = TRACED.get_or_init(py, || PyDict::new(py).unbind()).bind(py);
    let key = if epilogue_fn.is_instance_of::<PyString>() {
        Some(epilogue_fn.clone())
    } else if epilogue_fn.hasattr("__wrapped__")? {
        None
    } else {
        // Equal for functions of the same text at the same place, however often they are defined.
        epilogue_fn.getattr_opt("__code__")?
    };
    if let Some(key) = &key
        && let Some(known) = traced.get_item(key)?
    {
        return Ok(known.cast::<TracedEpilogue>()?.clone().unbind());
    }
    let graph = Source::of(epilogue_fn)?.graph()?;
    let made = Py::new(py, TracedEpilogue { graph })?;
    if let Some(key) = key {
        traced.set_item(key, &made)?;
    }
    Ok(made)
}

/// The text of a function, and where its first line is.
struct Source<'py> {
    py: Python<'py>,
    text: String,
    /// The function's name and parameters, where it is one and not a string.
    function: Option<(String, Vec<String>)>,
    /// The number of the text's first line, in the file that it is from.
    first_line: usize,
    file: Option<String>,
}

impl<'py> Source<'py> {
    fn of(epilogue_fn: &Bound<'py, PyAny>) -> PyResult<Source<'py>> {
        let py = epilogue_fn.py();
        let dedent = |text: Bound<'py, PyAny>| -> PyResult<String> {
            py.import("textwrap")?.call_method1("dedent", (text,))?.extract()
        };
        if epilogue_fn.is_instance_of::<PyString>() {
            return Ok(Source { py, text: dedent(epilogue_fn.clone())?, function: None, first_line: 1, file: None });
        }
        if !epilogue_fn.is_callable() {
            let name = epilogue_fn.get_type().name()?;
            return Err(PyTypeError::new_err(format!("epilogue_fn is a {name}; give a function, or its source")));
        }
        let inspect = py.import("inspect")?;
        let lines = inspect.call_method1("getsourcelines", (epilogue_fn,)).map_err(|error| {
            let raised = PyValueError::new_err(format!(
                "the source of the epilogue function is not to be had ({}); give it as a string",
                error.value(py)
            ));
            raised.set_cause(py, Some(error));
            raised
        })?;
        let (lines, first_line): (Vec<String>, usize) = lines.extract()?;
        let file = inspect.call_method1("getsourcefile", (epilogue_fn,))?.extract()?;
        let text = dedent(PyString::new(py, &lines.concat()).into_any())?;
        let code = inspect.call_method1("unwrap", (epilogue_fn,))?.getattr("__code__")?;
        let variables: Vec<String> = code.getattr("co_varnames")?.extract()?;
        let count = ["co_argcount", "co_kwonlyargcount"]
            .into_iter()
            .map(|count| code.getattr(count)?.extract::<usize>())
            .sum::<PyResult<usize>>()?;
        let parameters = variables.into_iter().take(count).collect();
        let function = Some((code.getattr("co_name")?.extract()?, parameters));
        Ok(Source { py, text, function, first_line: first_line.max(1), file })
    }

    fn graph(&self) -> PyResult<Graph> {
        let ast = self.py.import("ast")?;
        let filename = self.file.as_deref().unwrap_or("<epilogue>");
        let tree = ast.call_method1("parse", (&self.text, filename))?;
        // Syntax errors found by the parser name its own line; a function's file is longer than the function.
        let mut functions = Vec::new();
        for node in tree.getattr("body")?.try_iter()? {
            let node = node?;
            if kind(&node)? == "FunctionDef" {
                functions.push(node);
            }
        }
        let [function] = functions.as_slice() else {
            let count = functions.len();
            return Err(PyValueError::new_err(format!(
                "an epilogue is one function definition, but its source holds {count}"
            )));
        };
        if let Some((expected, _)) = &self.function
            && *expected != text(function, "name")?
        {
            return Err(self.stale());
        }
        Walk { source: self, graph: Graph::default(), names: HashMap::new(), depth: 0 }.function(function)
    }

    fn stale(&self) -> PyErr {
        let file = self.file.as_deref().unwrap_or_default();
        PyValueError::new_err(format!(
            "the source of the epilogue function is not what {file} holds now; import it anew, or give it as a string"
        ))
    }

    /// An error with the line that a node is on.
    fn error(&self, node: &Bound<'_, PyAny>, message: &str) -> PyErr {
        let Ok(line) = node.getattr("lineno").and_then(|line| line.extract::<usize>()) else {
            return PyValueError::new_err(message.to_owned());
        };
        let text = self.text.lines().nth(line.saturating_sub(1)).unwrap_or_default().trim();
        let number = self.first_line + line - 1;
        let place = match &self.file {
            Some(file) => format!("{file}, line {number}"),
            None => format!("line {number}"),
        };
        PyValueError::new_err(format!("{message} ({place}: `{text}`)"))
    }
}

/// The class of a syntax tree's node.
fn kind(node: &Bound<'_, PyAny>) -> PyResult<String> {
    node.get_type().name()?.extract()
}

fn list<'py>(node: &Bound<'py, PyAny>, field: &str) -> PyResult<Vec<Bound<'py, PyAny>>> {
    node.getattr(field)?.try_iter()?.collect()
}

fn text(node: &Bound<'_, PyAny>, field: &str) -> PyResult<String> {
    node.getattr(field)?.extract()
}

/// A walk through one function.
struct Walk<'a, 'py> {
    source: &'a Source<'py>,
    graph: Graph,
    names: HashMap<String, Meaning>,
    /// Of the expression that is being walked.
    depth: usize,
}

/// How deep expressions may nest; a chain of as many operators is that deep.
const MAX_DEPTH: usize = 400;

impl<'py> Walk<'_, 'py> {
    fn function(mut self, function: &Bound<'py, PyAny>) -> PyResult<Graph> {
        self.parameters(function)?;
        let body = list(function, "body")?;
        let Some((last, statements)) = body.split_last() else {
            return Err(self.source.error(function, "an epilogue function ends with a return of its outputs' names"));
        };
        for (at, statement) in statements.iter().enumerate() {
            self.statement(statement, at == 0)?;
        }
        if kind(last)? != "Return" {
            return Err(self.source.error(last, "an epilogue function ends with a return of its outputs' names"));
        }
        self.outputs(last)?;
        Ok(self.graph)
    }

    fn parameters(&mut self, function: &Bound<'py, PyAny>) -> PyResult<()> {
        let arguments = function.getattr("args")?;
        let mut parameters = list(&arguments, "posonlyargs")?;
        parameters.extend(list(&arguments, "args")?);
        parameters.extend(list(&arguments, "kwonlyargs")?);
        let has_default =
            |field: &str| -> PyResult<bool> { Ok(list(&arguments, field)?.iter().any(|default| !default.is_none())) };
        if !arguments.getattr("vararg")?.is_none() || !arguments.getattr("kwarg")?.is_none() {
            return Err(self
                .source
                .error(function, "an epilogue function names its parameters; * and ** cannot be used"));
        }
        let names = parameters.iter().map(|parameter| text(parameter, "arg")).collect::<PyResult<Vec<_>>>()?;
        if self.source.function.as_ref().is_some_and(|(_, compiled)| *compiled != names) {
            return Err(self.source.stale());
        }
        if !names.iter().any(|name| name == ACCUMULATOR) {
            return Err(self.source.error(function, "accum must be an input to the epilogue function"));
        }
        if names[0] != ACCUMULATOR {
            let message = format!("accum must be the first input to the epilogue function, which is '{}'", names[0]);
            return Err(self.source.error(function, &message));
        }
        if has_default("defaults")? || has_default("kw_defaults")? {
            let message =
                "the parameters of an epilogue function have no defaults; give each as a keyword of EpilogueArguments";
            return Err(self.source.error(function, message));
        }
        for name in names {
            let node = if name == ACCUMULATOR {
                Node::Accumulator
            } else {
                self.graph.inputs.push(name.clone());
                Node::Input(self.graph.inputs.len() as u32 - 1)
            };
            let id = self.graph.add(node);
            self.names.insert(name, Meaning::Value(id));
        }
        Ok(())
    }

    fn statement(&mut self, statement: &Bound<'py, PyAny>, first: bool) -> PyResult<()> {
        let class = kind(statement)?;
        let target = match class.as_str() {
            "Assign" => match list(statement, "targets")?.as_slice() {
                [target] => target.clone(),
                _ => return Err(self.source.error(statement, "one name is assigned at a time")),
            },
            "AnnAssign" | "AugAssign" => statement.getattr("target")?,
            "Expr" if first && kind(&statement.getattr("value")?)? == "Constant" => return Ok(()),
            "Return" => {
                let message = "an epilogue function has one return, at its end";
                return Err(self.source.error(statement, message));
            }
            other => {
                let message = format!(
                    "{} cannot be used in an epilogue function, which assigns names and returns some",
                    described(other)
                );
                return Err(self.source.error(statement, &message));
            }
        };
        if kind(&target)? != "Name" {
            return Err(self.source.error(statement, "only plain names can be assigned in an epilogue function"));
        }
        let name = text(&target, "id")?;
        if self.names.contains_key(&name) || class == "AugAssign" {
            return Err(self.source.error(statement, &format!("Variable '{name}' cannot be defined twice.")));
        }
        let value = statement.getattr("value")?;
        if value.is_none() {
            return Err(self.source.error(statement, &format!("'{name}' is given no value")));
        }
        let meaning = self.meaning(&value)?;
        self.names.insert(name, meaning);
        Ok(())
    }

    fn outputs(&mut self, statement: &Bound<'py, PyAny>) -> PyResult<()> {
        let value = statement.getattr("value")?;
        let nodes = match kind(&value)?.as_str() {
            "Tuple" | "List" => list(&value, "elts")?,
            _ => vec![value],
        };
        for node in nodes {
            if node.is_none() || kind(&node)? != "Name" {
                return Err(self.source.error(statement, "an epilogue function returns names, not expressions"));
            }
            let name = text(&node, "id")?;
            if self.graph.outputs.iter().any(|output| output.name == name) {
                return Err(self.source.error(statement, &format!("'{name}' is returned twice")));
            }
            match self.names.get(&name) {
                Some(Meaning::Value(id)) => self.graph.outputs.push(Output { name, node: *id, fold: None }),
                Some(Meaning::Folded(..)) if name == MAIN_OUTPUT => {
                    let message =
                        "D is the main output, of the product's shape; return the reduction under another name";
                    return Err(self.source.error(statement, message));
                }
                Some(Meaning::Folded(fold, dims, id)) => {
                    self.graph.outputs.push(Output { name, node: *id, fold: Some((*fold, dims.clone())) });
                }
                None => return Err(self.unknown_name(&node, &name)),
            }
        }
        if !self.graph.outputs.iter().any(|output| output.name == MAIN_OUTPUT) {
            return Err(self.source.error(statement, "Output node D is not found in the epilogue function"));
        }
        Ok(())
    }

    fn unknown_name(&self, node: &Bound<'_, PyAny>, name: &str) -> PyErr {
        let message = format!("unknown name '{name}': an epilogue knows its parameters and what it has assigned");
        self.source.error(node, &message)
    }

    /// The value of an expression.
    fn value(&mut self, node: &Bound<'py, PyAny>) -> PyResult<Id> {
        match self.meaning(node)? {
            Meaning::Value(id) => Ok(id),
            Meaning::Folded(..) => {
                let message = "what a reduction along a dimension gives can be returned, and not be computed with";
                Err(self.source.error(node, message))
            }
        }
    }

    fn meaning(&mut self, node: &Bound<'py, PyAny>) -> PyResult<Meaning> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.source.error(node, "the expression is nested too deeply; name parts of it"));
        }
        let meaning = self.expression(node);
        self.depth -= 1;
        meaning
    }

    fn expression(&mut self, node: &Bound<'py, PyAny>) -> PyResult<Meaning> {
        let id = match kind(node)?.as_str() {
            "Name" => {
                let name = text(node, "id")?;
                return self.names.get(&name).cloned().ok_or_else(|| self.unknown_name(node, &name));
            }
            "Constant" => {
                let value = node.getattr("value")?;
                let number = number(&value).ok_or_else(|| {
                    let shown = value.repr().map_or_else(|_| "it".to_owned(), |text| text.to_string());
                    self.source.error(node, &format!("{shown} is no number"))
                })?;
                self.graph.number(number)
            }
            "UnaryOp" => {
                let operand = self.value(&node.getattr("operand")?)?;
                match kind(&node.getattr("op")?)?.as_str() {
                    "USub" => self.graph.unary(Unary::Negate, operand),
                    "UAdd" => operand,
                    other => return Err(self.operator(node, other)),
                }
            }
            "BinOp" => {
                let (left, right) = (self.value(&node.getattr("left")?)?, self.value(&node.getattr("right")?)?);
                let operation = match kind(&node.getattr("op")?)?.as_str() {
                    "Add" => Binary::Add,
                    "Sub" => Binary::Subtract,
                    "Mult" => Binary::Multiply,
                    "Div" => Binary::Divide,
                    "Pow" => return self.power(node, left, right).map(Meaning::Value),
                    other => return Err(self.operator(node, other)),
                };
                self.graph.binary(operation, left, right)
            }
            "Compare" => {
                let (operators, right) = (list(node, "ops")?, list(node, "comparators")?);
                let ([operator], [right]) = (operators.as_slice(), right.as_slice()) else {
                    return Err(self.source.error(node, "comparisons cannot be chained in an epilogue function"));
                };
                let comparison = match kind(operator)?.as_str() {
                    "Lt" => Comparison::Less,
                    "LtE" => Comparison::LessEqual,
                    "Gt" => Comparison::Greater,
                    "GtE" => Comparison::GreaterEqual,
                    "Eq" => Comparison::Equal,
                    "NotEq" => Comparison::NotEqual,
                    other => return Err(self.operator(node, other)),
                };
                let (left, right) = (self.value(&node.getattr("left")?)?, self.value(right)?);
                self.graph.add(Node::Compare(comparison, left, right))
            }
            "Call" => return self.call(node),
            "Attribute" if !self.is_method(node)? && self.check_module(node).is_ok() => {
                match text(node, "attr")?.as_str() {
                    "pi" => self.graph.number(Number::Float(std::f64::consts::PI)),
                    "e" => self.graph.number(Number::Float(std::f64::consts::E)),
                    "inf" => self.graph.number(Number::Float(f64::INFINITY)),
                    other => return Err(self.unknown_name(node, other)),
                }
            }
            "IfExp" => {
                let message = "a choice between values is written where(condition, a, b) in an epilogue function";
                return Err(self.source.error(node, message));
            }
            other => {
                let message = format!("{} cannot be used in an epilogue function", described(other));
                return Err(self.source.error(node, &message));
            }
        };
        Ok(Meaning::Value(id))
    }

    fn operator(&self, node: &Bound<'_, PyAny>, operator: &str) -> PyErr {
        let message =
            format!("the operator {operator} cannot be used in an epilogue function; + - * / and comparisons can");
        self.source.error(node, &message)
    }

    fn power(&mut self, node: &Bound<'py, PyAny>, base: Id, exponent: Id) -> PyResult<Id> {
        let (base_number, exponent) = (self.graph.constant(base), self.graph.constant(exponent).map(Number::value));
        match (base_number, exponent) {
            (Some(base), Some(exponent)) => Ok(self.graph.number(Number::Float(base.value().powf(exponent)))),
            (None, Some(2.0)) => Ok(self.graph.binary(Binary::Multiply, base, base)),
            (None, Some(0.5)) => Ok(self.graph.unary(Unary::Sqrt, base)),
            (None, Some(-0.5)) => Ok(self.graph.unary(Unary::Rsqrt, base)),
            _ => Err(self.source.error(node, "** raises values to 2, 0.5 or -0.5 in an epilogue function")),
        }
    }

    /// Whether the root of a dotted name is a value of this function, so that what follows is a method.
    fn is_method(&self, attribute: &Bound<'py, PyAny>) -> PyResult<bool> {
        let owner = attribute.getattr("value")?;
        match kind(&owner)?.as_str() {
            "Name" => Ok(self.names.contains_key(&text(&owner, "id")?)),
            "Attribute" => self.is_method(&owner),
            _ => Ok(true),
        }
    }

    /// That a dotted name begins with a module whose functions are known here. An object of the user's own, whose attribute happens to
    /// be called `exp` or `e`, is not what we would compute.
    fn check_module(&self, node: &Bound<'py, PyAny>) -> PyResult<()> {
        const MODULES: [&str; 11] =
            ["torch", "F", "functional", "nn", "math", "np", "numpy", "cutlass_api", "cutlass", "fusion", "activation"];
        let mut root = node.clone();
        while kind(&root)? == "Attribute" {
            root = root.getattr("value")?;
        }
        if kind(&root)? == "Name" && MODULES.contains(&text(&root, "id")?.as_str()) {
            return Ok(());
        }
        let message = format!(
            "{} belongs to something that an epilogue function does not know; it knows the functions of {}",
            text(node, "attr")?,
            MODULES.join(", ")
        );
        Err(self.source.error(node, &message))
    }

    fn call(&mut self, node: &Bound<'py, PyAny>) -> PyResult<Meaning> {
        let function = node.getattr("func")?;
        let mut positional = Vec::new();
        let name = match kind(&function)?.as_str() {
            "Name" => text(&function, "id")?,
            "Attribute" => {
                if self.is_method(&function)? {
                    positional.push(Argument::Value(self.value(&function.getattr("value")?)?));
                } else {
                    self.check_module(&function)?;
                }
                text(&function, "attr")?
            }
            _ => return Err(self.source.error(node, "functions are called by name in an epilogue function")),
        };
        for argument in list(node, "args")? {
            positional.push(self.argument(&argument)?);
        }
        let mut named = Vec::new();
        for keyword in list(node, "keywords")? {
            let Some(key) = keyword.getattr("arg")?.extract::<Option<String>>()? else {
                return Err(self.source.error(node, "** cannot be used in an epilogue function"));
            };
            named.push((key, self.argument(&keyword.getattr("value")?)?));
        }
        self.graph.call(&name, positional, named).map_err(|message| self.source.error(node, &message))
    }

    fn argument(&mut self, node: &Bound<'py, PyAny>) -> PyResult<Argument> {
        let word = match kind(node)?.as_str() {
            "Constant" => {
                let value = node.getattr("value")?;
                if value.is_none() {
                    return Ok(Argument::Nothing);
                }
                value.cast::<PyString>().ok().map(|text| text.to_string())
            }
            "Name" => Some(text(node, "id")?).filter(|name| !self.names.contains_key(name)),
            "Attribute" if !self.is_method(node)? => Some(text(node, "attr")?),
            "Tuple" | "List" => {
                let constant = |element: &Bound<'py, PyAny>| -> PyResult<i64> {
                    let id = self.value(element)?;
                    match self.graph.constant(id) {
                        Some(Number::Integer(dim)) => Ok(dim),
                        _ => Err(self.source.error(element, "brackets hold dimensions, which are integers")),
                    }
                };
                let dims = list(node, "elts")?.iter().map(constant).collect::<PyResult<_>>()?;
                return Ok(Argument::Integers(dims));
            }
            _ => None,
        };
        match word {
            Some(word) if kind(node)? == "Constant" || DType::from_name(&word).is_some() => Ok(Argument::Word(word)),
            _ => self.value(node).map(Argument::Value),
        }
    }
}

/// The number in a Python object, bool, int or float; None for anything else.
pub fn number(value: &Bound<'_, PyAny>) -> Option<Number> {
    if let Ok(truth) = value.cast::<PyBool>() {
        return Some(Number::Integer(truth.is_true().into()));
    }
    if value.is_instance_of::<PyInt>() {
        // What 64 bits do not hold is a float, as torch has it too.
        return value.extract::<i64>().map(Number::Integer).or_else(|_| value.extract().map(Number::Float)).ok();
    }
    value.cast::<PyFloat>().ok().map(|float| Number::Float(float.value()))
}

/// What messages call a piece of syntax.
fn described(class: &str) -> String {
    let words = match class {
        "For" | "While" => "a loop",
        "If" => "an if statement",
        "FunctionDef" | "Lambda" => "a function of its own",
        "Import" | "ImportFrom" => "an import",
        "Subscript" => "an index",
        "BoolOp" => "and/or",
        "NamedExpr" => ":=",
        "JoinedStr" => "an f-string",
        "Attribute" => "an attribute",
        other => return format!("Python's {other}"),
    };
    words.to_owned()
}
