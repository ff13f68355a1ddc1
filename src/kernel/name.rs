//! Building kernel names without `fmt`, which takes several times as long: clients list the names
//! of all kernels at once.

use super::layout::Major;
use crate::operand::DType;

/// A part of a name.
pub trait Piece {
    fn append_to(self, name: &mut String);
}

impl Piece for &str {
    fn append_to(self, name: &mut String) {
        name.push_str(self);
    }
}

impl Piece for u32 {
    fn append_to(self, name: &mut String) {
        if self >= 10 {
            (self / 10).append_to(name);
        }
        name.push(char::from(b'0' + (self % 10) as u8));
    }
}

impl Piece for Major {
    fn append_to(self, name: &mut String) {
        name.push(self.letter());
    }
}

impl Piece for DType {
    fn append_to(self, name: &mut String) {
        name.push_str(self.short_name());
    }
}

/// Appends parts to a name.
macro_rules! append {
    ($name:expr, $($piece:expr),+ $(,)?) => {
        $($crate::kernel::name::Piece::append_to($piece, $name);)+
    };
}

pub(super) use append;
