//! The Python face: PyO3 classes over the road's stages. Beside operand/, the only folder that knows Python.

mod arguments;
mod artifact;
mod cuda;
mod discovery;
mod dtype;
mod epilogue;
mod errors;
mod kernel;
mod keywords;
mod launch;
mod matmul;
mod metadata;
mod options;
mod prepared;
mod scope;
mod source;
mod status;
mod stream;
mod tensors;
mod trace;
mod utils;

use pyo3::prelude::*;

/// Rutlass's Rust core. Users import `cutlass_api`, which gives these classes their public places.
#[pymodule]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::arguments::{
        ElementwiseArguments, GemmArguments, GroupedGemmArguments, RuntimeArguments,
    };
    #[pymodule_export]
    use super::artifact::{CompiledArtifact, PyProgram};
    #[pymodule_export]
    use super::cuda::CudaFunction;
    #[pymodule_export]
    use super::discovery::{get_kernels, register_kernel_class};
    #[pymodule_export]
    use super::dtype::PyDType;
    #[pymodule_export]
    use super::epilogue::EpilogueArguments;
    #[pymodule_export]
    use super::kernel::{
        ElementwiseKernel, PyKernel, ReferenceKernel, SimtGemmKernel, SkinnyGemmKernel,
        Sm80GemmKernel, Sm90GemmKernel,
    };
    #[pymodule_export]
    use super::launch::{launch_graphs, native_floor};
    #[pymodule_export]
    use super::matmul::matmul;
    #[pymodule_export]
    use super::metadata::operand_matches;
    #[pymodule_export]
    use super::options::{get_use_c_exchange, set_use_c_exchange};
    #[pymodule_export]
    use super::prepared::PreparedLaunch;
    #[pymodule_export]
    use super::status::Status;
    #[pymodule_export]
    use super::stream::stream_handle;
    #[pymodule_export]
    use super::tensors::{DenseTensor, KernelOperand, ScaledTensor, TensorWrapper};
    #[pymodule_export]
    use super::trace::{TracedEpilogue, trace_epilogue};
    #[pymodule_export]
    use super::utils::{
        cache_directory, device_cc, leading_dim, nvrtc_info, stride_order, stride_rank,
        strides_to_layout_string,
    };

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        super::keywords::install(module.py())?;
        super::utils::tell_package_directories(module.py())
    }
}
