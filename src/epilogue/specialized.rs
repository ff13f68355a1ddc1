//! `Epilogue`: an expression graph specialized to the types of its operands.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{
    Binary, ExpressionGraph, Fold, Input, Kind, MAIN_OUTPUT, Node, Output, Prologue, Step,
    TensorType,
};
use crate::operand::DType;

/// A graph and the properties of its operands that the code depends on: types and known steps.
/// Addresses, other strides and the values of scalars are launch parameters.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Epilogue {
    pub graph: ExpressionGraph,
    /// One per input of the graph.
    pub inputs: Vec<Input>,
    /// One per output of the graph. D belongs to the kernel; its entry is a float32 placeholder.
    pub outputs: Vec<TensorType>,
    /// For each output of the graph, whether it is reduced along batch, m and n.
    pub reduced: Vec<[bool; 3]>,
    /// What the kernel in front of the product computes of A.
    pub prologue: Option<Prologue>,
}

/// A reduced output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reduction {
    /// Its index among the graph's outputs.
    pub output: usize,
    pub fold: Fold,
    /// Whether it is reduced along batch, m and n of the program's frame. At least m or n is true.
    pub along: [bool; 3],
    /// The type of values during the reduction, and of the stored result.
    pub compute: DType,
    pub out: DType,
}

/// What a kernel of a joint GEMM depends on: a product of A and several matrices B, whose columns
/// lie side by side in the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joint {
    /// The number of matrices B.
    pub matrices: u32,
    /// The greatest common divisor of the columns of all matrices but the last.
    pub unit: u32,
    /// Alignment in bytes of the addresses and rows of all matrices, 16 at most.
    pub align: u32,
    /// Whether the epilogue stores the sums unchanged.
    pub is_plain: bool,
}

impl Joint {
    /// Most matrices B: those of the kernels' parameters.
    pub const MOST: usize = 4;
}

/// The type of an epilogue's floating-point values: float64 with a float64 accumulator, else
/// float32.
pub fn compute_type(accumulator: DType) -> DType {
    if accumulator == DType::F64 { DType::F64 } else { DType::F32 }
}

impl Epilogue {
    /// The kind of each node with an accumulator of this type.
    pub fn kinds(&self, accumulator: DType) -> Vec<Kind> {
        let of_accumulator = if accumulator.is_integer() { Kind::Integer } else { Kind::Float };
        let inputs: Vec<Kind> = self.inputs.iter().map(|input| input.kind()).collect();
        self.graph.kinds(of_accumulator, &inputs)
    }

    /// The inputs that D multiplies the accumulator by, if D is nothing else and the only output,
    /// and each input is one number for a row or a column of the output.
    pub fn factors(&self) -> Option<Vec<u32>> {
        let [Output { node, fold: None, .. }] = self.graph.outputs.as_slice() else { return None };
        let (mut inputs, mut accumulators, mut left) = (Vec::new(), 0, vec![*node]);
        while let Some(id) = left.pop() {
            match self.graph.node(id) {
                Node::Accumulator | Node::ScaledAccumulator => accumulators += 1,
                Node::Binary(Binary::Multiply, one, other) => left.extend([one, other]),
                Node::Input(at) => match self.inputs[at as usize] {
                    Input::Tensor(tensor)
                        if !tensor.dtype.is_integer() && tensor.steps.contains(&Step::Repeats) =>
                    {
                        inputs.push(at);
                    }
                    _ => return None,
                },
                _ => return None,
            }
        }
        (accumulators == 1).then_some(inputs)
    }

    /// The reduced outputs. `transposed`: the kernel's program computes the transposed product.
    pub fn reductions(&self, accumulator: DType, transposed: bool) -> Vec<Reduction> {
        let kinds = self.kinds(accumulator);
        let of = |(at, output): (usize, &Output)| {
            let (fold, _) = output.fold.as_ref()?;
            let [batch, m, n] = self.reduced[at];
            let along = if transposed { [batch, n, m] } else { [batch, m, n] };
            let float = kinds[output.node as usize] == Kind::Float;
            let compute = if float { compute_type(accumulator) } else { DType::I32 };
            Some(Reduction { output: at, fold: *fold, along, compute, out: self.outputs[at].dtype })
        };
        self.graph.outputs.iter().enumerate().filter_map(of).collect()
    }

    /// Whether the epilogue takes the product of A with a second matrix: a dual GEMM.
    pub fn is_dual(&self) -> bool {
        self.graph.factor().is_some()
    }

    /// The matrices B of a joint GEMM; `None` for one matrix.
    pub fn joint(&self) -> Option<Joint> {
        let mut panels = self.graph.panels();
        let Input::Panel { unit, align } = self.inputs[panels.next()?] else { return None };
        let is_plain = self.graph.is_of_accumulator();
        Some(Joint { matrices: 2 + panels.count() as u32, unit, align, is_plain })
    }

    /// Whether there is a prologue, and the product's kernel fuses nothing.
    pub fn is_prologue_only(&self) -> bool {
        self.prologue.is_some() && self.inputs.is_empty() && self.graph.is_of_accumulator()
    }

    /// Eight hexadecimal digits that identify the epilogue in kernel names.
    pub fn digest(&self) -> String {
        let Epilogue { graph, inputs, outputs, reduced, prologue } = self;
        // Serializing plain data into memory cannot fail.
        let mut bytes = postcard::to_stdvec(&(graph, inputs, outputs, reduced)).unwrap_or_default();
        if let Some(prologue) = prologue {
            bytes.extend(postcard::to_stdvec(prologue).unwrap_or_default());
        }
        blake3::hash(&bytes).to_hex()[..8].to_owned()
    }
}

/// The outputs as expressions of the inputs, with the types of both. A prologue comes first.
impl fmt::Display for Epilogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(prologue) = &self.prologue {
            write!(f, "{prologue} before ")?;
            if self.is_prologue_only() {
                return f.write_str("the product");
            }
        }
        write!(f, "{}", self.graph)?;
        let inputs = self.graph.inputs.iter().zip(&self.inputs).map(|(name, input)| match input {
            Input::Tensor(tensor) => format!("{name}: {tensor}"),
            Input::Factor(dtype) => format!("{name}: {dtype} like B"),
            Input::Panel { unit, .. } => {
                format!("{name}: further columns of B, behind multiples of {unit}")
            }
            Input::Segment(dtype) => format!("{name}: {dtype} for each column of a matrix B"),
            Input::Scalar(Kind::Float) => format!("{name}: a number"),
            Input::Scalar(_) => format!("{name}: an integer"),
        });
        let outputs = self
            .graph
            .outputs
            .iter()
            .zip(&self.outputs)
            .filter(|(output, _)| output.name != MAIN_OUTPUT);
        let typed: Vec<String> = inputs
            .chain(outputs.map(|(output, tensor)| format!("{}: {tensor}", output.name)))
            .collect();
        if typed.is_empty() { Ok(()) } else { write!(f, " ({})", typed.join(", ")) }
    }
}
