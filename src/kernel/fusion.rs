//! What a kernel must fuse.

use crate::epilogue::Epilogue;

/// The kind of epilogue that kernels are ranked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fusion {
    None,
    /// An epilogue of one product.
    Epilogue,
    /// An epilogue that takes a second product (dual GEMM).
    Dual,
}

impl Fusion {
    pub fn of(epilogue: Option<&Epilogue>) -> Fusion {
        match epilogue {
            None => Fusion::None,
            Some(epilogue) if epilogue.is_dual() => Fusion::Dual,
            Some(_) => Fusion::Epilogue,
        }
    }

    pub(super) fn is_fused(self) -> bool {
        self != Fusion::None
    }
}

/// Whether kernels fuse an epilogue of one product.
impl From<bool> for Fusion {
    fn from(is_fused: bool) -> Fusion {
        if is_fused { Fusion::Epilogue } else { Fusion::None }
    }
}
