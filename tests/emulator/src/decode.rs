//! What instructions do, read once from their words: the instructions that threads execute often.

use crate::program::Type;

/// What an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Branch,
    Move,
    Load,
    Store,
    Convert(Conversion),
    /// `setp`.
    Compare(Comparison),
    /// `selp`.
    Select,
    Binary(Binary),
    Fma,
    /// `mad`, with the product and the type of the sum.
    MultiplyAdd(Binary, Type),
    /// `lop3`.
    Logic,
    /// `prmt`.
    Permute,
    /// An instruction of a group of threads, which waits for all of them.
    Collective,
    /// Has no effect here.
    Nothing,
    /// Any other instruction: its words say which.
    Other,
}

/// `cvt` without its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversion {
    pub to: Type,
    pub from: Type,
    /// `rn`, `rz`, `rzi` and so on; empty without one.
    pub rounding: &'static str,
    pub saturates: bool,
}

impl Operation {
    /// The operation of an instruction with these words, name and type.
    pub fn decode(words: &[&'static str], name: &str, kind: Option<Type>) -> Operation {
        let has = |word: &str| words.contains(&word);
        let second = words.get(1).copied().unwrap_or("");
        let decoded = match (words[0], kind) {
            ("bra", _) => Some(Operation::Branch),
            ("mov", Some(_)) => Some(Operation::Move),
            ("ld", Some(_)) => Some(Operation::Load),
            ("st", Some(_)) if !has("async") => Some(Operation::Store),
            ("cvt", _) => conversion(words).map(Operation::Convert),
            ("setp", _) => Comparison::parse(second).map(Operation::Compare),
            ("selp", _) => Some(Operation::Select),
            ("shfl" | "vote" | "match" | "redux" | "activemask", _) => Some(Operation::Collective),
            ("ldmatrix" | "stmatrix" | "mma", _) => Some(Operation::Collective),
            ("wgmma", _) if second == "mma_async" => Some(Operation::Collective),
            ("bar", _) if second == "warp" => Some(Operation::Collective),
            // The fences order what this machine does in order anyway.
            ("wgmma" | "griddepcontrol" | "fence" | "membar" | "setmaxnreg" | "prefetch", _) => {
                Some(Operation::Nothing)
            }
            ("fma", Some(_)) => Some(Operation::Fma),
            ("mad", Some(kind)) => Some(multiply_add(second, kind)),
            ("lop3", Some(_)) => Some(Operation::Logic),
            ("prmt", Some(_)) => Some(Operation::Permute),
            (_, Some(_)) => Binary::parse(name).map(Operation::Binary),
            _ => None,
        };
        decoded.unwrap_or(Operation::Other)
    }
}

fn conversion(words: &[&'static str]) -> Option<Conversion> {
    let mut kinds = words.iter().filter_map(|word| Type::parse(word));
    let (to, from, None) = (kinds.next()?, kinds.next()?, kinds.next()) else { return None };
    let rounding = ["rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi"]
        .into_iter()
        .find(|name| words.contains(name))
        .unwrap_or("");
    Some(Conversion { to, from, rounding, saturates: words.contains(&"sat") })
}

fn multiply_add(modifier: &str, kind: Type) -> Operation {
    match (modifier, kind) {
        ("wide", Type::Bits(bytes)) => {
            Operation::MultiplyAdd(Binary::MulWide, Type::Bits(2 * bytes))
        }
        ("wide", Type::Signed(bytes)) => {
            Operation::MultiplyAdd(Binary::MulWide, Type::Signed(2 * bytes))
        }
        ("hi", _) => Operation::MultiplyAdd(Binary::MulHi, kind),
        _ => Operation::MultiplyAdd(Binary::MulLo, kind),
    }
}

/// Arithmetic of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    Add,
    Sub,
    /// Of floating-point numbers.
    Mul,
    MulLo,
    MulWide,
    MulHi,
    Div,
    Rem,
    Min,
    Max,
    MinNan,
    MaxNan,
    And,
    Or,
    Xor,
    Shl,
    Shr,
    CopySign,
}

impl Binary {
    pub fn parse(name: &str) -> Option<Binary> {
        Some(match name {
            "add" => Binary::Add,
            "sub" => Binary::Sub,
            "mul" => Binary::Mul,
            "mul.lo" => Binary::MulLo,
            "mul.wide" => Binary::MulWide,
            "mul.hi" => Binary::MulHi,
            "div" => Binary::Div,
            "rem" => Binary::Rem,
            "min" => Binary::Min,
            "max" => Binary::Max,
            "min.NaN" => Binary::MinNan,
            "max.NaN" => Binary::MaxNan,
            "and" => Binary::And,
            "or" => Binary::Or,
            "xor" => Binary::Xor,
            "shl" => Binary::Shl,
            "shr" => Binary::Shr,
            "copysign" => Binary::CopySign,
            _ => return None,
        })
    }
}

/// The comparison of `setp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    /// As those above, and true for NaN.
    Equ,
    Neu,
    Ltu,
    Leu,
    Gtu,
    Geu,
    /// Neither operand is NaN.
    Num,
    Nan,
}

impl Comparison {
    pub fn parse(name: &str) -> Option<Comparison> {
        Some(match name {
            "eq" => Comparison::Eq,
            "ne" => Comparison::Ne,
            "lt" | "lo" => Comparison::Lt,
            "le" | "ls" => Comparison::Le,
            "gt" | "hi" => Comparison::Gt,
            "ge" | "hs" => Comparison::Ge,
            "equ" => Comparison::Equ,
            "neu" => Comparison::Neu,
            "ltu" => Comparison::Ltu,
            "leu" => Comparison::Leu,
            "gtu" => Comparison::Gtu,
            "geu" => Comparison::Geu,
            "num" => Comparison::Num,
            "nan" => Comparison::Nan,
            _ => return None,
        })
    }
}
