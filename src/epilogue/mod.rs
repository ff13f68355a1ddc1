//! Epilogues: what is computed of a sum of products before it is stored. An expression graph, the types that it works on, and
//! the CUDA C++ that it becomes. Pure: no Python, no compiler, no driver.

mod bound;
mod cuda;
mod functions;
mod graph;
mod intern;

pub use bound::{BoundEpilogue, Value};
pub use cuda::functor;
pub use functions::{Argument, Meaning};
pub use graph::{Binary, Comparison, Fold, Graph, Id, Kind, Node, Number, Output, Unary};
pub use intern::{intern, name};

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::operand::{DType, View};

/// The accumulator's name in the user's function.
pub const ACCUMULATOR: &str = "accum";
/// The name of the main output.
pub const MAIN_OUTPUT: &str = "D";

/// A graph with what its code depends on of its operands: their types, and which of their steps are known. Addresses, other strides
/// and the values of scalars are parameters of a launch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Epilogue {
    pub graph: Graph,
    /// One for each of the graph's inputs.
    pub inputs: Vec<Input>,
    /// One for each of the graph's outputs. D is the kernel's own, and counts as float32 here.
    pub outputs: Vec<Tensor>,
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

/// What code depends on of a tensor: its element type, and how its elements follow each other along m and along n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tensor {
    pub dtype: DType,
    pub steps: [Step; 2],
}

/// How far apart in memory neighbours along a dimension are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Step {
    /// They are the same element.
    Repeats,
    One,
    /// As far as each launch says. So, too, where a dimension has no neighbours: for code that serves others as well.
    Any,
}

impl Step {
    fn of(extent: i64, stride: i64) -> Step {
        match (extent, stride) {
            (..=1, _) => Step::Any,
            (_, 0) => Step::Repeats,
            (_, 1) => Step::One,
            _ => Step::Any,
        }
    }

    /// Whether code for this step serves such a dimension.
    fn serves(self, extent: i64, stride: i64) -> bool {
        self == Step::Any || extent <= 1 || self == Step::of(extent, stride)
    }
}

impl Tensor {
    /// Of a view at the shape of the output.
    pub fn of(view: &View) -> Tensor {
        Tensor {
            dtype: view.dtype,
            steps: [1, 2].map(|dim| Step::of(view.shape[dim], view.stride[dim])),
        }
    }

    /// Of which nothing but the type is known.
    pub fn any(dtype: DType) -> Tensor {
        Tensor { dtype, steps: [Step::Any; 2] }
    }

    /// Whether code for this tensor serves a view.
    fn serves(&self, view: &View) -> bool {
        let fits = |at: usize| self.steps[at].serves(view.shape[at + 1], view.stride[at + 1]);
        self.dtype == view.dtype && fits(0) && fits(1)
    }
}

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lies = match self.steps {
            [Step::Repeats, Step::Repeats] => " for all",
            [Step::Repeats, _] => " for each column",
            [_, Step::Repeats] => " for each row",
            [Step::Any, Step::One] => "",
            [Step::One, Step::Any] => " by columns",
            _ => " with strides",
        };
        write!(f, "{}{lies}", self.dtype)
    }
}

/// What an input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Input {
    Tensor(Tensor),
    /// A number, passed with each launch.
    Scalar(Kind),
}

impl Input {
    pub fn kind(self) -> Kind {
        match self {
            Input::Tensor(tensor) if tensor.dtype.is_integer() => Kind::Integer,
            Input::Tensor(_) => Kind::Float,
            Input::Scalar(kind) => kind,
        }
    }
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

    /// Whether code for this epilogue computes another, behind the same kernel.
    pub fn serves(&self, asked: &BoundEpilogue) -> bool {
        let Epilogue { graph, inputs, outputs, reduced } = asked.epilogue;
        let input = |(ours, (theirs, value)): (&Input, (&Input, &Value))| match (ours, value) {
            (Input::Tensor(tensor), Value::Tensor(view)) => tensor.serves(view),
            _ => ours == theirs,
        };
        let output = |(ours, (theirs, view)): (&Tensor, (&Tensor, &Option<View>))| match view {
            Some(view) => ours.serves(view),
            None => ours == theirs,
        };
        std::ptr::eq(self, asked.epilogue)
            || (self.graph == *graph
                && self.reduced == *reduced
                && self.inputs.iter().zip(inputs.iter().zip(&asked.inputs)).all(input)
                && self.outputs.iter().zip(outputs.iter().zip(&asked.outputs)).all(output))
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

#[cfg(test)]
mod tests;
