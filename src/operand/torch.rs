//! torch's tensors, asked through the C functions that torch keeps stable for the models that it compiles:
//! `torch/csrc/inductor/aoti_torch/c/shim.h`. They answer in a nanosecond or two each, where torch's exchange table takes a reference
//! to the tensor and builds a description of it.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use libloading::Library;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use super::dlpack::{ExchangeApi, TensorDescription, TensorRecord, has_shape_and_strides};
use super::{DType, Device, View};

/// `AtenTensorHandle`: the address of an `at::Tensor`.
type Handle = *const c_void;
/// A function that writes what it is asked for, and returns 0 if it could.
type Getter<T> = unsafe extern "C" fn(Handle, *mut T) -> i32;

/// How torch's tensors are query.
pub(super) struct Torch {
    pub exchange: ExchangeApi,
    /// Bytes from the start of a tensor's Python object to the `at::Tensor` in it.
    offset: usize,
    data_ptr: Getter<*const c_void>,
    dim: Getter<i64>,
    sizes: Getter<*const i64>,
    strides: Getter<*const i64>,
    storage_offset: Getter<i64>,
    dtype: Getter<i32>,
    layout: Getter<i32>,
    device_type: Getter<i32>,
    device_index: Getter<i32>,
    /// What torch's numbers mean: each type by its number, and the numbers of the devices and the layout that operands may have.
    dtypes: [Option<DType>; 64],
    cpu: i32,
    cuda: i32,
    strided: i32,
    /// Whose functions these are.
    _library: Library,
}

impl Torch {
    /// How tensors of this type, which offers the exchange table, are asked; None where they are not torch's own, or this torch has
    /// not all that it takes. `tensor` is one of them.
    pub(super) fn of_type(
        tensor_type: &Bound<'_, PyType>,
        exchange: ExchangeApi,
        tensor: &Bound<'_, PyAny>,
    ) -> Option<&'static Torch> {
        static TORCH: PyOnceLock<Option<Torch>> = PyOnceLock::new();
        let py = tensor.py();
        let class = py
            .import("sys")
            .ok()?
            .getattr("modules")
            .ok()?
            .get_item("torch")
            .ok()?
            .getattr("Tensor")
            .ok()?;
        // A class with a dispatcher of its own answers for what it wraps.
        let dispatch = (
            tensor_type.getattr("__torch_dispatch__").ok()?,
            class.getattr("__torch_dispatch__").ok()?,
        );
        let plain = tensor_type.is_subclass(&class).ok()? && dispatch.0.is(&dispatch.1);
        if !plain || ExchangeApi::of_type(&class).ok()? != Some(exchange) {
            return None;
        }
        TORCH.get_or_init(py, || Torch::open(exchange, tensor)).as_ref()
    }

    fn open(exchange: ExchangeApi, tensor: &Bound<'_, PyAny>) -> Option<Torch> {
        let library = loaded_library()?;
        let offset = find_handle_offset(tensor, &library).ok()??;
        let mut dtypes = [None; 64];
        for dtype in DType::all() {
            let number = constant(&library, &format!("dtype_{dtype}"))?;
            *dtypes.get_mut(usize::try_from(number).ok()?)? = Some(dtype);
        }
        let (cpu, cuda) =
            (constant(&library, "device_type_cpu")?, constant(&library, "device_type_cuda")?);
        // SAFETY: the functions of these names have these types: shim.h.
        unsafe {
            Some(Torch {
                exchange,
                offset,
                data_ptr: *library.get("aoti_torch_get_data_ptr").ok()?,
                dim: *library.get("aoti_torch_get_dim").ok()?,
                sizes: *library.get("aoti_torch_get_sizes").ok()?,
                strides: *library.get("aoti_torch_get_strides").ok()?,
                storage_offset: *library.get("aoti_torch_get_storage_offset").ok()?,
                dtype: *library.get("aoti_torch_get_dtype").ok()?,
                layout: *library.get("aoti_torch_get_layout").ok()?,
                device_type: *library.get("aoti_torch_get_device_type").ok()?,
                device_index: *library.get("aoti_torch_get_device_index").ok()?,
                dtypes,
                cpu,
                cuda,
                strided: constant(&library, "layout_strided")?,
                _library: library,
            })
        }
    }

    /// Takes in what a tensor states; None where it is for the exchange table to say, or to refuse.
    #[inline(always)]
    pub(super) fn read(
        &self,
        tensor: &Bound<'_, PyAny>,
        into: &mut impl TensorRecord,
    ) -> Option<PyResult<()>> {
        let query = TensorQuery { torch: self, handle: self.handle(tensor) };
        // In an order in which nothing is asked that a tensor without plain memory would not answer.
        if query.get(self.layout)? != self.strided {
            return None;
        }
        let (dtype, device) = (query.dtype()?, query.device()?);
        let rank = usize::try_from(query.get(self.dim)?).ok()?;
        let (sizes, strides) = (query.get(self.sizes)?, query.get(self.strides)?);
        let (data, offset) = (query.get(self.data_ptr)? as u64, query.get(self.storage_offset)?);
        // Of a tensor inside a storage that was freed (`resize_(0)`), torch tells how far from address 0 it would be.
        let freed = data == offset.wrapping_mul(dtype.bytes()) as u64;
        let data = if freed { 0 } else { data };
        // SAFETY: both arrays have `rank` numbers, and are the tensor's until control goes back to Python.
        let (shape, strides) = unsafe { (slice_at(sizes, rank), slice_at(strides, rank)) };
        let description = TensorDescription {
            data,
            dtype,
            device,
            shape,
            strides: Some(strides),
            read_only: false,
            fake: false,
        };
        Some(into.fill(description))
    }

    /// Whether a tensor is known to be what a view of it says.
    #[inline(always)]
    pub(super) fn matches_view(&self, tensor: &Bound<'_, PyAny>, view: &View) -> bool {
        self.compare(tensor, view).unwrap_or(false)
    }

    #[inline(always)]
    fn compare(&self, tensor: &Bound<'_, PyAny>, view: &View) -> Option<bool> {
        let query = TensorQuery { torch: self, handle: self.handle(tensor) };
        // In the order of `read`, but for the layout: what has another has none of the strides either, and torch says so.
        let same = query.dtype()? == view.dtype
            && query.device()? == view.device
            && query.get(self.dim)? == view.rank as i64;
        if !same {
            return Some(false);
        }
        let (sizes, strides) = (query.get(self.sizes)?, query.get(self.strides)?);
        // SAFETY: as in `read`.
        let same = unsafe { has_shape_and_strides(view, sizes, strides) };
        Some(same && query.get(self.data_ptr)? as u64 == view.data)
    }

    fn handle(&self, tensor: &Bound<'_, PyAny>) -> Handle {
        tensor.as_ptr().cast::<u8>().wrapping_add(self.offset).cast()
    }
}

