//! Launch parameters: packing, tensor maps, workspace, the grid.

use super::config::{ROW_BYTES, Side, Sm90};
use super::params::{Sm90Params, Sm90Scalars};
use super::placement::placed;
use crate::epilogue::Joint;
use crate::kernel::family::LaunchInput;
use crate::kernel::launch::{Launch, Params};
use crate::kernel::limits::check_count;
use crate::kernel::operation::Groups;
use crate::kernel::pack::{self, Pack};
use crate::kernel::params::{GroupOffsets, starts};
use crate::kernel::tensor_map::TensorMap;
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

    /// The launch of the kernel for a `doubled` problem. `groups`: what it stands for.
    pub fn launch(
        &self,
        input: &LaunchInput,
        problem: &GemmProblem,
        groups: Option<&GroupedGemmProblem>,
    ) -> Launch {
        let (types, ctas_per_sm) = (input.types, self.ctas_per_sm(input.types));
        let multiprocessors = problem.multiprocessors(input.target.multiprocessors);
        let grid = self.grid(problem);
        let placed = placed(self, types, problem, &grid, ctas_per_sm, multiprocessors);
        let band = placed.as_ref().map_or_else(|| self.band(&grid), |at| at.placement.band);
        let (sides, pack) = (self.sides(problem), self.pack(problem, input.workspace));
        let gathered = groups.filter(|of| of.gathers());
        let operands = Operands { config: self, input, problem, sides, pack, groups, gathered };
        let params = operands.params(band);
        // Without a split, persistent clusters, as many as run at once, take all tiles. A grid
        // split has a cluster for each tile and slice of K, a cluster split one for each tile.
        let tiles = self.tiles(problem);
        let clusters = match self.split {
            1 => tiles.min(self.clusters_at_once(ctas_per_sm, multiprocessors).into()),
            _ if self.over_grid => tiles * u64::from(self.k_splits(problem)),
            _ => tiles,
        };
        Launch {
            grid: clusters as u32 * self.cluster_size(),
            block: self.threads(),
            cluster: self.cluster_size(),
            shared_bytes: self.shared_bytes(types),
            // The hardware places CTAs GPC by GPC only if no other grid runs.
            overlapping: placed.is_none(),
            params: Params::Sm90(params),
            pack: operands.pack.map(Box::new),
        }
    }
}

/// The operands of a launch.
struct Operands<'a> {
    config: &'a Sm90,
    input: &'a LaunchInput<'a>,
    problem: &'a GemmProblem,
    sides: [Side<'a>; 2],
    pack: Option<Pack>,
    groups: Option<&'a GroupedGemmProblem>,
    /// The grouped GEMM, if an index names its rows of A.
    gathered: Option<&'a GroupedGemmProblem>,
}

