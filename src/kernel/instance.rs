//! One kernel: element types, configuration and fused epilogue.

use std::ops::Deref;

use arrayvec::ArrayVec;

use super::cost::chips::{Target, ctas_per_sm, max_shared_bytes_per_cta, min_shared_bytes_per_cta};
use super::cost::query::{CostQuery, Estimate};
use super::demand::Demand;
use super::design::Design;
use super::family::{Family, LaunchInput};
use super::fusion::Fusion;
use super::launch::{Addresses, Launch};
use super::limits::check_limits;
use super::name::append;
use super::operation::Operation;
use super::reduction::{Partials, Reduce};
use super::tensor_map::TensorMap;
use super::types::Types;
use super::unsupported::Unsupported;
use crate::epilogue::{BoundEpilogue, Epilogue, Joint, Prologue, Reduction};
use crate::operand::{DeviceId, View};
use crate::problem::{GemmProblem, Problem, activation_bytes};

/// A kernel. Its name, metadata, source and cache key derive from this value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    pub types: Types,
    pub design: Design,
    /// None for a kernel that stores its sums unchanged, such as all kernels of [`super::all`].
    pub epilogue: Option<&'static Epilogue>,
}

/// A kernel has the methods of its family that take no element types, such as `is_transposed`.
impl Deref for Kernel {
    type Target = dyn Family;

    #[inline]
    fn deref(&self) -> &Self::Target {
        self.design.family()
    }
}

impl Kernel {
    /// A unique name: family, operation, types `A x B _ accumulator _ out`, then the configuration.
    pub fn name(&self) -> String {
        // Longer than most names.
        let mut text = String::with_capacity(96);
        let name = &mut text;
        let family = self.design.family();
        let Types { a, b, accumulator, out } = self.types;
        append!(name, family.name_prefix(), "_", family.operation().name(), "_");
        append!(name, a, "x", b, "_", accumulator, "_", out);
        if family.runs_on_gpu() {
            append!(name, "_");
        }
        family.append_to(self.types, name);
        if let Some(epilogue) = self.epilogue {
            let of = if epilogue.prologue.is_some() { "_prologue_" } else { "_epilogue_" };
            append!(name, of, epilogue.digest().as_str());
        }
        text
    }

