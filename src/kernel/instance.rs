//! One kernel: element types, configuration and fused epilogue.

use std::hash::{Hash, Hasher};

use arrayvec::ArrayVec;

use super::cost::chips::{Target, ctas_per_sm, max_shared_bytes_per_cta, min_shared_bytes_per_cta};
use super::cost::query::{CostQuery, Estimate};
use super::demand::Demand;
use super::description::Description;
use super::design::Design;
use super::family::{Facts, LaunchInput};
use super::frame::Frame;
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

/// A kernel: a program, and the frame in which it computes the user's product. Its name, metadata,
/// source and cache key derive from this value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The element types of the user's operands.
    pub types: Types,
    pub design: Design,
    pub frame: Frame,
    /// None for a kernel that stores its sums unchanged, such as all kernels of [`super::all`].
    pub epilogue: Option<&'static Epilogue>,
    /// What the family says of the design. The rest of its value decides it.
    pub facts: Facts,
}

/// The facts follow from the rest.
impl Hash for Kernel {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.types, self.design, self.frame, self.epilogue).hash(state);
    }
}

impl Kernel {
    /// `types`: those of the user's operands.
    pub fn new(
        types: Types,
        design: Design,
        frame: Frame,
        epilogue: Option<&'static Epilogue>,
    ) -> Kernel {
        let facts = design.family().facts(frame.types(types));
        Kernel { types, design, frame, epilogue, facts }
    }

    /// The kernel that computes the transposed product by the same program.
    pub fn twin(&self) -> Kernel {
        Kernel { types: self.types.transposed(), frame: self.frame.other(), ..*self }
    }

    /// The element types of the program's operands.
    pub(super) fn program_types(&self) -> Types {
        self.frame.types(self.types)
    }

    /// A unique name: family, operation, types `A x B _ accumulator _ out`, then the configuration.
    pub fn name(&self) -> String {
        // Longer than most names.
        let mut text = String::with_capacity(96);
        let name = &mut text;
        let Types { a, b, accumulator, out } = self.types;
        append!(name, self.facts.prefix(), "_", self.facts.operation.name(), "_");
        append!(name, a, "x", b, "_", accumulator, "_", out);
        if self.runs_on_gpu() {
            append!(name, "_");
        }
        self.design.family().append_to(self.program_types(), self.frame, name);
        if let Some(epilogue) = self.epilogue {
            let of = if epilogue.prologue.is_some() { "_prologue_" } else { "_epilogue_" };
            append!(name, of, epilogue.digest().as_str());
        }
        text
    }

    /// The design that users see.
    pub fn description(&self) -> Option<Description> {
        let description = self.design.family().describe(self.program_types())?;
        Some(description.in_frame(self.frame))
    }

    pub fn runs_on_gpu(&self) -> bool {
        self.facts.threads > 0
    }

    /// Which operand of the program is the user's B: A (0) or B (1).
    fn side_of_b(&self) -> usize {
        usize::from(!self.frame.is_transposed())
    }

    /// The index of the user's A in [`Kernel::addresses_in`].
    pub fn address_of_a(&self) -> usize {
        usize::from(self.frame.is_transposed() != self.facts.swapped)
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
        let (family, types) = (self.design.family(), self.program_types());
        match fusion {
            Fusion::Nothing => Ok(()),
            Fusion::Dual if self.facts.fuses_dual && !self.frame.is_transposed() => Ok(()),
            Fusion::Dual => Err(Unsupported::NoProducts),
            _ if fusion.is_fused() && !self.facts.fuses => Err(Unsupported::NoEpilogues),
            Fusion::Joint(joint) => family.check_joint(types, &joint, self.side_of_b()),
            Fusion::Scaled(scaling) => {
                let scaling = self.frame.scaling(scaling);
                let is_tested = self.facts.scales_twin || !self.frame.is_transposed();
                if !is_tested || !family.takes_scaling(types, &scaling) {
                    return Err(Unsupported::NoScales);
                }
                // Without products, the sums are 0, also if a scale is infinite.
                match problem.views()[0].shape[2] == 0 && family.scales_sums(types, &scaling) {
                    true => Err(Unsupported::Shallow { k: 0, least: 1 }),
                    false => Ok(()),
                }
            }
            Fusion::Epilogue { .. } => Ok(()),
        }
    }

