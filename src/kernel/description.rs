//! Designs as users see them: neutral data, from which `python/metadata.rs` makes objects.

use arrayvec::ArrayVec;

use super::frame::Frame;

/// The class of a design in `cutlass_api.metadata`, and the values of its fields in their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Description {
    pub class: &'static str,
    pub values: ArrayVec<Value, 11>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// Values of M, N and K.
    Extents([u32; 3]),
    /// Values of A and B.
    Operands([bool; 2]),
    /// The place of M (0) or N (1).
    Dimension(usize),
    Count(u32),
    Flag(bool),
    Name(&'static str),
}

impl Description {
    /// A description of at most 11 fields.
    pub fn new<const N: usize>(class: &'static str, values: [Value; N]) -> Description {
        Description { class, values: values.into_iter().collect() }
    }

    /// The description of a tile alone.
    pub fn of_tile(tile: [u32; 3]) -> Description {
        Description::new("BLASDesignMetadata", [Value::Extents(tile), Value::Extents([1; 3])])
    }

    /// Converts between the frames of the user and of a program.
    pub fn in_frame(mut self, frame: Frame) -> Description {
        for value in &mut self.values {
            *value = match *value {
                Value::Extents(of) => Value::Extents(frame.extents(of)),
                Value::Operands(of) => Value::Operands(frame.pair(of)),
                Value::Dimension(of) => Value::Dimension(frame.pair([0, 1])[of]),
                other => other,
            };
        }
        self
    }
}
