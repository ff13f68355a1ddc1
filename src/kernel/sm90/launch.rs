//! Launch parameters: packing, tensor maps, workspace, the grid.

use super::config::{ROW_BYTES, Side, Sm90};
use super::params::{Sm90Params, Sm90Scalars};
use super::placement::Placement;
use crate::epilogue::Joint;
use crate::kernel::launch::{Launch, Params};
use crate::kernel::limits::check_count;
use crate::kernel::operation::Groups;
use crate::kernel::pack::{self, Pack};
use crate::kernel::params::{GroupOffsets, starts};
use crate::kernel::tensor_map::TensorMap;
use crate::kernel::types::Types;
use crate::kernel::unsupported::Unsupported;
use crate::operand::View;
use crate::problem::{GemmProblem, GroupedGemmProblem};

impl Sm90 {
    /// The launch that packs operands into the workspace at this address, if any is packed.
    fn pack(&self, problem: &GemmProblem, workspace: u64) -> Option<Pack> {
        let sides = self.sides(problem);
        if !sides.iter().any(|side| side.packed) {
            return None;
        }
        let mut at = workspace;
        let operands = sides.map(|side| {
            side.packed.then(|| {
                let operand = pack::PackedOperand::new(side.view, side.rows, side.k, at);
                at += operand.bytes();
                operand
            })
        });
        Some(Pack::new(operands))
    }

    /// Bytes of the packed operands.
    ///
    /// # Errors
    /// If a 32-bit count of `kernels/pack.cuh` overflows.
    pub fn packed_bytes(&self, problem: &GemmProblem) -> Result<u64, Unsupported> {
        let Some(pack) = self.pack(problem, 0) else { return Ok(0) };
        check_count("M * N * L or K, as tiles and bytes,", pack.largest_count())?;
        Ok(pack.bytes())
    }

    /// Bytes of workspace: for the packed operands, or for the partial sums of a grid split.
    pub fn workspace_bytes(&self, problem: &GemmProblem) -> u64 {
        match self.over_grid {
            true => self.split_workspace_bytes(problem),
            false => self.pack(problem, 0).map_or(0, |pack| pack.bytes()),
        }
    }

