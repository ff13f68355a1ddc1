//! The parts of a program's text that a family writes.

use super::operation::{Groups, Operation};
use super::params::GemmParams;
use super::types::Types;

/// What a family contributes to the text of a program.
pub struct ProgramParts {
    /// The name of the function in profilers, after the family. Derived from the values in
    /// `definitions` and `work` alone, so that kernels in which both are equal share a program.
    pub name: String,
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

impl ProgramParts {
    /// The parts of a GEMM without definitions. `launch`: threads and shared memory of a CTA.
    pub fn gemm(header: &'static str, name: String, work: String, launch: [u32; 2]) -> Self {
        let ([threads, shared_bytes], bytes) = (launch, size_of::<GemmParams>());
        let checks = launch_checks(threads, shared_bytes);
        ProgramParts {
            name,
            header,
            definitions: String::new(),
            work,
            parameter: "GemmParams",
            checks: format!("{checks} && sizeof(GemmParams) == {bytes}"),
        }
    }

    /// The same with another parameter, of so many bytes.
    pub fn with_parameter(self, parameter: &'static str, bytes: usize) -> Self {
        let checks = format!("{} && sizeof({parameter}) == {bytes}", self.checks);
        ProgramParts { parameter, checks, ..self }
    }
}

/// The condition that the host launches the threads and shared memory that the program expects.
pub fn launch_checks(threads: u32, shared_bytes: u32) -> String {
    format!("Work::THREADS == {threads} && Work::SMEM_BYTES == {shared_bytes}")
}

/// The start of a GEMM program's name: operation and element types.
pub fn name_of_gemm(groups: Groups, types: Types) -> String {
    let Types { a, b, accumulator, out } = types;
    let [a, b, accumulator, out] = [a, b, accumulator, out].map(|dtype| dtype.short_name());
    format!("{}_{a}x{b}_{accumulator}_{out}", Operation::gemm(groups).name())
}

/// The last template argument of a joint GEMM of so many matrices B, with its comma, and the end of
/// the program's name; both empty for one matrix.
pub fn joint_arguments(matrices: u32) -> (String, String) {
    match matrices {
        1 => Default::default(),
        _ => (format!(", {matrices}"), format!("_joint{matrices}")),
    }
}

/// The orders of A and B in memory: t for row-major, n for column-major, as in names of kernels.
pub fn orders([a_k_major, b_k_major]: [bool; 2]) -> &'static str {
    match (a_k_major, b_k_major) {
        (true, true) => "tn",
        (true, false) => "tt",
        (false, true) => "nn",
        (false, false) => "nt",
    }
}

/// A GEMM's element types as template arguments.
pub fn type_arguments(types: Types) -> String {
    let Types { a, b, accumulator, out } = types;
    [a, b, accumulator, out].map(|dtype| dtype.short_name()).join(", ")
}
