//! DLPack's C structures turned into operand views: <https://dmlc.github.io/dlpack/latest/c_api.html>.

use std::ffi::{CStr, c_void};

use dlpark::DlpackFlags;
use dlpark::ffi::{
    DLDataType, DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned, DLPACK_MAJOR_VERSION,
    DLPackExchangeAPI, DLTensor,
};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;

use super::{DType, Device, View};

const LEGACY: &CStr = c"dltensor";
const LEGACY_USED: &CStr = c"used_dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const VERSIONED_USED: &CStr = c"used_dltensor_versioned";
const EXCHANGE_API: &CStr = c"dlpack_exchange_api";

/// A tensor as DLPack states it. Kept beside the view that is made of it: as long as a tensor states the same, the view holds.
#[derive(Clone, Copy, PartialEq)]
pub(super) struct Statement {
    data: u64,
    device: DLDevice,
    dtype: DLDataType,
    rank: usize,
    /// The first `rank` count.
    shape: [i64; 3],
    stride: [i64; 3],
}

impl Statement {
    /// # Safety
    /// `tensor.shape` and `tensor.strides` point to `tensor.ndim` numbers each, or are null where DLPack allows it.
    unsafe fn of(tensor: &DLTensor) -> PyResult<Statement> {
        let rank = tensor.ndim as usize;
        if !(1..=3).contains(&rank) {
            return Err(PyValueError::new_err(format!("has rank {rank}; operands have rank 1 to 3")));
        }
        let (mut shape, mut stride) = ([1; 3], [0; 3]);
        // SAFETY: the caller vouches for both arrays; `rank` is at least 1, so neither may be null but the strides of a
        // tensor from before DLPack 1.2, where null means contiguous.
        unsafe {
            shape[..rank].copy_from_slice(std::slice::from_raw_parts(tensor.shape, rank));
            if tensor.strides.is_null() {
                let mut step = 1;
                for dim in (0..rank).rev() {
                    stride[dim] = step;
                    step *= shape[dim];
                }
            } else {
                stride[..rank].copy_from_slice(std::slice::from_raw_parts(tensor.strides, rank));
            }
        }
        let data = (tensor.data as u64).wrapping_add(tensor.byte_offset);
        if tensor.data.is_null() && shape.iter().product::<i64>() > 0 {
            return Err(PyValueError::new_err("has no memory behind it"));
        }
        Ok(Statement { data, device: tensor.device, dtype: tensor.dtype, rank, shape, stride })
    }

    pub(super) fn view(&self, read_only: bool) -> PyResult<View> {
        let device = match self.device.device_type {
            DLDeviceType::CPU | DLDeviceType::CUDAHOST => Device::Cpu,
            DLDeviceType::CUDA | DLDeviceType::CUDAMANAGED => Device::Cuda(self.device.device_id),
            other => {
                let kind = other.0;
                return Err(PyValueError::new_err(format!(
                    "is on a device of DLPack type {kind}; only CPU and CUDA tensors can be used"
                )));
            }
        };
        let rank = self.rank;
        let (mut shape, mut stride) = ([1; 3], [0; 3]);
        for dim in 0..rank {
            let (extent, step) = (self.shape[dim], self.stride[dim]);
            if step < 0 {
                return Err(PyValueError::new_err(format!("has a negative stride ({step}); make a copy of it first")));
            }
            shape[3 - rank + dim] = extent;
            stride[3 - rank + dim] = if extent == 1 { 0 } else { step };
        }
        let dtype = DType::from_dlpack(self.dtype);
        Ok(View { data: self.data, dtype, device, rank, shape, stride, read_only, fake: false })
    }
}

