//! The expression graph: nodes in topological order, each assigned once.

use std::fmt;

use arrayvec::ArrayVec;
use serde::{Deserialize, Serialize};

use super::{Binary, Comparison, Fold, Id, RowReduction, Scaling, Unary};
use crate::operand::DType;

/// The accumulator's name in the user's function.
pub const ACCUMULATOR: &str = "accum";
/// The name of the main output.
pub const MAIN_OUTPUT: &str = "D";
/// The name of the activations in a prologue function, and of its main output.
pub const ACTIVATIONS: &str = "A";

/// When a function is computed: behind the product or in front of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Epilogue,
    Prologue,
}

impl Stage {
    pub fn name(self) -> &'static str {
        match self {
            Stage::Epilogue => "epilogue",
            Stage::Prologue => "prologue",
        }
    }

    /// The name of the function's first parameter.
    pub fn argument(self) -> &'static str {
        match self {
            Stage::Epilogue => ACCUMULATOR,
            Stage::Prologue => ACTIVATIONS,
        }
    }

    pub fn main_output(self) -> &'static str {
        match self {
            Stage::Epilogue => MAIN_OUTPUT,
            Stage::Prologue => ACTIVATIONS,
        }
    }
}

/// A number in the user's function. Python and integer accumulators distinguish integers from
/// floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Integer(i64),
    Float(f64),
}

impl Number {
    pub fn value(self) -> f64 {
        match self {
            Number::Integer(value) => value as f64,
            Number::Float(value) => value,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Node {
    Accumulator,
    /// The accumulator of factors that are scaled along K, by the graph's [`Scaling`].
    ScaledAccumulator,
    /// An input, by index.
    Input(u32),
    /// The product of A and an input, by index: the second accumulator of a dual GEMM.
    Product(u32),
    /// A value beyond int32 becomes a float, which integer accumulators refuse.
    Integer(i64),
    /// The bits of a float64, because `f64` is neither `Eq` nor `Hash`.
    Float(u64),
    Unary(Unary, Id),
    Binary(Binary, Id, Id),
    /// 1 if the comparison holds, else 0.
    Compare(Comparison, Id, Id),
    Select {
        condition: Id,
        yes: Id,
        no: Id,
    },
    /// Rounded to a float type, or truncated towards zero to an integer type.
    Cast(DType, Id),
    /// An input, by index, that is a further matrix B of a joint GEMM. No output depends on the
    /// node: the accumulator's columns are those of all matrices.
    Panel(u32),
    /// An input, by index, that holds the elements of the input `first` for the columns of a
    /// further matrix B. No output depends on the node: outputs read `first`.
    Segment {
        first: u32,
        input: u32,
    },
    /// An element of A, in a prologue.
    Activation,
    /// A reduction over K of a prologue's values: one number for each row.
    Reduce(RowReduction, Id),
}

impl Node {
    /// The node with other operands, which `place` returns in the order of evaluation.
    pub fn map(self, mut place: impl FnMut(Id) -> Id) -> Node {
        match self {
            Node::Accumulator
            | Node::ScaledAccumulator
            | Node::Input(_)
            | Node::Product(_)
            | Node::Panel(_)
            | Node::Segment { .. }
            | Node::Activation
            | Node::Integer(_)
            | Node::Float(_) => self,
            Node::Unary(operation, value) => Node::Unary(operation, place(value)),
            Node::Cast(dtype, value) => Node::Cast(dtype, place(value)),
            Node::Reduce(reduction, value) => Node::Reduce(reduction, place(value)),
            Node::Binary(operation, left, right) => {
                Node::Binary(operation, place(left), place(right))
            }
            Node::Compare(comparison, left, right) => {
                Node::Compare(comparison, place(left), place(right))
            }
            Node::Select { condition, yes, no } => {
                Node::Select { condition: place(condition), yes: place(yes), no: place(no) }
            }
        }
    }
}

/// The kind of a value. Mixed operands promote to the later kind, as in torch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Kind {
    Truth,
    /// A wrapping int32.
    Integer,
    /// A float32; a float64 with a float64 accumulator.
    Float,
}

/// A returned name, its node, and its reduction if it has one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Output {
    pub name: String,
    pub node: Id,
    /// The user's dimensions of the output; negative ones count from the last.
    pub fold: Option<(Fold, Vec<i32>)>,
}

/// An epilogue function, independent of its operands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ExpressionGraph {
    pub nodes: Vec<Node>,
    /// The parameters except the accumulator, in the function's order.
    pub inputs: Vec<String>,
    /// In the order of the return statement.
    pub outputs: Vec<Output>,
    /// Of [`Node::ScaledAccumulator`].
    pub scaling: Option<Scaling>,
}

