//! What a kernel must fuse to serve a request.

use crate::epilogue::{Epilogue, Scaling};

/// The requested fusion, as far as discovery and ranking depend on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fusion<'a> {
    Nothing,
    /// An epilogue of one product, without block scales.
    Epilogue,
    /// An epilogue with block scales, which the kernel applies along K.
    Scaled(&'a Scaling),
    /// An epilogue that takes a second product (dual GEMM).
    Dual,
}

impl Fusion<'_> {
    pub fn is_fused(self) -> bool {
        self != Fusion::Nothing
    }
}

/// Whether kernels fuse an epilogue of one product.
impl From<bool> for Fusion<'_> {
    fn from(is_fused: bool) -> Self {
        if is_fused { Fusion::Epilogue } else { Fusion::Nothing }
    }
}

impl<'a> From<Option<&'a Epilogue>> for Fusion<'a> {
    fn from(epilogue: Option<&'a Epilogue>) -> Self {
        match epilogue {
            None => Fusion::Nothing,
            Some(epilogue) if epilogue.is_dual() => Fusion::Dual,
            Some(epilogue) => {
                epilogue.graph.scaling.as_ref().map_or(Fusion::Epilogue, Fusion::Scaled)
            }
        }
    }
}
