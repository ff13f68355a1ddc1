//! What kernels demand of how operands lie in memory. One place decides it, for what is described, checked and looked up.

use super::{Major, Unsupported};
use crate::operand::View;

/// What a kernel demands of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Demand {
    /// The contiguous dimension; None where any strides will do, of any alignment.
    pub order: Option<Major>,
    /// What the address and all other strides are multiples of, in bytes.
    pub align: u32,
    /// Whether the extents along rows and along columns are multiples of it, too.
    pub whole: [bool; 2],
    /// Whether the dimension that is not contiguous is stepped along: the copy engine takes no stride of 0.
    pub steps: bool,
    /// Whether it is first copied to where the kernel has it as it likes.
    pub copied: bool,
}

impl Demand {
    /// Any strides, any alignment.
    pub const NONE: Demand =
        Demand { order: None, align: 1, whole: [false; 2], steps: false, copied: false };

    /// This order, with the address and strides that loads of so many bytes take.
    pub fn aligned(order: Major, align: u32) -> Demand {
        Demand { order: Some(order), align, ..Demand::NONE }
    }

    /// Extents along rows and columns, of which that along what is contiguous is to be a multiple of the alignment.
    pub fn whole_along(order: Major) -> [bool; 2] {
        [order == Major::Column, order == Major::Row]
    }

    pub fn is_met(&self, view: &View) -> bool {
        self.order.is_none_or(|order| {
            self.is_ordered(order, view) && self.alignment(order, view) >= self.align.into()
        })
    }

    /// Why it is not met, if it is not; `name` is the operand's.
    pub fn check(&self, name: &'static str, view: &View) -> Result<(), Unsupported> {
        let Some(order) = self.order else { return Ok(()) };
        let (shape, stride) = (|| view.user_shape().to_vec(), || view.user_stride().to_vec());
        if !self.is_ordered(order, view) {
            let expected = order.describe();
            return Err(Unsupported::Layout { name, shape: shape(), stride: stride(), expected });
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
        order.fits(view) && !(self.steps && view.stride[other] == 0 && view.shape[other] > 1)
    }

    /// What is known of the alignment of what is demanded to be aligned, in bytes.
    fn alignment(&self, order: Major, view: &View) -> i64 {
        let extents = [1, 2]
            .map(|dim| if self.whole[dim - 1] { view.shape[dim] * view.dtype.bytes() } else { 0 });
        view.alignment(order.unit()).min(1 << (extents[0] | extents[1] | 16).trailing_zeros())
    }
}
