//! The problems that a configuration serves.

use super::config::{ROW_BYTES, Sm90};
use super::split::{MAX_SPLITS, MOST_K_OF_INTEGERS};
use crate::epilogue::Joint;
use crate::kernel::cost::chips::Target;
use crate::kernel::demand::Demand;
use crate::kernel::joint::check_joint;
use crate::kernel::layout::{Layout, Major};
use crate::kernel::limits::check_count;
use crate::kernel::operation::Groups;
use crate::kernel::tensor_map::TensorMap;
use crate::kernel::types::{ProductClass, Types};
use crate::kernel::unsupported::Unsupported;
use crate::operand::{Class, DType, View};
use crate::problem::GemmProblem;

impl Sm90 {
    /// Requirements on A, B and out.
    pub fn demands(&self, types: Types) -> [Demand; 3] {
        let input = |at: usize, order| {
            if self.packed[at] {
                return Demand { packed: true, ..Demand::NONE };
            }
            let align = self.aligned_to(at);
            let threads = align < 16;
            // Threads load whole pieces of `align` bytes, never beyond a row's end.
            let whole = if threads || types.stores_float32_sums() {
                Demand::whole_along(order)
            } else {
                [false; 2]
            };
            Demand { whole, by_tma: !threads, ..Demand::aligned(order, align) }
        };
        let Layout { a, b, out } = self.layout;
        let out = match types.stores_float32_sums() {
            true => Demand { whole: Demand::whole_along(out), ..Demand::aligned(out, 16) },
            // The program stores to any address. Another kernel serves the other order.
            false => Demand::aligned(out, 1),
        };
        [input(0, a), input(1, b), out]
    }

    /// Whether the configuration also multiplies A by two matrices B: 16-bit operands and output,
    /// B K-major, no packing, no loads by threads, no grid split. The CTAs of a cluster load equal
    /// slices with whole blocks of both matrices. Groups along K have no K-major B.
    pub fn serves_dual(&self, types: Types) -> bool {
        let [slice, shorter] = self.slices(self.side_of(1));
        types.class() == ProductClass::Half
            && types.out.class() == Some(Class::Half)
            && types.accumulator == DType::F32
            && self.layout.b == Major::Column
            && !self.packs()
            && !(self.loads_by_threads() || self.over_grid)
            && slice == shorter
            && slice.is_multiple_of(2 * TensorMap::DUAL_ROWS)
            && self.leaves_registers_for_epilogues(types)
    }

    /// Whether the configuration also takes an index of A's rows: groups of rows on the M of
    /// `wgmma`, a K-major A of 16 bits, CTAs that do not share A (`GATHERS` of the program).
    pub fn gathers(&self, types: Types) -> bool {
        self.groups == Groups::AlongM
            && !self.swapped
            && self.k_major()[0]
            && types.class() == ProductClass::Half
            && self.cluster[1] == 1
    }

    /// Checks that the configuration also takes several matrices as the program's A (0) or B (1) at
    /// `at`: 16-bit operands, these K-major, no packing, no loads by threads, no groups. A tile
    /// lies in one matrix, and the CTAs that share it load equal slices, which one tensor map a
    /// matrix serves.
    pub fn check_joint(&self, types: Types, joint: &Joint, at: usize) -> Result<(), Unsupported> {
        let side = self.side_of(at);
        let [slice, shorter] = self.slices(side);
        if types.class() != ProductClass::Half
            || !self.k_major()[side]
            || self.packs()
            || self.loads_by_threads()
            || self.has_groups()
            || slice != shorter
        {
            return Err(Unsupported::NoPanels);
        }
        check_joint(joint, self.tile[side], 16)
    }

