//! Instructions of a whole warp or warpgroup.
//!
//! Fragments: PTX ISA, "Warp Level Matrix Multiply-Accumulate Instructions" and "Asynchronous
//! Warpgroup Level Matrix Instructions". Lane 4 g + q holds
//! - of A or B, whose rows (columns) are 32 bytes of K: the q-th word of the first 16 bytes and of
//!   the second, of row g and of row g + 8;
//! - of A or B of float64: elements q, q + 4 and so on along K, of row g and of row g + 8;
//! - of a sum: rows g and g + 8, columns 2 q and 2 q + 1 of each 8.

use crate::arithmetic::{
    f32_of, from_bf16, from_e4m3, from_e5m2, from_f16, signed, to_f16, unsigned,
};
use crate::launch::Result;
use crate::memory::of_cta;
use crate::program::{Arg, Space, Type};
use crate::thread::Run;
use crate::tma::swizzled;

pub fn execute(run: &mut Run<'_>, words: &[&str], args: &[Arg], threads: &[usize]) -> Result<()> {
    match words[0] {
        "bar" => Ok(()),
        "shfl" => shuffle(run, words, args, threads),
        "vote" | "redux" | "activemask" => reduce(run, words, args, threads),
        "match" => matching(run, args, threads),
        "ldmatrix" => load_matrices(run, words, args, threads),
        "stmatrix" => store_matrices(run, words, args, threads),
        "mma" => mma(run, words, args, threads),
        "wgmma" => wgmma(run, words, args, threads),
        name => Err(format!("unknown instruction {name}")),
    }
}

/// A value of each thread.
fn gather(run: &mut Run<'_>, arg: &Arg, threads: &[usize]) -> Result<Vec<u64>> {
    let of = |thread: &usize| {
        run.select(*thread);
        run.value(arg)
    };
    threads.iter().map(of).collect()
}

fn set(run: &mut Run<'_>, thread: usize, arg: &Arg, value: u64) -> Result<()> {
    run.select(thread);
    run.set(arg, value)
}

fn shuffle(run: &mut Run<'_>, words: &[&str], args: &[Arg], threads: &[usize]) -> Result<()> {
    let (values, lanes, clamps) = (
        gather(run, &args[1], threads)?,
        gather(run, &args[2], threads)?,
        gather(run, &args[3], threads)?,
    );
    for (at, thread) in threads.iter().enumerate() {
        let lane = (thread % 32) as i64;
        let (b, clamp) = ((lanes[at] & 31) as i64, (clamps[at] & 31) as i64);
        let segment = (clamps[at] >> 8 & 31) as i64;
        let (most, least) = (lane & segment | clamp & !segment, lane & segment);
        let (source, valid) = match words[2] {
            "up" => (lane - b, lane - b >= most),
            "down" => (lane + b, lane + b <= most),
            "bfly" => (lane ^ b, lane ^ b <= most),
            "idx" => {
                let source = least | b & !segment;
                (source, source <= most)
            }
            mode => return Err(format!("shfl.{mode}")),
        };
        let source = if valid { source } else { lane };
        let from = threads.iter().position(|other| (other % 32) as i64 == source);
        let value = values[from.ok_or("a shuffle from a lane that takes no part")?];
        match &args[0] {
            Arg::Pair(pair) => {
                set(run, *thread, &pair[0], value)?;
                set(run, *thread, &pair[1], u64::from(valid))?;
            }
            to => set(run, *thread, to, value)?,
        }
    }
    Ok(())
}

fn reduce(run: &mut Run<'_>, words: &[&str], args: &[Arg], threads: &[usize]) -> Result<()> {
    let result = if words[0] == "activemask" {
        threads.iter().fold(0, |mask, thread| mask | 1 << (thread % 32))
    } else {
        let values = gather(run, &args[1], threads)?;
        let mut bits = values.iter().map(|value| value & 1 == 1);
        match (words[0], words[2]) {
            ("vote", "all") => u64::from(bits.all(|bit| bit)),
            ("vote", "any") => u64::from(bits.any(|bit| bit)),
            ("vote", "ballot") => bits
                .zip(threads)
                .fold(0, |mask, (bit, thread)| mask | u64::from(bit) << (thread % 32)),
            ("redux", "or") => values.iter().fold(0, |all, value| all | value),
            ("redux", "and") => values.iter().fold(u64::MAX, |all, value| all & value),
            ("redux", "add") => unsigned(values.iter().sum(), 4),
            ("redux", "max") => values.into_iter().max().unwrap_or(0),
            ("redux", "min") => values.into_iter().min().unwrap_or(0),
            (name, mode) => return Err(format!("{name}.{mode}")),
        }
    };
    threads.iter().try_for_each(|thread| set(run, *thread, &args[0], result))
}

