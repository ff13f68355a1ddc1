//! The parameters of a user's kernel, from the mangled name of its type.
//!
//! The source text does not suffice, since types may come from typedefs, macros and templates.
//! Instead, a variable template is instantiated with the function's type, and the mangled name of
//! the variable spells this type (Itanium C++ ABI, "External Names":
//! <https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling>).

use crate::operand::{DType, Element};

/// The variable template, appended to the user's source. The default arguments say whether the
/// source includes common/types.cuh and common/tma.cuh: otherwise, a class with the name of one in
/// these headers is the user's.
pub(super) const TEMPLATE: &str = "
#line 1 \"appended to the source\"
#ifndef RUTLASS_HAS_TYPES
#define RUTLASS_HAS_TYPES false
#endif
#ifndef RUTLASS_HAS_TENSOR_MAP
#define RUTLASS_HAS_TENSOR_MAP false
#endif
template <class Type, bool = RUTLASS_HAS_TYPES, bool = RUTLASS_HAS_TENSOR_MAP>
__device__ int rutlass_signature;
";

pub(super) fn expression(function: &str) -> String {
    format!("&rutlass_signature<decltype(&{function})>")
}

/// A kernel's parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Parameter {
    Pointer {
        to: Pointee,
        constant: bool,
    },
    Number(ScalarType),
    /// A tensor map by value: `TensorMap` of common/tma.cuh, or CUDA's `CUtensorMap`.
    TensorMap,
}

/// The type behind a pointer, as far as tensors can match it.
#[derive(Clone, Debug, PartialEq)]
pub enum Pointee {
    /// `void`: elements of any type.
    Any,
    /// Elements of one of these types, at an address that is a multiple of `alignment` bytes.
    Elements { dtypes: Vec<DType>, alignment: u64, name: String },
}

/// A number passed by value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScalarType {
    Bool,
    Signed { bytes: u32 },
    Unsigned { bytes: u32 },
    F32,
    F64,
}

/// A C++ type, as far as kernel parameters use it.
#[derive(Clone, Debug, PartialEq)]
enum Type {
    Void,
    Number(ScalarType),
    /// `char`, which may be signed or unsigned.
    Char,
    Class(String),
    Pointer(Box<Type>),
    Const(Box<Type>),
    /// A type that no argument can have: a reference, function, array or the user's class that has
    /// the name of a class in this package's headers.
    Other(String),
}

/// The parameters of the function whose type a lowered name of [`expression`] spells.
pub(super) fn parse(lowered: &str) -> Result<Vec<Parameter>, String> {
    let types = Demangler::new(lowered)
        .and_then(|mut demangler| demangler.signature())
        .ok_or_else(|| format!("its type cannot be parsed ({lowered})"))?;
    types.into_iter().enumerate().map(|(at, parameter)| Parameter::of(parameter, at + 1)).collect()
}

impl Parameter {
    fn of(parameter: Type, place: usize) -> Result<Parameter, String> {
        let refuse = |what: &str| {
            Err(format!(
                "its parameter {place} is {what}; only pointers, numbers and tensor maps are \
                 supported"
            ))
        };
        match parameter {
            Type::Number(number) => Ok(Parameter::Number(number)),
            Type::Char => Ok(Parameter::Number(ScalarType::Signed { bytes: 1 })),
            Type::Pointer(to) => {
                let (to, constant) = match *to {
                    Type::Const(to) => (*to, true),
                    to => (to, false),
                };
                match Pointee::of(&to) {
                    Some(to) => Ok(Parameter::Pointer { to, constant }),
                    None => {
                        let what = match to {
                            Type::Class(name) => format!("the class {name}, which"),
                            Type::Other(what) => format!("{what}, which"),
                            _ => "a type that".to_owned(),
                        };
                        refuse(&format!(
                            "a pointer to {what} no tensor holds (declare void* and cast)"
                        ))
                    }
                }
            }
            Type::Class(name) if name == "TensorMap" || name == "CUtensorMap_st" => {
                Ok(Parameter::TensorMap)
            }
            Type::Class(name) => refuse(&format!("the class {name}")),
            Type::Other(what) => refuse(&what),
            Type::Void | Type::Const(_) => refuse("void"),
        }
    }
}

impl Pointee {
    fn of(to: &Type) -> Option<Pointee> {
        let elements = |dtypes: &[&str], alignment: u64, name: &str| Pointee::Elements {
            dtypes: dtypes.iter().map(|dtype| DType::describe(dtype)).collect(),
            alignment,
            name: name.to_owned(),
        };
        Some(match to {
            Type::Void => Pointee::Any,
            Type::Char => elements(&["int8", "uint8"], 1, "char"),
            Type::Number(number) => {
                let dtype = number.dtype();
                elements(&[dtype], u64::from(number.bytes()), dtype)
            }
            Type::Class(name) => {
                let (dtype, count) = class_elements(name)?;
                let bytes = DType::describe(dtype).bytes() as u64 * count;
                // Vectors of three align like their element; vectors above 16 bytes align to 16
                // (CUDA C++ Programming Guide, "Built-in Vector Types").
                let alignment = if count == 3 { bytes / 3 } else { bytes.min(16) };
                elements(&[dtype], alignment, name)
            }
            Type::Pointer(_) | Type::Const(_) | Type::Other(_) => return None,
        })
    }
}

