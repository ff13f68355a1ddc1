//! The functions that an epilogue may call, by the last component of a dotted name.

use super::{Binary, Comparison, ExpressionGraph, Fold, Id, Node, Number, Unary};
use crate::operand::DType;

/// An argument of a function call.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    Value(Id),
    /// A string, or the last component of a dotted name (`float16` of `torch.float16`).
    Word(String),
    /// A list of integers: dimensions.
    Integers(Vec<i64>),
    /// Python's None.
    Nothing,
}

/// The result of an expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Meaning {
    Value(Id),
    /// A reduction along dimensions. It can only be returned.
    Folded(Fold, Vec<i32>, Id),
}

/// The functions that error messages list.
pub const NAMES: &str = "abs, bfloat16, cast, clamp, clip, exp, float, gelu, half, hardswish, \
                         identity, leaky_relu, log, max, maximum, min, minimum, multiply_add, \
                         product, relu, round, rsqrt, scale_blocks, sigmoid, silu, sqrt, square, sum, swish, tanh, to, \
                         where, and torch's add, amax, sub, mul, div, neg, lt, le, gt, ge, eq, ne";

impl ExpressionGraph {
    /// Adds a function call to the graph. The error describes an invalid call.
    pub fn call(
        &mut self,
        function: &str,
        positional: Vec<Argument>,
        named: Vec<(String, Argument)>,
    ) -> Result<Meaning, String> {
        let mut call = FunctionCall { function, positional, named };
        let meaning = match call.is_reduction(self) {
            true => self.parse_reduction(&mut call)?,
            false => Meaning::Value(self.parse_value(&mut call)?),
        };
        call.check_exhausted()?;
        Ok(meaning)
    }

    fn parse_reduction(&mut self, call: &mut FunctionCall<'_>) -> Result<Meaning, String> {
        let function = call.function;
        let fold = match function {
            "sum" => Fold::Sum,
            "max" | "amax" => Fold::Maximum,
            _ => {
                return Err(format!(
                    "{function} along a dimension cannot be fused; use sum(x, dim) or max(x, dim)"
                ));
            }
        };
        let x = call.value(&["input", "x"])?;
        let dims = match call.take(&["dim", "axis"]) {
            Some(Argument::Integers(dims)) => dims,
            Some(Argument::Value(id)) => match self.constant(id) {
                Some(Number::Integer(dim)) => vec![dim],
                _ => {
                    return Err(format!(
                        "the dimension of {function} must be an integer or a list of integers"
                    ));
                }
            },
            Some(Argument::Nothing) | None => {
                return Err(format!(
                    "{function} needs a dimension: {function}(x, dim=-1) reduces each row"
                ));
            }
            Some(Argument::Word(word)) => return Err(format!("{word} is not a dimension")),
        };
        let small = |dim: &i64| i32::try_from(*dim).ok().filter(|dim| (-3..3).contains(dim));
        let Some(dims) =
            dims.iter().map(small).collect::<Option<Vec<i32>>>().filter(|dims| !dims.is_empty())
        else {
            return Err(format!(
                "{function} along dimensions {dims:?}: dimensions range from -3 to 2"
            ));
        };
        // The output's tensor decides whether the reduced dimension is kept.
        call.take_named("keepdim");
        Ok(Meaning::Folded(fold, dims, x))
    }

