//! Calls in an epilogue or prologue function: the function of the table that a name means, and its
//! arguments.

use super::{
    Binary, Build, Comparison, ExpressionGraph, Fold, Function, Id, Node, Number, Operation,
    Parameter, RowReduction, Stage,
};
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
    /// A reduction along dimensions, along all of them if there are none. It can only be returned.
    Folded(Fold, Vec<i32>, Id),
}

/// Reductions of torch that no kernel computes.
const UNFUSED_REDUCTIONS: [&str; 4] = ["amin", "mean", "min", "prod"];

impl ExpressionGraph {
    /// Adds a function call to the graph. The error describes an invalid call.
    ///
    /// A reduction of a prologue is a value of each row; one of an epilogue can only be returned.
    pub fn call(
        &mut self,
        function: &str,
        positional: Vec<Argument>,
        named: Vec<(String, Argument)>,
    ) -> Result<Meaning, String> {
        let mut call = FunctionCall { function, positional, named };
        if self.stage() == Stage::Prologue {
            if let Some(reduction) = self.row_reduction(&call) {
                let value = self.parse_row_reduction(reduction, &mut call)?;
                call.check_exhausted()?;
                return Ok(Meaning::Value(value));
            }
            if let "product" | "scale_blocks" = function {
                return Err(format!("{function} belongs into the epilogue of the product"));
            }
        }
        let record = self.find(&call)?;
        let meaning = match record.operation {
            Operation::Fold(fold) => self.parse_reduction(fold, &mut call)?,
            Operation::ScaleBlocks => Meaning::Value(self.parse_scale_blocks(&mut call)?),
            _ => Meaning::Value(self.parse_value(record, &mut call)?),
        };
        call.check_exhausted()?;
        Ok(meaning)
    }

    /// The called function. `max` and `min` are an operation of two values, or a reduction.
    fn find(&self, call: &FunctionCall<'_>) -> Result<&'static Function, String> {
        let name = call.function;
        let find = |is_fold: bool| {
            Function::all().find(|known| {
                known.names.contains(&name)
                    && matches!(known.operation, Operation::Fold(_)) == is_fold
            })
        };
        let (elementwise, fold) = (find(false), find(true));
        let is_reduction = fold.is_some() || UNFUSED_REDUCTIONS.contains(&name);
        match elementwise {
            Some(found) if !(is_reduction && call.has_dimension(self)) => Ok(found),
            _ if is_reduction => fold.ok_or_else(|| match self.stage() {
                Stage::Epilogue if name == "mean" => {
                    "mean along a dimension cannot be fused into an epilogue; use sum(x, dim) \
                         or max(x, dim), or compute the mean over K of A in a prologue"
                        .to_owned()
                }
                Stage::Epilogue => format!(
                    "{name} along a dimension cannot be fused; use sum(x, dim) or max(x, dim)"
                ),
                Stage::Prologue => format!(
                    "{name} along a dimension cannot be fused; use sum(x), mean(x) or amax(x)"
                ),
            }),
            _ => {
                let mut names: Vec<&str> =
                    Function::all().flat_map(|known| known.names).copied().collect();
                names.sort_unstable();
                names.dedup();
                Err(format!("unknown operation '{name}'; use one of: {}", names.join(", ")))
            }
        }
    }

    fn parse_reduction(
        &mut self,
        fold: Fold,
        call: &mut FunctionCall<'_>,
    ) -> Result<Meaning, String> {
        let function = call.function;
        let x = call.arguments(fold.record().function.parameters)?.value(0)?;
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
            Some(Argument::Nothing) | None => vec![],
            Some(Argument::Word(word)) => return Err(format!("{word} is not a dimension")),
        };
        let small = |dim: &i64| i32::try_from(*dim).ok().filter(|dim| (-3..3).contains(dim));
        let Some(dims) = dims.iter().map(small).collect::<Option<Vec<i32>>>() else {
            return Err(format!(
                "{function} along dimensions {dims:?}: dimensions range from -3 to 2"
            ));
        };
        // The output's tensor decides whether the reduced dimension is kept.
        call.take_named("keepdim");
        Ok(Meaning::Folded(fold, dims, x))
    }