impl Operands<'_> {
    /// The parameter of the program. `band`: the tile order.
    fn params(&self, band: u32) -> Sm90Params {
        let (config, LaunchInput { factor, panels, .. }) = (self.config, self.input);
        let joined = config.side_of(config.joined.into());
        let Side { view: all, rows, .. } = self.sides[joined];
        // The first matrix of a joint GEMM, whose problem has the rows or columns of all.
        let mut views = [0, 1].map(|at| *self.sides[at].view);
        views[joined].shape[rows] -= panels.iter().map(|view| view.shape[rows]).sum::<i64>();
        let mut maps = [0, 1].map(|at| self.map(at, &views[at]));
        let mut reversed = false;
        if let Some(factor) = factor.filter(|of| config.dual && of.numel() > 0) {
            (maps[joined], reversed) = maps[joined].with_matrices(self.problem.b.data, factor.data);
        }
        let mut further = [None; Joint::MOST - 1];
        let of_panels = panels.iter().zip(starts(all.shape[rows], panels, rows));
        for (panel, (view, start)) in further.iter_mut().zip(of_panels) {
            *panel = Some((self.map(joined, view), start as i32));
        }
        let [a, b] = maps;
        let ([slice, shorter], [k, _, batch]) = (config.slices(1), b.box_extents);
        let b_shorter = (shorter < slice && self.is_k_major(1))
            .then_some(TensorMap { box_extents: [k, shorter, batch], ..b });
        let by_threads = config.loads_by_threads() || self.gathered.is_some();
        let maps = [(!by_threads).then_some(a), Some(b), self.out_map()];
        let scalars = self.scalars(band, &maps, reversed);
        Sm90Params { maps, scalars, panels: further, b_shorter }
    }

    fn scalars(&self, band: u32, maps: &[Option<TensorMap>; 3], reversed: bool) -> Sm90Scalars {
        let Operands { config, problem, sides, gathered, .. } = self;
        let [a, b] = [0, 1].map(|at| sides[at].view);
        let [a_box, b_box] = [0, 1].map(|at| config.box_rows(sides, at) as i32);
        let batch_stride = gathered.map_or(a.stride[0], |of| of.index.stride[2]);
        let workspace = if config.over_grid { self.input.workspace } else { 0 };
        Sm90Scalars {
            out: problem.out.data,
            out_stride: problem.out.stride,
            m: a.shape[sides[0].rows] as i32,
            n: b.shape[sides[1].rows] as i32,
            k: problem.k() as i32,
            batch: problem.b.shape[0] as i32,
            batched: [a, b].map(|view| i32::from(view.stride[0] != 0)),
            out_by_tma: i32::from(maps[2].is_some()),
            band: band as i32,
            boxes: [gathered.map_or(a_box, |of| of.a.shape[1] as i32), b_box],
            offsets: GroupOffsets::new(self.groups.map(|of| &of.offsets)),
            a: if maps[0].is_none() { a.data } else { 0 },
            a_stride: [batch_stride, a.stride[sides[0].rows]],
            workspace_or_index: gathered.map_or(workspace, |of| of.index.data),
            splits_or_stacked: match (config.groups, problem.out.stride[0]) {
                (Groups::AlongM, 0) => -1,
                // Masked: the output has a matrix for each group.
                (Groups::AlongM, _) => 0,
                _ => config.k_splits(problem) as i32,
            },
            reversed: i32::from(reversed),
        }
    }

    /// Whether the program reads an operand K-major, as packed ones are.
    fn is_k_major(&self, at: usize) -> bool {
        self.sides[at].packed || self.config.k_major()[at]
    }

    /// The map of an operand, or of one matrix of a joint GEMM.
    fn map(&self, at: usize, view: &View) -> TensorMap {
        let Operands { config, sides, .. } = self;
        let (side, k_major) = (&sides[at], self.is_k_major(at));
        let view = self.pack.as_ref().and_then(|pack| pack.view(at)).unwrap_or(*view);
        // The packed view has the dimensions of the original.
        let (inner, outer) = if k_major { (side.k, side.rows) } else { (side.rows, side.k) };
        let batches = if view.stride[0] == 0 { 1 } else { view.shape[0] };
        // L2 promotion to 256 bytes also fetches a K-major row's cache line of the next K block.
        // For a row that begins inside a line, it would fetch four lines instead of two. The row
        // stride decides, not the address, which may change in a prepared launch.
        let whole_lines = stride_bytes(&view, outer).is_multiple_of(u64::from(ROW_BYTES));
        // TMA copies bytes where a byte has several elements.
        let (row, packing) = (config.row_bytes(at), view.dtype.packing());
        let outer_box = match k_major {
            true => config.box_rows(sides, at),
            false => config.k_block(self.input.types) / config.cluster[1 - at],
        };
        TensorMap {
            data_type: TensorMap::data_type(view.dtype, true),
            // An operand without elements is never read, but its map needs a device address.
            address: if view.numel() > 0 { view.data } else { self.problem.out.data & !15 },
            second: if config.dual && at == config.side_of(1) { 16 } else { 0 },
            // Extents of a map are at least 1, even if K is 0.
            extents: [
                (view.shape[inner] / i64::from(packing)).max(1) as u64,
                view.shape[outer].max(1) as u64,
                batches as u64,
            ],
            strides: [outer, 0].map(|dim| stride_bytes(&view, dim)),
            // The contiguous dimension first.
            box_extents: [8 * row / view.dtype.bits() / packing, outer_box, 1],
            swizzle: TensorMap::swizzle(row),
            l2_promotion: TensorMap::l2_promotion(if k_major && whole_lines { 256 } else { 128 }),
        }
    }

    /// The map of the output, if TMA stores it.
    fn out_map(&self) -> Option<TensorMap> {
        let (config, types, out) = (self.config, self.input.types, &self.problem.out);
        let (power, box_bytes) = config.box_bytes(types);
        let by_tma = !config.swapped && power >= 16 && config.out_is_aligned(types, out);
        by_tma.then(|| TensorMap {
            data_type: TensorMap::data_type(types.out, false),
            address: out.data,
            second: 0,
            extents: [out.shape[2] as u64, out.shape[1] as u64, out.shape[0] as u64],
            strides: [1, 0].map(|dim| stride_bytes(out, dim)),
            box_extents: [config.box_n(types), 16, 1],
            swizzle: TensorMap::swizzle(if box_bytes == power { box_bytes } else { 16 }),
            l2_promotion: TensorMap::l2_promotion(256),
        })
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
