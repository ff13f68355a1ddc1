//! What a kernel must fuse to serve a request.

use crate::epilogue::{Epilogue, Joint, Scaling};
use crate::kernel::types::Types;
use crate::operand::DType;

/// The requested fusion, as far as discovery and ranking depend on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fusion<'a> {
    Nothing,
    /// An epilogue of one product, without block scales. `factors`: it only multiplies by factors
    /// of rows and columns, or by none.
    Epilogue {
        factors: bool,
    },
    /// An epilogue with block scales, which the kernel applies along K.
    Scaled(&'a Scaling),
    /// An epilogue that takes a second product (dual GEMM).
    Dual,
    /// Several matrices B (joint GEMM), and an epilogue or none.
    Joint(Joint),
}

impl Fusion<'_> {
    /// Whether the kernel computes with an epilogue of the user.
    pub fn is_fused(self) -> bool {
        match self {
            Fusion::Nothing => false,
            Fusion::Joint(joint) => !joint.is_plain,
            _ => true,
        }
    }

    /// Whether a kernel for Hopper takes longer than for the product alone: it computes while it
    /// stores the output, or applies block scales. Factors multiply the sums before, if the output
    /// has 16 bits (`CONVERT_ONLY` of the program).
    pub fn takes_time(self, types: Types) -> bool {
        let only_converts = types.out.bits() == 16 && types.accumulator != DType::F16;
        match self {
            Fusion::Epilogue { factors: true } => !only_converts,
            _ => self.is_fused(),
        }
    }

    /// Whether the kernel's program differs from the one that fuses nothing in more than the
    /// epilogue.
    pub fn has_own_program(self) -> bool {
        matches!(self, Fusion::Dual | Fusion::Joint(_))
    }
}

/// Whether kernels fuse an epilogue of one product.
impl From<bool> for Fusion<'_> {
    fn from(is_fused: bool) -> Self {
        if is_fused { Fusion::Epilogue { factors: false } } else { Fusion::Nothing }
    }
}

impl<'a> From<Option<&'a Epilogue>> for Fusion<'a> {
    fn from(epilogue: Option<&'a Epilogue>) -> Self {
        match epilogue {
            None => Fusion::Nothing,
            // A kernel of its own computes the prologue.
            Some(epilogue) if epilogue.is_prologue_only() => Fusion::Nothing,
            Some(epilogue) if epilogue.is_dual() => Fusion::Dual,
            Some(epilogue) if let Some(joint) = epilogue.joint() => Fusion::Joint(joint),
            Some(epilogue) => match &epilogue.graph.scaling {
                None => Fusion::Epilogue { factors: epilogue.factors().is_some() },
                Some(scaling) => Fusion::Scaled(scaling),
            },
        }
    }
}