/// A framework's table of C functions for exchanging tensors without a Python call (DLPack 1.3).
#[derive(Clone, Copy)]
pub(super) struct ExchangeApi(&'static DLPackExchangeAPI);

// SAFETY: the table is constant for the life of the process; the pointer in it that stops the automatic impls
// (`prev_api`) is never followed.
unsafe impl Send for ExchangeApi {}
unsafe impl Sync for ExchangeApi {}

impl ExchangeApi {
    /// The table that a tensor type offers, if it offers one of a version that we understand.
    pub(super) fn of_type(tensor_type: &Bound<'_, PyAny>) -> PyResult<Option<ExchangeApi>> {
        let Some(capsule) = tensor_type.getattr_opt("__dlpack_c_exchange_api__")? else {
            return Ok(None);
        };
        // SAFETY: PyCapsule_IsValid accepts any object and tells whether the name matches; DLPack says that a table
        // lives as long as the process, so the reference may be 'static.
        let table = unsafe {
            if ffi::PyCapsule_IsValid(capsule.as_ptr(), EXCHANGE_API.as_ptr()) == 0 {
                return Ok(None);
            }
            let pointer = ffi::PyCapsule_GetPointer(capsule.as_ptr(), EXCHANGE_API.as_ptr());
            pointer.cast::<DLPackExchangeAPI>().as_ref()
        };
        Ok(table.filter(|t| t.header.version.major == DLPACK_MAJOR_VERSION).map(ExchangeApi))
    }

    /// What a tensor of this framework states of itself, borrowed: no reference is taken, nothing is allocated. None where
    /// the framework leaves the function out.
    pub(super) fn read(self, tensor: &Bound<'_, PyAny>) -> PyResult<Option<Statement>> {
        let Some(export) = self.0.dltensor_from_py_object_no_sync else {
            return Ok(None);
        };
        let mut described = std::mem::MaybeUninit::<DLTensor>::uninit();
        // SAFETY: the object is of the type that the table was found on; on success the function has filled the
        // structure, whose arrays stay valid until control goes back to Python, which is after they are copied.
        unsafe {
            if export(tensor.as_ptr().cast::<c_void>(), described.as_mut_ptr()) != 0 {
                return Err(PyErr::fetch(tensor.py()));
            }
            Statement::of(described.assume_init_ref()).map(Some)
        }
    }

    /// The stream that the framework works on at present on a CUDA device.
    pub(super) fn current_stream(self, py: Python<'_>, device: i32) -> PyResult<u64> {
        let Some(query) = self.0.current_work_stream else {
            return Ok(0);
        };
        let mut stream = std::ptr::null_mut();
        // SAFETY: a function of the framework's table, called as DLPack describes, with the GIL held.
        let status = unsafe { query(DLDeviceType::CUDA, device, &mut stream) };
        if status != 0 { Err(PyErr::fetch(py)) } else { Ok(stream as u64) }
    }
}

/// The view of the tensor in a capsule that `__dlpack__` returned. The capsule is consumed, and what it owned released:
/// the caller keeps the tensor itself alive.
pub(super) fn read_capsule(capsule: &Bound<'_, PyAny>) -> PyResult<View> {
    let object = capsule.as_ptr();
    // SAFETY: PyCapsule_IsValid accepts any object. A valid capsule of these names holds the structure that DLPack
    // defines for the name; renaming it hands us ownership, so that the deleter is ours to call, once.
    unsafe {
        if ffi::PyCapsule_IsValid(object, VERSIONED.as_ptr()) != 0 {
            let managed = ffi::PyCapsule_GetPointer(object, VERSIONED.as_ptr()).cast::<DLManagedTensorVersioned>();
            if ffi::PyCapsule_SetName(object, VERSIONED_USED.as_ptr()) != 0 {
                return Err(PyErr::fetch(capsule.py()));
            }
            let result = if (*managed).version.major != DLPACK_MAJOR_VERSION {
                let major = (*managed).version.major;
                Err(PyBufferError::new_err(format!("speaks DLPack {major}; this build understands version 1")))
            } else {
                // A copy is as good as read-only: what is written to it never reaches the tensor.
                let not_ours = DlpackFlags::READ_ONLY | DlpackFlags::IS_COPIED;
                Statement::of(&(*managed).dl_tensor)
                    .and_then(|statement| statement.view((*managed).flags.intersects(not_ours)))
            };
            if let Some(deleter) = (*managed).deleter {
                deleter(managed);
            }
            return result;
        }
        if ffi::PyCapsule_IsValid(object, LEGACY.as_ptr()) != 0 {
            let managed = ffi::PyCapsule_GetPointer(object, LEGACY.as_ptr()).cast::<DLManagedTensor>();
            if ffi::PyCapsule_SetName(object, LEGACY_USED.as_ptr()) != 0 {
                return Err(PyErr::fetch(capsule.py()));
            }
            let result = Statement::of(&(*managed).dl_tensor).and_then(|statement| statement.view(false));
            if let Some(deleter) = (*managed).deleter {
                deleter(managed);
            }
            return result;
        }
    }
    Err(PyBufferError::new_err("returned something else than a DLPack capsule from __dlpack__"))
}
