//! The products of `cutlass_api.nn.Linear` in eager mode.

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::dispatch::{computes_alone, empty_cuda};
use super::dtype::natural_accumulator;
use super::fused_operands::EpilogueOperands;
use super::product::{read_factor, run};
use super::ranges::Range;
use super::trace::trace_epilogue;
use crate::operand::{self, View};
use crate::problem::{GemmProblem, Problem};

/// Returns epilogue(input @ B, *operands) for an input (*, K) of rank 2 or 3, in `out_dtype`,
/// without a call of torch's dispatcher. None where torch has to see the call (autograd, autocast,
/// a trace, a transform, a subclass of tensors), and for operands that do not fit: the caller then
/// calls an operator of `torch.ops.cutlass_api`.
///
/// out_dtype: by default the input's. B: (K, N), or the words (N, K / 32, 4) of a repacked weight
/// of the type `element`. operands and epilogue: as of `launch_gemm`.
#[pyfunction]
#[pyo3(signature = (input, B, *operands, epilogue = None, element = None, out_dtype = None))]
#[allow(non_snake_case)]
pub fn launch_linear<'py>(
    input: &Bound<'py, PyAny>,
    B: &Bound<'py, PyAny>,
    operands: &Bound<'py, PyTuple>,
    epilogue: Option<&Bound<'py, PyAny>>,
    element: Option<&str>,
    out_dtype: Option<&Bound<'py, PyAny>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = input.py();
    if !computes_alone(input, operands)? {
        return Ok(None);
    }
    let _range =
        Range::of_call(py, "cutlass_api::linear", || Ok((PyTuple::new(py, [input, B])?, None)));
    match multiply(input, B, operands, epilogue, element, out_dtype) {
        Err(error)
            if error.is_instance_of::<PyValueError>(py)
                || error.is_instance_of::<PyTypeError>(py)
                || error.is_instance_of::<PyBufferError>(py) =>
        {
            Ok(None)
        }
        result => result,
    }
}

fn multiply<'py>(
    input: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    operands: &Bound<'py, PyTuple>,
    epilogue: Option<&Bound<'py, PyAny>>,
    element: Option<&str>,
    out_dtype: Option<&Bound<'py, PyAny>>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let mut a = View::UNREAD;
    operand::read_into("input", input, &mut a)?;
    if a.rank < 2 {
        return Ok(None);
    }
    let b = read_factor(b, element, false)?;
    let out = allocate(input, &a, b.shape[2], out_dtype)?;
    let (Some(rows), Some(target)) = (a.rows(), operand::read("out", &out)?.rows()) else {
        return Ok(None);
    };
    let problem = Problem::Gemm(GemmProblem {
        a: rows,
        b,
        out: target,
        accumulator: natural_accumulator(a.dtype, b.dtype),
        ..GemmProblem::UNREAD
    });
    match epilogue.map(|source| trace_epilogue(input.py(), source)).transpose()? {
        None if operands.is_empty() => run(input, &problem, None, None)?,
        None => return Ok(None),
        Some(traced) => {
            let graph = &traced.get().graph;
            run(
                input,
                &problem,
                Some(&EpilogueOperands::ordered(graph, &target, operands)?),
                None,
            )?;
        }
    }
    Ok(Some(out))
}

/// A tensor with N columns of this dtype, by default the input's.
fn allocate<'py>(
    input: &Bound<'py, PyAny>,
    a: &View,
    n: i64,
    dtype: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (py, extents, is_batch) = (input.py(), [a.shape[0], a.shape[1], n], a.rank == 3);
    if let Some(out) = empty_cuda(input, a.device, extents, is_batch, dtype)? {
        return Ok(out);
    }
    let shape = PyTuple::new(py, &extents[usize::from(!is_batch)..])?;
    let kwargs = PyDict::new(py);
    kwargs.set_item("dtype", dtype)?;
    input.call_method(intern!(py, "new_empty"), (shape,), Some(&kwargs))
}
