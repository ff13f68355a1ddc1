//! The parts of a program's text that a family writes.

use super::params::GemmParams;
use super::types::Types;

/// What a family contributes to the text of a program.
pub struct ProgramParts {
    /// The header that defines the class named in `work`.
    pub header: &'static str,
    /// Definitions that precede the use of `work`.
    pub definitions: String,
    /// The kernel's class with its template arguments.
    pub work: String,
    /// The type of the kernel's parameter.
    pub parameter: &'static str,
    /// A condition for `static_assert`: host and kernel agree on the launch.
    pub checks: String,
}

/// The condition that the host launches the threads and shared memory that the program expects.
pub fn launch_checks(threads: u32, shared_bytes: u32) -> String {
    format!("Work::THREADS == {threads} && Work::SMEM_BYTES == {shared_bytes}")
}

/// A GEMM's element types as template arguments.
pub fn type_arguments(types: Types) -> String {
    let Types { a, b, accumulator, out } = types;
    [a, b, accumulator, out].map(|dtype| dtype.short_name()).join(", ")
}

/// The condition that `GemmParams` has the size that the host passes.
pub fn params_check() -> String {
    format!("sizeof(GemmParams) == {}", size_of::<GemmParams>())
}
