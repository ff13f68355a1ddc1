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
        has_even_strides: false,
    };

    fn fill(&mut self, description: TensorDescription<'_>) -> PyResult<()> {
        let TensorDescription { data, dtype, device, shape, strides, read_only, fake } =
            description;
        let numel = shape.iter().product();
        let (mut contiguous, mut has_even_strides, mut reach) = (true, strides.is_some(), 1);
        for (extent, step) in
            shape.iter().zip(strides.unwrap_or_default()).rev().filter(|(extent, _)| **extent != 1)
        {
            contiguous &= *step == reach;
            has_even_strides &= step % 2 == 0;
            reach *= extent;
        }
        *self = Memory {
            data,
            dtype,
            device,
            numel,
            contiguous: contiguous || numel == 0,
            read_only,
            fake,
            has_even_strides,
        };
        Ok(())
    }

    fn amend(&mut self, dtype: Option<DType>, read_only: bool) {
        self.dtype = dtype.unwrap_or(self.dtype);
        self.read_only |= read_only;
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn may_be_negated(&self) -> bool {
        self.has_even_strides
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
}
