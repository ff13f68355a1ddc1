//! Entry point: checks the operands and computes on all cores.

use super::{ReferenceError, adds, elementwise, gemm, multiplies, pool};
use crate::epilogue::BoundEpilogue;
use crate::operand::{DType, DeviceId};
use crate::problem::Problem;

/// Computes a problem and its epilogue on all cores. Returns when all outputs are written.
///
/// # Safety
/// Every CPU view of the problem and its epilogue that is not fake covers live memory of this
/// process. During the call nothing else writes that memory, or reads the outputs.
pub unsafe fn run(
    problem: &Problem,
    epilogue: Option<&BoundEpilogue>,
) -> Result<(), ReferenceError> {
    // SAFETY: guaranteed by the caller.
    pool::run(|| unsafe { compute(problem, epilogue) })
}

/// # Safety
/// As for [`run`].
unsafe fn compute(
    problem: &Problem,
    epilogue: Option<&BoundEpilogue>,
) -> Result<(), ReferenceError> {
    for (name, view) in problem.operands() {
        if view.device != DeviceId::Cpu {
            return Err(ReferenceError::Device { name, device: view.device });
        }
        if view.fake {
            return Err(ReferenceError::Fake { name });
        }
    }
    for (_, view) in epilogue.into_iter().flat_map(|bound| bound.tensors()) {
        if view.device != DeviceId::Cpu {
            return Err(ReferenceError::Device {
                name: "an operand of the epilogue",
                device: view.device,
            });
        }
        if view.fake {
            return Err(ReferenceError::Fake { name: "an operand of the epilogue" });
        }
    }
    let product = |a: DType, b: DType, accumulator: DType, out: DType| {
        if multiplies(a, b, accumulator, out) {
            return Ok(());
        }
        Err(ReferenceError::ProductTypes { a, b, accumulator, out })
    };
    // SAFETY, for the three calls: the views are on the CPU and not fake, so the caller guarantees
    // their memory; the types are supported.
    match problem {
        Problem::Gemm(p) => {
            let prologue = epilogue.and_then(|bound| bound.epilogue.prologue.as_ref());
            let a = prologue.map_or(p.a.dtype, |prologue| prologue.dtype);
            product(a, p.b.dtype, p.accumulator, p.out.dtype)?;
            unsafe { gemm::multiply(p, epilogue) }?;
        }
        Problem::GroupedGemm(p) => {
            product(p.a.dtype, p.b.dtype, p.accumulator, p.out.dtype)?;
            unsafe { gemm::multiply_groups(p, epilogue) }?;
        }
        Problem::Elementwise(p) => {
            let (a, b, out) = (p.a.dtype, p.b.dtype, p.out.dtype);
            if !adds(a, b, out) {
                return Err(ReferenceError::SumTypes { a, b, out });
            }
            unsafe { elementwise::add(p, epilogue) };
        }
    }
    Ok(())
}
