//! The `sm90` family: Hopper's `wgmma`, fed by the copy engine (TMA), warp-specialized and persistent.

mod grid;
mod launch;
mod shapes;

pub use self::grid::{Placement, TileGrid};
use self::shapes::{
    BY_THREADS, GROUPED, OVER_GRID, SHAPES, SHAPES_FROM_REGISTERS, SHAPES_FROM_REGISTERS_PACKED,
    SHAPES_PACKED, SWAPPED, SWAPPED_PACKED, Shape,
};
use super::name::append;
use super::reduce::Partials;
use super::{Demand, Layout, Major, Types, Unsupported};
use crate::operand::{DType, View};
use crate::problem::GemmProblem;

/// Who of the consumer warpgroups computes what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Schedule {
    /// They share a tile.
    Cooperative,
    /// Each has a tile of its own; while one stores its sums, the other keeps the tensor cores busy.
    PingPong,
}

impl Schedule {
    pub fn name(self) -> &'static str {
        match self {
            Schedule::Cooperative => "cooperative",
            Schedule::PingPong => "pingpong",
        }
    }
}

/// A point in the family's space. Tile and cluster are in the program's frame: M is where `wgmma` takes 64 rows, N where it
/// takes 8 and more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sm90 {
    /// Of an operand that is packed, the order does not matter.
    pub layout: Layout,
    pub tile: [u32; 2],
    pub stages: u32,
    /// Warpgroups that multiply; one more starts the copies.
    pub consumers: u32,
    pub schedule: Schedule,
    /// Neighbouring tiles along M and N whose CTAs share what they load.
    pub cluster: [u32; 2],
    /// CTAs of a cluster that share one tile, each with a part of K; or, over the grid, of those that share a tile, how many add up.
    pub split: u32,
    /// Whether the parts of K are spread over the grid (`k_splits`), and their sums meet in workspace.
    pub over_grid: bool,
    /// The program computes the transposed product and writes it transposed: few rows then lie on its N, or an operand that `wgmma`
    /// takes from registers on its M.
    pub swapped: bool,
    /// Whether A and B are first copied to where the copy engine can address them, K-major.
    pub packed: [bool; 2],
    /// What addresses, strides and the length of rows of the program's A are multiples of, in bytes: 16 for the copy engine. Of 8
    /// or 4, threads load it (16-bit elements, K-major).
    pub align: u32,
    /// Whether it computes a grouped GEMM.
    pub grouped: bool,
}

/// Shared memory that a CTA may use, and what a SM has for all its CTAs, each of which takes 1 KiB more (CUDA C++ Programming Guide,
/// "Technical Specifications per Compute Capability").
const SHARED_BYTES_A_CTA: u32 = 227 * 1024;
const SHARED_BYTES_A_SM: u32 = 228 * 1024;

/// What a CTA uses whose threads load A, through the L1 cache: that has the rest of a SM's 256 KiB, and one that is full of what is on its
/// way holds them up. (Two steps below the most; 164 KiB with the one that each CTA takes more.)
const SHARED_BYTES_BESIDE_L1: u32 = 163 * 1024;

/// Clusters of 1 to 8 CTAs, each with a multiprocessor for itself, that run at once on an H100 (cuOccupancyMaxActiveClusters): they lie
/// within a GPC, whose 16 or 18 multiprocessors their size does not always divide.
const CLUSTERS: [f64; 9] = [0.0, 132.0, 66.0, 39.0, 30.0, 22.0, 17.0, 15.0, 15.0];

/// Rows of 128 bytes: what the swizzle interleaves, and a K block.
const ROW_BYTES: u32 = 128;

/// Stages beyond which more were never faster.
const MAX_STAGES: u32 = 12;

/// One of the program's operands: the view, and which of its dimensions are rows (of A; columns of B) and K.
struct Side<'a> {
    view: &'a View,
    rows: usize,
    k: usize,
    packed: bool,
}

