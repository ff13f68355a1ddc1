//! An expression graph as Python source that traces to the same operations.

use super::scaling::SWIZZLE;
use super::{ACCUMULATOR, ACTIVATIONS, BlockScale, ExpressionGraph, Id, Node, Output, Unary};

impl ExpressionGraph {
    /// The source of the function, one assignment per operation. Its names resolve to the
    /// functions of `cutlass_api.fusion`, so it can be passed as a string.
    pub fn source(&self) -> String {
        let stage = self.stage();
        let parameters: Vec<&str> = std::iter::once(stage.argument())
            .chain(self.inputs.iter().map(String::as_str))
            .collect();
        let mut lines = vec![format!("def {}({}):", stage.name(), parameters.join(", "))];
        let used = self.used();
        for id in (0..self.nodes.len() as Id).filter(|id| used[*id as usize]) {
            if !self.is_leaf(id) {
                lines.push(format!(
                    "    {} = {}",
                    self.name(id),
                    self.operation(id, &|id| self.name(id))
                ));
            }
        }
        for Output { name, node, fold } in &self.outputs {
            let value = self.name(*node);
            match fold {
                // An input that is returned.
                None if value == *name => {}
                None => lines.push(format!("    {name} = {value}")),
                Some((fold, dims)) => {
                    lines.push(format!("    {name} = {}({value}, dim={dims:?})", fold.name()));
                }
            }
        }
        let names: Vec<&str> = self.outputs.iter().map(|output| output.name.as_str()).collect();
        lines.push(format!("    return {}\n", names.join(", ")));
        lines.join("\n")
    }

    /// Whether a node is the function's argument, an input or a number.
    fn is_leaf(&self, id: Id) -> bool {
        let node = self.node(id);
        matches!(
            node,
            Node::Accumulator
                | Node::Activation
                | Node::Input(_)
                | Node::Integer(_)
                | Node::Float(_)
        )
    }

    /// The expression that stands for a node in an operation.
    fn name(&self, id: Id) -> String {
        match self.node(id) {
            Node::Float(bits) => match f64::from_bits(bits) {
                value if value.is_nan() => "(math.inf - math.inf)".to_owned(),
                f64::INFINITY => "math.inf".to_owned(),
                f64::NEG_INFINITY => "(-math.inf)".to_owned(),
                value => format!("({value:?})"),
            },
            Node::Integer(value) => format!("({value})"),
            _ if self.is_leaf(id) => self.operation(id, &|id| self.name(id)),
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

    /// A node as an expression of its operands, each written by `of`.
    pub(super) fn operation(&self, id: Id, of: &dyn Fn(Id) -> String) -> String {
        match self.node(id) {
            Node::Accumulator => ACCUMULATOR.to_owned(),
            Node::ScaledAccumulator => self.scaled_accumulator(),
            Node::Input(at) => self.inputs[at as usize].clone(),
            Node::Product(at) => format!("product({})", self.inputs[at as usize]),
            Node::Panel(at) | Node::Segment { input: at, .. } => self.inputs[at as usize].clone(),
            Node::Integer(value) => value.to_string(),
            Node::Float(bits) => format!("{:?}", f64::from_bits(bits)),
            Node::Unary(Unary::Negate, value) => format!("-{}", of(value)),
            Node::Unary(operation, value) => format!("{}({})", operation.name(), of(value)),
            Node::Binary(operation, left, right) => match operation.record().symbol {
                "" => format!("{}({}, {})", operation.name(), of(left), of(right)),
                symbol => format!("{} {symbol} {}", of(left), of(right)),
            },
            Node::Compare(comparison, left, right) => {
                format!("{} {} {}", of(left), comparison.record().symbol, of(right))
            }
            Node::Select { condition, yes, no } => {
                format!("where({}, {}, {})", of(condition), of(yes), of(no))
            }
            Node::Cast(dtype, value) => format!("cast({}, torch.{dtype})", of(value)),
            Node::Activation => ACTIVATIONS.to_owned(),
            Node::Reduce(reduction, value) => format!("{}({})", reduction.names()[0], of(value)),
        }
    }
}
