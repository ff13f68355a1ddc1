//! A product with a prologue: checks the prologue's operands against A.

use super::check::check_type_and_device;
use super::check::{check_written, may_overlap};
use super::fused::OperandValue;
use super::{GemmProblem, Problem, ProblemError};
use crate::epilogue::{
    ACTIVATIONS, BoundEpilogue, BoundPrologue, Epilogue, ExpressionGraph, Input, Kind, Plan,
    Prologue, TensorType, Value, intern,
};
use crate::operand::{DType, View};

/// Reductions that a kernel computes in one pass over A, and numbers that it keeps for each row:
/// both are in registers.
const MAX_REDUCTIONS: usize = 4;
const MAX_ROW_NUMBERS: usize = 8;

impl Problem {
    /// The product of the activations that the prologue of an epilogue computes: the same with a
    /// row-major A, whose address is 0. `None` without a prologue.
    #[inline]
    pub fn of_activations(&self, epilogue: Option<&Epilogue>) -> Option<Problem> {
        let prologue = epilogue?.prologue.as_ref()?;
        match self {
            Problem::Gemm(gemm) => Some(Problem::Gemm(gemm.of_activations(prologue))),
            _ => None,
        }
    }
}

impl GemmProblem {
    /// Rows of activations begin at multiples of so many elements, which TMA and 16-byte loads
    /// require of every type.
    pub const PITCH: i64 = 16;

    /// As [`Problem::of_activations`].
    #[cold]
    pub fn of_activations(&self, prologue: &Prologue) -> GemmProblem {
        let [_, m, k] = self.a.shape;
        let pitch = (k as u64).next_multiple_of(GemmProblem::PITCH as u64) as i64;
        let mut stride = [m * pitch, pitch, 1];
        for (step, extent) in stride.iter_mut().zip(self.a.shape) {
            if extent <= 1 {
                *step = 0;
            }
        }
        let a = View { data: 0, dtype: prologue.dtype, stride, read_only: false, ..self.a };
        GemmProblem { a, ..*self }
    }
}

/// The bytes of the activations, with the padding of rows. Multiples of 256, so that a kernel's own
/// workspace behind them is aligned.
pub fn activation_bytes(problem: &GemmProblem, prologue: &Prologue) -> u64 {
    let [batch, m, k] = problem.a.shape;
    let pitch = (k as u64).next_multiple_of(GemmProblem::PITCH as u64) as i64;
    (prologue.dtype.bytes_of(batch * m * pitch) as u64).next_multiple_of(256)
}

/// A prologue function and its operands, named and in the order of the graph. The output A belongs
/// to the kernel; its operand is not read.
pub struct PrologueOperands<'a> {
    pub graph: &'a ExpressionGraph,
    /// The type of the activations; `None`: that of A.
    pub dtype: Option<DType>,
    pub inputs: &'a [(&'static str, OperandValue)],
    pub outputs: &'a [(&'static str, OperandValue)],
}

