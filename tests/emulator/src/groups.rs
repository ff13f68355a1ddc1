//! The instructions that whole warps and warpgroups execute: who takes part, and when.

use crate::launch::{Cluster, Cta, Launch, Result, State};
use crate::matrix;
use crate::program::Arg;
use crate::thread::Run;

/// The instructions that whole warps and warpgroups execute.
pub struct Groups<'a> {
    pub launch: &'a Launch<'a>,
    pub cluster: &'a mut Cluster,
    pub cta: usize,
}

impl Groups<'_> {
    pub fn run(&mut self) -> Result<bool> {
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
        let words = &*instruction.words;
        let threads: Vec<usize> = match words[0] {
            "wgmma" if !first.is_multiple_of(128) => return Ok(false),
            "wgmma" => (first..first + 128).collect(),
            _ => {
                let mut run = Run::new(launch, self.cluster, self.cta, first);
                let mask = mask_of(&mut run, words, &instruction.args, (first..end).collect())?;
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
        let mut run = Run::new(launch, self.cluster, self.cta, first);
        let executed = matrix::execute(&mut run, words, &instruction.args, &threads);
        run.select(threads[0]);
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
        "shfl" | "vote" | "match" | "redux" | "bar" => {
            let thread = lanes
                .iter()
                .find(|at| run.cluster.ctas[run.cta].threads[**at].state == State::AtCollective);
            run.select(*thread.ok_or("no lane waits")?);
            run.value(args.last().ok_or("no mask")?)?
        }
        _ => u64::from(u32::MAX),
    };
    let threads = &run.cluster.ctas[run.cta].threads;
    let live = lanes.iter().filter(|at| threads[**at].state != State::Exited);
    Ok(live.fold(0, |live, at| live | 1 << (at - first)) & mask)
}
