//! The functions that an epilogue may call, and the operations of its expression graph: one record
//! each. Python reads the table (`cutlass_api._core.epilogue_functions`). `fused::NAME` of
//! `kernels/common/fusion.cuh`, with NAME the first of an operation's names, is its CUDA code.
//!
//! The order of operations is part of kernel names (`Epilogue::digest`): new ones go last.

use serde::{Deserialize, Serialize};

use crate::operand::DType;

/// A node's index in its graph. Nodes refer to earlier nodes only.
pub type Id = u32;

/// A function of epilogues.
pub struct Function {
    /// The name, then the other spellings in torch, NumPy and `math`.
    pub names: &'static [&'static str],
    pub parameters: &'static [Parameter],
    pub operation: Operation,
    /// The function of torch that computes the same, as a path below `torch`, and its keywords.
    /// Empty if torch has none.
    pub torch: &'static str,
    pub torch_keywords: &'static [(&'static str, &'static str)],
    /// The ATen operator that `cutlass_api.inductor` fuses as this function. Empty: none.
    pub aten: &'static str,
    /// Of an activation, which `linear` takes by name: the ATen operator of its gradient, from that
    /// of the result and the result, or the argument if `reads_argument`. Empty: the gradient is
    /// that of the result.
    pub backward: Option<&'static str>,
    pub reads_argument: bool,
    /// Further arguments of `backward`.
    pub constants: &'static [Constant],
    /// The derivative at `accum` as an expression of an epilogue function, if torch cannot
    /// differentiate `backward`.
    pub derivative: Option<&'static str>,
}

/// A parameter, by its names in torch, NumPy and this package.
pub enum Parameter {
    Value(&'static [&'static str]),
    /// A call has at least one of a function's optional values.
    Optional(&'static [&'static str]),
    Default(&'static [&'static str], f64),
    /// A string or a dtype.
    Word(&'static str),
}

/// What a call adds to the graph.
#[derive(Clone, Copy)]
pub enum Operation {
    Unary(Unary),
    Binary(Binary),
    Comparison(Comparison),
    Cast(DType),
    /// A cast to the dtype that the word names.
    CastTo,
    /// The operation that the word names; without a word the first.
    Approximation(&'static [(&'static str, Unary)]),
    /// A combination of operations on the values of the parameters; `None` without any of the
    /// optional values.
    Expansion(fn(&mut dyn Build, &[Option<Id>]) -> Option<Id>),
    Product,
    ScaleBlocks,
    Fold(Fold),
}

/// The operations of which expansions consist.
pub trait Build {
    fn integer(&mut self, value: i64) -> Id;
    fn binary(&mut self, operation: Binary, left: Id, right: Id) -> Id;
    fn compare(&mut self, comparison: Comparison, left: Id, right: Id) -> Id;
    fn select(&mut self, condition: Id, yes: Id, no: Id) -> Id;
}

/// A constant argument of an ATen operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Constant {
    Number(f64),
    Truth(bool),
}

impl Parameter {
    pub fn names(&self) -> &[&'static str] {
        match self {
            Parameter::Value(names) | Parameter::Optional(names) | Parameter::Default(names, _) => {
                names
            }
            Parameter::Word(name) => std::slice::from_ref(name),
        }
    }
}

impl Function {
    /// All functions.
    pub fn all() -> impl Iterator<Item = &'static Function> {
        let unary = Unary::ALL.iter().map(|operation| &operation.record().function);
        let binary = Binary::ALL.iter().map(|operation| &operation.record().function);
        let comparisons = Comparison::ALL.iter().map(|operation| &operation.record().function);
        let folds = Fold::ALL.iter().map(|fold| &fold.record().function);
        unary.chain(binary).chain(comparisons).chain(folds).chain(COMPOSED)
    }
}

const X: Parameter = Parameter::Value(&["input", "x"]);
const Y: Parameter = Parameter::Value(&["other", "y"]);

/// Whose fields a row of the table leaves out.
const DEFAULT: Function = Function {
    names: &[],
    parameters: &[X],
    operation: Operation::Expansion(|_, of| of[0]),
    torch: "",
    torch_keywords: &[],
    aten: "",
    backward: None,
    reads_argument: false,
    constants: &[],
    derivative: None,
};

