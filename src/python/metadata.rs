//! Kernels described by the Python dataclasses of `cutlass_api.metadata`.

use std::ffi::c_void;
use std::hash::Hash;
use std::ptr::null_mut;
use std::sync::Mutex;

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple, PyType};
use rustc_hash::{FxBuildHasher, FxHashMap};

use super::arguments::native;
use super::dtype::{PyDType, parse};
use super::epilogue::EpilogueArguments;
use super::native_arguments::NativeArguments;
use super::status::Status;
use super::tensors::{DenseTensor, ScaledTensor};
use crate::epilogue::{BlockScale, Epilogue, Input, Scaling};
use crate::kernel::{Demand, Description, Kernel, Major, Operation, Types, Value};
use crate::operand::{self, DType, OnceValue};

/// A dataclass of `cutlass_api.metadata`, with slots.
struct Dataclass {
    name: &'static str,
    constructor: OnceValue<Constructor>,
}

struct Constructor {
    class: Py<PyType>,
    new: ffi::newfunc,
    no_arguments: Py<PyTuple>,
    slots: Vec<Slot>,
}

/// The slot of a field.
struct Slot {
    descriptor: Py<PyAny>,
    set: ffi::descrsetfunc,
}

impl Dataclass {
    const fn named(name: &'static str) -> Dataclass {
        Dataclass { name, constructor: OnceValue::new() }
    }

    fn constructor(&self, py: Python<'_>) -> PyResult<&Constructor> {
        self.constructor.get_or_try_init(py, || {
            let class = py.import("cutlass_api.metadata")?.getattr(self.name)?;
            let fields = py.import("dataclasses")?.call_method1("fields", (&class,))?.try_iter()?;
            let class = class.cast_into::<PyType>()?;
            let slots = fields.map(|field| {
                let descriptor = class.getattr(field?.getattr("name")?.cast_into::<PyString>()?)?;
                // SAFETY: this slot holds a `descrsetfunc` or null, which is None.
                let set = unsafe {
                    let set = ffi::PyType_GetSlot(
                        descriptor.get_type().as_type_ptr(),
                        ffi::Py_tp_descr_set,
                    );
                    std::mem::transmute::<*mut c_void, Option<ffi::descrsetfunc>>(set)
                };
                let set = set.ok_or_else(|| no_slots(self.name))?;
                Ok(Slot { descriptor: descriptor.unbind(), set })
            });
            let slots = slots.collect::<PyResult<_>>()?;
            // SAFETY: this slot holds a `newfunc`; every Python class inherits one.
            let new = unsafe {
                let new = ffi::PyType_GetSlot(class.as_type_ptr(), ffi::Py_tp_new);
                std::mem::transmute::<*mut c_void, Option<ffi::newfunc>>(new)
            };
            let new = new.ok_or_else(|| no_slots(self.name))?;
            Ok(Constructor {
                class: class.unbind(),
                new,
                no_arguments: PyTuple::empty(py).unbind(),
                slots,
            })
        })
    }

    /// An object with the values of all fields, in the order of the fields. Skips `__init__` and
    /// the `__setattr__` of a frozen dataclass, which are slow; discovery makes thousands of
    /// objects.
    fn object<'py>(
        &self,
        py: Python<'py>,
        values: impl IntoIterator<Item = Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let Constructor { class, new, no_arguments, slots } = self.constructor(py)?;
        // SAFETY: the class's own `__new__`, with no arguments. It returns a new reference, or null
        // with an exception.
        let object = unsafe {
            let class = class.as_ptr().cast();
            Bound::from_owned_ptr_or_err(py, new(class, no_arguments.as_ptr(), null_mut()))?
        };
        for (slot, value) in slots.iter().zip(values) {
            // SAFETY: the `__set__` of the descriptor's type, with three live objects.
            let status =
                unsafe { (slot.set)(slot.descriptor.as_ptr(), object.as_ptr(), value.as_ptr()) };
            if status != 0 {
                return Err(PyErr::fetch(py));
            }
        }
        Ok(object)
    }
}