    /// The prologue that a row kernel in front of this kernel computes.
    pub fn prologue(&self) -> Option<&'static Prologue> {
        self.epilogue.and_then(|epilogue| epilogue.prologue.as_ref())
    }

    /// The epilogue that the program of this kernel contains; `None` if there is only a prologue.
    #[inline(always)] // in the ranking of every kernel
    pub(super) fn fused_epilogue(&self) -> Option<&'static Epilogue> {
        self.epilogue.filter(|epilogue| !epilogue.is_prologue_only())
    }

    /// Checks that the kernel is offered with an epilogue.
    pub fn check_fusion(&self, problem: &Problem, fusion: Fusion<'_>) -> Result<(), Unsupported> {
        let family = self.design.family();
        match fusion {
            Fusion::Nothing => Ok(()),
            Fusion::Dual if !family.serves_dual(self.types) => Err(Unsupported::NoProducts),
            Fusion::Joint(joint) if !joint.is_plain && !family.takes_epilogues(self.types) => {
                Err(Unsupported::NoEpilogues)
            }
            Fusion::Joint(joint) => family.check_joint(self.types, &joint),
            Fusion::Epilogue { .. } | Fusion::Scaled(_) if !family.takes_epilogues(self.types) => {
                Err(Unsupported::NoEpilogues)
            }
            Fusion::Scaled(scaling) if !family.takes_scaling(self.types, scaling) => {
                Err(Unsupported::NoScales)
            }
            // Without products, the sums are 0, also if a scale is infinite.
            Fusion::Scaled(scaling)
                if problem.views()[0].shape[2] == 0 && family.scales_sums(self.types, scaling) =>
            {
                Err(Unsupported::Shallow { k: 0, least: 1 })
            }
            Fusion::Epilogue { .. } | Fusion::Scaled(_) | Fusion::Dual => Ok(()),
        }
    }

    /// The kernel as its program computes with epilogues of this kind.
    pub(super) fn with(&self, fusion: Fusion<'_>) -> Kernel {
        match fusion {
            Fusion::Dual => Kernel { design: self.design.dual(), ..*self },
            Fusion::Joint(joint) => Kernel { design: self.design.joint(joint.matrices), ..*self },
            _ => *self,
        }
    }

    /// Checks that this kernel fuses the epilogue requested for a problem, or none if none is
    /// requested.
    pub fn fuses(
        &self,
        problem: &Problem,
        requested: Option<&BoundEpilogue>,
    ) -> Result<(), Unsupported> {
        match (self.epilogue, requested) {
            (None, None) => Ok(()),
            (Some(fused), Some(requested)) if fused.serves(requested) => match requested.factor() {
                Some((name, factor)) => self.check_factor(name, factor, problem),
                None => {
                    self.check_panels(requested)?;
                    self.check_fusion(problem, Some(fused).into())
                }
            },
            (None, Some(requested)) => {
                Err(Unsupported::FusesNone { requested: requested.epilogue.to_string() })
            }
            (Some(fused), requested) => Err(Unsupported::Epilogue {
                fused: fused.to_string(),
                requested: requested
                    .map_or("none".to_owned(), |requested| requested.epilogue.to_string()),
            }),
        }
    }

    /// Checks the address of a dual GEMM's second matrix B, which has the strides of the first.
    fn check_factor(
        &self,
        name: &'static str,
        factor: &View,
        problem: &Problem,
    ) -> Result<(), Unsupported> {
        if !self.runs_on_gpu() {
            return Ok(());
        }
        let b = problem.views()[1];
        self.demands()[1].check(name, factor)?;
        let (bytes, limit) = (factor.data.abs_diff(b.data), TensorMap::LONGEST_STRIDE);
        if bytes > limit && !factor.fake && !b.fake {
            return Err(Unsupported::MatricesFarApart { name, bytes, limit });
        }
        Ok(())
    }

    /// Checks the addresses and strides of a joint GEMM's further matrices B.
    fn check_panels(&self, requested: &BoundEpilogue) -> Result<(), Unsupported> {
        if !self.runs_on_gpu() {
            return Ok(());
        }
        requested.panels().try_for_each(|(name, view)| self.demands()[1].check(name, view))
    }

    /// [`Family::min_cc`] for the kernel's types.
    pub fn min_cc(&self) -> u32 {
        self.design.family().min_cc(self.types)
    }

    /// Whether a device of this compute capability runs the kernel: the instructions exist, and a
    /// CTA may have the shared memory.
    pub fn runs_on(&self, cc: u32) -> bool {
        match self.is_for_one_cc() {
            true => cc == self.min_cc(),
            false => self.min_cc() <= cc && self.shared_bytes() <= max_shared_bytes_per_cta(cc),
        }
    }

    /// The chips that [`Kernel::runs_on`] accepts, in words.
    pub fn chips(&self) -> String {
        let cc = self.min_cc();
        let (least, kib) = (format!("{}.{}", cc / 10, cc % 10), self.shared_bytes().div_ceil(1024));
        if self.is_for_one_cc() {
            format!("{least} only")
        } else if kib * 1024 > min_shared_bytes_per_cta() {
            format!("{least} and later with {kib} KiB of shared memory a CTA")
        } else {
            format!("{least} and later")
        }
    }

    /// Checks that this kernel is offered for a problem.
    pub fn supports(&self, problem: &Problem) -> Result<(), Unsupported> {
        self.check(problem, Kernel::check_range_and_extents)?;
        self.check_precision(problem)?;
        self.types.match_accumulator(problem)
    }

    /// Checks that the problem permits the precision of this kernel's sums.
    pub(super) fn check_precision(&self, problem: &Problem) -> Result<(), Unsupported> {
        match self.sums_fast() && !problem.options().fast_sums {
            true => Err(Unsupported::FastSums),
            false => Ok(()),
        }
    }

    /// Checks that this kernel computes a problem; otherwise, a launch would fail on the device,
    /// corrupt memory or leave part of the output unwritten. Not checked: the accumulator type and
    /// [`Kernel::check_precision`], which affect values only, and [`Family::check_range`], which
    /// affects the time only.
    pub fn check_addresses(&self, problem: &Problem) -> Result<(), Unsupported> {
        self.check(problem, Kernel::check_extents)
    }

    /// Checks operation, types and device, then the extents by `check_extents`, then the operands.
    fn check(
        &self,
        problem: &Problem,
        check_extents: impl Fn(&Kernel, &Problem) -> Result<(), Unsupported>,
    ) -> Result<(), Unsupported> {
        let (computes, requested) = (self.operation(), Operation::of(problem));
        if computes != requested {
            let (computes, requested) = (computes.name(), requested.name());
            return Err(Unsupported::Operation { computes, requested });
        }
        self.types.match_operands(problem)?;
        let out = problem.out();
        let (fits, expected) = match out.device {
            DeviceId::Cpu => (!self.runs_on_gpu(), "a CUDA device"),
            DeviceId::Cuda(_) => (self.runs_on_gpu(), "the CPU"),
        };
        if !fits {
            return Err(Unsupported::Device { name: "out", device: out.device, expected });
        }
        check_limits(problem)?;
        match problem.joined() {
            None => check_extents(self, problem)?,
            Some(joined) => check_extents(self, &joined)?,
        }
        if let Problem::Gemm(gemm) = problem {
            self.packed_bytes(gemm)?;
        }
        let views = problem.views();
        for ((name, view), demand) in ["A", "B", "out"].into_iter().zip(views).zip(self.demands()) {
            demand.check(name, view)?;
        }
        Ok(())
    }

    /// Requirements on the memory layout of A, B and out.
    pub fn demands(&self) -> [Demand; 3] {
        self.design.family().demands(self.types)
    }

    fn check_extents(&self, problem: &Problem) -> Result<(), Unsupported> {
        if let Problem::GroupedGemm(grouped) = problem
            && grouped.gathers()
            && !self.design.family().gathers(self.types)
        {
            return Err(Unsupported::NoIndex);
        }
        self.design.family().check_extents(self.types, problem, self.fused_epilogue().is_some())
    }

    /// Checks [`Family::check_range`], which refuses more problems, then [`Family::check_extents`].
    pub(super) fn check_range_and_extents(&self, problem: &Problem) -> Result<(), Unsupported> {
        self.check_range(problem)?;
        self.check_extents(problem)
    }

    /// CTAs that an SM holds at once, computed from what ptxas reports: registers of a thread, and
    /// static shared memory.
    pub fn occupancy(&self, cc: u32, registers: u32, static_shared_bytes: u32) -> u32 {
        let shared_bytes = static_shared_bytes + self.shared_bytes();
        ctas_per_sm(cc, self.threads(), registers, shared_bytes)
    }

    /// CTAs that an SM holds at once, an input of the cost model.
    pub(super) fn ctas_per_sm(&self) -> u32 {
        self.design.family().ctas_per_sm(self.types)
    }

    /// The estimated cost of a problem that this kernel addresses; [`Estimate::UNKNOWN`] if no
    /// model covers the kernel.
    pub fn estimate(&self, problem: &Problem, target: Target) -> Estimate {
        self.estimate_fused(problem, target, self.epilogue.into())
    }

    /// As [`Kernel::estimate`], for this kernel with an epilogue of this kind.
    pub(super) fn estimate_fused(
        &self,
        problem: &Problem,
        target: Target,
        fusion: Fusion<'_>,
    ) -> Estimate {
        let joined = problem.joined();
        let problem = joined.as_ref().unwrap_or(problem).mean_product();
        let Some(problem) = problem else { return Estimate::UNKNOWN };
        let packed_bytes = self.packed_bytes(&problem).unwrap_or_default();
        let query = CostQuery::new(&problem, target, fusion.takes_time(self.types), packed_bytes);
        let kernel = self.with(fusion);
        kernel.design.family().estimate(self.types, kernel.ctas_per_sm(), &query)
    }

    /// The estimated seconds; infinite if no model covers the kernel.
    pub fn seconds(&self, problem: &Problem, target: Target) -> f64 {
        self.estimate(problem, target).total_seconds
    }

    /// Dynamic shared memory of a launch, in bytes.
    pub fn shared_bytes(&self) -> u32 {
        self.design.family().shared_bytes(self.types)
    }

    /// The launch of this kernel for a problem; `None` if the output is empty or the kernel runs on
    /// the CPU. `workspace`: the address of [`Kernel::workspace_bytes`] bytes.
    /// `epilogue`: what the kernel fuses, with its operands.
    pub fn launch(
        &self,
        problem: &Problem,
        target: Target,
        workspace: u64,
        epilogue: Option<&BoundEpilogue>,
    ) -> Option<Launch> {
        if problem.out().numel() == 0 {
            return None;
        }
        let (types, is_fused) = (self.types, self.fused_epilogue().is_some());
        let factor = epilogue.and_then(|bound| bound.factor()).map(|(_, view)| view);
        let panels: ArrayVec<&View, { Joint::MOST }> =
            epilogue.into_iter().flat_map(|bound| bound.panels()).map(|(_, view)| view).collect();
        let joined = problem.joined();
        let problem = joined.as_ref().unwrap_or(problem);
        let panels = panels.as_slice();
        let request = LaunchInput { types, problem, is_fused, target, workspace, factor, panels };
        self.design.family().launch(&request)
    }

    /// The addresses of the program's A, B and output, of the offsets of groups (0 without groups),
    /// and of the index of A's rows (0 without one). Only these values in a launch depend on the
    /// operands' addresses.
    pub fn addresses_in(&self, problem: &Problem) -> Addresses {
        let views = problem.views();
        let mut addresses = [0, 1, 2, 3, 4].map(|at: usize| views.get(at).map_or(0, |of| of.data));
        if self.is_crossed() {
            addresses.swap(0, 1);
        }
        addresses
    }

    /// Whether a launch may need workspace.
    pub fn takes_workspace(&self) -> bool {
        self.design.family().takes_workspace()
            || !self.reductions().is_empty()
            || self.prologue().is_some()
    }

    /// Bytes of workspace that a launch needs: for the activations of a prologue, for packed
    /// operands or partial sums of K, then for partial results of reductions.
    pub fn workspace_bytes(&self, problem: &Problem) -> u64 {
        let Problem::Gemm(gemm) = problem else { return 0 };
        if let Some(prologue) = self.prologue() {
            let product = gemm.of_activations(prologue);
            return match self.runs_on_gpu() && gemm.out.numel() > 0 {
                true => activation_bytes(gemm, prologue) + self.product_workspace_bytes(&product),
                false => 0,
            };
        }
        self.product_workspace_bytes(gemm)
    }

    /// Bytes of workspace behind the activations of a prologue.
    fn product_workspace_bytes(&self, gemm: &GemmProblem) -> u64 {
        let reductions = self.reductions();
        let partial = if reductions.is_empty() {
            0
        } else {
            Reduce::bytes(&reductions, &self.partials(gemm), gemm.batch())
        };
        self.main_workspace_bytes(gemm) + partial
    }

    fn main_workspace_bytes(&self, problem: &GemmProblem) -> u64 {
        match (problem.out.numel(), problem.further_columns) {
            (0, _) => 0,
            (_, 0) => self.design.family().workspace_bytes(problem),
            _ => self.design.family().workspace_bytes(&problem.joined()),
        }
    }

    /// The reductions of this kernel's epilogue that a second launch finishes, in the program's
    /// frame.
    pub fn reductions(&self) -> Vec<Reduction> {
        match self.epilogue {
            Some(epilogue) if self.stores_partials() => {
                epilogue.reductions(self.types.accumulator, self.is_transposed())
            }
            _ => Vec::new(),
        }
    }

    /// The partial results that a launch on this problem stores.
    fn partials(&self, problem: &GemmProblem) -> Partials {
        self.design.family().partials(self.types, &self.framed(problem))
    }

    /// The second step of an epilogue's reductions; `None` without reductions.
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
        let workspace = workspace + self.main_workspace_bytes(problem);
        Some(Reduce::new(
            &reductions,
            bound,
            &self.framed(problem),
            &self.partials(problem),
            self.is_transposed(),
            workspace,
        ))
    }
}