/// The computed element type that is a class of this name in common/types.cuh.
fn element_class(name: &str) -> Option<&'static Element> {
    Element::TABLE
        .iter()
        .find(|row| row.is_computed() && row.builtin.is_empty() && row.cuda == name)
}

/// Element type and element count of the small classes in CUDA's and these headers.
fn class_elements(name: &str) -> Option<(&'static str, u64)> {
    if let Some(row) = element_class(name) {
        return Some((row.name, 1));
    }
    Some(match name {
        "__half" => ("float16", 1),
        "__half2" => ("float16", 2),
        "__nv_bfloat16" => ("bfloat16", 1),
        "__nv_bfloat162" => ("bfloat16", 2),
        "__nv_fp8_e4m3" => ("float8_e4m3fn", 1),
        "__nv_fp8_e5m2" => ("float8_e5m2", 1),
        vector => {
            let (base, count) = vector.split_at_checked(vector.len().saturating_sub(1))?;
            let dtype = match base {
                "char" => "int8",
                "uchar" => "uint8",
                "short" => "int16",
                "ushort" => "uint16",
                "int" => "int32",
                "uint" => "uint32",
                "long" | "longlong" => "int64",
                "ulong" | "ulonglong" => "uint64",
                "float" => "float32",
                "double" => "float64",
                _ => return None,
            };
            (dtype, count.parse().ok().filter(|count| (1..=4).contains(count))?)
        }
    })
}

impl ScalarType {
    pub fn bytes(self) -> u32 {
        match self {
            ScalarType::Bool => 1,
            ScalarType::Signed { bytes } | ScalarType::Unsigned { bytes } => bytes,
            ScalarType::F32 => 4,
            ScalarType::F64 => 8,
        }
    }

    /// The name of the tensor dtype.
    pub fn dtype(self) -> &'static str {
        match (self, self.bytes()) {
            (ScalarType::Bool, _) => "bool",
            (ScalarType::F32, _) => "float32",
            (ScalarType::F64, _) => "float64",
            (ScalarType::Signed { .. }, 1) => "int8",
            (ScalarType::Signed { .. }, 2) => "int16",
            (ScalarType::Signed { .. }, 4) => "int32",
            (ScalarType::Signed { .. }, _) => "int64",
            (ScalarType::Unsigned { .. }, 1) => "uint8",
            (ScalarType::Unsigned { .. }, 2) => "uint16",
            (ScalarType::Unsigned { .. }, 4) => "uint32",
            (ScalarType::Unsigned { .. }, _) => "uint64",
        }
    }
}

/// Splits a template argument of type bool off the end of a mangled name.
fn split_bool(mangled: &str) -> Option<(&str, bool)> {
    let of = |argument, value| Some((mangled.strip_suffix(argument)?, value));
    of("Lb0E", false).or_else(|| of("Lb1E", true))
}

/// Parses a mangled name from the left. `None`: the name is not the type of a kernel parameter.
struct Demangler<'a> {
    rest: &'a str,
    /// Substitutions `S_`, `S0_`, ... in order of appearance; `None` for names that are not types.
    substitutions: Vec<Option<Type>>,
    /// Whether the source includes common/types.cuh.
    has_types: bool,
    /// Whether the source includes common/tma.cuh.
    has_tensor_map: bool,
}

