//! Shared memory and registers. The program computes the same values.

use super::config::{ROW_BYTES, Schedule, Sm90};
use super::split::SPLITS_AT_ONCE;
use crate::epilogue::{BlockScale, Scaling};
use crate::kernel::cost::chips::{REGISTERS_PER_SM, Target};
use crate::kernel::operation::Groups;
use crate::kernel::types::{ProductClass, Types};

/// Registers for addresses, counters and the epilogue (`OTHERS` of the program).
const OTHER_REGISTERS: u32 = 48;
const OTHER_REGISTERS_OF_MIXED: u32 = 20;
/// Registers for scales applied after the main loop (`Sm90Factors`), in addition to the epilogue's.
const FACTOR_REGISTERS: u32 = 32;
/// Most registers for scales that are loaded ahead.
pub(super) const MOST_SCALE_REGISTERS: u32 = 40;
pub const SHARED_BYTES_PER_CTA: u32 = Target::H100.shared_bytes_per_cta;
pub(super) const SHARED_BYTES_PER_SM: u32 = Target::H100.shared_bytes_per_sm;

impl Sm90 {
    /// Columns of a tile whose sums each reducer CTA adds up (`EPILOGUE_N` of the program). The
    /// last CTAs may add up none.
    pub(super) fn stored_columns(&self) -> u32 {
        // The columns of a dual GEMM are combined in pairs of blocks.
        let unit = if self.dual && !self.swapped { 16 } else { 8 };
        let groups = self.tile[1] / unit;
        unit * (groups.div_ceil(self.split)..=groups)
            .find(|stored| groups.is_multiple_of(*stored))
            .unwrap_or(groups)
    }

    /// Columns of the output that a share has (`OUTPUT_N` of the program): of a dual GEMM, half as
    /// many as sums.
    fn output_columns(&self) -> u32 {
        self.stored_columns() / if self.dual && !self.swapped { 2 } else { 1 }
    }

