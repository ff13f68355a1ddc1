//! The kernels as values: what each computes, what it demands of its operands, how it is launched. Pure: no Python, no
//! compiler, no driver; every decision here is tested without a GPU.

mod cost;
mod demand;
mod elementwise;
mod hopper;
mod launch;
mod layout;
mod name;
mod pack;
mod reduce;
mod simt;
mod skinny;
mod sm80;
mod sm90;
mod space;
mod types;

pub use cost::Target;
pub use demand::Demand;
pub use elementwise::{Elementwise, ElementwiseParams};
pub use launch::{GemmParams, GroupOffsets, Launch, Params, Sm90Scalars, TensorMap};
pub use layout::{Layout, Major};
pub use pack::{Pack, PackOperand};
pub use reduce::{Reduce, ReduceOperand};
pub use simt::Simt;
pub use skinny::{Method, Narrow, Skinny};
pub use sm80::Sm80;
pub use sm90::{Schedule, Sm90};
pub use space::{all, at, fused, ranked};
pub use types::Types;

use thiserror::Error;

use self::cost::{CostQuery, ctas_per_sm};
use self::name::append;
use self::reduce::Partials;
use crate::epilogue::{BoundEpilogue, Epilogue, Reduction};
use crate::operand::{DType, Device};
use crate::problem::{GemmProblem, Problem};

/// One kernel: the element types that it works on, its design, and the epilogue that it computes behind the sums. Name,
/// metadata, source and cache key derive from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    pub types: Types,
    pub design: Design,
    /// None where sums are stored as they are, as by all kernels of [`all`].
    pub epilogue: Option<&'static Epilogue>,
}

/// The family that a kernel belongs to, with its point in that family's space of configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Design {
    /// Computed by the CPU, by the reference backend.
    Reference(Operation),
    Simt(Simt),
    Skinny(Skinny),
    Sm80(Sm80),
    Sm90(Sm90),
    Elementwise(Elementwise),
}

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Gemm,
    GroupedGemm,
    Elementwise,
}