impl Sm90 {
    /// The configurations on offer for these types; none where `wgmma` does not multiply them.
    pub fn configs(types: Types) -> Vec<Sm90> {
        let multiplied = matches!(types.a, DType::F16 | DType::Bf16 | DType::F32);
        if types.a != types.b || !multiplied {
            return Vec::new();
        }
        let mut configs = Vec::new();
        let mut offer = |shapes: &[Shape], kind: Sm90| {
            for (tile, consumers, schedule, cluster, split) in shapes.iter().copied() {
                // Sums in float16 lie two to a register; with a single group of 8 columns at the end they have not been tried.
                if types.accumulator == DType::F16 && tile[1] % 16 != 0 {
                    continue;
                }
                // Of these the way to an output of 4-byte elements needs more registers than three consumers have.
                if tile[0] == 192 && (152..=160).contains(&tile[1]) && types.out.bytes() == 4 {
                    continue;
                }
                // 192 sums a thread, the walk through the groups and an epilogue of 4-byte elements are more than there are registers.
                if kind.grouped && tile[1] == 192 && types.out.bytes() == 4 {
                    continue;
                }
                let with =
                    |stages| Sm90 { tile, stages, consumers, schedule, cluster, split, ..kind };
                // As many stages as there is memory for.
                let most = if kind.loads_by_threads() {
                    SHARED_BYTES_BESIDE_L1
                } else {
                    SHARED_BYTES_A_CTA
                };
                // No more than tiles alone would take.
                let stages = 2..=MAX_STAGES.min(most / with(1).stage_bytes());
                configs.extend(
                    stages.rev().map(with).find(|config| config.shared_bytes(types) <= most),
                );
            }
        };
        for packed in [[false, false], [true, false], [false, true], [true, true]] {
            for layout in Layout::all() {
                // A packed operand is read in any order, so that one stands for both.
                let k_major = [layout.a == Major::Row, layout.b == Major::Column];
                if (0..2).any(|side| !k_major[side] && packed[side])
                    || (exact(types) && packed.contains(&true))
                {
                    continue;
                }
                // `wgmma` reads only 16-bit elements in both orders. Of others, it takes the program's A from registers.
                if types.a.bytes() != 2 && k_major != [true, true] {
                    let shapes = if packed.contains(&true) {
                        SHAPES_FROM_REGISTERS_PACKED
                    } else {
                        SHAPES_FROM_REGISTERS
                    };
                    let b_is_first = !k_major[1];
                    if k_major[0] == b_is_first {
                        let swapped = b_is_first != (layout.out == Major::Column);
                        offer(shapes, Sm90 { packed, swapped, ..Sm90::of(layout) });
                    }
                    continue;
                }
                let (shapes, few_rows) = if packed.contains(&true) {
                    (SHAPES_PACKED, SWAPPED_PACKED)
                } else {
                    (SHAPES, SWAPPED)
                };
                offer(shapes, Sm90 { packed, ..Sm90::of(layout) });
                offer(few_rows, Sm90 { packed, swapped: true, ..Sm90::of(layout) });
                if packed == [false, false] {
                    offer(OVER_GRID, Sm90 { over_grid: true, ..Sm90::of(layout) });
                }
                // float32 would have to be rounded to tf32 on its way, which the copy engine does.
                for swapped in [false, true] {
                    let program_a = usize::from((layout.out == Major::Column) != swapped);
                    if k_major[program_a]
                        && packed == [false, false]
                        && !exact(types)
                        && types.a.bytes() == 2
                    {
                        for align in [8, 4] {
                            offer(BY_THREADS, Sm90 { swapped, align, ..Sm90::of(layout) });
                        }
                    }
                }
            }
        }
        if types.a.bytes() == 2 {
            // The copy engine takes boxes from where they begin at multiples of 16 bytes along the contiguous dimension, and a group
            // begins at any row: hence no column-major A.
            for b in Major::BOTH {
                offer(
                    GROUPED,
                    Sm90 {
                        grouped: true,
                        ..Sm90::of(Layout { a: Major::Row, b, out: Major::Row })
                    },
                );
            }
        }
        configs
    }

