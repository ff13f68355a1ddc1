//! Metadata: kernels described in the Python dataclasses of `cutlass_api.metadata`.

use std::hash::Hash;
use std::sync::Mutex;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use rustc_hash::{FxBuildHasher, FxHashMap};

use super::dtype::{self, PyDType};
use super::status::Status;
use super::tensors::{DenseTensor, ScaledTensor};
use crate::kernel::{Demand, Design, Kernel, Layout, Major, Operation, Skinny, Sm80, Sm90, Types};
use crate::operand::{self, DType};

fn module(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    MODULE.get_or_try_init(py, || Ok(py.import("cutlass_api.metadata")?.unbind())).map(|module| module.bind(py))
}

/// The `KernelMetadata` of one of our kernels.
pub fn describe<'py>(py: Python<'py>, kernel: &Kernel, class: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let operands = operands(py, kernel.operation(), kernel.types, kernel.demands())?;
    let design = design(py, kernel)?;
    let epilogue = match kernel.epilogue {
        Some(epilogue) => Some(module(py)?.getattr("EpilogueMetadata")?.call1((epilogue.to_string(),))?),
        None => None,
    };
    // Made as pickle makes one, without `__init__`: of a frozen dataclass that is most of the work, and there are thousands.
    static CLASS: PyOnceLock<[Py<PyAny>; 2]> = PyOnceLock::new();
    let [metadata, new] = CLASS.get_or_try_init(py, || {
        let metadata = module(py)?.getattr("KernelMetadata")?;
        Ok::<_, PyErr>([metadata.clone(), metadata.getattr("__new__")?].map(Bound::unbind))
    })?;
    let described = new.bind(py).call1((metadata,))?;
    let fields = described.getattr(intern!(py, "__dict__"))?.cast_into::<PyDict>()?;
    fields.set_item(intern!(py, "kernel_name"), kernel.name())?;
    fields.set_item(intern!(py, "kernel_class"), class)?;
    fields.set_item(intern!(py, "min_cc"), kernel.min_cc())?;
    fields.set_item(intern!(py, "operands"), operands)?;
    fields.set_item(intern!(py, "design"), design)?;
    fields.set_item(intern!(py, "epilogue"), epilogue)?;
    Ok(described)
}

/// What has been made for some key: one object for all kernels that are described alike, for a client that asks every kernel for its
/// name has all of them described.
type Made<K> = Mutex<FxHashMap<K, Py<PyAny>>>;

/// The object made for a key, or a new one.
fn shared<'py, K: Hash + Eq>(
    py: Python<'py>,
    made: &Made<K>,
    key: K,
    make: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let lock = || made.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(known) = lock().get(&key) {
        return Ok(known.bind(py).clone());
    }
    // Python may run other threads while an object is made: not under the lock.
    let new = make()?;
    Ok(lock().entry(key).or_insert(new.unbind()).bind(py).clone())
}

/// What kernels of an operation and some types demand of their operands.
fn operands<'py>(
    py: Python<'py>,
    operation: Operation,
    types: Types,
    demands: [Demand; 3],
) -> PyResult<Bound<'py, PyAny>> {
    static MADE: Made<(Operation, Types, [Demand; 3])> = Mutex::new(FxHashMap::with_hasher(FxBuildHasher));
    shared(py, &MADE, (operation, types, demands), || {
        let module = module(py)?;
        let [a, b, out] = [(types.a, demands[0]), (types.b, demands[1]), (types.out, demands[2])];
        let (a, b, out) = (tensor(py, a.0, a.1)?, tensor(py, b.0, b.1)?, tensor(py, out.0, out.1)?);
        let accumulator = PyDType(types.accumulator);
        match operation {
            Operation::Gemm => module.getattr("GemmOperandsMetadata")?.call1((a, b, out, accumulator)),
            Operation::GroupedGemm => {
                let offsets = tensor(py, DType::I32, Demand::NONE)?;
                module.getattr("GroupedGemmOperandsMetadata")?.call1((a, b, out, offsets, accumulator))
            }
            Operation::Elementwise => module.getattr("ElementwiseOperandsMetadata")?.call1((a, b, out)),
        }
    })
}

/// What is demanded of one operand.
fn tensor(py: Python<'_>, dtype: DType, demand: Demand) -> PyResult<Bound<'_, PyAny>> {
    static MADE: Made<(DType, Demand)> = Mutex::new(FxHashMap::with_hasher(FxBuildHasher));
    shared(py, &MADE, (dtype, demand), || {
        // Strides as the original writes them: batch, row, column; 1 for the contiguous one.
        let stride = demand.order.map(|order| match order {
            Major::Row => (0, 0, 1),
            Major::Column => (0, 1, 0),
        });
        let divisibility = (i64::from(demand.align) / dtype.bytes()).max(1);
        let alignment = demand.align.max(dtype.bytes() as u32);
        module(py)?.getattr("DenseTensorAttributes")?.call1((PyDType(dtype), stride, divisibility, alignment))
    })
}

/// How a kernel is made, in a Python dataclass.
fn design<'py>(py: Python<'py>, kernel: &Kernel) -> PyResult<Bound<'py, PyAny>> {
    static MADE: Made<(Design, i64)> = Mutex::new(FxHashMap::with_hasher(FxBuildHasher));
    // The orders of A and B are their own metadata's to tell. Tiles count elements along K, and so depend on their size.
    let [a, b] = [Major::Row; 2];
    let design = match kernel.design {
        Design::Skinny(config) => Design::Skinny(Skinny { a, b, ..config }),
        Design::Sm80(config) => Design::Sm80(Sm80 { layout: Layout { a, b, ..config.layout }, ..config }),
        Design::Sm90(config) => Design::Sm90(Sm90 { layout: Layout { a, b, ..config.layout }, ..config }),
        other => other,
    };
    let kernel = Kernel { design, ..*kernel };
    shared(py, &MADE, (design, kernel.types.a.bytes()), || make_design(py, &kernel))
}

