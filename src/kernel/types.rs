//! Element types of kernels.

use super::unsupported::Unsupported;
use crate::operand::Class;
use crate::operand::DType::{self, Bf16, E4m3, E5m2, F16, F32, F64, I8, I32, U8};
use crate::problem::Problem;

/// What a kernel multiplies. Kernels of one class differ only in conversions and instructions'
/// types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProductClass {
    Double,
    /// float32, which tensor cores round to tf32.
    Single,
    Half,
    Float8,
    Integer8,
    Integer32,
    /// A 16-bit floating-point type, and a type that kernels convert to it ([`Class::is_widened`]).
    Mixed,
    /// Types of which no GEMM kernel has both.
    Unserved,
}

/// Element types of one kernel. An elementwise kernel computes in `accumulator`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Types {
    pub a: DType,
    pub b: DType,
    pub accumulator: DType,
    pub out: DType,
}

impl Types {
    /// The class of the operands.
    #[inline]
    pub fn class(self) -> ProductClass {
        let (Some(a), Some(b)) = (self.a.class(), self.b.class()) else {
            return ProductClass::Unserved;
        };
        match a {
            Class::Half if b.is_widened() => ProductClass::Mixed,
            _ if a.is_widened() && b == Class::Half => ProductClass::Mixed,
            _ if a != b => ProductClass::Unserved,
            Class::Double => ProductClass::Double,
            Class::Single => ProductClass::Single,
            Class::Half => ProductClass::Half,
            Class::Float8 => ProductClass::Float8,
            Class::Integer8 => ProductClass::Integer8,
            Class::Integer32 => ProductClass::Integer32,
            Class::Float6 | Class::Float4 | Class::Integer4 | Class::Scale => {
                ProductClass::Unserved
            }
        }
    }

    /// Bits of an element of the narrower operand.
    pub fn narrower_bits(self) -> u32 {
        self.a.bits().min(self.b.bits())
    }

    /// How many elements of the narrower operand have the bits of one of the other: above 1 in a
    /// mixed product only.
    pub fn widening(self) -> u32 {
        self.a.bits().max(self.b.bits()) / self.narrower_bits()
    }

    /// Whether tensor cores multiply elements of A and of B. Their families differ in the classes
    /// and combinations that they serve.
    pub fn on_tensor_cores(self) -> bool {
        self.a.mma_cc() > 0 && self.b.mma_cc() > 0
    }

    /// Whether sums of 16-bit products are stored as float32, so that the output shows their
    /// rounding errors (docs/design/accuracy.md).
    pub fn stores_float32_sums(self) -> bool {
        self.class() == ProductClass::Half && self.accumulator == F32 && self.out == F32
    }

    /// The types of the transposed product.
    pub fn transposed(self) -> Types {
        Types { a: self.b, b: self.a, ..self }
    }

    /// Checks that a problem's operands have these element types.
    pub fn match_operands(&self, problem: &Problem) -> Result<(), Unsupported> {
        let operands = match problem {
            Problem::Gemm(p) => [&p.a, &p.b, &p.out],
            Problem::GroupedGemm(p) => [&p.a, &p.b, &p.out],
            Problem::Elementwise(p) => [&p.a, &p.b, &p.out],
        };
        let pairs = [
            ("A", operands[0].dtype, self.a),
            ("B", operands[1].dtype, self.b),
            ("out", operands[2].dtype, self.out),
        ];
        for (name, actual, expected) in pairs {
            if actual != expected {
                return Err(Unsupported::DType { name, actual, expected });
            }
        }
        Ok(())
    }

    /// Checks that a problem has this accumulator type.
    pub fn match_accumulator(&self, problem: &Problem) -> Result<(), Unsupported> {
        let accumulator = match problem {
            Problem::Gemm(p) => Some(p.accumulator),
            Problem::GroupedGemm(p) => Some(p.accumulator),
            Problem::Elementwise(_) => None,
        };
        match accumulator {
            Some(actual) if actual != self.accumulator => Err(Unsupported::DType {
                name: "accumulator_type",
                actual,
                expected: self.accumulator,
            }),
            _ => Ok(()),
        }
    }

    /// What to change if no kernel has these types: the first of A, B, accumulator and output that
    /// none has together with those before. None if a kernel has them. `served`: types of kernels.
    /// An operand is not cast to narrower types than float16, nor floats to integers, if there are
    /// others: such types need scales.
    pub fn remedy(&self, served: impl Iterator<Item = Types>) -> Option<String> {
        type Field = fn(&Types) -> DType;
        let fields: [(&str, Field); 4] = [
            ("cast A to", |types| types.a),
            ("cast B to", |types| types.b),
            ("pass accumulator_type as", |types| types.accumulator),
            ("pass an output in", |types| types.out),
        ];
        let four_bits =
            [("A", self.a), ("B", self.b)].map(|(name, dtype)| (name, dtype.is_of_4_bits()));
        if let Some((name, _)) = four_bits.into_iter().find(|(_, is_narrow)| *is_narrow) {
            return Some(format!(
                "kernels read elements of 4 bits as B, in a weight of cutlass_api.weights: pass \
                 one or cast {name}, to float16 for example"
            ));
        }
        // No cast makes a weight of packed elements.
        let can_cast = |types: &Types| types.b.is_whole() || types.b == self.b;
        let mut served: Vec<Types> = served.filter(can_cast).collect();
        for (remedy, field) in fields {
            let mut dtypes: Vec<DType> = Vec::new();
            for dtype in served.iter().map(field) {
                if !dtypes.contains(&dtype) {
                    dtypes.push(dtype);
                }
            }
            let actual = field(self);
            served.retain(|types| field(types) == actual);
            if !served.is_empty() {
                continue;
            }
            for is_kept in [
                |dtype: DType, actual: DType| dtype.bits() >= actual.bits().min(16),
                |dtype: DType, actual: DType| dtype.is_float() || !actual.is_float(),
            ] {
                if dtypes.iter().any(|dtype| is_kept(*dtype, actual)) {
                    dtypes.retain(|dtype| is_kept(*dtype, actual));
                }
            }
            let dtypes: Vec<String> = dtypes.iter().map(DType::to_string).collect();
            return Some(format!("{remedy} {}", dtypes.join(" or ")));
        }
        None
    }

