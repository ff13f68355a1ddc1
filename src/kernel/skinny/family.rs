use super::config::{Method, Skinny};
use super::cost;
use crate::epilogue::{BlockScale, Joint, Scaling};
use crate::kernel::cost::chips::Target;
use crate::kernel::cost::query::{CostQuery, Estimate};
use crate::kernel::demand::Demand;
use crate::kernel::description::{Description, Value};
use crate::kernel::family::{Facts, Family, LaunchInput};
use crate::kernel::frame::Frame;
use crate::kernel::joint::check_joint;
use crate::kernel::launch::{Launch, Params, overlap_pays};
use crate::kernel::layout::{Layout, Major};
use crate::kernel::limits::check_count;
use crate::kernel::name::append;
use crate::kernel::operation::{Groups, Operation};
use crate::kernel::params::{GemmParams, JointGemmParams};
use crate::kernel::program::{ProgramParts, joint_arguments, name_of_gemm, orders};
use crate::kernel::reduction::Partials;
use crate::kernel::types::{ProductClass, Types};
use crate::kernel::unsupported::Unsupported;
use crate::operand::DType;
use crate::problem::{GemmProblem, Problem};

impl Family for Skinny {
    fn space() -> impl Iterator<Item = (Types, Skinny)> {
        let of = |types| Skinny::configs(types).into_iter().map(move |config| (types, config));
        Types::gemm().into_iter().flat_map(of)
    }

    fn leading_place(&self) -> Option<usize> {
        self.is_leading().then_some(0)
    }

    fn facts(&self, types: Types) -> Facts {
        let [a, b] = [self.a, self.b].map(|order| Demand::aligned(order, self.align));
        Facts {
            // A split needs clusters, which Hopper introduced.
            min_cc: if self.split > 1 { 90 } else { 80 },
            shared_bytes: self.shared_bytes(types),
            ctas_per_sm: self.ctas_per_sm(types, &Target::H100),
            demands: [a, b, Demand::NONE],
            has_twin: true,
            scales_twin: false,
            ..Facts::new("skinny", Operation::Gemm, Skinny::THREADS)
        }
    }

    fn append_to(&self, _types: Types, frame: Frame, name: &mut String) {
        let Layout { a, b, .. } = frame.layout(Layout { a: self.a, b: self.b, out: Major::Row });
        let [narrow, _] = frame.pair(["m", "n"]);
        let [m, n, k] = frame.extents(self.tile());
        let Skinny { warps_n, stages, split, .. } = *self;
        append!(name, a, b, "_", narrow, "_", m, "x", n, "x", k, "_");
        append!(name, warps_n, "x", Skinny::WARPS / warps_n, "warps_", stages, "stages");
        if split > 1 {
            append!(name, "_split", split);
        }
        append!(name, "_align", self.align);
    }

    fn describe(&self, _types: Types) -> Option<Description> {
        let warps_n = self.warps_n;
        Some(Description::new(
            "SkinnyDesignMetadata",
            [
                Value::Extents(self.tile()),
                Value::Extents([1, 1, self.split]),
                Value::Extents([1, warps_n, Skinny::WARPS / warps_n]),
                Value::Count(self.stages),
                Value::Count(self.align),
                Value::Dimension(0),
            ],
        ))
    }

    /// The program multiplies weights by scales of their rows: codes of 4 bits in groups of 16 and
    /// more, bytes in groups that fill its steps of 64. Kernels of 16 rows and one stage have no
    /// registers left for zero points of float16.
    fn takes_scaling(&self, types: Types, scaling: &Scaling) -> bool {
        let [group, block] = if types.b.is_whole() { [64, 64] } else { [16, u32::MAX] };
        let fits = |of: BlockScale| {
            let shares = of.extent == 1 || of.extent.is_multiple_of(block);
            let is_light = of.zero.is_none() || types.a == DType::Bf16;
            let has_registers = is_light || self.rows == 8 || self.stages > 1;
            shares && has_registers && of.depth.is_multiple_of(group) && !of.is_swizzled
        };
        types.b.is_widened() && scaling.a.is_none() && scaling.b.is_some_and(fits)
    }

    /// 16-bit weights as the wide operand. The tile's columns lie in one matrix.
    fn check_joint(&self, types: Types, joint: &Joint, at: usize) -> Result<(), Unsupported> {
        let [tile, _] = self.tile;
        match at == 1 && self.b == Major::Column && types.class() == ProductClass::Half {
            true => check_joint(joint, tile, self.align),
            false => Err(Unsupported::NoPanels),
        }
    }

    fn check_extents(
        &self,
        types: Types,
        problem: &Problem,
        _is_fused: bool,
    ) -> Result<(), Unsupported> {
        let Problem::Gemm(problem) = problem else { return Ok(()) };
        check_count("M * N * L, in tiles,", self.ctas(problem))?;
        if types.class() != ProductClass::Mixed {
            return Ok(());
        }
        // The program has the bytes of eight rows in 32 bits: a stride in elements times bits.
        let of_rows = |dtype: DType, extent: i64, stride: i64| match extent {
            2.. => stride.unsigned_abs().saturating_mul(dtype.bits().into()),
            _ => 0,
        };
        let [a, b] = [&problem.a, &problem.b];
        let a = of_rows(types.a, a.shape[1], a.stride[1]);
        let b = of_rows(types.b, b.shape[2], b.stride[2]);
        check_count("8 rows of A or columns of B, in bytes,", a.max(b))
    }

