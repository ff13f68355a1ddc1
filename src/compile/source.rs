//! The text of a program: a few lines that include one family's header and name its template parameters.

use super::ENTRY;
use crate::epilogue::functor;
use crate::kernel::{Design, Kernel, Major, Simt};

macro_rules! headers {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../kernels/", $name)))),*]
    };
}

/// The CUDA headers by the names that programs include them under, embedded in the extension.
pub(super) const HEADERS: &[(&str, &str)] = headers![
    "common/epilogue.cuh",
    "common/fusion.cuh",
    "common/operand_tile.cuh",
    "common/params.cuh",
    "common/ptx.cuh",
    "common/raster.cuh",
    "common/types.cuh",
    "simt.cuh",
    "sm80.cuh",
];

/// The program of a kernel; `None` for kernels that are not compiled. Kernels that differ only in how the user's
/// operands map onto it (a column-major output and its transpose) have the same text, and so share a cubin.
pub fn source(kernel: &Kernel) -> Option<String> {
    let epilogue = if kernel.epilogue.is_some() { "Epilogue" } else { "Identity" };
    let (header, family, threads, shared_bytes) = match &kernel.design {
        Design::Reference(_) => return None,
        Design::Simt(config) => {
            let types = kernel.types;
            let [m, n, k] = config.tile;
            let family = format!(
                "SimtGemm<{}, {}, {}, {}, {m}, {n}, {k}, {epilogue}>",
                types.a.short_name(),
                types.b.short_name(),
                types.accumulator.short_name(),
                types.out.short_name()
            );
            ("simt.cuh", family, Simt::THREADS, 0)
        }
        Design::Sm80(config) => {
            let program = config.program();
            let types = if program == *config { kernel.types } else { kernel.types.transposed() };
            let [m, n, k] = program.tile;
            let [warps_m, warps_n] = program.warps;
            let family = format!(
                "Sm80Gemm<{}, {}, {}, {}, {}, {}, {m}, {n}, {k}, {warps_m}, {warps_n}, {}, {}, {epilogue}>",
                types.a.short_name(),
                types.b.short_name(),
                types.accumulator.short_name(),
                types.out.short_name(),
                program.layout.a == Major::Row,
                program.layout.b == Major::Column,
                program.stages,
                program.align
            );
            ("sm80.cuh", family, program.threads(), program.shared_bytes(types))
        }
    };
    let (definitions, declared, passed) = match kernel.epilogue {
        Some(epilogue) => (
            format!("#include \"common/fusion.cuh\"\n\n{}", functor(epilogue, kernel.types.accumulator)),
            ", const __grid_constant__ EpilogueParams epilogue",
            "Epilogue{epilogue}",
        ),
        None => (String::new(), "", "Identity{}"),
    };
    Some(format!(
        r#"#include "{header}"
{definitions}
using Gemm = {family};
// What the host launches with is what the kernel was written for.
static_assert(Gemm::THREADS == {threads} && Gemm::SMEM_BYTES == {shared_bytes}, "host and kernel disagree");

extern "C" __global__ void __launch_bounds__(Gemm::THREADS, Gemm::MIN_CTAS)
{ENTRY}(const __grid_constant__ GemmParams params{declared}) {{
    Gemm::run(params, {passed});
}}
"#
    ))
}
