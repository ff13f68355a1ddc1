//! Problems as keys of the store: text that two processes write alike, and that a person reads.

use std::fmt::Write;

use crate::epilogue::Epilogue;
use crate::kernel::Operation;
use crate::operand::{DType, View};
use crate::problem::{Problem, ProblemOptions};

/// Batch, M, N and K. For a grouped GEMM: groups, M, N and K, of which M or K counts all groups.
pub type Extents = [i64; 4];

/// How a key counts extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// As they are.
    Exact,
    /// Rounded up to powers of two: problems of similar sizes share a result.
    PowersOfTwo,
}

impl Rounding {
    /// In the order of look-ups.
    pub const ALL: [Rounding; 2] = [Rounding::Exact, Rounding::PowersOfTwo];

    /// The name, as `autotune(key=)` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Rounding::Exact => "exact",
            Rounding::PowersOfTwo => "pow2",
        }
    }

    /// The rounded extents.
    pub fn round(self, extents: Extents) -> Extents {
        match self {
            Rounding::Exact => extents,
            Rounding::PowersOfTwo => {
                extents.map(|extent| extent.max(1).unsigned_abs().next_power_of_two() as i64)
            }
        }
    }
}

/// The extents of a problem. `None` for an elementwise sum: each layout has one kernel.
pub fn extents(problem: &Problem) -> Option<Extents> {
    match problem {
        Problem::Gemm(gemm) => {
            Some([gemm.batch(), gemm.m(), gemm.n() + gemm.further_columns, gemm.k()])
        }
        Problem::GroupedGemm(grouped) => {
            let stacked = grouped.stacked();
            Some([grouped.groups(), stacked.m(), stacked.n(), stacked.k()])
        }
        Problem::Elementwise(_) => None,
    }
}

/// The key of a problem: name of the rounding, operation, extents, operands (dtype, order,
/// alignment in bytes; for A, those of the activations of a prologue), accumulator, permitted
/// precision, epilogue. `extents`: rounded, or the result of a user's function.
pub fn key(
    problem: &Problem,
    epilogue: Option<&Epilogue>,
    allows_tf32: bool,
    name: &str,
    extents: Extents,
) -> String {
    let product = problem.of_activations(epilogue);
    let problem = product.as_ref().unwrap_or(problem);
    let mut text = String::with_capacity(128);
    let [batch, m, n, k] = extents;
    let operation = match problem {
        Problem::GroupedGemm(grouped) if grouped.is_masked() => "masked_grouped_gemm",
        Problem::GroupedGemm(grouped) if grouped.gathers() => "gathered_grouped_gemm",
        _ => Operation::of(problem).name(),
    };
    let ProblemOptions { fast_sums, free_multiprocessors: free } = problem.options();
    let accumulator = problem.accumulator();
    // Writing to a String cannot fail.
    let _ = write!(text, "{name} {operation} {batch}x{m}x{n}x{k}");
    for view in problem.views().iter().take(3) {
        let (order, alignment) = order_and_alignment(view);
        let _ = write!(text, " {}{order}{alignment}", view.dtype.short_name());
    }
    let _ = write!(text, " sums {}", accumulator.short_name());
    if fast_sums {
        text.push_str(" fast");
    }
    if free > 0 {
        let _ = write!(text, " free {free}");
    }
    if allows_tf32 && problem.views()[0].dtype == DType::F32 {
        text.push_str(" tf32");
    }
    if let Some(epilogue) = epilogue {
        let _ = write!(text, " epilogue {}", epilogue.digest());
    }
    text
}

/// t for a row-major matrix, n for a column-major one, s for other strides; and the alignment of
/// rows (columns) in bytes, 16 at most.
fn order_and_alignment(view: &View) -> (char, i64) {
    let (row, column) = (view.alignment(2), view.alignment(1));
    match view.stride {
        [_, _, 0 | 1] => ('t', row),
        [_, 0 | 1, _] => ('n', column),
        _ => ('s', row.min(column)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epilogue::{ACTIVATIONS, ExpressionGraph, Node, Output, Prologue, TensorType};
    use crate::operand::DeviceId;
    use crate::problem::GemmProblem;

    fn view(rows: i64, columns: i64, stride: [i64; 3]) -> View {
        let device = DeviceId::Cuda(0);
        let shape = [1, rows, columns];
        View { data: 256, dtype: DType::F16, device, rank: 2, shape, stride, ..View::UNREAD }
    }

    fn problem(m: i64, n: i64, k: i64) -> Problem {
        Problem::Gemm(GemmProblem {
            a: view(m, k, [0, k, 1]),
            b: view(k, n, [0, 1, k]),
            out: view(m, n, [0, n, 1]),
            accumulator: DType::F32,
            ..GemmProblem::UNREAD
        })
    }

    fn named(problem: &Problem, rounding: Rounding) -> String {
        let extents = extents(problem).expect("a product");
        key(problem, None, false, rounding.name(), rounding.round(extents))
    }

    #[test]
    fn keys_hold_orders_and_alignments() {
        let aligned = problem(64, 64, 64);
        let rounded = |problem: &Problem| named(problem, Rounding::PowersOfTwo);
        let mut moved = aligned;
        moved.views_mut()[0].data += 8;
        assert_ne!(rounded(&aligned), rounded(&moved));
        // The same power of two, but rows of 126 bytes.
        assert_ne!(rounded(&aligned), rounded(&problem(64, 64, 63)));
        let mut other = aligned;
        other.views_mut()[1].stride = [0, 64, 1];
        assert_ne!(rounded(&aligned), rounded(&other));
        let mut fast = aligned;
        if let Problem::Gemm(gemm) = &mut fast {
            gemm.options.fast_sums = true;
        }
        assert_ne!(rounded(&aligned), rounded(&fast));
        let mut shared = aligned;
        if let Problem::Gemm(gemm) = &mut shared {
            gemm.options.free_multiprocessors = 16;
        }
        assert_ne!(rounded(&aligned), rounded(&shared));
        let mut float = aligned;
        float.views_mut().into_iter().for_each(|view| view.dtype = DType::F32);
        let of = |tf32| key(&float, None, tf32, "exact", [1, 64, 64, 64]);
        assert_ne!(of(false), of(true));
        assert_eq!(key(&aligned, None, true, "a", [0; 4]), key(&aligned, None, false, "a", [0; 4]));
    }

    #[test]
    fn keys_hold_the_activations_of_a_prologue() {
        let problem = problem(64, 64, 65);
        let Problem::Gemm(gemm) = problem else { unreachable!() };
        let mut graph = ExpressionGraph::default();
        let node = graph.add(Node::Activation);
        graph.outputs.push(Output { name: ACTIVATIONS.to_owned(), node, fold: None });
        let (a, outputs) = (TensorType::of(&gemm.a), vec![TensorType::any(DType::F32)]);
        let epilogue = Epilogue {
            graph: ExpressionGraph::of_accumulator(),
            inputs: Vec::new(),
            outputs: outputs.clone(),
            reduced: vec![[false; 3]],
            prologue: Some(Prologue { graph, a, dtype: DType::I8, inputs: Vec::new(), outputs }),
        };
        let key = key(&problem, Some(&epilogue), false, "exact", [1, 64, 64, 65]);
        assert!(key.starts_with("exact gemm 1x64x64x65 s8t16 "), "{key}");
    }
}
