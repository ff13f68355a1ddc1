//! A launch: its CTAs and clusters, the order in which threads run, and the report of a hang.
//!
//! Each thread runs until it waits; then the next one runs. Instructions of a whole warp or
//! warpgroup wait for all its threads and take effect at once. Copies and matrix products take
//! effect when they are issued, so that a missing wait for them is not noticed.

use std::collections::BTreeMap;
use std::ffi::c_void;

use crate::groups::Groups;
use crate::program::Kernel;
use crate::thread::Run;

/// An error of the program, with the instruction.
pub type Fault = String;
pub type Result<T> = std::result::Result<T, Fault>;

/// Whether a thread runs, or what it waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
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
    pub pc: usize,
    pub state: State,
    /// The cluster barrier's generation at this thread's arrival.
    pub cluster_generation: u64,
    pub local: Box<[u8]>,
}

#[derive(Clone, Copy, Default)]
pub struct Barrier {
    pub arrived: usize,
    pub generation: u64,
}

pub struct Cta {
    pub threads: Vec<Thread>,
    pub shared: Vec<u8>,
    pub index: [u32; 3],
    pub rank: u32,
    pub barriers: [Barrier; 16],
}

pub struct Cluster {
    pub ctas: Vec<Cta>,
    pub barrier: Barrier,
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

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: numbers are bytes.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), size_of_val(&self.0[..])) }
    }
}

/// CTAs that are resident at once, as on an H100.
const RESIDENT: usize = 132;
/// Rounds over all threads without progress before a launch counts as hung.
const IDLE_ROUNDS: usize = 2_000;

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

    /// The instructions at which threads wait.
    fn describe_hang(&self, clusters: &[Cluster]) -> Fault {
        let mut places: BTreeMap<(usize, String), usize> = BTreeMap::new();
        for thread in clusters.iter().flat_map(|c| &c.ctas).flat_map(|c| &c.threads) {
            let (pc, waits) = match thread.state {
                State::Exited => continue,
                State::Ready => (thread.pc, "polls".to_string()),
                State::AtCollective => (thread.pc, "waits for other lanes".to_string()),
                // Threads wait behind the instruction.
                State::AtBarrier(name, _) => (thread.pc - 1, format!("waits at barrier {name}")),
                State::AtCluster(_) => (thread.pc - 1, "waits for the cluster".to_string()),
            };
            *places.entry((pc, waits)).or_default() += 1;
        }
        let mut text = "the grid hangs; threads, place, instruction:".to_string();
        for ((pc, waits), count) in places {
            let words = self.kernel.instructions[pc].words.join(".");
            text += &format!("\n  {count} at {pc}: {words} {waits}");
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
                        // A conspicuous value: a kernel writes a register before it reads it.
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
                let mut run = Run::new(self, cluster, cta, thread);
                progress |= run.slice().map_err(|fault| run.locate(fault))?;
            }
            let mut groups = Groups { launch: self, cluster, cta };
            progress |= groups.run()?;
        }
        Ok(progress)
    }
}
