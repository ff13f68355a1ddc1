//! Generates the CUDA C++ functor of a prologue; `kernels/rows.cuh` documents its interface. As in
//! an epilogue's, the code contains no text of the user.

use std::fmt::Write;

use super::cuda_expression::Expressions;
use super::{
    ExpressionGraph, Id, Input, Kind, Node, Plan, Prologue, RowReduction, Step, TensorType,
};

/// The definitions of `PrologueParams` and `Prologue`.
pub fn prologue_functor(prologue: &Prologue) -> String {
    let plan = Plan::of(prologue);
    let expressions =
        Expressions { graph: &prologue.graph, kinds: plan.kinds.clone(), float: "f32" };
    let writer = Writer { prologue, graph: &prologue.graph, plan: &plan, expressions };
    let (params, words) = writer.params();
    let (operands, loads) = writer.loads();
    let counts: Vec<String> = (0..plan.passes)
        .map(|pass| format!("PASS == {pass} ? {} : ", writer.reductions(pass).len()))
        .collect();
    format!(
        r"struct PrologueParams {{
{params}}};
static_assert(sizeof(PrologueParams) == {bytes}, {disagree:?});

struct Prologue {{
  static constexpr int WIDTH = {width}, KEPT = {vectors}, PASSES = {passes};
  template <int PASS> static constexpr int REDUCTIONS = {counts}1;
  using Activation = {activation};
  const PrologueParams& params;

  struct Row {{ f32 values[{kept}]; }};

  struct Inputs {{
{operands}  }};

  template <int PASS>
  __device__ __forceinline__ void load(Inputs& inputs, int batch, int m, int k, int valid) const {{
{loads}  }}

  template <int PASS>
  static __device__ __forceinline__ f32 identity(int reduction) {{
{identities}    return 0.0f;
  }}

  template <int PASS>
  static __device__ __forceinline__ f32 combine(int reduction, f32 x, f32 y) {{
{combinations}    return x + y;
  }}

  template <int PASS>
  __device__ __forceinline__ void fold(f32 (&folded)[REDUCTIONS<PASS>], const Inputs& inputs,
                                       const Row& row, int valid) const {{
{folds}  }}

  template <int PASS>
  __device__ __forceinline__ void finish(Row& row, const f32 (&folded)[REDUCTIONS<PASS>],
                                         f32 depth) const {{
{finishes}  }}

  __device__ __forceinline__ void apply(f32 (&values)[WIDTH], const Inputs& inputs, const Row& row,
                                        const Place& place) const {{
{apply}  }}

  __device__ __forceinline__ void store_numbers(const Row& row, int batch, int m) const {{
{numbers}  }}
}};
",
        bytes = 8 * words,
        disagree = "host and kernel disagree",
        width = prologue.width(),
        vectors = prologue.kept_vectors(),
        activation = prologue.dtype.short_name(),
        passes = plan.passes,
        kept = plan.kept.len().max(1),
        counts = counts.concat(),
        identities = writer.of_reductions(|fold| format!("fused::{fold}::identity<f32>()")),
        combinations = writer.of_reductions(|fold| format!("fused::{fold}::apply(x, y)")),
        folds = writer.folds(),
        finishes = writer.finishes(),
        apply = writer.apply(),
        numbers = writer.numbers(),
    )
}

struct Writer<'a> {
    prologue: &'a Prologue,
    graph: &'a ExpressionGraph,
    plan: &'a Plan,
    expressions: Expressions<'a>,
}