/// `match.any.sync`: the lanes with the same value, for each lane.
fn matching(run: &mut Run<'_>, args: &[Arg], threads: &[usize]) -> Result<()> {
    let values = gather(run, &args[1], threads)?;
    for (thread, value) in threads.iter().zip(&values) {
        let same = threads.iter().zip(&values).filter(|(_, other)| *other == value);
        let mask = same.fold(0, |mask, (lane, _)| mask | 1 << (lane % 32));
        set(run, *thread, &args[0], mask)?;
    }
    Ok(())
}

fn elements(arg: &Arg) -> Result<&[Arg]> {
    match arg {
        Arg::Vector(parts) => Ok(parts),
        _ => Err(format!("not a vector: {arg:?}")),
    }
}

/// The addresses of the rows that the lanes pass.
fn row_addresses(run: &mut Run<'_>, arg: &Arg, threads: &[usize]) -> Result<Vec<u64>> {
    let of = |thread: &usize| {
        run.select(*thread);
        run.address(arg)
    };
    threads.iter().map(of).collect()
}

fn load_matrices(run: &mut Run<'_>, words: &[&str], args: &[Arg], threads: &[usize]) -> Result<()> {
    let (to, rows) = (elements(&args[0])?, row_addresses(run, &args[1], threads)?);
    for (lane, thread) in threads.iter().enumerate() {
        for (matrix, to) in to.iter().enumerate() {
            let mut word = 0;
            for half in 0..2 {
                let (mut row, mut column) = (lane / 4, 2 * (lane % 4) + half);
                if words.contains(&"trans") {
                    (row, column) = (column, row);
                }
                let address = rows[8 * matrix + row];
                aligned_row(address)?;
                word |= run.read(Space::Shared, address + 2 * column as u64, 2)? << (16 * half);
            }
            set(run, *thread, to, word)?;
        }
    }
    Ok(())
}

fn store_matrices(
    run: &mut Run<'_>,
    words: &[&str],
    args: &[Arg],
    threads: &[usize],
) -> Result<()> {
    let (rows, from) = (row_addresses(run, &args[0], threads)?, elements(&args[1])?);
    for (matrix, from) in from.iter().enumerate() {
        let values = gather(run, from, threads)?;
        for (lane, value) in values.iter().enumerate() {
            for half in 0..2 {
                let (mut row, mut column) = (lane / 4, 2 * (lane % 4) + half);
                if words.contains(&"trans") {
                    (row, column) = (column, row);
                }
                let address = rows[8 * matrix + row];
                aligned_row(address)?;
                let element = value >> (16 * half) & 0xffff;
                run.write(Space::Shared, address + 2 * column as u64, 2, element)?;
            }
        }
    }
    Ok(())
}

fn aligned_row(address: u64) -> Result<()> {
    match address % 16 {
        0 => Ok(()),
        _ => Err(format!("a matrix row at {address:#x}, which is not aligned to 16 bytes")),
    }
}

/// The type of an operand's elements.
#[derive(Clone, Copy, PartialEq)]
enum Element {
    F16,
    Bf16,
    Tf32,
    E4m3,
    E5m2,
    S8,
    U8,
    F64,
}

impl Element {
    fn parse(text: &str) -> Option<Element> {
        Some(match text {
            "f16" => Element::F16,
            "bf16" => Element::Bf16,
            "tf32" => Element::Tf32,
            "e4m3" => Element::E4m3,
            "e5m2" => Element::E5m2,
            "s8" => Element::S8,
            "u8" => Element::U8,
            "f64" => Element::F64,
            _ => return None,
        })
    }

    fn bytes(self) -> usize {
        match self {
            Element::F16 | Element::Bf16 => 2,
            Element::Tf32 => 4,
            Element::F64 => 8,
            _ => 1,
        }
    }

    fn decode(self, bits: u64) -> f64 {
        match self {
            Element::F16 => f64::from(from_f16(bits as u16)),
            Element::Bf16 => f64::from(from_bf16(bits as u16)),
            // The tensor cores ignore the lower 13 bits.
            Element::Tf32 => f64::from(f32_of(bits & !0x1fff)),
            Element::E4m3 => f64::from(from_e4m3(bits as u8)),
            Element::E5m2 => f64::from(from_e5m2(bits as u8)),
            Element::S8 => signed(bits, 1) as f64,
            Element::U8 => unsigned(bits, 1) as f64,
            Element::F64 => f64::from_bits(bits),
        }
    }

    /// The elements in four bytes, or one float64.
    fn decode_word(self, word: u64, into: &mut Vec<f64>) {
        if self == Element::F64 {
            into.push(self.decode(word));
        }
        for at in 0..4 / self.bytes() {
            let bits = word >> (8 * self.bytes() * at);
            into.push(self.decode(unsigned(bits, self.bytes() as u8)));
        }
    }
}

