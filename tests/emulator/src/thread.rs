//! A thread that runs: its registers, and the instructions that it executes alone.

use crate::arithmetic::{self, unsigned};
use crate::launch::{Cluster, Fault, Launch, Result, State, Thread};
use crate::memory::{SHARED_WINDOW, of_cta};
use crate::ptx::{Arg, Instruction, Space, Special, Type};
use crate::tma;

/// Instructions of a thread before the next thread runs, so that a thread may poll.
const SLICE: usize = 2_000;

/// A thread that runs.
pub struct Run<'a> {
    pub launch: &'a Launch<'a>,
    pub cluster: &'a mut Cluster,
    pub cta: usize,
    pub thread: usize,
}

/// What an instruction does to the thread.
pub enum Next {
    Continue,
    Jump(usize),
    /// Executes the instruction again later.
    Poll,
    /// Continues with the next instruction once the state permits.
    Wait(State),
}

impl Run<'_> {
    pub fn locate(&self, fault: Fault) -> Fault {
        let (pc, index) = (self.current().pc, self.cluster.ctas[self.cta].index);
        let instruction = &self.launch.kernel.instructions[pc];
        let words = instruction.words.join(".");
        format!("{fault}\n  at {pc}: {words}, CTA {index:?}, thread {}", self.thread)
    }

    pub fn current(&self) -> &Thread {
        &self.cluster.ctas[self.cta].threads[self.thread]
    }

    pub fn current_mut(&mut self) -> &mut Thread {
        &mut self.cluster.ctas[self.cta].threads[self.thread]
    }

    pub fn slice(&mut self) -> Result<bool> {
        let ready = match self.current().state {
            State::Ready => true,
            State::AtBarrier(name, before) => {
                self.cluster.ctas[self.cta].barriers[name].generation != before
            }
            State::AtCluster(before) => self.cluster.barrier.generation != before,
            State::AtCollective | State::Exited => false,
        };
        if !ready {
            return Ok(false);
        }
        self.current_mut().state = State::Ready;
        let instructions = &self.launch.kernel.instructions;
        let mut progress = false;
        for _ in 0..SLICE {
            let pc = self.current().pc;
            let Some(instruction) = instructions.get(pc) else {
                self.current_mut().state = State::Exited;
                return Ok(true);
            };
            if let Some((slot, wanted)) = instruction.guard
                && (self.current().registers[slot] & 1 == 1) != wanted
            {
                self.current_mut().pc += 1;
                continue;
            }
            match self.execute(instruction)? {
                Next::Continue => self.current_mut().pc += 1,
                Next::Jump(target) => self.current_mut().pc = target,
                Next::Poll => return Ok(progress),
                Next::Wait(state) => {
                    let thread = self.current_mut();
                    thread.state = state;
                    if state != State::AtCollective {
                        thread.pc += 1;
                    }
                    return Ok(true);
                }
            }
            progress = true;
        }
        // A thread that polls global memory makes no progress of its own.
        Ok(false)
    }

    // ---- operands ----

    pub fn value(&self, arg: &Arg) -> Result<u64> {
        Ok(match arg {
            Arg::Register(slot) => self.current().registers[*slot],
            Arg::Not(slot) => self.current().registers[*slot] & 1 ^ 1,
            Arg::Immediate(value) => *value,
            Arg::Symbol(Space::Shared, at) => self.own_shared(*at),
            Arg::Symbol(Space::Param, at) => {
                self.launch.parameters.bytes().as_ptr().addr() as u64 + at
            }
            Arg::Symbol(Space::Local, at) => self.current().local.as_ptr().addr() as u64 + at,
            Arg::Symbol(_, at) => *at,
            Arg::Special(special) => u64::from(self.special(*special)),
            _ => return Err(format!("not a value: {arg:?}")),
        })
    }

    fn own_shared(&self, at: u64) -> u64 {
        of_cta(at, u64::from(self.cluster.ctas[self.cta].rank))
    }

    fn special(&self, special: Special) -> u32 {
        let (block, cta) = (self.launch.block, &self.cluster.ctas[self.cta]);
        let at = self.thread as u32;
        match special {
            Special::Thread(0) => at % block[0],
            Special::Thread(1) => at / block[0] % block[1],
            Special::Thread(_) => at / block[0] / block[1],
            Special::ThreadCount(dimension) => block[dimension],
            Special::Cta(dimension) => cta.index[dimension],
            Special::CtaCount(dimension) => self.launch.grid[dimension],
            Special::Lane => at % 32,
            Special::ClusterRank => cta.rank,
        }
    }

    pub fn set(&mut self, arg: &Arg, value: u64) -> Result<()> {
        match arg {
            Arg::Register(slot) => {
                self.current_mut().registers[*slot] = value;
                Ok(())
            }
            Arg::Sink => Ok(()),
            _ => Err(format!("not a destination: {arg:?}")),
        }
    }

    /// The address of `[base + offset]`.
    pub fn address(&self, arg: &Arg) -> Result<u64> {
        match arg {
            Arg::Memory(inner, offset) => Ok(self.value(&inner[0])?.wrapping_add_signed(*offset)),
            _ => Err(format!("not an address: {arg:?}")),
        }
    }

    // ---- instructions ----

    fn execute(&mut self, instruction: &Instruction) -> Result<Next> {
        let (words, args, kind) = (&*instruction.words, &*instruction.args, instruction.kind);
        let has = |word: &str| words.contains(&word);
        match words[0] {
            "bra" => return Ok(Next::Jump(instruction.target)),
            "ret" | "exit" => return Ok(Next::Jump(usize::MAX)),
            "trap" => return Err("trap".into()),
            "mov" => self.copy(kind.ok_or("mov without a type")?, &args[0], &args[1])?,
            "ld" => self.load(instruction.space, kind.ok_or("ld without a type")?, args)?,
            "st" => {
                if has("async") {
                    tma::store_async(self, args)?;
                } else {
                    self.store(instruction.space, kind.ok_or("st without a type")?, args)?;
                }
            }
            "atom" | "red" => self.atomic(instruction, kind.ok_or("no type")?)?,
            "cvt" => self.convert(words, args)?,
            "cvta" => {
                let value = self.value(&args[1])?;
                let value = match (has("to"), has("shared")) {
                    (false, true) => value | SHARED_WINDOW,
                    (true, true) => value & 0xffff_ffff,
                    _ => value,
                };
                self.set(&args[0], value)?;
            }
            "mapa" => {
                let (address, rank) = (self.value(&args[1])?, self.value(&args[2])?);
                self.set(&args[0], of_cta(address, rank))?;
            }
            "setp" => self.set_predicate(words, args)?,
            "selp" => {
                let taken = if self.value(&args[3])? & 1 == 1 { 1 } else { 2 };
                let value = self.value(&args[taken])?;
                self.set(&args[0], value)?;
            }
            "elect" => {
                let Arg::Pair(pair) = &args[0] else { return Err("elect".into()) };
                self.set(&pair[0], 0)?;
                self.set(&pair[1], u64::from(self.thread.is_multiple_of(32)))?;
            }
            "shfl" | "vote" | "redux" | "ldmatrix" | "stmatrix" | "mma" | "activemask" => {
                return Ok(Next::Wait(State::AtCollective));
            }
            "wgmma" => {
                // The fences order what this machine does in order anyway.
                return Ok(match words[1] {
                    "mma_async" => Next::Wait(State::AtCollective),
                    _ => Next::Continue,
                });
            }
            "bar" if words[1] == "warp" => return Ok(Next::Wait(State::AtCollective)),
            "bar" | "barrier" if words[1] == "cluster" => {
                return self.cluster_barrier(has("arrive"));
            }
            "bar" | "barrier" => return self.named_barrier(has("arrive"), args),
            "mbarrier" => return self.mbarrier(words, args),
            "cp" => return self.copy_async(words, args),
            "griddepcontrol" | "fence" | "membar" | "setmaxnreg" | "prefetch" => {}
            "createpolicy" => self.set(&args[0], 0)?,
            _ => self.compute(instruction, kind.ok_or("no type")?)?,
        }
        Ok(Next::Continue)
    }

    fn copy(&mut self, kind: Type, to: &Arg, from: &Arg) -> Result<()> {
        match (to, from) {
            (Arg::Vector(parts), _) => {
                let value = self.value(from)?;
                let bits = 8 * kind.bytes() / parts.len();
                for (at, part) in parts.iter().enumerate() {
                    self.set(part, unsigned(value >> (at * bits), (bits / 8) as u8))?;
                }
                Ok(())
            }
            (_, Arg::Vector(parts)) => {
                let bits = 8 * kind.bytes() / parts.len();
                let mut value = 0;
                for (at, part) in parts.iter().enumerate() {
                    value |= unsigned(self.value(part)?, (bits / 8) as u8) << (at * bits);
                }
                self.set(to, value)
            }
            _ => {
                let value = self.value(from)?;
                self.set(to, unsigned(value, kind.bytes() as u8))
            }
        }
    }

    fn atomic(&mut self, instruction: &Instruction, kind: Type) -> Result<()> {
        let (words, args) = (&*instruction.words, &*instruction.args);
        let (space, bytes) = (instruction.space, kind.bytes());
        let (target, values) = match words[0] {
            "atom" => (Some(&args[0]), &args[1..]),
            _ => (None, args),
        };
        let address = self.address(&values[0])?;
        let before = self.read(space, address, bytes)?;
        let operand = self.value(&values[1])?;
        let after = if words.contains(&"cas") {
            let other = self.value(&values[2])?;
            if before == unsigned(operand, bytes as u8) { other } else { before }
        } else if words.contains(&"exch") {
            operand
        } else {
            let name = ["add", "min", "max", "and", "or", "xor"]
                .into_iter()
                .find(|name| words.contains(name))
                .ok_or("an unknown atomic operation")?;
            arithmetic::binary(name, kind, before, operand).ok_or("an unknown atomic type")?
        };
        self.write(space, address, bytes, after)?;
        target.map_or(Ok(()), |target| self.set(target, before))
    }

    fn convert(&mut self, words: &[&str], args: &[Arg]) -> Result<()> {
        let kinds: Vec<Type> = words.iter().filter_map(|word| Type::parse(word)).collect();
        let [to, from] = kinds[..] else { return Err("cvt needs two types".into()) };
        let rounding = ["rn", "rz", "rm", "rp", "rna", "rni", "rzi", "rmi", "rpi"]
            .into_iter()
            .find(|name| words.contains(name))
            .unwrap_or("");
        let unknown = || format!("cvt.{to:?}.{from:?}");
        let first = self.value(&args[1])?;
        let result = if args.len() == 3 {
            let second = self.value(&args[2])?;
            let number = |bits| f64::from(arithmetic::f32_of(bits));
            arithmetic::convert_pair(to, number(first), number(second)).ok_or_else(unknown)?
        } else if let Type::E4m3x2 | Type::E5m2x2 = from {
            let decode = |bits: u64| match from {
                Type::E4m3x2 => arithmetic::from_e4m3(bits as u8),
                _ => arithmetic::from_e5m2(bits as u8),
            };
            let (high, low) = (f64::from(decode(first >> 8)), f64::from(decode(first)));
            arithmetic::convert_pair(to, high, low).ok_or_else(unknown)?
        } else {
            let saturate = words.contains(&"sat");
            arithmetic::convert(to, from, rounding, saturate, first).ok_or_else(unknown)?
        };
        self.set(&args[0], result)
    }

    fn set_predicate(&mut self, words: &[&str], args: &[Arg]) -> Result<()> {
        let kind = Type::parse(words[words.len() - 1]).ok_or("setp without a type")?;
        let (a, b) = (self.value(&args[1])?, self.value(&args[2])?);
        let mut holds = arithmetic::compare(words[1], kind, a, b)
            .ok_or_else(|| format!("setp.{}.{kind:?}", words[1]))?;
        if let Some(third) = args.get(3) {
            let other = self.value(third)? & 1 == 1;
            holds = match words[2] {
                "and" => holds && other,
                "or" => holds || other,
                "xor" => holds != other,
                name => return Err(format!("setp.{name}")),
            };
        }
        match &args[0] {
            Arg::Pair(pair) => {
                self.set(&pair[0], u64::from(holds))?;
                self.set(&pair[1], u64::from(!holds))
            }
            to => self.set(to, u64::from(holds)),
        }
    }

    fn compute(&mut self, instruction: &Instruction, kind: Type) -> Result<()> {
        let (words, args) = (&*instruction.words, &*instruction.args);
        let mut values = [0; 4];
        let count = args.len() - 1;
        for (value, arg) in values.iter_mut().zip(&args[1..]) {
            *value = self.value(arg)?;
        }
        let unknown = || format!("unknown instruction {}", words.join("."));
        let result = match (words[0], &values[..count.min(4)]) {
            ("fma", [a, b, c]) => arithmetic::fma(kind, *a, *b, *c),
            ("mad", [a, b, c]) => {
                let product = arithmetic::binary(product_name(words[1]), kind, *a, *b);
                let wide = match (words[1], kind) {
                    ("wide", Type::Bits(bytes)) => Type::Bits(2 * bytes),
                    ("wide", Type::Signed(bytes)) => Type::Signed(2 * bytes),
                    _ => kind,
                };
                product.and_then(|product| arithmetic::binary("add", wide, product, *c))
            }
            ("prmt", [a, b, selector]) => {
                Some(u64::from(arithmetic::permute(*a as u32, *b as u32, *selector as u32)))
            }
            ("shf", [low, high, amount]) => {
                let both = high << 32 | unsigned(*low, 4);
                let amount = match words[2] {
                    "wrap" => amount & 31,
                    _ => (*amount).min(32),
                };
                Some(match words[1] {
                    "r" => unsigned(both >> amount, 4),
                    _ => unsigned((u128::from(both) << amount >> 32) as u64, 4),
                })
            }
            ("bfi", [field, into, start, length]) => {
                let mask = unsigned(((1u128 << (length & 0xff)) - 1) as u64, 8) << (start & 0xff);
                Some(into & !mask | (field << (start & 0xff)) & mask)
            }
            ("bfe", [from, start, length]) => {
                let (start, length) = (start & 0xff, length & 0xff);
                let bits = (unsigned(*from, kind.bytes() as u8) as u128 >> start) as u64;
                let mask = ((1u128 << length) - 1) as u64;
                let negative =
                    matches!(kind, Type::Signed(_)) && length > 0 && bits >> (length - 1) & 1 == 1;
                let bits = if negative { bits | !mask } else { bits & mask };
                Some(unsigned(bits, kind.bytes() as u8))
            }
            ("lop3", [a, b, c, table]) => {
                let bit = |at: u64| {
                    let row = (a >> at & 1) << 2 | (b >> at & 1) << 1 | (c >> at & 1);
                    (table >> row & 1) << at
                };
                Some((0..32).fold(0, |word, at| word | bit(at)))
            }
            (_, [a, b]) => arithmetic::binary(instruction.name, kind, *a, *b),
            (_, [a]) => arithmetic::unary(instruction.name, kind, *a),
            _ => None,
        };
        self.set(&args[0], result.ok_or_else(unknown)?)
    }
}

/// The product of `mad` with this modifier.
fn product_name(modifier: &str) -> &'static str {
    match modifier {
        "hi" => "mul.hi",
        "wide" => "mul.wide",
        _ => "mul.lo",
    }
}
