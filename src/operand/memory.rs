//! `Memory`: the view of a tensor of any rank, for users' own kernels.

use pyo3::PyResult;

use super::dlpack::{TensorDescription, TensorRecord};
use super::{DType, DeviceId};

/// The properties of a tensor that the launch of a user's own kernel checks and passes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Memory {
    /// Address of the first element; 0 for a tensor without memory (`FakeTensor` or no elements).
    pub data: u64,
    pub dtype: DType,
    pub device: DeviceId,
    pub numel: i64,
    /// Whether the tensor is contiguous in row-major order.
    pub contiguous: bool,
    pub read_only: bool,
    pub fake: bool,
    /// Bytes from the lowest address to `data`, and from `data` to the end of the last element.
    reach: [u64; 2],
    /// Whether the stride of every dimension of extent other than 1 is even.
    has_even_strides: bool,
}

impl TensorRecord for Memory {
    const UNREAD: Memory = Memory {
        data: 0,
        dtype: DType::F32,
        device: DeviceId::Cpu,
        numel: 0,
        contiguous: false,
        read_only: false,
        fake: false,
        reach: [0; 2],
        has_even_strides: false,
    };

    fn fill(&mut self, description: TensorDescription<'_>) -> PyResult<()> {
        let TensorDescription { data, dtype, device, shape, strides, read_only, fake } =
            description;
        let numel = shape.iter().product();
        let (mut contiguous, mut has_even_strides, mut reach) = (true, strides.is_some(), 1);
        // In elements, below and above the first element.
        let (mut below, mut above) = (0, if strides.is_some() { 0 } else { numel - 1 });
        for (extent, step) in
            shape.iter().zip(strides.unwrap_or_default()).rev().filter(|(extent, _)| **extent != 1)
        {
            contiguous &= *step == reach;
            has_even_strides &= step % 2 == 0;
            reach *= extent;
            below += (-step).max(0) * (extent - 1);
            above += (*step).max(0) * (extent - 1);
        }
        *self = Memory {
            data,
            dtype,
            device,
            numel,
            contiguous: contiguous || numel == 0,
            read_only,
            fake,
            reach: if numel == 0 {
                [0; 2]
            } else {
                [below, above + 1].map(|of| dtype.bytes_of(of) as u64)
            },
            has_even_strides,
        };
        Ok(())
    }

    fn dtype_and_read_only(&mut self) -> (&mut DType, &mut bool) {
        (&mut self.dtype, &mut self.read_only)
    }

    fn may_be_negated(&self) -> bool {
        self.has_even_strides
    }
}

impl Memory {
    /// The half-open range of the addresses of all elements.
    pub fn byte_range(&self) -> (u64, u64) {
        let [below, above] = self.reach;
        (self.data - below, self.data + above)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(shape: &[i64], strides: Option<&[i64]>) -> Memory {
        let description = TensorDescription {
            data: 256,
            dtype: DType::F32,
            device: DeviceId::Cpu,
            shape,
            strides,
            read_only: false,
            fake: false,
        };
        let mut memory = Memory::UNREAD;
        memory.fill(description).unwrap();
        memory
    }

    #[test]
    fn contiguous_in_any_rank() {
        assert!(memory(&[2, 3, 4, 5], Some(&[60, 20, 5, 1])).contiguous);
        assert!(memory(&[2, 3, 4, 5], None).contiguous);
        assert!(
            memory(&[1, 7], Some(&[99, 1])).contiguous,
            "the stride of an extent of 1 is never used"
        );
        assert!(memory(&[], None).contiguous);
        assert!(memory(&[0, 3], Some(&[1, 1])).contiguous, "no elements");
        assert!(!memory(&[2, 3, 4, 5], Some(&[60, 1, 15, 3])).contiguous, "channels last");
        assert!(!memory(&[4], Some(&[2])).contiguous);
        assert!(!memory(&[4], Some(&[0])).contiguous);
        assert_eq!(memory(&[2, 3, 4, 5], None).numel, 120);
    }

    #[test]
    fn byte_ranges_cover_all_elements() {
        assert_eq!(memory(&[2, 3], None).byte_range(), (256, 280));
        assert_eq!(memory(&[2, 3], Some(&[8, 2])).byte_range(), (256, 256 + 4 * 13));
        assert_eq!(memory(&[2, 3], Some(&[-8, 2])).byte_range(), (256 - 32, 256 + 20));
        assert_eq!(memory(&[0, 3], Some(&[8, 2])).byte_range(), (256, 256));
        assert_eq!(memory(&[], None).byte_range(), (256, 260));
    }
}
