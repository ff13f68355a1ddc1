//! Element types and their names in DLPack, in frameworks and in CUDA code.

use std::fmt;

use dlpark::ffi::{DLDataType, DLDataTypeCode};
use serde::{Deserialize, Serialize};

/// The type of an operand's elements or of an accumulator.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum DType {
    F64,
    F32,
    F16,
    Bf16,
    E4m3,
    E5m2,
    I8,
    U8,
    I32,
    /// A type that DLPack describes and no kernel supports (`complex64`, `int64`, ...). Arguments
    /// accept such an operand; discovery then finds no kernel and names this type as the reason.
    Other {
        code: u8,
        bits: u8,
        lanes: u16,
    },
}

/// Supported types: (type, canonical name, name in CUDA code and kernel names, DLPack code, bits).
const TABLE: [(DType, &str, &str, DLDataTypeCode, u8); 9] = [
    (DType::F64, "float64", "f64", DLDataTypeCode::FLOAT, 64),
    (DType::F32, "float32", "f32", DLDataTypeCode::FLOAT, 32),
    (DType::F16, "float16", "f16", DLDataTypeCode::FLOAT, 16),
    (DType::Bf16, "bfloat16", "bf16", DLDataTypeCode::BFLOAT, 16),
    (DType::E4m3, "float8_e4m3fn", "e4m3", DLDataTypeCode::FLOAT8_E4M3FN, 8),
    (DType::E5m2, "float8_e5m2", "e5m2", DLDataTypeCode::FLOAT8_E5M2, 8),
    (DType::I8, "int8", "s8", DLDataTypeCode::INT, 8),
    (DType::U8, "uint8", "u8", DLDataTypeCode::UINT, 8),
    (DType::I32, "int32", "s32", DLDataTypeCode::INT, 32),
];

/// Types that no kernel supports: (name in frameworks, DLPack code, bits).
const OTHERS: [(&str, DLDataTypeCode, u8); 8] = [
    ("float8_e3m4", DLDataTypeCode::FLOAT8_E3M4, 8),
    ("float8_e4m3", DLDataTypeCode::FLOAT8_E4M3, 8),
    ("float8_e4m3b11fnuz", DLDataTypeCode::FLOAT8_E4M3B11FNUZ, 8),
    ("float8_e4m3fnuz", DLDataTypeCode::FLOAT8_E4M3FNUZ, 8),
    ("float8_e5m2fnuz", DLDataTypeCode::FLOAT8_E5M2FNUZ, 8),
    ("float8_e8m0fnu", DLDataTypeCode::FLOAT8_E8M0FNU, 8),
    ("float6_e2m3fn", DLDataTypeCode::FLOAT6_E2M3FN, 6),
    ("float4_e2m1fn", DLDataTypeCode::FLOAT4_E2M1FN, 4),
];

impl DType {
    /// The powers of two that scale blocks in MX formats (torch.float8_e8m0fnu): only scales have
    /// this type.
    pub const E8M0: DType =
        DType::Other { code: DLDataTypeCode::FLOAT8_E8M0FNU.0, bits: 8, lanes: 1 };

    /// Every supported type, in a fixed order.
    pub fn all() -> impl Iterator<Item = DType> {
        TABLE.iter().map(|row| row.0)
    }