    /// The reduction of a prologue that a call means. `max` of two values is none.
    fn row_reduction(&self, call: &FunctionCall<'_>) -> Option<RowReduction> {
        let named = |reduction: &RowReduction| reduction.names().contains(&call.function);
        let found = RowReduction::ALL.into_iter().find(named)?;
        (call.function != "max" || call.has_dimension(self)).then_some(found)
    }

    fn parse_row_reduction(
        &mut self,
        reduction: RowReduction,
        call: &mut FunctionCall<'_>,
    ) -> Result<Id, String> {
        let (function, x) = (call.function, call.value(&["input", "x"])?);
        let dims = match call.take(&["dim", "axis"]) {
            Some(Argument::Integers(dims)) => dims,
            Some(Argument::Value(id)) => match self.constant(id) {
                Some(Number::Integer(dim)) => vec![dim],
                _ => return Err(format!("the dimension of {function} must be -1")),
            },
            Some(Argument::Nothing) | None => vec![-1],
            Some(Argument::Word(word)) => return Err(format!("{word} is not a dimension")),
        };
        if dims != [-1] {
            return Err(format!(
                "{function} along dimensions {dims:?}: a prologue reduces the rows of A over K, \
                 which is dimension -1"
            ));
        }
        // The result counts as a column, (M, 1), in any case.
        call.take(&["keepdim", "keepdims"]);
        Ok(self.add(Node::Reduce(reduction, x)))
    }

    fn parse_value(
        &mut self,
        function: &Function,
        call: &mut FunctionCall<'_>,
    ) -> Result<Id, String> {
        let arguments = call.arguments(function.parameters)?;
        let x = arguments.value(0)?;
        match function.operation {
            Operation::Unary(operation) => Ok(self.unary(operation, x)),
            Operation::Binary(operation) => Ok(self.binary(operation, x, arguments.value(1)?)),
            Operation::Comparison(comparison) => {
                Ok(self.add(Node::Compare(comparison, x, arguments.value(1)?)))
            }
            Operation::Cast(dtype) => Ok(self.add(Node::Cast(dtype, x))),
            Operation::CastTo => match &arguments.word {
                Some(word) => match DType::from_name(word) {
                    Some(dtype) => Ok(self.add(Node::Cast(dtype, x))),
                    None => Err(format!("{word:?} is not a supported element type")),
                },
                None => Err(format!("{} needs a dtype, such as torch.float16", call.function)),
            },
            Operation::Approximation(known) => {
                let word = arguments.word.as_deref().unwrap_or(known[0].0);
                match known.iter().find(|(name, _)| *name == word) {
                    Some((_, operation)) => Ok(self.unary(*operation, x)),
                    None => {
                        let names: Vec<_> = known.iter().map(|(name, _)| name).collect();
                        Err(format!(
                            "{} has no approximation {word:?}; use one of {names:?}",
                            call.function
                        ))
                    }
                }
            }
            Operation::Expansion(expand) => {
                let values = arguments.values(self)?;
                expand(self, &values).ok_or_else(|| arguments.needs_optional())
            }
            Operation::Product => self.product(x),
            // `call` has parsed these.
            Operation::Fold(_) | Operation::ScaleBlocks => Ok(x),
        }
    }

    fn product(&mut self, factor: Id) -> Result<Id, String> {
        let Node::Input(at) = self.node(factor) else {
            let message =
                "product takes a parameter of the epilogue function, which A is multiplied by";
            return Err(message.to_owned());
        };
        match self.factor() {
            None => Ok(self.add(Node::Product(at))),
            Some(_) => {
                Err("product can be called once in an epilogue function; assign its result \
                            to a name"
                    .to_owned())
            }
        }
    }
}

/// A function call whose arguments are consumed one by one.
pub struct FunctionCall<'a> {
    function: &'a str,
    positional: Vec<Argument>,
    named: Vec<(String, Argument)>,
}

