//! Reads torch tensors through the C functions that torch keeps stable for AOTInductor:
//! `torch/csrc/inductor/aoti_torch/c/shim.h`. Unlike torch's exchange table, these functions
//! neither take a reference to the tensor nor build a description.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use libloading::Library;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::dlpack::{ExchangeApi, TensorDescription, TensorRecord, has_shape_and_strides};
use super::once::OnceValue;
use super::{DType, DeviceId, Element, Storage, View};

/// `AtenTensorHandle`: the address of an `at::Tensor`.
type Handle = *const c_void;
/// A function that writes one property and returns 0 on success.
type Getter<T> = unsafe extern "C" fn(Handle, *mut T) -> i32;

/// torch's C functions and constants.
pub(super) struct Torch {
    pub exchange: ExchangeApi,
    /// Bytes from the start of a tensor's Python object to its `at::Tensor`.
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
    /// Element types by torch's number. Below: torch's constants for device types and layout.
    dtypes: [Option<DType>; 64],
    cpu: i32,
    cuda: i32,
    strided: i32,
    /// Keeps the functions above valid.
    _library: Library,
}

impl Torch {
    /// The functions that read tensors of this type. `None` for a type that is not torch's own or a
    /// torch that lacks a function. `tensor` is a tensor of this type; `exchange` is its table.
    ///
    /// - Key: none, one torch per process.
    /// - Owner: this function.
    /// - Lifetime: the process, like torch's library.
    /// - Invalidation: none. A failed search is stored too.
    pub(super) fn of_type(
        tensor_type: &Bound<'_, PyType>,
        exchange: ExchangeApi,
        tensor: &Bound<'_, PyAny>,
    ) -> Option<&'static Torch> {
        static TORCH: OnceValue<Option<Torch>> = OnceValue::new();
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
        // A class with its own `__torch_dispatch__` may define its tensors' properties in Python.
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
        let dtypes = dtypes_by_number(|name| constant(&library, &format!("dtype_{name}")));
        let (cpu, cuda) =
            (constant(&library, "device_type_cpu")?, constant(&library, "device_type_cuda")?);
        // SAFETY: shim.h declares these functions with these types.
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

