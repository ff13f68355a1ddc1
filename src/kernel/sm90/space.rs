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

/// Shapes, and the kind of kernel that has them.
type Kind = (Vec<Shape>, Sm90);

impl Sm90 {
    /// The configurations for these types; none where `wgmma` does not multiply them.
    pub fn configs(types: Types) -> Vec<Sm90> {
        if !types.on_tensor_cores() || !is_multiplied(types) {
            return Vec::new();
        }
        let (plain, grouped) = match types.class() {
            ProductClass::Half => (halves(types), grouped_halves()),
            ProductClass::Single => (words(types), Vec::new()),
            ProductClass::Mixed => (mixed(types), grouped_mixed(types)),
            _ => (bytes(types), grouped_bytes(types)),
        };
        let with_stages = |(shapes, kind): Kind| {
            let shapes = shapes.into_iter().filter(move |shape| serves_types(shape, kind, types));
            shapes.filter_map(move |shape| kind.with_stages(shape, types))
        };
        plain.into_iter().chain(grouped).flat_map(with_stages).collect()
    }

    /// A configuration of this kind with as many stages as fit, and at least two.
    fn with_stages(self, shape: Shape, types: Types) -> Option<Sm90> {
        let Shape { tile, consumers, schedule, cluster, split } = shape;
        let with = |stages| Sm90 { tile, stages, consumers, schedule, cluster, split, ..self };
        let most = if self.loads_by_threads() {
            SHARED_BYTES_BESIDE_L1
        } else if types.class() == ProductClass::Mixed && shares_sm(&shape, types) {
            SHARED_BYTES_OF_TWO
        } else {
            SHARED_BYTES_PER_CTA
        };
        let stages = 2..=MAX_STAGES.min(most / with(1).stage_bytes(types));
        stages.rev().map(with).find(|config| config.shared_bytes(types) <= most)
    }

    pub(super) fn packs(&self) -> bool {
        self.packed.contains(&true)
    }
}

/// Every layout, first without packing.
fn layouts_and_packing(types: Types) -> impl Iterator<Item = Sm90> {
    // A copy moves whole elements, of whole bytes.
    let has_copies = !types.stores_float32_sums() && types.a.is_whole() && types.b.is_whole();
    let packings = [[false, false], [true, false], [false, true], [true, true]];
    let all = packings.into_iter().flat_map(|packed| {
        Layout::of_programs().map(move |layout| Sm90 { packed, ..Sm90::of(layout) })
    });
    all.filter(move |kind| {
        // Packing accepts both orders, so one layout represents both.
        let is_represented = (0..2).all(|side| kind.k_major()[side] || !kind.packed[side]);
        is_represented && (has_copies || !kind.packs())
    })
}

/// Operands of 16 bits in any layout.
fn halves(types: Types) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for kind in layouts_and_packing(types) {
        kinds.extend(either_first(kind));
        if kind.packs() || types.stores_float32_sums() {
            continue;
        }
        for kind in [false, true].map(|swapped| Sm90 { swapped, ..kind }) {
            if kind.k_major()[0] {
                kinds.extend([8, 4].map(|align| (shapes::by_threads(), Sm90 { align, ..kind })));
            }
        }
    }
    kinds
}

/// Kernels with either operand as `wgmma`'s A.
fn either_first(kind: Sm90) -> Vec<Kind> {
    let swapped = Sm90 { swapped: true, ..kind };
    if kind.packs() {
        return vec![(shapes::plain_packed(), kind), (shapes::swapped_packed(), swapped)];
    }
    let over_grid = Sm90 { over_grid: true, ..kind };
    vec![(shapes::plain(), kind), (shapes::swapped(), swapped), (shapes::over_grid(), over_grid)]
}

/// float32 operands. `wgmma` reads one that is not K-major from registers only, as A. TMA rounds to
/// tf32, loads by threads would not.
fn words(types: Types) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for kind in layouts_and_packing(types) {
        match kind.k_major() {
            [true, true] => kinds.extend(either_first(kind)),
            [false, false] => {}
            [_, b] => {
                let shapes = match kind.packs() {
                    true => shapes::from_registers_packed(),
                    false => shapes::from_registers(),
                };
                kinds.push((shapes, Sm90 { swapped: !b, ..kind }));
            }
        }
    }
    kinds
}

