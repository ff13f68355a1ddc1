//! What a kernel must fuse to serve a request.

use crate::epilogue::{Epilogue, Scaling};

/// The requested fusion, as far as discovery and ranking depend on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fusion<'a> {
    Nothing,
    /// An epilogue without block scales.
    Epilogue,
    /// An epilogue with block scales, which the kernel applies along K.
    Scaled(&'a Scaling),
}

impl Fusion<'_> {
    pub fn is_fused(self) -> bool {
        self != Fusion::Nothing
    }
}

impl From<bool> for Fusion<'_> {
    fn from(is_fused: bool) -> Self {
        if is_fused { Fusion::Epilogue } else { Fusion::Nothing }
    }
}

impl<'a> From<Option<&'a Epilogue>> for Fusion<'a> {
    fn from(epilogue: Option<&'a Epilogue>) -> Self {
        match epilogue {
            None => Fusion::Nothing,
            Some(epilogue) => {
                epilogue.graph.scaling.as_ref().map_or(Fusion::Epilogue, Fusion::Scaled)
            }
        }
    }
}
