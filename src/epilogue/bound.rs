//! An epilogue and a prologue with their operands, and the parameter block of a launch.

use super::{Epilogue, Input, Kind, MAIN_OUTPUT, Prologue, TensorType, compute_type};
use crate::operand::{DType, View};

/// The operand bound to an input.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A tensor broadcast to the shape of the output, or block scales.
    Tensor(View),
    Scalar(f64),
    /// A matrix of B's shape, dtype and strides.
    Factor(View),
    /// A further matrix B of a joint GEMM.
    Panel(View),
    /// A vector for the columns of one matrix B, which begin at `start`.
    Segment {
        view: View,
        start: i64,
    },
}

/// The operands of a prologue.
#[derive(Clone, Debug, PartialEq)]
pub struct BoundPrologue {
    /// The operand A.
    pub a: View,
    /// One per input of the graph: tensors of A's shape, and numbers.
    pub inputs: Vec<Value>,
    /// One per output of the graph; `None` for A.
    pub outputs: Vec<Option<View>>,
}

/// An epilogue with its operands.
#[derive(Clone, Debug, PartialEq)]
pub struct BoundEpilogue {
    pub epilogue: &'static Epilogue,
    /// One per input of the graph.
    pub inputs: Vec<Value>,
    /// One per output of the graph; `None` for D, which is the problem's own output.
    pub outputs: Vec<Option<View>>,
    /// The operands of `Epilogue::prologue`.
    pub prologue: Option<BoundPrologue>,
}

/// What a view of an epilogue's operand is indexed by.
enum Role {
    /// Block scales: blocks of A or of B.
    Scale,
    /// The second matrix that A is multiplied by: as B.
    Factor,
    Other,
}

impl Epilogue {
    /// The index of each input among the tensors, or among the scalars, of the parameter block.
    pub(super) fn input_places(&self) -> Vec<usize> {
        let (mut tensors, mut scalars) = (0, 0);
        let mut place = |input: &Input| {
            let next = match input {
                Input::Tensor(_) | Input::Segment(_) => &mut tensors,
                Input::Scalar(_) => &mut scalars,
                // Not in the block: the kernel's own parameter has it.
                Input::Factor(_) | Input::Panel { .. } => return 0,
            };
            *next += 1;
            *next - 1
        };
        self.inputs.iter().map(&mut place).collect()
    }

    /// The index of each output among the tensors of the parameter block, after the inputs. `None`
    /// for D.
    pub(super) fn output_places(&self) -> Vec<Option<usize>> {
        let mut tensors = self.inputs.iter().filter_map(|input| input.tensor()).count();
        let mut place = |main: bool| {
            (!main).then(|| {
                tensors += 1;
                tensors - 1
            })
        };
        self.graph.outputs.iter().map(|output| place(output.name == MAIN_OUTPUT)).collect()
    }

    /// Whether the code of this epilogue also serves another bound epilogue on the same kernel.
    pub fn serves(&self, other: &BoundEpilogue) -> bool {
        let Epilogue { graph, inputs, outputs, reduced, prologue } = other.epilogue;
        let input = |(ours, (theirs, value)): (&Input, (&Input, &Value))| match (ours, value) {
            (Input::Tensor(tensor), Value::Tensor(view)) => tensor.serves(view),
            (Input::Panel { unit, align }, _) => match theirs {
                Input::Panel { unit: of, align: to } => of % unit == 0 && to >= align,
                _ => false,
            },
            _ => ours == theirs,
        };
        let output =
            |(ours, (theirs, view)): (&TensorType, (&TensorType, &Option<View>))| match view {
                Some(view) => ours.serves(view),
                None => ours == theirs,
            };
        std::ptr::eq(self, other.epilogue)
            || (self.graph == *graph
                && self.reduced == *reduced
                && self.inputs.iter().zip(inputs.iter().zip(&other.inputs)).all(input)
                && self.outputs.iter().zip(outputs.iter().zip(&other.outputs)).all(output)
                && match (&self.prologue, prologue, &other.prologue) {
                    (Some(ours), Some(theirs), Some(bound)) => ours.serves(theirs, bound),
                    (None, None, _) => true,
                    _ => false,
                })
    }
}

impl Prologue {
    /// Whether the code of this prologue also serves another one with its operands.
    fn serves(&self, theirs: &Prologue, bound: &BoundPrologue) -> bool {
        let input = |(ours, (theirs, value)): (&Input, (&Input, &Value))| match (ours, value) {
            (Input::Tensor(tensor), Value::Tensor(view)) => tensor.serves(view),
            _ => ours == theirs,
        };
        let output = |(ours, view): (&TensorType, &Option<View>)| {
            view.as_ref().is_none_or(|view| ours.serves(view))
        };
        self.graph == theirs.graph
            && self.dtype == theirs.dtype
            && self.a.serves(&bound.a)
            && self.inputs.iter().zip(theirs.inputs.iter().zip(&bound.inputs)).all(input)
            && self.outputs.iter().zip(&bound.outputs).all(output)
    }
}