    fn row(self) -> Option<&'static (DType, &'static str, &'static str, DLDataTypeCode, u8)> {
        // The table's order as a match: each launch performs this lookup.
        let at = match self {
            DType::F64 => 0,
            DType::F32 => 1,
            DType::F16 => 2,
            DType::Bf16 => 3,
            DType::E4m3 => 4,
            DType::E5m2 => 5,
            DType::I8 => 6,
            DType::U8 => 7,
            DType::I32 => 8,
            DType::Other { .. } => return None,
        };
        Some(&TABLE[at])
    }

    /// The DLPack code, width and lane count of this type.
    pub fn to_dlpack(self) -> DLDataType {
        match (self, self.row()) {
            (DType::Other { code, bits, lanes }, _) => {
                DLDataType { code: DLDataTypeCode(code), bits, lanes }
            }
            (_, Some(row)) => DLDataType { code: row.3, bits: row.4, lanes: 1 },
            (_, None) => DLDataType { code: DLDataTypeCode::OPAQUEHANDLE, bits: 0, lanes: 0 },
        }
    }

    /// The type of a DLPack code, width and lane count.
    pub fn from_dlpack(dtype: DLDataType) -> DType {
        TABLE
            .iter()
            .find(|row| row.3 == dtype.code && row.4 == dtype.bits && dtype.lanes == 1)
            .map_or(
                DType::Other { code: dtype.code.0, bits: dtype.bits, lanes: dtype.lanes },
                |row| row.0,
            )
    }

    /// The supported type of this name. Ignores case, underscores and a module prefix, so that
    /// torch's `torch.float8_e4m3fn`, NumPy's `float32` and the class names of NVIDIA's `cutlass`
    /// (`Float8E4M3FN`) all resolve.
    pub fn from_name(name: &str) -> Option<DType> {
        let tail = name.rsplit('.').next().unwrap_or(name);
        let key: String =
            tail.chars().filter(|c| *c != '_').map(|c| c.to_ascii_lowercase()).collect();
        let key = match key.as_str() {
            "double" | "fp64" | "f64" => "float64",
            "float" | "fp32" | "f32" => "float32",
            "half" | "fp16" | "f16" => "float16",
            "bf16" => "bfloat16",
            "fp8e4m3" => "float8e4m3fn",
            "fp8e5m2" => "float8e5m2",
            other => other,
        };
        TABLE.iter().find(|row| row.1.replace('_', "") == key).map(|row| row.0)
    }

    /// The type of this name, supported or not: `float32`, `complex64`, `int64`, `bool`.
    pub fn describe(name: &str) -> DType {
        if let Some(dtype) = DType::from_name(name) {
            return dtype;
        }
        let tail = name.rsplit('.').next().unwrap_or(name);
        let (single, lanes) = tail.strip_suffix("_x2").map_or((tail, 1), |single| (single, 2));
        if let Some((_, code, bits)) = OTHERS.iter().find(|row| row.0 == single) {
            return DType::Other { code: code.0, bits: *bits, lanes };
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

    /// Bits in one element.
    pub fn bits(self) -> u32 {
        match self {
            DType::Other { bits, lanes, .. } => u32::from(bits) * u32::from(lanes),
            known => known.row().map_or(0, |row| u32::from(row.4)),
        }
    }

    /// Bytes in one element, rounded up to a whole byte.
    pub fn bytes(self) -> i64 {
        i64::from(self.bits().div_ceil(8))
    }

    /// The name in CUDA code and in kernel names: `f16`, `bf16`, `e4m3`, `s8`.
    pub fn short_name(self) -> &'static str {
        self.row().map_or("other", |row| row.2)
    }

    /// Whether values are floating-point numbers.
    pub fn is_float(self) -> bool {
        matches!(
            self,
            DType::F64 | DType::F32 | DType::F16 | DType::Bf16 | DType::E4m3 | DType::E5m2
        )
    }

    /// Whether values are integers of a supported width.
    pub fn is_integer(self) -> bool {
        matches!(self, DType::I8 | DType::U8 | DType::I32)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DType::Other { code, bits, lanes } = *self else {
            return f.write_str(self.row().map_or("unknown", |row| row.1));
        };
        let kind = match DLDataTypeCode(code) {
            DLDataTypeCode::INT => "int",
            DLDataTypeCode::UINT => "uint",
            DLDataTypeCode::FLOAT => "float",
            DLDataTypeCode::COMPLEX => "complex",
            DLDataTypeCode::BOOL => return f.write_str("bool"),
            code if let Some(row) = OTHERS.iter().find(|row| row.1 == code) => {
                f.write_str(row.0)?;
                return if lanes == 1 { Ok(()) } else { write!(f, "_x{lanes}") };
            }
            _ => return write!(f, "dlpack({code}, {bits} bits, {lanes} lanes)"),
        };
        write!(f, "{kind}{bits}")?;
        if lanes == 1 { Ok(()) } else { write!(f, "x{lanes}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_framework_resolve() {
        for dtype in DType::all() {
            assert_eq!(dtype.row().map(|row| row.0), Some(dtype));
            assert_eq!(DType::from_dlpack(dtype.to_dlpack()), dtype);
            assert_eq!(DType::from_name(&dtype.to_string()), Some(dtype));
            assert_eq!(DType::from_name(&format!("torch.{dtype}")), Some(dtype));
        }
        assert_eq!(DType::from_name("Float8E4M3FN"), Some(DType::E4m3));
        assert_eq!(DType::from_name("BFloat16"), Some(DType::Bf16));
        assert_eq!(DType::from_name("Uint8"), Some(DType::U8));
        for (short, dtype) in [
            ("fp64", DType::F64),
            ("f32", DType::F32),
            ("fp16", DType::F16),
            ("bf16", DType::Bf16),
            ("fp8_e4m3", DType::E4m3),
            ("fp8_e5m2", DType::E5m2),
        ] {
            assert_eq!(DType::from_name(short), Some(dtype));
        }
        assert_eq!(DType::from_name("complex64"), None);
        assert_eq!(DType::from_name("fp8"), None);
    }

    #[test]
    fn unsupported_types_keep_their_name() {
        let complex = DLDataType { code: DLDataTypeCode::COMPLEX, bits: 64, lanes: 1 };
        assert_eq!(DType::from_dlpack(complex).to_string(), "complex64");
        assert_eq!(DType::from_dlpack(complex).bytes(), 8);
        assert_eq!(DType::describe("torch.int64").to_string(), "int64");
        assert_eq!(DType::describe("torch.bool").to_string(), "bool");
        assert_eq!(DType::describe("torch.float16"), DType::F16);
        for name in ["float8_e4m3fnuz", "float4_e2m1fn_x2", "uint4"] {
            assert_eq!(DType::describe(&format!("torch.{name}")).to_string(), name);
        }
    }
}
