//! One call of a handler: its buffers, attributes, stream and device.

use std::ffi::{CString, c_void};
use std::mem::offset_of;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::slice;

use super::api::{
    self, Api, ApiVersion, ByteSpan, CallFrame, DeviceOrdinalGetArgs, Error, ErrorCreateArgs,
    ErrorDestroyArgs, ExtensionBase, GetFunction, Metadata, MetadataExtension, RawBuffer, Scalar,
    StreamGetArgs,
};
use crate::operand::DType;

/// Why a call fails: an error code of `XLA_FFI_Error_Code`, and a text.
pub struct Refusal {
    code: u32,
    text: String,
}

impl Refusal {
    /// The arguments do not fit (`XLA_FFI_Error_Code_INVALID_ARGUMENT`).
    #[cold]
    pub fn invalid(text: impl ToString) -> Refusal {
        Refusal { code: 3, text: text.to_string() }
    }

    /// The call failed for another reason (`XLA_FFI_Error_Code_INTERNAL`).
    #[cold]
    pub fn internal(text: impl ToString) -> Refusal {
        Refusal { code: 13, text: text.to_string() }
    }
}

/// The stages of an execution in which a handler here runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Before the execution: addresses are known, and memory holds nothing yet. Not captured.
    Initialize,
    /// May be captured into a command buffer.
    Execute,
}

/// A row-major operand or result.
pub struct Buffer<'a> {
    pub dtype: DType,
    pub data: u64,
    pub dims: &'a [i64],
}

/// A call of a handler, which XLA keeps alive until the handler returns.
pub struct Call<'a> {
    frame: &'a CallFrame,
    api: &'a Api,
    pub stage: Stage,
}

/// Answers a call of XLA: a query of the handler's metadata, or a call that `run` serves.
/// `is_replayable`: whether calls enqueue the same work each time, on the stream of the call alone,
/// so that XLA may capture them into a command buffer.
///
/// # Safety
/// `frame` is null, or a frame that XLA passes to a handler.
pub unsafe fn serve(
    frame: *const CallFrame,
    is_replayable: bool,
    run: impl FnOnce(&Call<'_>) -> Result<(), Refusal>,
) -> *mut Error {
    // SAFETY: the caller passes null, or XLA's frame.
    let Some(frame) = (unsafe { frame.as_ref() }) else { return ptr::null_mut() };
    let mut extension = frame.extension_start;
    // SAFETY: a list of XLA, which null ends.
    while let Some(base) = unsafe { extension.as_ref() } {
        if base.r#type == api::METADATA {
            // The query has neither a stage nor arguments.
            // SAFETY: the type says that the base begins such an extension.
            let metadata = unsafe { (*extension.cast::<MetadataExtension>()).metadata };
            // SAFETY: XLA passes a struct to fill.
            return match unsafe { answer(metadata, is_replayable) } {
                Ok(()) => ptr::null_mut(),
                // SAFETY: the frame is XLA's.
                Err(refusal) => unsafe { error(frame, &refusal) },
            };
        }
        extension = base.next;
    }
    // A panic must not unwind into XLA.
    let served = catch_unwind(AssertUnwindSafe(|| Call::of(frame).and_then(|call| run(&call))));
    match served.unwrap_or_else(|_| Err(Refusal::internal("panicked"))) {
        Ok(()) => ptr::null_mut(),
        // SAFETY: the frame is XLA's.
        Err(refusal) => unsafe { error(frame, &refusal) },
    }
}

/// # Safety
/// `metadata` is a struct of XLA.
unsafe fn answer(metadata: *mut Metadata, is_replayable: bool) -> Result<(), Refusal> {
    // SAFETY: XLA passes a struct that is at least as long as its `struct_size`. Its last fields
    // are written only if it has them.
    unsafe {
        if (*metadata).struct_size < Metadata::SIZE {
            return Err(short("XLA_FFI_Metadata", (*metadata).struct_size, Metadata::SIZE));
        }
        let version = &raw mut (*metadata).api_version;
        (*version).struct_size = ApiVersion::SIZE;
        (*version).major_version = api::MAJOR;
        (*version).minor_version = api::MINOR;
        (*metadata).traits = if is_replayable { api::COMMAND_BUFFER_COMPATIBLE } else { 0 };
    }
    Ok(())
}