impl Writer<'_> {
    fn reductions(&self, pass: usize) -> Vec<(Id, RowReduction, Id)> {
        self.plan.reductions(self.graph, pass)
    }

    /// The fields of the parameter block, and its words of 8 bytes.
    fn params(&self) -> (String, usize) {
        let tensors = self.prologue.tensors();
        // Writing to a string cannot fail, so results are dropped.
        let mut params = format!("  EpilogueTensor tensors[{tensors}];\n");
        let mut words = 4 * tensors;
        for (input, place) in self.prologue.inputs.iter().zip(self.prologue.input_places()) {
            if let Input::Scalar(_) = input {
                let _ = writeln!(params, "  alignas(8) f32 scalar{place};");
                words += 1;
            }
        }
        (params, words)
    }

    /// The nodes that a pass computes for each element; those of the last pass store.
    fn needed(&self, pass: usize) -> Vec<bool> {
        match pass < self.plan.passes {
            true => {
                let roots = self.reductions(pass).into_iter().map(|(_, _, value)| value);
                self.plan.needed(self.graph, roots)
            }
            false => {
                let roots = self.graph.outputs.iter().map(|output| output.node);
                self.plan.needed(self.graph, roots)
            }
        }
    }

    /// The registers of the inputs, and the loads of each pass.
    fn loads(&self) -> (String, String) {
        let (mut operands, mut loads) = (String::new(), String::new());
        let needed: Vec<_> = (0..=self.plan.passes).map(|pass| self.needed(pass)).collect();
        let places = self.prologue.input_places();
        for (at, node) in self.graph.nodes.iter().enumerate() {
            let (tensor, name, place) = match *node {
                Node::Activation => (self.prologue.a, "a".to_owned(), 0),
                Node::Input(input) => match self.prologue.inputs[input as usize] {
                    Input::Tensor(tensor) => {
                        (tensor, format!("input{input}"), places[input as usize])
                    }
                    _ => continue,
                },
                _ => continue,
            };
            let passes: Vec<String> = (0..=self.plan.passes)
                .filter(|pass| needed[*pass][at])
                .map(|pass| format!("PASS == {pass}"))
                .collect();
            if passes.is_empty() {
                continue;
            }
            let (element, [along_m, along_k]) = (tensor.dtype.short_name(), tensor.steps);
            let width = if along_k == Step::Repeats { "1, 1" } else { "WIDTH, WIDTH" };
            let _ = writeln!(operands, "    RowElements<{element}, {width}> {name};");
            let _ = writeln!(
                loads,
                "    if constexpr (PASS < 0 || {})\n      load_operand<{}, {}>(inputs.{name}, \
                 params.tensors[{place}], batch, m, k, valid);",
                passes.join(" || "),
                along_m.name(),
                along_k.name(),
            );
        }
        (operands, loads)
    }

    /// For each reduction of each pass, a return of what `text` makes of the type of its operation.
    fn of_reductions(&self, text: impl Fn(&str) -> String) -> String {
        let mut returns = String::new();
        for pass in 0..self.plan.passes {
            for (index, (_, reduction, _)) in self.reductions(pass).into_iter().enumerate() {
                let text = text(reduction.fold().record().cuda);
                let _ = writeln!(
                    returns,
                    "    if (PASS == {pass} && reduction == {index}) return {text};"
                );
            }
        }
        returns
    }

    /// The number kept for each row that a node is, converted to its kind.
    fn kept(&self, id: Id) -> Option<String> {
        let at = self.plan.kept.iter().position(|kept| *kept == id)?;
        Some(match self.expressions.kind(id) {
            Kind::Truth => format!("row.values[{at}] != 0.0f"),
            _ => format!("row.values[{at}]"),
        })
    }

    /// The declarations of nodes of an element.
    fn elements(&self, needed: &[bool]) -> String {
        let mut body = String::new();
        for at in (0..needed.len()).filter(|at| needed[*at]) {
            let id = at as Id;
            let value = match (self.plan.is_of_row[at], self.graph.node(id)) {
                (true, _) => self.kept(id).unwrap_or_default(),
                (_, Node::Activation) => element("a", self.prologue.a, "f32"),
                (_, Node::Input(input)) => self.input(id, input),
                _ => self.expressions.operation(id).unwrap_or_default(),
            };
            let _ = writeln!(body, "        {}", self.expressions.declaration(id, &value));
        }
        body
    }

    fn input(&self, id: Id, input: u32) -> String {
        match self.prologue.inputs[input as usize] {
            Input::Tensor(tensor) => {
                let to = self.expressions.type_name(self.expressions.kind(id));
                element(&format!("input{input}"), tensor, to)
            }
            _ => format!("params.scalar{}", self.prologue.input_places()[input as usize]),
        }
    }

    fn folds(&self) -> String {
        let mut text = String::new();
        for pass in 0..self.plan.passes {
            let mut body = self.elements(&self.needed(pass));
            for (index, (_, reduction, value)) in self.reductions(pass).into_iter().enumerate() {
                let (fold, value) =
                    (reduction.fold().record().cuda, self.expressions.value(value, Kind::Float));
                let _ = writeln!(
                    body,
                    "        if (e < valid) folded[{index}] = fused::{fold}::apply(folded[{index}], {value});"
                );
            }
            let _ = write!(
                text,
                "    if constexpr (PASS == {pass}) {{\n#pragma unroll\n      for (int e = 0; e < \
                 WIDTH; ++e) {{\n{body}      }}\n    }}\n"
            );
        }
        text
    }

    /// The numbers of a row that are known behind each pass.
    fn finishes(&self) -> String {
        let mut text = String::new();
        for pass in 0..self.plan.passes {
            let mut body = String::new();
            for (index, (id, reduction, _)) in self.reductions(pass).into_iter().enumerate() {
                let Some(kept) = self.kept(id) else { continue };
                let value = match reduction {
                    RowReduction::Mean => format!("folded[{index}] / depth"),
                    _ => format!("folded[{index}]"),
                };
                let _ = writeln!(body, "      {kept} = {value};");
            }
            let is_new = |id: &Id| {
                self.plan.passes_before[*id as usize] == pass + 1
                    && !matches!(self.graph.node(*id), Node::Reduce(..))
            };
            let new: Vec<Id> = self.plan.kept.iter().copied().filter(is_new).collect();
            let mut needed = vec![false; self.graph.nodes.len()];
            new.iter().for_each(|id| needed[*id as usize] = true);
            for at in (0..needed.len())
                .rev()
                .filter(|at| !matches!(self.graph.nodes[*at], Node::Reduce(..)))
                .collect::<Vec<_>>()
            {
                if needed[at] {
                    self.graph.operands(at as Id).for_each(|of| needed[of as usize] = true);
                }
            }
            for at in (0..needed.len()).filter(|at| needed[*at]) {
                let id = at as Id;
                let value = match self.graph.node(id) {
                    Node::Reduce(..) => self.kept(id).unwrap_or_default(),
                    Node::Input(input) => self.input(id, input),
                    _ => self.expressions.operation(id).unwrap_or_default(),
                };
                let _ = writeln!(body, "      {}", self.expressions.declaration(id, &value));
            }
            for id in new {
                let at = self.plan.kept.iter().position(|kept| *kept == id).unwrap_or_default();
                let value = self.expressions.value(id, Kind::Float);
                let _ = writeln!(body, "      row.values[{at}] = {value};");
            }
            let _ = write!(text, "    if constexpr (PASS == {pass}) {{\n{body}    }}\n");
        }
        text
    }

    /// The elements of A, and the stores of further outputs.
    fn apply(&self) -> String {
        let (mut results, mut stores) = (String::new(), String::new());
        let mut body = self.elements(&self.needed(self.plan.passes));
        for (index, (output, place)) in
            self.graph.outputs.iter().zip(self.prologue.output_places()).enumerate()
        {
            let Some(place) = place else {
                let value = self.expressions.value(output.node, Kind::Float);
                let _ = writeln!(body, "        values[e] = {value};");
                continue;
            };
            let tensor = self.prologue.outputs[index];
            if tensor.steps[1] == Step::Repeats {
                continue;
            }
            let kind = self.expressions.kind(output.node).max(Kind::Integer);
            let value = self.expressions.type_name(kind);
            let (element, along_k) = (tensor.dtype.short_name(), tensor.steps[1].name());
            let _ = writeln!(results, "    {value} output{index}[WIDTH];");
            let _ = writeln!(body, "        output{index}[e] = v{};", output.node);
            let _ = writeln!(
                stores,
                "    store_operand<{along_k}, {element}, WIDTH, WIDTH>(output{index}, \
                 params.tensors[{place}], place);"
            );
        }
        format!(
            "{results}#pragma unroll\n    for (int e = 0; e < WIDTH; ++e) {{\n{body}    }}\n{stores}"
        )
    }

    /// The stores of outputs that are one number for each row.
    fn numbers(&self) -> String {
        let mut stores = String::new();
        for (index, (output, place)) in
            self.graph.outputs.iter().zip(self.prologue.output_places()).enumerate()
        {
            let tensor = self.prologue.outputs[index];
            let (Some(place), Step::Repeats) = (place, tensor.steps[1]) else { continue };
            let (element, value) =
                (tensor.dtype.short_name(), self.kept(output.node).unwrap_or_default());
            let _ = writeln!(
                stores,
                "    *element_at<Step::ANY, Step::REPEATS, {element}>(params.tensors[{place}], \
                 batch, m, 0) = encode<{element}>({value});"
            );
        }
        stores
    }
}

/// The element of a vector of an operand, as a number of this type.
fn element(operand: &str, tensor: TensorType, to: &str) -> String {
    let e = if tensor.steps[1] == Step::Repeats { "0" } else { "e" };
    format!("{to}(decode(inputs.{operand}.elements[{e}]))")
}
