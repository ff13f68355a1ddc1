//! The table of element types: names and codes in frameworks, in DLPack and in CUDA code.

use std::fmt;

use dlpark::ffi::{DLDataType, DLDataTypeCode};
use serde::{Deserialize, Serialize};

/// What an element is. Kernels of one class differ only in conversions.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Class {
    Double,
    Single,
    /// float16 and bfloat16.
    Half,
    Float8,
    Float6,
    Float4,
    Integer32,
    Integer8,
    Integer4,
    /// A power of two that scales the elements of a block.
    Scale,
}

impl Class {
    /// Whether kernels convert elements to those of another factor, of 16 bits, in registers.
    pub const fn is_widened(self) -> bool {
        matches!(self, Class::Integer8 | Class::Integer4 | Class::Float4 | Class::Float8)
    }
}

/// How memory holds elements.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Storage {
    /// One element in whole bytes.
    Whole,
    /// Two elements in a byte, the first in the low bits.
    Pairs,
}

/// The descriptor of an element type.
pub struct Element {
    pub dtype: DType,
    /// The canonical name, which torch, NumPy, `ml_dtypes` and JAX share. torch adds `_x2` to the
    /// name of a type that it stores in pairs.
    pub name: &'static str,
    /// The name in CUDA code and in kernel names. Empty: kernels have no such type.
    pub cuda: &'static str,
    /// The C++ type of this name. Empty: a struct around the element's bits.
    pub builtin: &'static str,
    pub class: Class,
    pub bits: u8,
    /// Bits of a floating-point number's significand, with the hidden one. 0: an integer.
    significand: u8,
    pub storage: Storage,
    dlpack: DLDataTypeCode,
    /// The code in XLA's FFI (`XLA_FFI_DataType` of JAX). 0: XLA has no such type.
    pub xla: u32,
    /// The class in NVIDIA's `cutlass`.
    pub cutlass: &'static str,
    /// Further names, in lower case.
    aliases: &'static [&'static str],
    /// The types in which products of two such elements are summed, the default first. Empty: no
    /// kernel multiplies two of them.
    pub accumulators: &'static [DType],
    /// What the bits mean, for readers of CUDA code.
    pub note: &'static str,
    /// The numbers of the codes of 4 bits, from 0 up. Empty: an element has more bits.
    pub codes: &'static [f32],
}

/// Codes of consecutive integers.
const fn integers_from(first: i32) -> [f32; 16] {
    let mut numbers = [0.0; 16];
    let mut code = 0;
    while code < 16 {
        numbers[code] = (first + code as i32) as f32;
        code += 1;
    }
    numbers
}

/// OCP Microscaling Formats (MX) Specification 1.0, table 5.
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

