//! Block scales: checks scales and zero points of an epilogue against the factors of the product.

use super::check::check_device;
use super::{Problem, ProblemError};
use crate::epilogue::{BlockScale, SWIZZLED_TILE, Scaling, TILE_SCALES};
use crate::operand::{DType, View};

/// The element types of scales, and of zero points.
const SCALE_TYPES: [DType; 4] = [DType::F32, DType::F16, DType::Bf16, DType::E8M0];
/// Those of scales of weights of 4 bits.
const WEIGHT_SCALE_TYPES: [DType; 5] =
    [DType::F32, DType::F16, DType::Bf16, DType::E8M0, DType::E4m3];
const ZERO_TYPES: [DType; 6] =
    [DType::I8, DType::U8, DType::I32, DType::F32, DType::F16, DType::Bf16];

/// Checks the problem of an epilogue with block scales: a float32 sum of products, and an integer
/// factor where there are zero points.
pub fn check_factors(problem: &Problem, scaling: &Scaling) -> Result<(), ProblemError> {
    if problem.product().is_none() {
        return Err(ProblemError::ScaledSum);
    }
    let accumulator = problem.accumulator();
    if accumulator != DType::F32 {
        return Err(ProblemError::ScaleAccumulator { accumulator });
    }
    for (name, of) in scaling.factors() {
        let dtype = factor(problem, name).dtype;
        if of.zero.is_some() && !(dtype.is_widened() && dtype.is_integer()) {
            return Err(ProblemError::ZeroPoints { name, dtype });
        }
    }
    Ok(())
}

/// The scales or zero points of a factor as kernels address them. Checks type, device and shape.
///
/// The view has the factor's order of dimensions, in blocks: (L, rows, depth) of A, (L, depth,
/// columns) of B. The batch stride is 0 if all matrices share the scales. The view of swizzled
/// scales holds a tile's 512 scales as columns: (L, tiles down, 512 * tiles across). Of groups
/// along K, blocks count the K of all groups.
pub fn scale_view(
    name: &'static str,
    is_zero: bool,
    view: &View,
    problem: &Problem,
    (factor_name, of): (&'static str, BlockScale),
) -> Result<View, ProblemError> {
    let scaled = factor(problem, factor_name);
    let types = match is_zero {
        true => &ZERO_TYPES[..],
        false if scaled.dtype.is_whole() => &SCALE_TYPES,
        false => &WEIGHT_SCALE_TYPES,
    };
    if !types.contains(&view.dtype) {
        let known: Vec<String> = types.iter().map(DType::to_string).collect();
        let what = if is_zero { "zero points" } else { "scales" };
        let known = known.join(", ");
        return Err(ProblemError::ScaleType { name, what, dtype: view.dtype, known });
    }
    check_device(name, view, problem.out())?;
    let is_a = factor_name == "A";
    let other = factor(problem, if is_a { "B" } else { "A" });
    // Kernels convert an element of a weight and its scale to the type of the other factor.
    if !scaled.dtype.is_whole() && other.dtype == DType::F16 && view.dtype == DType::E8M0 {
        return Err(ProblemError::ScaleRange { name, dtype: view.dtype });
    }
    let [_, rows, columns] = scaled.shape;
    let (outer, k) = if is_a { (rows, columns) } else { (columns, rows) };
    let oriented = |outer: i64, deep: i64| if is_a { [outer, deep] } else { [deep, outer] };
    let depth = if of.is_whole() { -1 } else { i64::from(of.depth) };
    let block = oriented(i64::from(of.extent), depth);
    let [down, across] = of.counts(outer, k);
    let blocks = oriented(down, across);
    let refuse = |expected: [i64; 2], layout: &str| ProblemError::ScaleShape {
        name,
        shape: view.user_shape().to_vec(),
        factor: factor_name,
        factor_shape: scaled.user_shape().to_vec(),
        expected: format!("{expected:?}{layout}, one for each block of {block:?}"),
    };
    let matrices = scaled.shape[0];
    if of.is_swizzled {
        // Swizzled scales of B are those of its transpose.
        let tiles = [ceil_div(down, SWIZZLED_TILE[0]), ceil_div(across, SWIZZLED_TILE[1])];
        let row = TILE_SCALES * tiles[1];
        let size = tiles[0] * row;
        let is_shared = view.numel() == size;
        if !view.is_row_major() || !(is_shared || view.numel() == size * matrices) {
            let expected = [tiles[0] * SWIZZLED_TILE[0], tiles[1] * SWIZZLED_TILE[1]];
            return Err(refuse(expected, ", contiguous and padded to tiles of 128 x 4"));
        }
        let step = if is_shared { 0 } else { size };
        let shape = [matrices, tiles[0], row];
        return Ok(View { rank: 3, shape, stride: [step, row, 1], ..*view });
    }
    let is_known_batch =
        view.rank == 2 || (view.rank == 3 && [1, matrices].contains(&view.shape[0]));
    if !is_known_batch || view.shape[1..] != blocks {
        return Err(refuse(blocks, ""));
    }
    let shape = [matrices, blocks[0], blocks[1]];
    Ok(View { rank: 3, shape, ..*view })
}

fn factor<'a>(problem: &'a Problem, name: &str) -> &'a View {
    let views = problem.views();
    if name == "A" { views[0] } else { views[1] }
}

fn ceil_div(extent: i64, block: i64) -> i64 {
    (extent + block - 1) / block
}
