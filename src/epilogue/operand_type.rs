//! What the generated code depends on of an epilogue's operands.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Kind;
use crate::operand::{DType, View};

/// What code depends on of a tensor: its element type, and how its elements follow each other along m and along n.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorType {
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

impl TensorType {
    /// Of a view at the shape of the output.
    pub fn of(view: &View) -> TensorType {
        TensorType {
            dtype: view.dtype,
            steps: [1, 2].map(|dim| Step::of(view.shape[dim], view.stride[dim])),
        }
    }

    /// Of which nothing but the type is known.
    pub fn any(dtype: DType) -> TensorType {
        TensorType { dtype, steps: [Step::Any; 2] }
    }

    /// Whether code for this tensor serves a view.
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

/// What an input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Input {
    Tensor(TensorType),
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
