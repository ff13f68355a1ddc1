//! Prologues on the CPU: the activations of a product, row by row.

use rayon::prelude::*;

use super::ReferenceError;
use super::element::{Element, with_element};
use super::epilogue::{EpilogueScratch, Graph, evaluate};
use super::scratch::{ScratchMatrix, regions, room};
use crate::epilogue::{ACTIVATIONS, BoundPrologue, Kind, Prologue};
use crate::operand::{DType, View};
use crate::problem::GemmProblem;

/// Rows of A that one task computes.
const ROWS: i64 = 4;

/// The activations that a prologue computes, of its type.
pub struct Activations {
    view: View,
    _memory: Vec<f64>,
}

impl Activations {
    /// The product of these activations in place of A.
    pub fn of(&self, problem: &GemmProblem) -> GemmProblem {
        GemmProblem { a: self.view, ..*problem }
    }
}

/// Computes a prologue and stores its further outputs.
///
/// # Safety
/// As for [`run`](super::run).
pub unsafe fn activations(
    problem: &GemmProblem,
    prologue: &Prologue,
    bound: &BoundPrologue,
) -> Result<Activations, ReferenceError> {
    let (a, shape) = (&problem.a, problem.a.shape);
    let words = (a.numel() * prologue.dtype.bytes()).div_euclid(8) as usize + 1;
    let mut memory = room(words)?;
    memory.resize(words, 0.0);
    let data = memory.as_mut_ptr().expose_provenance() as u64;
    let [_, m, k] = shape;
    let result = View { data, dtype: prologue.dtype, stride: [m * k, k, 1], ..*a };
    let kinds = prologue.kinds();
    let graph =
        Graph { graph: &prologue.graph, kinds: &kinds, double: false, inputs: &bound.inputs };
    regions(shape, ROWS, k.max(1)).for_each_init(
        <([ScratchMatrix; 2], EpilogueScratch)>::default,
        |([elements, rounded], scratch), region| {
            // SAFETY: guaranteed by the caller; the operands have A's shape, and regions share no
            // row.
            unsafe {
                elements.load(a, &region);
                evaluate(&graph, [elements, elements], &region, scratch);
                for (output, view) in prologue.graph.outputs.iter().zip(&bound.outputs) {
                    let extents = [elements.rows, elements.columns];
                    let wrap = kinds[output.node as usize] != Kind::Float;
                    if output.name == ACTIVATIONS {
                        rounded.clear(elements.rows, elements.columns);
                        let values = scratch.values(output.node).iter();
                        for (to, value) in rounded.values.iter_mut().zip(values) {
                            *to = round_to_activation(prologue.dtype, *value);
                        }
                        rounded.store(&result, &region, false);
                    } else if let Some(view) = view {
                        scratch.store(output.node, view, &region, extents, wrap);
                    }
                }
            }
        },
    );
    Ok(Activations { view: result, _memory: memory })
}

/// A number as an activation. Integers round to nearest even; they and float8 saturate. NaN becomes
/// 0 in integers.
fn round_to_activation(dtype: DType, value: f64) -> f64 {
    let limits = match dtype {
        DType::I8 => [-128.0, 127.0],
        DType::U8 => [0.0, 255.0],
        DType::E4m3 => [-448.0, 448.0],
        DType::E5m2 => [-57344.0, 57344.0],
        _ => [f64::NEG_INFINITY, f64::INFINITY],
    };
    // `clamp` keeps a NaN.
    let value = value.clamp(limits[0], limits[1]);
    let value = if dtype.is_integer() { value.round_ties_even() } else { value };
    with_element!(dtype, T => T::encode(value).decode())
}