    /// Refuses an M above `rows`: the program would read the wide operand once for each block of as
    /// many rows.
    fn check_range(&self, problem: &Problem) -> Result<(), Unsupported> {
        let Problem::Gemm(problem) = problem else { return Ok(()) };
        let (dimension, extent, limit) = ("M", problem.m(), i64::from(self.rows));
        match extent > limit {
            true => Err(Unsupported::TooMany { dimension, extent, limit }),
            false => Ok(()),
        }
    }

    fn partials(&self, _types: Types, problem: &GemmProblem) -> Partials {
        Partials::per_call(problem, Skinny::COLUMNS_OF_CALL)
    }

    fn launch(&self, request: &LaunchInput) -> Option<Launch> {
        request.gemm(|problem, _groups| {
            let (types, target) = (request.types, request.target);
            let ctas_per_sm = self.ctas_per_sm(types, &Target::H100);
            let ctas = match self.is_persistent(types) {
                true => {
                    let multiprocessors = problem.multiprocessors(target.multiprocessors);
                    let slots = multiprocessors * self.ctas_per_sm(types, &target);
                    self.ranges(problem, slots).ctas()
                }
                false => self.ctas(problem),
            };
            let params = GemmParams::new(problem, None);
            let params = match self.matrices {
                1 => Params::Gemm(params),
                _ => Params::JointGemm(JointGemmParams::new(params, request.panels)),
            };
            Launch {
                cluster: self.split,
                overlapping: overlap_pays(target, ctas, ctas_per_sm),
                ..Launch::simple(ctas, Skinny::THREADS, self.shared_bytes(types), params)
            }
        })
    }

    fn estimate(&self, types: Types, ctas_per_sm: u32, query: &CostQuery) -> Estimate {
        cost::estimate(self, types, ctas_per_sm, query)
    }

    fn program(&self, types: Types, epilogue: &str) -> Option<ProgramParts> {
        let [a, b] = [types.a, types.b].map(|dtype| dtype.short_name());
        let out = types.out.short_name();
        let [a_k_major, b_k_major] = self.k_major();
        let Skinny { rows, tile: [tile_n, tile_k], warps_n, stages, split, align, .. } = *self;
        let method = match self.method {
            Method::TensorCores => "MMA",
            Method::Fma => "FMA",
        };
        let name = name_of_gemm(Groups::None, types);
        let orders = orders([a_k_major, b_k_major]);
        let splits = if split > 1 { format!("_split{split}") } else { String::new() };
        let name =
            format!("{name}_{orders}_{rows}x{tile_n}x{tile_k}_{stages}stages{splits}_align{align}");
        let (matrices, suffix) = joint_arguments(self.matrices);
        let name = name + &suffix;
        let work = format!(
            "SkinnyGemm<{a}, {b}, {out}, {a_k_major}, {b_k_major}, {rows}, {tile_n}, {tile_k}, \
             {warps_n}, {stages}, {split}, {align}, Method::{method}, {epilogue}{matrices}>"
        );
        let launch = [Skinny::THREADS, self.shared_bytes(types)];
        let parts = ProgramParts::gemm("skinny.cuh", name, work, launch);
        Some(match self.matrices {
            1 => parts,
            _ => parts.with_parameter("JointGemmParams", size_of::<JointGemmParams>()),
        })
    }
}

impl Skinny {
    /// Dynamic shared memory in bytes: the stages, each a tile of A and one of B, or in the same
    /// memory the sums of the warps that share columns, each row padded by four words; then the
    /// partial sums received from the other CTAs of a cluster. Persistent kernels have sums and
    /// stages at the same time.
    fn shared_bytes(&self, types: Types) -> u32 {
        let [n, k] = self.tile;
        let [narrow, wide] = [types.a, types.b];
        let size = narrow.bytes() as u32;
        // Rows of the narrow tile have at least 64 bytes (128 of float32), and every thread copies
        // 16 bytes of the tile.
        let least = match (self.k_major()[0], size) {
            (true, _) => 8,
            (false, 4) => 32,
            (false, _) => 64 / size,
        };
        let rows = self.rows.max(least).max(Skinny::THREADS * 16 / (k * size));
        let pipeline = self.stages * (rows * size * k + n * k * wide.bits() / 8);
        // Rows of 32 words need no padding against bank conflicts.
        let padding = if self.is_persistent(types) && n.is_multiple_of(32) { 0 } else { 4 };
        let sums = Skinny::WARPS / self.warps_n * self.rows * (n + padding) * 4;
        let received = if self.split > 1 { self.rows * n * 4 } else { 0 };
        match self.is_persistent(types) {
            true => pipeline + sums,
            false => pipeline.max(sums) + received,
        }
    }

    /// CTAs that an SM holds, limited by shared memory and by the registers that NVRTC allocates.
    fn ctas_per_sm(&self, types: Types, target: &Target) -> u32 {
        let by_registers = match (self.align >= 4, self.rows, self.tile[0]) {
            _ if types.a != types.b => 2,
            (true, ..) => 3,
            (false, 17.., _) => 1,
            (false, _, 33..) => 2,
            _ => 3,
        };
        (target.shared_bytes_per_cta / (self.shared_bytes(types) + 1024)).clamp(1, by_registers)
    }
}