/// Binds operands to a prologue, puts it in front of a bound epilogue, and checks it against the
/// problem.
///
/// # Errors
/// If an operand does not fit A, an output overlaps another operand, or K is 0.
pub fn precede(
    problem: &Problem,
    epilogue: BoundEpilogue,
    operands: &PrologueOperands<'_>,
) -> Result<BoundEpilogue, ProblemError> {
    let PrologueOperands { graph, dtype, inputs, outputs } = *operands;
    let Problem::Gemm(gemm) = problem else { return Err(ProblemError::NoPrologue) };
    let GemmProblem { a, b, out, .. } = gemm;
    if gemm.k() == 0 {
        return Err(ProblemError::EmptyPrologue { shape: a.user_shape().to_vec() });
    }
    if epilogue.epilogue.graph.scaling.is_some_and(|scaling| scaling.a.is_some()) {
        return Err(ProblemError::ScaledActivations);
    }
    let a_shape = || a.user_shape().to_vec();
    let mut bound = BoundPrologue { a: *a, inputs: Vec::new(), outputs: Vec::new() };
    let mut input_types = Vec::new();
    for (name, operand) in inputs {
        match operand {
            OperandValue::Tensor(view) => {
                check_type_and_device(name, view, out)?;
                let shape = view.user_shape().to_vec();
                let view = view.broadcast(a.shape).ok_or_else(|| {
                    ProblemError::NotBroadcastToA { name, shape, a_shape: a_shape() }
                })?;
                input_types.push(Input::Tensor(TensorType::of(&view)));
                bound.inputs.push(Value::Tensor(view));
            }
            OperandValue::Number(number) => {
                input_types.push(Input::Scalar(Kind::Float));
                bound.inputs.push(Value::Scalar(number.value()));
            }
        }
    }
    let a_type = TensorType::of(a);
    let mut prologue = Prologue {
        graph: graph.clone(),
        a: a_type,
        dtype: dtype.unwrap_or(a.dtype),
        inputs: input_types,
        outputs: Vec::new(),
    };
    let plan = Plan::of(&prologue);
    for ((name, operand), output) in outputs.iter().zip(&graph.outputs) {
        if *name == ACTIVATIONS {
            prologue.outputs.push(TensorType::any(DType::F32));
            bound.outputs.push(None);
            continue;
        }
        let OperandValue::Tensor(view) = operand else {
            return Err(ProblemError::NotTensor { name });
        };
        check_type_and_device(name, view, out)?;
        let is_number = view.shape == [a.shape[0], a.shape[1], 1];
        if is_number && a.shape[2] > 1 && !plan.is_of_row[output.node as usize] {
            return Err(ProblemError::PrologueNumber { name });
        }
        if view.shape != a.shape && !is_number {
            let shape = view.user_shape().to_vec();
            return Err(ProblemError::PrologueOutputShape { name, shape, a_shape: a_shape() });
        }
        check_written(name, view)?;
        if gemm.n() == 0 {
            let shape = b.user_shape().to_vec();
            return Err(ProblemError::UnstoredPrologue { name, shape });
        }
        let view = View { rank: 3, shape: a.shape, ..*view };
        prologue.outputs.push(TensorType::of(&view));
        bound.outputs.push(Some(view));
    }
    let limits =
        [(plan.most_reductions(graph), MAX_REDUCTIONS), (plan.kept.len(), MAX_ROW_NUMBERS)];
    if let Some((count, limit)) = limits.into_iter().find(|(count, limit)| count > limit) {
        return Err(ProblemError::ManyReductions { count, limit });
    }
    let fused = intern(Epilogue { prologue: Some(prologue), ..epilogue.epilogue.clone() });
    let bound = BoundEpilogue { epilogue: fused, prologue: Some(bound), ..epilogue };
    check_overlaps(gemm, &bound).map(|()| bound)
}

/// Checks that the prologue stores nothing that another CTA may still read, and that the product
/// overwrites nothing that it reads. The epilogue may read a tensor that the prologue stores: the
/// product begins to read once the prologue is complete.
fn check_overlaps(gemm: &GemmProblem, bound: &BoundEpilogue) -> Result<(), ProblemError> {
    /// A and B.
    const FACTORS: usize = 2;
    let graph = &bound.epilogue.graph;
    let stored: Vec<_> = bound.prologue_outputs().collect();
    let of_epilogue = graph.outputs.iter().zip(&bound.outputs);
    let of_epilogue: Vec<(&'static str, &View)> = of_epilogue
        .filter_map(|(output, view)| Some((output.name.as_str(), view.as_ref()?)))
        .chain([("out", &gemm.out)])
        .collect();
    for (other, input) in bound.prologue_inputs() {
        for (name, output) in stored.iter().chain(&of_epilogue) {
            if may_overlap(output, input) {
                return Err(ProblemError::OverwrittenPrologue { name, other });
            }
        }
    }
    let inputs = graph.inputs.iter().zip(&bound.inputs).filter_map(|(name, value)| match value {
        Value::Scalar(_) => None,
        Value::Tensor(view)
        | Value::Factor(view)
        | Value::Panel(view)
        | Value::Segment { view, .. } => Some((name.as_str(), view)),
    });
    let factors: [(&'static str, &View); FACTORS] = [("A", &gemm.a), ("B", &gemm.b)];
    let others: Vec<(&'static str, &View)> = factors.into_iter().chain(inputs).collect();
    for (at, (name, output)) in stored.iter().enumerate() {
        let is_same = |view: &View| {
            (view.data, view.dtype, view.stride) == (output.data, output.dtype, output.stride)
        };
        let overwrites = |(at, (_, view)): &(usize, &(&str, &View))| {
            may_overlap(output, view) && !(*at >= FACTORS && is_same(view))
        };
        if let Some((_, (other, _))) = others.iter().enumerate().find(overwrites) {
            return Err(ProblemError::OverwrittenPrologue { name, other });
        }
        let outputs = of_epilogue.iter().chain(&stored[..at]);
        if let Some((other, _)) = outputs.into_iter().find(|(_, view)| may_overlap(output, view)) {
            return Err(ProblemError::SharedPrologueOutputs { name, other });
        }
    }
    Ok(())
}
