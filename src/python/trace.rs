//! From a Python function, or its source, to an expression graph: the function's syntax tree is walked node by node, and what is
//! not known here is refused with the user's own line.

use std::collections::HashMap;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString};

use super::dtype;
use super::scope::{MODULES, Meant, Scope, known_function};
use super::source::{Source, kind, list, plain_function, text};
use crate::epilogue::{
    ACCUMULATOR, Argument, Binary, Comparison, Graph, Id, MAIN_OUTPUT, Meaning, Node, Number,
    Output, Unary,
};
use crate::operand::DType;

/// An epilogue function as an expression graph: what it reads, what it computes, what it returns.
#[pyclass(module = "cutlass_api.fusion", frozen)]
pub struct TracedEpilogue {
    pub graph: Graph,
    /// What the names in the function meant when it was read: torch's functions and types, and the like. None of a string.
    meanings: Vec<Meant>,
}

impl TracedEpilogue {
    /// Whether the names mean to a function of the same code what they meant when this was read.
    fn is_of(&self, function: &Bound<'_, PyAny>) -> PyResult<bool> {
        if self.meanings.is_empty() {
            return Ok(true);
        }
        let scope = Scope::of(function)?;
        for (names, meant) in &self.meanings {
            let means = scope.find(names)?;
            if means.as_ref().map(Bound::as_ptr) != meant.as_ref().map(Py::as_ptr) {
                return Ok(false);
            }
        }
        Ok(true)
    }
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

/// The graph of an epilogue function: of a Python function, or of its source as a string. Each is parsed once, for what its names mean.
///
/// Raises ValueError, with the line, for what an epilogue cannot do; SyntaxError for source that does not parse.
#[pyfunction]
pub fn trace_epilogue(
    py: Python<'_>,
    epilogue_fn: &Bound<'_, PyAny>,
) -> PyResult<Py<TracedEpilogue>> {
    // By source, or by code: equal for functions of the same text at the same place, however often they are defined. A list each, since
    // such functions may still differ in what their names mean.
    static TRACED: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    let traced = TRACED.get_or_init(py, || PyDict::new(py).unbind()).bind(py);
    let is_text = epilogue_fn.is_instance_of::<PyString>();
    let key = match is_text {
        true => epilogue_fn.clone(),
        false => plain_function(epilogue_fn)?.getattr(intern!(py, "__code__"))?,
    };
    let known = match traced.get_item(&key)? {
        Some(known) => known.cast_into::<PyList>()?,
        None => PyList::empty(py),
    };
    for known in &known {
        let known = known.cast::<TracedEpilogue>()?;
        if known.get().is_of(epilogue_fn)? {
            return Ok(known.clone().unbind());
        }
    }
    let source =
        if is_text { Source::of_text(epilogue_fn)? } else { Source::of_function(epilogue_fn)? };
    let made = Py::new(py, Walk::new(&source).function(&source.definition()?)?)?;
    known.append(&made)?;
    traced.set_item(key, known)?;
    Ok(made)
}

/// A walk through one function.
struct Walk<'a, 'py> {
    source: &'a Source<'py>,
    graph: Graph,
    /// Dotted names that are none of the function's own values, and what they were found to mean.
    meanings: Vec<Meant>,
    names: HashMap<String, Meaning>,
    /// Of the expression that is being walked.
    depth: usize,
}

/// How deep expressions may nest; a chain of as many operators is that deep.
const MAX_DEPTH: usize = 400;

impl<'a, 'py> Walk<'a, 'py> {
    fn new(source: &'a Source<'py>) -> Walk<'a, 'py> {
        Walk {
            source,
            graph: Graph::default(),
            meanings: Vec::new(),
            names: HashMap::new(),
            depth: 0,
        }
    }