macro_rules! elements {
    (
        computed {
            $($variant:ident: $name:literal, $cuda:literal $builtin:literal, $class:ident
                $bits:literal $significand:literal $storage:ident, $dlpack:ident, $xla:literal,
                $cutlass:literal,
                $aliases:tt, [$($accumulator:ident)*], $mma_cc:literal,
                $note:literal $(, $codes:expr)?;)*
        }
        described {
            $($other:literal, $other_cuda:literal, $other_class:ident $other_bits:literal
                $other_storage:ident, $other_dlpack:ident, $other_xla:literal,
                $other_cutlass:literal, $other_note:literal;)*
        }
    ) => {
        /// The type of an operand's elements or of an accumulator.
        #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
        pub enum DType {
            $($variant,)*
            /// A type that no kernel computes with (`complex64`, `int64`, ...), as DLPack describes
            /// it. Arguments accept such an operand; discovery then finds no kernel and names this
            /// type as the reason.
            Other { code: u8, bits: u8, lanes: u16 },
        }

        impl Element {
            /// Every element type. Those that kernels compute with come first.
            pub const TABLE: &[Element] = &[
                $(Element {
                    dtype: DType::$variant, name: $name, cuda: $cuda, builtin: $builtin,
                    class: Class::$class, bits: $bits, significand: $significand,
                    storage: Storage::$storage,
                    dlpack: DLDataTypeCode::$dlpack, xla: $xla, cutlass: $cutlass,
                    aliases: &$aliases, accumulators: &[$(DType::$accumulator),*],
                    note: $note,
                    codes: [$($codes as &[f32],)? &[]][0],
                },)*
                $(Element {
                    dtype: DType::Other {
                        code: DLDataTypeCode::$other_dlpack.0, bits: $other_bits, lanes: 1,
                    },
                    name: $other, cuda: $other_cuda, builtin: "", class: Class::$other_class,
                    bits: $other_bits, significand: 0, storage: Storage::$other_storage,
                    dlpack: DLDataTypeCode::$other_dlpack, xla: $other_xla,
                    cutlass: $other_cutlass, aliases: &[], accumulators: &[],
                    note: $other_note, codes: &[],
                },)*
            ];
        }

        /// Places in the table.
        enum Place { $($variant,)* }

        /// DLPack codes as patterns.
        #[allow(non_upper_case_globals)]
        mod codes {
            use dlpark::ffi::DLDataTypeCode;
            $(pub const $variant: u8 = DLDataTypeCode::$dlpack.0;)*
        }

        // Each launch performs these lookups: matches, without access to the table.
        impl DType {
            #[inline(always)]
            fn row(self) -> Option<&'static Element> {
                match self {
                    $(DType::$variant => Some(&Element::TABLE[Place::$variant as usize]),)*
                    DType::Other { .. } => None,
                }
            }

            /// The class of this type. `None`: the type is not in the table.
            #[inline(always)]
            pub fn class(self) -> Option<Class> {
                match self {
                    $(DType::$variant => Some(Class::$class),)*
                    DType::Other { .. } => self.described_class(),
                }
            }

            /// The least compute capability whose `mma.sync` multiplies two elements of this type,
            /// of weights after a conversion. 0: none.
            #[inline(always)]
            pub fn mma_cc(self) -> u32 {
                match self {
                    $(DType::$variant => $mma_cc,)*
                    DType::Other { .. } => 0,
                }
            }

            /// The DLPack code, width and lane count of this type.
            #[inline(always)]
            pub fn to_dlpack(self) -> DLDataType {
                let (code, bits, lanes) = match self {
                    $(DType::$variant => (DLDataTypeCode::$dlpack, $bits, 1),)*
                    DType::Other { code, bits, lanes } => (DLDataTypeCode(code), bits, lanes),
                };
                DLDataType { code, bits, lanes }
            }

            /// The type of a DLPack code, width and lane count. Never one of less than a byte:
            /// frameworks order its elements otherwise than kernels.
            #[inline(always)]
            pub fn from_dlpack(dtype: DLDataType) -> DType {
                let DLDataType { code: DLDataTypeCode(code), bits, lanes } = dtype;
                match (code, bits, lanes) {
                    $((codes::$variant, $bits, 1) if $bits >= 8 => DType::$variant,)*
                    _ => DType::Other { code, bits, lanes },
                }
            }

            /// Bits in one element.
            #[inline(always)]
            pub fn bits(self) -> u32 {
                match self {
                    $(DType::$variant => $bits,)*
                    DType::Other { bits, lanes, .. } => u32::from(bits) * u32::from(lanes),
                }
            }
        }
    };
}