    /// Fills a record. `None` for a tensor that the exchange table must read or refuse.
    #[inline(always)]
    pub(super) fn read(
        &self,
        tensor: &Bound<'_, PyAny>,
        into: &mut impl TensorRecord,
    ) -> Option<PyResult<()>> {
        let query = TensorQuery { torch: self, handle: self.handle(tensor) };
        // The layout comes first: tensors without strided memory raise on the later queries.
        if query.get(self.layout)? != self.strided {
            return None;
        }
        let (dtype, device) = (query.dtype()?, query.device()?);
        let rank = usize::try_from(query.get(self.dim)?).ok()?;
        let (sizes, strides) = (query.get(self.sizes)?, query.get(self.strides)?);
        let (data, offset) = (query.get(self.data_ptr)? as u64, query.get(self.storage_offset)?);
        // After `resize_(0)` of its storage, torch reports a tensor's offset relative to address 0.
        let freed = data == dtype.bytes_of(offset) as u64;
        let data = if freed { 0 } else { data };
        // SAFETY: both arrays have `rank` elements and stay valid until control returns to Python.
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

    /// Whether a tensor still has the memory, type and shape of `view`.
    #[inline(always)]
    pub(super) fn matches_view(&self, tensor: &Bound<'_, PyAny>, view: &View) -> bool {
        self.compare(tensor, view).unwrap_or(false)
    }

    #[inline(always)]
    fn compare(&self, tensor: &Bound<'_, PyAny>, view: &View) -> Option<bool> {
        let query = TensorQuery { torch: self, handle: self.handle(tensor) };
        // No query of the layout: for a layout without strides, the query of the strides fails.
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

/// Queries one tensor's properties.
struct TensorQuery<'a> {
    torch: &'a Torch,
    handle: Handle,
}

impl TensorQuery<'_> {
    #[inline(always)]
    fn get<T>(&self, function: Getter<T>) -> Option<T> {
        let mut value = MaybeUninit::uninit();
        // SAFETY: the handle points to the `at::Tensor` in a Python object of torch's class. The
        // caller holds the object and the GIL, so the tensor does not change. The functions catch
        // C++ exceptions, and write the value if they return 0.
        unsafe { (function(self.handle, value.as_mut_ptr()) == 0).then(|| value.assume_init()) }
    }

    #[inline(always)]
    fn dtype(&self) -> Option<DType> {
        let number = self.get(self.torch.dtype)?;
        self.torch.dtypes.get(number as usize).copied().flatten()
    }

    #[inline(always)]
    fn device(&self) -> Option<DeviceId> {
        match self.get(self.torch.device_type)? {
            kind if kind == self.torch.cuda => {
                self.get(self.torch.device_index).map(DeviceId::Cuda)
            }
            kind if kind == self.torch.cpu => Some(DeviceId::Cpu),
            _ => None,
        }
    }
}

/// The element types by torch's number. A type that torch lacks has no place: the exchange table
/// then describes its tensors.
fn dtypes_by_number(number_of: impl Fn(&str) -> Option<i32>) -> [Option<DType>; 64] {
    let mut dtypes = [None; 64];
    for row in Element::TABLE.iter().filter(|row| row.storage == Storage::Whole) {
        let number = number_of(row.name).and_then(|number| usize::try_from(number).ok());
        if let Some(place) = number.and_then(|number| dtypes.get_mut(number)) {
            *place = Some(row.dtype);
        }
    }
    dtypes
}

/// # Safety
/// `pointer` points to `count` numbers that outlive the slice.
unsafe fn slice_at<'a>(pointer: *const i64, count: usize) -> &'a [i64] {
    if count == 0 {
        return &[]; // the pointer may be null
    }
    // SAFETY: guaranteed by the caller.
    unsafe { std::slice::from_raw_parts(pointer, count) }
}

/// Finds the offset of the `at::Tensor` in a tensor's Python object. An `at::Tensor` is one pointer
/// to the tensor's implementation. A handle that torch allocates for this tensor holds the same
/// pointer; the object's words are searched for it.
fn find_handle_offset(tensor: &Bound<'_, PyAny>, library: &Library) -> PyResult<Option<usize>> {
    let py = tensor.py();
    // SAFETY: shim.h declares this function with this type.
    let delete = unsafe {
        library.get::<unsafe extern "C" fn(Handle) -> i32>("aoti_torch_delete_tensor_object")
    };
    let Ok(delete) = delete else { return Ok(None) };
    let size: usize = tensor.get_type().getattr("__basicsize__")?.extract()?;
    let aoti = py.import("torch")?.getattr("_C")?.getattr("_aoti")?;
    let capsule = aoti.call_method1("unsafe_alloc_void_ptr_from_tensor", (tensor,))?;
    // SAFETY: the unnamed capsule holds the address of an `at::Tensor` that the caller must delete.
    // A Python object has as many bytes as its type states.
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

/// The torch library that this process has loaded. Loading a second copy would break torch.
#[cfg(target_os = "linux")]
fn loaded_library() -> Option<Library> {
    use libloading::os::unix;
    /// `RTLD_NOLOAD` of dlfcn.h.
    const NO_LOAD: i32 = 4;
    // SAFETY: RTLD_NOLOAD runs no constructors.
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

/// A torch constant, which torch exports as a function.
fn constant(library: &Library, name: &str) -> Option<i32> {
    // SAFETY: in shim.h these functions take nothing and return an int32.
    unsafe {
        library
            .get::<unsafe extern "C" fn() -> i32>(format!("aoti_torch_{name}"))
            .ok()
            .map(|function| function())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_type_that_torch_lacks_leaves_the_others_in_place() {
        let names: Vec<&str> = Element::TABLE.iter().map(|row| row.name).collect();
        for missing in &names {
            for unusable in [None, Some(-1), Some(64)] {
                let dtypes = dtypes_by_number(|name| match name == *missing {
                    true => unusable,
                    false => names.iter().position(|known| *known == name).map(|at| at as i32),
                });
                for (row, dtype) in Element::TABLE.iter().zip(dtypes) {
                    let is_read = row.name != *missing && row.storage == Storage::Whole;
                    assert_eq!(dtype, is_read.then_some(row.dtype));
                }
            }
        }
    }
}
