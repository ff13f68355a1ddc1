//! `Prologue`: the function that computes the activations in front of a product.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    ACTIVATIONS, ExpressionGraph, Id, Input, Kind, Node, Output, RowReduction, Step, TensorType,
};
use crate::operand::DType;

/// A prologue's graph and the properties of its operands that the code depends on. Steps of tensors
/// are those along the rows of A and along K.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Prologue {
    pub graph: ExpressionGraph,
    /// The operand A.
    pub a: TensorType,
    /// The type of the activations, which the product multiplies.
    pub dtype: DType,
    /// One per input of the graph.
    pub inputs: Vec<Input>,
    /// One per output of the graph. A belongs to the kernel; its entry is a float32 placeholder. An
    /// output that repeats along K is one number for each row.
    pub outputs: Vec<TensorType>,
}

impl Prologue {
    pub fn kinds(&self) -> Vec<Kind> {
        let inputs: Vec<Kind> = self.inputs.iter().map(|input| input.kind()).collect();
        self.graph.kinds(Kind::Float, &inputs)
    }

    /// The index of each input among the tensors, of which A is the first, or among the scalars, of
    /// the parameter block.
    pub(super) fn input_places(&self) -> Vec<usize> {
        let (mut tensors, mut scalars) = (1, 0);
        let mut place = |input: &Input| {
            let next = if matches!(input, Input::Tensor(_)) { &mut tensors } else { &mut scalars };
            *next += 1;
            *next - 1
        };
        self.inputs.iter().map(&mut place).collect()
    }

    /// The index of each output among the tensors of the parameter block, after the inputs. `None`
    /// for A.
    pub(super) fn output_places(&self) -> Vec<Option<usize>> {
        let mut next = 1 + self.input_tensors();
        let mut place = |output: &Output| {
            (output.name != ACTIVATIONS).then(|| {
                next += 1;
                next - 1
            })
        };
        self.graph.outputs.iter().map(&mut place).collect()
    }

    fn input_tensors(&self) -> usize {
        self.inputs.iter().filter(|input| matches!(input, Input::Tensor(_))).count()
    }

    /// Tensors of the parameter block.
    pub(super) fn tensors(&self) -> usize {
        1 + self.input_tensors() + self.output_places().iter().flatten().count()
    }

    /// Elements of a row that a thread of the kernel loads at once: 16 bytes of A, or 8 elements.
    pub fn width(&self) -> i64 {
        (16 / self.a.dtype.bytes()).clamp(2, 8)
    }

    /// Such vectors of all tensors that a thread keeps in registers: at most 64 registers.
    pub fn kept_vectors(&self) -> i64 {
        let inputs = self.inputs.iter().filter_map(|input| match input {
            Input::Tensor(tensor) => Some(tensor),
            _ => None,
        });
        let of_vector = |tensor: &TensorType| match tensor.steps[1] {
            Step::Repeats => 4,
            _ => self.width() * tensor.dtype.bytes(),
        };
        (256 / inputs.chain([&self.a]).map(of_vector).sum::<i64>()).clamp(1, 4)
    }

    /// Passes over the rows of A that reduce.
    pub fn passes(&self) -> usize {
        Plan::of(self).passes
    }
}

/// How a kernel computes a prologue: passes over the rows of A that reduce, then the elements.
pub struct Plan {
    pub kinds: Vec<Kind>,
    /// For each node, the passes that precede its value.
    pub passes_before: Vec<usize>,
    /// Whether a node is one number for each row, which a kernel computes once a row: it depends on
    /// reductions, and otherwise on numbers only.
    pub is_of_row: Vec<bool>,
    /// The nodes of rows that later passes or elements read: the numbers kept for each row.
    pub kept: Vec<Id>,
    pub passes: usize,
}

