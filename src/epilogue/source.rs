//! An expression graph as Python source that traces to the same operations.

use super::scaling::SWIZZLE;
use super::{ACCUMULATOR, Binary, BlockScale, ExpressionGraph, Fold, Id, Node, Output, Unary};

impl ExpressionGraph {
    /// The source of an epilogue function, one assignment per operation. Its names resolve to the
    /// functions of `cutlass_api.fusion`, so it can be passed as a string.
    pub fn source(&self) -> String {
        let parameters: Vec<&str> =
            std::iter::once(ACCUMULATOR).chain(self.inputs.iter().map(String::as_str)).collect();
        let mut lines = vec![format!("def epilogue({}):", parameters.join(", "))];
        let used = self.used();
        for id in (0..self.nodes.len() as Id).filter(|id| used[*id as usize]) {
            if !self.is_leaf(id) {
                lines.push(format!("    {} = {}", self.name(id), self.operation(id)));
            }
        }
        for Output { name, node, fold } in &self.outputs {
            let value = self.name(*node);
            match fold {
                // An input that is returned.
                None if value == *name => {}
                None => lines.push(format!("    {name} = {value}")),
                Some((fold, dims)) => {
                    let function = if *fold == Fold::Sum { "sum" } else { "max" };
                    lines.push(format!("    {name} = {function}({value}, dim={dims:?})"));
                }
            }
        }
        let names: Vec<&str> = self.outputs.iter().map(|output| output.name.as_str()).collect();
        lines.push(format!("    return {}\n", names.join(", ")));
        lines.join("\n")
    }

    /// Whether a node is the accumulator, an input or a number.
    fn is_leaf(&self, id: Id) -> bool {
        let node = self.node(id);
        matches!(node, Node::Accumulator | Node::Input(_) | Node::Integer(_) | Node::Float(_))
    }

    /// The expression that stands for a node in an operation.
    fn name(&self, id: Id) -> String {
        match self.node(id) {
            Node::Accumulator => ACCUMULATOR.to_owned(),
            Node::Input(at) => self.inputs[at as usize].clone(),
            Node::Integer(value) => format!("({value})"),
            Node::Float(bits) => match f64::from_bits(bits) {
                value if value.is_nan() => "(math.inf - math.inf)".to_owned(),
                value if value.is_infinite() && value > 0.0 => "math.inf".to_owned(),
                value if value.is_infinite() => "(-math.inf)".to_owned(),
                value => format!("({value:?})"),
            },
            _ => {
                let is_taken = |name: &str| {
                    self.inputs.iter().any(|input| input == name)
                        || self.outputs.iter().any(|output| output.name == name)
                };
                let mut name = format!("x{id}");
                while is_taken(&name) {
                    name.push('_');
                }
                name
            }
        }
    }

    /// The call of `scale_blocks`.
    pub(super) fn scaled_accumulator(&self) -> String {
        let mut arguments = vec![ACCUMULATOR.to_owned()];
        let scaling = self.scaling.as_ref();
        for (factor, of) in scaling.into_iter().flat_map(|scaling| scaling.factors()) {
            let name = |index: u32| &self.inputs[index as usize];
            let BlockScale { scale, zero, extent, depth, is_swizzled } = of;
            let is_a = factor == "A";
            let factor = factor.to_lowercase();
            let depth = if of.is_whole() { -1 } else { i64::from(depth) };
            let extent = i64::from(extent);
            let block = if is_a { [extent, depth] } else { [depth, extent] };
            arguments.push(format!("{factor}={}", name(scale)));
            arguments.push(format!("{factor}_block=({}, {})", block[0], block[1]));
            arguments.extend(zero.map(|zero| format!("{factor}_zero={}", name(zero))));
            if is_swizzled {
                arguments.push(format!("{factor}_swizzle=\"{SWIZZLE}\""));
            }
        }
        format!("scale_blocks({})", arguments.join(", "))
    }

    fn operation(&self, id: Id) -> String {
        let of = |id: Id| self.name(id);
        match self.node(id) {
            Node::Accumulator | Node::Input(_) | Node::Integer(_) | Node::Float(_) => of(id),
            Node::ScaledAccumulator => self.scaled_accumulator(),
            Node::Product(at) => format!("product({})", self.inputs[at as usize]),
            Node::Unary(Unary::Negate, value) => format!("-{}", of(value)),
            Node::Unary(operation, value) => format!("{}({})", operation.name(), of(value)),
            Node::Binary(operation, left, right) => {
                let (left, right) = (of(left), of(right));
                match operation {
                    Binary::Add => format!("{left} + {right}"),
                    Binary::Subtract => format!("{left} - {right}"),
                    Binary::Multiply => format!("{left} * {right}"),
                    Binary::Divide => format!("{left} / {right}"),
                    Binary::Maximum | Binary::Minimum => {
                        format!("{}({left}, {right})", operation.name())
                    }
                }
            }
            Node::Compare(comparison, left, right) => {
                format!("{} {} {}", of(left), comparison.symbol(), of(right))
            }
            Node::Select { condition, yes, no } => {
                format!("where({}, {}, {})", of(condition), of(yes), of(no))
            }
            Node::Cast(dtype, value) => format!("cast({}, torch.{dtype})", of(value)),
        }
    }
}
