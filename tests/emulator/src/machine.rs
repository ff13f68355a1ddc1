//! Runs a grid: threads, barriers, memory.
//!
//! Each thread runs until it waits; then the next one runs. Instructions of a whole warp or
//! warpgroup wait for all its threads and take effect at once. Copies and matrix products take
//! effect when they are issued, so that an operand that is missing a wait is not noticed.

use std::collections::HashMap;
use std::ffi::c_void;

use crate::arithmetic::{self, signed, unsigned};
use crate::matrix;
use crate::ptx::{Arg, Instruction, Kernel, SHARED_BASE, Space, Special, Type};
use crate::tma;

/// An error of the program, with the instruction.
pub type Fault = String;
type Result<T> = std::result::Result<T, Fault>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Ready,
    /// At an instruction of a group of threads that waits for the others.
    AtCollective,
    /// At a named barrier, until its generation is another.
    AtBarrier(usize, u64),
    AtCluster(u64),
    Exited,
}

pub struct Thread {
    pub registers: Vec<u64>,
    pc: usize,
    state: State,
    /// The cluster barrier's generation at this thread's arrival.
    cluster_generation: u64,
    local: Box<[u8]>,
}

#[derive(Clone, Copy, Default)]
struct Barrier {
    arrived: usize,
    generation: u64,
}

pub struct Cta {
    pub threads: Vec<Thread>,
    pub shared: Vec<u8>,
    index: [u32; 3],
    pub rank: u32,
    barriers: [Barrier; 16],
}

pub struct Cluster {
    pub ctas: Vec<Cta>,
    barrier: Barrier,
}

/// A launch.
pub struct Launch<'a> {
    pub kernel: &'a Kernel,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub cluster: [u32; 3],
    pub shared_bytes: usize,
    pub parameters: Parameters,
    /// Addresses that the kernel may use, as pairs of start and end.
    pub memory: &'a [(u64, u64)],
}

/// The parameters of a kernel, aligned like the driver's copy.
pub struct Parameters(Vec<Line>);

#[derive(Clone, Copy)]
#[repr(align(128))]
struct Line(#[allow(dead_code)] [u8; 128]);

impl Parameters {
    /// # Safety
    /// `from` points to as many pointers as the kernel has parameters, each to its parameter.
    pub unsafe fn copy(kernel: &Kernel, from: *const *const c_void) -> Parameters {
        let mut copy = Parameters(vec![Line([0; 128]); kernel.parameter_bytes.div_ceil(128) + 1]);
        for (at, (bytes, offset)) in kernel.parameters.iter().enumerate() {
            // SAFETY: guaranteed by the caller; the block is large enough.
            unsafe {
                let to = copy.0.as_mut_ptr().cast::<u8>().add(*offset);
                std::ptr::copy_nonoverlapping((*from.add(at)).cast::<u8>(), to, *bytes);
            }
        }
        copy
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: numbers are bytes.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), size_of_val(&self.0[..])) }
    }
}

/// CTAs that are resident at once, as on an H100.
const RESIDENT: usize = 132;
/// Instructions of a thread before the next thread runs, so that a thread may poll.
const SLICE: usize = 20_000;
/// Rounds over all threads without progress before a launch counts as hung.
const IDLE_ROUNDS: usize = 200;
/// Generic addresses of shared memory: these bits, then the address in the shared window.
const SHARED_WINDOW: u64 = 0x7ff0_0000_0000_0000;
/// The CTA's rank in a shared address starts at this bit.
const RANK_BIT: u32 = 24;