impl BoundPrologue {
    /// The words of the parameter block `PrologueParams`: tensors, A first, each as address and
    /// strides along batch, rows of A and K in elements; then one word per scalar.
    pub fn params(&self) -> Vec<u64> {
        let tensors = self.inputs.iter().filter_map(|value| match value {
            Value::Tensor(view) => Some(view),
            _ => None,
        });
        let mut words: Vec<u64> = std::iter::once(&self.a)
            .chain(tensors)
            .chain(self.outputs.iter().flatten())
            .flat_map(|view| {
                let [batch, m, k] = view.stride;
                [view.data, batch as u64, m as u64, k as u64]
            })
            .collect();
        words.extend(self.inputs.iter().filter_map(|value| match value {
            Value::Scalar(number) => Some(u64::from((*number as f32).to_bits())),
            _ => None,
        }));
        words
    }
}

impl BoundEpilogue {
    /// The same epilogue with each view replaced.
    pub fn map_views(&self, change: impl Fn(&View) -> View) -> BoundEpilogue {
        self.map(|_, view| change(view))
    }

    /// The epilogue of one group: `of_output` replaces each view of the output's shape, `of_b` the
    /// second matrix that A is multiplied by. Block scales stay.
    pub fn of_group(
        &self,
        of_output: impl Fn(&View) -> View,
        of_b: impl Fn(&View) -> View,
    ) -> BoundEpilogue {
        self.map(|role, view| match role {
            Role::Scale => *view,
            Role::Factor => of_b(view),
            Role::Other => of_output(view),
        })
    }

    /// The same epilogue with each view replaced.
    fn map(&self, change: impl Fn(Role, &View) -> View) -> BoundEpilogue {
        let scaling = self.epilogue.graph.scaling.as_ref();
        let role = |at: usize| match scaling.and_then(|scaling| scaling.factor_of(at)) {
            Some(_) => Role::Scale,
            None => Role::Other,
        };
        let input = |(at, value): (usize, &Value)| match value {
            Value::Tensor(view) => Value::Tensor(change(role(at), view)),
            Value::Factor(view) => Value::Factor(change(Role::Factor, view)),
            Value::Panel(view) => Value::Panel(change(Role::Other, view)),
            Value::Segment { view, start } => {
                Value::Segment { view: change(Role::Other, view), start: *start }
            }
            Value::Scalar(number) => Value::Scalar(*number),
        };
        let output = |view: &Option<View>| view.as_ref().map(|view| change(Role::Other, view));
        BoundEpilogue {
            epilogue: self.epilogue,
            inputs: self.inputs.iter().enumerate().map(input).collect(),
            outputs: self.outputs.iter().map(output).collect(),
            prologue: self.prologue.as_ref().map(|prologue| BoundPrologue {
                a: change(Role::Other, &prologue.a),
                inputs: prologue.inputs.iter().map(|value| input((usize::MAX, value))).collect(),
                outputs: prologue.outputs.iter().map(output).collect(),
            }),
        }
    }

    /// The second matrix that A is multiplied by, and its name.
    pub fn factor(&self) -> Option<(&'static str, &View)> {
        let names = self.epilogue.graph.inputs.iter();
        names.zip(&self.inputs).find_map(|(name, value)| match value {
            Value::Factor(view) => Some((name.as_str(), view)),
            _ => None,
        })
    }

    /// The further matrices B of a joint GEMM and their names, in the order of their columns.
    pub fn panels(&self) -> impl Iterator<Item = (&'static str, &View)> {
        let names = self.epilogue.graph.inputs.iter();
        names.zip(&self.inputs).filter_map(|(name, value)| match value {
            Value::Panel(view) => Some((name.as_str(), view)),
            _ => None,
        })
    }

    /// The vectors that an input has for the columns of each matrix B, in their order, and their
    /// first columns. Empty for an input without.
    pub fn segments(&self, of: usize) -> impl Iterator<Item = (&View, i64)> {
        let further = self.epilogue.graph.segments(of);
        std::iter::once(of).chain(further).filter_map(|at| match &self.inputs[at] {
            Value::Segment { view, start } => Some((view, *start)),
            _ => None,
        })
    }

    /// The first column of each further matrix B, if an input has a vector for each matrix.
    fn starts(&self) -> impl Iterator<Item = i64> {
        let first = self.inputs.iter().position(|value| matches!(value, Value::Segment { .. }));
        first.into_iter().flat_map(|first| self.segments(first).skip(1)).map(|(_, start)| start)
    }

