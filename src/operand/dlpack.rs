//! DLPack's C structures turned into operand views: <https://dmlc.github.io/dlpack/latest/c_api.html>.

use std::ffi::{CStr, c_void};

use dlpark::DlpackFlags;
use dlpark::ffi::{
    DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned, DLPACK_MAJOR_VERSION,
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

/// What a tensor states of itself, whoever tells it.
pub(super) struct TensorDescription<'a> {
    pub data: u64,
    pub dtype: DType,
    pub device: Device,
    pub shape: &'a [i64],
    /// In elements; None: contiguous.
    pub strides: Option<&'a [i64]>,
    pub read_only: bool,
    pub fake: bool,
}

/// What is made of a tensor's statement: a [`View`], or a [`Memory`](super::Memory). Written where it is to stay: a processor that
/// copies what it has just written piece by piece waits until all of it has arrived.
pub(super) trait TensorRecord: Copy {
    const UNREAD: Self;
    /// Takes in all that is description. After an error there is no telling what is there.
    fn fill(&mut self, description: TensorDescription<'_>) -> PyResult<()>;
    /// The parts that a reader may know better than the tensor's own statement: element type, and whether it may be written.
    fn amend(&mut self, dtype: Option<DType>, read_only: bool);
    fn dtype(&self) -> DType;
    /// Whether the elements may be a view of something of another sign (see `refuse_negated`).
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
                    "has a negative stride ({step}); make a copy of it first"
                )));
            }
            self.shape[at] = extent;
            self.stride[at] = if extent == 1 { 0 } else { step };
        }
        if data == 0 && !fake && self.numel() > 0 {
            return Err(PyValueError::new_err("has no memory behind it"));
        }
        Ok(())
    }

    fn amend(&mut self, dtype: Option<DType>, read_only: bool) {
        self.dtype = dtype.unwrap_or(self.dtype);
        self.read_only |= read_only;
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    #[inline(always)]
    fn may_be_negated(&self) -> bool {
        self.stride.iter().all(|step| step % 2 == 0)
    }
}