/// The error for a dataclass whose objects this module cannot fill.
fn no_slots(class: &str) -> PyErr {
    PyTypeError::new_err(format!(
        "the class {class} of cutlass_api.metadata has no slots; keep it as the package has it"
    ))
}

/// The `KernelMetadata` of a built-in kernel.
pub fn describe<'py>(
    py: Python<'py>,
    kernel: &Kernel,
    class: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    static METADATA: Dataclass = Dataclass::named("KernelMetadata");
    static EPILOGUE: Dataclass = Dataclass::named("EpilogueMetadata");
    // The scales of operands are no epilogue of the user.
    let of_user = kernel.epilogue.filter(|epilogue| !epilogue.graph.only_scales_operands());
    let epilogue = match of_user {
        Some(epilogue) => EPILOGUE.object(py, [any(py, epilogue.to_string())?])?,
        None => py.None().into_bound(py),
    };
    lasting(|| {
        let mut operands = operands(py, kernel.facts.operation, kernel.types, kernel.demands())?;
        if let Some(epilogue) = kernel.epilogue
            && let Some(scaling) = epilogue.graph.scaling.filter(|scaling| scaling.is_of_operands)
        {
            operands = with_scales(py, &operands, epilogue, scaling)?;
        }
        let (name, min_cc) = (any(py, kernel.name())?, any(py, kernel.facts.min_cc)?);
        let values = [name, class.clone(), min_cc, operands, design(py, kernel)?, epilogue];
        METADATA.object(py, values)
    })
}

/// Makes an object that lives as long as the process. The garbage collector does not run meanwhile,
/// and does not see the object: it would traverse thousands of kernels and their metadata, and what
/// imports made, many times while a client lists the kernels.
pub fn lasting<'py, T>(make: impl FnOnce() -> PyResult<Bound<'py, T>>) -> PyResult<Bound<'py, T>> {
    /// Enables the collector when it goes out of scope, also after a panic, which Python catches.
    struct Pause;
    impl Drop for Pause {
        fn drop(&mut self) {
            // SAFETY: the lifetime 'py shows that this thread is attached to the interpreter.
            unsafe { ffi::PyGC_Enable() };
        }
    }
    // SAFETY: as above.
    let pause = unsafe { ffi::PyGC_Disable() != 0 }.then_some(Pause);
    let made = make();
    drop(pause);
    // SAFETY: a live object of a type with support for garbage collection.
    made.inspect(|object| unsafe { ffi::PyObject_GC_UnTrack(object.as_ptr().cast()) })
}

/// A value as a Python object.
fn any<'py>(py: Python<'py>, value: impl IntoPyObject<'py>) -> PyResult<Bound<'py, PyAny>> {
    value.into_bound_py_any(py)
}

/// Shared objects by key. Kernels with equal metadata share one object, which keeps a listing of
/// all kernels cheap.
type Cache<K> = Mutex<FxHashMap<K, Py<PyAny>>>;

/// The cached object of a key, created on first use.
fn shared<'py, K: Hash + Eq>(
    py: Python<'py>,
    cache: &Cache<K>,
    key: K,
    make: impl FnOnce(&K) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let lock = || cache.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(cached) = lock().get(&key) {
        return Ok(cached.bind(py).clone());
    }
    // Create the object without the lock: Python may switch threads meanwhile.
    let new = make(&key)?;
    Ok(lock().entry(key).or_insert(new.unbind()).bind(py).clone())
}