    fn function(mut self, function: &Bound<'py, PyAny>) -> PyResult<TracedEpilogue> {
        self.parameters(function)?;
        let body = list(function, "body")?;
        let Some((last, statements)) = body.split_last() else {
            return Err(self
                .source
                .error(function, "an epilogue function ends with a return of its outputs' names"));
        };
        for (at, statement) in statements.iter().enumerate() {
            self.statement(statement, at == 0)?;
        }
        if kind(last)? != "Return" {
            return Err(self
                .source
                .error(last, "an epilogue function ends with a return of its outputs' names"));
        }
        self.outputs(last)?;
        Ok(TracedEpilogue { graph: self.graph, meanings: self.meanings })
    }

    fn parameters(&mut self, function: &Bound<'py, PyAny>) -> PyResult<()> {
        let arguments = function.getattr("args")?;
        let mut parameters = list(&arguments, "posonlyargs")?;
        parameters.extend(list(&arguments, "args")?);
        parameters.extend(list(&arguments, "kwonlyargs")?);
        let has_default = |field: &str| -> PyResult<bool> {
            Ok(list(&arguments, field)?.iter().any(|default| !default.is_none()))
        };
        if !arguments.getattr("vararg")?.is_none() || !arguments.getattr("kwarg")?.is_none() {
            return Err(self.source.error(
                function,
                "an epilogue function names its parameters; * and ** cannot be used",
            ));
        }
        let names = parameters
            .iter()
            .map(|parameter| text(parameter, "arg"))
            .collect::<PyResult<Vec<_>>>()?;
        if !names.iter().any(|name| name == ACCUMULATOR) {
            return Err(self
                .source
                .error(function, "accum must be an input to the epilogue function"));
        }
        if names[0] != ACCUMULATOR {
            let message = format!(
                "accum must be the first input to the epilogue function, which is '{}'",
                names[0]
            );
            return Err(self.source.error(function, &message));
        }
        if has_default("defaults")? || has_default("kw_defaults")? {
            let message = "the parameters of an epilogue function have no defaults; give each as a keyword of EpilogueArguments";
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
            return Err(self
                .source
                .error(statement, "only plain names can be assigned in an epilogue function"));
        }
        let name = text(&target, "id")?;
        if self.names.contains_key(&name) || class == "AugAssign" {
            return Err(self
                .source
                .error(statement, &format!("Variable '{name}' cannot be defined twice.")));
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
                return Err(self
                    .source
                    .error(statement, "an epilogue function returns names, not expressions"));
            }
            let name = text(&node, "id")?;
            if self.graph.outputs.iter().any(|output| output.name == name) {
                return Err(self.source.error(statement, &format!("'{name}' is returned twice")));
            }
            match self.names.get(&name) {
                Some(Meaning::Value(id)) => {
                    self.graph.outputs.push(Output { name, node: *id, fold: None })
                }
                Some(Meaning::Folded(..)) if name == MAIN_OUTPUT => {
                    let message = "D is the main output, of the product's shape; return the reduction under another name";
                    return Err(self.source.error(statement, message));
                }
                Some(Meaning::Folded(fold, dims, id)) => {
                    self.graph.outputs.push(Output {
                        name,
                        node: *id,
                        fold: Some((*fold, dims.clone())),
                    });
                }
                None => return Err(self.unknown_name(&node, &name)),
            }
        }
        if !self.graph.outputs.iter().any(|output| output.name == MAIN_OUTPUT) {
            return Err(self
                .source
                .error(statement, "Output node D is not found in the epilogue function"));
        }
        Ok(())
    }