impl<'a> FunctionCall<'a> {
    /// Consumes the arguments of these parameters.
    fn arguments(&mut self, parameters: &'static [Parameter]) -> Result<Arguments<'a>, String> {
        let (mut values, mut word) = (Vec::new(), None);
        for parameter in parameters {
            match parameter {
                Parameter::Value(names)
                | Parameter::Optional(names)
                | Parameter::Default(names, _) => {
                    values.push(self.optional(names)?);
                }
                Parameter::Word(name) => word = self.word(&[name])?,
            }
        }
        Ok(Arguments { function: self.function, parameters, values, word })
    }

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

    /// Whether the call names a dimension, or has one value alone. In torch's `max` and `min` an
    /// integer second argument is a dimension.
    fn has_dimension(&self, graph: &ExpressionGraph) -> bool {
        let is_integer = |argument: &Argument| match argument {
            Argument::Value(id) => matches!(graph.constant(*id), Some(Number::Integer(_))),
            Argument::Integers(_) => true,
            _ => false,
        };
        self.named.iter().any(|(name, _)| matches!(name.as_str(), "dim" | "axis" | "keepdim"))
            || self.positional.len() + self.named.len() < 2
            || self.positional.get(1).is_some_and(is_integer)
    }

    pub(super) fn value(&mut self, names: &[&str]) -> Result<Id, String> {
        self.optional(names)?.ok_or_else(|| missing(self.function, names[0]))
    }

    pub(super) fn optional(&mut self, names: &[&str]) -> Result<Option<Id>, String> {
        let shown = match self.take(names) {
            Some(Argument::Value(id)) => return Ok(Some(id)),
            Some(Argument::Nothing) | None => return Ok(None),
            Some(Argument::Word(word)) => word,
            Some(Argument::Integers(list)) => format!("{list:?}"),
        };
        Err(format!("{shown} is not a value that {} accepts", self.function))
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

/// The arguments of a call, in the order of the function's parameters.
struct Arguments<'a> {
    /// The name that the call uses.
    function: &'a str,
    parameters: &'static [Parameter],
    values: Vec<Option<Id>>,
    word: Option<String>,
}

impl Arguments<'_> {
    fn value(&self, at: usize) -> Result<Id, String> {
        self.values[at].ok_or_else(|| missing(self.function, self.parameters[at].names()[0]))
    }

    /// The values, with defaults.
    fn values(&self, graph: &mut ExpressionGraph) -> Result<Vec<Option<Id>>, String> {
        let value = |at: usize| match self.parameters[at] {
            Parameter::Value(_) => self.value(at).map(Some),
            Parameter::Default(_, number) => {
                Ok(Some(self.values[at].unwrap_or_else(|| graph.number(Number::Float(number)))))
            }
            Parameter::Optional(_) | Parameter::Word(_) => Ok(self.values[at]),
        };
        (0..self.values.len()).map(value).collect()
    }

    fn needs_optional(&self) -> String {
        let optional = self.parameters.iter().filter(|one| matches!(one, Parameter::Optional(_)));
        let names: Vec<&str> = optional.map(|parameter| parameter.names()[0]).collect();
        format!("{} needs an argument {}", self.function, names.join(" or "))
    }
}

impl Build for ExpressionGraph {
    fn integer(&mut self, value: i64) -> Id {
        self.number(Number::Integer(value))
    }

    fn binary(&mut self, operation: Binary, left: Id, right: Id) -> Id {
        ExpressionGraph::binary(self, operation, left, right)
    }

    fn compare(&mut self, comparison: Comparison, left: Id, right: Id) -> Id {
        self.add(Node::Compare(comparison, left, right))
    }

    fn select(&mut self, condition: Id, yes: Id, no: Id) -> Id {
        self.add(Node::Select { condition, yes, no })
    }
}

fn missing(function: &str, argument: &str) -> String {
    format!("{function} is missing its argument '{argument}'")
}
