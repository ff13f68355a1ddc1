//! Reads DLPack's C structures: <https://dmlc.github.io/dlpack/latest/c_api.html>.

use std::ffi::{CStr, c_void};

use dlpark::DlpackFlags;
use dlpark::ffi::{
    DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned, DLPACK_MAJOR_VERSION,
    DLPackExchangeAPI, DLTensor,
};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use super::{DType, DeviceId, View};

const LEGACY: &CStr = c"dltensor";
const LEGACY_USED: &CStr = c"used_dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const VERSIONED_USED: &CStr = c"used_dltensor_versioned";
const EXCHANGE_API: &CStr = c"dlpack_exchange_api";

/// A tensor's properties, borrowed from the interface that exported them.
pub(super) struct TensorDescription<'a> {
    pub data: u64,
    pub dtype: DType,
    pub device: DeviceId,
    pub shape: &'a [i64],
    /// In elements. `None`: contiguous.
    pub strides: Option<&'a [i64]>,
    pub read_only: bool,
    pub fake: bool,
}

/// A record that a tensor description fills: a [`View`] or a [`Memory`](super::Memory).
///
/// `fill` writes in place. Returning the record by value would copy it right after its fields were
/// stored one by one, which stalls the load until the stores retire.
pub(super) trait TensorRecord: Copy {
    const UNREAD: Self;
    /// Replaces the record. After an error its contents are unspecified.
    fn fill(&mut self, description: TensorDescription<'_>) -> PyResult<()>;
    /// The dtype, and whether the tensor is read-only, which a description may lack.
    fn dtype_and_read_only(&mut self) -> (&mut DType, &mut bool);
    /// Whether the tensor may carry torch's negative bit (see `refuse_negated`).
    fn may_be_negated(&self) -> bool;
}

impl TensorRecord for View {
    const UNREAD: View = View::UNREAD;

    #[inline(always)]
    fn fill(&mut self, description: TensorDescription<'_>) -> PyResult<()> {
        let TensorDescription { data, dtype, device, read_only, fake, .. } = description;
        let rank = description.shape.len();
        if rank > 3 {
            return Err(PyValueError::new_err(format!(
                "has rank {rank}; operands have rank 0 to 3"
            )));
        }
        *self = View { data, dtype, device, rank, shape: [1; 3], stride: [0; 3], read_only, fake };
        let mut contiguous = 1;
        for dim in (0..rank).rev() {
            let at = 3 - rank + dim;
            let extent = description.shape[dim];
            let step = description.strides.map_or(contiguous, |strides| strides[dim]);
            contiguous *= extent;
            if step < 0 {
                return Err(PyValueError::new_err(format!(
                    "has a negative stride ({step}); copy it first"
                )));
            }
            self.shape[at] = extent;
            self.stride[at] = if extent == 1 { 0 } else { step };
        }
        if data == 0 && !fake && self.numel() > 0 {
            return Err(PyValueError::new_err(NULL_POINTER));
        }
        Ok(())
    }

    fn dtype_and_read_only(&mut self) -> (&mut DType, &mut bool) {
        (&mut self.dtype, &mut self.read_only)
    }