    /// The combinations of types that every GEMM family chooses from: `simt` and the reference
    /// serve all of them, the tensor-core families those of their instructions.
    pub fn gemm() -> Vec<Types> {
        let mut all = Vec::new();
        let mut add = |a, b, accumulator, outs: &[DType]| {
            all.extend(outs.iter().map(|out| Types { a, b, accumulator, out: *out }));
        };
        add(F16, F16, F32, &[F16, F32, Bf16]);
        add(F16, F16, F16, &[F16]);
        add(Bf16, Bf16, F32, &[Bf16, F32, F16]);
        add(F32, F32, F32, &[F32, F16, Bf16]);
        add(F64, F64, F64, &[F64, F32]);
        for [a, b] in pairs(Class::Float8, Class::Float8) {
            add(a, b, F32, &[F32, F16, Bf16, a]);
        }
        add(E4m3, E5m2, F32, &[E5m2]);
        add(E5m2, E4m3, F32, &[E4m3]);
        for [a, b] in pairs(Class::Integer8, Class::Integer8) {
            add(a, b, I32, &[I32, F32, F16, Bf16, I8, U8]);
        }
        add(I32, I32, I32, &[I32, F32]);
        // Weight-only quantization: one operand of 16 bits, and one that is converted to its type.
        for half in of_class(Class::Half) {
            for weight in DType::all().filter(|dtype| dtype.is_widened()) {
                if weight != E5m2 {
                    add(half, weight, F32, &[half, F32]);
                }
                if weight.is_integer() && weight.is_whole() {
                    add(weight, half, F32, &[half, F32]);
                }
            }
        }
        all
    }

    /// The types of programs that are offered for transposed products alone: no kernel has them.
    pub fn of_twins() -> Vec<Types> {
        let offered = Types::gemm();
        let transposed = offered.iter().map(|types| types.transposed());
        transposed.filter(|types| !offered.contains(types)).collect()
    }

    /// Further combinations, for which only `simt` and the reference have kernels: outputs that
    /// are seldom stored. Kernels of the tensor-core families for them would lengthen every
    /// listing.
    pub fn seldom_stored() -> Vec<Types> {
        let mut all = Vec::new();
        let mut add = |a, b, accumulator, outs: &[DType]| {
            all.extend(outs.iter().map(|out| Types { a, b, accumulator, out: *out }));
        };
        add(F16, F16, F16, &[Bf16]);
        for half in of_class(Class::Half) {
            add(half, half, F32, &[E4m3, E5m2, I32]);
        }
        add(F32, F32, F32, &[I32]);
        add(F64, F64, F64, &[I32]);
        for [a, b] in pairs(Class::Float8, Class::Float8) {
            add(a, b, F32, &[I32]);
        }
        add(E4m3, E4m3, F32, &[E5m2]);
        add(E5m2, E5m2, F32, &[E4m3]);
        all
    }

    /// Every combination of types that an elementwise operation has kernels for: inputs and output
    /// of one type.
    pub fn elementwise() -> Vec<Types> {
        let types = |dtype: DType| Types {
            a: dtype,
            b: dtype,
            accumulator: dtype.accumulator(),
            out: dtype,
        };
        DType::whole().map(types).collect()
    }
}

/// The types of a class that kernels compute with.
fn of_class(class: Class) -> impl Iterator<Item = DType> {
    DType::all().filter(move |dtype| dtype.class() == Some(class))
}

/// The types of one class, each with those of another.
fn pairs(first: Class, second: Class) -> impl Iterator<Item = [DType; 2]> {
    of_class(first).flat_map(move |a| of_class(second).map(move |b| [a, b]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_type_that_no_kernel_has_is_named() {
        let remedy = |a, b, accumulator, out| {
            let served = Types::gemm().into_iter().chain(Types::of_twins());
            Types { a, b, accumulator, out }.remedy(served)
        };
        assert_eq!(remedy(F16, F16, F32, F16), None);
        assert_eq!(remedy(F64, F16, F64, F64).unwrap(), "cast B to float64");
        assert_eq!(remedy(Bf16, F16, F32, Bf16).unwrap(), "cast B to bfloat16");
        assert_eq!(remedy(F16, F32, F32, F16).unwrap(), "cast B to float16");
        assert_eq!(remedy(E4m3, F32, F32, F16).unwrap(), "cast B to float16 or bfloat16");
        assert_eq!(remedy(F16, E5m2, F32, F16).unwrap(), "cast B to float16 or float8_e4m3fn");
        assert_eq!(remedy(F32, F32, F16, F32).unwrap(), "pass accumulator_type as float32");
        assert_eq!(
            remedy(F16, F16, F32, I8).unwrap(),
            "pass an output in float16 or float32 or bfloat16"
        );
        assert!(remedy(DType::E8M0, F16, F32, F16).unwrap().starts_with("cast A to float16 or"));
    }
}