#[cold]
fn short(name: &str, size: usize, needed: usize) -> Refusal {
    Refusal::internal(format!(
        "XLA passes {name} of {size} bytes, and {needed} are needed: jaxlib is older than XLA's \
         FFI {}.{}; install a later one",
        api::MAJOR,
        api::MINOR
    ))
}

/// Makes an error of XLA.
///
/// # Safety
/// The frame is XLA's.
#[cold]
unsafe fn error(frame: &CallFrame, refusal: &Refusal) -> *mut Error {
    let message = format!("cutlass_api: {}", refusal.text).replace('\0', "");
    let message = CString::new(message).unwrap_or_default();
    let mut arguments = ErrorCreateArgs {
        struct_size: ErrorCreateArgs::SIZE,
        extension_start: ptr::null(),
        message: message.as_ptr(),
        errc: refusal.code,
    };
    // SAFETY: XLA passes its API, whose first functions any version has, and copies the message.
    unsafe {
        match (*frame.api).XLA_FFI_Error_Create {
            Some(create) => create(&mut arguments),
            None => ptr::null_mut(),
        }
    }
}

impl<'a> Call<'a> {
    fn of(frame: &'a CallFrame) -> Result<Call<'a>, Refusal> {
        if frame.struct_size < CallFrame::SIZE {
            return Err(short("XLA_FFI_CallFrame", frame.struct_size, CallFrame::SIZE));
        }
        // SAFETY: XLA passes its API, of `struct_size` bytes: more are not read.
        let api = unsafe {
            let size = (*frame.api).struct_size;
            if size < Api::SIZE {
                return Err(short("XLA_FFI_Api", size, Api::SIZE));
            }
            &*frame.api
        };
        let stage = match frame.stage {
            api::INITIALIZE => Stage::Initialize,
            api::EXECUTE => Stage::Execute,
            other => return Err(Refusal::internal(format!("is called in stage {other}"))),
        };
        Ok(Call { frame, api, stage })
    }

    /// The operands.
    pub fn operands(&self) -> Result<Vec<Buffer<'a>>, Refusal> {
        let args = &self.frame.args;
        // SAFETY: both arrays have `size` elements, and live as long as the frame.
        let (types, args) = unsafe { (array(args.types, args.size), array(args.args, args.size)) };
        buffers(types, args)
    }

