//! What an `sm90` kernel is launched with: tensor maps and the boxes in which operands arrive, copies in front, workspace, parameters.

use super::{Placement, ROW_BYTES, Side, Sm90, check_count};
use crate::kernel::launch::{GroupOffsets, Params, Sm90Params, Sm90Scalars, TensorMap};
use crate::kernel::pack::{self, Pack};
use crate::kernel::{Launch, Major, Types, Unsupported};
use crate::operand::{DType, View};
use crate::problem::GemmProblem;

/// Rows that the swizzle interleaves: slices and boxes begin at multiples.
const ATOM: u32 = 8;

impl Sm90 {
    /// Rows of 128 bytes that a K block of a tile has of the program's A and B, as far as they lie inside, with what is read only to be
    /// wasted; and what they begin at multiples of, in bytes.
    pub fn rows_read(&self, problem: &GemmProblem) -> [(u32, u32); 2] {
        let (sides, k_major) = (self.sides(problem), self.k_major());
        [0, 1].map(|at| {
            let side = &sides[at];
            let inside = i64::from(self.tile[at]).min(side.view.shape[side.rows]).max(1) as u32;
            if side.packed {
                return (inside, ROW_BYTES);
            }
            let other = if k_major[at] { side.rows } else { side.k };
            let step = (side.view.stride[other] * side.view.dtype.bytes()) | i64::from(ROW_BYTES);
            let aligned = 1 << step.trailing_zeros();
            if k_major[at] {
                return (inside, aligned);
            }
            // Along M (N), a tile comes in boxes. Tiles that are not whole boxes begin inside lines of the cache; and rows of 64 bytes, as
            // timings have it, cost more where not all of the operand's begin at lines.
            let row = self.row_bytes(at);
            // A power of two: no divisions, as the model asks for this of every kernel.
            let last = (row >> (side.view.dtype.bytes() as u32).trailing_zeros()) - 1;
            let whole = self.tile[at] & last == 0 && (row == ROW_BYTES || aligned == ROW_BYTES);
            ((inside + last) & !last, if whole { aligned } else { 16 })
        })
    }

    /// Bytes of a row of the boxes in which the copy engine loads the program's A (0) or B (1), a K block's 128; or 64 for a B that is contiguous
    /// along N, where less is then loaded to be wasted. Twice the rows take the engine longer, though. Of 70 products that were timed, tiles
    /// of 32 columns are 1.44 times as fast so, of 96 columns 1.05 times (0.99 where the operand's rows do not begin at lines of the cache),
    /// and of 256 rows by 144 or 160 columns, which then have room for a fourth stage, 1.04 and 1.00 times; others gained nothing, or lost
    /// up to 4 % (docs/notes/sm90-runs.md, run 25).
    pub fn row_bytes(&self, at: usize) -> u32 {
        let [m, n] = self.tile;
        let narrow = n.next_multiple_of(32) < n.next_multiple_of(64) && (n <= 96 || m == 256);
        if at == 1 && narrow && !self.k_major()[1] && self.packed == [false, false] {
            64
        } else {
            ROW_BYTES
        }
    }

    /// Rows that each of the CTAs that share a tile of an operand loads, where those lie along K, the most and the least: whole swizzle atoms
    /// (`SLICE` and `SHORT` of the program).
    pub fn slices(&self, at: usize) -> [u32; 2] {
        let (atoms, sharers) = (self.tile[at] / ATOM, self.cluster[1 - at]);
        [atoms.div_ceil(sharers) * ATOM, atoms / sharers * ATOM]
    }

