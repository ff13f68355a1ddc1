//! PyO3 classes and functions: they convert arguments, call the core and raise. Only this folder
//! and operand/ depend on Python.

mod arguments;
mod artifact;
mod choosing;
mod compilation;
mod cuda;
mod cuda_arguments;
mod discovery;
mod dispatch;
mod dtype;
mod epilogue;
mod errors;
mod explain;
#[cfg(feature = "fit")]
mod fit;
mod fused_operands;
mod host;
mod instruments;
mod joint;
mod kernel;
mod linear;
mod log;
mod matmul;
mod metadata;
mod native_arguments;
mod options;
mod parameter;
mod prepared;
mod process;
mod product;
mod prologue;
mod ranges;
mod replace;
mod run;
mod serving;
mod status;
mod stream;
mod support;
mod tensor_map;
mod tensors;
mod trace;
mod tuning;
mod utils;
mod xla;

use pyo3::prelude::*;

/// Rutlass's Rust core. Users import `cutlass_api`, which re-exports these classes.
#[pymodule(gil_used = true)]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::{
        arguments::{
            ElementwiseArguments, GemmArguments, GroupedGemmArguments, OpenGemmArguments,
            RuntimeArguments,
        },
        artifact::{CompiledArtifact, PyProgram, PyResources},
        cuda::CudaFunction,
        discovery::{get_kernels, register_kernel_class},
        dispatch::computes_alone,
        dtype::{PyDType, PyElement, described_dtype, product_dtypes},
        epilogue::EpilogueArguments,
        explain::{PyEstimate, explanation},
        instruments::{launch_graphs, native_floor},
        kernel::{
            ElementwiseKernel, PyKernel, ReferenceKernel, SimtGemmKernel, SkinnyGemmKernel,
            Sm80GemmKernel, Sm90GemmKernel, kernel_by_name,
        },
        linear::launch_linear,
        matmul::matmul,
        metadata::{describe_epilogue, operand_matches},
        options::{
            get_device_checks, get_launch_promotion, get_use_c_exchange, set_launch_promotion,
            set_use_c_exchange,
        },
        prepared::PyPreparedLaunch,
        product::{check_gemm, launch_gemm},
        prologue::PrologueArguments,
        ranges::watch_torch_profiler,
        status::Status,
        stream::stream_handle,
        tensor_map::PyTensorMap,
        tensors::{DenseTensor, KernelOperand, ScaledTensor, TensorWrapper},
        trace::{EpilogueFunction, TracedEpilogue, epilogue_functions, trace_epilogue},
        tuning::{
            CudaBenchmark, TimedLaunches, TuningBenchmark, add_tuning_results,
            clear_tuning_results, register_tuning_key, replace_tuning_mode, tuning_identity,
            tuning_mode, tuning_results,
        },
        utils::{
            cache_directory, cache_limit, cache_refusal, cache_usage, chip_rates, device_cc,
            device_count, device_facts, header, nvrtc_info, trim_cache,
        },
        xla::{xla_handlers, xla_structs, xla_workspace},
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("ELEMENT_TYPES", super::dtype::element_types(module.py())?)?;
        super::log::install();
        super::ranges::read_environment();
        crate::launch::promotion::read_environment();
        super::process::install(module.py())?;
        #[cfg(feature = "fit")]
        super::fit::install(module)?;
        super::utils::set_package_directories(module.py())
    }
}