fn make_design<'py>(py: Python<'py>, kernel: &Kernel) -> PyResult<Bound<'py, PyAny>> {
    let (module, types) = (module(py)?, kernel.types);
    let triple = |values: [u32; 3]| PyTuple::new(py, values);
    Ok(match &kernel.design {
        Design::Reference(_) => py.None().into_bound(py),
        Design::Simt(config) => {
            module.getattr("BLASDesignMetadata")?.call1((triple(config.tile)?, triple([1, 1, 1])?))?
        }
        Design::Elementwise(config) => {
            module.getattr("BLASDesignMetadata")?.call1((triple(config.tile(types))?, triple([1, 1, 1])?))?
        }
        Design::Skinny(config) => module.getattr("SkinnyDesignMetadata")?.call1((
            triple(config.user_tile())?,
            triple([1, 1, config.split])?,
            triple(config.user_warps())?,
            config.stages,
            config.align,
            config.narrow.name(),
        ))?,
        Design::Sm80(config) => module.getattr("Sm80DesignMetadata")?.call1((
            triple(config.tile)?,
            triple([1, 1, 1])?,
            triple([config.warps[0], config.warps[1], 1])?,
            config.stages,
            config.align,
        ))?,
        Design::Sm90(config) => module.getattr("Sm90DesignMetadata")?.call1((
            triple(config.user_tile(types))?,
            triple(config.user_cluster())?,
            config.stages,
            config.schedule.name(),
            config.consumers,
            config.split,
            config.over_grid,
            config.swapped,
            PyTuple::new(py, config.packed)?,
            config.align,
        ))?,
    })
}

/// Whether an operand has the dtype, the stride order, the divisibility (of its strides but the contiguous one, in
/// elements) and the pointer alignment (bytes) that a kernel's metadata asks for. `name` is for the message.
///
/// `stride` is batch first, 1 for the contiguous dimension, as `(0, 0, 1)`; None takes any. A matrix matches without its
/// batch, and dimensions of extent 1 match anything.
#[pyfunction]
#[pyo3(signature = (name, operand, dtype, stride = None, divisibility = 1, ptr_alignment_bytes = None))]
pub fn operand_matches(
    name: &str,
    operand: &Bound<'_, PyAny>,
    dtype: &Bound<'_, PyAny>,
    stride: Option<Vec<i64>>,
    divisibility: i64,
    ptr_alignment_bytes: Option<u64>,
) -> PyResult<Status> {
    let tensor = if let Ok(dense) = operand.cast::<DenseTensor>() {
        dense.get().object(operand.py())
    } else if operand.is_instance_of::<ScaledTensor>() {
        return Ok(Status::because(format!("{name} is a ScaledTensor, the kernel takes a dense one")));
    } else {
        operand.clone()
    };
    let view = operand::read("operand", &tensor)?;
    let expected = dtype::parse(dtype)?;
    if view.dtype != expected {
        return Ok(Status::because(format!("{name} has dtype {}, the kernel works on {expected}", view.dtype)));
    }
    let offset = stride.as_ref().map_or(0, |stride| 3usize.saturating_sub(stride.len()));
    for (dim, wanted) in stride.iter().flatten().enumerate() {
        let dim = dim + offset;
        if *wanted == 1 && view.shape.get(dim).is_some_and(|extent| *extent > 1) && view.stride[dim] != 1 {
            return Ok(Status::because(format!(
                "{name} has strides {:?} (shape {:?}), the kernel asks for {stride:?}",
                view.user_stride(),
                view.user_shape()
            )));
        }
    }
    if divisibility > 1 && view.stride.iter().any(|step| *step != 1 && step % divisibility != 0) {
        return Ok(Status::because(format!(
            "{name} with shape {:?} and strides {:?} is not divisible by {divisibility} elements",
            view.user_shape(),
            view.user_stride()
        )));
    }
    match ptr_alignment_bytes {
        Some(bytes) if bytes > 0 && !view.fake && view.data % bytes != 0 => Ok(Status::because(format!(
            "{name} begins at address {:#x}, which is not aligned to {bytes} bytes",
            view.data
        ))),
        _ => Ok(Status::ok()),
    }
}
