//! The kernels that `cutlass_api.matmul` and the operators chose, by problem.

use std::collections::HashMap;
use std::mem::Discriminant;
use std::sync::{Arc, Mutex, MutexGuard};

use arrayvec::ArrayVec;
use rustc_hash::FxBuildHasher;

use super::LastLaunch;
use crate::compile::Program;
use crate::epilogue::{Epilogue, ExpressionGraph};
use crate::operand::{DType, DeviceId, View};
use crate::problem::{OperandValue, Problem, ProblemOptions, PrologueOperands};

/// Everything that the choice of a kernel depends on. Includes the alignment of each address, not
/// the address.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ChoiceKey {
    operation: Discriminant<Problem>,
    operands: ArrayVec<OperandKey, 4>,
    /// Whether an index names the rows of A. Any kernel takes any such index.
    gathers: bool,
    accumulator: DType,
    allows_tf32: bool,
    options: ProblemOptions,
    /// The position of the kernel that the caller prefers.
    preferred: Option<usize>,
    /// The bytes of workspace that the kernel may use.
    most_workspace: u64,
    epilogue: Option<EpilogueKey>,
}

/// An epilogue or a prologue, and its operands.
#[derive(Clone, PartialEq, Eq, Hash)]
struct EpilogueKey {
    /// The graph's address. Traced epilogues live as long as the process.
    graph: usize,
    inputs: Box<[OperandKey]>,
    outputs: Box<[OperandKey]>,
    /// Of an epilogue: the prologue in front of the product, and the type of its activations.
    prologue: Option<Box<(EpilogueKey, Option<DType>)>>,
}

impl ChoiceKey {
    pub fn new(
        problem: &Problem,
        allows_tf32: bool,
        preferred: Option<usize>,
        most_workspace: u64,
    ) -> ChoiceKey {
        ChoiceKey {
            operation: std::mem::discriminant(problem),
            operands: problem.views().into_iter().take(4).map(OperandKey::of).collect(),
            gathers: matches!(problem, Problem::GroupedGemm(grouped) if grouped.gathers()),
            accumulator: problem.accumulator(),
            allows_tf32,
            options: problem.options(),
            preferred,
            most_workspace,
            epilogue: None,
        }
    }

    /// The same with an epilogue. `graph` must live as long as the process.
    pub fn with_epilogue(
        self,
        graph: &ExpressionGraph,
        inputs: &[OperandValue],
        outputs: &[OperandValue],
    ) -> ChoiceKey {
        let epilogue = EpilogueKey::new(graph, inputs.iter(), outputs.iter());
        ChoiceKey { epilogue: Some(epilogue), ..self }
    }

    /// The same with a prologue, whose activations have this type, in front of its epilogue.
    /// `graph` must live as long as the process.
    pub fn with_prologue(mut self, prologue: &PrologueOperands<'_>) -> ChoiceKey {
        let PrologueOperands { graph, dtype, inputs, outputs } = *prologue;
        let [inputs, outputs] = [inputs, outputs].map(|named| named.iter().map(|(_, value)| value));
        if let Some(epilogue) = &mut self.epilogue {
            epilogue.prologue = Some(Box::new((EpilogueKey::new(graph, inputs, outputs), dtype)));
        }
        self
    }
}

