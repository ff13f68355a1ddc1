//! `Epilogue`: an expression graph specialized to the types of its operands.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{Fold, Graph, Input, Kind, MAIN_OUTPUT, Output, TensorType};
use crate::operand::DType;

/// A graph with what its code depends on of its operands: their types, and which of their steps are known. Addresses, other strides
/// and the values of scalars are parameters of a launch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Epilogue {
    pub graph: Graph,
    /// One for each of the graph's inputs.
    pub inputs: Vec<Input>,
    /// One for each of the graph's outputs. D is the kernel's own, and counts as float32 here.
    pub outputs: Vec<TensorType>,
    /// For each of the graph's outputs, whether it is reduced along batch, m and n. All false where it is not.
    pub reduced: Vec<[bool; 3]>,
}

/// An output that is reduced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reduction {
    /// Its place among the graph's outputs.
    pub output: usize,
    pub fold: Fold,
    /// Along batch, m and n of the program's frame, of which one of the last two holds.
    pub along: [bool; 3],
    /// What values are while they are reduced, and what the result is stored as.
    pub compute: DType,
    pub out: DType,
}

/// The type that floating-point values of an epilogue have: float64 behind a float64 accumulator, else float32.
pub fn compute_type(accumulator: DType) -> DType {
    if accumulator == DType::F64 { DType::F64 } else { DType::F32 }
}

impl Epilogue {
    /// What each node of the graph is, behind an accumulator of this type.
    pub fn kinds(&self, accumulator: DType) -> Vec<Kind> {
        let of_accumulator = if accumulator.is_integer() { Kind::Integer } else { Kind::Float };
        let inputs: Vec<Kind> = self.inputs.iter().map(|input| input.kind()).collect();
        self.graph.kinds(of_accumulator, &inputs)
    }

    /// The outputs that are reduced. `transposed`: the kernel's program computes the transposed product.
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

    /// Eight hexadecimal digits that no other epilogue is likely to share.
    pub fn digest(&self) -> String {
        // Plain data in memory: serializing it does not fail.
        let bytes = postcard::to_stdvec(self).unwrap_or_default();
        blake3::hash(&bytes).to_hex()[..8].to_owned()
    }
}

/// The outputs as expressions of the inputs, with the types of both: `D = relu(accum + bias)`.
impl fmt::Display for Epilogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.graph)?;
        let inputs = self.graph.inputs.iter().zip(&self.inputs).map(|(name, input)| match input {
            Input::Tensor(tensor) => format!("{name}: {tensor}"),
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