/// Defines the operations of one kind with their records. A row holds the fields of its
/// [`Function`], then those that only this kind has.
macro_rules! operations {
    (
        $(#[$about:meta])*
        $Kind:ident, $Record:ident, $parameters:expr;
        $($(#[$doc:meta])* $Operation:ident { $($field:ident: $value:expr),+ }
            $({ $($own:ident: $content:expr),+ })?)+
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $Kind { $($(#[$doc])* $Operation,)+ }

        impl $Kind {
            pub const ALL: &'static [$Kind] = &[$($Kind::$Operation),+];

            pub fn record(self) -> &'static $Record {
                static RECORDS: &[$Record] = &[$($Record {
                    function: Function {
                        $($field: $value,)+
                        ..Function {
                            operation: Operation::$Kind($Kind::$Operation),
                            parameters: $parameters,
                            ..DEFAULT
                        }
                    },
                    $($($own: $content,)+)?
                }),+];
                &RECORDS[self as usize]
            }

            /// The name in CUDA code and in expressions.
            pub fn name(self) -> &'static str {
                self.record().function.names[0]
            }
        }
    };
}

pub struct UnaryRecord {
    pub function: Function,
    /// Whether the result of an integer is an integer; else it is a float.
    pub keeps_integers: bool,
    /// The exact result, which the reference rounds.
    pub evaluate: fn(f64) -> f64,
}

operations! {
    Unary, UnaryRecord, &[X];
    Negate { names: &["negate", "neg", "negative"], torch: "neg", aten: "neg.default" }
        { keeps_integers: true, evaluate: |x| -x }
    Absolute { names: &["absolute", "abs"], torch: "abs", aten: "abs.default" }
        { keeps_integers: true, evaluate: f64::abs }
    /// To the nearest integer, ties to even.
    Round { names: &["round"], torch: "round" }
        { keeps_integers: true, evaluate: f64::round_ties_even }
    Exp { names: &["exp"], torch: "exp", aten: "exp.default" }
        { keeps_integers: false, evaluate: f64::exp }
    Log { names: &["log"], torch: "log", aten: "log.default" }
        { keeps_integers: false, evaluate: f64::ln }
    Log1p { names: &["log1p"], torch: "log1p", aten: "log1p.default" }
        { keeps_integers: false, evaluate: f64::ln_1p }
    Erf { names: &["erf"], torch: "erf", aten: "erf.default" }
        { keeps_integers: false, evaluate: libm::erf }
    Sqrt { names: &["sqrt"], torch: "sqrt", aten: "sqrt.default" }
        { keeps_integers: false, evaluate: f64::sqrt }
    Rsqrt { names: &["rsqrt"], torch: "rsqrt", aten: "rsqrt.default" }
        { keeps_integers: false, evaluate: |x| 1.0 / x.sqrt() }
    Sigmoid {
        names: &["sigmoid"], torch: "sigmoid", aten: "sigmoid.default",
        backward: Some("sigmoid_backward")
    } { keeps_integers: false, evaluate: |x| 1.0 / (1.0 + (-x).exp()) }
    Tanh {
        names: &["tanh"], torch: "tanh", aten: "tanh.default", backward: Some("tanh_backward")
    } { keeps_integers: false, evaluate: f64::tanh }
    Silu {
        names: &["silu", "swish"], torch: "nn.functional.silu",
        backward: Some("silu_backward"), reads_argument: true,
        derivative: Some("sigmoid(accum) * (1 + accum * (1 - sigmoid(accum)))")
    } { keeps_integers: false, evaluate: |x| x / (1.0 + (-x).exp()) }
    Gelu {
        names: &["gelu"], parameters: &[X, Parameter::Word("approximate")],
        torch: "nn.functional.gelu",
        operation: Operation::Approximation(&[("none", Unary::Gelu), ("tanh", Unary::GeluTanh)]),
        backward: Some("gelu_backward"), reads_argument: true
    } { keeps_integers: false, evaluate: |x| {
        // Below -40 the second factor is 0. The clamp avoids 0 * infinity.
        0.5 * maximum(x, -40.0) * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2)
    } }
    GeluTanh {
        names: &["gelu_tanh"], torch: "nn.functional.gelu",
        torch_keywords: &[("approximate", "tanh")],
        backward: Some("gelu_backward"), reads_argument: true
    } { keeps_integers: false, evaluate: |x| {
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
        0.5 * x * (1.0 + inner.tanh())
    } }
    Hardswish {
        names: &["hardswish"], torch: "nn.functional.hardswish",
        backward: Some("hardswish_backward"), reads_argument: true
    } { keeps_integers: false, evaluate: |x| x * maximum(0.0, minimum(6.0, x + 3.0)) / 6.0 }
    Sin { names: &["sin"], torch: "sin", aten: "sin.default" }
        { keeps_integers: false, evaluate: f64::sin }
    Cos { names: &["cos"], torch: "cos", aten: "cos.default" }
        { keeps_integers: false, evaluate: f64::cos }
}

pub struct BinaryRecord {
    pub function: Function,
    /// The operator in Python, and its class in Python's syntax tree. Empty: none.
    pub symbol: &'static str,
    pub syntax: &'static str,
    /// Of float64 values. The result of float32 values, rounded, equals float32 arithmetic.
    pub of_floats: fn(f64, f64) -> f64,
    /// `None` on overflow, and for quotients, which are floats.
    pub of_integers: fn(i64, i64) -> Option<i64>,
}

operations! {
    Binary, BinaryRecord, &[X, Y];
    Add { names: &["add"], torch: "add", aten: "add.Tensor" }
        { symbol: "+", syntax: "Add", of_floats: |x, y| x + y, of_integers: i64::checked_add }
    Subtract { names: &["subtract", "sub"], torch: "sub", aten: "sub.Tensor" }
        { symbol: "-", syntax: "Sub", of_floats: |x, y| x - y, of_integers: i64::checked_sub }
    Multiply { names: &["multiply", "mul"], torch: "mul", aten: "mul.Tensor" }
        { symbol: "*", syntax: "Mult", of_floats: |x, y| x * y, of_integers: i64::checked_mul }
    Divide { names: &["divide", "div", "true_divide"], torch: "div", aten: "div.Tensor" }
        { symbol: "/", syntax: "Div", of_floats: |x, y| x / y, of_integers: |_, _| None }
    /// NaN if either operand is NaN, as in torch.
    Maximum { names: &["maximum", "max"], torch: "maximum", aten: "maximum.default" }
        { symbol: "", syntax: "", of_floats: maximum, of_integers: |x, y| Some(x.max(y)) }
    Minimum { names: &["minimum", "min"], torch: "minimum", aten: "minimum.default" }
        { symbol: "", syntax: "", of_floats: minimum, of_integers: |x, y| Some(x.min(y)) }
}

pub struct ComparisonRecord {
    pub function: Function,
    /// The operator, in Python as in C++.
    pub symbol: &'static str,
    /// The class in Python's syntax tree.
    pub syntax: &'static str,
    pub holds: fn(f64, f64) -> bool,
}

operations! {
    Comparison, ComparisonRecord, &[X, Y];
    Less { names: &["lt", "less"], torch: "lt", aten: "lt.Scalar" }
        { symbol: "<", syntax: "Lt", holds: |x, y| x < y }
    LessEqual { names: &["le", "less_equal"], torch: "le", aten: "le.Scalar" }
        { symbol: "<=", syntax: "LtE", holds: |x, y| x <= y }
    Greater { names: &["gt", "greater"], torch: "gt", aten: "gt.Scalar" }
        { symbol: ">", syntax: "Gt", holds: |x, y| x > y }
    GreaterEqual { names: &["ge", "greater_equal"], torch: "ge", aten: "ge.Scalar" }
        { symbol: ">=", syntax: "GtE", holds: |x, y| x >= y }
    // Not `equal`: in torch it compares whole tensors.
    Equal { names: &["eq"], torch: "eq", aten: "eq.Scalar" }
        { symbol: "==", syntax: "Eq", holds: |x, y| x == y }
    NotEqual { names: &["ne", "not_equal"], torch: "ne", aten: "ne.Scalar" }
        { symbol: "!=", syntax: "NotEq", holds: |x, y| x != y }
}

pub struct FoldRecord {
    pub function: Function,
    /// The type in CUDA code, `fused::TYPE`.
    pub cuda: &'static str,
    pub identity: f64,
    /// In float64, where sums of int32 values are exact.
    pub combine: fn(f64, f64) -> f64,
}

operations! {
    /// A reduction's combining operation, applied in any order.
    Fold, FoldRecord, &[X];
    /// Integers wrap modulo 2^32.
    Sum { names: &["sum"], torch: "sum" }
        { cuda: "Sum", identity: 0.0, combine: |x, y| x + y }
    /// NaN if any value is NaN.
    Maximum { names: &["max", "amax"], torch: "amax" }
        { cuda: "Maximum", identity: f64::NEG_INFINITY, combine: maximum }
}

/// A reduction of a prologue: over K, for each row of A, in float32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RowReduction {
    Sum,
    Mean,
    Maximum,
}

impl RowReduction {
    pub const ALL: [RowReduction; 3] =
        [RowReduction::Sum, RowReduction::Mean, RowReduction::Maximum];

    /// The name, then the other spellings.
    pub fn names(self) -> &'static [&'static str] {
        match self {
            RowReduction::Sum => &["sum"],
            RowReduction::Mean => &["mean"],
            RowReduction::Maximum => &["amax", "max"],
        }
    }

    /// The operation that combines two values.
    pub fn fold(self) -> Fold {
        match self {
            RowReduction::Sum | RowReduction::Mean => Fold::Sum,
            RowReduction::Maximum => Fold::Maximum,
        }
    }
}