/// Takes in what a tensor states.
///
/// # Safety
/// `tensor.shape` and `tensor.strides` point to `tensor.ndim` numbers each, or are null where DLPack allows it.
#[inline(always)]
unsafe fn take_from<T: TensorRecord>(
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
    // SAFETY: the caller vouches for both arrays. Strides may be null in a tensor from before DLPack 1.2, which means
    // contiguous; both may be where there are no dimensions.
    let numbers = |pointer: *const i64| unsafe {
        if rank == 0 {
            Some([].as_slice())
        } else {
            (!pointer.is_null()).then(|| std::slice::from_raw_parts(pointer, rank))
        }
    };
    let Some(shape) = numbers(tensor.shape) else {
        return Err(PyValueError::new_err("states no shape"));
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

/// Whether `view` is what [`take_from`] would make of the tensor. No is the answer, too, where the tensor leaves its strides out or
/// names its device in another way than most.
///
/// # Safety
/// As for [`take_from`].
#[inline(always)] // three times in every launch
unsafe fn is_view_of(tensor: &DLTensor, view: &View) -> bool {
    let device = match view.device {
        Device::Cpu => (DLDeviceType::CPU, 0),
        Device::Cuda(ordinal) => (DLDeviceType::CUDA, ordinal),
    };
    let same = tensor.ndim as usize == view.rank
        && (tensor.data as u64).wrapping_add(tensor.byte_offset) == view.data
        && tensor.dtype == view.dtype.to_dlpack()
        && (tensor.device.device_type, tensor.device.device_id) == device
        && !tensor.strides.is_null();
    if !same {
        return false;
    }
    // SAFETY: the caller's.
    unsafe { has_shape_and_strides(view, tensor.shape, tensor.strides) }
}

/// Whether a tensor of a view's rank has the view's extents and strides.
///
/// # Safety
/// Both arrays have as many numbers.
#[inline(always)]
pub(super) unsafe fn has_shape_and_strides(
    view: &View,
    shape: *const i64,
    strides: *const i64,
) -> bool {
    let first = 3 - view.rank;
    for at in first..3 {
        // SAFETY: the caller's.
        let (extent, step) = unsafe { (*shape.add(at - first), *strides.add(at - first)) };
        if extent != view.shape[at] || (step != view.stride[at] && extent != 1) {
            return false;
        }
    }
    true
}

fn device_of(device: DLDevice) -> Option<Device> {
    match device.device_type {
        DLDeviceType::CPU | DLDeviceType::CUDAHOST => Some(Device::Cpu),
        DLDeviceType::CUDA | DLDeviceType::CUDAMANAGED => Some(Device::Cuda(device.device_id)),
        _ => None,
    }
}

/// A framework's table of C functions for exchanging tensors without a Python call (DLPack 1.3).
#[derive(Clone, Copy)]
pub(super) struct ExchangeApi(&'static DLPackExchangeAPI);

impl PartialEq for ExchangeApi {
    fn eq(&self, other: &ExchangeApi) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

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

    /// Takes in what a tensor of this framework states. No reference is taken, nothing is allocated. False where the framework leaves
    /// the function out.
    pub(super) fn read(
        self,
        tensor: &Bound<'_, PyAny>,
        into: &mut impl TensorRecord,
    ) -> PyResult<bool> {
        // SAFETY: a tensor's arrays stay valid until control goes back to Python, which is after they are copied.
        let taken = self
            .with_description(tensor, |described| unsafe { take_from(described, false, into) })?;
        taken.transpose().map(|taken| taken.is_some())
    }

    /// Whether a tensor still is what a view of it says, memory, type and shape.
    pub(super) fn matches_view(self, tensor: &Bound<'_, PyAny>, view: &View) -> PyResult<bool> {
        // SAFETY: as in `read`.
        Ok(self
            .with_description(tensor, |described| unsafe { is_view_of(described, view) })?
            .unwrap_or(false))
    }

    /// Hands a tensor's description, which is borrowed from it, to a function.
    fn with_description<T>(
        self,
        tensor: &Bound<'_, PyAny>,
        read: impl FnOnce(&DLTensor) -> T,
    ) -> PyResult<Option<T>> {
        let Some(export) = self.0.dltensor_from_py_object_no_sync else {
            return Ok(None);
        };
        let mut described = std::mem::MaybeUninit::<DLTensor>::uninit();
        // SAFETY: the object is of the type that the table was found on; on success the function has filled the structure.
        unsafe {
            if export(tensor.as_ptr().cast::<c_void>(), described.as_mut_ptr()) != 0 {
                return Err(PyErr::fetch(tensor.py()));
            }
            Ok(Some(read(described.assume_init_ref())))
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

/// Takes in what the tensor in a capsule that `__dlpack__` returned states. The capsule is consumed, and what it owned released: the
/// caller keeps the tensor itself alive.
pub(super) fn read_capsule(
    capsule: &Bound<'_, PyAny>,
    into: &mut impl TensorRecord,
) -> PyResult<()> {
    let object = capsule.as_ptr();
    // SAFETY: PyCapsule_IsValid accepts any object. A valid capsule of these names holds the structure that DLPack
    // defines for the name; renaming it hands us ownership, so that the deleter is ours to call, once.
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
                    "speaks DLPack {major}; this build understands version 1"
                )))
            } else if (*managed).flags.contains(DlpackFlags::IS_COPIED) {
                // The copy goes with the capsule, before it is read; and what is written to it never reaches the tensor.
                Err(PyBufferError::new_err(
                    "is exported as a copy, as DLPack cannot say how it lies in memory",
                ))
            } else {
                take_from(
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
            let result = take_from(&(*managed).dl_tensor, false, into);
            if let Some(deleter) = (*managed).deleter {
                deleter(managed);
            }
            return result;
        }
    }
    Err(PyBufferError::new_err("returned something else than a DLPack capsule from __dlpack__"))
}
