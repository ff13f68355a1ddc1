//! The space of the family: which shapes (`shapes.rs`, `grouped_shapes.rs`) exist for which element
//! types, layouts and kinds of kernels, each with as many stages as fit.

use super::config::{Schedule, Sm90};
use super::grouped_shapes;
use super::memory::{SHARED_BYTES_PER_CTA, SHARED_BYTES_PER_SM};
use super::shapes::{self, Shape};
use crate::kernel::layout::{Layout, Major};
use crate::kernel::operation::Groups;
use crate::kernel::types::{ProductClass, Types};
use crate::operand::DType;

/// Most shared memory, in bytes, of a CTA whose threads load A through the L1 cache. L1 has the
/// rest of an SM's 256 KiB; threads stall if loads in flight fill it.
const SHARED_BYTES_BESIDE_L1: u32 = 163 * 1024;

/// Most shared memory, in bytes, of a CTA of which an SM holds two: for a mixed product of few
/// columns.
const SHARED_BYTES_OF_TWO: u32 = SHARED_BYTES_PER_SM / 2 - 1024;

/// Whether an SM holds two CTAs of a mixed product. One consumer alone, or two of codes of 4 bits,
/// convert weights more slowly than memory delivers them, unless they have many products for each.
fn shares_sm(shape: &Shape, types: Types) -> bool {
    const FEW_COLUMNS: u32 = 32;
    let most = if types.a.is_whole() && types.b.is_whole() { 1 } else { 2 };
    shape.consumers <= most && shape.tile[1] <= FEW_COLUMNS
}

/// Most stages of a pipeline: further stages hide no more latency.
const MAX_STAGES: u32 = 12;