impl Launch<'_> {
    /// Runs the grid to its end.
    pub fn run(&self) -> Result<()> {
        let sizes = self.cluster.map(|extent| extent.max(1));
        let per_cluster: usize = sizes.iter().map(|extent| *extent as usize).product();
        if sizes[1] * sizes[2] != 1 || !self.grid[0].is_multiple_of(sizes[0]) {
            return Err("clusters lie along x and divide the grid".into());
        }
        let total: usize = self.grid.iter().map(|extent| *extent as usize).product();
        let mut next = 0;
        let mut resident: Vec<Cluster> = Vec::new();
        let mut idle = 0;
        loop {
            while next < total && (resident.len() + 1) * per_cluster <= RESIDENT.max(per_cluster) {
                resident.push(self.new_cluster(next, per_cluster));
                next += per_cluster;
            }
            if resident.is_empty() {
                return Ok(());
            }
            let mut progress = false;
            for cluster in &mut resident {
                progress |= self.round(cluster)?;
            }
            resident.retain(|cluster| {
                let threads = cluster.ctas.iter().flat_map(|cta| &cta.threads);
                threads.into_iter().any(|thread| thread.state != State::Exited)
            });
            idle = if progress { 0 } else { idle + 1 };
            if idle > IDLE_ROUNDS {
                return Err(self.describe_hang(&resident));
            }
        }
    }

    fn describe_hang(&self, clusters: &[Cluster]) -> Fault {
        let mut places: HashMap<(usize, String), usize> = HashMap::new();
        for thread in clusters.iter().flat_map(|c| &c.ctas).flat_map(|c| &c.threads) {
            if thread.state != State::Exited {
                let state = format!("{:?}", thread.state);
                *places.entry((thread.pc, state)).or_default() += 1;
            }
        }
        let mut text = "the grid hangs:".to_string();
        for ((pc, state), count) in places {
            let instruction = &self.kernel.instructions[pc];
            text += &format!("\n  {count} threads at {pc} {:?} ({state})", instruction.words);
        }
        text
    }

    fn new_cluster(&self, first: usize, count: usize) -> Cluster {
        let threads: usize = self.block.iter().map(|extent| *extent as usize).product();
        let ctas = (0..count).map(|rank| {
            let at = (first + rank) as u32;
            let [x, y, _] = self.grid;
            Cta {
                threads: (0..threads)
                    .map(|_| Thread {
                        // Values that nobody wrote are conspicuous.
                        registers: vec![0x7fff_dead_7fff_beef; self.kernel.registers],
                        pc: 0,
                        state: State::Ready,
                        cluster_generation: 0,
                        local: vec![0xff; self.kernel.local_bytes].into(),
                    })
                    .collect(),
                shared: vec![0xff; self.kernel.shared_bytes + self.shared_bytes],
                index: [at % x, at / x % y, at / x / y],
                rank: rank as u32,
                barriers: [Barrier::default(); 16],
            }
        });
        Cluster { ctas: ctas.collect(), barrier: Barrier::default() }
    }

    /// Runs every thread once. Returns whether an instruction was executed that is no poll.
    fn round(&self, cluster: &mut Cluster) -> Result<bool> {
        let mut progress = false;
        for cta in 0..cluster.ctas.len() {
            for thread in 0..cluster.ctas[cta].threads.len() {
                let mut run = Run { launch: self, cluster, cta, thread };
                progress |= run.slice().map_err(|fault| run.locate(fault))?;
            }
            let mut groups = Groups { launch: self, cluster, cta };
            progress |= groups.run()?;
        }
        Ok(progress)
    }
}

/// A thread that runs.
pub struct Run<'a> {
    pub launch: &'a Launch<'a>,
    pub cluster: &'a mut Cluster,
    pub cta: usize,
    pub thread: usize,
}

/// What an instruction does to the thread.
enum Next {
    Continue,
    Jump(usize),
    /// Executes the instruction again later.
    Poll,
    /// Continues with the next instruction once the state permits.
    Wait(State),
}