    /// Rows of a box of an operand whose rows lie along K: all of a CTA's part of a tile, or all of an operand that has fewer. Or an equal
    /// part, for which fewest lie outside, where that saves enough: each box takes the time of the one thread that starts them, which
    /// with small tiles has none to spare (96x64 in boxes of 32 rows: 1.7 times as long, docs/notes/sm90-runs.md, run 19).
    fn box_rows(&self, sides: &[Side; 2], at: usize) -> u32 {
        /// The least part.
        const FEWEST: u32 = 32;
        /// Partials must save one in so many of the rows that would be loaded. A guess: below a seventh, what they won was 2 to 3 %.
        const ONE_IN: u64 = 8;
        let [slice, shorter] = self.slices(at);
        let rows = sides[at].view.shape[sides[at].rows].max(1) as u64;
        // Where a group's rows end, only the device knows. Beside threads that load A, the program takes B's tiles whole.
        // Unequal slices are a box each.
        if (self.grouped && at == 0) || self.loads_by_threads() || slice > shorter {
            return slice;
        }
        if rows < u64::from(slice) {
            return rows as u32;
        }
        let loaded = |part: u32| rows.next_multiple_of(u64::from(part));
        (2..=4)
            .filter(|parts| slice.is_multiple_of(parts * ATOM))
            .map(|parts| slice / parts)
            .filter(|part| {
                *part >= FEWEST && (loaded(slice) - loaded(*part)) * ONE_IN >= loaded(slice)
            })
            .min_by_key(|part| (loaded(*part), slice / part))
            .unwrap_or(slice)
    }

    /// The copies in front of the product, into a workspace at this address.
    fn pack(&self, problem: &GemmProblem, workspace: u64) -> Option<Pack> {
        let sides = self.sides(problem);
        if !sides.iter().any(|side| side.packed) {
            return None;
        }
        let mut at = workspace;
        let operands = sides.map(|side| {
            side.packed.then(|| {
                let operand = pack::Operand::new(side.view, side.rows, side.k, at);
                at += operand.bytes();
                operand
            })
        });
        Some(Pack::new(operands))
    }

    /// Bytes of the operands that are copied first, which pack.cuh counts in 32 bits, too. The same for all configurations that copy the
    /// same ones.
    pub fn copies(&self, problem: &GemmProblem) -> Result<u64, Unsupported> {
        let Some(pack) = self.pack(problem, 0) else { return Ok(0) };
        check_count("M * N * L or K, as tiles and bytes,", pack.largest_count())?;
        Ok(pack.bytes())
    }

    /// Bytes of the operands that are copied first; or, of K over the grid, of a word for each tile, 256 bytes apart (`WORD_STRIDE` of the
    /// program), and the float32 sums of each part of each tile.
    pub fn workspace_bytes(&self, problem: &GemmProblem) -> u64 {
        if self.over_grid {
            let tiles = self.tiles(problem) * u64::from(self.cluster_size());
            return tiles
                * (256 + u64::from(self.k_splits(problem) * self.tile[0] * self.tile[1] * 4));
        }
        self.pack(problem, 0).map_or(0, |pack| pack.bytes())
    }