    /// For a dual GEMM: refuses an N that is no multiple of 8, and what `check_extents` refuses.
    pub fn check_dual_extents(
        &self,
        types: Types,
        problem: &GemmProblem,
    ) -> Result<(), Unsupported> {
        let of = i64::from(TensorMap::DUAL_ROWS);
        match problem.n() % of {
            0 => self.check_extents(types, &self.doubled(problem)),
            _ => Err(Unsupported::UnevenDual { n: problem.n(), of }),
        }
    }

    /// The N of the user that a kernel requires. One that stores float32 sums of 16-bit products
    /// takes multiples of 8: for other N, cuBLAS rounds to nearest (docs/design/accuracy.md). Its
    /// kernel depends on torch's output, which is row-major.
    pub fn n_step(types: Types) -> u32 {
        if types.stores_float32_sums() { 8 } else { 1 }
    }

    /// Refuses more CTAs than fit 32 bits, and integer sums that could equal a grid split's mark.
    pub fn check_extents(&self, types: Types, problem: &GemmProblem) -> Result<(), Unsupported> {
        if self.over_grid && types.accumulator == DType::I32 && problem.k() > MOST_K_OF_INTEGERS {
            let (dimension, extent, limit) = ("K", problem.k(), MOST_K_OF_INTEGERS);
            return Err(Unsupported::TooMany { dimension, extent, limit });
        }
        // Fast path without a division: there are at most as many tiles as outputs, and 8 CTAs a
        // cluster.
        let outputs = problem.m().saturating_mul(problem.n()).saturating_mul(problem.batch());
        let most = if self.over_grid { MAX_SPLITS } else { 1 };
        if self.groups != Groups::AlongM && outputs <= i64::from(i32::MAX / 8) / i64::from(most) {
            return Ok(());
        }
        let ctas_of_tile = match (self.over_grid, self.split) {
            (true, _) => self.cluster_size() * self.k_splits(problem),
            (false, 1) => 1,
            (false, _) => self.cluster_size(),
        };
        check_count("M * N * L, as tiles,", self.tiles(problem) * u64::from(ctas_of_tile))
    }

    /// Refuses problems for which a split of K is no use. A grid split requires tiles that leave at
    /// least half of an H100 idle, and enough K blocks. A cluster split requires at most one and a
    /// half tiles for each multiprocessor of an H100: more tiles fill the chip without a split.
    pub fn check_range(&self, problem: &GemmProblem) -> Result<(), Unsupported> {
        /// Fewest K blocks of a grid split.
        const LEAST_BLOCKS: u32 = 32;
        /// Most tiles of a cluster split.
        const MOST_TILES: u64 = 3 * Target::H100.multiprocessors as u64 / 2;
        if self.split == 1 {
            return Ok(());
        }
        // Packed operands, and those of other than 16 bits, need every tile: there are few for
        // them.
        let is_half = |view: &View| view.dtype.class() == Some(Class::Half);
        let is_plain = || !self.packs() && is_half(&problem.a) && is_half(&problem.b);
        if !self.over_grid && !is_plain() {
            return Ok(());
        }
        let limit = if self.over_grid { self.clusters_on_h100() / 2 } else { MOST_TILES };
        let (extent, limit) = (self.tiles(problem).min(i64::MAX as u64) as i64, limit as i64);
        if extent > limit {
            let dimension = "M * N * L, in clusters' tiles,";
            return Err(Unsupported::TooMany { dimension, extent, limit });
        }
        let least = i64::from(LEAST_BLOCKS * 8 * ROW_BYTES / problem.a.dtype.bits());
        if self.over_grid && problem.k() < least {
            return Err(Unsupported::Shallow { k: problem.k(), least });
        }
        Ok(())
    }

    /// Whether TMA can address the output. TMA writes all or none of a row's last 16 bytes.
    pub fn out_is_aligned(&self, types: Types, out: &View) -> bool {
        let unit = self.layout.out.unit();
        self.layout.out.fits(out)
            && out.is_in_reach_of_tma()
            && out.alignment(unit) >= 16
            && out.shape[unit] * types.out.bytes() % 16 == 0
    }
}