    fn parse_value(&mut self, call: &mut FunctionCall<'_>) -> Result<Id, String> {
        let unary = match call.function {
            "neg" | "negative" => Some(Unary::Negate),
            "abs" | "absolute" => Some(Unary::Absolute),
            "round" => Some(Unary::Round),
            "exp" => Some(Unary::Exp),
            "log" => Some(Unary::Log),
            "sqrt" => Some(Unary::Sqrt),
            "rsqrt" => Some(Unary::Rsqrt),
            "sigmoid" => Some(Unary::Sigmoid),
            "tanh" => Some(Unary::Tanh),
            "silu" | "swish" => Some(Unary::Silu),
            "hardswish" => Some(Unary::Hardswish),
            _ => None,
        };
        if let Some(operation) = unary {
            let x = call.value(&["input", "x"])?;
            return Ok(self.unary(operation, x));
        }
        let binary = match call.function {
            "add" => Some(Binary::Add),
            "sub" | "subtract" => Some(Binary::Subtract),
            "mul" | "multiply" => Some(Binary::Multiply),
            "div" | "divide" | "true_divide" => Some(Binary::Divide),
            "maximum" | "max" => Some(Binary::Maximum),
            "minimum" | "min" => Some(Binary::Minimum),
            _ => None,
        };
        if let Some(operation) = binary {
            let (x, y) = (call.value(&["input", "x"])?, call.value(&["other", "y"])?);
            return Ok(self.binary(operation, x, y));
        }
        let comparison = match call.function {
            "lt" | "less" => Some(Comparison::Less),
            "le" | "less_equal" => Some(Comparison::LessEqual),
            "gt" | "greater" => Some(Comparison::Greater),
            "ge" | "greater_equal" => Some(Comparison::GreaterEqual),
            // Not `equal`: in torch it compares whole tensors.
            "eq" => Some(Comparison::Equal),
            "ne" | "not_equal" => Some(Comparison::NotEqual),
            _ => None,
        };
        if let Some(comparison) = comparison {
            let (x, y) = (call.value(&["input", "x"])?, call.value(&["other", "y"])?);
            return Ok(self.add(Node::Compare(comparison, x, y)));
        }
        let to = match call.function {
            "float" => Some(DType::F32),
            "double" => Some(DType::F64),
            "half" => Some(DType::F16),
            "bfloat16" => Some(DType::Bf16),
            "int" => Some(DType::I32),
            _ => None,
        };
        if let Some(dtype) = to {
            let x = call.value(&["input", "x"])?;
            return Ok(self.add(Node::Cast(dtype, x)));
        }
        match call.function {
            "identity" => call.value(&["input", "x"]),
            "scale_blocks" => self.parse_scale_blocks(call),
            "square" => {
                let x = call.value(&["input", "x"])?;
                Ok(self.binary(Binary::Multiply, x, x))
            }
            "multiply_add" => {
                let (x, y, z) = (call.value(&["x"])?, call.value(&["y"])?, call.value(&["z"])?);
                let product = self.binary(Binary::Multiply, x, y);
                Ok(self.binary(Binary::Add, product, z))
            }
            "product" => {
                let of = call.value(&["B"])?;
                let Node::Input(at) = self.node(of) else {
                    return Err("product takes a parameter of the epilogue function, which A is \
                                multiplied by"
                        .to_owned());
                };
                match self.factor() {
                    None => Ok(self.add(Node::Product(at))),
                    Some(_) => Err("product can be called once in an epilogue function; assign \
                                    its result to a name"
                        .to_owned()),
                }
            }
            "relu" => {
                let x = call.value(&["input", "x"])?;
                let zero = self.number(Number::Integer(0));
                Ok(self.binary(Binary::Maximum, x, zero))
            }
            "leaky_relu" => {
                let x = call.value(&["input", "x"])?;
                let slope = match call.optional(&["negative_slope", "alpha"])? {
                    Some(slope) => slope,
                    None => self.number(Number::Float(0.01)),
                };
                let zero = self.number(Number::Integer(0));
                let condition = self.add(Node::Compare(Comparison::Greater, x, zero));
                let no = self.binary(Binary::Multiply, x, slope);
                Ok(self.add(Node::Select { condition, yes: x, no }))
            }
            "gelu" => {
                let x = call.value(&["input", "x"])?;
                match call.word(&["approximate"])?.as_deref() {
                    None | Some("none") => Ok(self.unary(Unary::Gelu, x)),
                    Some("tanh") => Ok(self.unary(Unary::GeluTanh, x)),
                    Some(other) => Err(format!(
                        "gelu has no approximation {other:?}; use \"none\" or \"tanh\""
                    )),
                }
            }
            "gelu_tanh" => {
                let x = call.value(&["input", "x"])?;
                Ok(self.unary(Unary::GeluTanh, x))
            }
            "clamp" | "clip" => {
                let x = call.value(&["input", "x"])?;
                let (low, high) =
                    (call.optional(&["min", "a_min"])?, call.optional(&["max", "a_max"])?);
                if low.is_none() && high.is_none() {
                    return Err(format!("{} needs a minimum or a maximum", call.function));
                }
                let raised = low.map_or(x, |low| self.binary(Binary::Maximum, x, low));
                Ok(high.map_or(raised, |high| self.binary(Binary::Minimum, raised, high)))
            }
            "where" => {
                let condition = call.value(&["condition"])?;
                let (yes, no) = (call.value(&["input", "x"])?, call.value(&["other", "y"])?);
                Ok(self.add(Node::Select { condition, yes, no }))
            }
            "to" | "type" | "cast" | "astype" => {
                let x = call.value(&["input", "x"])?;
                let word = call.word(&["dtype"])?;
                let word = word.ok_or_else(|| {
                    format!("{} needs a dtype, such as torch.float16", call.function)
                })?;
                match DType::from_name(&word) {
                    Some(dtype) => Ok(self.add(Node::Cast(dtype, x))),
                    None => Err(format!("{word:?} is not a supported element type")),
                }
            }
            unknown => Err(format!("unknown operation '{unknown}'; use one of: {NAMES}")),
        }
    }
}

