//! The structs of `xla/ffi/api/c_api.h` that a handler reads, version 0.3. `tests/jax` compares
//! them with the header that jaxlib installs.

use std::ffi::{c_char, c_int, c_void};
use std::mem::offset_of;

/// The version of the interface, which XLA compares with its own.
pub const MAJOR: c_int = 0;
pub const MINOR: c_int = 3;

/// `XLA_FFI_Extension_Metadata`.
pub const METADATA: u32 = 1;
/// `XLA_FFI_ArgType_BUFFER` and `XLA_FFI_RetType_BUFFER`.
pub const BUFFER: u32 = 1;
/// `XLA_FFI_AttrType_SCALAR`, `XLA_FFI_AttrType_STRING`.
pub const SCALAR: u32 = 3;
pub const STRING: u32 = 4;
/// `XLA_FFI_DataType_PRED`.
pub const PRED: u32 = 1;
/// `XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE`.
pub const COMMAND_BUFFER_COMPATIBLE: u32 = 1;
/// `XLA_FFI_ExecutionStage_INITIALIZE`, `XLA_FFI_ExecutionStage_EXECUTE`.
pub const INITIALIZE: u32 = 2;
pub const EXECUTE: u32 = 3;

/// The layout of a struct, for comparison with the header.
pub struct Layout {
    /// The name in the header.
    pub name: &'static str,
    /// The end of the last field, which XLA calls the struct's size: padding does not count.
    pub size: usize,
    /// The name and offset of each field. A name that is a keyword of Rust begins with `r#`.
    pub fields: Vec<(&'static str, usize)>,
}

macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident = $header:literal {
        $($field:ident: $type:ty,)*
    })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[allow(non_snake_case)]
            pub struct $name { $(pub $field: $type,)* }

            impl $name {
                /// The end of the last field: `XLA_FFI_STRUCT_SIZE` of the header.
                pub const SIZE: usize = {
                    let ends = [$(offset_of!($name, $field) + size_of::<$type>(),)*];
                    ends[ends.len() - 1]
                };
            }
        )*

        /// The layouts of all structs.
        pub fn layouts() -> Vec<Layout> {
            vec![$(Layout {
                name: $header,
                size: $name::SIZE,
                fields: vec![$((stringify!($field), offset_of!($name, $field)),)*],
            },)*]
        }
    };
}

structs! {
    ExtensionBase = "XLA_FFI_Extension_Base" {
        struct_size: usize,
        r#type: u32,
        next: *const ExtensionBase,
    }
    ApiVersion = "XLA_FFI_Api_Version" {
        struct_size: usize,
        extension_start: *const ExtensionBase,
        major_version: c_int,
        minor_version: c_int,
    }
    /// Without the field behind the struct's size, which stateless handlers leave alone.
    Metadata = "XLA_FFI_Metadata" {
        struct_size: usize,
        api_version: ApiVersion,
        traits: u32,
    }
    MetadataExtension = "XLA_FFI_Metadata_Extension" {
        extension_base: ExtensionBase,
        metadata: *mut Metadata,
    }
    /// Its dims are `rank` extents, of elements. It carries no layout.
    RawBuffer = "XLA_FFI_Buffer" {
        struct_size: usize,
        extension_start: *const ExtensionBase,
        dtype: u32,
        data: *mut c_void,
        rank: i64,
        dims: *const i64,
    }
    ByteSpan = "XLA_FFI_ByteSpan" {
        ptr: *const c_char,
        len: usize,
    }
    Scalar = "XLA_FFI_Scalar" {
        dtype: u32,
        value: *const c_void,
    }
    Args = "XLA_FFI_Args" {
        struct_size: usize,
        extension_start: *const ExtensionBase,
        size: i64,
        types: *const u32,
        args: *const *const c_void,
    }
    Rets = "XLA_FFI_Rets" {
        struct_size: usize,
        extension_start: *const ExtensionBase,
        size: i64,
        types: *const u32,
        rets: *const *const c_void,
    }
    Attrs = "XLA_FFI_Attrs" {
        struct_size: usize,
        extension_start: *const ExtensionBase,
        size: i64,
        types: *const u32,
        names: *const *const ByteSpan,
        attrs: *const *const c_void,
    }
    /// Without the field behind the struct's size, by which asynchronous handlers report.
    CallFrame = "XLA_FFI_CallFrame" {
        struct_size: usize,
        extension_start: *const ExtensionBase,
        api: *const Api,
        ctx: *mut c_void,
        stage: u32,
        args: Args,
        rets: Rets,
        attrs: Attrs,
    }
    ErrorCreateArgs = "XLA_FFI_Error_Create_Args" {
        struct_size: usize,
        extension_start: *const ExtensionBase,
        message: *const c_char,
        errc: u32,
    }
    StreamGetArgs = "XLA_FFI_Stream_Get_Args" {
        struct_size: usize,
        extension_start: *const ExtensionBase,
        ctx: *mut c_void,
        stream: *mut c_void,
    }
    DeviceOrdinalGetArgs = "XLA_FFI_DeviceOrdinal_Get_Args" {
        struct_size: usize,
        extension_start: *const ExtensionBase,
        ctx: *mut c_void,
        device_ordinal: i32,
    }
    /// Functions that no handler here calls are pointers without a type.
    Api = "XLA_FFI_Api" {
        struct_size: usize,
        extension_start: *const ExtensionBase,
        api_version: ApiVersion,
        internal_api: *const c_void,
        XLA_FFI_Error_Create: Option<GetFunction<ErrorCreateArgs>>,
        XLA_FFI_Error_GetMessage: *const c_void,
        XLA_FFI_Error_Destroy: Option<unsafe extern "C" fn(*mut ErrorDestroyArgs)>,
        XLA_FFI_Handler_Register: *const c_void,
        XLA_FFI_Stream_Get: Option<GetFunction<StreamGetArgs>>,
        XLA_FFI_Type_Register: *const c_void,
        XLA_FFI_ExecutionContext_Get: *const c_void,
        XLA_FFI_State_Set: *const c_void,
        XLA_FFI_State_Get: *const c_void,
        XLA_FFI_DeviceMemory_Allocate: *const c_void,
        XLA_FFI_DeviceMemory_Free: *const c_void,
        XLA_FFI_ThreadPool_Schedule: *const c_void,
        XLA_FFI_ThreadPool_NumThreads: *const c_void,
        XLA_FFI_Future_Create: *const c_void,
        XLA_FFI_Future_SetAvailable: *const c_void,
        XLA_FFI_Future_SetError: *const c_void,
        XLA_FFI_RunId_Get: *const c_void,
        XLA_FFI_DeviceOrdinal_Get: Option<GetFunction<DeviceOrdinalGetArgs>>,
    }
    ErrorDestroyArgs = "XLA_FFI_Error_Destroy_Args" {
        struct_size: usize,
        extension_start: *const ExtensionBase,
        error: *mut Error,
    }
}

/// An error of XLA, whose fields are unknown.
#[repr(C)]
pub struct Error {
    _unknown: [u8; 0],
}

/// A function of the API that fills its arguments, or returns an error.
pub type GetFunction<Arguments> = unsafe extern "C" fn(*mut Arguments) -> *mut Error;