impl<'a> Demangler<'a> {
    /// A demangler for a lowered name of [`expression`], which ends with the default arguments of
    /// [`TEMPLATE`].
    fn new(lowered: &'a str) -> Option<Demangler<'a>> {
        let (rest, has_tensor_map) = split_bool(lowered.strip_suffix('E')?)?;
        let (rest, has_types) = split_bool(rest)?;
        Some(Demangler { rest, substitutions: Vec::new(), has_types, has_tensor_map })
    }

    fn class(&self, name: String) -> Type {
        let (header, is_included) = match name.as_str() {
            name if element_class(name).is_some() => ("common/types.cuh", self.has_types),
            "TensorMap" => ("common/tma.cuh", self.has_tensor_map),
            _ => return Type::Class(name),
        };
        match is_included {
            true => Type::Class(name),
            false => {
                Type::Other(format!("the source's own class {name}, not {name} of \"{header}\""))
            }
        }
    }

    fn consume(&mut self, prefix: &str) -> bool {
        let rest = self.rest.strip_prefix(prefix);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn digits(&mut self, radix: u32) -> Option<usize> {
        let end = self.rest.find(|c: char| !c.is_digit(radix) || c.is_ascii_lowercase())?;
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        usize::from_str_radix(digits, radix).ok()
    }

    /// A length-prefixed name.
    fn name(&mut self) -> Option<String> {
        let length = self.digits(10)?;
        let (name, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(name.to_owned())
    }

    /// `_Z`, the template's name, and its argument: a pointer to a function that returns void.
    fn signature(&mut self) -> Option<Vec<Type>> {
        self.consume("_Z").then_some(())?;
        self.name()?;
        self.substitutions.push(None);
        self.consume("IPFv").then_some(())?;
        if self.consume("vE") {
            return Some(Vec::new());
        }
        let mut types = Vec::new();
        while !self.consume("E") {
            types.push(self.parse_type()?);
        }
        Some(types)
    }

    /// One type. All but built-in types become candidates for substitution.
    fn parse_type(&mut self) -> Option<Type> {
        let found = if self.consume("P") {
            Type::Pointer(Box::new(self.parse_type()?))
        } else if self.consume("K") {
            Type::Const(Box::new(self.parse_type()?))
        } else if self.consume("V") {
            // Adjacent qualifiers form one substitution candidate.
            if self.consume("K") {
                Type::Const(Box::new(self.parse_type()?))
            } else {
                self.parse_type()?
            }
        } else if self.consume("R") || self.consume("O") {
            self.parse_type()?;
            Type::Other("a reference".to_owned())
        } else if self.consume("F") {
            while !self.consume("E") {
                self.parse_type()?;
            }
            Type::Other("a function".to_owned())
        } else if self.consume("S") {
            let number = if self.consume("_") {
                0
            } else {
                let number = self.digits(36)? + 1;
                self.consume("_").then_some(number)?
            };
            return self.substitutions.get(number)?.clone();
        } else if self.rest.starts_with(|c: char| c.is_ascii_digit()) {
            let name = self.name()?;
            self.class(name)
        } else if self.consume("N") {
            // A name in namespaces or classes. Each prefix is a candidate for substitution, too.
            let mut name = self.name()?;
            while !self.consume("E") {
                self.substitutions.push(None);
                name = format!("{name}::{}", self.name()?);
            }
            Type::Class(name)
        } else {
            return self.built_in();
        };
        self.substitutions.push(Some(found.clone()));
        Some(found)
    }

    fn built_in(&mut self) -> Option<Type> {
        let signed = |bytes| Type::Number(ScalarType::Signed { bytes });
        let unsigned = |bytes| Type::Number(ScalarType::Unsigned { bytes });
        let mut letters = self.rest.chars();
        let found = match letters.next()? {
            'v' => Type::Void,
            'b' => Type::Number(ScalarType::Bool),
            'c' => Type::Char,
            'a' => signed(1),
            'h' => unsigned(1),
            's' => signed(2),
            't' => unsigned(2),
            'i' => signed(4),
            'j' => unsigned(4),
            // long has 8 bytes except on Windows.
            'l' | 'x' => signed(8),
            'm' | 'y' => unsigned(8),
            'f' => Type::Number(ScalarType::F32),
            'd' => Type::Number(ScalarType::F64),
            _ => return None,
        };
        self.rest = letters.as_str();
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lowered name for these parameters, of a source that includes both headers.
    fn lowered(parameters: &str) -> String {
        format!("_Z17rutlass_signatureIPFv{parameters}ELb1ELb1EE")
    }

    /// The dtypes, alignment and name of a pointer's elements, and whether they are constant.
    fn elements(parameter: &Parameter) -> (&[DType], u64, &str, bool) {
        match parameter {
            Parameter::Pointer { to: Pointee::Elements { dtypes, alignment, name }, constant } => {
                (dtypes, *alignment, name, *constant)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn adjacent_qualifiers_are_one_substitution() {
        // f(const volatile float*, int*, int*), then f(const volatile float*, const volatile
        // float*).
        let all = parse(&lowered("PVKfPiS2_")).unwrap();
        assert_eq!(all[1], all[2]);
        assert_eq!(elements(&all[2]).0, [DType::I32]);
        let all = parse(&lowered("PVKfS1_")).unwrap();
        assert_eq!(all[0], all[1]);
    }

    #[test]
    fn tensor_maps_are_passed_by_value() {
        let all = parse(&lowered("9TensorMap14CUtensorMap_st")).unwrap();
        assert_eq!(all, [Parameter::TensorMap, Parameter::TensorMap]);
        assert!(parse(&lowered("P9TensorMap")).is_err());
    }

    #[test]
    fn vector_alignment_follows_the_guide() {
        for (class, expected) in
            [("6float2", 8), ("6float3", 4), ("7double4", 16), ("5uint4", 16), ("7__half2", 4)]
        {
            let all = parse(&lowered(&format!("P{class}"))).unwrap();
            assert_eq!(elements(&all[0]).1, expected, "{class}");
        }
    }
}
