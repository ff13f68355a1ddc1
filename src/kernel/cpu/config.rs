use crate::kernel::operation::Operation;

/// The reference backend's kernel for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reference(pub Operation);