/// The functions that are no operation of their own.
static COMPOSED: &[Function] = &[
    Function { names: &["float"], operation: Operation::Cast(DType::F32), ..DEFAULT },
    Function { names: &["double"], operation: Operation::Cast(DType::F64), ..DEFAULT },
    Function { names: &["half"], operation: Operation::Cast(DType::F16), ..DEFAULT },
    Function { names: &["bfloat16"], operation: Operation::Cast(DType::Bf16), ..DEFAULT },
    Function { names: &["int"], operation: Operation::Cast(DType::I32), ..DEFAULT },
    Function {
        names: &["cast", "to", "type", "astype"],
        parameters: &[X, Parameter::Word("dtype")],
        operation: Operation::CastTo,
        ..DEFAULT
    },
    Function { names: &["identity"], backward: Some(""), ..DEFAULT },
    Function {
        names: &["relu"],
        operation: Operation::Expansion(|graph, of| {
            let zero = graph.integer(0);
            Some(graph.binary(Binary::Maximum, of[0]?, zero))
        }),
        torch: "relu",
        aten: "relu.default",
        backward: Some("threshold_backward"),
        constants: &[Constant::Number(0.0)],
        ..DEFAULT
    },
    Function {
        names: &["leaky_relu"],
        parameters: &[X, Parameter::Default(&["negative_slope", "alpha"], NEGATIVE_SLOPE)],
        operation: Operation::Expansion(|graph, of| {
            let (x, zero) = (of[0]?, graph.integer(0));
            let condition = graph.compare(Comparison::Greater, x, zero);
            let no = graph.binary(Binary::Multiply, x, of[1]?);
            Some(graph.select(condition, x, no))
        }),
        torch: "nn.functional.leaky_relu",
        backward: Some("leaky_relu_backward"),
        constants: &[Constant::Number(NEGATIVE_SLOPE), Constant::Truth(true)],
        ..DEFAULT
    },
    Function {
        names: &["square"],
        operation: Operation::Expansion(|graph, of| {
            Some(graph.binary(Binary::Multiply, of[0]?, of[0]?))
        }),
        torch: "square",
        ..DEFAULT
    },
    Function {
        names: &["multiply_add"],
        parameters: &[Parameter::Value(&["x"]), Parameter::Value(&["y"]), Parameter::Value(&["z"])],
        operation: Operation::Expansion(|graph, of| {
            let product = graph.binary(Binary::Multiply, of[0]?, of[1]?);
            Some(graph.binary(Binary::Add, product, of[2]?))
        }),
        ..DEFAULT
    },
    Function {
        names: &["clamp", "clip"],
        parameters: &[
            X,
            Parameter::Optional(&["min", "a_min"]),
            Parameter::Optional(&["max", "a_max"]),
        ],
        operation: Operation::Expansion(|graph, of| {
            let raised = of[1].and_then(|low| Some(graph.binary(Binary::Maximum, of[0]?, low)));
            match of[2] {
                Some(high) => Some(graph.binary(Binary::Minimum, raised.or(of[0])?, high)),
                None => raised,
            }
        }),
        torch: "clamp",
        ..DEFAULT
    },
    Function {
        names: &["where"],
        parameters: &[Parameter::Value(&["condition"]), X, Y],
        operation: Operation::Expansion(|graph, of| Some(graph.select(of[0]?, of[1]?, of[2]?))),
        torch: "where",
        aten: "where.self",
        ..DEFAULT
    },
    Function {
        names: &["product"],
        parameters: &[Parameter::Value(&["B"])],
        operation: Operation::Product,
        ..DEFAULT
    },
    Function { names: &["scale_blocks"], operation: Operation::ScaleBlocks, ..DEFAULT },
];

const NEGATIVE_SLOPE: f64 = 0.01;

/// NaN if either operand is NaN, as in torch. Rust's `f64::max` ignores NaN.
fn maximum(x: f64, y: f64) -> f64 {
    if x > y || x.is_nan() { x } else { y }
}

fn minimum(x: f64, y: f64) -> f64 {
    if x < y || x.is_nan() { x } else { y }
}
