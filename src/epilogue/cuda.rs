//! Generates the CUDA C++ functor of an epilogue; `kernels/common/epilogue.cuh` documents its
//! interface.
//!
//! The code contains no text of the user: names are replaced by indices, and numbers are printed
//! from their values.

use std::fmt::Write;

use super::cuda_expression::Expressions;
use super::cuda_scales::{factors, scaling};
use super::{Epilogue, Id, Input, Kind, MAIN_OUTPUT, Node, Step, compute_type};
use crate::operand::DType;

/// The definitions of `EpilogueParams` and `Epilogue` for a kernel with this accumulator.
/// `transposed`: the kernel computes the transposed product, whose rows are the user's columns.
/// `swapped`: the tensor cores' A is the program's B.
pub fn functor(epilogue: &Epilogue, accumulator: DType, transposed: bool, swapped: bool) -> String {
    let functor = Functor::new(epilogue, accumulator, transposed);
    let (graph, used) = (&epilogue.graph, epilogue.graph.used());
    let (input_places, output_places) = (epilogue.input_places(), epilogue.output_places());
    let type_of = |kind: Kind| functor.expressions.type_name(kind);

    // Writing to a string cannot fail, so results are dropped.
    let mut params = String::new();
    let inputs = epilogue.inputs.iter().filter_map(|input| input.tensor()).count();
    let tensors = inputs + output_places.iter().flatten().count();
    let mut words = 4 * tensors;
    if tensors > 0 {
        let _ = writeln!(params, "  EpilogueTensor tensors[{tensors}];");
    }
    for (input, place) in epilogue.inputs.iter().zip(&input_places) {
        if let Input::Scalar(kind) = input {
            let _ = writeln!(params, "  alignas(8) {} scalar{place};", type_of(*kind));
            words += 1;
        }
    }
    let segments = functor.segments(&input_places);
    if !segments.is_empty() {
        // The first columns of further matrices B.
        for at in 0..graph.panels().count() {
            let _ = writeln!(params, "  alignas(8) s32 start{at};");
            words += 1;
        }
    }
    if words == 0 {
        params.push_str("  unsigned long long nothing;\n");
        words = 1;
    }

    let (mut operands, mut loads, mut loads_below) = <(String, String, String)>::default();
    let (mut results, mut body, mut stores) = <(String, String, String)>::default();
    let (mut folded, mut identities, mut reductions) = <(String, String, String)>::default();
    for (at, node) in graph.nodes.iter().enumerate().filter(|(at, _)| used[*at]) {
        if let Node::Input(input) = node
            && let Some(tensor) = epilogue.inputs[*input as usize].tensor()
        {
            let (place, element) = (input_places[*input as usize], tensor.dtype.short_name());
            let source = match epilogue.inputs[*input as usize] {
                Input::Segment(_) if transposed => format!("segment{input}(m)"),
                Input::Segment(_) => format!("segment{input}(n)"),
                _ => format!("params.tensors[{place}]"),
            };
            let [along_m, along_n] = tensor.program_steps(transposed);
            // One element serves all columns of the row.
            let width = if along_n == Step::Repeats { "1, 1" } else { "WIDTH, RUN" };
            let _ = writeln!(operands, "    RowElements<{element}, {width}> input{input};");
            let (along_m_name, along_n) = (along_m.name(), along_n.name());
            let load = format!(
                "    load_operand<{along_m_name}, {along_n}>(operands.input{input}, {source}, \
                 batch, m, n, valid);"
            );
            let _ = writeln!(loads, "{load}");
            let _ = match along_m {
                Step::Repeats => {
                    writeln!(loads_below, "    operands.input{input} = above.input{input};")
                }
                _ => writeln!(loads_below, "{load}"),
            };
        }
        let text = functor.expression(at as Id, &input_places);
        let _ = writeln!(body, "      {}", functor.expressions.declaration(at as Id, &text));
    }

    let integers = accumulator.is_integer();
    let mut as_float = false;
    let reduced = epilogue.reductions(accumulator, transposed);
    for (index, (output, place)) in graph.outputs.iter().zip(&output_places).enumerate() {
        let (node, kind) = (output.node, functor.expressions.kind(output.node));
        if let (Some(place), Some(reduction)) =
            (place, reduced.iter().find(|reduction| reduction.output == index))
        {
            let (value, fold) = (reduction.compute.short_name(), reduction.fold.record().cuda);
            let _ = writeln!(folded, "    {value} fold{index}[WIDTH];");
            let _ = writeln!(
                identities,
                "        fold{index}[e] = fused::{fold}::identity<{value}>();"
            );
            let _ = writeln!(
                body,
                "      if (run_column<WIDTH, RUN>(e) < place.valid) folded.fold{index}[e] = \
                 {value}(v{node});"
            );
            let function = match reduction.along {
                [_, _, true] => format!("reduce_n<fused::{fold}, LANES_N>"),
                [_, _, false] => format!("reduce_m<fused::{fold}, LANES_M, LANES_N, RUN>"),
            };
            let _ = writeln!(
                reductions,
                "    {function}(folded.fold{index}, params.tensors[{place}], place);"
            );
        } else if let Some(place) = place {
            let (value, tensor) = (type_of(kind.max(Kind::Integer)), epilogue.outputs[index]);
            let (element, [_, along_n]) =
                (tensor.dtype.short_name(), tensor.program_steps(transposed));
            let _ = writeln!(results, "    {value} output{index}[WIDTH];");
            let _ = writeln!(body, "      output{index}[e] = v{node};");
            let _ = writeln!(
                stores,
                "    store_operand<{}, {element}, WIDTH, RUN>(output{index}, \
                 params.tensors[{place}], place);",
                along_n.name()
            );
        } else if output.name == MAIN_OUTPUT {
            as_float = integers && kind == Kind::Float;
            let value =
                if as_float { format!("__float_as_int(v{node})") } else { format!("v{node}") };
            let _ = writeln!(body, "      values[e] = {value};");
        }
    }
    let result = if as_float {
        "static __device__ __forceinline__ f32 result(s32 value) { return __int_as_float(value); }"
    } else {
        "template <class Value> static __device__ __forceinline__ Value result(Value value) { \
         return value; }"
    };

    format!(
        r"struct EpilogueParams {{
{params}}};
static_assert(sizeof(EpilogueParams) == {bytes}, {disagree:?});