impl ExpressionGraph {
    /// Adds a node and returns its index. Equal nodes are shared.
    pub fn add(&mut self, node: Node) -> Id {
        let known = self.nodes.iter().position(|other| *other == node);
        known.unwrap_or_else(|| {
            self.nodes.push(node);
            self.nodes.len() - 1
        }) as Id
    }

    pub fn node(&self, id: Id) -> Node {
        self.nodes[id as usize]
    }

    pub fn number(&mut self, number: Number) -> Id {
        self.add(match number {
            Number::Integer(value) => Node::Integer(value),
            Number::Float(value) => Node::Float(value.to_bits()),
        })
    }

    /// The number of a constant node.
    pub fn constant(&self, id: Id) -> Option<Number> {
        match self.node(id) {
            Node::Integer(value) => Some(Number::Integer(value)),
            Node::Float(bits) => Some(Number::Float(f64::from_bits(bits))),
            _ => None,
        }
    }

    pub fn unary(&mut self, operation: Unary, of: Id) -> Id {
        match (operation, self.constant(of)) {
            (Unary::Negate, Some(Number::Integer(value))) if value != i64::MIN => {
                self.number(Number::Integer(-value))
            }
            (Unary::Negate, Some(Number::Float(value))) => self.number(Number::Float(-value)),
            _ => self.add(Node::Unary(operation, of)),
        }
    }

    /// Adds a binary operation. Two constants are folded with Python's semantics.
    pub fn binary(&mut self, operation: Binary, left: Id, right: Id) -> Id {
        let (Some(x), Some(y)) = (self.constant(left), self.constant(right)) else {
            return self.add(Node::Binary(operation, left, right));
        };
        let record = operation.record();
        match (x, y) {
            (Number::Integer(x), Number::Integer(y)) if operation != Binary::Divide => {
                match (record.of_integers)(x, y) {
                    Some(value) => self.number(Number::Integer(value)),
                    // A constant exceeds int32. Integer accumulators refuse it later.
                    None => self.add(Node::Binary(operation, left, right)),
                }
            }
            _ => self.number(Number::Float((record.of_floats)(x.value(), y.value()))),
        }
    }