    #[inline(always)]
    fn may_be_negated(&self) -> bool {
        self.stride.iter().all(|step| step % 2 == 0)
    }
}

/// The error for a tensor that has elements, and no address.
pub const NULL_POINTER: &str = "has a null data pointer; allocate the tensor first";

/// Fills a record from a DLPack tensor.
///
/// # Safety
/// `tensor.shape` and `tensor.strides` point to `tensor.ndim` numbers each, or are null where
/// DLPack allows null.
#[inline(always)]
unsafe fn fill_from<T: TensorRecord>(
    tensor: &DLTensor,
    read_only: bool,
    into: &mut T,
) -> PyResult<()> {
    let rank = tensor.ndim.max(0) as usize;
    let Some(device) = device_of(tensor.device) else {
        let kind = tensor.device.device_type.0;
        return Err(PyValueError::new_err(format!(
            "is on a device of DLPack type {kind}; only CPU and CUDA tensors can be used"
        )));
    };
    // SAFETY: guaranteed by the caller. Before DLPack 1.2 null strides mean contiguous.
    // Both arrays may be null at rank 0.
    let numbers = |pointer: *const i64| unsafe {
        if rank == 0 {
            Some([].as_slice())
        } else {
            (!pointer.is_null()).then(|| std::slice::from_raw_parts(pointer, rank))
        }
    };
    let Some(shape) = numbers(tensor.shape) else {
        return Err(PyValueError::new_err("exports no shape through DLPack"));
    };
    let strides = numbers(tensor.strides);
    let data = if tensor.data.is_null() {
        0
    } else {
        (tensor.data as u64).wrapping_add(tensor.byte_offset)
    };
    let dtype = DType::from_dlpack(tensor.dtype);
    into.fill(TensorDescription { data, dtype, device, shape, strides, read_only, fake: false })
}

/// Whether [`fill_from`] would fill a view equal to `view`. A tensor without strides, or with a
/// device type that several DLPack codes describe, may yield a false negative.
///
/// # Safety
/// As for [`fill_from`].
#[inline(always)] // three calls per launch
unsafe fn is_view_of(tensor: &DLTensor, view: &View) -> bool {
    let device = match view.device {
        DeviceId::Cpu => (DLDeviceType::CPU, 0),
        DeviceId::Cuda(ordinal) => (DLDeviceType::CUDA, ordinal),
    };
    let same = tensor.ndim as usize == view.rank
        && (tensor.data as u64).wrapping_add(tensor.byte_offset) == view.data
        && tensor.dtype == view.dtype.to_dlpack()
        && (tensor.device.device_type, tensor.device.device_id) == device
        && !tensor.strides.is_null();
    if !same {
        return false;
    }
    // SAFETY: guaranteed by the caller.
    unsafe { has_shape_and_strides(view, tensor.shape, tensor.strides) }
}

/// Whether a tensor of the view's rank has the view's shape and strides.
///
/// # Safety
/// Each array has `view.rank` elements.
#[inline(always)]
pub(super) unsafe fn has_shape_and_strides(
    view: &View,
    shape: *const i64,
    strides: *const i64,
) -> bool {
    let first = 3 - view.rank;
    for at in first..3 {
        // SAFETY: guaranteed by the caller.
        let (extent, step) = unsafe { (*shape.add(at - first), *strides.add(at - first)) };
        if extent != view.shape[at] || (step != view.stride[at] && extent != 1) {
            return false;
        }
    }
    true
}

fn device_of(device: DLDevice) -> Option<DeviceId> {
    match device.device_type {
        DLDeviceType::CPU | DLDeviceType::CUDAHOST => Some(DeviceId::Cpu),
        DLDeviceType::CUDA | DLDeviceType::CUDAMANAGED => Some(DeviceId::Cuda(device.device_id)),
        _ => None,
    }
}

/// An exchange table: a framework's C functions that export tensors without a Python call (DLPack
/// 1.3).
#[derive(Clone, Copy)]
pub(super) struct ExchangeApi(&'static DLPackExchangeAPI);

impl PartialEq for ExchangeApi {
    fn eq(&self, other: &ExchangeApi) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

// SAFETY: the table is constant for the life of the process. The pointer that suppresses the
// automatic impls (`prev_api`) is never dereferenced.
unsafe impl Send for ExchangeApi {}
unsafe impl Sync for ExchangeApi {}

impl ExchangeApi {
    /// The exchange table of a tensor type, if it has one of a supported version.
    pub(super) fn of_type(tensor_type: &Bound<'_, PyAny>) -> PyResult<Option<ExchangeApi>> {
        let Some(capsule) = tensor_type.getattr_opt("__dlpack_c_exchange_api__")? else {
            return Ok(None);
        };
        // SAFETY: PyCapsule_IsValid accepts any object and checks the name. DLPack requires the
        // table to live as long as the process, so the reference may be 'static.
        let table = unsafe {
            if ffi::PyCapsule_IsValid(capsule.as_ptr(), EXCHANGE_API.as_ptr()) == 0 {
                return Ok(None);
            }
            let pointer = ffi::PyCapsule_GetPointer(capsule.as_ptr(), EXCHANGE_API.as_ptr());
            pointer.cast::<DLPackExchangeAPI>().as_ref()
        };
        Ok(table.filter(|t| t.header.version.major == DLPACK_MAJOR_VERSION).map(ExchangeApi))
    }

    /// Fills a record from a tensor of this framework, without a reference count or an allocation.
    /// Returns false if the table lacks the function.
    pub(super) fn read(
        self,
        tensor: &Bound<'_, PyAny>,
        into: &mut impl TensorRecord,
    ) -> PyResult<bool> {
        // SAFETY: the tensor's arrays stay valid until control returns to Python.
        let filled = self
            .with_description(tensor, |described| unsafe { fill_from(described, false, into) })?;
        filled.transpose().map(|filled| filled.is_some())
    }

    /// Whether a tensor still has the memory, type and shape of `view`.
    pub(super) fn matches_view(self, tensor: &Bound<'_, PyAny>, view: &View) -> PyResult<bool> {
        // SAFETY: as in `read`.
        Ok(self
            .with_description(tensor, |described| unsafe { is_view_of(described, view) })?
            .unwrap_or(false))
    }

    /// Calls `read` with the tensor's description, which borrows from the tensor.
    fn with_description<T>(
        self,
        tensor: &Bound<'_, PyAny>,
        read: impl FnOnce(&DLTensor) -> T,
    ) -> PyResult<Option<T>> {
        let Some(export) = self.0.dltensor_from_py_object_no_sync else {
            return Ok(None);
        };
        let mut described = std::mem::MaybeUninit::<DLTensor>::uninit();
        // SAFETY: the object has the type that owns the table. On success the function has filled
        // the structure.
        unsafe {
            if export(tensor.as_ptr().cast::<c_void>(), described.as_mut_ptr()) != 0 {
                return Err(PyErr::fetch(tensor.py()));
            }
            Ok(Some(read(described.assume_init_ref())))
        }
    }

    /// The framework's current stream on a CUDA device.
    pub(super) fn current_stream(self, py: Python<'_>, device: i32) -> PyResult<u64> {
        let Some(query) = self.0.current_work_stream else {
            return Ok(0);
        };
        let mut stream = std::ptr::null_mut();
        // SAFETY: a function of the table, called as DLPack specifies, with the GIL held.
        let status = unsafe { query(DLDeviceType::CUDA, device, &mut stream) };
        if status != 0 { Err(PyErr::fetch(py)) } else { Ok(stream as u64) }
    }
}

/// Fills a record from a capsule that `__dlpack__` returned. Consumes the capsule and releases its
/// reference; the caller keeps the tensor alive.
pub(super) fn read_capsule(
    capsule: &Bound<'_, PyAny>,
    into: &mut impl TensorRecord,
) -> PyResult<()> {
    let object = capsule.as_ptr();
    // SAFETY: PyCapsule_IsValid accepts any object. A valid capsule of one of these names holds the
    // structure that DLPack defines for the name. Renaming it transfers ownership, so the deleter
    // runs once.
    unsafe {
        if ffi::PyCapsule_IsValid(object, VERSIONED.as_ptr()) != 0 {
            let managed = ffi::PyCapsule_GetPointer(object, VERSIONED.as_ptr())
                .cast::<DLManagedTensorVersioned>();
            if ffi::PyCapsule_SetName(object, VERSIONED_USED.as_ptr()) != 0 {
                return Err(PyErr::fetch(capsule.py()));
            }
            let result = if (*managed).version.major != DLPACK_MAJOR_VERSION {
                let major = (*managed).version.major;
                Err(PyBufferError::new_err(format!(
                    "exports DLPack version {major}; this build reads version 1"
                )))
            } else if (*managed).flags.contains(DlpackFlags::IS_COPIED) {
                // The copy dies with the capsule, and writes to it would never reach the tensor.
                Err(PyBufferError::new_err(
                    "is exported as a copy, because DLPack cannot describe its memory layout",
                ))
            } else {
                fill_from(
                    &(*managed).dl_tensor,
                    (*managed).flags.contains(DlpackFlags::READ_ONLY),
                    into,
                )
            };
            if let Some(deleter) = (*managed).deleter {
                deleter(managed);
            }
            return result;
        }
        if ffi::PyCapsule_IsValid(object, LEGACY.as_ptr()) != 0 {
            let managed =
                ffi::PyCapsule_GetPointer(object, LEGACY.as_ptr()).cast::<DLManagedTensor>();
            if ffi::PyCapsule_SetName(object, LEGACY_USED.as_ptr()) != 0 {
                return Err(PyErr::fetch(capsule.py()));
            }
            let result = fill_from(&(*managed).dl_tensor, false, into);
            if let Some(deleter) = (*managed).deleter {
                deleter(managed);
            }
            return result;
        }
    }
    Err(PyBufferError::new_err("returned no DLPack capsule from __dlpack__"))
}
