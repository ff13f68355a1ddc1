//! The configurations of the family.

use super::config::{Sm90, shows_sums};
use super::memory::SHARED_BYTES_PER_CTA;
use super::space::{self, Shape};
use crate::kernel::layout::{Layout, Major};
use crate::kernel::types::Types;
use crate::operand::DType;

/// Shared memory of a CTA whose threads load A through the L1 cache. L1 has the rest of an SM's 256
/// KiB, and threads wait where it is full of loads in flight.
const SHARED_BYTES_BESIDE_L1: u32 = 163 * 1024;

/// More stages are never faster.
const MAX_STAGES: u32 = 12;

impl Sm90 {
    /// The configurations for these types; none where `wgmma` does not multiply them.
    pub fn configs(types: Types) -> Vec<Sm90> {
        let multiplied = matches!(types.a, DType::F16 | DType::Bf16 | DType::F32);
        if types.a != types.b || !multiplied {
            return Vec::new();
        }
        let mut configs = Vec::new();
        let mut offer = |shapes: Vec<Shape>, kind: Sm90| {
            for Shape { tile, consumers, schedule, cluster, split } in shapes {
                // Two float16 sums share a register; columns come in pairs of 8.
                if types.accumulator == DType::F16 && tile[1] % 16 != 0 {
                    continue;
                }
                // Storing 4-byte elements takes more registers than three consumers leave.
                if tile[0] == 192 && (152..=160).contains(&tile[1]) && types.out.bytes() == 4 {
                    continue;
                }
                // 192 sums a thread and the group walk leave no registers for 4-byte elements.
                if kind.grouped && tile[1] == 192 && types.out.bytes() == 4 {
                    continue;
                }
                let with =
                    |stages| Sm90 { tile, stages, consumers, schedule, cluster, split, ..kind };
                // As many stages as fit.
                let most = match kind.loads_by_threads() {
                    true => SHARED_BYTES_BESIDE_L1,
                    false => SHARED_BYTES_PER_CTA,
                };
                let stages = 2..=MAX_STAGES.min(most / with(1).stage_bytes());
                configs.extend(
                    stages.rev().map(with).find(|config| config.shared_bytes(types) <= most),
                );
            }
        };
        for packed in [[false, false], [true, false], [false, true], [true, true]] {
            for layout in Layout::all() {
                // An operand of any order is packed: one order stands for both.
                let k_major = [layout.a == Major::Row, layout.b == Major::Column];
                if (0..2).any(|side| !k_major[side] && packed[side])
                    || (shows_sums(types) && packed.contains(&true))
                {
                    continue;
                }
                // `wgmma` reads only 16-bit elements in both orders. Others come from registers, as
                // A.
                if types.a.bytes() != 2 && k_major != [true, true] {
                    let shapes = if packed.contains(&true) {
                        space::from_registers_packed()
                    } else {
                        space::from_registers()
                    };
                    let b_is_first = !k_major[1];
                    if k_major[0] == b_is_first {
                        let swapped = b_is_first != (layout.out == Major::Column);
                        offer(shapes, Sm90 { packed, swapped, ..Sm90::of(layout) });
                    }
                    continue;
                }
                let (shapes, few_rows) = if packed.contains(&true) {
                    (space::plain_packed(), space::swapped_packed())
                } else {
                    (space::plain(), space::swapped())
                };
                offer(shapes, Sm90 { packed, ..Sm90::of(layout) });
                offer(few_rows, Sm90 { packed, swapped: true, ..Sm90::of(layout) });
                if packed == [false, false] {
                    offer(space::over_grid(), Sm90 { over_grid: true, ..Sm90::of(layout) });
                }
                // TMA rounds float32 to tf32; threads that load do not.
                for swapped in [false, true] {
                    let program_a = usize::from((layout.out == Major::Column) != swapped);
                    if k_major[program_a]
                        && packed == [false, false]
                        && !shows_sums(types)
                        && types.a.bytes() == 2
                    {
                        for align in [8, 4] {
                            offer(space::by_threads(), Sm90 { swapped, align, ..Sm90::of(layout) });
                        }
                    }
                }
            }
        }
        if types.a.bytes() == 2 {
            // A box begins at a multiple of 16 bytes along the contiguous dimension, and a group at
            // any row: A is row-major.
            for b in Major::BOTH {
                offer(
                    space::grouped(),
                    Sm90 {
                        grouped: true,
                        ..Sm90::of(Layout { a: Major::Row, b, out: Major::Row })
                    },
                );
            }
        }
        configs
    }
}