/// A sum after a block of K. Integers wrap around; a float32 sum is rounded once.
fn accumulate(kind: Type, before: u64, product: f64) -> Result<u64> {
    Ok(match kind {
        Type::F32 => u64::from(((f64::from(f32_of(before)) + product) as f32).to_bits()),
        Type::F16 => u64::from(to_f16(f64::from(from_f16(before as u16)) + product)),
        Type::F64 => (f64::from_bits(before) + product).to_bits(),
        Type::Signed(4) => unsigned(before.wrapping_add_signed(product as i64), 4),
        _ => return Err(format!("sums of {kind:?}")),
    })
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Rows of A from fragments: for each warp `count` rows, 8 or 16. Their registers alternate between
/// the first 8 rows and the others.
fn rows_from_registers(
    run: &mut Run<'_>,
    arg: &Arg,
    element: Element,
    count: usize,
    threads: &[usize],
) -> Result<Vec<Vec<f64>>> {
    let words: Vec<Vec<u64>> =
        elements(arg)?.iter().map(|arg| gather(run, arg, threads)).collect::<Result<_>>()?;
    let mut rows = Vec::new();
    for (warp, row) in
        (0..threads.len() / 32).flat_map(|warp| (0..count).map(move |row| (warp, row)))
    {
        let mut values = Vec::new();
        for along_k in words.chunks(count / 8) {
            for q in 0..4 {
                let lane = 32 * warp + 4 * (row % 8) + q;
                element.decode_word(along_k[row / 8][lane], &mut values);
            }
        }
        rows.push(values);
    }
    Ok(rows)
}

fn mma(run: &mut Run<'_>, words: &[&str], args: &[Arg], threads: &[usize]) -> Result<()> {
    // mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
    let kinds = &words[words.len() - 4..];
    let kind = Type::parse(kinds[0]).ok_or("mma without a type")?;
    let (a_type, b_type) = (
        Element::parse(kinds[1]).ok_or("mma of an unknown A")?,
        Element::parse(kinds[2]).ok_or("mma of an unknown B")?,
    );
    let counts = [0, 1, 2, 3].map(|at| elements(&args[at]).map_or(0, <[Arg]>::len));
    let count = match (a_type, words[3]) {
        // Registers of the sums, of A and of B.
        (Element::F64, "m8n8k4") if counts == [2, 1, 1, 2] => 8,
        (Element::F64, "m16n8k4") if counts == [4, 2, 1, 4] => 16,
        (Element::F64, "m16n8k8") if counts == [4, 4, 2, 4] => 16,
        (Element::F64, "m16n8k16") if counts == [4, 8, 4, 4] => 16,
        (element, shape) if element != Element::F64 && shape.starts_with("m16n8") => 16,
        (_, shape) => return Err(format!("mma of the shape {shape} with {counts:?} registers")),
    };
    let rows = rows_from_registers(run, &args[1], a_type, count, threads)?;
    let b: Vec<Vec<u64>> =
        elements(&args[2])?.iter().map(|arg| gather(run, arg, threads)).collect::<Result<_>>()?;
    let column = |n: usize| {
        let mut values = Vec::new();
        for half in &b {
            for q in 0..4 {
                b_type.decode_word(half[4 * n + q], &mut values);
            }
        }
        values
    };
    let columns: Vec<Vec<f64>> = (0..8).map(column).collect();
    sums(run, kind, elements(&args[0])?, elements(&args[3])?, threads, |row, column| {
        dot(&rows[row], &columns[column])
    })
}

/// Adds products to the sums of 16 rows a warp.
fn sums(
    run: &mut Run<'_>,
    kind: Type,
    to: &[Arg],
    from: &[Arg],
    threads: &[usize],
    product: impl Fn(usize, usize) -> f64,
) -> Result<()> {
    let packed = if kind == Type::F16 { 2 } else { 1 };
    for (at, thread) in threads.iter().enumerate() {
        run.select(*thread);
        for register in 0..to.len() {
            let before = run.value(&from[register])?;
            let mut word = 0;
            for part in 0..packed {
                let value = register * packed + part;
                let row = at / 32 * 16 + value / 2 % 2 * 8 + at % 32 / 4;
                let column = value / 4 * 8 + at % 4 * 2 + value % 2;
                let before = if packed == 2 { before >> (16 * part) & 0xffff } else { before };
                word |= accumulate(kind, before, product(row, column))? << (16 * part);
            }
            run.set(&to[register], word)?;
        }
    }
    Ok(())
}

/// An operand in shared memory, as a matrix descriptor says ("Matrix Descriptor Format").
struct Operand {
    start: u64,
    leading: u64,
    stride: u64,
    row_bytes: u64,
    is_k_major: bool,
    element: Element,
}

impl Operand {
    fn new(descriptor: u64, rank: u64, is_k_major: bool, element: Element) -> Result<Operand> {
        Ok(Operand {
            start: of_cta((descriptor & 0x3fff) << 4, rank),
            leading: (descriptor >> 16 & 0x3fff) << 4,
            stride: (descriptor >> 32 & 0x3fff) << 4,
            row_bytes: match descriptor >> 62 {
                1 => 128,
                2 => 64,
                3 => 32,
                _ => return Err("a descriptor without a swizzle".into()),
            },
            is_k_major,
            element,
        })
    }

    /// The elements of one row (column) along 32 bytes of K.
    fn row(&self, run: &mut Run<'_>, mn: u64) -> Result<Vec<f64>> {
        let bytes = self.element.bytes() as u64;
        (0..32 / bytes)
            .map(|k| {
                let linear = if self.is_k_major {
                    mn / 8 * self.stride + mn % 8 * self.row_bytes + k * bytes
                } else {
                    let per_row = self.row_bytes / bytes;
                    mn / per_row * self.leading
                        + k / 8 * self.stride
                        + k % 8 * self.row_bytes
                        + mn % per_row * bytes
                };
                let address = swizzled(self.start + linear, self.row_bytes);
                Ok(self.element.decode(run.read(Space::Shared, address, bytes as usize)?))
            })
            .collect()
    }
}

fn wgmma(run: &mut Run<'_>, words: &[&str], args: &[Arg], threads: &[usize]) -> Result<()> {
    // wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16
    let kinds = &words[words.len() - 3..];
    let kind = Type::parse(kinds[0]).ok_or("wgmma without a type")?;
    let (a_type, b_type) = (
        Element::parse(kinds[1]).ok_or("wgmma of an unknown A")?,
        Element::parse(kinds[2]).ok_or("wgmma of an unknown B")?,
    );
    let shape = words[4];
    let columns: u64 = shape
        .strip_prefix("m64n")
        .and_then(|rest| rest.split('k').next())
        .and_then(|n| n.parse().ok())
        .ok_or_else(|| format!("wgmma of the shape {shape}"))?;
    let is_integer = matches!(kind, Type::Signed(_));
    let legal = match is_integer {
        true => matches!(columns, 8 | 24) || columns.is_multiple_of(16),
        false => columns.is_multiple_of(8),
    };
    let to = elements(&args[0])?;
    let registers = columns as usize / 2 / if kind == Type::F16 { 2 } else { 1 };
    if !legal || columns > 256 || to.len() != registers {
        return Err(format!("wgmma of the shape {shape} with {} registers", to.len()));
    }
    run.select(threads[0]);
    // After the descriptors: whether to add, the signs of A and B, and what is transposed.
    let immediates: Vec<u64> = args[4..].iter().map(|arg| run.value(arg)).collect::<Result<_>>()?;
    let from_registers = matches!(args[1], Arg::Vector(_));
    let transposed = match (&immediates[..], from_registers) {
        ([], _) if is_integer => [0, 0],
        ([1, 1], _) => [0, 0],
        ([1, 1, b], true) => [0, *b],
        ([1, 1, a, b], false) => [*a, *b],
        _ => return Err(format!("wgmma with the immediates {immediates:?}")),
    };
    if a_type.bytes() != 2 && transposed != [0, 0] {
        return Err("only 16-bit operands are transposed".into());
    }
    let rank = u64::from(run.cluster.ctas[run.cta].rank);
    let rows = if from_registers {
        rows_from_registers(run, &args[1], a_type, 16, threads)?
    } else {
        let descriptor = uniform(run, &args[1], threads)?;
        let operand = Operand::new(descriptor, rank, transposed[0] == 0, a_type)?;
        (0..64).map(|m| operand.row(run, m)).collect::<Result<_>>()?
    };
    let descriptor = uniform(run, &args[2], threads)?;
    let operand = Operand::new(descriptor, rank, transposed[1] == 0, b_type)?;
    let b: Vec<Vec<f64>> = (0..columns).map(|n| operand.row(run, n)).collect::<Result<_>>()?;
    let adds = uniform(run, &args[3], threads)? & 1 == 1;
    let zeros = vec![Arg::Immediate(0); to.len()];
    let from = if adds { to } else { &zeros };
    sums(run, kind, to, from, threads, |row, column| dot(&rows[row], &b[column]))
}

/// A value that all threads share.
fn uniform(run: &mut Run<'_>, arg: &Arg, threads: &[usize]) -> Result<u64> {
    let values = gather(run, arg, threads)?;
    match values.iter().all(|value| *value == values[0]) {
        true => Ok(values[0]),
        false => Err("the threads of a warpgroup disagree about a descriptor".into()),
    }
}