impl Sm90 {
    /// The configurations for these types; none where `wgmma` does not multiply them.
    pub fn configs(types: Types) -> Vec<Sm90> {
        if !types.on_tensor_cores() || !is_multiplied(types) {
            return Vec::new();
        }
        let class = types.class();
        let mut configs = Vec::new();
        let mut offer = |shapes: Vec<Shape>, kind: Sm90| {
            let shapes = shapes.into_iter().filter(|shape| serves_types(shape, kind, types));
            for shape in shapes {
                let Shape { tile, consumers, schedule, cluster, split } = shape;
                let with =
                    |stages| Sm90 { tile, stages, consumers, schedule, cluster, split, ..kind };
                // As many stages as fit.
                let most = if kind.loads_by_threads() {
                    SHARED_BYTES_BESIDE_L1
                } else if class == ProductClass::Mixed && shares_sm(&shape, types) {
                    SHARED_BYTES_OF_TWO
                } else {
                    SHARED_BYTES_PER_CTA
                };
                let stages = 2..=MAX_STAGES.min(most / with(1).stage_bytes(types));
                configs.extend(
                    stages.rev().map(with).find(|config| config.shared_bytes(types) <= most),
                );
            }
        };
        for packed in [[false, false], [true, false], [false, true], [true, true]] {
            for layout in Layout::all() {
                // Packing accepts both orders, so one layout represents both.
                let k_major = [layout.a == Major::Row, layout.b == Major::Column];
                // A copy moves whole elements, of whole bytes.
                let has_copies =
                    !types.stores_float32_sums() && types.a.is_whole() && types.b.is_whole();
                if (0..2).any(|side| !k_major[side] && packed[side])
                    || (packed.contains(&true) && !has_copies)
                {
                    continue;
                }
                if class == ProductClass::Mixed {
                    // The operand that is converted is the program's A, K-major.
                    let b_is_first = types.b.is_widened();
                    // Weights of 4 bits and of float8 multiply rows of activations.
                    let has_all_layouts = types.b.is_whole() && !types.b.is_float8();
                    let multiplies_rows =
                        layout == Layout { a: Major::Row, b: Major::Column, out: Major::Row };
                    if k_major[usize::from(b_is_first)] && (has_all_layouts || multiplies_rows) {
                        let shapes = match packed.contains(&true) {
                            true => shapes::mixed_packed(),
                            false if types.b.is_whole() && types.a.is_whole() => shapes::mixed(),
                            false => shapes::codes(),
                        };
                        let swapped = b_is_first != (layout.out == Major::Column);
                        let kind = Sm90 { packed, swapped, ..Sm90::of(layout) };
                        offer(shapes, kind);
                        // Integers of 8 bits are not timed in these tiles.
                        if !has_all_layouts && !packed.contains(&true) {
                            offer(shapes::mixed_wide(), Sm90 { half_rows: true, ..kind });
                        }
                    }
                    continue;
                }
                if matches!(class, ProductClass::Float8 | ProductClass::Integer8) {
                    // Operands that are not K-major are packed.
                    if k_major == [true, true] {
                        let kind = Sm90 { packed, ..Sm90::of(layout) };
                        if packed.contains(&true) {
                            offer(shapes::eight_bit_packed(), kind);
                        } else {
                            offer(shapes::eight_bit(), kind);
                            offer(shapes::eight_bit_swapped(), Sm90 { swapped: true, ..kind });
                            let over_grid = Sm90 { over_grid: true, ..kind };
                            offer(shapes::eight_bit_over_grid(), over_grid);
                            if class == ProductClass::Float8 {
                                offer(shapes::float8(), kind);
                                offer(shapes::fast_sums(), Sm90 { fast_sums: true, ..kind });
                            }
                        }
                    }
                    continue;
                }
                // `wgmma` reads a 4-byte operand that is not K-major from registers only, as A.
                if class == ProductClass::Single && k_major != [true, true] {
                    let shapes = if packed.contains(&true) {
                        shapes::from_registers_packed()
                    } else {
                        shapes::from_registers()
                    };
                    let b_is_first = !k_major[1];
                    if k_major[0] == b_is_first {
                        let swapped = b_is_first != (layout.out == Major::Column);
                        offer(shapes, Sm90 { packed, swapped, ..Sm90::of(layout) });
                    }
                    continue;
                }
                let (shapes, swapped) = if packed.contains(&true) {
                    (shapes::plain_packed(), shapes::swapped_packed())
                } else {
                    (shapes::plain(), shapes::swapped())
                };
                offer(shapes, Sm90 { packed, ..Sm90::of(layout) });
                offer(swapped, Sm90 { packed, swapped: true, ..Sm90::of(layout) });
                if packed == [false, false] {
                    offer(shapes::over_grid(), Sm90 { over_grid: true, ..Sm90::of(layout) });
                }
                // Only 16-bit elements: TMA rounds float32 to tf32, loads by threads do not.
                for swapped in [false, true] {
                    let program_a = usize::from((layout.out == Major::Column) != swapped);
                    if k_major[program_a]
                        && packed == [false, false]
                        && !types.stores_float32_sums()
                        && class == ProductClass::Half
                    {
                        for align in [8, 4] {
                            offer(
                                shapes::by_threads(),
                                Sm90 { swapped, align, ..Sm90::of(layout) },
                            );
                        }
                    }
                }
            }
        }
        if matches!(class, ProductClass::Float8 | ProductClass::Integer8) {
            let layout = Layout { a: Major::Row, b: Major::Column, out: Major::Row };
            let kind = Sm90 { groups: Groups::AlongM, ..Sm90::of(layout) };
            offer(grouped_shapes::eight_bit(), kind);
            if class == ProductClass::Float8 {
                offer(grouped_shapes::fast_sums(), Sm90 { fast_sums: true, ..kind });
                // Gradients of weights are seldom stored in 8 bits.
                if !types.out.is_float8() {
                    let kind = Sm90 { groups: Groups::AlongK, ..kind };
                    offer(grouped_shapes::eight_bit_along_k(), kind);
                    offer(grouped_shapes::fast_sums_along_k(), Sm90 { fast_sums: true, ..kind });
                }
            }
        }
        if class == ProductClass::Mixed && types.b.is_widened() {
            // The weights are the program's A.
            let layout = Layout { a: Major::Row, b: Major::Column, out: Major::Row };
            let kind = Sm90 { groups: Groups::AlongM, swapped: true, ..Sm90::of(layout) };
            offer(grouped_shapes::weights(), kind);
            // Integers of 8 bits are not timed in these tiles.
            if types.b != DType::I8 && types.b != DType::U8 {
                offer(grouped_shapes::weights_wide(), Sm90 { half_rows: true, ..kind });
            }
        }
        if class == ProductClass::Half {
            // A is row-major, since a group begins at any row, but a box begins at multiples of 16
            // bytes along the contiguous dimension.
            for b in Major::BOTH {
                offer(
                    grouped_shapes::along_m(),
                    Sm90 {
                        groups: Groups::AlongM,
                        ..Sm90::of(Layout { a: Major::Row, b, out: Major::Row })
                    },
                );
            }
            // A group begins anywhere along K, and a box at multiples of 16 bytes along the
            // contiguous dimension. If neither operand is K-major, only the last K block of a group
            // holds K of another group.
            let layout = Layout { a: Major::Column, b: Major::Row, out: Major::Row };
            let kind = Sm90 { groups: Groups::AlongK, ..Sm90::of(layout) };
            offer(grouped_shapes::along_k(), kind);
        }
        configs
    }
}