elements! {
    computed {
        // type: name, CUDA name and C++ type, class, bits, those of the significand, storage, code
        // in DLPack and in XLA, class in cutlass, aliases, accumulators, mma_cc, note, codes
        F64: "float64", "f64" "double", Double 64 53 Whole, FLOAT, 12, "Float64",
            ["double", "fp64", "f64"], [F64], 80, "";
        F32: "float32", "f32" "float", Single 32 24 Whole, FLOAT, 11, "Float32",
            ["float", "fp32", "f32"], [F32], 80, "";
        F16: "float16", "f16" "", Half 16 11 Whole, FLOAT, 10, "Float16",
            ["half", "fp16", "f16"], [F32 F16], 80, "IEEE binary16";
        Bf16: "bfloat16", "bf16" "", Half 16 8 Whole, BFLOAT, 16, "BFloat16",
            ["bf16"], [F32], 80, "the upper half of an IEEE binary32";
        E4m3: "float8_e4m3fn", "e4m3" "", Float8 8 4 Whole, FLOAT8_E4M3FN, 20, "Float8E4M3FN",
            ["fp8e4m3"], [F32], 89, "bias 7, no infinity, one NaN";
        E5m2: "float8_e5m2", "e5m2" "", Float8 8 3 Whole, FLOAT8_E5M2, 19, "Float8E5M2",
            ["fp8e5m2"], [F32], 89, "the upper half of a binary16";
        I8: "int8", "s8" "signed char", Integer8 8 0 Whole, INT, 2, "Int8", [], [I32], 80, "";
        U8: "uint8", "u8" "unsigned char", Integer8 8 0 Whole, UINT, 6, "Uint8",
            [], [I32], 80, "";
        I32: "int32", "s32" "int", Integer32 32 0 Whole, INT, 4, "Int32", [], [I32], 0, "";
        // Types of weights. Their order in memory is that of `packed_place`.
        U4: "uint4", "u4" "", Integer4 4 0 Pairs, UINT, 22, "", [], [], 80,
            "a code of 4 bits", &integers_from(0);
        I4: "int4", "s4" "", Integer4 4 0 Pairs, INT, 21, "Int4", [], [], 80,
            "a code of 4 bits, less 8", &integers_from(-8);
        E2m1: "float4_e2m1fn", "e2m1" "", Float4 4 2 Pairs, FLOAT4_E2M1FN, 32, "Float4E2M1FN",
            [], [], 80, "a code of 4 bits: bias 1, finite", &E2M1;
    }
    described {
        // name, CUDA name, class, bits, storage, DLPack code, XLA code, class in cutlass, note
        "float8_e8m0fnu", "e8m0", Scale 8 Whole, FLOAT8_E8M0FNU, 33, "Float8E8M0FNU",
            "2^(bits - 127), 255 is NaN: scales";
        "float8_e3m4", "", Float8 8 Whole, FLOAT8_E3M4, 29, "Float8E3M4", "";
        "float8_e4m3", "", Float8 8 Whole, FLOAT8_E4M3, 28, "Float8E4M3", "";
        "float8_e4m3b11fnuz", "", Float8 8 Whole, FLOAT8_E4M3B11FNUZ, 23, "Float8E4M3B11FNUZ", "";
        "float8_e4m3fnuz", "", Float8 8 Whole, FLOAT8_E4M3FNUZ, 25, "", "";
        "float8_e5m2fnuz", "", Float8 8 Whole, FLOAT8_E5M2FNUZ, 24, "", "";
        "float6_e2m3fn", "", Float6 6 Whole, FLOAT6_E2M3FN, 0, "Float6E2M3FN", "";
        "float6_e3m2fn", "", Float6 6 Whole, FLOAT6_E3M2FN, 0, "Float6E3M2FN", "";
    }
}

impl Element {
    /// Whether kernels compute with this type. The other types are described only.
    pub fn is_computed(&self) -> bool {
        self.dtype.is_computed()
    }

    /// Whether NumPy has this type from `ml_dtypes` only.
    pub fn is_of_ml_dtypes(&self) -> bool {
        self.builtin.is_empty() && self.dtype != DType::F16
    }

    /// Whether there are negative values.
    pub fn is_signed(&self) -> bool {
        self.class != Class::Scale && !self.name.starts_with('u')
    }
}

impl DType {
    /// The powers of two that scale blocks in MX formats: only scales have this type.
    pub const E8M0: DType =
        DType::Other { code: DLDataTypeCode::FLOAT8_E8M0FNU.0, bits: 8, lanes: 1 };