    fn unknown_name(&self, node: &Bound<'_, PyAny>, name: &str) -> PyErr {
        let message = format!(
            "unknown name '{name}': an epilogue knows its parameters and what it has assigned"
        );
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
            return Err(self
                .source
                .error(node, "the expression is nested too deeply; name parts of it"));
        }
        let meaning = self.expression(node);
        self.depth -= 1;
        meaning
    }

    fn expression(&mut self, node: &Bound<'py, PyAny>) -> PyResult<Meaning> {
        let id = match kind(node)?.as_str() {
            "Name" => {
                let name = text(node, "id")?;
                return self
                    .names
                    .get(&name)
                    .cloned()
                    .ok_or_else(|| self.unknown_name(node, &name));
            }
            "Constant" => {
                let value = node.getattr("value")?;
                let number = number(&value)
                    .map_err(|message| self.source.error(node, &message))?
                    .ok_or_else(|| {
                    let shown =
                        value.repr().map_or_else(|_| "it".to_owned(), |text| text.to_string());
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
                let (left, right) =
                    (self.value(&node.getattr("left")?)?, self.value(&node.getattr("right")?)?);
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
                    return Err(self
                        .source
                        .error(node, "comparisons cannot be chained in an epilogue function"));
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
            "Attribute" if !self.is_method(node)? => {
                let name = text(node, "attr")?;
                let constant = match name.as_str() {
                    "pi" => Some(std::f64::consts::PI),
                    "e" => Some(std::f64::consts::E),
                    "inf" => Some(f64::INFINITY),
                    _ => None,
                };
                let known = match self.meaning_of(node)? {
                    Some(object) => object.extract::<f64>().ok() == constant,
                    None => self.check_module(node).is_ok(),
                };
                match constant {
                    Some(value) if known => self.graph.number(Number::Float(value)),
                    _ => return Err(self.unknown_name(node, &name)),
                }
            }
            "IfExp" => {
                let message = "a choice between values is written where(condition, a, b) in an epilogue function";
                return Err(self.source.error(node, message));
            }
            other => {
                let message =
                    format!("{} cannot be used in an epilogue function", described(other));
                return Err(self.source.error(node, &message));
            }
        };
        Ok(Meaning::Value(id))
    }

    fn operator(&self, node: &Bound<'_, PyAny>, operator: &str) -> PyErr {
        let message = format!(
            "the operator {operator} cannot be used in an epilogue function; + - * / and comparisons can"
        );
        self.source.error(node, &message)
    }

    fn power(&mut self, node: &Bound<'py, PyAny>, base: Id, exponent: Id) -> PyResult<Id> {
        match (self.graph.constant(base), self.graph.constant(exponent)) {
            (Some(Number::Integer(base)), Some(Number::Integer(exponent @ 0..))) => {
                let power =
                    u32::try_from(exponent).ok().and_then(|exponent| base.checked_pow(exponent));
                let large = || {
                    self.source
                        .error(node, "this is an integer that 64 bits do not hold; write a float")
                };
                Ok(self.graph.number(Number::Integer(power.ok_or_else(large)?)))
            }
            (Some(base), Some(exponent)) => {
                Ok(self.graph.number(Number::Float(base.value().powf(exponent.value()))))
            }
            (None, Some(exponent)) if exponent.value() == 2.0 => {
                Ok(self.graph.binary(Binary::Multiply, base, base))
            }
            (None, Some(exponent)) if exponent.value() == 0.5 => {
                Ok(self.graph.unary(Unary::Sqrt, base))
            }
            (None, Some(exponent)) if exponent.value() == -0.5 => {
                Ok(self.graph.unary(Unary::Rsqrt, base))
            }
            _ => Err(self
                .source
                .error(node, "** raises values to 2, 0.5 or -0.5 in an epilogue function")),
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

    /// What a dotted name that is no value of the function's means to it; None where nothing, and in a string.
    fn meaning_of(&mut self, node: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(scope) = &self.source.scope else { return Ok(None) };
        let interned = |name: String| PyString::intern(node.py(), &name).unbind();
        let (mut root, mut names) = (node.clone(), Vec::new());
        while kind(&root)? == "Attribute" {
            names.push(interned(text(&root, "attr")?));
            root = root.getattr("value")?;
        }
        names.push(interned(text(&root, "id")?));
        names.reverse();
        let object = scope.find(&names)?;
        self.meanings.push((names, object.clone().map(Bound::unbind)));
        Ok(object)
    }

    /// That a dotted name that nothing is known of begins as one of a module whose functions are known here.
    fn check_module(&self, node: &Bound<'py, PyAny>) -> PyResult<()> {
        const ROOTS: [&str; 11] = [
            "torch",
            "F",
            "functional",
            "nn",
            "math",
            "np",
            "numpy",
            "cutlass_api",
            "cutlass",
            "fusion",
            "activation",
        ];
        let mut root = node.clone();
        while kind(&root)? == "Attribute" {
            root = root.getattr("value")?;
        }
        if kind(&root)? == "Name" && ROOTS.contains(&text(&root, "id")?.as_str()) {
            return Ok(());
        }
        let message = format!(
            "{} belongs to something that an epilogue function does not know; it knows the functions of {}",
            text(node, "attr")?,
            ROOTS.join(", ")
        );
        Err(self.source.error(node, &message))
    }

    /// The name of the function that is called: its own, where the caller's is another. One of the user's own, which happens to be
    /// called `exp`, is not what we would compute.
    fn called(&mut self, function: &Bound<'py, PyAny>) -> PyResult<String> {
        let is_name = kind(function)? == "Name";
        let name = text(function, if is_name { "id" } else { "attr" })?;
        if is_name && self.names.contains_key(&name) {
            return Err(self
                .source
                .error(function, &format!("'{name}' is a value here, and no function")));
        }
        match self.meaning_of(function)? {
            Some(object) => known_function(&object)?.ok_or_else(|| {
                let shown = object.repr().map_or_else(|_| "an object".to_owned(), |text| text.to_string());
                let message = format!(
                    "'{name}' is {shown} here, and an epilogue function is read, not called; it knows the functions of {}",
                    MODULES.join(", ")
                );
                self.source.error(function, &message)
            }),
            // Undefined, a bare name is one of cutlass_api.fusion's.
            None if is_name => Ok(name),
            None => self.check_module(function).map(|()| name),
        }
    }

    fn call(&mut self, node: &Bound<'py, PyAny>) -> PyResult<Meaning> {
        let function = node.getattr("func")?;
        let mut positional = Vec::new();
        let name = match kind(&function)?.as_str() {
            "Attribute" if self.is_method(&function)? => {
                positional.push(Argument::Value(self.value(&function.getattr("value")?)?));
                text(&function, "attr")?
            }
            "Name" | "Attribute" => self.called(&function)?,
            _ => {
                return Err(self
                    .source
                    .error(node, "functions are called by name in an epilogue function"));
            }
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
        self.graph
            .call(&name, positional, named)
            .map_err(|message| self.source.error(node, &message))
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
            "Name" if self.names.contains_key(&text(node, "id")?) => None,
            "Attribute" if self.is_method(node)? => None,
            class @ ("Name" | "Attribute") => match self.meaning_of(node)? {
                Some(object) => dtype::parse(&object).ok().map(|dtype| dtype.to_string()),
                None => Some(text(node, if class == "Name" { "id" } else { "attr" })?),
            },
            "Tuple" | "List" => {
                let constant = |element: &Bound<'py, PyAny>| -> PyResult<i64> {
                    let id = self.value(element)?;
                    match self.graph.constant(id) {
                        Some(Number::Integer(dim)) => Ok(dim),
                        _ => Err(self
                            .source
                            .error(element, "brackets hold dimensions, which are integers")),
                    }
                };
                let dims = list(node, "elts")?.iter().map(constant).collect::<PyResult<_>>()?;
                return Ok(Argument::Integers(dims));
            }
            _ => None,
        };
        match word {
            Some(word) if kind(node)? == "Constant" || DType::from_name(&word).is_some() => {
                Ok(Argument::Word(word))
            }
            _ => self.value(node).map(Argument::Value),
        }
    }
}

/// The number in a Python object, bool, int or float; None for anything else. An integer that 64 bits do not hold is refused, as by
/// torch; the error says that of the value alone.
pub fn number(value: &Bound<'_, PyAny>) -> Result<Option<Number>, String> {
    if let Ok(truth) = value.cast::<PyBool>() {
        return Ok(Some(Number::Integer(truth.is_true().into())));
    }
    if value.is_instance_of::<PyInt>() {
        let large = |_| format!("{value} is an integer that 64 bits do not hold; give a float");
        return value.extract().map(|value| Some(Number::Integer(value))).map_err(large);
    }
    Ok(value.cast::<PyFloat>().ok().map(|float| Number::Float(float.value())))
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
