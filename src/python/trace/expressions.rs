//! The expressions of an epilogue function: numbers, operators, comparisons and calls.

use pyo3::prelude::*;
use pyo3::types::PyString;

use super::number::number;
use super::source::{kind, list, text};
use super::tracer::{Tracer, describe_syntax};
use crate::epilogue::{Argument, Binary, Comparison, Id, Meaning, Node, Number, Unary};
use crate::operand::DType;
use crate::python::dtype;
use crate::python::utils::shown;

/// The deepest nesting of an expression. A chain of n operators nests n deep.
const MAX_DEPTH: usize = 400;

impl<'py> Tracer<'_, 'py> {
    pub fn meaning(&mut self, node: &Bound<'py, PyAny>) -> PyResult<Meaning> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let message = "the expression is nested too deeply; assign parts of it to names";
            return Err(self.error(node, message));
        }
        let meaning = self.expression(node);
        self.depth -= 1;
        meaning
    }

    /// An expression that has a value per element; reductions are refused.
    fn value(&mut self, node: &Bound<'py, PyAny>) -> PyResult<Id> {
        match self.meaning(node)? {
            Meaning::Value(id) => Ok(id),
            Meaning::Folded(..) => {
                let message = "a reduction along a dimension can only be returned; it cannot be \
                               an operand of another operation";
                Err(self.error(node, message))
            }
        }
    }

    fn expression(&mut self, node: &Bound<'py, PyAny>) -> PyResult<Meaning> {
        let id = match kind(node)?.as_str() {
            "Name" => {
                let name = text(node, "id")?;
                let meaning = self.locals.get(&name).cloned();
                return meaning.ok_or_else(|| self.unknown_name(node, &name));
            }
            "Constant" => self.constant(node)?,
            "UnaryOp" => {
                let operand = self.value(&node.getattr("operand")?)?;
                match kind(&node.getattr("op")?)?.as_str() {
                    "USub" => self.graph.unary(Unary::Negate, operand),
                    "UAdd" => operand,
                    other => return Err(self.unknown_operator(node, other)),
                }
            }
            "BinOp" => self.binary(node)?,
            "Compare" => self.comparison(node)?,
            "Call" => return self.call(node),
            "Attribute" if !self.is_method(node)? => self.named_constant(node)?,
            "IfExp" => {
                let message = "a conditional expression cannot be used in an epilogue function; \
                               write where(condition, a, b)";
                return Err(self.error(node, message));
            }
            other => {
                let syntax = describe_syntax(other);
                let message = format!("{syntax} cannot be used in an epilogue function");
                return Err(self.error(node, &message));
            }
        };
        Ok(Meaning::Value(id))
    }

    fn constant(&mut self, node: &Bound<'py, PyAny>) -> PyResult<Id> {
        let value = node.getattr("value")?;
        let number = number(&value)
            .map_err(|message| self.error(node, &message))?
            .ok_or_else(|| self.error(node, &format!("{} is not a number", shown(&value))))?;
        Ok(self.graph.number(number))
    }

    /// A constant of a module, such as `math.pi`.
    fn named_constant(&mut self, node: &Bound<'py, PyAny>) -> PyResult<Id> {
        let name = text(node, "attr")?;
        let constant = match name.as_str() {
            "pi" => Some(std::f64::consts::PI),
            "e" => Some(std::f64::consts::E),
            "inf" => Some(f64::INFINITY),
            _ => None,
        };
        let is_known = match self.resolve(node)? {
            Some(object) => object.extract::<f64>().ok() == constant,
            None => self.check_root(node).is_ok(),
        };
        match constant {
            Some(value) if is_known => Ok(self.graph.number(Number::Float(value))),
            _ => Err(self.unknown_name(node, &name)),
        }
    }

    fn binary(&mut self, node: &Bound<'py, PyAny>) -> PyResult<Id> {
        let left = self.value(&node.getattr("left")?)?;
        let right = self.value(&node.getattr("right")?)?;
        let operator = kind(&node.getattr("op")?)?;
        if operator == "Pow" {
            return self.power(node, left, right);
        }
        match Binary::ALL.iter().find(|operation| operation.record().syntax == operator) {
            Some(operation) => Ok(self.graph.binary(*operation, left, right)),
            None => Err(self.unknown_operator(node, &operator)),
        }
    }

    fn comparison(&mut self, node: &Bound<'py, PyAny>) -> PyResult<Id> {
        let (operators, right) = (list(node, "ops")?, list(node, "comparators")?);
        let ([operator], [right]) = (operators.as_slice(), right.as_slice()) else {
            let message = "comparisons cannot be chained in an epilogue function";
            return Err(self.error(node, message));
        };
        let operator = kind(operator)?;
        let known = Comparison::ALL.iter().find(|known| known.record().syntax == operator);
        let comparison = known.ok_or_else(|| self.unknown_operator(node, &operator))?;
        let (left, right) = (self.value(&node.getattr("left")?)?, self.value(right)?);
        Ok(self.graph.add(Node::Compare(*comparison, left, right)))
    }

    fn unknown_operator(&self, node: &Bound<'_, PyAny>, operator: &str) -> PyErr {
        let message = format!(
            "the operator {operator} cannot be used in an epilogue function; + - * / and \
             comparisons can"
        );
        self.error(node, &message)
    }

    fn power(&mut self, node: &Bound<'py, PyAny>, base: Id, exponent: Id) -> PyResult<Id> {
        match (self.graph.constant(base), self.graph.constant(exponent)) {
            (Some(Number::Integer(base)), Some(Number::Integer(exponent @ 0..))) => {
                let power =
                    u32::try_from(exponent).ok().and_then(|exponent| base.checked_pow(exponent));
                let too_large = || {
                    let message = "the power does not fit into a 64-bit integer; use a float";
                    self.error(node, message)
                };
                Ok(self.graph.number(Number::Integer(power.ok_or_else(too_large)?)))
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
            _ => {
                let message = "the exponent of ** must be 2, 0.5 or -0.5 in an epilogue function";
                Err(self.error(node, message))
            }
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
            "Name" | "Attribute" => self.called_function(&function)?,
            _ => {
                let message = "functions are called by name in an epilogue function";
                return Err(self.error(node, message));
            }
        };
        for argument in list(node, "args")? {
            positional.push(self.argument(&argument)?);
        }
        let mut named = Vec::new();
        for keyword in list(node, "keywords")? {
            let Some(key) = keyword.getattr("arg")?.extract::<Option<String>>()? else {
                return Err(self.error(node, "** cannot be used in an epilogue function"));
            };
            named.push((key, self.argument(&keyword.getattr("value")?)?));
        }
        self.graph.call(&name, positional, named).map_err(|message| self.error(node, &message))
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
            "Name" if self.locals.contains_key(&text(node, "id")?) => None,
            "Attribute" if self.is_method(node)? => None,
            class @ ("Name" | "Attribute") => match self.resolve(node)? {
                Some(object) => dtype::parse(&object).ok().map(|dtype| dtype.to_string()),
                None => Some(text(node, if class == "Name" { "id" } else { "attr" })?),
            },
            "Tuple" | "List" => return self.dimensions(node),
            _ => None,
        };
        match word {
            Some(word) if kind(node)? == "Constant" || DType::from_name(&word).is_some() => {
                Ok(Argument::Word(word))
            }
            _ => self.value(node).map(Argument::Value),
        }
    }

    /// A tuple or list of dimensions.
    fn dimensions(&mut self, node: &Bound<'py, PyAny>) -> PyResult<Argument> {
        let mut dims = Vec::new();
        for element in list(node, "elts")? {
            let id = self.value(&element)?;
            let Some(Number::Integer(dim)) = self.graph.constant(id) else {
                let message = "a tuple or list holds dimensions, which are integers";
                return Err(self.error(&element, message));
            };
            dims.push(dim);
        }
        Ok(Argument::Integers(dims))
    }
}
