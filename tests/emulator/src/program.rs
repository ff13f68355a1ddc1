//! A parsed program: types, operands, instructions.

use crate::decode::Operation;

/// The type of an operation or of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Pred,
    /// Bits or an unsigned integer, of so many bytes.
    Bits(u8),
    Signed(u8),
    F16,
    Bf16,
    F16x2,
    Bf16x2,
    E4m3x2,
    E5m2x2,
    Tf32,
    F32,
    F64,
}

impl Type {
    pub fn parse(text: &str) -> Option<Type> {
        Some(match text {
            "pred" => Type::Pred,
            "b8" | "u8" => Type::Bits(1),
            "b16" | "u16" => Type::Bits(2),
            "b32" | "u32" => Type::Bits(4),
            "b64" | "u64" => Type::Bits(8),
            "s8" => Type::Signed(1),
            "s16" => Type::Signed(2),
            "s32" => Type::Signed(4),
            "s64" => Type::Signed(8),
            "f16" => Type::F16,
            "bf16" => Type::Bf16,
            "f16x2" => Type::F16x2,
            "bf16x2" => Type::Bf16x2,
            "e4m3x2" => Type::E4m3x2,
            "e5m2x2" => Type::E5m2x2,
            "tf32" => Type::Tf32,
            "f32" => Type::F32,
            "f64" => Type::F64,
            _ => return None,
        })
    }

    pub fn bytes(self) -> usize {
        match self {
            Type::Pred => 1,
            Type::Bits(bytes) | Type::Signed(bytes) => bytes as usize,
            Type::F16 | Type::Bf16 | Type::E4m3x2 | Type::E5m2x2 => 2,
            Type::F16x2 | Type::Bf16x2 | Type::Tf32 | Type::F32 => 4,
            Type::F64 => 8,
        }
    }
}

/// An operand.
#[derive(Clone, Debug)]
pub enum Arg {
    Register(usize),
    /// The complement of a predicate.
    Not(usize),
    /// An integer, or the bits of a floating-point number.
    Immediate(u64),
    /// An address in a state space.
    Symbol(Space, u64),
    Special(Special),
    /// `[address + offset]`, or `[address, more...]`.
    Memory(Box<[Arg]>, i64),
    Vector(Box<[Arg]>),
    /// `a|b`.
    Pair(Box<[Arg; 2]>),
    /// `_`.
    Sink,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Generic,
    Global,
    Shared,
    Param,
    Local,
}

impl Space {
    pub fn parse(text: &str) -> Option<Space> {
        Some(match text {
            "global" => Space::Global,
            "shared" | "shared:cta" | "shared:cluster" => Space::Shared,
            "param" => Space::Param,
            "local" => Space::Local,
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Special {
    Thread(usize),
    ThreadCount(usize),
    Cta(usize),
    CtaCount(usize),
    Lane,
    ClusterRank,
}

#[derive(Clone, Debug)]
pub struct Instruction {
    /// The predicate register and the value that executes the instruction.
    pub guard: Option<(usize, bool)>,
    /// The opcode and its modifiers.
    pub words: Box<[&'static str]>,
    /// The opcode with the modifier that selects the operation, such as `mul.wide`.
    pub name: &'static str,
    pub operation: Operation,
    pub args: Box<[Arg]>,
    /// The last type among the words, which is the operation's.
    pub kind: Option<Type>,
    /// The state space of a memory access.
    pub space: Space,
    /// The target of a branch.
    pub target: usize,
}

/// One kernel.
pub struct Kernel {
    pub instructions: Vec<Instruction>,
    pub registers: usize,
    /// Sizes of the parameters and their offsets in the parameter block.
    pub parameters: Vec<(usize, usize)>,
    pub parameter_bytes: usize,
    /// Static shared memory; dynamic shared memory follows it.
    pub shared_bytes: usize,
    pub local_bytes: usize,
    /// Initialized global variables.
    pub globals: Vec<Box<[u8]>>,
}

/// The first byte of a CTA's shared memory, as on devices that reserve a kilobyte.
pub const SHARED_BASE: u64 = 1024;