    /// The kernel as its program computes with epilogues of this kind.
    pub(super) fn with(&self, fusion: Fusion<'_>) -> Kernel {
        let design = match fusion {
            Fusion::Dual => self.design.dual(),
            Fusion::Joint(joint) => self.design.joint(joint.matrices, self.side_of_b()),
            _ => return *self,
        };
        Kernel::new(self.types, design, self.frame, self.epilogue)
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

    /// Whether a device of this compute capability runs the kernel: the instructions exist, and a
    /// CTA may have the shared memory.
    pub fn runs_on(&self, cc: u32) -> bool {
        let Facts { min_cc, only_min_cc, shared_bytes, .. } = self.facts;
        match only_min_cc {
            true => cc == min_cc,
            false => min_cc <= cc && shared_bytes <= max_shared_bytes_per_cta(cc),
        }
    }

    /// The chips that [`Kernel::runs_on`] accepts, in words.
    pub fn chips(&self) -> String {
        let Facts { min_cc: cc, only_min_cc, shared_bytes, .. } = self.facts;
        let (least, kib) = (format!("{}.{}", cc / 10, cc % 10), shared_bytes.div_ceil(1024));
        if only_min_cc {
            format!("{least} only")
        } else if kib * 1024 > min_shared_bytes_per_cta() {
            format!("{least} and later with {kib} KiB of shared memory a CTA")
        } else {
            format!("{least} and later")
        }
    }

    /// Checks that this kernel is offered for a problem.
    pub fn supports(&self, problem: &Problem) -> Result<(), Unsupported> {
        self.check(problem, true)?;
        self.check_precision(problem)?;
        self.types.match_accumulator(problem)
    }

    /// Checks that the problem permits the precision of this kernel's sums.
    pub(super) fn check_precision(&self, problem: &Problem) -> Result<(), Unsupported> {
        match self.facts.fast_sums && !problem.options().fast_sums {
            true => Err(Unsupported::FastSums),
            false => Ok(()),
        }
    }

    /// Checks that this kernel computes a problem; otherwise, a launch would fail on the device,
    /// corrupt memory or leave part of the output unwritten. Not checked: the accumulator type and
    /// [`Kernel::check_precision`], which affect values only, and [`Family::check_range`], which
    /// affects the time only.
    pub fn check_addresses(&self, problem: &Problem) -> Result<(), Unsupported> {
        self.check(problem, false)
    }

    /// Checks operation, types and device, then the extents, then the operands. `in_range`: whether
    /// the extents must be in the kernel's range.
    fn check(&self, problem: &Problem, in_range: bool) -> Result<(), Unsupported> {
        let (computes, requested) = (self.facts.operation, Operation::of(problem));
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
        let joined = problem.joined();
        let joined = joined.as_ref().unwrap_or(problem);
        let of_program = self.frame.problem(joined);
        if in_range {
            self.check_range(&of_program)?;
        }
        self.check_extents(joined, &of_program)?;
        if let Problem::Gemm(gemm) = &*of_program {
            self.packed_bytes(gemm)?;
        }
        let views = problem.views();
        for ((name, view), demand) in ["A", "B", "out"].into_iter().zip(views).zip(self.demands()) {
            demand.check(name, view)?;
        }
        Ok(())
    }

    /// Requirements on the memory layout of the user's A, B and out.
    pub fn demands(&self) -> [Demand; 3] {
        self.frame.demands(self.facts.demands)
    }

    /// [`Family::check_range`]. `of_program`: the problem in the program's frame.
    #[inline]
    pub(super) fn check_range(&self, of_program: &Problem) -> Result<(), Unsupported> {
        self.design.family().check_range(of_program).map_err(|reason| match reason {
            Unsupported::TooMany { dimension: "M", extent, limit } => {
                let [dimension, _] = self.frame.pair(["M", "N"]);
                Unsupported::TooMany { dimension, extent, limit }
            }
            other => other,
        })
    }

    /// [`Family::check_extents`]. `of_program`: the problem in the program's frame.
    #[inline]
    pub(super) fn check_extents(
        &self,
        problem: &Problem,
        of_program: &Problem,
    ) -> Result<(), Unsupported> {
        if let Problem::GroupedGemm(grouped) = problem
            && grouped.gathers()
            && !self.facts.gathers
        {
            return Err(Unsupported::NoIndex);
        }
        let (of, n) = (i64::from(self.facts.n_step), problem.views()[1].shape[2]);
        if of > 1 && n % of != 0 {
            return Err(Unsupported::Uneven { n, of });
        }
        let is_fused = self.fused_epilogue().is_some();
        self.design.family().check_extents(self.program_types(), of_program, is_fused)
    }

    /// CTAs that an SM holds at once, computed from what ptxas reports: registers of a thread, and
    /// static shared memory.
    pub fn occupancy(&self, cc: u32, registers: u32, static_shared_bytes: u32) -> u32 {
        let Facts { threads, shared_bytes, .. } = self.facts;
        ctas_per_sm(cc, threads, registers, static_shared_bytes + shared_bytes)
    }

    /// Bytes of the packed operands. Equal for kernels of equal demands.
    ///
    /// # Errors
    /// If a 32-bit count of the packing kernel overflows.
    pub(super) fn packed_bytes(&self, of_program: &GemmProblem) -> Result<u64, Unsupported> {
        if self.facts.packs { self.design.family().packed_bytes(of_program) } else { Ok(0) }
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
        let of_program = self.frame.gemm(&problem);
        let packed_bytes = self.packed_bytes(&of_program).unwrap_or_default();
        let query =
            CostQuery::new(&of_program, target, fusion.takes_time(self.types), packed_bytes);
        self.with(fusion).estimate_in_frame(&query)
    }

    /// The estimated cost of a problem in the program's frame.
    pub(super) fn estimate_in_frame(&self, query: &CostQuery) -> Estimate {
        self.design.family().estimate(self.program_types(), self.facts.ctas_per_sm, query)
    }

    /// The estimated seconds; infinite if no model covers the kernel.
    pub fn seconds(&self, problem: &Problem, target: Target) -> f64 {
        self.estimate(problem, target).total_seconds
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
        let (types, is_fused) = (self.program_types(), self.fused_epilogue().is_some());
        let factor = epilogue.and_then(|bound| bound.factor()).map(|(_, view)| view);
        let panels = epilogue.into_iter().flat_map(|bound| bound.panels());
        let panels: ArrayVec<View, { Joint::MOST }> =
            panels.map(|(_, view)| self.frame.view(view)).collect();
        let joined = problem.joined();
        let problem = &*self.frame.problem(joined.as_ref().unwrap_or(problem));
        let panels = panels.as_slice();
        let request = LaunchInput { types, problem, is_fused, target, workspace, factor, panels };
        self.design.family().launch(&request)
    }

    /// The addresses of the tensor cores' A and B and of the output, of the offsets of groups (0
    /// without groups), and of the index of A's rows (0 without one). Only these values in a launch
    /// depend on the operands' addresses.
    pub fn addresses_in(&self, problem: &Problem) -> Addresses {
        let views = problem.views();
        let mut addresses = [0, 1, 2, 3, 4].map(|at: usize| views.get(at).map_or(0, |of| of.data));
        if self.address_of_a() == 1 {
            addresses.swap(0, 1);
        }
        addresses
    }

    /// Whether a launch may need workspace.
    pub fn takes_workspace(&self) -> bool {
        self.facts.takes_workspace || !self.reductions().is_empty() || self.prologue().is_some()
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
            Reduce::bytes(&reductions, &self.partials(&self.frame.gemm(gemm)), gemm.batch())
        };
        self.main_workspace_bytes(gemm) + partial
    }

    fn main_workspace_bytes(&self, problem: &GemmProblem) -> u64 {
        if problem.out.numel() == 0 || !self.facts.takes_workspace {
            return 0;
        }
        let joined = if problem.further_columns > 0 { problem.joined() } else { *problem };
        self.design.family().workspace_bytes(&self.frame.gemm(&joined))
    }

    /// The reductions of this kernel's epilogue that a second launch finishes, in the program's
    /// frame.
    pub fn reductions(&self) -> Vec<Reduction> {
        match self.epilogue {
            Some(epilogue) if self.facts.stores_partials => {
                epilogue.reductions(self.types.accumulator, self.frame.is_transposed())
            }
            _ => Vec::new(),
        }
    }

    /// The partial results that a launch on this problem stores.
    fn partials(&self, of_program: &GemmProblem) -> Partials {
        self.design.family().partials(self.program_types(), of_program)
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
        let (of_program, transposed) = (self.frame.gemm(problem), self.frame.is_transposed());
        let partials = self.partials(&of_program);
        Some(Reduce::new(&reductions, bound, &of_program, &partials, transposed, workspace))
    }
}
