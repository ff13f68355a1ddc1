//! The operands of a product whose kernel the core chooses, beside A, B and the output.

use std::sync::LazyLock;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::parameter::{input_values, operand_value};
use super::prologue::PrologueArguments;
use crate::epilogue::{BoundEpilogue, ExpressionGraph, MAIN_OUTPUT, intern_name};
use crate::operand::{self, View};
use crate::problem::{OperandValue, Problem, fuse, precede};

/// The operands of an epilogue, in the order of its graph.
pub struct EpilogueOperands<'a> {
    pub graph: &'a ExpressionGraph,
    pub inputs: Vec<OperandValue>,
    pub outputs: Vec<OperandValue>,
    /// The prologue in front of the product.
    pub prologue: Option<&'a PrologueArguments>,
}

impl<'a> EpilogueOperands<'a> {
    /// The operands from inputs in the order of the graph, whose only output is `out`.
    pub fn ordered(
        graph: &'a ExpressionGraph,
        out: &View,
        operands: &Bound<'_, PyTuple>,
    ) -> PyResult<Self> {
        let outputs = output_values_of_one(graph, out)?;
        let inputs = input_values(graph, operands)?;
        Ok(EpilogueOperands { graph, inputs, outputs, prologue: None })
    }

    /// The operands from keywords: inputs, and outputs except D, which is `out`.
    pub fn named(
        graph: &'a ExpressionGraph,
        out: &View,
        keywords: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let value = |name: &String| -> PyResult<OperandValue> {
            let object = keywords.map(|keywords| keywords.get_item(name)).transpose()?.flatten();
            let object = object.ok_or_else(|| {
                PyTypeError::new_err(format!(
                    "{name} is missing; pass each parameter of the epilogue, and each output \
                     except D, as a keyword"
                ))
            })?;
            operand_value(name, &object)
        };
        let inputs = graph.inputs.iter().map(value).collect::<PyResult<Vec<_>>>()?;
        let output = |name: &String| match name.as_str() {
            MAIN_OUTPUT => Ok(OperandValue::Tensor(*out)),
            _ => value(name),
        };
        let outputs = graph.outputs.iter().map(|of| output(&of.name)).collect::<PyResult<_>>()?;
        for key in keywords.into_iter().flat_map(|keywords| keywords.keys()) {
            let key = key.to_string();
            let is_known = graph.inputs.contains(&key)
                || key != MAIN_OUTPUT && graph.outputs.iter().any(|output| output.name == key);
            if !is_known {
                return Err(PyTypeError::new_err(format!(
                    "{key} is neither a parameter of the epilogue nor one of its outputs (D is \
                     passed as out)"
                )));
            }
        }
        Ok(EpilogueOperands { graph, inputs, outputs, prologue: None })
    }

    /// A prologue, and the epilogue that stores the product in `out`.
    pub fn of_prologue(prologue: &'a PrologueArguments, out: &View) -> Self {
        static STORES: LazyLock<ExpressionGraph> = LazyLock::new(ExpressionGraph::of_accumulator);
        let (inputs, outputs) = (Vec::new(), vec![OperandValue::Tensor(*out)]);
        EpilogueOperands { graph: &STORES, inputs, outputs, prologue: Some(prologue) }
    }

    /// Checks the operands and binds them to a problem.
    pub fn fuse(&self, problem: &Problem) -> PyResult<BoundEpilogue> {
        let named = |values: &[OperandValue], names: &mut dyn Iterator<Item = &String>| {
            names.map(|name| intern_name(name)).zip(values.iter().copied()).collect::<Vec<_>>()
        };
        let inputs = named(&self.inputs, &mut self.graph.inputs.iter());
        let mut outputs = self.graph.outputs.iter().map(|output| &output.name);
        let outputs = named(&self.outputs, &mut outputs);
        let bound = fuse(problem, problem.accumulator(), self.graph, &inputs, &outputs)?;
        match self.prologue {
            Some(prologue) => {
                Ok(prologue.with_operands(|operands| precede(problem, bound, operands))?)
            }
            None => Ok(bound),
        }
    }
}

/// The values of a tuple of outputs, and the position of D among them.
pub fn output_values(
    graph: &ExpressionGraph,
    outs: &Bound<'_, PyTuple>,
) -> PyResult<(usize, Vec<OperandValue>)> {
    let names: Vec<&str> = graph.outputs.iter().map(|output| output.name.as_str()).collect();
    let main = names.iter().position(|name| *name == MAIN_OUTPUT);
    let Some(main) = main.filter(|_| names.len() == outs.len()) else {
        return Err(PyTypeError::new_err(format!(
            "the epilogue returns {} outputs ({}), and out has {}",
            names.len(),
            names.join(", "),
            outs.len()
        )));
    };
    let values = names
        .iter()
        .zip(outs)
        .map(|(name, out)| Ok(OperandValue::Tensor(operand::read(name, &out)?)));
    Ok((main, values.collect::<PyResult<_>>()?))
}

pub fn output_values_of_one(graph: &ExpressionGraph, out: &View) -> PyResult<Vec<OperandValue>> {
    if graph.outputs.len() != 1 {
        let names: Vec<&str> = graph.outputs.iter().map(|output| output.name.as_str()).collect();
        return Err(PyTypeError::new_err(format!(
            "the epilogue returns {}; pass out as a tuple of as many tensors",
            names.join(", ")
        )));
    }
    Ok(vec![OperandValue::Tensor(*out)])
}