    /// `placement`: how the tiles are walked where the CTAs are to have an empty chip to themselves.
    pub fn launch(
        &self,
        types: Types,
        problem: &GemmProblem,
        offsets: Option<&View>,
        placement: Option<Placement>,
        multiprocessors: u32,
        workspace: u64,
    ) -> Launch {
        let pack = self.pack(problem, workspace);
        let sides = self.sides(problem);
        let k_block = u64::from(ROW_BYTES) / types.a.bytes() as u64;
        let map = |at: usize| {
            let side = &sides[at];
            let (sharers, row) = (self.cluster[1 - at], self.row_bytes(at));
            let view = pack.as_ref().and_then(|pack| pack.view(at)).unwrap_or(*side.view);
            // In the packed view, rows and K are where they were.
            let k_major = side.packed || self.k_major()[at];
            let (inner, outer) = if k_major { (side.k, side.rows) } else { (side.rows, side.k) };
            let batches = if view.stride[0] == 0 { 1 } else { view.shape[0] };
            // With 256 bytes, a K-major row brings the line of the next K block along. But a piece of a row that begins inside a line has
            // parts of two, for which four would be fetched: up to 1.17 times the time, even of what the cache has (docs/notes/sm90-runs.md,
            // run 20). By the rows' distance alone: addresses may change (`Packed::move_to`).
            let whole_lines =
                step_bytes(view.stride[outer], types.a).is_multiple_of(u64::from(ROW_BYTES));
            let next_block_along = k_major && whole_lines;
            TensorMap {
                data_type: TensorMap::data_type(types.a, true),
                // Of an operand without elements nothing is read, but the address must be one of the device.
                address: if view.numel() > 0 { view.data } else { problem.out.data & !15 },
                // With no K at all there is nothing to read, but a map has extents of 1 and more.
                extents: [
                    view.shape[inner].max(1) as u64,
                    view.shape[outer].max(1) as u64,
                    batches as u64,
                ],
                strides: [view.stride[outer], view.stride[0]].map(|step| step_bytes(step, types.a)),
                // A row along what is contiguous.
                box_extents: [
                    row / types.a.bytes() as u32,
                    if k_major { self.box_rows(&sides, at) } else { k_block as u32 / sharers },
                    1,
                ],
                swizzle: TensorMap::swizzle(row),
                l2_promotion: if next_block_along {
                    TensorMap::PROMOTE_256
                } else {
                    TensorMap::PROMOTE_128
                },
            }
        };
        let (m, n) = (sides[0].view.shape[sides[0].rows], sides[1].view.shape[sides[1].rows]);
        let batched = |at: usize| i32::from(sides[at].view.stride[0] != 0);
        let out = &problem.out;
        // The output as it lies in memory: its rows, and its columns, which are contiguous.
        let (rows, columns) = match self.layout.out {
            Major::Row => (1, 2),
            Major::Column => (2, 1),
        };
        let (power, box_bytes) = self.box_bytes(types);
        let stored_by_copy_engine = !self.swapped && power >= 16 && self.out_is_aligned(types, out);
        let out_map = TensorMap {
            data_type: TensorMap::data_type(types.out, false),
            address: out.data,
            extents: [out.shape[columns] as u64, out.shape[rows] as u64, out.shape[0] as u64],
            strides: [out.stride[rows], out.stride[0]].map(|step| step_bytes(step, types.out)),
            box_extents: [self.box_n(types), 16, 1],
            swizzle: if box_bytes == power {
                TensorMap::swizzle(box_bytes)
            } else {
                TensorMap::NO_SWIZZLE
            },
            l2_promotion: TensorMap::PROMOTE_256,
        };
        let scalars = Sm90Scalars {
            out: out.data,
            out_stride: [out.stride[0], out.stride[rows], out.stride[columns]],
            m: m as i32,
            n: n as i32,
            k: problem.k() as i32,
            batch: problem.b.shape[0] as i32,
            batched: [batched(0), batched(1)],
            out_by_copy_engine: i32::from(stored_by_copy_engine),
            band: placement
                .as_ref()
                .map_or_else(|| self.band(&self.grid(problem)), |placement| placement.band)
                as i32,
            boxes: [0, 1].map(|at| self.box_rows(&sides, at) as i32),
            offsets: GroupOffsets::new(offsets),
            a: if self.loads_by_threads() { sides[0].view.data } else { 0 },
            a_stride: [0, sides[0].rows].map(|dimension| sides[0].view.stride[dimension]),
            workspace: if self.over_grid { workspace } else { 0 },
            k_splits: self.k_splits(problem) as i32,
            padding: 0,
        };
        let (tiles, size) = (self.tiles(problem), self.cluster_size());
        let fitting = u64::from(self.clusters_at_once(self.ctas_per_sm(types), multiprocessors));
        // A split tile has a cluster for itself, or one for each part; others are taken in turn by as many clusters as run at once.
        let clusters = match self.split {
            1 => tiles.min(fitting),
            _ if self.over_grid => tiles * u64::from(self.k_splits(problem)),
            _ => tiles,
        };
        let out_map = stored_by_copy_engine.then_some(out_map);
        let (b, [slice, shorter], b_along_k) =
            (map(1), self.slices(1), sides[1].packed || self.k_major()[1]);
        Launch {
            grid: clusters as u32 * size,
            block: self.threads(),
            cluster: size,
            shared_bytes: self.shared_bytes(types),
            // Its CTAs lie where they should if no others are there.
            overlapping: placement.is_none(),
            params: Params::Sm90(Sm90Params {
                maps: [(!self.loads_by_threads()).then(|| map(0)), Some(b), out_map],
                scalars,
                b_shorter: (shorter < slice && b_along_k).then(|| {
                    let [k, _, batch] = b.box_extents;
                    TensorMap { box_extents: [k, shorter, batch], ..b }
                }),
            }),
            pack: pack.map(Box::new),
        }
    }
}

/// A stride in bytes. A dimension of extent 1 has none; the copy engine asks for a multiple of 16 there too.
fn step_bytes(step: i64, dtype: DType) -> u64 {
    if step == 0 { 16 } else { (step * dtype.bytes()) as u64 }
}
