//! The text of programs: a few lines that include a family's header and instantiate its class
//! template.

use super::fusion::Fusion;
use super::instance::Kernel;
use super::pack::{Pack, PackOperand};
use super::program::ProgramParts;
use super::reduction::{Reduce, ReduceOperand};
use super::rows::{Rows, RowsParams};
use super::types::Types;
use crate::epilogue::{Prologue, Reduction, functor, prologue_functor};

/// The kernel functions of the packing program, the row kernel and the reducing program.
pub const PACK_ENTRY: &str = "rutlass_pack";
pub const PROLOGUE_ENTRY: &str = "rutlass_prologue";
pub const REDUCE_ENTRY: &str = "rutlass_reduce";

/// The name of a kernel's function, which profilers show, and the program that contains it; `None`
/// for kernels that are not compiled. Kernels that differ only in the mapping of the user's
/// operands to the program (a column-major output and its transpose) have the same text and share a
/// cubin.
pub fn source(kernel: &Kernel) -> Option<(String, String)> {
    let (types, epilogue) = (kernel.program_types(), kernel.fused_epilogue());
    // A joint GEMM without an epilogue of the user stores its sums.
    let is_plain = !Fusion::from(epilogue).is_fused();
    let functor_type = if is_plain { "Identity" } else { "Epilogue" };
    let parts = kernel.design.family().program(types, functor_type)?;
    let (declared, passed) = match epilogue {
        Some(_) if is_plain => (", const __grid_constant__ EpilogueParams", "Identity{}"),
        Some(_) => (", const __grid_constant__ EpilogueParams epilogue", "Epilogue{epilogue}"),
        None => ("", "Identity{}"),
    };
    let fusion = epilogue.map_or_else(String::new, |epilogue| {
        if is_plain {
            return "struct EpilogueParams { unsigned long long nothing; };\n".to_owned();
        }
        let transposed = kernel.frame.is_transposed();
        let functor = functor(epilogue, types.accumulator, transposed, kernel.facts.swapped);
        format!("#include \"common/fusion.cuh\"\n\n{functor}")
    });
    let ProgramParts { name, header, definitions, work, parameter, checks } = parts;
    let fused = if !is_plain { "_fused" } else { "" };
    let entry = format!("rutlass_{}_{name}{fused}", kernel.facts.family);
    let text = format!(
        r#"#include "{header}"
{definitions}{fusion}
using Work = {work};
// The host launches what the kernel was written for.
static_assert({checks}, "host and kernel disagree");

extern "C" __global__ void __launch_bounds__(Work::THREADS, Work::MIN_CTAS)
{entry}(const __grid_constant__ {parameter} params{declared}) {{
    Work::run(params, {passed});
}}
"#
    );
    Some((entry, text))
}

/// The program that packs operands of these types. If their elements differ in size, the program's
/// A has the smaller ones.
pub fn pack_source(types: Types) -> String {
    let (a, b) = (types.a.bytes().min(types.b.bytes()), types.a.bytes().max(types.b.bytes()));
    format!(
        r#"#include "pack.cuh"

using Copy = Pack<{a}, {b}>;
static_assert(Copy::THREADS == {threads} && sizeof(PackOperand) == {bytes},
              "host and kernel disagree");

extern "C" __global__ void __launch_bounds__(Copy::THREADS, Copy::MIN_CTAS)
{PACK_ENTRY}(const __grid_constant__ PackParams params) {{
    Copy::run(params);
}}
"#,
        threads = Pack::THREADS,
        bytes = size_of::<PackOperand>(),
    )
}

/// The program of the row kernel that computes a prologue.
pub fn prologue_source(prologue: &Prologue) -> String {
    format!(
        r#"#include "rows.cuh"

{functor}
using Work = Rows<Prologue>;
static_assert(Work::THREADS == {threads} && sizeof(RowsParams) == {bytes},
              "host and kernel disagree");

extern "C" __global__ void __launch_bounds__(Work::THREADS)
{PROLOGUE_ENTRY}(const __grid_constant__ RowsParams params,
                 const __grid_constant__ PrologueParams prologue) {{
    Work::run(params, Prologue{{prologue}});
}}
"#,
        functor = prologue_functor(prologue),
        threads = Rows::THREADS,
        bytes = size_of::<RowsParams>(),
    )
}

/// The program that reduces the partial results of these reductions.
pub fn reduce_source(reductions: &[Reduction]) -> String {
    let one = |Reduction { fold, compute, out, .. }: &Reduction| {
        format!(
            "Reduce<{}, fused::{}, {}>",
            compute.short_name(),
            fold.record().cuda,
            out.short_name()
        )
    };
    let all: Vec<String> = reductions.iter().map(one).collect();
    format!(
        r#"#include "reduce.cuh"

static_assert({first}::THREADS == {threads} && {first}::WIDTH == {width} &&
                  sizeof(ReduceOperand) == {bytes},
              "host and kernel disagree");

extern "C" __global__ void __launch_bounds__({threads})
{REDUCE_ENTRY}(const __grid_constant__ ReduceParams<{count}> params) {{
    reduce_all<{all}>(params);
}}
"#,
        first = all[0],
        threads = Reduce::THREADS,
        width = Reduce::WIDTH,
        bytes = size_of::<ReduceOperand>(),
        count = all.len(),
        all = all.join(", "),
    )
}
