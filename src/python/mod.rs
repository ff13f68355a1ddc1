//! PyO3 classes and functions: they convert arguments, call the core and raise. Only this folder
//! and operand/ depend on Python.

mod arguments;
mod artifact;
mod compilation;
mod cuda;
mod cuda_arguments;
mod discovery;
mod dtype;
mod epilogue;
mod errors;
mod explain;
mod host;
mod instruments;
mod kernel;
mod keywords;
mod log;
mod matmul;
mod metadata;
mod native_arguments;
mod options;
mod prepared;
mod process;
mod product;
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

use pyo3::prelude::*;

/// Rutlass's Rust core. Users import `cutlass_api`, which re-exports these classes.
#[pymodule(gil_used = true)]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::arguments::{
        ElementwiseArguments, GemmArguments, GroupedGemmArguments, RuntimeArguments,
    };
    #[pymodule_export]
    use super::artifact::{CompiledArtifact, PyProgram, Resources};
    #[pymodule_export]
    use super::cuda::CudaFunction;
    #[pymodule_export]
    use super::discovery::{get_kernels, register_kernel_class};
    #[pymodule_export]
    use super::dtype::{PyDType, PyElement};
    #[pymodule_export]
    use super::epilogue::EpilogueArguments;
    #[pymodule_export]
    use super::explain::{PyEstimate, explanation};
    #[pymodule_export]
    use super::instruments::{launch_graphs, native_floor};
    #[pymodule_export]
    use super::kernel::{
        ElementwiseKernel, PyKernel, ReferenceKernel, SimtGemmKernel, SkinnyGemmKernel,
        Sm80GemmKernel, Sm90GemmKernel,
    };
    #[pymodule_export]
    use super::matmul::matmul;
    #[pymodule_export]
    use super::metadata::{describe_epilogue, operand_matches};
    #[pymodule_export]
    use super::options::{
        get_launch_promotion, get_use_c_exchange, set_launch_promotion, set_use_c_exchange,
    };
    #[pymodule_export]
    use super::prepared::PyPreparedLaunch;
    #[pymodule_export]
    use super::product::{check_gemm, launch_gemm};
    #[pymodule_export]
    use super::ranges::watch_torch_profiler;
    #[pymodule_export]
    use super::status::Status;
    #[pymodule_export]
    use super::stream::stream_handle;
    #[pymodule_export]
    use super::tensor_map::PyTensorMap;
    #[pymodule_export]
    use super::tensors::{DenseTensor, KernelOperand, ScaledTensor, TensorWrapper};
    #[pymodule_export]
    use super::trace::{TracedEpilogue, trace_epilogue};
    #[pymodule_export]
    use super::tuning::{
        CudaBenchmark, TimedLaunches, TuningBenchmark, add_tuning_results, clear_tuning_results,
        register_tuning_key, tuning_identity, tuning_mode, tuning_results,
    };
    #[pymodule_export]
    use super::utils::{
        cache_directory, cache_limit, cache_refusal, cache_usage, chip_rates, device_cc,
        device_count, device_facts, header, nvrtc_info, trim_cache,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("ELEMENT_TYPES", super::dtype::element_types(module.py())?)?;
        super::log::install();
        super::ranges::read_environment();
        crate::launch::promotion::read_environment();
        super::process::install(module.py())?;
        super::keywords::install(module.py())?;
        super::utils::set_package_directories(module.py())
    }
}
