//! Asserts the layout of structs that the device reads.

/// Asserts a struct's size and the offsets of fields, in bytes. The headers under kernels/ assert
/// the same numbers.
macro_rules! assert_fields {
    ($struct:ty, $bytes:expr, $($field:ident: $offset:expr),* $(,)?) => {
        const _: () = {
            assert!(size_of::<$struct>() == $bytes);
            $(assert!(std::mem::offset_of!($struct, $field) == $offset);)*
        };
    };
}

pub(super) use assert_fields;
