//! The statements of an epilogue function: its parameters, its assignments and its return.

use pyo3::prelude::*;

use super::scope::ResolvedName;
use super::source::{kind, list, text};
use super::tracer::{Tracer, describe_syntax};
use crate::epilogue::{ExpressionGraph, Meaning, Node, Output, Stage};

const NO_RETURN: &str = "an epilogue function ends with a return of its output names";

impl<'py> Tracer<'_, 'py> {
    /// Walks a function definition. Returns the graph, and the names that the function takes from
    /// outside.
    pub fn trace(
        mut self,
        function: &Bound<'py, PyAny>,
    ) -> PyResult<(ExpressionGraph, Vec<ResolvedName>)> {
        self.parameters(function)?;
        let body = list(function, "body")?;
        let Some((last, statements)) = body.split_last() else {
            return Err(self.error(function, NO_RETURN));
        };
        for (index, statement) in statements.iter().enumerate() {
            self.statement(statement, index == 0)?;
        }
        if kind(last)? != "Return" {
            return Err(self.error(last, NO_RETURN));
        }
        self.outputs(last)?;
        Ok((self.graph, self.resolved))
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
            let message = "* and ** cannot be used in the parameters of an epilogue function; \
                           name each parameter";
            return Err(self.error(function, message));
        }
        let names = parameters
            .iter()
            .map(|parameter| text(parameter, "arg"))
            .collect::<PyResult<Vec<_>>>()?;
        let argument = self.stage.argument();
        if !names.iter().any(|name| name == argument) {
            let message = format!("{argument} must be an input to the epilogue function");
            return Err(self.error(function, &message));
        }
        if names[0] != argument {
            let message = format!(
                "{argument} must be the first input to the epilogue function; the first is '{}'",
                names[0]
            );
            return Err(self.error(function, &message));
        }
        if has_default("defaults")? || has_default("kw_defaults")? {
            let message = format!(
                "the parameters of an epilogue function cannot have defaults; pass each value as \
                 a keyword of {}",
                match self.stage {
                    Stage::Epilogue => "EpilogueArguments",
                    Stage::Prologue => "PrologueArguments",
                }
            );
            return Err(self.error(function, &message));
        }
        for name in names {
            let node = if name == argument {
                match self.stage {
                    Stage::Epilogue => Node::Accumulator,
                    Stage::Prologue => Node::Activation,
                }
            } else {
                self.graph.inputs.push(name.clone());
                Node::Input(self.graph.inputs.len() as u32 - 1)
            };
            let id = self.graph.add(node);
            self.locals.insert(name, Meaning::Value(id));
        }
        Ok(())
    }

    fn statement(&mut self, statement: &Bound<'py, PyAny>, is_first: bool) -> PyResult<()> {
        let class = kind(statement)?;
        let target = match class.as_str() {
            "Assign" => match list(statement, "targets")?.as_slice() {
                [target] => target.clone(),
                _ => {
                    let message = "a statement of an epilogue function assigns one name";
                    return Err(self.error(statement, message));
                }
            },
            "AnnAssign" | "AugAssign" => statement.getattr("target")?,
            // The docstring.
            "Expr" if is_first && kind(&statement.getattr("value")?)? == "Constant" => {
                return Ok(());
            }
            "Return" => {
                let message = "an epilogue function has one return, at its end";
                return Err(self.error(statement, message));
            }
            other => {
                let message = format!(
                    "{} cannot be used in an epilogue function; its statements are assignments \
                     and one return",
                    describe_syntax(other)
                );
                return Err(self.error(statement, &message));
            }
        };
        if kind(&target)? != "Name" {
            let message = "only plain names can be assigned in an epilogue function";
            return Err(self.error(statement, message));
        }
        let name = text(&target, "id")?;
        // A prologue returns A under the name of its argument.
        let is_new_a = self.stage == Stage::Prologue
            && name == self.stage.main_output()
            && !std::mem::replace(&mut self.assigned_a, true);
        if self.locals.contains_key(&name) && !is_new_a || class == "AugAssign" {
            let message = format!("Variable '{name}' cannot be defined twice.");
            return Err(self.error(statement, &message));
        }
        let value = statement.getattr("value")?;
        if value.is_none() {
            let message = format!("'{name}' is declared without a value; assign one");
            return Err(self.error(statement, &message));
        }
        let meaning = self.meaning(&value)?;
        self.locals.insert(name, meaning);
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
                let message = "an epilogue function returns names, not expressions";
                return Err(self.error(statement, message));
            }
            let name = text(&node, "id")?;
            if self.graph.outputs.iter().any(|output| output.name == name) {
                return Err(self.error(statement, &format!("'{name}' is returned twice")));
            }
            let output = match self.locals.get(&name) {
                Some(Meaning::Value(id)) => Output { name, node: *id, fold: None },
                Some(Meaning::Folded(..)) if name == self.stage.main_output() => {
                    let message = "D is the main output and has the shape of the product; return \
                                   the reduction under another name";
                    return Err(self.error(statement, message));
                }
                Some(Meaning::Folded(fold, dims, id)) => {
                    Output { name, node: *id, fold: Some((*fold, dims.clone())) }
                }
                None => return Err(self.unknown_name(&node, &name)),
            };
            self.graph.outputs.push(output);
        }
        let main = self.stage.main_output();
        if !self.graph.outputs.iter().any(|output| output.name == main) {
            let message = match self.stage {
                Stage::Epilogue => "Output node D is not found in the epilogue function",
                Stage::Prologue => {
                    "A is not returned by the epilogue function; return A, the activations that \
                     the product multiplies"
                }
            };
            return Err(self.error(statement, message));
        }
        self.graph.check_scaling().map_err(|message| self.error(statement, &message))
    }
}