    /// The tensors and their names: inputs, then outputs without D.
    pub fn tensors(&self) -> Vec<(&'static str, &View)> {
        let graph = &self.epilogue.graph;
        let inputs =
            graph.inputs.iter().zip(&self.inputs).filter_map(|(name, value)| match value {
                Value::Scalar(_) => None,
                Value::Tensor(view)
                | Value::Factor(view)
                | Value::Panel(view)
                | Value::Segment { view, .. } => Some((name.as_str(), view)),
            });
        let outputs = graph.outputs.iter().zip(&self.outputs);
        inputs
            .chain(
                outputs.filter_map(|(output, view)| Some((output.name.as_str(), view.as_ref()?))),
            )
            .chain(self.prologue_inputs())
            .chain(self.prologue_outputs())
            .collect()
    }

    /// The tensors that the prologue reads, and their names.
    pub fn prologue_inputs(&self) -> impl Iterator<Item = (&'static str, &View)> {
        self.epilogue.prologue.iter().zip(&self.prologue).flat_map(|(prologue, bound)| {
            let named = prologue.graph.inputs.iter().zip(&bound.inputs);
            named.filter_map(|(name, value)| match value {
                Value::Tensor(view) => Some((name.as_str(), view)),
                _ => None,
            })
        })
    }

    /// The tensors that the prologue stores, and their names.
    pub fn prologue_outputs(&self) -> impl Iterator<Item = (&'static str, &View)> {
        self.epilogue.prologue.iter().zip(&self.prologue).flat_map(|(prologue, bound)| {
            let named = prologue.graph.outputs.iter().zip(&bound.outputs);
            named.filter_map(|(output, view)| Some((output.name.as_str(), view.as_ref()?)))
        })
    }

    /// The parameter block `EpilogueParams` of the generated code, in words of 8 bytes: first the
    /// tensors, each as address and strides along batch, m and n in elements; then one word per
    /// scalar, and one for the first column of each further matrix B. Block scales have strides
    /// along batch, the factor's rows or columns, and K; swizzled ones along batch and tiles of 128
    /// rows or columns. The address of a vector for the columns of one matrix B is such that the
    /// column of the whole output is its index.
    ///
    /// `transposed`: the program computes the transposed product. `partial`: the tensors that
    /// receive the partials of reduced outputs, in the program's frame.
    pub fn params(&self, accumulator: DType, transposed: bool, partial: &[[u64; 4]]) -> Vec<u64> {
        let tensor = |view: &View| {
            let [batch, m, n] = view.stride;
            let (m, n) = if transposed { (n, m) } else { (m, n) };
            [view.data, batch as u64, m as u64, n as u64]
        };
        // Scales of A step along M, then K; scales of B along N, then K; in any frame.
        let scales = |view: &View, factor: &str, is_swizzled: bool| {
            let [batch, first, second] = view.stride;
            let (along, deep) =
                if factor == "A" || is_swizzled { (first, second) } else { (second, first) };
            [view.data, batch as u64, along as u64, deep as u64]
        };
        let mut words = Vec::new();
        for (at, value) in self.inputs.iter().enumerate() {
            if let Value::Segment { view, start } = value {
                let data = view.data.wrapping_sub((start * view.dtype.bytes()) as u64);
                words.extend(tensor(&View { data, ..*view }));
            }
            let Value::Tensor(view) = value else { continue };
            let scaling = self.epilogue.graph.scaling.as_ref();
            words.extend(match scaling.and_then(|scaling| scaling.factor_of(at)) {
                Some((factor, of)) => scales(view, factor, of.is_swizzled),
                None => tensor(view),
            });
        }
        let mut partial = partial.iter();
        for (output, view) in self.epilogue.graph.outputs.iter().zip(&self.outputs) {
            match (&output.fold, view) {
                (None, Some(view)) => words.extend(tensor(view)),
                (Some(_), _) => words.extend(partial.next().copied().unwrap_or_default()),
                (None, None) => {}
            }
        }
        for (value, input) in self.inputs.iter().zip(&self.epilogue.inputs) {
            let Value::Scalar(number) = value else { continue };
            words.push(match (input.kind(), compute_type(accumulator)) {
                (Kind::Float, DType::F64) => number.to_bits(),
                (Kind::Float, _) => u64::from((*number as f32).to_bits()),
                _ => u64::from(*number as i32 as u32),
            });
        }
        words.extend(self.starts().map(|start| start as u64));
        // C++ has no empty kernel parameter.
        if words.is_empty() {
            words.push(0);
        }
        words
    }
}
