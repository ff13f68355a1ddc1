//! Barriers: named ones of a CTA, the one of a cluster, and mbarriers in shared memory.

use crate::launch::{Barrier, Result, State};
use crate::program::{Arg, Space};
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

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    use crate::launch::{Launch, Parameters, Result};
    use crate::ptx;

    /// Runs the body in one CTA with an mbarrier in `[bar]` and the predicate `%done`. Returns
    /// which of four tests held, each with the phase parity of its `test_wait`.
    fn run(body: &str, threads: u32) -> Result<[u32; 4]> {
        let mut out = [9u32; 4];
        let address = out.as_mut_ptr().expose_provenance() as u64;
        let kernel = ptx::parse(&format!(
            ".entry f(.param .u64 p) {{
                .reg .b32 %r<8>; .reg .b64 %d<4>; .reg .pred %done;
                .shared .align 8 .b8 bar[8];
                ld.param.u64 %d0, [p];
                {body}
                ret; }}"
        ))?;
        let parameters = [(&raw const address).cast::<c_void>()];
        let launch = Launch {
            kernel: &kernel,
            grid: [1, 1, 1],
            block: [threads, 1, 1],
            cluster: [1, 1, 1],
            shared_bytes: 0,
            // SAFETY: the kernel has one parameter of 8 bytes.
            parameters: unsafe { Parameters::copy(&kernel, parameters.as_ptr()) },
            memory: &[(address, address + 16)],
        };
        launch.run().map(|()| out)
    }

    /// Stores whether the phase of this parity is complete.
    fn test(at: usize, parity: u32) -> String {
        format!(
            "mbarrier.test_wait.parity.shared.b64 %done, [bar], {parity};
             selp.u32 %r0, 1, 0, %done; st.global.u32 [%d0+{}], %r0;",
            4 * at
        )
    }

    const INIT: &str = "mbarrier.init.shared.b64 [bar], 1;";

    #[test]
    fn a_phase_ends_with_the_last_arrival_and_the_last_byte() {
        let body = [
            INIT.into(),
            test(0, 0),
            "mbarrier.arrive.expect_tx.shared.b64 _, [bar], 16;".into(),
            test(1, 0),
            "mbarrier.complete_tx.shared.b64 [bar], 8;".into(),
            test(2, 0),
            "mbarrier.complete_tx.shared.b64 [bar], 8;".into(),
            test(3, 0),
        ];
        assert_eq!(run(&body.concat(), 1), Ok([0, 0, 0, 1]));
    }

    #[test]
    fn the_next_phase_waits_anew() {
        let arrive = "mbarrier.arrive.shared.b64 _, [bar];";
        let body = [INIT, arrive, &test(0, 0), &test(1, 1), arrive, &test(2, 0), &test(3, 1)];
        assert_eq!(run(&body.concat(), 1), Ok([1, 0, 0, 1]));
    }

    #[test]
    fn misuse_is_reported() {
        let error = |body: &str, threads| run(body, threads).err().unwrap_or_default();
        assert!(error("mbarrier.arrive.shared.b64 _, [bar];", 1).contains("not initialized"));
        let twice = "mbarrier.init.shared.b64 [bar], 1;
             mbarrier.expect_tx.shared.b64 [bar], 8;
             mbarrier.arrive.shared.b64 _, [bar];
             mbarrier.arrive.shared.b64 _, [bar];";
        assert!(error(twice, 1).contains("one arrival too many"));
        let wait = "AGAIN: mbarrier.try_wait.parity.shared.b64 %done, [bar], 0; @!%done bra AGAIN;";
        let hang = error(&format!("{INIT}{wait}"), 2);
        assert!(hang.contains("hangs") && hang.contains("2 at 2: mbarrier.try_wait"), "{hang}");
        assert!(error("bar.sync 1, 96;", 64).contains("64 at 1: bar.sync waits at barrier 1"));
    }
}
