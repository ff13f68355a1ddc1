//! Register allocation: registers that are not live at the same time share a slot.
//!
//! PTX has thousands of virtual registers. In a slot each, the registers of a CTA exceed the CPU's
//! caches.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};
use std::ops::Range;

use crate::program::{Arg, Instruction, Kernel};

/// Renumbers the registers.
pub fn allocate(mut kernel: Kernel) -> Kernel {
    let spans = spans(&kernel);
    let mut by_start: Vec<usize> = (0..kernel.registers).collect();
    by_start.retain(|register| !spans[*register].is_empty());
    by_start.sort_by_key(|register| spans[*register].start);
    let mut slots = vec![0; kernel.registers];
    // The slots by the end of the last span in each.
    let mut ends: BinaryHeap<Reverse<(usize, usize)>> = BinaryHeap::new();
    for register in by_start {
        let Range { start, end } = spans[register];
        let slot = match ends.peek() {
            Some(Reverse((free, slot))) if *free <= start => {
                let slot = *slot;
                ends.pop();
                slot
            }
            _ => ends.len(),
        };
        slots[register] = slot;
        ends.push(Reverse((end, slot)));
    }
    for instruction in &mut kernel.instructions {
        if let Some((register, _)) = &mut instruction.guard {
            *register = slots[*register];
        }
        instruction.args.iter_mut().for_each(|arg| rename(arg, &slots));
    }
    kernel.registers = ends.len();
    kernel
}

fn rename(arg: &mut Arg, slots: &[usize]) {
    match arg {
        Arg::Register(register) | Arg::Not(register) => *register = slots[*register],
        Arg::Memory(inner, _) | Arg::Vector(inner) => {
            inner.iter_mut().for_each(|arg| rename(arg, slots));
        }
        Arg::Pair(pair) => pair.iter_mut().for_each(|arg| rename(arg, slots)),
        Arg::Immediate(_) | Arg::Symbol(..) | Arg::Special(_) | Arg::Sink => {}
    }
}

fn collect(arg: &Arg, into: &mut Vec<usize>) {
    match arg {
        Arg::Register(register) | Arg::Not(register) => into.push(*register),
        Arg::Memory(inner, _) | Arg::Vector(inner) => {
            inner.iter().for_each(|arg| collect(arg, into));
        }
        Arg::Pair(pair) => pair.iter().for_each(|arg| collect(arg, into)),
        Arg::Immediate(_) | Arg::Symbol(..) | Arg::Special(_) | Arg::Sink => {}
    }
}

/// The registers of an instruction.
struct Accesses {
    reads: Vec<usize>,
    writes: Vec<usize>,
}

impl Accesses {
    fn of(instruction: &Instruction) -> Accesses {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        reads.extend(instruction.guard.map(|(register, _)| register));
        for (at, arg) in instruction.args.iter().enumerate() {
            // Barriers have no result.
            let is_result = at == 0
                && !matches!(arg, Arg::Memory(..))
                && !matches!(instruction.words[0], "bar" | "barrier");
            collect(arg, if is_result { &mut writes } else { &mut reads });
        }
        if instruction.words[0] == "wgmma" {
            reads.extend(&writes); // the sums
        }
        Accesses { reads, writes }
    }
}

/// For each register, the instructions from the first to the last at which it is live or is
/// accessed. A register that may be read before it is written is live from the first instruction
/// on. Its slot has held no other register then.
fn spans(kernel: &Kernel) -> Vec<Range<usize>> {
    let instructions = &kernel.instructions;
    let accesses: Vec<Accesses> = instructions.iter().map(Accesses::of).collect();
    let blocks = blocks(instructions);
    let block_at = |at: usize| blocks.partition_point(|block| block.start < at);
    let mut live_in = vec![Registers::none(kernel.registers); blocks.len()];
    let live_out = |live_in: &[Registers], block: &Range<usize>| {
        let last = &instructions[block.end - 1];
        let mut live = Registers::none(kernel.registers);
        let falls_through =
            last.guard.is_some() || !matches!(last.words[0], "bra" | "ret" | "exit");
        let jump = (last.words[0] == "bra").then_some(last.target);
        for next in jump.into_iter().chain(falls_through.then_some(block.end)) {
            if let Some(next) = live_in.get(block_at(next)) {
                live.add_all(next);
            }
        }
        live
    };
    let mut changed = true;
    while changed {
        changed = false;
        for (at, block) in blocks.iter().enumerate().rev() {
            let mut live = live_out(&live_in, block);
            for instruction in block.clone().rev() {
                // An instruction with a guard may leave the old value.
                if instructions[instruction].guard.is_none() {
                    accesses[instruction].writes.iter().for_each(|at| live.remove(*at));
                }
                accesses[instruction].reads.iter().for_each(|at| live.add(*at));
            }
            changed |= live != live_in[at];
            live_in[at] = live;
        }
    }
    let mut spans = vec![Range { start: usize::MAX, end: 0 }; kernel.registers];
    let mut extend = |register: usize, at: usize| {
        let span: &mut Range<usize> = &mut spans[register];
        *span = span.start.min(at)..span.end.max(at + 1);
    };
    for (at, block) in blocks.iter().enumerate() {
        live_in[at].each(|register| extend(register, block.start));
        live_out(&live_in, block).each(|register| extend(register, block.end - 1));
    }
    for (at, Accesses { reads, writes }) in accesses.iter().enumerate() {
        reads.iter().chain(writes).for_each(|register| extend(*register, at));
    }
    spans
}