impl EpilogueKey {
    fn new<'a>(
        graph: &ExpressionGraph,
        inputs: impl Iterator<Item = &'a OperandValue>,
        outputs: impl Iterator<Item = &'a OperandValue>,
    ) -> EpilogueKey {
        let (inputs, outputs) = (
            inputs.map(OperandKey::of_value).collect(),
            outputs.map(OperandKey::of_value).collect(),
        );
        let graph = std::ptr::from_ref(graph).addr();
        EpilogueKey { graph, inputs, outputs, prologue: None }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct OperandKey {
    /// None for a number.
    dtype: Option<DType>,
    device: DeviceId,
    rank: usize,
    shape: [i64; 3],
    stride: [i64; 3],
    /// The address modulo 16 bytes, the widest load.
    misalignment: u64,
}

impl OperandKey {
    fn of(view: &View) -> OperandKey {
        OperandKey {
            dtype: Some(view.dtype),
            device: view.device,
            rank: view.rank,
            shape: view.shape,
            stride: view.stride,
            misalignment: view.data % 16,
        }
    }

    fn of_value(value: &OperandValue) -> OperandKey {
        match value {
            OperandValue::Tensor(view) => OperandKey::of(view),
            OperandValue::Number(_) => OperandKey { dtype: None, ..OperandKey::of(&View::UNREAD) },
        }
    }
}

/// The kernel chosen for a problem, its program (None on the CPU), and its last launch.
pub struct KernelChoice {
    /// The kernel's position, as `kernel::at` counts.
    pub position: usize,
    pub program: Option<Arc<Program>>,
    pub epilogue: Option<&'static Epilogue>,
    pub last: LastLaunch,
}

pub struct Choices(HashMap<ChoiceKey, Arc<KernelChoice>, FxBuildHasher>);

static CHOICES: Mutex<Choices> = Mutex::new(Choices(HashMap::with_hasher(FxBuildHasher)));

/// The choices of this process.
pub fn choices() -> MutexGuard<'static, Choices> {
    CHOICES.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Choices {
    /// Most choices kept, at a few kilobytes each. A further choice evicts every other one; an
    /// evicted problem is ranked again on its next call (its program stays cached). An LRU order
    /// would cost time in every call.
    const MOST: usize = 4096;

    pub fn get(&self, key: &ChoiceKey) -> Option<Arc<KernelChoice>> {
        self.0.get(key).cloned()
    }

    /// Removes and returns all choices, for the caller to drop as those of [`Choices::keep`]:
    /// results of the tuner may rank other kernels first.
    pub fn take(&mut self) -> Vec<Arc<KernelChoice>> {
        self.0.drain().map(|(_, choice)| choice).collect()
    }

    /// Inserts a choice unless the key has one. Returns the choice of the key, and the evicted
    /// choices: the caller must drop them after releasing [`choices`], since they free CUDA graphs
    /// without the interpreter's lock.
    pub fn keep(
        &mut self,
        key: ChoiceKey,
        choice: KernelChoice,
    ) -> (Arc<KernelChoice>, Vec<Arc<KernelChoice>>) {
        let mut dropped = Vec::new();
        if self.0.len() >= Choices::MOST && !self.0.contains_key(&key) {
            let mut goes = false;
            let every_other = self.0.extract_if(|_, _| {
                goes = !goes;
                goes
            });
            dropped.extend(every_other.map(|(_, choice)| choice));
        }
        (self.0.entry(key).or_insert_with(|| Arc::new(choice)).clone(), dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::GemmProblem;

    fn key(misalignment: u64) -> ChoiceKey {
        let view = View { data: misalignment, rank: 2, ..View::UNREAD };
        let gemm = GemmProblem { a: view, b: view, out: view, ..GemmProblem::UNREAD };
        let key = ChoiceKey::new(&Problem::Gemm(gemm), false, None, 0);
        // Of an address, the key has the value modulo 16 only.
        ChoiceKey { preferred: Some(misalignment as usize), ..key }
    }

    fn choice(position: usize) -> KernelChoice {
        KernelChoice { position, program: None, epilogue: None, last: LastLaunch::default() }
    }

    #[test]
    fn choices_are_bounded() {
        let mut choices = Choices(HashMap::default());
        for at in 0..Choices::MOST {
            let (kept, dropped) = choices.keep(key(at as u64), choice(at));
            assert_eq!((kept.position, dropped.len()), (at, 0));
        }
        // A second choice for a key is not kept and evicts none.
        let (kept, dropped) = choices.keep(key(7), choice(0));
        assert_eq!((kept.position, dropped.len(), choices.0.len()), (7, 0, Choices::MOST));
        let (kept, dropped) = choices.keep(key(1 << 40), choice(1));
        let half = Choices::MOST / 2;
        assert_eq!((kept.position, dropped.len(), choices.0.len()), (1, half, half + 1));
    }
}