struct Epilogue {{
  static constexpr bool REDUCES = {reduces}, DUAL = {dual};
{scaling}{factors}  const EpilogueParams& params;
{segments}
  template <int WIDTH, int RUN> struct Operands {{
{operands}  }};

  template <int WIDTH, int RUN>
  __device__ __forceinline__ void load(
      Operands<WIDTH, RUN>& operands, int batch, int m, int n, int valid) const {{
{loads}  }}

  template <int WIDTH, int RUN>
  __device__ __forceinline__ void load_below(
      Operands<WIDTH, RUN>& operands, const Operands<WIDTH, RUN>& above, int batch, int m, int n,
      int valid) const {{
{loads_below}  }}

  template <int WIDTH> struct Folded {{
{folded}    __device__ __forceinline__ void clear() {{
#pragma unroll
      for (int e = 0; e < WIDTH; ++e) {{
{identities}      }}
    }}
  }};

  template <int AT_A_TIME, class Value, int WIDTH, int RUN>
  __device__ __forceinline__ void apply(
      Value (&values)[WIDTH], {products}const Operands<WIDTH, RUN>& operands,
      Folded<WIDTH>& folded, const Place& place) const {{
{results}#pragma unroll
    for (int e = 0; e < WIDTH; ++e) {{
      in_turn<AT_A_TIME>(values, e, place);
{body}    }}
{stores}  }}

  template <int LANES_M, int LANES_N, int WIDTH, int RUN>
  __device__ __forceinline__ void reduce(
      const Operands<WIDTH, RUN>&, Folded<WIDTH>& folded, const Place& place) const {{
{reductions}  }}

  {result}
}};
",
        bytes = 8 * words,
        scaling = scaling(epilogue, transposed != swapped, &input_places),
        factors = factors(epilogue, accumulator, transposed, &input_places),
        reduces = !reduced.is_empty(),
        dual = epilogue.is_dual(),
        products = if epilogue.is_dual() { "const Value (&products)[WIDTH], " } else { "" },
        disagree = "host and kernel disagree"
    )
}

struct Functor<'a> {
    epilogue: &'a Epilogue,
    expressions: Expressions<'a>,
    transposed: bool,
}

impl Functor<'_> {
    fn new(epilogue: &Epilogue, accumulator: DType, transposed: bool) -> Functor<'_> {
        let float = compute_type(accumulator).short_name();
        let (graph, kinds) = (&epilogue.graph, epilogue.kinds(accumulator));
        Functor { epilogue, expressions: Expressions { graph, kinds, float }, transposed }
    }

    /// For each input that has a vector for each matrix B, a function: the vector of a column's
    /// matrix.
    fn segments(&self, input_places: &[usize]) -> String {
        let (graph, mut text) = (&self.epilogue.graph, String::new());
        for (first, place) in input_places.iter().enumerate() {
            let mut choice = String::new();
            for (at, further) in graph.segments(first).enumerate() {
                let _ = writeln!(
                    choice,
                    "    if (column >= params.start{at}) tensor.data = params.tensors[{}].data;",
                    input_places[further]
                );
            }
            if !choice.is_empty() {
                let _ = writeln!(
                    text,
                    "
  __device__ __forceinline__ EpilogueTensor segment{first}(int column) const {{
    EpilogueTensor tensor = params.tensors[{place}];
{choice}    return tensor;
  }}"
                );
            }
        }
        text
    }

    fn expression(&self, id: Id, input_places: &[usize]) -> String {
        let type_name = || self.expressions.type_name(self.expressions.kind(id));
        match self.epilogue.graph.node(id) {
            Node::Product(_) => "products[e]".to_owned(),
            // No output depends on the node.
            Node::Panel(_) | Node::Segment { .. } => format!("{}(0)", type_name()),
            Node::Input(input) => match self.epilogue.inputs[input as usize] {
                of @ (Input::Tensor(_) | Input::Segment(_)) => {
                    let steps = of.tensor().map(|tensor| tensor.program_steps(self.transposed));
                    let e = if steps.is_some_and(|steps| steps[1] == Step::Repeats) {
                        "0"
                    } else {
                        "e"
                    };
                    format!("{}(decode(operands.input{input}.elements[{e}]))", type_name())
                }
                Input::Scalar(_) => format!("params.scalar{}", input_places[input as usize]),
                // `fuse` refuses an epilogue that also reads the elements of a factor.
                Input::Factor(_) | Input::Panel { .. } => format!("{}(0)", type_name()),
            },
            // The accumulator, scaled or not.
            _ => self.expressions.operation(id).unwrap_or_else(|| "values[e]".to_owned()),
        }
    }
}
