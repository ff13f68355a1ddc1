//! The dimensions that the kernel walks.

use crate::operand::View;
use crate::problem::ElementwiseProblem;

/// The operands with dimensions sorted by the output's strides and adjacent dimensions merged if
/// all three operands allow it. Contiguous operands become a single row. If `joined` is false, as
/// an epilogue requires, the operands are unchanged.
pub fn merged(problem: &ElementwiseProblem, joined: bool) -> [View; 3] {
    let operands = [problem.a, problem.b, problem.out];
    if !joined {
        return operands;
    }
    let mut order: Vec<usize> = (0..3).filter(|dim| problem.out.shape[*dim] != 1).collect();
    order.sort_by_key(|dim| std::cmp::Reverse(problem.out.stride[*dim]));
    // (extent, stride of each operand), outermost first.
    let mut dims: Vec<(i64, [i64; 3])> = Vec::new();
    for dim in order {
        let (extent, strides) = (problem.out.shape[dim], operands.map(|view| view.stride[dim]));
        match dims.last_mut() {
            Some((outer, outer_strides))
                if *outer_strides == strides.map(|stride| stride * extent) =>
            {
                (*outer, *outer_strides) = (*outer * extent, strides);
            }
            _ => dims.push((extent, strides)),
        }
    }
    let mut merged = operands;
    for (at, view) in merged.iter_mut().enumerate() {
        (view.shape, view.stride) = ([1; 3], [0, 0, 1]);
        for (place, (extent, strides)) in dims.iter().enumerate() {
            let dim = 3 - dims.len() + place;
            (view.shape[dim], view.stride[dim]) = (*extent, strides[at]);
        }
    }
    merged
}
