//! The CUDA C++ expressions of a graph's operations. The value of node n is the variable `vn`.

use super::{ExpressionGraph, Id, Kind, Node};

/// The expressions of one graph.
pub struct Expressions<'a> {
    pub graph: &'a ExpressionGraph,
    pub kinds: Vec<Kind>,
    /// The CUDA type of floating-point values.
    pub float: &'static str,
}

impl Expressions<'_> {
    pub fn type_name(&self, kind: Kind) -> &'static str {
        match kind {
            Kind::Truth => "bool",
            Kind::Integer => "s32",
            Kind::Float => self.float,
        }
    }

    pub fn kind(&self, id: Id) -> Kind {
        self.kinds[id as usize]
    }

    /// The value of a node, converted to `kind`.
    pub fn value(&self, id: Id, kind: Kind) -> String {
        match kind {
            same if same == self.kind(id) => format!("v{id}"),
            Kind::Float => format!("{}(v{id})", self.float),
            Kind::Integer => format!("s32(v{id})"),
            Kind::Truth => format!("(v{id} != 0)"),
        }
    }

    /// The declaration of a node's variable.
    pub fn declaration(&self, id: Id, value: &str) -> String {
        format!("const {} v{id} = {value};", self.type_name(self.kind(id)))
    }

    /// A number, or an operation on the variables of other nodes. `None` for other nodes.
    pub fn operation(&self, id: Id) -> Option<String> {
        let kind = self.kind(id);
        Some(match self.graph.node(id) {
            Node::Accumulator
            | Node::ScaledAccumulator
            | Node::Product(_)
            | Node::Panel(_)
            | Node::Segment { .. }
            | Node::Input(_)
            | Node::Activation
            | Node::Reduce(..) => return None,
            Node::Integer(value) if kind == Kind::Float => self.float_literal(value as f64),
            // C++ parses -2147483648 as the negation of a literal that overflows int.
            Node::Integer(value) if value == i64::from(i32::MIN) => "(-2147483647 - 1)".to_owned(),
            Node::Integer(value) => value.to_string(),
            Node::Float(bits) => self.float_literal(f64::from_bits(bits)),
            Node::Unary(operation, value) => {
                format!("fused::{}({})", operation.name(), self.value(value, kind))
            }
            Node::Binary(operation, left, right) => {
                format!(
                    "fused::{}({}, {})",
                    operation.name(),
                    self.value(left, kind),
                    self.value(right, kind)
                )
            }
            Node::Compare(comparison, left, right) => {
                let common = self.kind(left).max(self.kind(right));
                format!(
                    "{} {} {}",
                    self.value(left, common),
                    comparison.record().symbol,
                    self.value(right, common)
                )
            }
            Node::Select { condition, yes, no } => {
                let condition = self.value(condition, Kind::Truth);
                format!("{condition} ? {} : {}", self.value(yes, kind), self.value(no, kind))
            }
            Node::Cast(dtype, value) => {
                let number = self.value(value, self.kind(value).max(Kind::Integer));
                let (to, element) =
                    (if kind == Kind::Float { self.float } else { "s32" }, dtype.short_name());
                format!("{to}(decode(encode<{element}>({number})))")
            }
        })
    }

    /// The shortest decimal that parses back to the same number.
    fn float_literal(&self, value: f64) -> String {
        if self.float == "f64" {
            match value.is_finite() {
                true => format!("{value:?}"),
                false => format!("__longlong_as_double({}ll)", value.to_bits() as i64),
            }
        } else {
            let value = value as f32;
            match value.is_finite() {
                true => format!("{value:?}f"),
                false => format!("__uint_as_float({:#x}u)", value.to_bits()),
            }
        }
    }
}
