//! Requirements of kernels on the memory layout of operands. Metadata, support checks and the index
//! of the ranking derive from them.

use super::layout::{Layout, Major};
use super::unsupported::Unsupported;
use crate::operand::View;

/// A kernel's requirements on one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Demand {
    /// The order in memory; None if any strides and any alignment are allowed.
    pub order: Option<Major>,
    /// Bytes of which the address and the strides other than 1 are multiples.
    pub align: u32,
    /// Whether the extents of dimensions 1 and 2, in bytes, must be multiples of `align`, too.
    pub whole: [bool; 2],
    /// Whether TMA reads the operand. The stride of the dimension that is not contiguous must be
    /// positive, and all strides in TMA's reach.
    pub by_tma: bool,
    /// Whether the operand is packed first, whatever its layout.
    pub packed: bool,
}

impl Demand {
    /// Any strides, any alignment.
    pub const NONE: Demand =
        Demand { order: None, align: 1, whole: [false; 2], by_tma: false, packed: false };

    /// This order, aligned to `align` bytes.
    pub fn aligned(order: Major, align: u32) -> Demand {
        Demand { order: Some(order), align, ..Demand::NONE }
    }

    /// A and B in these orders, aligned to `align` bytes; out in its order at any address.
    pub fn of_operands(Layout { a, b, out }: Layout, align: u32) -> [Demand; 3] {
        [Demand::aligned(a, align), Demand::aligned(b, align), Demand::aligned(out, 1)]
    }

    /// The requirements on the transposed operand.
    pub fn transposed(self) -> Demand {
        let [rows, columns] = self.whole;
        Demand { order: self.order.map(Major::transposed), whole: [columns, rows], ..self }
    }

    /// The value of `whole` for an operand whose contiguous extent is a multiple of the alignment.
    pub fn whole_along(order: Major) -> [bool; 2] {
        [order == Major::Column, order == Major::Row]
    }

    pub fn is_met(&self, view: &View) -> bool {
        self.order.is_none_or(|order| {
            self.is_ordered(order, view)
                && self.is_in_reach(view)
                && self.alignment(order, view) >= self.align.into()
        })
    }

    /// As [`Demand::is_met`], with the reason as the error. `name` is the operand's name.
    pub fn check(&self, name: &'static str, view: &View) -> Result<(), Unsupported> {
        let Some(order) = self.order else { return Ok(()) };
        let (shape, stride) = (|| view.user_shape().to_vec(), || view.user_stride().to_vec());
        if !self.is_ordered(order, view) {
            let expected = order.describe();
            return Err(Unsupported::Layout { name, shape: shape(), stride: stride(), expected });
        }
        if !self.is_in_reach(view) {
            return Err(Unsupported::LongStride { name, stride: stride() });
        }
        let (actual, expected) = (self.alignment(order, view), self.align.into());
        if actual < expected {
            return Err(Unsupported::Alignment {
                name,
                address: view.data,
                stride: stride(),
                actual,
                expected,
            });
        }
        Ok(())
    }

    fn is_ordered(&self, order: Major, view: &View) -> bool {
        let other = order.transposed().unit();
        order.fits(view) && !(self.by_tma && view.stride[other] == 0 && view.shape[other] > 1)
    }

    fn is_in_reach(&self, view: &View) -> bool {
        !self.by_tma || view.is_in_reach_of_tma()
    }

    /// The alignment in bytes of the address, the strides, and the extents that `whole` selects; at
    /// most 16.
    fn alignment(&self, order: Major, view: &View) -> i64 {
        let extents = [1, 2].map(|dim| if self.whole[dim - 1] { view.row_bytes(dim) } else { 0 });
        view.alignment(order.unit()).min(1 << (extents[0] | extents[1] | 16).trailing_zeros())
    }
}