/// Why a kernel does not serve a problem.
#[derive(Debug, Error, PartialEq)]
pub enum Unsupported {
    #[error("it computes a {computes}, not a {asked}")]
    Operation { computes: &'static str, asked: &'static str },
    #[error("{name} has dtype {actual}, the kernel works on {expected}")]
    DType { name: &'static str, actual: DType, expected: DType },
    #[error("{name} is on {device}, the kernel runs on {expected}")]
    Device { name: &'static str, device: Device, expected: &'static str },
    #[error("{name} with shape {shape:?} and strides {stride:?} is not {expected}")]
    Layout { name: &'static str, shape: Vec<i64>, stride: Vec<i64>, expected: &'static str },
    #[error(
        "{name} is aligned to {actual} bytes (address {address:#x}, strides {stride:?}), the kernel reads {expected} at a time"
    )]
    Alignment { name: &'static str, address: u64, stride: Vec<i64>, actual: i64, expected: i64 },
    #[error("dimension {dimension} is {extent}; kernels index up to {limit}")]
    Extent { dimension: &'static str, extent: i64, limit: i64 },
    #[error("{dimension} is {extent}, and it is for products where that is at most {limit}")]
    Few { dimension: &'static str, extent: i64, limit: i64 },
    #[error("K is {k}, and it is for products where that is at least {least}")]
    Shallow { k: i64, least: i64 },
    #[error("N is {n}, and it takes multiples of {of} where 16-bit products stay in float32")]
    Uneven { n: i64, of: i64 },
    #[error("the arguments carry an epilogue, {asked}, and it fuses none")]
    FusesNone { asked: String },
    #[error("it fuses the epilogue {fused}, and the arguments carry {asked}")]
    Epilogue { fused: String, asked: String },
    #[error("offsets has {offsets} entries for {groups} groups; give the end row of each group")]
    Offsets { offsets: i64, groups: i64 },
}

impl Operation {
    fn of(problem: &Problem) -> Operation {
        match problem {
            Problem::Gemm(_) => Operation::Gemm,
            Problem::GroupedGemm(_) => Operation::GroupedGemm,
            Problem::Elementwise(_) => Operation::Elementwise,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Operation::Gemm => "gemm",
            Operation::GroupedGemm => "grouped_gemm",
            Operation::Elementwise => "elementwise_add",
        }
    }
}

impl Kernel {
    /// A name that no other kernel has: family, operation, types `A x B _ accumulator _ out`, then the configuration.
    pub fn name(&self) -> String {
        // Most are shorter.
        let mut text = String::with_capacity(96);
        let name = &mut text;
        let family = match &self.design {
            Design::Reference(_) => "reference_",
            Design::Simt(_) | Design::Elementwise(_) => "simt_",
            Design::Skinny(_) => "skinny_",
            Design::Sm80(_) => "sm80_",
            Design::Sm90(_) => "sm90_",
        };
        let Types { a, b, accumulator, out } = self.types;
        append!(name, family, self.operation().name(), "_", a, "x", b, "_", accumulator, "_", out);
        if !matches!(self.design, Design::Reference(_)) {
            append!(name, "_");
        }
        match &self.design {
            Design::Reference(_) => (),
            Design::Simt(config) => config.append_to(name),
            Design::Skinny(config) => config.append_to(name),
            Design::Sm80(config) => config.append_to(name),
            Design::Sm90(config) => config.append_to(self.types, name),
            Design::Elementwise(config) => config.append_to(self.types, name),
        }
        if let Some(epilogue) = self.epilogue {
            append!(name, "_epilogue_", epilogue.digest().as_str());
        }
        text
    }

    /// Whether the program computes the transposed product: most write row-major, and a column-major output is the transposed
    /// product's row-major one; a skinny one has its few on M.
    pub fn is_transposed(&self) -> bool {
        match &self.design {
            Design::Reference(_) | Design::Simt(_) | Design::Elementwise(_) => false,
            Design::Skinny(config) => config.narrow == Narrow::N,
            Design::Sm80(Sm80 { layout, .. }) | Design::Sm90(Sm90 { layout, .. }) => {
                layout.out == Major::Column
            }
        }
    }

    /// Whether this kernel is offered with epilogues.
    pub fn takes_epilogues(&self) -> bool {
        match &self.design {
            Design::Sm90(config) => config.has_room_for_epilogues(self.types),
            _ => true,
        }
    }

    /// Whether what this kernel fuses is what is asked for, and if not, why.
    pub fn fuses(&self, asked: Option<&BoundEpilogue>) -> Result<(), Unsupported> {
        match (self.epilogue, asked) {
            (None, None) => Ok(()),
            (Some(fused), Some(asked)) if fused.serves(asked) => Ok(()),
            (None, Some(asked)) => {
                Err(Unsupported::FusesNone { asked: asked.epilogue.to_string() })
            }
            (Some(fused), asked) => Err(Unsupported::Epilogue {
                fused: fused.to_string(),
                asked: asked.map_or("none".to_owned(), |asked| asked.epilogue.to_string()),
            }),
        }
    }

    /// The least compute capability that runs this kernel, ten times major plus minor; 0 for the CPU's.
    pub fn min_cc(&self) -> u32 {
        match self.design {
            Design::Reference(_) => 0,
            // Clusters came with Hopper.
            Design::Skinny(Skinny { split: 2.., .. }) | Design::Sm90(_) => 90,
            Design::Simt(_) | Design::Skinny(_) | Design::Sm80(_) | Design::Elementwise(_) => 80,
        }
    }

    /// Whether a device of this compute capability runs this kernel. Hopper's instructions exist on no later chip, and not every chip
    /// gives a CTA as much shared memory.
    pub fn runs_on(&self, cc: u32) -> bool {
        match self.design {
            Design::Sm90(_) => cc == 90,
            _ => self.min_cc() <= cc && self.shared_bytes() <= shared_bytes_of_a_cta(cc),
        }
    }

    /// The chips that [`Kernel::runs_on`] is true for, in words.
    pub fn chips(&self) -> String {
        let cc = self.min_cc();
        let (least, kib) = (format!("{}.{}", cc / 10, cc % 10), self.shared_bytes().div_ceil(1024));
        match self.design {
            Design::Sm90(_) => format!("{least} alone"),
            _ if kib * 1024 > shared_bytes_of_a_cta(86) => {
                format!("{least} and later with {kib} KiB of shared memory a CTA")
            }
            _ => format!("{least} and later"),
        }
    }

    pub fn runs_on_gpu(&self) -> bool {
        !matches!(self.design, Design::Reference(_))
    }

    pub fn operation(&self) -> Operation {
        match self.design {
            Design::Reference(operation) => operation,
            Design::Simt(Simt { grouped: true, .. })
            | Design::Sm80(Sm80 { grouped: true, .. })
            | Design::Sm90(Sm90 { grouped: true, .. }) => Operation::GroupedGemm,
            Design::Simt(_) | Design::Skinny(_) | Design::Sm80(_) | Design::Sm90(_) => {
                Operation::Gemm
            }
            Design::Elementwise(_) => Operation::Elementwise,
        }
    }

    /// Whether this kernel computes this problem, and if not, why.
    pub fn supports(&self, problem: &Problem) -> Result<(), Unsupported> {
        self.addresses(problem)?;
        self.types.match_accumulator(problem)
    }

    /// Whether this kernel reads and writes the operands of this problem as they lie in memory: all of `supports` but what
    /// only decides about the values. Where it does not, a launch would be an error of the device, or worse.
    pub fn addresses(&self, problem: &Problem) -> Result<(), Unsupported> {
        let (computes, asked) = (self.operation(), Operation::of(problem));
        if computes != asked {
            return Err(Unsupported::Operation { computes: computes.name(), asked: asked.name() });
        }
        self.types.match_operands(problem)?;
        let out = problem.out();
        let (fits, expected) = match out.device {
            Device::Cpu => (!self.runs_on_gpu(), "a CUDA device"),
            Device::Cuda(_) => (self.runs_on_gpu(), "the CPU"),
        };
        if !fits {
            return Err(Unsupported::Device { name: "out", device: out.device, expected });
        }
        check_limits(problem)?;
        self.check_extents(problem)?;
        if let Problem::Gemm(gemm) = problem {
            self.copies(gemm)?;
        }
        let views = problem.views();
        for ((name, view), demand) in ["A", "B", "out"].into_iter().zip(views).zip(self.demands()) {
            demand.check(name, view)?;
        }
        Ok(())
    }

    /// What this kernel demands of how A, B and out lie in memory.
    pub fn demands(&self) -> [Demand; 3] {
        match &self.design {
            Design::Reference(_) | Design::Simt(_) | Design::Elementwise(_) => [Demand::NONE; 3],
            Design::Skinny(config) => config.demands(),
            Design::Sm80(config) => config.demands(),
            Design::Sm90(config) => config.demands(self.types),
        }
    }

    /// Whether this configuration is for operands of these extents, and counts as far as they ask for.
    fn check_extents(&self, problem: &Problem) -> Result<(), Unsupported> {
        match (&self.design, problem) {
            (Design::Elementwise(config), Problem::Elementwise(sum)) => {
                config.check_extents(sum, self.epilogue.is_none())
            }
            (Design::Skinny(config), Problem::Gemm(gemm)) => config.check_extents(gemm),
            (Design::Sm90(config), Problem::Gemm(gemm)) => config.check_extents(self.types, gemm),
            (Design::Sm90(config), Problem::GroupedGemm(grouped)) => {
                config.check_extents(self.types, &grouped.stacked())
            }
            _ => Ok(()),
        }
    }

    /// Bytes of operands that are copied first, if they can be. The same for all kernels of the same demands.
    fn copies(&self, problem: &GemmProblem) -> Result<u64, Unsupported> {
        match &self.design {
            Design::Sm90(config) => config.copies(problem),
            _ => Ok(0),
        }
    }

    /// Estimated seconds on a problem that this kernel addresses; infinite where no model knows.
    pub fn seconds(&self, problem: &Problem, target: Target) -> f64 {
        let Some(problem) = problem.product() else { return f64::INFINITY };
        let (copied_bytes, fused) =
            (self.copies(&problem).unwrap_or_default(), self.epilogue.is_some());
        CostQuery { problem: &problem, target, fused, copied_bytes }
            .seconds(self, ctas_per_sm(self))
    }

    /// Dynamic shared memory of a launch, in bytes.
    pub fn shared_bytes(&self) -> u32 {
        match &self.design {
            Design::Reference(_) | Design::Simt(_) | Design::Elementwise(_) => 0,
            Design::Skinny(config) => config.shared_bytes(self.types),
            Design::Sm80(config) => config.shared_bytes(self.types),
            Design::Sm90(config) => config.shared_bytes(self.types),
        }
    }

    /// Whether a launch that copies operands comes first.
    pub fn packs(&self) -> bool {
        matches!(&self.design, Design::Sm90(config) if config.packed.contains(&true))
    }

    /// How to launch this kernel on this problem; `None` where there is nothing to compute, or nothing to launch.
    /// `target`: the device. `workspace`: the address of as many bytes as `workspace_bytes` says.
    pub fn launch(&self, problem: &Problem, target: Target, workspace: u64) -> Option<Launch> {
        if problem.out().numel() == 0 {
            return None;
        }
        let stacked;
        let (gemm, offsets) = match problem {
            Problem::Gemm(gemm) => (gemm, None),
            Problem::GroupedGemm(grouped) => {
                stacked = grouped.stacked();
                (&stacked, Some(&grouped.offsets))
            }
            Problem::Elementwise(sum) => {
                return match &self.design {
                    Design::Elementwise(config) => {
                        Some(config.launch(self.types, sum, self.epilogue.is_none()))
                    }
                    _ => None,
                };
            }
        };
        // Without a matrix B there is no group, and no row is any group's.
        if gemm.b.shape[0] == 0 {
            return None;
        }
        match &self.design {
            Design::Reference(_) | Design::Elementwise(_) => None,
            Design::Simt(config) => Some(config.launch(gemm, offsets)),
            Design::Skinny(config) => Some(config.launch(self.types, gemm, target)),
            Design::Sm80(config) => Some(config.launch(self.types, gemm, offsets)),
            Design::Sm90(config) => {
                let (types, multiprocessors) = (self.types, target.multiprocessors);
                let (grid, ctas_per_sm) = (config.grid(gemm), config.ctas_per_sm(types));
                let placed =
                    hopper::placed(config, types, gemm, &grid, ctas_per_sm, multiprocessors);
                let placement = placed.map(|(placement, _)| placement);
                Some(config.launch(types, gemm, offsets, placement, multiprocessors, workspace))
            }
        }
    }

    /// The addresses of the program's A, B and output, and of the offsets of groups (0 where there are none). Operands that only lie
    /// elsewhere change nothing but these in a launch.
    pub fn addresses_in(&self, problem: &Problem) -> [u64; 4] {
        let crossed = match &self.design {
            Design::Sm90(config) => config.crossed(),
            _ => self.is_transposed(),
        };
        let views = problem.views();
        let [a, b, out, offsets] =
            [0, 1, 2, 3].map(|at: usize| views.get(at).map_or(0, |view| view.data));
        if crossed { [b, a, out, offsets] } else { [a, b, out, offsets] }
    }

    /// Whether a launch may need device memory beside its operands.
    pub fn takes_workspace(&self) -> bool {
        let over_grid = matches!(&self.design, Design::Sm90(config) if config.over_grid);
        over_grid || self.packs() || !self.reductions().is_empty()
    }

    /// Bytes of device memory that a launch needs beside its operands: for copies of them or the sums of parts of K, then for partial
    /// results of reductions.
    pub fn workspace_bytes(&self, problem: &Problem) -> u64 {
        let Problem::Gemm(gemm) = problem else { return 0 };
        let reductions = self.reductions();
        let partial = if reductions.is_empty() {
            0
        } else {
            Reduce::bytes(&reductions, &self.partials(gemm), gemm.batch())
        };
        self.main_workspace_bytes(gemm) + partial
    }

    fn main_workspace_bytes(&self, problem: &GemmProblem) -> u64 {
        match &self.design {
            Design::Sm90(config) if problem.out.numel() > 0 => config.workspace_bytes(problem),
            _ => 0,
        }
    }

    /// The reductions among the outputs of this kernel's epilogue, in the program's frame; none for the CPU's, which needs no second
    /// step.
    pub fn reductions(&self) -> Vec<Reduction> {
        match (self.epilogue, &self.design) {
            (None, _) | (_, Design::Reference(_)) => Vec::new(),
            (Some(epilogue), _) => {
                epilogue.reductions(self.types.accumulator, self.is_transposed())
            }
        }
    }

    /// The partial results that a launch on this problem stores.
    fn partials(&self, problem: &GemmProblem) -> Partials {
        let framed = if self.is_transposed() { problem.transposed() } else { *problem };
        match &self.design {
            // One in itself, or a sum, which is not reduced.
            Design::Reference(_) | Design::Elementwise(_) => Partials::per_call(&framed, 1),
            Design::Simt(config) => Partials::per_call(&framed, config.columns_of_call(self.types)),
            Design::Skinny(_) => Partials::per_call(&framed, Skinny::COLUMNS_OF_CALL),
            Design::Sm80(config) => config.program().partials(self.types, &framed),
            Design::Sm90(config) => config.partials(self.types, &framed),
        }
    }

    /// The second step of an epilogue's reductions; None where there are none.
    pub fn reduce(
        &self,
        problem: &Problem,
        bound: &BoundEpilogue,
        workspace: u64,
    ) -> Option<Reduce> {
        let (reductions, Problem::Gemm(problem)) = (self.reductions(), problem) else {
            return None;
        };
        if reductions.is_empty() {
            return None;
        }
        let transposed = self.is_transposed();
        let framed = if transposed { problem.transposed() } else { *problem };
        let workspace = workspace + self.main_workspace_bytes(problem);
        Some(Reduce::new(
            &reductions,
            bound,
            &framed,
            &self.partials(problem),
            transposed,
            workspace,
        ))
    }
}

/// The most shared memory that a CTA may have (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability").
fn shared_bytes_of_a_cta(cc: u32) -> u32 {
    1024 * match cc {
        80 | 87 => 163,
        90..=119 => 227,
        _ => 99,
    }
}

/// What every kernel refuses of a problem. M, N, K and L are 32-bit numbers in a GPU's kernels (offsets are 64-bit), and a grid has one
/// dimension of CTAs.
fn check_limits(problem: &Problem) -> Result<(), Unsupported> {
    // Headroom above the extent for the tiles that overhang the edge.
    const LIMIT: i64 = i32::MAX as i64 - 1024;
    if let Problem::GroupedGemm(grouped) = problem
        && !grouped.offsets_fit()
    {
        return Err(Unsupported::Offsets {
            offsets: grouped.offsets.shape[2],
            groups: grouped.groups(),
        });
    }
    let (Device::Cuda(_), Some(product)) = (problem.device(), problem.product()) else {
        return Ok(());
    };
    let (problem, operation) = (&*product, Operation::of(problem));
    let (batch, grouped) = (problem.b.shape[0], operation == Operation::GroupedGemm);
    let extents = [("M", problem.m()), ("N", problem.n()), ("K", problem.k()), ("L", batch)];
    for (dimension, extent) in extents {
        if extent > LIMIT {
            return Err(Unsupported::Extent { dimension, extent, limit: LIMIT });
        }
    }
    // Tiles of 32 x 32, the smallest that sm80 and simt have. Families with smaller ones look for themselves.
    let (strips, batch) = (i128::from(problem.m() / 32), i128::from(batch));
    let strips = if grouped { strips + batch } else { (strips + 1) * batch };
    let tiles = strips * (i128::from(problem.n() / 32) + 1);
    if tiles > i128::from(i32::MAX) {
        return Err(Unsupported::Extent {
            dimension: "M * N * L / 1024",
            extent: (tiles.min(i64::MAX.into())) as i64,
            limit: i32::MAX.into(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