/// Runs of instructions that jumps enter at the first one and leave at the last one.
fn blocks(instructions: &[Instruction]) -> Vec<Range<usize>> {
    let mut starts = BTreeSet::from([0]);
    for (at, instruction) in instructions.iter().enumerate() {
        match instruction.words[0] {
            "bra" => starts.extend([instruction.target, at + 1]),
            "ret" | "exit" => starts.extend([at + 1]),
            _ => {}
        }
    }
    starts.retain(|start| *start < instructions.len());
    let ends = starts.iter().skip(1).copied().chain([instructions.len()]);
    starts.iter().zip(ends).map(|(start, end)| *start..end).collect()
}

/// A set of registers.
#[derive(Clone, PartialEq)]
struct Registers(Vec<u64>);

impl Registers {
    fn none(count: usize) -> Registers {
        Registers(vec![0; count.div_ceil(64)])
    }

    fn add(&mut self, register: usize) {
        self.0[register / 64] |= 1 << (register % 64);
    }

    fn remove(&mut self, register: usize) {
        self.0[register / 64] &= !(1 << (register % 64));
    }

    fn add_all(&mut self, others: &Registers) {
        self.0.iter_mut().zip(&others.0).for_each(|(word, other)| *word |= other);
    }

    fn each(&self, mut visit: impl FnMut(usize)) {
        for (at, word) in self.0.iter().enumerate() {
            let mut rest = *word;
            while rest != 0 {
                visit(64 * at + rest.trailing_zeros() as usize);
                rest &= rest - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::parse;

    /// The slots of the results of a kernel's instructions.
    fn slots(body: &str) -> Result<(Vec<usize>, usize), String> {
        let kernel = allocate(parse(&format!(
            ".entry f() {{ .reg .b32 %r<8>; .reg .pred %p<2>; .reg .b64 %d<2>; {body} ret; }}"
        ))?);
        let slot = |instruction: &Instruction| match instruction.args.first() {
            Some(Arg::Register(slot)) => Some(*slot),
            _ => None,
        };
        Ok((kernel.instructions.iter().filter_map(slot).collect(), kernel.registers))
    }

    #[test]
    fn registers_share_a_slot_after_their_last_use() -> Result<(), String> {
        let (slots, count) = slots(
            "mov.u32 %r0, 1; add.u32 %r1, %r0, 1; add.u32 %r2, %r1, 1; add.u32 %r3, %r2, %r2;",
        )?;
        assert_eq!((slots[0] == slots[2], slots[1] == slots[3], count), (true, true, 2));
        Ok(())
    }

    #[test]
    fn a_loop_keeps_what_its_next_iteration_reads() -> Result<(), String> {
        // r0 is read at the loop's start only, r1 is written at its end for the next iteration.
        let (slots, count) = slots(
            "mov.u32 %r0, 1; mov.u32 %r1, 1;
             AGAIN: add.u32 %r2, %r0, %r1;
             add.u32 %r3, %r2, 1;
             add.u32 %r1, %r3, 1;
             setp.eq.u32 %p0, %r1, 9;
             @%p0 bra AGAIN;",
        )?;
        let [r0, r1, r2, r3, again, p0] = slots[..] else { return Err("count".into()) };
        assert_eq!((r1, r2, count), (again, p0, 4));
        assert!(![r1, r2, r3].contains(&r0) && ![r2, r3, p0].contains(&r1));
        Ok(())
    }

    #[test]
    fn a_write_with_a_guard_keeps_the_old_value() -> Result<(), String> {
        let (slots, _) = slots(
            "mov.u32 %r0, 1; setp.eq.u32 %p0, 1, 1; mov.u32 %r1, 2; @%p0 mov.u32 %r0, %r1;
             add.u32 %r2, %r0, 1;",
        )?;
        assert!(slots[0] == slots[3] && slots[2] != slots[0]);
        Ok(())
    }

    #[test]
    fn a_register_without_a_value_has_a_slot_of_its_own() -> Result<(), String> {
        let (slots, _) = slots("mov.u32 %r0, 1; add.u32 %r1, %r0, 1; add.u32 %r2, %r1, %r3;")?;
        let (other, _) = self::slots("mov.u32 %r0, 1; add.u32 %r1, %r0, 1; mov.u32 %r3, %r3;")?;
        assert!(!slots[..2].contains(&other[2]));
        Ok(())
    }
}