/// A function call whose arguments are consumed one by one.
pub(super) struct FunctionCall<'a> {
    function: &'a str,
    positional: Vec<Argument>,
    named: Vec<(String, Argument)>,
}

impl FunctionCall<'_> {
    /// The next argument, by position or by one of these names.
    pub(super) fn take(&mut self, names: &[&str]) -> Option<Argument> {
        if !self.positional.is_empty() {
            return Some(self.positional.remove(0));
        }
        names.iter().find_map(|name| self.take_named(name))
    }

    fn take_named(&mut self, name: &str) -> Option<Argument> {
        let at = self.named.iter().position(|(known, _)| known == name)?;
        Some(self.named.remove(at).1)
    }

    /// Whether the call reduces along a dimension. In torch's `max` and `min` an integer second
    /// argument is a dimension.
    fn is_reduction(&self, graph: &ExpressionGraph) -> bool {
        let dim =
            self.named.iter().any(|(name, _)| matches!(name.as_str(), "dim" | "axis" | "keepdim"));
        match self.function {
            "sum" | "amax" | "amin" | "mean" | "prod" => true,
            "max" | "min" => {
                let second = self.positional.get(1);
                let integer = |argument: &Argument| match argument {
                    Argument::Value(id) => matches!(graph.constant(*id), Some(Number::Integer(_))),
                    Argument::Integers(_) => true,
                    _ => false,
                };
                dim || (self.positional.len() + self.named.len() < 2) || second.is_some_and(integer)
            }
            _ => false,
        }
    }

    pub(super) fn value(&mut self, names: &[&str]) -> Result<Id, String> {
        self.optional(names)?
            .ok_or_else(|| format!("{} is missing its argument '{}'", self.function, names[0]))
    }

    pub(super) fn optional(&mut self, names: &[&str]) -> Result<Option<Id>, String> {
        match self.take(names) {
            Some(Argument::Value(id)) => Ok(Some(id)),
            Some(Argument::Nothing) | None => Ok(None),
            Some(Argument::Word(word)) => {
                Err(format!("{word} is not a value that {} accepts", self.function))
            }
            Some(Argument::Integers(list)) => {
                Err(format!("{list:?} is not a value that {} accepts", self.function))
            }
        }
    }

    pub(super) fn word(&mut self, names: &[&str]) -> Result<Option<String>, String> {
        match self.take(names) {
            Some(Argument::Word(word)) => Ok(Some(word)),
            Some(Argument::Nothing) | None => Ok(None),
            Some(_) => Err(format!(
                "the argument '{1}' of {0} must not be a number",
                self.function, names[0]
            )),
        }
    }

    /// Checks that no argument is left.
    fn check_exhausted(&self) -> Result<(), String> {
        match (self.positional.len(), self.named.first()) {
            (0, None) => Ok(()),
            (0, Some((name, _))) => Err(format!("{} takes no argument '{name}'", self.function)),
            (more, _) => Err(format!("{} has {more} arguments too many", self.function)),
        }
    }
}