    /// Every type that kernels compute with, in a fixed order.
    pub fn all() -> impl Iterator<Item = DType> {
        Element::TABLE.iter().filter(|row| row.is_computed()).map(|row| row.dtype)
    }

    /// Those of whole bytes. Weights alone have others (`Operand::packed`).
    pub fn whole() -> impl Iterator<Item = DType> {
        DType::all().filter(|dtype| dtype.is_whole())
    }

    /// The descriptor of this type. `None`: the type is not in the table.
    pub fn element(self) -> Option<&'static Element> {
        self.row().or_else(|| {
            let DType::Other { code, bits, lanes: 1 } = self else { return None };
            Element::TABLE.iter().find(|row| (row.dlpack.0, row.bits) == (code, bits))
        })
    }

    /// The computed type of whole bytes of this name. Ignores case, underscores and a module
    /// prefix, so that torch's `torch.float8_e4m3fn`, NumPy's `float32` and the class names of
    /// NVIDIA's `cutlass` (`Float8E4M3FN`) all resolve.
    pub fn from_name(name: &str) -> Option<DType> {
        let tail = name.rsplit('.').next().unwrap_or(name);
        let key: String =
            tail.chars().filter(|c| *c != '_').map(|c| c.to_ascii_lowercase()).collect();
        let named = |row: &&Element| {
            row.aliases.contains(&key.as_str()) || row.name.replace('_', "") == key
        };
        Element::TABLE.iter().filter(|row| row.dtype.is_whole()).find(named).map(|row| row.dtype)
    }

    /// The computed type of whole bytes of this code in XLA's FFI.
    pub fn from_xla(code: u32) -> Option<DType> {
        let coded = |row: &&Element| row.xla == code && row.dtype.is_whole();
        Element::TABLE.iter().find(coded).map(|row| row.dtype)
    }

    /// The computed type of less than a byte of this name, as `Operand::packed` reads it.
    pub fn packed(name: &str) -> Option<DType> {
        DType::all()
            .find(|dtype| !dtype.is_whole() && dtype.row().is_some_and(|row| row.name == name))
    }

    /// The type of this name, computed or not: `float32`, `complex64`, `int64`, `bool`.
    pub fn describe(name: &str) -> DType {
        if let Some(dtype) = DType::from_name(name) {
            return dtype;
        }
        let tail = name.rsplit('.').next().unwrap_or(name);
        let (single, lanes) = tail.strip_suffix("_x2").map_or((tail, 1), |single| (single, 2));
        if let Some(row) = Element::TABLE.iter().find(|row| row.name == single) {
            return DType::Other { code: row.dlpack.0, bits: row.bits, lanes };
        }
        let digits = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let code = match &tail[..digits] {
            "int" => DLDataTypeCode::INT,
            "uint" => DLDataTypeCode::UINT,
            "complex" => DLDataTypeCode::COMPLEX,
            "bool" => DLDataTypeCode::BOOL,
            _ => DLDataTypeCode::OPAQUEHANDLE,
        };
        DType::Other { code: code.0, bits: tail[digits..].parse().unwrap_or(8), lanes: 1 }
    }

    /// Bytes in one element, rounded up to a whole byte.
    pub fn bytes(self) -> i64 {
        self.bytes_of(1)
    }

    /// Bytes of adjacent elements, or of a stride, rounded up to whole bytes.
    #[inline(always)]
    pub fn bytes_of(self, elements: i64) -> i64 {
        (elements * i64::from(self.bits()) + 7) >> 3
    }

    /// How many elements a byte holds: 1 also for wider ones.
    pub fn packing(self) -> u32 {
        (8 / self.bits()).max(1)
    }

    /// The place of an element of 4 bits in a weight's row, by its index along K: the first byte of
    /// a half of a word, and the element's index in that half. Of each 32 elements, four words of a
    /// lane each have the elements of two instructions (`mma.sync` m16n8k16, `wgmma` k16): word q
    /// has 2q and 2q + 8 of both in its lower half, the next ones in its upper half.
    ///
    /// Where the bits of an element of a half are: `packed_bits`.
    pub const fn packed_place(index: usize) -> (usize, u32) {
        let at = index % 32;
        (index / 32 * 16 + at % 8 / 2 * 4 + at % 2 * 2, at as u32 / 8)
    }

    /// The element of 4 bits of this index in a half of a word: where its highest bit and its other
    /// three begin. Those of an e2m1 have the distance that they have in a bfloat16, as far as
    /// possible.
    pub fn packed_bits(self, index: u32) -> [u32; 2] {
        match self.class() {
            Some(Class::Float4) => [[15, 6], [12, 3], [13, 9], [14, 0]][index as usize],
            _ => [4 * index + 3, 4 * index],
        }
    }

    /// Bytes of an element: a fraction where a byte has several.
    pub fn width(self) -> f64 {
        f64::from(self.bits()) / 8.0
    }

    /// Whether kernels convert elements of this type to those of another factor, of 16 bits.
    pub fn is_widened(self) -> bool {
        self.is_computed() && self.class().is_some_and(Class::is_widened)
    }

    /// The type in which kernels add up values of this type by default. For types that they do not
    /// compute with, float32.
    pub fn accumulator(self) -> DType {
        self.row().and_then(|row| row.accumulators.first().copied()).unwrap_or(DType::F32)
    }

    /// Half a unit in the last place of 1; 0 for integers.
    pub fn roundoff(self) -> f64 {
        match self.row() {
            Some(row) if row.significand > 0 => 2f64.powi(-i32::from(row.significand)),
            _ => 0.0,
        }
    }

    #[cold]
    fn described_class(self) -> Option<Class> {
        self.element().map(|row| row.class)
    }

    /// The name in CUDA code and in kernel names: `f16`, `bf16`, `e4m3`, `s8`.
    pub fn short_name(self) -> &'static str {
        match self.element() {
            Some(row) if !row.cuda.is_empty() => row.cuda,
            _ => "other",
        }
    }

    /// Whether kernels compute with this type.
    pub fn is_computed(self) -> bool {
        !matches!(self, DType::Other { .. })
    }

    /// Whether kernels compute with this type and an element has whole bytes.
    pub fn is_whole(self) -> bool {
        self.is_computed() && self.packing() == 1
    }

    /// Whether a framework's tensor has elements of 4 bits, in an order that no kernel reads.
    pub fn is_of_4_bits(self) -> bool {
        matches!(self, DType::Other { bits: 4, .. })
    }

    /// Whether kernels compute with this type and values are floating-point numbers.
    pub fn is_float(self) -> bool {
        self.is_computed() && !self.is_integer()
    }

    /// Whether kernels compute with this type and values are floats of 8 bits.
    pub fn is_float8(self) -> bool {
        self.is_computed() && self.class() == Some(Class::Float8)
    }

    /// Whether kernels compute with this type and values are integers.
    pub fn is_integer(self) -> bool {
        matches!(self.class(), Some(Class::Integer8 | Class::Integer4 | Class::Integer32))
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DType::Other { code, bits, lanes } = *self else {
            return f.write_str(self.row().map_or("unknown", |row| row.name));
        };
        let single = DType::Other { code, bits, lanes: 1 };
        let kind = match DLDataTypeCode(code) {
            _ if let Some(row) = single.element() => {
                f.write_str(row.name)?;
                return if lanes == 1 { Ok(()) } else { write!(f, "_x{lanes}") };
            }
            DLDataTypeCode::INT => "int",
            DLDataTypeCode::UINT => "uint",
            DLDataTypeCode::FLOAT => "float",
            DLDataTypeCode::COMPLEX => "complex",
            DLDataTypeCode::BOOL => return f.write_str("bool"),
            _ => return write!(f, "dlpack({code}, {bits} bits, {lanes} lanes)"),
        };
        write!(f, "{kind}{bits}")?;
        if lanes == 1 { Ok(()) } else { write!(f, "x{lanes}") }
    }
}