impl Run<'_> {
    fn locate(&self, fault: Fault) -> Fault {
        let (pc, index) = (self.current().pc, self.cluster.ctas[self.cta].index);
        let instruction = &self.launch.kernel.instructions[pc];
        let words = instruction.words.join(".");
        format!("{fault}\n  at {pc}: {words}, CTA {index:?}, thread {}", self.thread)
    }

    fn current(&self) -> &Thread {
        &self.cluster.ctas[self.cta].threads[self.thread]
    }

    fn current_mut(&mut self) -> &mut Thread {
        &mut self.cluster.ctas[self.cta].threads[self.thread]
    }

    fn slice(&mut self) -> Result<bool> {
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
        u64::from(self.cluster.ctas[self.cta].rank) << RANK_BIT | at
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

    // ---- memory ----

    /// The host's address of memory in a state space.
    fn host(&mut self, space: Space, address: u64, bytes: usize) -> Result<*mut u8> {
        let is_shared =
            space == Space::Shared || space == Space::Generic && address >= SHARED_WINDOW;
        if is_shared {
            return self.shared(address & 0xffff_ffff, bytes);
        }
        if space == Space::Global || space == Space::Generic && !self.is_own(address) {
            self.launch.check(address, bytes)?;
        }
        if !address.is_multiple_of(bytes.next_power_of_two() as u64) {
            return Err(format!("{address:#x} is not aligned to {bytes} bytes"));
        }
        Ok(std::ptr::with_exposed_provenance_mut(address as usize))
    }

    /// Whether an address lies in the parameters or the thread's local memory.
    fn is_own(&self, address: u64) -> bool {
        let within = |bytes: &[u8]| {
            let start = bytes.as_ptr().addr() as u64;
            (start..start + bytes.len() as u64).contains(&address)
        };
        let globals = &self.launch.kernel.globals;
        within(self.launch.parameters.bytes())
            || within(&self.current().local)
            || globals.iter().any(|bytes| within(bytes))
    }

    pub fn shared(&mut self, address: u64, bytes: usize) -> Result<*mut u8> {
        let rank = (address >> RANK_BIT) as usize;
        let at = (address & ((1 << RANK_BIT) - 1)).wrapping_sub(SHARED_BASE) as usize;
        let cta = self.cluster.ctas.get_mut(rank).ok_or("shared memory of no CTA")?;
        let end = at.checked_add(bytes).ok_or("shared memory wraps around")?;
        let size = cta.shared.len();
        match cta.shared.get_mut(at..end) {
            Some(_) if !at.is_multiple_of(bytes.next_power_of_two().min(16)) => {
                Err(format!("shared byte {at} is not aligned to {bytes} bytes"))
            }
            Some(memory) => Ok(memory.as_mut_ptr()),
            None => Err(format!("shared bytes {at}..{end} of {size}")),
        }
    }

    pub fn read(&mut self, space: Space, address: u64, bytes: usize) -> Result<u64> {
        let from = self.host(space, address, bytes)?;
        let mut value = [0u8; 8];
        // SAFETY: `host` checks the address.
        unsafe { std::ptr::copy_nonoverlapping(from, value.as_mut_ptr(), bytes) };
        Ok(u64::from_le_bytes(value))
    }

    pub fn write(&mut self, space: Space, address: u64, bytes: usize, value: u64) -> Result<()> {
        let to = self.host(space, address, bytes)?;
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(value.to_le_bytes().as_ptr(), to, bytes) };
        Ok(())
    }

    // ---- instructions ----

    fn execute(&mut self, instruction: &Instruction) -> Result<Next> {
        let words: Vec<&str> = instruction.words.iter().map(|word| &**word).collect();
        let args = &instruction.args;
        let kind = words.iter().rev().find_map(|word| Type::parse(word));
        let has = |word: &str| words.contains(&word);
        match words[0] {
            "bra" => return Ok(Next::Jump(instruction.target)),
            "ret" | "exit" => return Ok(Next::Jump(usize::MAX)),
            "trap" => return Err("trap".into()),
            "mov" => self.copy(kind.ok_or("mov without a type")?, &args[0], &args[1])?,
            "ld" => self.load(&words, kind.ok_or("ld without a type")?, args)?,
            "st" => {
                if has("async") {
                    tma::store_async(self, args)?;
                } else {
                    self.store(&words, kind.ok_or("st without a type")?, args)?;
                }
            }
            "atom" | "red" => self.atomic(&words, kind.ok_or("no type")?, args)?,
            "cvt" => self.convert(&words, args)?,
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
                let at = address & ((1 << RANK_BIT) - 1);
                self.set(&args[0], rank << RANK_BIT | at)?;
            }
            "setp" => self.set_predicate(&words, args)?,
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
            "mbarrier" => return self.mbarrier(&words, args),
            "cp" => return self.copy_async(&words, args),
            "griddepcontrol" | "fence" | "membar" | "setmaxnreg" | "prefetch" => {}
            "createpolicy" => self.set(&args[0], 0)?,
            _ => self.compute(&words, kind.ok_or("no type")?, args)?,
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

    fn load(&mut self, words: &[&str], kind: Type, args: &[Arg]) -> Result<()> {
        let (space, address, bytes) = (space_of(words), self.address(&args[1])?, kind.bytes());
        let one = std::slice::from_ref(&args[0]);
        let parts = if let Arg::Vector(parts) = &args[0] { &**parts } else { one };
        self.host(space, address, bytes * parts.len())?;
        for (at, part) in parts.iter().enumerate() {
            let value = self.read(space, address + (at * bytes) as u64, bytes)?;
            let value = match kind {
                Type::Signed(width) => signed(value, width) as u64,
                _ => value,
            };
            self.set(part, value)?;
        }
        Ok(())
    }

    fn store(&mut self, words: &[&str], kind: Type, args: &[Arg]) -> Result<()> {
        let (space, address, bytes) = (space_of(words), self.address(&args[0])?, kind.bytes());
        let one = std::slice::from_ref(&args[1]);
        let parts = if let Arg::Vector(parts) = &args[1] { &**parts } else { one };
        self.host(space, address, bytes * parts.len())?;
        for (at, part) in parts.iter().enumerate() {
            let value = self.value(part)?;
            self.write(space, address + (at * bytes) as u64, bytes, value)?;
        }
        Ok(())
    }

    fn atomic(&mut self, words: &[&str], kind: Type, args: &[Arg]) -> Result<()> {
        let (space, bytes) = (space_of(words), kind.bytes());
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

    fn compute(&mut self, words: &[&str], kind: Type, args: &[Arg]) -> Result<()> {
        let values: Vec<u64> =
            args[1..].iter().map(|arg| self.value(arg)).collect::<Result<_>>()?;
        let unknown = || format!("unknown instruction {}", words.join("."));
        let modified = |name: &str| match words.get(1) {
            Some(&modifier @ ("lo" | "hi" | "wide" | "NaN" | "shiftamt")) => {
                format!("{name}.{modifier}")
            }
            _ => name.to_string(),
        };
        let result = match (words[0], &values[..]) {
            ("fma", [a, b, c]) => match kind {
                Type::F32 => {
                    let [a, b, c] = [a, b, c].map(|bits| arithmetic::f32_of(*bits));
                    Some(u64::from(a.mul_add(b, c).to_bits()))
                }
                Type::F64 => {
                    let [a, b, c] = [a, b, c].map(|bits| arithmetic::f64_of(*bits));
                    Some(a.mul_add(b, c).to_bits())
                }
                Type::F16 => {
                    let [a, b, c] =
                        [a, b, c].map(|bits| f64::from(arithmetic::from_f16(*bits as u16)));
                    Some(u64::from(arithmetic::to_f16(a.mul_add(b, c))))
                }
                _ => None,
            },
            ("mad", [a, b, c]) => {
                let product = arithmetic::binary(&modified("mul"), kind, *a, *b);
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
            (name, [a, b]) => arithmetic::binary(&modified(name), kind, *a, *b),
            (name, [a]) => arithmetic::unary(&modified(name), kind, *a),
            _ => None,
        };
        self.set(&args[0], result.ok_or_else(unknown)?)
    }

    // ---- barriers ----

    fn named_barrier(&mut self, only_arrives: bool, args: &[Arg]) -> Result<Next> {
        let name = self.value(&args[0])? as usize;
        let cta = &self.cluster.ctas[self.cta];
        let all = cta.threads.iter().filter(|thread| thread.state != State::Exited).count();
        let expected = match args.get(1) {
            Some(count) => self.value(count)? as usize,
            None => all,
        };
        let barrier = &mut self.cluster.ctas[self.cta].barriers[name];
        let before = barrier.generation;
        barrier.arrived += 1;
        if barrier.arrived == expected {
            *barrier = Barrier { arrived: 0, generation: before + 1 };
        }
        Ok(match only_arrives {
            true => Next::Continue,
            false => Next::Wait(State::AtBarrier(name, before)),
        })
    }

    fn cluster_barrier(&mut self, arrives: bool) -> Result<Next> {
        if !arrives {
            return Ok(Next::Wait(State::AtCluster(self.current().cluster_generation)));
        }
        let threads = self.cluster.ctas.iter().map(|cta| cta.threads.len()).sum();
        let before = self.cluster.barrier.generation;
        self.current_mut().cluster_generation = before;
        let barrier = &mut self.cluster.barrier;
        barrier.arrived += 1;
        if barrier.arrived == threads {
            *barrier = Barrier { arrived: 0, generation: before + 1 };
        }
        Ok(Next::Continue)
    }

    fn mbarrier(&mut self, words: &[&str], args: &[Arg]) -> Result<Next> {
        match words[1] {
            "init" => {
                let (at, count) = (self.address(&args[0])?, self.value(&args[1])?);
                tma::init(self, at, count)?;
            }
            "inval" => {}
            "try_wait" | "test_wait" => {
                let (at, parity) = (self.address(&args[1])?, self.value(&args[2])?);
                let done = tma::phase(self, at)? != parity & 1;
                self.set(&args[0], u64::from(done))?;
                if !done && words[1] == "try_wait" {
                    return Ok(Next::Poll);
                }
            }
            "arrive" => {
                let at = self.address(&args[1])?;
                if words.contains(&"expect_tx") {
                    let bytes = self.value(&args[2])?;
                    tma::expect(self, at, bytes as i64)?;
                }
                tma::arrive(self, at)?;
            }
            "expect_tx" => {
                let (at, bytes) = (self.address(&args[0])?, self.value(&args[1])?);
                tma::expect(self, at, bytes as i64)?;
            }
            "complete_tx" => {
                let (at, bytes) = (self.address(&args[0])?, self.value(&args[1])?);
                tma::complete(self, at, bytes as i64)?;
            }
            name => return Err(format!("mbarrier.{name}")),
        }
        Ok(Next::Continue)
    }

    fn copy_async(&mut self, words: &[&str], args: &[Arg]) -> Result<Next> {
        if words.contains(&"mbarrier") {
            let at = self.address(&args[0])?;
            tma::arrive(self, at)?;
        } else if words.contains(&"bulk") {
            if words.contains(&"tensor") {
                tma::copy(self, words, args)?;
            } else if !words.iter().any(|word| matches!(*word, "commit_group" | "wait_group")) {
                return Err("an unknown bulk copy".into());
            }
        } else if words.contains(&"shared") {
            let (to, from) = (self.address(&args[0])?, self.address(&args[1])?);
            let bytes = self.value(&args[2])? as usize;
            let valid = match args.get(3) {
                Some(valid) => self.value(valid)? as usize,
                None => bytes,
            };
            let target = self.host(Space::Shared, to, bytes)?;
            // SAFETY: `host` checks both addresses.
            unsafe {
                std::ptr::write_bytes(target, 0, bytes);
                if valid > 0 {
                    if from % bytes as u64 != 0 {
                        return Err(format!("{from:#x} is not aligned to {bytes} bytes"));
                    }
                    self.launch.check(from, valid)?;
                    let source: *const u8 = std::ptr::with_exposed_provenance(from as usize);
                    std::ptr::copy_nonoverlapping(source, target, valid);
                }
            }
        }
        Ok(Next::Continue)
    }
}

impl Launch<'_> {
    /// Refuses memory that was not allocated.
    pub fn check(&self, address: u64, bytes: usize) -> Result<()> {
        let end = address + bytes as u64;
        let allowed = |(start, stop): &(u64, u64)| *start <= address && end <= *stop;
        match self.memory.iter().any(allowed) {
            true => Ok(()),
            false => Err(format!("bytes {address:#x}..{end:#x} are not allocated")),
        }
    }
}

fn space_of(words: &[&str]) -> Space {
    words
        .iter()
        .find_map(|word| match *word {
            "global" => Some(Space::Global),
            "shared" | "shared:cta" | "shared:cluster" => Some(Space::Shared),
            "param" => Some(Space::Param),
            "local" => Some(Space::Local),
            _ => None,
        })
        .unwrap_or(Space::Generic)
}

/// The instructions that whole warps and warpgroups execute.
pub struct Groups<'a> {
    pub launch: &'a Launch<'a>,
    pub cluster: &'a mut Cluster,
    pub cta: usize,
}