/// A tensor that is being query.
struct TensorQuery<'a> {
    torch: &'a Torch,
    handle: Handle,
}

impl TensorQuery<'_> {
    #[inline(always)]
    fn get<T>(&self, function: Getter<T>) -> Option<T> {
        let mut value = MaybeUninit::uninit();
        // SAFETY: the handle points to the `at::Tensor` in a Python object of torch's class, which the caller holds, and with it the
        // GIL: nobody changes it meanwhile. The functions catch what they call throws, and write where they return 0.
        unsafe { (function(self.handle, value.as_mut_ptr()) == 0).then(|| value.assume_init()) }
    }

    #[inline(always)]
    fn dtype(&self) -> Option<DType> {
        let number = self.get(self.torch.dtype)?;
        self.torch.dtypes.get(number as usize).copied().flatten()
    }

    #[inline(always)]
    fn device(&self) -> Option<Device> {
        match self.get(self.torch.device_type)? {
            kind if kind == self.torch.cuda => self.get(self.torch.device_index).map(Device::Cuda),
            kind if kind == self.torch.cpu => Some(Device::Cpu),
            _ => None,
        }
    }
}

/// # Safety
/// There are as many numbers at the address, for as long as the slice is looked at.
unsafe fn slice_at<'a>(pointer: *const i64, count: usize) -> &'a [i64] {
    if count == 0 {
        return &[]; // there may be no array
    }
    // SAFETY: the caller's.
    unsafe { std::slice::from_raw_parts(pointer, count) }
}

/// Where a tensor's Python object has its `at::Tensor`, which is one pointer to what torch keeps of the tensor. A handle made for the
/// purpose tells that pointer, and the object's words are searched for it.
fn find_handle_offset(tensor: &Bound<'_, PyAny>, library: &Library) -> PyResult<Option<usize>> {
    let py = tensor.py();
    // SAFETY: the function of this name has this type: shim.h.
    let delete = unsafe {
        library.get::<unsafe extern "C" fn(Handle) -> i32>("aoti_torch_delete_tensor_object")
    };
    let Ok(delete) = delete else { return Ok(None) };
    let size: usize = tensor.get_type().getattr("__basicsize__")?.extract()?;
    let aoti = py.import("torch")?.getattr("_C")?.getattr("_aoti")?;
    let capsule = aoti.call_method1("unsafe_alloc_void_ptr_from_tensor", (tensor,))?;
    // SAFETY: the capsule, which has no name, holds the address of an `at::Tensor` that is ours to delete; an object has as many bytes
    // as its type says.
    unsafe {
        let handle = ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null()).cast::<usize>();
        if handle.is_null() {
            return Err(PyErr::fetch(py));
        }
        let words =
            std::slice::from_raw_parts(tensor.as_ptr().cast::<usize>(), size / size_of::<usize>());
        let word = words.iter().position(|word| *word == *handle);
        delete(handle.cast());
        Ok(word.map(|word| word * size_of::<usize>()))
    }
}

/// torch's library, which is in the process already: another copy of it would do harm.
#[cfg(target_os = "linux")]
fn loaded_library() -> Option<Library> {
    use libloading::os::unix;
    /// `RTLD_NOLOAD` of dlfcn.h.
    const NO_LOAD: i32 = 4;
    // SAFETY: nothing is loaded, so no code runs.
    unsafe {
        unix::Library::open(Some("libtorch_cpu.so"), unix::RTLD_LAZY | NO_LOAD)
            .ok()
            .map(Library::from)
    }
}

#[cfg(not(target_os = "linux"))]
fn loaded_library() -> Option<Library> {
    None
}

/// A constant of torch's, which a function of this name returns.
fn constant(library: &Library, name: &str) -> Option<i32> {
    // SAFETY: the functions that are asked for take nothing and return a number: shim.h.
    unsafe {
        library
            .get::<unsafe extern "C" fn() -> i32>(format!("aoti_torch_{name}"))
            .ok()
            .map(|function| function())
    }
}
