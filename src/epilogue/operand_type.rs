//! The properties of an epilogue's operands that generated code depends on.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Kind;
use crate::operand::{DType, View};

/// A tensor's element type and its steps along m and n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorType {
    pub dtype: DType,
    pub steps: [Step; 2],
}

/// The distance in memory between neighbors along a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Step {
    /// All neighbors are the same element.
    Repeats,
    One,
    /// A stride that is a launch parameter. Also used for extent 1, so that the code serves other
    /// extents.
    Any,
}

impl Step {
    /// The name in generated code.
    pub(super) fn name(self) -> &'static str {
        match self {
            Step::Repeats => "Step::REPEATS",
            Step::One => "Step::ONE",
            Step::Any => "Step::ANY",
        }
    }

    fn of(extent: i64, stride: i64) -> Step {
        match (extent, stride) {
            (..=1, _) => Step::Any,
            (_, 0) => Step::Repeats,
            (_, 1) => Step::One,
            _ => Step::Any,
        }
    }

    /// Whether code for this step serves a dimension of this extent and stride.
    fn serves(self, extent: i64, stride: i64) -> bool {
        self == Step::Any || extent <= 1 || self == Step::of(extent, stride)
    }
}

impl TensorType {
    /// The type of a view that has the shape of the output.
    pub fn of(view: &View) -> TensorType {
        TensorType {
            dtype: view.dtype,
            steps: [1, 2].map(|dim| Step::of(view.shape[dim], view.stride[dim])),
        }
    }

    /// A type without known steps.
    pub fn any(dtype: DType) -> TensorType {
        TensorType { dtype, steps: [Step::Any; 2] }
    }

    /// The steps along m and n of the program, which may compute the transposed product.
    pub(super) fn program_steps(self, transposed: bool) -> [Step; 2] {
        let [along_m, along_n] = self.steps;
        if transposed { [along_n, along_m] } else { [along_m, along_n] }
    }

    /// Whether code for this type serves a view.
    pub(super) fn serves(&self, view: &View) -> bool {
        let fits = |at: usize| self.steps[at].serves(view.shape[at + 1], view.stride[at + 1]);
        self.dtype == view.dtype && fits(0) && fits(1)
    }
}

impl fmt::Display for TensorType {
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

/// The type of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Input {
    Tensor(TensorType),
    /// A number, passed as a launch parameter.
    Scalar(Kind),
    /// A matrix like B that A is multiplied by, too: the argument of `product`.
    Factor(DType),
    /// A further matrix B of a joint GEMM. `unit`: the greatest common divisor of the columns of
    /// all matrices but the last; `align`: the alignment in bytes of all addresses and rows.
    Panel {
        unit: u32,
        align: u32,
    },
    /// The elements of a vector for the columns of one matrix B of a joint GEMM.
    Segment(DType),
}

impl Input {
    pub fn kind(self) -> Kind {
        match self {
            Input::Tensor(tensor) if tensor.dtype.is_integer() => Kind::Integer,
            Input::Factor(dtype) | Input::Segment(dtype) if dtype.is_integer() => Kind::Integer,
            Input::Tensor(_) | Input::Factor(_) | Input::Panel { .. } | Input::Segment(_) => {
                Kind::Float
            }
            Input::Scalar(kind) => kind,
        }
    }

    /// The type of a tensor in the parameter block, which has the output's shape.
    pub(super) fn tensor(self) -> Option<TensorType> {
        match self {
            Input::Tensor(tensor) => Some(tensor),
            Input::Segment(dtype) => Some(TensorType { dtype, steps: [Step::Repeats, Step::One] }),
            Input::Scalar(_) | Input::Factor(_) | Input::Panel { .. } => None,
        }
    }
}