    /// The results.
    pub fn results(&self) -> Result<Vec<Buffer<'a>>, Refusal> {
        let rets = &self.frame.rets;
        // SAFETY: both arrays have `size` elements, and live as long as the frame.
        let (types, rets) = unsafe { (array(rets.types, rets.size), array(rets.rets, rets.size)) };
        buffers(types, rets)
    }

    /// An attribute that is true or false.
    pub fn flag(&self, name: &str) -> Result<bool, Refusal> {
        let (kind, attribute) = self.attribute(name)?;
        let scalar: *const Scalar = attribute.cast();
        // SAFETY: the type says what the pointer points to.
        match kind {
            api::SCALAR if unsafe { (*scalar).dtype } == api::PRED => {
                Ok(unsafe { *(*scalar).value.cast::<u8>() } != 0)
            }
            _ => Err(Refusal::invalid(format!("the attribute {name} is no bool"))),
        }
    }

    /// An attribute that is text.
    pub fn text(&self, name: &str) -> Result<&'a str, Refusal> {
        let (kind, attribute) = self.attribute(name)?;
        // SAFETY: the type says what the pointer points to.
        let text = (kind == api::STRING).then(|| unsafe { bytes(attribute.cast()) });
        text.and_then(|text| str::from_utf8(text).ok())
            .ok_or_else(|| Refusal::invalid(format!("the attribute {name} is no text")))
    }

    fn attribute(&self, name: &str) -> Result<(u32, *const c_void), Refusal> {
        let attrs = &self.frame.attrs;
        // SAFETY: the three arrays have `size` elements, and live as long as the frame.
        let (types, names, values) = unsafe {
            let size = attrs.size;
            (array(attrs.types, size), array(attrs.names, size), array(attrs.attrs, size))
        };
        // SAFETY: each name is a span of bytes.
        let at = names.iter().position(|span| unsafe { bytes(*span) } == name.as_bytes());
        let at = at.ok_or_else(|| {
            Refusal::invalid(format!(
                "the attribute {name} is missing: was the program exported \
                                      by another version of cutlass_api?"
            ))
        })?;
        Ok((types[at], values[at]))
    }

    /// The handle of the stream of the call, on CUDA.
    pub fn stream(&self) -> Result<u64, Refusal> {
        let mut arguments = StreamGetArgs {
            struct_size: StreamGetArgs::SIZE,
            extension_start: ptr::null(),
            ctx: self.frame.ctx,
            stream: ptr::null_mut(),
        };
        // SAFETY: the arguments are those of this function.
        unsafe { self.get(self.api.XLA_FFI_Stream_Get, &mut arguments) }?;
        Ok(arguments.stream.addr() as u64)
    }

    /// The ordinal of the device of the call.
    pub fn device_ordinal(&self) -> Result<i32, Refusal> {
        let mut arguments = DeviceOrdinalGetArgs {
            struct_size: DeviceOrdinalGetArgs::SIZE,
            extension_start: ptr::null(),
            ctx: self.frame.ctx,
            device_ordinal: 0,
        };
        // SAFETY: the arguments are those of this function.
        unsafe { self.get(self.api.XLA_FFI_DeviceOrdinal_Get, &mut arguments) }?;
        Ok(arguments.device_ordinal)
    }

    /// Calls a function of the API.
    ///
    /// # Safety
    /// The arguments are those of the function.
    unsafe fn get<Arguments>(
        &self,
        function: Option<GetFunction<Arguments>>,
        arguments: &mut Arguments,
    ) -> Result<(), Refusal> {
        let Some(function) = function else {
            return Err(Refusal::internal("XLA lacks a function"));
        };
        // SAFETY: guaranteed by the caller.
        let failed = unsafe { function(arguments) };
        if failed.is_null() {
            return Ok(());
        }
        let mut destroyed = ErrorDestroyArgs {
            struct_size: ErrorDestroyArgs::SIZE,
            extension_start: ptr::null(),
            error: failed,
        };
        if let Some(destroy) = self.api.XLA_FFI_Error_Destroy {
            // SAFETY: the error is XLA's, and belongs to the caller of the function.
            unsafe { destroy(&mut destroyed) };
        }
        Err(Refusal::internal("XLA returns neither stream nor device of the call"))
    }
}

fn buffers<'a>(
    types: &'a [u32],
    pointers: &'a [*const c_void],
) -> Result<Vec<Buffer<'a>>, Refusal> {
    let read = |(kind, pointer): (&u32, &*const c_void)| {
        if *kind != api::BUFFER {
            return Err(Refusal::internal(format!("an operand or result has type {kind}")));
        }
        // SAFETY: the type says what the pointer points to.
        let raw = unsafe { &*pointer.cast::<RawBuffer>() };
        let dtype = DType::from_xla(raw.dtype).ok_or_else(|| {
            Refusal::invalid(format!("no kernel computes with XLA's type {}", raw.dtype))
        })?;
        // SAFETY: the buffer has `rank` extents, which live as long as the frame.
        let dims = unsafe { array(raw.dims, raw.rank) };
        Ok(Buffer { dtype, data: raw.data.addr() as u64, dims })
    };
    types.iter().zip(pointers).map(read).collect()
}

/// # Safety
/// `first` is null, or begins `size` elements that live for `'a`.
unsafe fn array<'a, T>(first: *const T, size: i64) -> &'a [T] {
    match usize::try_from(size) {
        // SAFETY: guaranteed by the caller.
        Ok(size) if size > 0 && !first.is_null() => unsafe { slice::from_raw_parts(first, size) },
        _ => &[],
    }
}

/// # Safety
/// `span` is a span of bytes that live for `'a`.
unsafe fn bytes<'a>(span: *const ByteSpan) -> &'a [u8] {
    // SAFETY: guaranteed by the caller.
    unsafe { array((*span).ptr.cast(), (*span).len as i64) }
}

/// The base of an extension begins it.
const _: () = assert!(offset_of!(MetadataExtension, extension_base) == 0);
const _: () = assert!(size_of::<*const ExtensionBase>() == 8, "XLA runs on 64-bit machines");
