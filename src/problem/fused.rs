//! A problem with an epilogue: checks the epilogue's operands against the output.

use super::check::{check_type_and_device, check_written, may_overlap};
use super::joint::{input_of_panels, segment, start_of_segment};
use super::scaled::{check_factors, scale_view};
use super::{Problem, ProblemError};
use crate::epilogue::{
    BoundEpilogue, Epilogue, ExpressionGraph, Fold, Input, Kind, MAIN_OUTPUT, Node, Number,
    TensorType, Value, intern,
};
use crate::operand::{DType, View};

/// The user's argument for a parameter or an output of an epilogue function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OperandValue {
    Tensor(View),
    Number(Number),
}

impl OperandValue {
    /// The view of a tensor.
    pub fn view(&self) -> Option<View> {
        match self {
            OperandValue::Tensor(view) => Some(*view),
            OperandValue::Number(_) => None,
        }
    }
}

/// Kernel parameters are limited to 32764 bytes (CUDA C++ Programming Guide, "__global__ Function
/// Parameters"); a tensor takes 32 bytes.
const MAX_OPERANDS: usize = 1000;

/// Binds operands to an epilogue and checks them against the problem. `inputs` and `outputs` are
/// named and follow the order of the graph. The main output D belongs to the problem and is
/// skipped.
pub fn fuse(
    problem: &Problem,
    accumulator: DType,
    graph: &ExpressionGraph,
    inputs: &[(&'static str, OperandValue)],
    outputs: &[(&'static str, OperandValue)],
) -> Result<BoundEpilogue, ProblemError> {
    let out = problem.out();
    if let Some((name, _)) = inputs.iter().chain(outputs).nth(MAX_OPERANDS) {
        let count = inputs.len() + outputs.len();
        return Err(ProblemError::ManyOperands { name, count, limit: MAX_OPERANDS });
    }
    let scaling = graph.scaling.as_ref();
    if let Some(scaling) = scaling {
        check_factors(problem, scaling)?;
    }
    let mut input_types = Vec::with_capacity(inputs.len());
    let mut values = Vec::with_capacity(inputs.len());
    let factor = graph.factor();
    if let (Some(at), Some(_)) = (factor, scaling) {
        return Err(ProblemError::ScaledFactor { name: inputs[at].0 });
    }
    let tensor = |at: usize| (inputs[at].0, inputs[at].1.view());
    let panels = input_of_panels(problem, graph, tensor)?;
    for (at, (name, operand)) in inputs.iter().enumerate() {
        if let Some((input, value)) = segment(problem, graph, tensor, at)? {
            input_types.push(input);
            values.push(value);
            continue;
        }
        let scales = scaling.and_then(|scaling| scaling.factor_of(at));
        let (input, value) = match operand {
            OperandValue::Tensor(view) if let Some(scales) = scales => {
                let view = scale_view(name, scales.1.scale as usize != at, view, problem, scales)?;
                (Input::Tensor(TensorType::any(view.dtype)), Value::Tensor(view))
            }
            OperandValue::Number(_) if scales.is_some() => {
                return Err(ProblemError::ScaleNumber { name });
            }
            OperandValue::Tensor(view) if graph.panels().any(|panel| panel == at) => {
                (panels, Value::Panel(*view))
            }
            OperandValue::Tensor(view) if factor == Some(at) => {
                check_type_and_device(name, view, out)?;
                check_reads(name, graph)?;
                (Input::Factor(view.dtype), Value::Factor(factor_like_b(name, view, problem)?))
            }
            OperandValue::Number(_) if factor == Some(at) => {
                return Err(ProblemError::FactorNotTensor { name });
            }
            OperandValue::Tensor(view) => {
                check_type_and_device(name, view, out)?;
                let broadcast = problem.broadcast(view);
                let broadcast = broadcast.ok_or_else(|| not_broadcast(name, view, problem))?;
                (Input::Tensor(TensorType::of(&broadcast)), Value::Tensor(broadcast))
            }
            // With a float accumulator every number is a float, so that 2 and 2.0 share a
            // program.
            OperandValue::Number(Number::Integer(value)) if accumulator.is_integer() => {
                i32::try_from(*value)
                    .map_err(|_| ProblemError::LargeInteger { name, value: *value })?;
                (Input::Scalar(Kind::Integer), Value::Scalar(*value as f64))
            }
            OperandValue::Number(number) => {
                (Input::Scalar(Kind::Float), Value::Scalar(number.value()))
            }
        };
        input_types.push(input);
        values.push(value);
    }
    let mut output_types = Vec::with_capacity(outputs.len());
    let mut reduced = Vec::with_capacity(outputs.len());
    let mut views = Vec::with_capacity(outputs.len());
    for ((name, operand), output) in outputs.iter().zip(&graph.outputs) {
        if *name == MAIN_OUTPUT {
            output_types.push(TensorType::any(DType::F32));
            reduced.push([false; 3]);
            views.push(None);
            continue;
        }
        let OperandValue::Tensor(view) = operand else {
            return Err(ProblemError::NotTensor { name });
        };
        check_type_and_device(name, view, out)?;
        let view = &match &output.fold {
            None if view.shape != out.shape => {
                let (shape, out_shape) = (view.user_shape().to_vec(), out.user_shape().to_vec());
                return Err(ProblemError::OutputShape { name, shape, out_shape });
            }
            None => {
                reduced.push([false; 3]);
                *view
            }
            Some(_) if factor.is_some() => return Err(ProblemError::ReducedProduct { name }),
            Some((fold, dims)) => {
                let along = resolve_dims(name, dims, problem)?;
                if *fold == Fold::Maximum && (0..3).any(|dim| along[dim] && out.shape[dim] == 0) {
                    let out_shape = out.user_shape().to_vec();
                    return Err(ProblemError::EmptyMaximum { name, out_shape });
                }
                reduced.push(along);
                view_of_reduction(name, view, out, along)?
            }
        };
        check_written(name, view)?;
        let view = View { rank: 3, ..*view };
        let of_view = || TensorType::of(&view);
        output_types
            .push(output.fold.as_ref().map_or_else(of_view, |_| TensorType::any(view.dtype)));
        views.push(Some(view));
    }
    if accumulator.is_integer() {
        for (node, _) in graph.nodes.iter().zip(graph.used()).filter(|(_, used)| *used) {
            if let Node::Integer(value) = *node
                && i32::try_from(value).is_err()
            {
                return Err(ProblemError::LargeInteger { name: "a number in the epilogue", value });
            }
        }
    }
    let epilogue = intern(Epilogue {
        graph: graph.clone(),
        inputs: input_types,
        outputs: output_types,
        reduced,
        prologue: None,
    });
    let bound = BoundEpilogue { epilogue, inputs: values, outputs: views, prologue: None };
    check_overlaps(problem, &bound).map(|()| bound)
}

/// Binds other operands to an epilogue of [`fuse`]. The problem, the inputs and the outputs must
/// have the dtypes, shapes and strides of that call, and the epilogue no reduction. Costs less than
/// `fuse`.
pub fn rebind(
    problem: &Problem,
    epilogue: &'static Epilogue,
    inputs: &[OperandValue],
    outputs: &[OperandValue],
) -> Result<BoundEpilogue, ProblemError> {
    let (shape, of_b) = (problem.out().shape, problem.views()[1].shape);
    let graph = &epilogue.graph;
    let input = |(at, value): (usize, &OperandValue)| {
        let scales = graph.scaling.as_ref().and_then(|scaling| scaling.factor_of(at));
        Ok(match (value, scales, epilogue.inputs[at]) {
            (OperandValue::Tensor(view), Some(scales), _) => {
                let is_zero = scales.1.scale as usize != at;
                Value::Tensor(scale_view(&graph.inputs[at], is_zero, view, problem, scales)?)
            }
            (OperandValue::Tensor(view), None, Input::Panel { .. }) => Value::Panel(*view),
            (OperandValue::Tensor(view), None, Input::Segment(_)) => {
                let start = start_of_segment(problem, graph, |at| inputs[at].view(), at);
                Value::Segment { view: *view, start }
            }
            (OperandValue::Tensor(view), None, Input::Factor(_)) => {
                Value::Factor(View { rank: 3, shape: of_b, ..*view })
            }
            (OperandValue::Tensor(view), None, _) => {
                let [matrices, rows, columns] = shape;
                // An operand may have a row for each group.
                let matrices = if view.shape[0] == 1 { matrices } else { view.shape[0] };
                Value::Tensor(View { rank: 3, shape: [matrices, rows, columns], ..*view })
            }
            (OperandValue::Number(number), ..) => Value::Scalar(number.value()),
        })
    };
    let mut views = Vec::with_capacity(outputs.len());
    for (operand, output) in outputs.iter().zip(&epilogue.graph.outputs) {
        views.push(match operand {
            OperandValue::Tensor(view) if output.name != MAIN_OUTPUT => {
                if view.read_only {
                    return Err(ProblemError::ReadOnly { name: &output.name });
                }
                Some(View { rank: 3, ..*view })
            }
            _ => None,
        });
    }
    let inputs = inputs.iter().enumerate().map(input).collect::<Result<_, ProblemError>>()?;
    let bound = BoundEpilogue { epilogue, inputs, outputs: views, prologue: None };
    check_overlaps(problem, &bound).map(|()| bound)
}

/// Checks that A is multiplied by two different matrices, that no output overlaps another output or
/// a factor of the product, and that an output that overlaps an input of the epilogue has the
/// input's address, dtype and strides.
fn check_overlaps(problem: &Problem, bound: &BoundEpilogue) -> Result<(), ProblemError> {
    let out = problem.out();
    let graph = &bound.epilogue.graph;
    let b = problem.views()[1];
    if let Some((name, factor)) = bound.factor()
        && factor.data == b.data
        && !(factor.fake || b.fake)
        && factor.numel() > 0
    {
        return Err(ProblemError::FactorIsB { name });
    }
    let written = |at: usize| -> (&'static str, &View) {
        (&graph.outputs[at].name, bound.outputs[at].as_ref().unwrap_or(out))
    };
    for at in 0..bound.outputs.len() {
        let (name, output) = written(at);
        if bound.outputs[at].is_some() {
            let is_earlier = |other: &usize| *other < at || bound.outputs[*other].is_none();
            for (other, view) in (0..bound.outputs.len()).filter(is_earlier).map(written) {
                if may_overlap(output, view) {
                    return Err(ProblemError::SharedOutputs { name, other });
                }
            }
            let operands = problem.operands();
            let factors = &operands[..operands.len() - 1];
            if let Some((other, _)) = factors.iter().find(|(_, view)| may_overlap(output, view)) {
                return Err(ProblemError::OverwrittenInput { name, other });
            }
        }
        // In place is safe per element: the same thread reads an element before writing it.
        for (input_at, (other, value)) in graph.inputs.iter().zip(&bound.inputs).enumerate() {
            let (input, is_factor) = match value {
                Value::Tensor(input) => (input, false),
                Value::Factor(input) | Value::Panel(input) => (input, true),
                Value::Segment { view, .. } => (view, true),
                Value::Scalar(_) => continue,
            };
            let scaling = graph.scaling.as_ref();
            let is_scale = scaling.is_some_and(|scaling| scaling.factor_of(input_at).is_some());
            let same = !is_factor
                && !is_scale
                && input.data == output.data
                && input.stride == output.stride
                && input.dtype == output.dtype;
            if !same && may_overlap(output, input) {
                return Err(ProblemError::OverwrittenInput { name, other });
            }
        }
    }
    Ok(())
}

fn not_broadcast(name: &'static str, view: &View, problem: &Problem) -> ProblemError {
    let out = problem.out();
    let (shape, out_shape) = (view.user_shape().to_vec(), out.user_shape().to_vec());
    match problem {
        Problem::GroupedGemm(grouped) if !grouped.is_along_k() => {
            let rows = [grouped.groups(), 1, out.shape[2]];
            ProblemError::NotBroadcastToGroups { name, shape, out_shape, rows }
        }
        _ => ProblemError::NotBroadcast { name, shape, out_shape },
    }
}

/// Maps the user's dimensions, which index the output's shape, to batch, m and n. None: all.
fn resolve_dims(
    name: &'static str,
    dims: &[i32],
    problem: &Problem,
) -> Result<[bool; 3], ProblemError> {
    if !matches!(problem, Problem::Gemm(_)) {
        return Err(ProblemError::NotReduced { name });
    }
    let rank = problem.out().rank as i32;
    let mut along = [0, 1, 2].map(|dim| dims.is_empty() && dim >= 3 - rank);
    for dim in dims {
        let counted = if *dim < 0 { dim + rank } else { *dim };
        if !(0..rank).contains(&counted) {
            let out_shape = problem.out().user_shape().to_vec();
            return Err(ProblemError::ReducedDimension { name, dim: *dim, out_shape });
        }
        along[(3 - rank + counted) as usize] = true;
    }
    match along {
        [_, false, false] => {
            Err(ProblemError::ReducedBatch { name, out_shape: problem.out().user_shape().to_vec() })
        }
        _ => Ok(along),
    }
}

/// The view of a reduction's output with extent 1 along the reduced dimensions, which the user may
/// have kept or dropped.
fn view_of_reduction(
    name: &'static str,
    view: &View,
    out: &View,
    along: [bool; 3],
) -> Result<View, ProblemError> {
    let first = 3 - out.rank;
    let kept: Vec<i64> =
        (first..3).map(|dim| if along[dim] { 1 } else { out.shape[dim] }).collect();
    let squeezed: Vec<i64> =
        (first..3).filter(|dim| !along[*dim]).map(|dim| out.shape[dim]).collect();
    // One element is what is left of all dimensions, whatever the rank of its tensor.
    if view.user_shape() == kept || (squeezed.is_empty() && view.numel() == 1) {
        return Ok(*view);
    }
    if view.user_shape() != squeezed {
        let shape = view.user_shape().to_vec();
        return Err(ProblemError::ReductionShape { name, shape, kept, squeezed });
    }
    let (mut shape, mut stride) = ([1; 3], [0; 3]);
    let dims = (first..3).filter(|dim| !along[*dim]);
    for (dim, (extent, step)) in dims.zip(view.user_shape().iter().zip(view.user_stride())) {
        (shape[dim], stride[dim]) = (*extent, *step);
    }
    Ok(View { rank: 3, shape, stride, ..*view })
}

/// Checks that an epilogue does not read the elements of the matrix that A is multiplied by.
fn check_reads(name: &'static str, graph: &ExpressionGraph) -> Result<(), ProblemError> {
    let reads = |(node, used): (&Node, bool)| {
        used && matches!(node, Node::Input(at) if Some(*at as usize) == graph.factor())
    };
    match graph.nodes.iter().zip(graph.used()).any(reads) {
        true => Err(ProblemError::FactorRead { name }),
        false => Ok(()),
    }
}

/// The view of the matrix that A is multiplied by in addition to B, with B's shape.
fn factor_like_b(name: &'static str, view: &View, problem: &Problem) -> Result<View, ProblemError> {
    let b = match problem {
        Problem::Gemm(gemm) => &gemm.b,
        Problem::GroupedGemm(grouped) if !grouped.is_along_k() => &grouped.b,
        Problem::GroupedGemm(_) | Problem::Elementwise(_) => {
            return Err(ProblemError::NoProduct { name });
        }
    };
    let broadcast = view.broadcast(b.shape).filter(|view| {
        let strides = view.stride.iter().zip(b.stride).zip(b.shape);
        view.dtype == b.dtype
            && strides.into_iter().all(|((ours, of_b), extent)| *ours == of_b || extent <= 1)
    });
    match broadcast {
        Some(factor) => Ok(factor),
        None => Err(ProblemError::UnlikeB {
            name,
            dtype: view.dtype,
            shape: view.user_shape().to_vec(),
            stride: view.user_stride().to_vec(),
            b_dtype: b.dtype,
            b_shape: b.user_shape().to_vec(),
            b_stride: b.user_stride().to_vec(),
        }),
    }
}