    /// First, the largest power of two, up to 128, that divides the bytes of an epilogue row.
    /// Second, the bytes of a row of the box that one TMA store writes (`BOX_BYTES` of the
    /// program).
    pub(super) fn box_bytes(&self, types: Types) -> (u32, u32) {
        let size = types.out.bytes() as u32;
        let row = self.output_columns() * size;
        let power = (1 << row.trailing_zeros()).min(128);
        let bytes = match power {
            0..16 => row,
            _ if power >= 64 || power == row || size >= 4 => power,
            // An odd number of 16-byte pieces, divided by 3 while longer than 128 bytes.
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

    /// Columns of the box that one TMA store writes (`BOX_N` of the program).
    pub fn box_n(&self, types: Types) -> u32 {
        self.box_bytes(types).1 / types.out.bytes() as u32
    }

    /// Bytes of a stage: a tile of A and one of B.
    pub(super) fn stage_bytes(&self, types: Types) -> u32 {
        let [m, n] = self.tile;
        // An N-major tile of B is loaded in boxes. The last box may overhang the tile.
        let b = if self.k_major()[1] { n } else { n.next_multiple_of(self.row_bytes(1) / 2) };
        // The wider elements of a mixed product's B take several rows.
        (m + types.widening() * b) * self.row_bytes(0)
    }

    /// Dynamic shared memory in bytes: the stages; one or two slabs of 16 rows of sums for each
    /// consumer warp (with two, one is filled while TMA reads the other); two barriers a stage; one
    /// barrier for the partial sums of a split.
    pub fn shared_bytes(&self, types: Types) -> u32 {
        let pipeline = self.stages * self.stage_bytes(types);
        let (_, box_bytes) = self.box_bytes(types);
        let slab = match self.swapped {
            // 16 x 16 padded sums; or a quarter, for each warp, of two slabs of 32 rows of 64
            // 16-bit elements. Of 16 rows, beside half rows, the padded sums take more.
            true if self.stored_columns() < 32 || self.half_rows => 16 * (16 + 4) * 4,
            true => 2 * 32 * ROW_BYTES / 4,
            false => 16 * box_bytes,
        };
        let barriers = 16 * self.stages + if self.split > 1 { 8 } else { 0 };
        let with = |slabs| pipeline + self.consumers * 4 * slabs * slab + barriers;
        let two = !self.swapped && box_bytes <= 128 && with(2) <= SHARED_BYTES_PER_CTA;
        with(if two { 2 } else { 1 })
    }

    /// Blocks of 64 rows that each consumer multiplies.
    pub fn m_blocks(&self) -> u32 {
        let sharers = if self.schedule == Schedule::PingPong { 1 } else { self.consumers };
        self.tile[0] / sharers / 64
    }

    /// Accumulators of a thread.
    fn sums(&self) -> u32 {
        self.m_blocks() * self.tile[1] / 2
    }

    /// Accumulators that a thread stores for each tile.
    pub fn sums_of_thread(&self) -> f64 {
        f64::from(self.sums()) / f64::from(self.split)
    }

    /// Registers of a thread's accumulators.
    pub fn sum_registers(&self, types: Types) -> u32 {
        self.sums() * types.accumulator.bytes() as u32 / 4
    }

    /// Registers for the fragments of A: those in use, those being loaded and the weights of a
    /// mixed product (`FRAGMENTS` of the program).
    fn fragment_registers(&self, types: Types) -> u32 {
        let sets = match self.a_from_registers(types) {
            true if types.class() == ProductClass::Mixed => 3,
            true => 2,
            false => 0,
        };
        sets * self.tile[0] / self.consumers / 64 * 8
    }

    /// Registers for the totals of a split tile (`REDUCTION` of the program).
    fn total_registers(&self) -> u32 {
        if self.split == 1 {
            return 0;
        }
        // A reducer CTA of a grid split fetches several partial sums at once.
        let sets = if self.over_grid { 1 + SPLITS_AT_ONCE } else { 1 };
        self.tile[0] / self.consumers / 64 * self.stored_columns() / 8 * 4 * sets
    }

    /// Registers for the totals of chains of products (`CHAIN_TOTALS` of the program).
    fn chain_registers(&self, types: Types) -> u32 {
        let chained = types.stores_float32_sums() && self.sums() <= 80;
        if chained || self.promotes_sums(types) { self.sums() } else { 0 }
    }

    /// Whether the program adds up chains of float8 products in registers of its own.
    pub(super) fn promotes_sums(&self, types: Types) -> bool {
        types.class() == ProductClass::Float8 && !self.fast_sums
    }

    /// Whether the program applies block scales: to float8 products, where the registers hold them
    /// (`Sm90Scales` of the program) or after the main loop (`Sm90Factors`), and to the weights
    /// of a mixed product (`Sm90WeightScales`).
    pub(super) fn applies(&self, types: Types, scaling: &Scaling) -> bool {
        if types.class() == ProductClass::Mixed {
            // The weights are `wgmma`'s A. An instruction multiplies 16 elements of K.
            let [a, b] = self.of_wgmma([scaling.a, scaling.b]);
            return b.is_none()
                && a.is_some_and(|scale| scale.depth.is_multiple_of(16) && !scale.is_swizzled);
        }
        let [a, b] = self.of_wgmma([scaling.a, scaling.b]);
        // An instruction multiplies 32 elements of K. Of groups along K, a part of a K block may
        // lie outside the group, and the group may be empty: its scale does not apply.
        let is_along_k = self.groups == Groups::AlongK;
        let is_served = |scale: &BlockScale| {
            let is_part = [32, 64].contains(&scale.depth) && !is_along_k;
            scale.zero.is_none()
                && (is_part || scale.depth.is_multiple_of(128))
                && !(is_along_k && scale.is_whole())
        };
        if types.class() != ProductClass::Float8 || !a.iter().chain(&b).all(is_served) {
            return false;
        }
        // Scales of all of K multiply the whole sums, or the partial sums of a split.
        let is_inside = |scale: &BlockScale| !scale.is_whole() || self.split > 1;
        let factors = if a.iter().chain(&b).all(is_inside) { 0 } else { FACTOR_REGISTERS };
        let (a, b) = (a.filter(is_inside), b.filter(is_inside));
        if self.fast_sums && (a.is_some() || b.is_some()) {
            return false;
        }
        // 160 columns would have a scale for each 32 of them. A tile with 7 scales a lane takes 1.2
        // to 1.3 times as long as one of 128 columns with 3.
        if b.is_some() && !self.tile[1].is_multiple_of(64) && self.tile[1] > 64 {
            return false;
        }
        let of_rows = match a {
            Some(scale) if !scale.extent.is_multiple_of(64) || self.has_groups() => 2,
            _ => 1,
        };
        let columns = self.tile[1];
        let of_columns = match b.map_or(columns, |scale| common_divisor(columns, scale.extent)) {
            shared if shared.is_multiple_of(8) => columns / shared,
            _ => columns / 4,
        };
        let (count, left) = (of_rows + of_columns, self.left_of_sums(types));
        // Sets of scales: twice the parts that are loaded ahead (`AHEAD` of the program), or one.
        let fits = |sets: &u32| count * sets <= left.min(MOST_SCALE_REGISTERS);
        let sets = match [8, 4].into_iter().find(fits) {
            Some(sets) => sets,
            None if 2 * count <= MOST_SCALE_REGISTERS => 2,
            // The products of less than a K block do not hide the loads of many.
            None if a.iter().chain(&b).any(|scale| scale.depth < 128) => return false,
            None => 1,
        };
        (count * sets).max(factors) <= left
    }

    /// Registers that sums, their totals and others leave of a consumer's (`Sm90Scales::LEFT` of
    /// the program).
    pub(super) fn left_of_sums(&self, types: Types) -> u32 {
        let most = if self.consumers == 3 { 160 } else { 232 };
        let sums = self.sum_registers(types) + self.chain_registers(types);
        (most - OTHER_REGISTERS).saturating_sub(sums)
    }

    /// Whether the accumulators leave registers for an epilogue. With 192 accumulator registers,
    /// even a short epilogue spills.
    pub fn leaves_registers_for_epilogues(&self, types: Types) -> bool {
        self.sum_registers(types) <= 176
    }

    /// CTAs that an SM holds, limited by registers and shared memory.
    pub fn ctas_per_sm(&self, types: Types) -> u32 {
        let others = if types.class() == ProductClass::Mixed {
            OTHER_REGISTERS_OF_MIXED
        } else {
            OTHER_REGISTERS
        };
        let totals = self.total_registers().max(self.chain_registers(types));
        let registers =
            self.sum_registers(types) + self.fragment_registers(types) + totals + others;
        let by_registers = REGISTERS_PER_SM / (self.threads() * registers);
        by_registers.min(SHARED_BYTES_PER_SM / (self.shared_bytes(types) + 1024)).max(1)
    }
}

fn common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}