    /// The kind of each node, from the kinds of the accumulator and of the inputs.
    pub fn kinds(&self, accumulator: Kind, inputs: &[Kind]) -> Vec<Kind> {
        let mut kinds: Vec<Kind> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let of = |id: Id| kinds[id as usize];
            // Arithmetic on truths uses the integers 0 and 1.
            let meet = |left: Id, right: Id| of(left).max(of(right)).max(Kind::Integer);
            kinds.push(match *node {
                Node::Accumulator | Node::Product(_) | Node::Panel(_) => accumulator,
                Node::Segment { .. } => accumulator,
                Node::ScaledAccumulator | Node::Activation | Node::Reduce(..) => Kind::Float,
                Node::Input(at) => inputs[at as usize],
                Node::Integer(value) if i32::try_from(value).is_ok() => Kind::Integer,
                Node::Integer(_) | Node::Float(_) => Kind::Float,
                Node::Unary(operation, value) if operation.record().keeps_integers => {
                    meet(value, value)
                }
                Node::Unary(..) | Node::Binary(Binary::Divide, ..) => Kind::Float,
                Node::Binary(_, left, right) => meet(left, right),
                Node::Compare(..) => Kind::Truth,
                Node::Select { yes, no, .. } => of(yes).max(of(no)),
                Node::Cast(dtype, _) if dtype.is_integer() => Kind::Integer,
                Node::Cast(..) => Kind::Float,
            });
        }
        kinds
    }

    /// When the function is computed. The graph of a prologue has the node of A from the start.
    pub fn stage(&self) -> Stage {
        let is_prologue = self.nodes.contains(&Node::Activation);
        if is_prologue { Stage::Prologue } else { Stage::Epilogue }
    }

    /// The input that A is multiplied by in addition to B, by index: that of `product`.
    pub fn factor(&self) -> Option<usize> {
        self.nodes.iter().find_map(|node| match node {
            Node::Product(at) => Some(*at as usize),
            _ => None,
        })
    }

    /// The inputs that are further matrices B of a joint GEMM, by index, in the order of their
    /// columns.
    pub fn panels(&self) -> impl Iterator<Item = usize> {
        self.nodes.iter().filter_map(|node| match node {
            Node::Panel(at) => Some(*at as usize),
            _ => None,
        })
    }

    /// The inputs that hold the elements of an input for the columns of further matrices B, by
    /// index, in the order of the matrices.
    pub fn segments(&self, of: usize) -> impl Iterator<Item = usize> {
        self.nodes.iter().filter_map(move |node| match node {
            Node::Segment { first, input } if *first as usize == of => Some(*input as usize),
            _ => None,
        })
    }

    /// For an input of a list with a vector for each matrix B: the list's first input, and the
    /// matrix, both by index.
    pub fn segment(&self, at: usize) -> Option<(usize, usize)> {
        let first = self.nodes.iter().find_map(|node| match node {
            Node::Segment { first, input } if [*first, *input].contains(&(at as u32)) => {
                Some(*first as usize)
            }
            _ => None,
        })?;
        let further = self.segments(first).position(|input| input == at);
        Some((first, further.map_or(0, |further| further + 1)))
    }

    /// The same with more inputs: `count` further matrices B of a joint GEMM, then as many vectors
    /// for each of the inputs `lists`, which have a vector for each matrix. Returns the names of
    /// the added inputs, too.
    pub fn with_panels(&self, count: usize, lists: &[usize]) -> (ExpressionGraph, Vec<String>) {
        let mut graph = self.clone();
        for list in std::iter::once(None).chain(lists.iter().copied().map(Some)) {
            for at in 1..=count {
                let mut name = format!("{}_{at}", list.map_or("B", |list| &self.inputs[list]));
                while graph.inputs.contains(&name)
                    || graph.outputs.iter().any(|output| output.name == name)
                {
                    name.push('_');
                }
                let input = graph.inputs.len() as u32;
                graph.nodes.push(match list {
                    None => Node::Panel(input),
                    Some(first) => Node::Segment { first: first as u32, input },
                });
                graph.inputs.push(name);
            }
        }
        let names = graph.inputs[self.inputs.len()..].to_vec();
        (graph, names)
    }

    /// The graph that stores the accumulator.
    pub fn of_accumulator() -> ExpressionGraph {
        let mut graph = ExpressionGraph::default();
        let (node, name) = (graph.add(Node::Accumulator), MAIN_OUTPUT.to_owned());
        graph.outputs.push(Output { name, node, fold: None });
        graph
    }

    /// Whether the only output is the accumulator.
    pub fn is_of_accumulator(&self) -> bool {
        matches!(self.outputs.as_slice(), [Output { node, fold: None, .. }]
            if self.node(*node) == Node::Accumulator)
    }

    /// Whether each node contributes to an output.
    pub fn used(&self) -> Vec<bool> {
        let mut used = vec![false; self.nodes.len()];
        self.outputs.iter().for_each(|output| used[output.node as usize] = true);
        for at in (0..self.nodes.len()).rev() {
            if used[at] {
                self.operands(at as Id).for_each(|id| used[id as usize] = true);
            }
        }
        used
    }

    pub(super) fn operands(&self, id: Id) -> impl Iterator<Item = Id> + use<> {
        let mut operands = ArrayVec::<Id, 3>::new();
        self.node(id).map(|operand| {
            operands.push(operand);
            operand
        });
        operands.into_iter()
    }

    /// A node as an expression of accumulator, inputs and constants, down to `depth`. Shared nodes
    /// are written out each time.
    fn expression(&self, id: Id, depth: usize) -> String {
        if depth == 0 {
            return "...".to_owned();
        }
        let text = self.operation(id, &|id| self.expression(id, depth - 1));
        match self.node(id) {
            Node::Float(bits) => f64::from_bits(bits).to_string(),
            Node::Cast(dtype, value) => format!("{dtype}({})", self.expression(value, depth - 1)),
            Node::Binary(operation, ..) if operation.record().symbol.is_empty() => text,
            Node::Binary(..) | Node::Compare(..) => format!("({text})"),
            _ => text,
        }
    }
}

/// The outputs as expressions: `D = relu(accum + bias)`.
impl fmt::Display for ExpressionGraph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self
            .outputs
            .iter()
            .map(|Output { name, node, fold }| {
                let value = self.expression(*node, 8);
                match fold {
                    None => format!("{name} = {value}"),
                    Some((fold, dims)) => {
                        format!("{name} = {}({value}, dim={dims:?})", fold.name())
                    }
                }
            })
            .collect();
        f.write_str(&lines.join("; "))
    }
}
