//! Generates the members of an epilogue's functor that scale the sums of the main loop: by blocks
//! of K, and by rows and columns.

use std::fmt::Write;

use super::{BlockScale, Epilogue, Input, Scaling, Step, compute_type};
use crate::operand::DType;

/// The members that apply block scales. `reversed`: the tensor cores' A is the user's B.
pub(super) fn scaling(epilogue: &Epilogue, reversed: bool, input_places: &[usize]) -> String {
    let scaling = epilogue.graph.scaling;
    let scales = scaling.is_some();
    let scaling = scaling.unwrap_or_default();
    let Scaling { a, b, .. } = if reversed { scaling.transposed() } else { scaling };
    let dims = |of: Option<BlockScale>| of.map_or((0, 0), |of| (of.extent, of.depth));
    let ((a_rows, a_depth), (b_columns, b_depth)) = (dims(a), dims(b));
    let is_whole = |of: Option<BlockScale>| of.is_some_and(|of| of.is_whole());
    let (a_whole, b_whole) = (is_whole(a), is_whole(b));
    let has_zero = |of: Option<BlockScale>| of.is_some_and(|of| of.zero.is_some());
    let (a_zero, b_zero) = (has_zero(a), has_zero(b));
    let mut text = format!(
        "  static constexpr bool SCALES = {scales};
  static constexpr int A_ROWS = {a_rows}, A_DEPTH = {a_depth};
  static constexpr int B_COLUMNS = {b_columns}, B_DEPTH = {b_depth};
  static constexpr bool A_WHOLE = {a_whole}, B_WHOLE = {b_whole};
  static constexpr bool A_ZERO = {a_zero}, B_ZERO = {b_zero};\n"
    );
    // Element type and name of the tensor of a scale or zero point.
    let tensor_of = |(input, of): (u32, BlockScale)| {
        let Input::Tensor(tensor) = epilogue.inputs[input as usize] else { return None };
        let place = input_places[input as usize];
        Some((tensor.dtype.short_name(), format!("params.tensors[{place}]"), of))
    };
    let function = |name: &str, coordinate: &str, of: Option<(u32, BlockScale)>, none: &str| {
        let value = match of.and_then(tensor_of) {
            Some((element, tensor, BlockScale { extent, is_swizzled, .. })) => format!(
                "block_scale<{element}, {is_swizzled}>({tensor}, batch, {coordinate} / {extent}, \
                 block)"
            ),
            None => none.to_owned(),
        };
        format!(
            "  __device__ __forceinline__ f32 {name}(int batch, int {coordinate}, int block) const \
             {{\n    return {value};\n  }}\n"
        )
    };
    let scale = |of: Option<BlockScale>| of.map(|of| (of.scale, of));
    let zero = |of: Option<BlockScale>| of.and_then(|of| Some((of.zero?, of)));
    // Scales that are not swizzled lie at equal distances along K.
    let linear = |name: &str, coordinate: &str, of: Option<(u32, BlockScale)>| {
        let (element, at, step, stride) = match of.and_then(tensor_of) {
            Some((element, tensor, BlockScale { extent, .. })) => {
                let at = format!(
                    "static_cast<const {element}*>({tensor}.data) + {tensor}.stride[0] * batch + \
                     {tensor}.stride[1] * ({coordinate} / {extent})"
                );
                (element, at, format!("{tensor}.stride[2]"), format!("{tensor}.stride[1]"))
            }
            None => ("f32", "nullptr".to_owned(), "0".to_owned(), "0".to_owned()),
        };
        let (side, kind) = name.split_at(1);
        format!(
            "  using {side}{kind} = {element};
  __device__ __forceinline__ const {element}* {lower}s(int batch, int {coordinate}) const {{
    return {at};
  }}
  __device__ __forceinline__ long long {lower}_step() const {{ return {step}; }}
  __device__ __forceinline__ long long {lower}_stride() const {{ return {stride}; }}\n",
            lower = format!("{}_{}", side.to_lowercase(), kind.to_lowercase()),
        )
    };
    let is_linear = |of: Option<BlockScale>| !of.is_some_and(|of| of.is_swizzled);
    let _ = writeln!(
        text,
        "  static constexpr bool A_LINEAR = {}, B_LINEAR = {};",
        is_linear(a),
        is_linear(b)
    );
    text.push_str(&linear("AScale", "m", scale(a)));
    text.push_str(&linear("BScale", "n", scale(b)));
    text.push_str(&linear("AZero", "m", zero(a)));
    text.push_str(&linear("BZero", "n", zero(b)));
    text.push_str(&function("scale_a", "m", scale(a), "1.0f"));
    text.push_str(&function("scale_b", "n", scale(b), "1.0f"));
    text.push_str(&function("zero_a", "m", zero(a), "0.0f"));
    text.push_str(&function("zero_b", "n", zero(b), "0.0f"));
    text
}

/// The members of an epilogue that multiplies by factors of a row or a column, or by none: a kernel
/// may multiply its sums by them and store the products without `apply`.
pub(super) fn factors(
    epilogue: &Epilogue,
    accumulator: DType,
    transposed: bool,
    input_places: &[usize],
) -> String {
    let inputs = (compute_type(accumulator) == DType::F32).then(|| epilogue.factors()).flatten();
    let (mut rows, mut columns) = (Vec::new(), Vec::new());
    for input in inputs.iter().flatten() {
        let Input::Tensor(tensor) = epilogue.inputs[*input as usize] else { continue };
        let place = input_places[*input as usize];
        let steps @ [along_m, along_n] = tensor.program_steps(transposed);
        let [m, n] = steps.map(Step::name);
        let (values, at) = match (along_m, along_n) {
            (_, Step::Repeats) => (&mut rows, "m, 0"),
            _ => (&mut columns, "0, n"),
        };
        values.push(format!(
            "f32(decode(*element_at<{m}, {n}, const {}>(params.tensors[{place}], batch, {at})))",
            tensor.dtype.short_name()
        ));
    }
    let function = |name: &str, own: &str, values: &[String]| {
        let value = if values.is_empty() { "1.0f".to_owned() } else { values.join(" * ") };
        format!(
            "  __device__ __forceinline__ f32 {name}(int batch, int {own}) const {{\n    return \
             {value};\n  }}\n"
        )
    };
    format!(
        "  static constexpr bool PLAIN = {}, ROW_FACTORS = {}, COLUMN_FACTORS = {};\n{}{}",
        inputs.is_some(),
        !rows.is_empty(),
        !columns.is_empty(),
        function("row_factor", "m", &rows),
        function("column_factor", "n", &columns),
    )
}