    /// The plainest kind of a layout, for a shape to be put in.
    fn of(layout: Layout) -> Sm90 {
        Sm90 {
            layout,
            tile: [0, 0],
            stages: 0,
            consumers: 0,
            schedule: Schedule::Cooperative,
            cluster: [1, 1],
            split: 1,
            over_grid: false,
            swapped: false,
            packed: [false, false],
            align: 16,
            grouped: false,
        }
    }

    /// Whether the program's A is the user's B.
    pub fn crossed(&self) -> bool {
        (self.layout.out == Major::Column) != self.swapped
    }

    /// The program's two operands, A first.
    fn sides<'a>(&self, problem: &'a GemmProblem) -> [Side<'a>; 2] {
        let a = Side { view: &problem.a, rows: 1, k: 2, packed: self.packed[0] };
        let b = Side { view: &problem.b, rows: 2, k: 1, packed: self.packed[1] };
        if self.crossed() { [b, a] } else { [a, b] }
    }

    /// Whether the program's operands are contiguous along K.
    pub fn k_major(&self) -> [bool; 2] {
        let (a, b) = (self.layout.a == Major::Row, self.layout.b == Major::Column);
        if self.crossed() { [b, a] } else { [a, b] }
    }

    /// Whether the program loads A into registers: elements that `wgmma` cannot read from shared memory as they lie.
    pub fn a_from_registers(&self, types: Types) -> bool {
        types.a.bytes() != 2 && !self.k_major()[0]
    }

    /// What the user's A (0) or B (1) is aligned to, in bytes, unless it is packed.
    pub fn aligned_to(&self, at: usize) -> u32 {
        if self.crossed() == (at == 1) { self.align } else { 16 }
    }

    /// Whether threads load the program's A.
    pub fn loads_by_threads(&self) -> bool {
        self.align < 16
    }

    /// M, N and K of a tile, as the user counts them.
    pub fn user_tile(&self, types: Types) -> [u32; 3] {
        let [m, n] = self.tile;
        let k = ROW_BYTES / types.a.bytes() as u32;
        if self.crossed() { [n, m, k] } else { [m, n, k] }
    }

    /// CTAs of a cluster along M, N and K, as the user counts them.
    pub fn user_cluster(&self) -> [u32; 3] {
        let [m, n] = self.cluster;
        let split = if self.in_cluster() { self.split } else { 1 };
        if self.crossed() { [n, m, split] } else { [m, n, split] }
    }

    pub fn threads(&self) -> u32 {
        128 * (self.consumers + 1)
    }

    pub fn cluster_size(&self) -> u32 {
        self.cluster[0] * self.cluster[1] * if self.in_cluster() { self.split } else { 1 }
    }

    /// Whether the CTAs of a cluster share a tile.
    pub fn in_cluster(&self) -> bool {
        self.split > 1 && !self.over_grid
    }

    /// Partials that K is cut into. Over the grid, as many as run beside each other on an H100, whatever the device, so that what the sums are
    /// depends on the problem alone; each has at least so many blocks, for fewer are not worth a meeting.
    pub fn k_splits(&self, problem: &GemmProblem) -> u32 {
        const LEAST_BLOCKS: u64 = 8;
        /// `MOST_PARTS` of the program.
        const MOST: u64 = 16;
        if !self.over_grid {
            return self.split;
        }
        let blocks = (problem.k() * problem.a.dtype.bytes()) as u64 / u64::from(ROW_BYTES);
        let most = (blocks / LEAST_BLOCKS).clamp(1, MOST);
        (self.over_grid_at_once() / self.tiles(problem).max(1)).clamp(1, most) as u32
    }

    /// Clusters, with K over the grid, that an H100 runs at once: their CTAs each have a multiprocessor.
    fn over_grid_at_once(&self) -> u64 {
        u64::from(self.clusters_at_once(1, CLUSTERS[1] as u32))
    }

    /// Columns that each CTA of a split tile stores, the last ones maybe none (`EPILOGUE_N` of the program).
    fn stored_columns(&self) -> u32 {
        let groups = self.tile[1] / 8;
        8 * (groups.div_ceil(self.split)..=groups)
            .find(|stored| groups.is_multiple_of(*stored))
            .unwrap_or(groups)
    }

    /// Bytes of the largest power of two that divides a row of the epilogue, up to the swizzle's 128, and of the box that one
    /// store of the copy engine writes (`BOX_BYTES` of the program).
    fn box_bytes(&self, types: Types) -> (u32, u32) {
        let size = types.out.bytes() as u32;
        let row = self.stored_columns() * size;
        let power = (1 << row.trailing_zeros()).min(128);
        let bytes = match power {
            0..16 => row,
            _ if power >= 64 || power == row || size >= 4 => power,
            // An odd number of pieces of 16 bytes; thirds of it as long as it is longer than the copy engine's widest swizzle.
            _ => {
                let mut bytes = row / (power / 16);
                while bytes > 128 && bytes.is_multiple_of(48) {
                    bytes /= 3;
                }
                bytes
            }
        };
        (power, bytes)
    }

    /// Columns of that box (`BOX_N` of the program).
    pub fn box_n(&self, types: Types) -> u32 {
        self.box_bytes(types).1 / types.out.bytes() as u32
    }

    /// A tile of A and one of B.
    fn stage_bytes(&self) -> u32 {
        let [m, n] = self.tile;
        // A tile of B that is not K-major comes in boxes, of which the last may be partly empty.
        let b = if self.k_major()[1] { n } else { n.next_multiple_of(self.row_bytes(1) / 2) };
        (m + b) * ROW_BYTES
    }

    /// Dynamic shared memory in bytes: the ring of stages, each a tile of A and one of B; 16 rows of sums for each warp that
    /// stores them, twice if that fits, so that one can be filled while the other is read; two barriers a stage, and one for the sums
    /// of a split tile that arrive.
    pub fn shared_bytes(&self, types: Types) -> u32 {
        let ring = self.stages * self.stage_bytes();
        let (_, box_bytes) = self.box_bytes(types);
        let slab = match self.swapped {
            // 16 x 16 sums, padded; or a warp's quarter of two slabs, of 32 rows of 64 elements of 16 bits.
            true if self.stored_columns() < 32 => 16 * (16 + 4) * 4,
            true => 2 * 32 * ROW_BYTES / 4,
            false => 16 * box_bytes,
        };
        let barriers = 16 * self.stages + if self.split > 1 { 8 } else { 0 };
        let with = |slabs| ring + self.consumers * 4 * slabs * slab + barriers;
        let two = !self.swapped && box_bytes <= 128 && with(2) <= SHARED_BYTES_A_CTA;
        with(if two { 2 } else { 1 })
    }

    /// Blocks of 64 rows that a consumer multiplies.
    pub fn m_blocks(&self) -> u32 {
        let sharers = if self.schedule == Schedule::PingPong { 1 } else { self.consumers };
        self.tile[0] / sharers / 64
    }

    fn sums(&self) -> u32 {
        self.m_blocks() * self.tile[1] / 2
    }

    /// Sums that a thread stores of a tile.
    pub fn sums_of_thread(&self) -> f64 {
        f64::from(self.sums()) / f64::from(self.split)
    }

    /// Registers that they take.
    pub fn sum_registers(&self, types: Types) -> u32 {
        self.sums() * types.accumulator.bytes() as u32 / 4
    }

    /// Registers for what is multiplied of A, and what is loaded meanwhile (`FRAGMENTS` of the program).
    fn fragment_registers(&self, types: Types) -> u32 {
        if self.a_from_registers(types) { self.tile[0] / self.consumers / 64 * 16 } else { 0 }
    }

    /// Registers that a split tile's sums take once they are added up, in float32.
    fn total_registers(&self) -> u32 {
        if self.split == 1 {
            return 0;
        }
        // Over the grid, 8 parts' (`PARTS_AT_ONCE` of the program) are fetched before they are added up.
        self.tile[0] / self.consumers / 64 * self.stored_columns() / 8
            * 4
            * if self.over_grid { 9 } else { 1 }
    }

    /// Registers for what chains of products have come to (`CHAINS` of the program).
    fn chain_registers(&self, types: Types) -> u32 {
        let chained = exact(types) && types.accumulator == DType::F32 && self.sums() <= 80;
        if chained { self.sums() } else { 0 }
    }

    /// Whether sums leave an epilogue the registers that it needs: behind 192 even a short one spills.
    pub fn has_room_for_epilogues(&self, types: Types) -> bool {
        self.sum_registers(types) <= 176
    }

    /// CTAs that a SM holds, by registers and shared memory.
    pub fn ctas_per_sm(&self, types: Types) -> u32 {
        // As many registers more as the program says it needs besides.
        let besides = self.total_registers().max(self.chain_registers(types));
        let registers = self.sum_registers(types) + self.fragment_registers(types) + besides + 48;
        let by_registers = 65536 / (self.threads() * registers);
        by_registers.min(SHARED_BYTES_A_SM / (self.shared_bytes(types) + 1024)).max(1)
    }

    /// Clusters that run at once on a device with so many multiprocessors. One more than that would wait until another has done all
    /// its tiles.
    pub fn clusters_at_once(&self, ctas_per_sm: u32, multiprocessors: u32) -> u32 {
        let share = CLUSTERS[self.cluster_size().min(8) as usize] / CLUSTERS[1];
        ((share * f64::from(multiprocessors * ctas_per_sm)) as u32).max(1)
    }

    /// Appends the configuration as kernel names spell it: orders of A, B and out (p: packed), tile and cluster as the user counts them.
    pub fn append_to(&self, types: Types, name: &mut String) {
        let ([m, n, k], [cluster_m, cluster_n, _]) = (self.user_tile(types), self.user_cluster());
        for (packed, major) in self.packed.into_iter().zip([self.layout.a, self.layout.b]) {
            if packed {
                append!(name, "p");
            } else {
                append!(name, major);
            }
        }
        append!(
            name,
            self.layout.out,
            "_",
            m,
            "x",
            n,
            "x",
            k,
            "_",
            self.schedule.name(),
            self.consumers,
            "_"
        );
        append!(name, self.stages, "stages_cluster", cluster_m, "x", cluster_n);
        if self.split > 1 {
            append!(name, if self.over_grid { "_gridsplit" } else { "_split" }, self.split);
        }
        if self.swapped {
            append!(name, "_swapped");
        }
        if self.loads_by_threads() {
            append!(name, "_align", self.align);
        }
    }

    /// Of A, B and out.
    pub fn demands(&self, types: Types) -> [Demand; 3] {
        let input = |at: usize, order| {
            if self.packed[at] {
                return Demand { copied: true, ..Demand::NONE };
            }
            let align = self.aligned_to(at);
            let threads = align < 16;
            // Threads read whole pieces, and none beyond a row's end.
            let whole =
                if threads || exact(types) { Demand::whole_along(order) } else { [false; 2] };
            Demand { whole, steps: !threads, ..Demand::aligned(order, align) }
        };
        let Layout { a, b, out } = self.layout;
        let out = match exact(types) {
            // torch's own output has rows, however this one lies, and they decide for it.
            true => Demand { whole: [out == Major::Column, true], ..Demand::aligned(out, 16) },
            // Any output can be written; the other order is another kernel's.
            false => Demand::aligned(out, 1),
        };
        [input(0, a), input(1, b), out]
    }

    /// Grids are 32-bit numbers. K over the grid is for where tiles leave at least half of the chip free, and K has blocks enough to share:
    /// of 8 products with fewer that were timed, none was better off with it. And where 16-bit products stay in float32, N must be even enough
    /// for cuBLAS to multiply as we do: elsewhere it is more exact (docs/notes/accuracy.md).
    pub fn check_extents(&self, types: Types, problem: &GemmProblem) -> Result<(), Unsupported> {
        const LEAST_BLOCKS: u32 = 32;
        const EVEN: i64 = 8;
        if exact(types) && problem.n() % EVEN != 0 {
            return Err(Unsupported::Uneven { n: problem.n(), of: EVEN });
        }
        // No more tiles than outputs, and eight CTAs to a cluster: most problems are told without a division, of every kernel.
        let outputs = problem.m().saturating_mul(problem.n()).saturating_mul(problem.batch());
        if !self.over_grid && !self.grouped && outputs <= i64::from(i32::MAX / 8) {
            return Ok(());
        }
        let tiles = self.tiles(problem);
        if self.over_grid {
            let (extent, limit) =
                (tiles.min(i64::MAX as u64) as i64, (self.over_grid_at_once() / 2) as i64);
            if extent > limit {
                return Err(Unsupported::Few {
                    dimension: "M * N * L, in clusters' tiles,",
                    extent,
                    limit,
                });
            }
            let least = i64::from(LEAST_BLOCKS * ROW_BYTES) / problem.a.dtype.bytes();
            if problem.k() < least {
                return Err(Unsupported::Shallow { k: problem.k(), least });
            }
        }
        let ctas = tiles * if self.split > 1 { u64::from(self.cluster_size()) } else { 1 };
        check_count("M * N * L, as tiles,", ctas)
    }

    /// Whether the copy engine can address the output. (Of a row's last 16 bytes it writes all or nothing.)
    fn out_is_aligned(&self, types: Types, out: &View) -> bool {
        let unit = self.layout.out.unit();
        self.layout.out.fits(out)
            && out.alignment(unit) >= 16
            && out.shape[unit] * types.out.bytes() % 16 == 0
    }

    /// The partial results of a reduction that the program stores, in the frame of its output: one for each column of the rows
    /// that a warp's lanes hold at once, and one for each row of a round's columns.
    pub(super) fn partials(&self, types: Types, problem: &GemmProblem) -> Partials {
        let covered = |at: usize, extent: i64| {
            (extent as u64).next_multiple_of(u64::from(self.tile[at] * self.cluster[at]))
        };
        let (m, n) = (problem.m(), problem.n());
        if self.swapped {
            // Rounds of 16 rows by 16 columns.
            let covered = [covered(1, m), covered(0, n)];
            let stored = u64::from(self.stored_columns());
            return Partials {
                covered,
                count: [covered[0] / stored * stored.div_ceil(16), covered[1] / 16],
            };
        }
        let covered = [covered(0, m), covered(1, n)];
        let box_n = u64::from(self.box_n(types));
        Partials { covered, count: [covered[0] / 8, covered[1] / box_n * box_n.div_ceil(32)] }
    }
}

fn check_count(dimension: &'static str, count: u64) -> Result<(), Unsupported> {
    let (extent, limit) = (count as i64, i32::MAX.into());
    if count <= i32::MAX as u64 {
        Ok(())
    } else {
        Err(Unsupported::Extent { dimension, extent, limit })
    }
}

/// Whether 16-bit products stay in float32, so that how they were summed shows. `wgmma` cuts off what does not fit its sums, and so
/// do cuBLAS's kernels where rows begin and end aligned; where they do not, cuBLAS has more exact ones, and so have we (`sm80`).
fn exact(types: Types) -> bool {
    types.a.bytes() == 2 && types.out == DType::F32
}