    /// The launch of the kernel for a `doubled` problem. `groups`: what it stands for. `factor`:
    /// the second matrix B of a dual GEMM. `panels`: the further ones of a joint GEMM. `placement`:
    /// the tile order of a grid that starts on an empty chip.
    #[allow(clippy::too_many_arguments)]
    pub fn launch(
        &self,
        types: Types,
        problem: &GemmProblem,
        groups: Option<&GroupedGemmProblem>,
        factor: Option<&View>,
        panels: &[View],
        placement: Option<&Placement>,
        multiprocessors: u32,
        workspace: u64,
    ) -> Launch {
        let pack = self.pack(problem, workspace);
        let sides = self.sides(problem);
        let k_block = self.k_block(types);
        let joined = self.side_of(self.joined.into());
        // The first matrix of a joint GEMM, whose problem has the rows or columns of all.
        let Side { view: all, rows: dim, .. } = sides[joined];
        let mut first = *all;
        first.shape[dim] -= panels.iter().map(|view| view.shape[dim]).sum::<i64>();
        let map_of = |at: usize, view: &View| {
            let side = &sides[at];
            let (sharers, row) = (self.cluster[1 - at], self.row_bytes(at));
            let view = pack.as_ref().and_then(|pack| pack.view(at)).unwrap_or(*view);
            // The packed view has the dimensions of the original.
            let k_major = side.packed || self.k_major()[at];
            let (inner, outer) = if k_major { (side.k, side.rows) } else { (side.rows, side.k) };
            let batches = if view.stride[0] == 0 { 1 } else { view.shape[0] };
            // L2 promotion to 256 bytes also fetches a K-major row's cache line of the next K
            // block. For a row that begins inside a line, it would fetch four lines instead of two.
            // The row stride decides, not the address, which may change in a prepared launch.
            let whole_lines = stride_bytes(&view, outer).is_multiple_of(u64::from(ROW_BYTES));
            let fetches_next_block = k_major && whole_lines;
            // TMA copies bytes where a byte has several elements.
            let packing = view.dtype.packing();
            TensorMap {
                data_type: TensorMap::data_type(view.dtype, true),
                // An operand without elements is never read, but its map needs a device address.
                address: if view.numel() > 0 { view.data } else { problem.out.data & !15 },
                second: if self.dual && at == self.side_of(1) { 16 } else { 0 },
                // Extents of a map are at least 1, even if K is 0.
                extents: [
                    (view.shape[inner] / i64::from(packing)).max(1) as u64,
                    view.shape[outer].max(1) as u64,
                    batches as u64,
                ],
                strides: [outer, 0].map(|dim| stride_bytes(&view, dim)),
                // The contiguous dimension first.
                box_extents: [
                    8 * row / view.dtype.bits() / packing,
                    if k_major { self.box_rows(&sides, at) } else { k_block / sharers },
                    1,
                ],
                swizzle: TensorMap::swizzle(row),
                l2_promotion: if fetches_next_block {
                    TensorMap::PROMOTE_256
                } else {
                    TensorMap::PROMOTE_128
                },
            }
        };
        let map = |at: usize| map_of(at, if at == joined { &first } else { sides[at].view });
        let gathered = groups.filter(|of| of.gathers());
        let by_threads = self.loads_by_threads() || gathered.is_some();
        let mut maps = [(!by_threads).then(|| map(0)), Some(map(1))];
        let mut reversed = false;
        if let (Some(factor), Some(map)) = (factor.filter(|_| self.dual), &mut maps[joined])
            && factor.numel() > 0
        {
            (*map, reversed) = map.with_matrices(problem.b.data, factor.data);
        }
        let (m, n) = (sides[0].view.shape[sides[0].rows], sides[1].view.shape[sides[1].rows]);
        let batched = |at: usize| i32::from(sides[at].view.stride[0] != 0);
        let out = &problem.out;
        let (power, box_bytes) = self.box_bytes(types);
        let stored_by_copy_engine = !self.swapped && power >= 16 && self.out_is_aligned(types, out);
        let out_map = TensorMap {
            data_type: TensorMap::data_type(types.out, false),
            address: out.data,
            second: 0,
            extents: [out.shape[2] as u64, out.shape[1] as u64, out.shape[0] as u64],
            strides: [1, 0].map(|dim| stride_bytes(out, dim)),
            box_extents: [self.box_n(types), 16, 1],
            swizzle: if box_bytes == power {
                TensorMap::swizzle(box_bytes)
            } else {
                TensorMap::NO_SWIZZLE
            },
            l2_promotion: TensorMap::PROMOTE_256,
        };
        let along = |dimension: usize| sides[0].view.stride[dimension];
        let scalars = Sm90Scalars {
            out: out.data,
            out_stride: out.stride,
            m: m as i32,
            n: n as i32,
            k: problem.k() as i32,
            batch: problem.b.shape[0] as i32,
            batched: [batched(0), batched(1)],
            out_by_tma: i32::from(stored_by_copy_engine),
            band: placement
                .map_or_else(|| self.band(&self.grid(problem)), |placement| placement.band)
                as i32,
            boxes: [
                gathered.map_or_else(|| self.box_rows(&sides, 0) as i32, |of| of.a.shape[1] as i32),
                self.box_rows(&sides, 1) as i32,
            ],
            offsets: GroupOffsets::new(groups.map(|of| &of.offsets)),
            a: if by_threads { sides[0].view.data } else { 0 },
            a_stride: [gathered.map_or(along(0), |of| of.index.stride[2]), along(sides[0].rows)],
            workspace_or_index: match gathered {
                Some(of) => of.index.data,
                None if self.over_grid => workspace,
                None => 0,
            },
            splits_or_stacked: match (self.groups, out.stride[0]) {
                (Groups::AlongM, 0) => -1,
                // Masked: the output has a matrix for each group.
                (Groups::AlongM, _) => 0,
                _ => self.k_splits(problem) as i32,
            },
            reversed: i32::from(reversed),
        };
        let (tiles, size) = (self.tiles(problem), self.cluster_size());
        let active_clusters =
            u64::from(self.clusters_at_once(self.ctas_per_sm(types), multiprocessors));
        // Without a split, persistent clusters, as many as run at once, take all tiles. A grid
        // split has a cluster for each tile and slice of K, a cluster split one for each tile.
        let clusters = match self.split {
            1 => tiles.min(active_clusters),
            _ if self.over_grid => tiles * u64::from(self.k_splits(problem)),
            _ => tiles,
        };
        let mut further = [None; Joint::MOST - 1];
        let of_panels = panels.iter().zip(starts(all.shape[dim], panels, dim));
        for (panel, (view, start)) in further.iter_mut().zip(of_panels) {
            *panel = Some((map_of(joined, view), start as i32));
        }
        let out_map = stored_by_copy_engine.then_some(out_map);
        let ([slice, shorter], b_along_k) = (self.slices(1), sides[1].packed || self.k_major()[1]);
        Launch {
            grid: clusters as u32 * size,
            block: self.threads(),
            cluster: size,
            shared_bytes: self.shared_bytes(types),
            // The hardware places CTAs GPC by GPC only if no other grid runs.
            overlapping: placement.is_none(),
            params: Params::Sm90(Sm90Params {
                maps: [maps[0], maps[1], out_map],
                scalars,
                panels: further,
                b_shorter: maps[1].filter(|_| shorter < slice && b_along_k).map(|b| {
                    let [k, _, batch] = b.box_extents;
                    TensorMap { box_extents: [k, shorter, batch], ..b }
                }),
            }),
            pack: pack.map(Box::new),
        }
    }
}

/// A stride in bytes for a tensor map, which requires positive multiples of 16. Stride 0 belongs to
/// a dimension of extent 1 in the map, so 16 replaces it.
fn stride_bytes(view: &View, dim: usize) -> u64 {
    match view.byte_stride(dim) {
        0 => 16,
        bytes => bytes as u64,
    }
}
