//! Rutlass: GEMM kernels behind the `cutlass_api` interface. The modules are layers, listed from
//! the top; each imports only modules listed below it.

pub mod python;

pub mod tune;

pub mod launch;

pub mod compile;

pub mod kernel;
pub mod reference;

pub mod problem;

pub mod epilogue;

pub mod xla;

pub mod operand;

pub mod driver;

pub mod process;