impl Plan {
    pub fn of(prologue: &Prologue) -> Plan {
        let (graph, kinds) = (&prologue.graph, prologue.kinds());
        let count = graph.nodes.len();
        let (mut passes_before, mut is_of_row) = (vec![0; count], vec![false; count]);
        // Whether a node is the same number for all elements.
        let mut is_number = vec![false; count];
        for at in 0..count {
            let operands: Vec<usize> =
                graph.operands(at as Id).map(|operand| operand as usize).collect();
            passes_before[at] = operands.iter().map(|of| passes_before[*of]).max().unwrap_or(0);
            is_number[at] = match graph.nodes[at] {
                Node::Input(input) => {
                    matches!(prologue.inputs[input as usize], Input::Scalar(_))
                }
                Node::Integer(_) | Node::Float(_) => true,
                Node::Activation | Node::Reduce(..) => false,
                _ => operands.iter().all(|of| is_number[*of]),
            };
            is_of_row[at] = match graph.nodes[at] {
                Node::Reduce(..) => {
                    passes_before[at] += 1;
                    true
                }
                // Rows keep float32 values, which do not hold every integer.
                _ if kinds[at] == Kind::Integer => false,
                _ => {
                    !operands.is_empty()
                        && !is_number[at]
                        && operands.iter().all(|of| is_number[*of] || is_of_row[*of])
                }
            };
        }
        let used = graph.used();
        let mut is_kept = vec![false; count];
        for at in (0..count).filter(|at| used[*at]) {
            let is_reduction = matches!(graph.nodes[at], Node::Reduce(..));
            is_kept[at] |= is_reduction;
            if is_reduction || !is_of_row[at] {
                for of in graph.operands(at as Id).map(|of| of as usize) {
                    is_kept[of] |= is_of_row[of];
                }
            }
        }
        for output in &graph.outputs {
            is_kept[output.node as usize] |= is_of_row[output.node as usize];
        }
        let passes = (0..count).filter(|at| used[*at]).map(|at| passes_before[at]).max();
        let kept = (0..count as Id).filter(|id| is_kept[*id as usize]).collect();
        Plan { kinds, passes_before, is_of_row, kept, passes: passes.unwrap_or(0) }
    }

    /// The reductions that a pass computes, with the node of each and that of its argument.
    pub fn reductions(&self, graph: &ExpressionGraph, pass: usize) -> Vec<(Id, RowReduction, Id)> {
        let used = graph.used();
        let of = |(at, node): (usize, &Node)| match *node {
            Node::Reduce(reduction, value) if used[at] && self.passes_before[at] == pass + 1 => {
                Some((at as Id, reduction, value))
            }
            _ => None,
        };
        graph.nodes.iter().enumerate().filter_map(of).collect()
    }

    /// The most reductions of a pass.
    pub fn most_reductions(&self, graph: &ExpressionGraph) -> usize {
        (0..self.passes).map(|pass| self.reductions(graph, pass).len()).max().unwrap_or(0)
    }

    /// Whether each node is computed for an element, or read from its row, on the way to `roots`.
    pub fn needed(&self, graph: &ExpressionGraph, roots: impl Iterator<Item = Id>) -> Vec<bool> {
        let mut needed = vec![false; graph.nodes.len()];
        roots.for_each(|root| needed[root as usize] = true);
        for at in (0..needed.len()).rev() {
            if needed[at] && !self.is_of_row[at] {
                graph.operands(at as Id).for_each(|of| needed[of as usize] = true);
            }
        }
        needed
    }
}

impl fmt::Display for Prologue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.graph)?;
        let inputs = self.graph.inputs.iter().zip(&self.inputs).map(|(name, input)| match input {
            Input::Tensor(tensor) => format!("{name}: {tensor}"),
            _ => format!("{name}: a number"),
        });
        let outputs = self.graph.outputs.iter().zip(&self.outputs);
        let outputs = outputs.filter(|(output, _)| output.name != ACTIVATIONS);
        let typed: Vec<String> = std::iter::once(format!("A: {} as {}", self.a, self.dtype))
            .chain(inputs)
            .chain(outputs.map(|(output, tensor)| format!("{}: {tensor}", output.name)))
            .collect();
        write!(f, " ({})", typed.join(", "))
    }
}