/// The demands on the operands of kernels with an operation and types.
fn operands<'py>(
    py: Python<'py>,
    operation: Operation,
    types: Types,
    demands: [Demand; 3],
) -> PyResult<Bound<'py, PyAny>> {
    static CACHE: Cache<(Operation, Types, [Demand; 3])> =
        Mutex::new(FxHashMap::with_hasher(FxBuildHasher));
    shared(py, &CACHE, (operation, types, demands), |_| {
        static GEMM: Dataclass = Dataclass::named("GemmOperandsMetadata");
        static GROUPED: Dataclass = Dataclass::named("GroupedGemmOperandsMetadata");
        static ELEMENTWISE: Dataclass = Dataclass::named("ElementwiseOperandsMetadata");
        let [a, b, out] = [(types.a, demands[0]), (types.b, demands[1]), (types.out, demands[2])];
        let (a, b, out) = (tensor(py, a.0, a.1)?, tensor(py, b.0, b.1)?, tensor(py, out.0, out.1)?);
        let accumulator = dtype(py, types.accumulator)?;
        match operation {
            Operation::Gemm => GEMM.object(py, [a, b, out, accumulator]),
            Operation::GroupedGemm | Operation::GroupedGemmAlongK => {
                let ends = tensor(py, DType::I32, Demand::NONE)?;
                let along = any(py, if operation == Operation::GroupedGemm { "m" } else { "k" })?;
                GROUPED.object(py, [a, b, out, ends, accumulator, along])
            }
            Operation::Elementwise => ELEMENTWISE.object(py, [a, b, out]),
        }
    })
}

/// The metadata of operands with scales.
fn with_scales<'py>(
    py: Python<'py>,
    operands: &Bound<'py, PyAny>,
    epilogue: &Epilogue,
    scaling: Scaling,
) -> PyResult<Bound<'py, PyAny>> {
    let (metadata, library) =
        (py.import("cutlass_api.metadata")?, py.import("cutlass_api.library")?);
    let changed = PyDict::new(py);
    for (name, BlockScale { scale, extent, depth, is_swizzled, .. }) in scaling.factors() {
        let Input::Tensor(tensor) = epilogue.inputs[scale as usize] else { continue };
        let block = (1, extent, depth).into_pyobject(py)?.into_any();
        let mode = library.getattr("ScaleMode")?.call1((&block,)).unwrap_or(block);
        let swizzle = if is_swizzled { "Swizzle32x4x4" } else { "SwizzleNone" };
        let swizzle = library.getattr("ScaleSwizzleMode")?.getattr(swizzle)?;
        let values = (operands.getattr(name)?, dtype(py, tensor.dtype)?, mode, swizzle);
        changed.set_item(name, metadata.getattr("ScaledTensorAttributes")?.call1(values)?)?;
    }
    py.import("dataclasses")?.getattr("replace")?.call((operands,), Some(&changed))
}

fn dtype(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    static CACHE: Cache<DType> = Mutex::new(FxHashMap::with_hasher(FxBuildHasher));
    shared(py, &CACHE, dtype, |dtype| any(py, PyDType(*dtype)))
}

/// The demands on one operand.
fn tensor(py: Python<'_>, element: DType, demand: Demand) -> PyResult<Bound<'_, PyAny>> {
    static CACHE: Cache<(DType, Demand)> = Mutex::new(FxHashMap::with_hasher(FxBuildHasher));
    static DENSE: Dataclass = Dataclass::named("DenseTensorAttributes");
    shared(py, &CACHE, (element, demand), |_| {
        // The stride convention of `cutlass_api`: batch, row, column; 1 for the contiguous one.
        let stride = demand.order.map(|order| match order {
            Major::Row => (0, 0, 1),
            Major::Column => (0, 1, 0),
        });
        let divisibility = i64::from((8 * demand.align / element.bits()).max(1));
        let alignment = demand.align.max(element.bytes() as u32);
        DENSE.object(
            py,
            [dtype(py, element)?, any(py, stride)?, any(py, divisibility)?, any(py, alignment)?],
        )
    })
}

/// The design metadata of a kernel. Kernels of equal designs share an object.
fn design<'py>(py: Python<'py>, kernel: &Kernel) -> PyResult<Bound<'py, PyAny>> {
    static CACHE: Cache<Description> = Mutex::new(FxHashMap::with_hasher(FxBuildHasher));
    static CLASSES: [Dataclass; 5] = [
        Dataclass::named("BLASDesignMetadata"),
        Dataclass::named("SimtDesignMetadata"),
        Dataclass::named("SkinnyDesignMetadata"),
        Dataclass::named("Sm80DesignMetadata"),
        Dataclass::named("Sm90DesignMetadata"),
    ];
    let Some(description) = kernel.description() else { return Ok(py.None().into_bound(py)) };
    shared(py, &CACHE, description, |Description { class: name, values }| {
        let values = values.iter().map(|value| design_value(py, *value));
        let values = values.collect::<PyResult<Vec<_>>>()?;
        let class = CLASSES.iter().find(|class| class.name == *name);
        class.ok_or_else(|| no_slots(name))?.object(py, values)
    })
}