/// Whether `wgmma` multiplies elements of these types.
fn is_multiplied(types: Types) -> bool {
    match types.class() {
        ProductClass::Float8 => true,
        ProductClass::Half | ProductClass::Single | ProductClass::Integer8 => types.a == types.b,
        // Other outputs of a mixed product are seldom stored.
        ProductClass::Mixed => types.out == types.a || types.out == types.b,
        ProductClass::Double | ProductClass::Integer32 | ProductClass::Unserved => false,
    }
}

/// Whether a shape is for kernels of these element types. A shape for some types only is cut here.
fn serves_types(shape: &Shape, kind: Sm90, types: Types) -> bool {
    let [rows, columns] = shape.tile;
    // Two float16 sums share a register, so columns come in multiples of 16.
    let is_paired = types.accumulator != DType::F16 || columns.is_multiple_of(16);
    let stores_words = types.out.bits() == 32;
    // The store of 4-byte elements exceeds the registers of three consumers.
    let store_fits = !(stores_words && rows == 192 && (152..=160).contains(&columns));
    // 192 sums a thread and the group walk leave no registers for 4-byte elements.
    let groups_fit = !(stores_words && kind.has_groups() && columns == 192);
    // Integers: N of an instruction is 8, 24 or a multiple of 16.
    let is_integer = types.accumulator == DType::I32;
    let has_instruction = !is_integer || columns.is_multiple_of(16) || [8, 24].contains(&columns);
    // Two sets of sums, one of a K block and one of all, and 48 other registers. A thread of three
    // consumers has 160 registers: at most 56 sums. One of two has 232: at most 92, which a tile of
    // 176 columns (88) comes closest to. In ping-pong, the tensor cores would wait while the one
    // consumer that multiplies adds up.
    let promotion_fits = !kind.promotes_sums(types)
        || shape.schedule == Schedule::Cooperative && {
            let sums = rows / shape.consumers / 64 * columns / 2;
            sums <= if shape.consumers == 3 { 56 } else { 88 }
        };
    // TMA stores boxes whose rows are multiples of 16 bytes.
    let Shape { tile, split, .. } = *shape;
    let stored = Sm90 { tile, split, ..kind }.stored_columns();
    let has_box = kind.swapped || (stored * types.out.bytes() as u32).is_multiple_of(16);
    is_paired && store_fits && groups_fit && has_instruction && promotion_fits && has_box
}
