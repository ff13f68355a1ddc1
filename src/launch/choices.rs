//! The kernels that `cutlass_api.matmul` chose, by problem.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use rustc_hash::FxBuildHasher;

use super::LastLaunch;
use crate::compile::Program;
use crate::operand::{DType, DeviceId, View};
use crate::problem::GemmProblem;

/// Everything that the choice of a kernel depends on. Includes the alignment of each address, not
/// the address.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChoiceKey {
    operands: [OperandKey; 3],
    accumulator: DType,
    device: DeviceId,
    allows_tf32: bool,
}

impl ChoiceKey {
    pub fn new(problem: &GemmProblem, allows_tf32: bool) -> ChoiceKey {
        let GemmProblem { a, b, out, accumulator } = problem;
        ChoiceKey {
            operands: [OperandKey::of(a), OperandKey::of(b), OperandKey::of(out)],
            accumulator: *accumulator,
            device: out.device,
            allows_tf32,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct OperandKey {
    dtype: DType,
    shape: [i64; 3],
    stride: [i64; 3],
    /// The address modulo 16 bytes, the widest load.
    misalignment: u64,
}

impl OperandKey {
    fn of(view: &View) -> OperandKey {
        OperandKey {
            dtype: view.dtype,
            shape: view.shape,
            stride: view.stride,
            misalignment: view.data % 16,
        }
    }
}

/// The kernel chosen for a problem, its program (None on the CPU), and its last launch.
pub struct KernelChoice {
    /// The kernel's position, as `kernel::at` counts.
    pub position: usize,
    pub program: Option<Arc<Program>>,
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

    /// Inserts a choice unless the key has one. Returns the choice of the key, and the evicted
    /// choices: the caller must drop them without the interpreter's lock, since they free CUDA
    /// graphs.
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

    fn key(misalignment: u64) -> ChoiceKey {
        let operand =
            OperandKey { dtype: DType::F32, shape: [1, 2, 3], stride: [0, 3, 1], misalignment };
        ChoiceKey {
            operands: [operand; 3],
            accumulator: DType::F32,
            device: DeviceId::Cpu,
            allows_tf32: false,
        }
    }

    fn choice(position: usize) -> KernelChoice {
        KernelChoice { position, program: None, last: LastLaunch::default() }
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
