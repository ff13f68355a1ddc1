//! `Tracer`: the state of a walk through one epilogue or prologue function.

use std::collections::HashMap;

use pyo3::prelude::*;

use super::scope::ResolvedName;
use super::source::Source;
use crate::epilogue::{ExpressionGraph, Meaning, Stage};

/// The state of a walk through one epilogue or prologue function. The files of this folder add its
/// methods: `statements` (parameters, assignments, the return), `expressions` and `names`.
pub struct Tracer<'a, 'py> {
    pub source: &'a Source<'py>,
    pub stage: Stage,
    pub graph: ExpressionGraph,
    /// The function's own names: parameters and assigned names.
    pub locals: HashMap<String, Meaning>,
    /// Dotted names from outside the function, with the objects that they resolved to.
    pub resolved: Vec<ResolvedName>,
    /// Whether a prologue has assigned A.
    pub assigned_a: bool,
    /// Nesting depth of the current expression.
    pub depth: usize,
}

impl<'a, 'py> Tracer<'a, 'py> {
    pub fn new(source: &'a Source<'py>, stage: Stage) -> Tracer<'a, 'py> {
        Tracer {
            source,
            stage,
            assigned_a: false,
            graph: ExpressionGraph::default(),
            locals: HashMap::new(),
            resolved: Vec::new(),
            depth: 0,
        }
    }

    /// A ValueError that shows the line of a syntax tree's node. `message` speaks of an epilogue
    /// function, whatever the stage.
    pub fn error(&self, node: &Bound<'_, PyAny>, message: &str) -> PyErr {
        match self.stage {
            Stage::Epilogue => self.source.error(node, message),
            Stage::Prologue => {
                let message = message
                    .replace("an epilogue function", "a prologue function")
                    .replace("epilogue function", "prologue function");
                self.source.error(node, &message)
            }
        }
    }

    pub fn unknown_name(&self, node: &Bound<'_, PyAny>, name: &str) -> PyErr {
        let message = format!(
            "unknown name '{name}'; an epilogue function can use its parameters and the names \
             that it has assigned"
        );
        self.error(node, &message)
    }
}

/// How error messages describe a class of syntax tree nodes.
pub fn describe_syntax(class: &str) -> String {
    let words = match class {
        "For" | "While" => "a loop",
        "If" => "an if statement",
        "FunctionDef" | "Lambda" => "a nested function",
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
