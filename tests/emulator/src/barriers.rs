//! Barriers: named ones of a CTA, the one of a cluster, and mbarriers in shared memory.

use crate::launch::{Barrier, Result, State};
use crate::ptx::{Arg, Space};
use crate::thread::{Next, Run};

impl Run<'_> {
    pub fn named_barrier(&mut self, only_arrives: bool, args: &[Arg]) -> Result<Next> {
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

    pub fn cluster_barrier(&mut self, arrives: bool) -> Result<Next> {
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

    pub fn mbarrier(&mut self, words: &[&str], args: &[Arg]) -> Result<Next> {
        match words[1] {
            "init" => {
                let (at, count) = (self.address(&args[0])?, self.value(&args[1])?);
                init(self, at, count)?;
            }
            "inval" => {}
            "try_wait" | "test_wait" => {
                let (at, parity) = (self.address(&args[1])?, self.value(&args[2])?);
                let done = phase(self, at)? != parity & 1;
                self.set(&args[0], u64::from(done))?;
                if !done && words[1] == "try_wait" {
                    return Ok(Next::Poll);
                }
            }
            "arrive" => {
                let at = self.address(&args[1])?;
                if words.contains(&"expect_tx") {
                    let bytes = self.value(&args[2])?;
                    expect(self, at, bytes as i64)?;
                }
                arrive(self, at)?;
            }
            "expect_tx" => {
                let (at, bytes) = (self.address(&args[0])?, self.value(&args[1])?);
                expect(self, at, bytes as i64)?;
            }
            "complete_tx" => {
                let (at, bytes) = (self.address(&args[0])?, self.value(&args[1])?);
                complete(self, at, bytes as i64)?;
            }
            name => return Err(format!("mbarrier.{name}")),
        }
        Ok(Next::Continue)
    }
}

/// An mbarrier in its eight bytes of shared memory.
#[derive(Clone, Copy)]
struct Mbarrier {
    phase: u64,
    /// Arrivals of a phase, and those that are missing.
    expected: u64,
    pending: u64,
    /// Bytes that are missing, plus [`BIAS`].
    bytes: u64,
}

const BIAS: u64 = 1 << 30;

impl Mbarrier {
    fn load(run: &mut Run<'_>, at: u64) -> Result<Mbarrier> {
        let word = run.read(Space::Shared, at, 8)?;
        if word == u64::MAX {
            return Err("an mbarrier that was not initialized".into());
        }
        Ok(Mbarrier {
            phase: word >> 63,
            bytes: word >> 32 & 0x7fff_ffff,
            expected: word >> 16 & 0xffff,
            pending: word & 0xffff,
        })
    }

    fn store(mut self, run: &mut Run<'_>, at: u64) -> Result<()> {
        if self.pending == 0 && self.bytes == BIAS {
            self.phase ^= 1;
            self.pending = self.expected;
        }
        let word = self.phase << 63 | self.bytes << 32 | self.expected << 16 | self.pending;
        run.write(Space::Shared, at, 8, word)
    }
}

fn init(run: &mut Run<'_>, at: u64, count: u64) -> Result<()> {
    Mbarrier { phase: 0, expected: count, pending: count, bytes: BIAS }.store(run, at)
}

/// The phase that is not complete.
fn phase(run: &mut Run<'_>, at: u64) -> Result<u64> {
    Ok(Mbarrier::load(run, at)?.phase)
}

pub fn arrive(run: &mut Run<'_>, at: u64) -> Result<()> {
    let mut barrier = Mbarrier::load(run, at)?;
    barrier.pending = barrier.pending.checked_sub(1).ok_or("one arrival too many")?;
    barrier.store(run, at)
}

fn expect(run: &mut Run<'_>, at: u64, bytes: i64) -> Result<()> {
    let mut barrier = Mbarrier::load(run, at)?;
    barrier.bytes = barrier.bytes.wrapping_add_signed(bytes);
    // No look for the end of the phase: the arrival follows.
    let word = barrier.phase << 63 | barrier.bytes << 32 | barrier.expected << 16 | barrier.pending;
    run.write(Space::Shared, at, 8, word)
}

pub fn complete(run: &mut Run<'_>, at: u64, bytes: i64) -> Result<()> {
    let mut barrier = Mbarrier::load(run, at)?;
    barrier.bytes = barrier.bytes.wrapping_add_signed(-bytes);
    barrier.store(run, at)
}