impl Groups<'_> {
    fn run(&mut self) -> Result<bool> {
        let mut progress = false;
        for first in (0..self.cluster.ctas[self.cta].threads.len()).step_by(32) {
            progress |= self.group(first)?;
        }
        Ok(progress)
    }

    /// Executes the instruction at which the warp from `first` on waits, if all its threads do.
    fn group(&mut self, first: usize) -> Result<bool> {
        let launch = self.launch;
        let waiting = |cta: &Cta, at: usize| cta.threads[at].state == State::AtCollective;
        let cta = &self.cluster.ctas[self.cta];
        let end = (first + 32).min(cta.threads.len());
        let Some(pc) = (first..end).find(|at| waiting(cta, *at)).map(|at| cta.threads[at].pc)
        else {
            return Ok(false);
        };
        let instruction = &launch.kernel.instructions[pc];
        let words: Vec<&str> = instruction.words.iter().map(|word| &**word).collect();
        let threads: Vec<usize> = match words[0] {
            "wgmma" if !first.is_multiple_of(128) => return Ok(false),
            "wgmma" => (first..first + 128).collect(),
            _ => {
                let mut run = Run { launch, cluster: self.cluster, cta: self.cta, thread: first };
                let mask = mask_of(&mut run, &words, &instruction.args, (first..end).collect())?;
                (first..end).filter(|at| mask >> (at - first) & 1 == 1).collect()
            }
        };
        let cta = &self.cluster.ctas[self.cta];
        let ready = |at: &usize| {
            let thread = &cta.threads[*at];
            waiting(cta, *at) && thread.pc == pc
        };
        if !threads.iter().all(ready) {
            return Ok(false);
        }
        let mut run = Run { launch, cluster: self.cluster, cta: self.cta, thread: first };
        let executed = matrix::execute(&mut run, &words, &instruction.args, &threads);
        run.thread = threads[0];
        executed.map_err(|fault| run.locate(fault))?;
        for at in threads {
            let thread = &mut self.cluster.ctas[self.cta].threads[at];
            thread.state = State::Ready;
            thread.pc += 1;
        }
        Ok(true)
    }
}

/// The lanes that take part. An instruction without a mask, or with a full one, waits for the lanes
/// that have not exited.
fn mask_of(run: &mut Run<'_>, words: &[&str], args: &[Arg], lanes: Vec<usize>) -> Result<u64> {
    let first = lanes[0];
    let mask = match words[0] {
        "shfl" | "vote" | "redux" | "bar" => {
            let thread = lanes
                .iter()
                .find(|at| run.cluster.ctas[run.cta].threads[**at].state == State::AtCollective);
            run.thread = *thread.ok_or("no lane waits")?;
            run.value(args.last().ok_or("no mask")?)?
        }
        _ => u64::from(u32::MAX),
    };
    let threads = &run.cluster.ctas[run.cta].threads;
    let live = lanes.iter().filter(|at| threads[**at].state != State::Exited);
    Ok(live.fold(0, |live, at| live | 1 << (at - first)) & mask)
}
