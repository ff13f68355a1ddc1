//! A thread that runs: its registers, and the instructions that it executes alone.

use crate::arithmetic::{self, unsigned};
use crate::decode::{Binary, Comparison, Conversion, Operation};
use crate::launch::{Cluster, Fault, Launch, Result, State, Thread};
use crate::memory::{SHARED_WINDOW, of_cta};
use crate::program::{Arg, Instruction, Space, Special, Type};
use crate::tma;

/// Instructions of a thread before the next thread runs, so that a thread may poll.
const SLICE: usize = 2_000;

/// A thread that runs.
pub struct Run<'a> {
    pub launch: &'a Launch<'a>,
    pub cluster: &'a mut Cluster,
    pub cta: usize,
    thread: usize,
    /// The thread's registers.
    registers: *mut u64,
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

impl<'a> Run<'a> {
    pub fn new(
        launch: &'a Launch<'a>,
        cluster: &'a mut Cluster,
        cta: usize,
        thread: usize,
    ) -> Run<'a> {
        let registers = cluster.ctas[cta].threads[thread].registers.as_mut_ptr();
        Run { launch, cluster, cta, thread, registers }
    }

    /// Continues with another thread of the CTA.
    pub fn select(&mut self, thread: usize) {
        self.thread = thread;
        self.registers = self.current_mut().registers.as_mut_ptr();
    }

    #[inline]
    fn register(&self, slot: usize) -> u64 {
        debug_assert!(slot < self.launch.kernel.registers);
        // SAFETY: a thread has all registers of its kernel. They stay where they are.
        unsafe { *self.registers.add(slot) }
    }

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
        let mut pc = self.current().pc;
        let progress = self.run_from(&mut pc);
        self.current_mut().pc = pc;
        progress
    }

    fn run_from(&mut self, pc: &mut usize) -> Result<bool> {
        let instructions = &*self.launch.kernel.instructions;
        let mut progress = false;
        for _ in 0..SLICE {
            let Some(instruction) = instructions.get(*pc) else {
                self.current_mut().state = State::Exited;
                return Ok(true);
            };
            if let Some((slot, wanted)) = instruction.guard
                && (self.register(slot) & 1 == 1) != wanted
            {
                *pc += 1;
                continue;
            }
            match self.execute(instruction)? {
                Next::Continue => *pc += 1,
                Next::Jump(target) => *pc = target,
                Next::Poll => return Ok(progress),
                Next::Wait(state) => {
                    self.current_mut().state = state;
                    *pc += usize::from(state != State::AtCollective);
                    return Ok(true);
                }
            }
            progress = true;
        }
        // A thread that polls global memory makes no progress of its own.
        Ok(false)
    }

    // ---- operands ----

    #[inline]
    pub fn value(&self, arg: &Arg) -> Result<u64> {
        match arg {
            Arg::Register(slot) => Ok(self.register(*slot)),
            Arg::Immediate(value) => Ok(*value),
            _ => self.other_value(arg),
        }
    }

    #[inline(never)]
    fn other_value(&self, arg: &Arg) -> Result<u64> {
        Ok(match arg {
            Arg::Not(slot) => self.register(*slot) & 1 ^ 1,
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

    #[inline]
    pub fn set(&mut self, arg: &Arg, value: u64) -> Result<()> {
        match arg {
            Arg::Register(slot) => {
                debug_assert!(*slot < self.launch.kernel.registers);
                // SAFETY: as in `register`.
                unsafe { *self.registers.add(*slot) = value };
                Ok(())
            }
            Arg::Sink => Ok(()),
            _ => Err(format!("not a destination: {arg:?}")),
        }
    }

    /// The address of `[base + offset]`.
    #[inline]
    pub fn address(&self, arg: &Arg) -> Result<u64> {
        match arg {
            Arg::Memory(inner, offset) => Ok(self.value(&inner[0])?.wrapping_add_signed(*offset)),
            _ => Err(format!("not an address: {arg:?}")),
        }
    }

    // ---- instructions ----

    #[inline]
    fn execute(&mut self, instruction: &Instruction) -> Result<Next> {
        let args = &*instruction.args;
        let kind = || instruction.kind.ok_or("no type");
        match instruction.operation {
            Operation::Branch => return Ok(Next::Jump(instruction.target)),
            Operation::Move => self.copy(kind()?, &args[0], &args[1])?,
            Operation::Load => self.load(instruction.space, kind()?, args)?,
            Operation::Store => self.store(instruction.space, kind()?, args)?,
            Operation::Convert(conversion) => self.convert(conversion, args)?,
            Operation::Compare(comparison) => {
                self.set_predicate(comparison, kind()?, &instruction.words, args)?;
            }
            Operation::Select => {
                let taken = if self.value(&args[3])? & 1 == 1 { 1 } else { 2 };
                let value = self.value(&args[taken])?;
                self.set(&args[0], value)?;
            }
            Operation::Binary(operation) => {
                self.compute(instruction, |kind, [a, b]| {
                    arithmetic::binary(operation, kind, a, b)
                })?;
            }
            Operation::Fma => {
                self.compute(instruction, |kind, [a, b, c]| arithmetic::fma(kind, a, b, c))?;
            }
            Operation::MultiplyAdd(product, sum) => {
                self.compute(instruction, |kind, [a, b, c]| {
                    let product = arithmetic::binary(product, kind, a, b)?;
                    arithmetic::binary(Binary::Add, sum, product, c)
                })?;
            }
            Operation::Logic => {
                self.compute(instruction, |_, [a, b, c, table]| {
                    Some(arithmetic::logic(a, b, c, table))
                })?;
            }
            Operation::Permute => {
                self.compute(instruction, |_, [a, b, selector]| {
                    Some(u64::from(arithmetic::permute(a as u32, b as u32, selector as u32)))
                })?;
            }
            Operation::Collective => return Ok(Next::Wait(State::AtCollective)),
            Operation::Nothing => {}
            Operation::Other => return self.execute_other(instruction),
        }
        Ok(Next::Continue)
    }

    /// Executes an instruction that its words name.
    #[inline(never)]
    fn execute_other(&mut self, instruction: &Instruction) -> Result<Next> {
        let (words, args, kind) = (&*instruction.words, &*instruction.args, instruction.kind);
        let has = |word: &str| words.contains(&word);
        match words[0] {
            "ret" | "exit" => return Ok(Next::Jump(usize::MAX)),
            "trap" => return Err("trap".into()),
            "st" if has("async") => tma::store_async(self, args)?,
            "atom" | "red" => self.atomic(instruction, kind.ok_or("no type")?)?,
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
            "elect" => {
                let Arg::Pair(pair) = &args[0] else { return Err("elect".into()) };
                self.set(&pair[0], 0)?;
                self.set(&pair[1], u64::from(self.thread.is_multiple_of(32)))?;
            }
            "bar" | "barrier" if words[1] == "cluster" => {
                return self.cluster_barrier(has("arrive"));
            }
            "bar" | "barrier" => return self.named_barrier(has("arrive"), args),
            "mbarrier" => return self.mbarrier(words, args),
            "cp" => return self.copy_async(words, args),
            "createpolicy" => self.set(&args[0], 0)?,
            _ => self.compute_other(instruction, kind.ok_or("no type")?)?,
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
            let operation = ["add", "min", "max", "and", "or", "xor"]
                .into_iter()
                .find(|name| words.contains(name))
                .and_then(Binary::parse)
                .ok_or("an unknown atomic operation")?;
            arithmetic::binary(operation, kind, before, operand).ok_or("an unknown atomic type")?
        };
        self.write(space, address, bytes, after)?;
        target.map_or(Ok(()), |target| self.set(target, before))
    }

    fn convert(&mut self, conversion: Conversion, args: &[Arg]) -> Result<()> {
        let Conversion { to, from, rounding, saturates } = conversion;
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
            arithmetic::convert(to, from, rounding, saturates, first).ok_or_else(unknown)?
        };
        self.set(&args[0], result)
    }

    fn set_predicate(
        &mut self,
        comparison: Comparison,
        kind: Type,
        words: &[&str],
        args: &[Arg],
    ) -> Result<()> {
        let (a, b) = (self.value(&args[1])?, self.value(&args[2])?);
        let mut holds = arithmetic::compare(comparison, kind, a, b)
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

    /// Sets the result to a function of the operation's type and of its operands.
    #[inline]
    fn compute<const COUNT: usize>(
        &mut self,
        instruction: &Instruction,
        function: impl FnOnce(Type, [u64; COUNT]) -> Option<u64>,
    ) -> Result<()> {
        let unknown = || format!("unknown instruction {}", instruction.words.join("."));
        let args = &*instruction.args;
        let kind = instruction.kind.ok_or("no type")?;
        if args.len() != COUNT + 1 {
            return Err(unknown());
        }
        let mut values = [0; COUNT];
        for (value, arg) in values.iter_mut().zip(&args[1..]) {
            *value = self.value(arg)?;
        }
        self.set(&args[0], function(kind, values).ok_or_else(unknown)?)
    }

    fn compute_other(&mut self, instruction: &Instruction, kind: Type) -> Result<()> {
        let (words, args) = (&*instruction.words, &*instruction.args);
        let mut values = [0; 4];
        let count = args.len() - 1;
        for (value, arg) in values.iter_mut().zip(&args[1..]) {
            *value = self.value(arg)?;
        }
        let unknown = || format!("unknown instruction {}", words.join("."));
        let result = match (words[0], &values[..count.min(4)]) {
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
            (_, [a]) => arithmetic::unary(instruction.name, kind, *a),
            _ => None,
        };
        self.set(&args[0], result.ok_or_else(unknown)?)
    }
}