/// Operands of 8 bits. Those that are not K-major are packed.
fn bytes(types: Types) -> Vec<Kind> {
    let mut kinds = Vec::new();
    for kind in layouts_and_packing(types).filter(|kind| kind.k_major() == [true, true]) {
        if kind.packs() {
            kinds.push((shapes::eight_bit_packed(), kind));
            continue;
        }
        kinds.push((shapes::eight_bit(), kind));
        kinds.push((shapes::eight_bit_swapped(), Sm90 { swapped: true, ..kind }));
        kinds.push((shapes::eight_bit_over_grid(), Sm90 { over_grid: true, ..kind }));
        if types.class() == ProductClass::Float8 {
            kinds.push((shapes::float8(), kind));
            kinds.push((shapes::fast_sums(), Sm90 { fast_sums: true, ..kind }));
        }
    }
    kinds
}

/// Operands of 16 bits and weights of fewer, which are converted: `wgmma`'s A, K-major.
fn mixed(types: Types) -> Vec<Kind> {
    let swapped = types.b.is_widened();
    // Weights of 4 bits and of float8 multiply rows of activations.
    let has_all_layouts = types.b.is_whole() && !types.b.is_float8();
    let mut kinds = Vec::new();
    for kind in layouts_and_packing(types).map(|kind| Sm90 { swapped, ..kind }) {
        if !kind.k_major()[0] || !(has_all_layouts || kind.layout == ROWS_BY_COLUMNS) {
            continue;
        }
        let shapes = match kind.packs() {
            true => shapes::mixed_packed(),
            false if types.b.is_whole() && types.a.is_whole() => shapes::mixed(),
            false => shapes::codes(),
        };
        kinds.push((shapes, kind));
        // Integers of 8 bits are not timed in these tiles.
        if !has_all_layouts && !kind.packs() {
            kinds.push((shapes::mixed_wide(), Sm90 { half_rows: true, ..kind }));
        }
    }
    kinds
}

const ROWS_BY_COLUMNS: Layout = Layout { a: Major::Row, b: Major::Column, out: Major::Row };

/// Groups of operands of 16 bits.
fn grouped_halves() -> Vec<Kind> {
    // A is row-major, since a group begins at any row, but a box begins at multiples of 16 bytes
    // along the contiguous dimension.
    let along_m = Major::BOTH.map(|b| {
        let kind = Sm90::of(Layout { a: Major::Row, b, out: Major::Row });
        (grouped_shapes::along_m(), Sm90 { groups: Groups::AlongM, ..kind })
    });
    // A group begins anywhere along K, and a box at multiples of 16 bytes along the contiguous
    // dimension. If neither operand is K-major, only the last K block of a group holds K of another
    // group.
    let kind = Sm90::of(Layout { a: Major::Column, b: Major::Row, out: Major::Row });
    let along_k = (grouped_shapes::along_k(), Sm90 { groups: Groups::AlongK, ..kind });
    along_m.into_iter().chain([along_k]).collect()
}

/// Groups of operands of 8 bits.
fn grouped_bytes(types: Types) -> Vec<Kind> {
    let along_m = Sm90 { groups: Groups::AlongM, ..Sm90::of(ROWS_BY_COLUMNS) };
    let mut kinds = vec![(grouped_shapes::eight_bit(), along_m)];
    if types.class() == ProductClass::Float8 {
        kinds.push((grouped_shapes::fast_sums(), Sm90 { fast_sums: true, ..along_m }));
        // Gradients of weights are seldom stored in 8 bits.
        if !types.out.is_float8() {
            let along_k = Sm90 { groups: Groups::AlongK, ..along_m };
            let fast = Sm90 { fast_sums: true, ..along_k };
            kinds.push((grouped_shapes::eight_bit_along_k(), along_k));
            kinds.push((grouped_shapes::fast_sums_along_k(), fast));
        }
    }
    kinds
}

/// Groups of rows of 16 bits by weights of fewer, `wgmma`'s A.
fn grouped_mixed(types: Types) -> Vec<Kind> {
    if !types.b.is_widened() {
        return Vec::new();
    }
    let groups = Groups::AlongM;
    let kind = Sm90 { groups, swapped: true, ..Sm90::of(ROWS_BY_COLUMNS) };
    let mut kinds = vec![(grouped_shapes::weights(), kind)];
    // Integers of 8 bits are not timed in these tiles.
    if types.b != DType::I8 && types.b != DType::U8 {
        kinds.push((grouped_shapes::weights_wide(), Sm90 { half_rows: true, ..kind }));
    }
    kinds
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
