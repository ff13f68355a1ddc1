//! Memory orders of matrices.

use std::fmt;

use crate::operand::View;

/// The order of a matrix in memory. The letters are BLAS's: `t` row-major, `n` column-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Major {
    Row,
    Column,
}

impl Major {
    pub const BOTH: [Major; 2] = [Major::Row, Major::Column];

    /// The contiguous dimension of a batch-first shape.
    pub fn unit(self) -> usize {
        match self {
            Major::Row => 2,
            Major::Column => 1,
        }
    }

    pub fn transposed(self) -> Major {
        match self {
            Major::Row => Major::Column,
            Major::Column => Major::Row,
        }
    }

    /// Whether a view can be read in this order: the contiguous dimension has stride 1, or extent
    /// 1.
    pub fn fits(self, view: &View) -> bool {
        view.stride[self.unit()] == 1 || view.shape[self.unit()] <= 1
    }

    pub fn describe(self) -> &'static str {
        match self {
            Major::Row => "row-major",
            Major::Column => "column-major",
        }
    }

    pub fn letter(self) -> char {
        match self {
            Major::Row => 't',
            Major::Column => 'n',
        }
    }
}

/// The orders of A, B and out, written `tnt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    pub a: Major,
    pub b: Major,
    pub out: Major,
}

impl Layout {
    /// All eight layouts.
    pub fn all() -> impl Iterator<Item = Layout> {
        Major::BOTH.into_iter().flat_map(|a| {
            Major::BOTH
                .into_iter()
                .flat_map(move |b| Major::BOTH.into_iter().map(move |out| Layout { a, b, out }))
        })
    }

    /// The layouts of programs, which write row-major outputs.
    pub fn of_programs() -> impl Iterator<Item = Layout> {
        Layout::all().filter(|layout| layout.out == Major::Row)
    }

    /// Whether loads of several elements read a group along K, which begins anywhere: A and B are
    /// contiguous along M and N. The output is row-major.
    pub fn allows_groups_along_k(self) -> bool {
        self == Layout { a: Major::Column, b: Major::Row, out: Major::Row }
    }

    /// The orders of the transposed product.
    pub fn transposed(self) -> Layout {
        let Layout { a, b, out } = self;
        Layout { a: b.transposed(), b: a.transposed(), out: out.transposed() }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.a.letter(), self.b.letter(), self.out.letter())
    }
}