fn design_value(py: Python<'_>, value: Value) -> PyResult<Bound<'_, PyAny>> {
    match value {
        Value::Extents([m, n, k]) => any(py, (m, n, k)),
        Value::Operands([a, b]) => any(py, (a, b)),
        Value::Dimension(of) => any(py, ["m", "n"][of]),
        Value::Count(count) => any(py, count),
        Value::Flag(flag) => any(py, flag),
        Value::Name(name) => any(py, name),
    }
}

/// The epilogue of `args` in words, as the metadata of kernels that fuse it has it; None if `args`
/// has none that built-in kernels fuse. args: arguments of an operation, or `EpilogueArguments`,
/// which are assumed to follow a floating-point accumulator.
#[pyfunction]
pub fn describe_epilogue(args: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    if let Ok(epilogue) = args.cast::<EpilogueArguments>() {
        return epilogue.get().describe().map(Some);
    }
    let bound = native(args)?.and_then(NativeArguments::bound_epilogue);
    Ok(bound.map(|bound| bound.epilogue.to_string()))
}

/// Whether an operand has the dtype, stride order, divisibility and pointer alignment of a kernel's
/// metadata. `name` is the operand's name in the message of the status.
///
/// `stride` starts with the batch and is 1 for the contiguous dimension, as in `(0, 0, 1)`; None
/// accepts any order. A matrix matches without its batch. A dimension of extent 1 matches any
/// stride. `divisibility` applies to all strides but the contiguous one, in elements.
#[pyfunction]
#[pyo3(signature = (
    name, operand, dtype, stride = None, divisibility = 1, ptr_alignment_bytes = None
))]
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
        return Ok(Status::because(format!(
            "{name} has scales; the kernel requires a DenseTensor"
        )));
    } else {
        operand.clone()
    };
    let view = operand::read("operand", &tensor)?;
    let expected = parse(dtype)?;
    if view.dtype != expected {
        return Ok(Status::because(format!(
            "{name} has dtype {}; the kernel requires {expected}",
            view.dtype
        )));
    }
    // The strides of an operand without elements are never used.
    if view.numel() == 0 {
        return Ok(Status::ok());
    }
    let offset = stride.as_ref().map_or(0, |stride| 3usize.saturating_sub(stride.len()));
    for (dim, wanted) in stride.iter().flatten().enumerate() {
        let dim = dim + offset;
        if *wanted == 1
            && view.shape.get(dim).is_some_and(|extent| *extent > 1)
            && view.stride[dim] != 1
        {
            return Ok(Status::because(format!(
                "{name} has strides {:?} (shape {:?}); the kernel requires {:?}",
                view.user_stride(),
                view.user_shape(),
                stride.as_deref().unwrap_or_default()
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
        Some(bytes) if bytes > 0 && !view.fake && view.data % bytes != 0 => {
            Ok(Status::because(format!(
                "{name} begins at address {:#x}, which is not aligned to {bytes} bytes",
                view.data
            )))
        }
        _ => Ok(Status::ok()),
    }
}
