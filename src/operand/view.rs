//! The operand view: the properties of a tensor that checks, ranking and launches depend on.

use std::fmt;

use super::DType;

/// The device that holds an operand's memory.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub enum DeviceId {
    Cpu,
    Cuda(i32),
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceId::Cpu => f.write_str("cpu"),
            DeviceId::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

/// Address, type, device, shape and strides of an operand of rank 0 to 3.
///
/// Shape and strides are right-aligned: a matrix is `[1, rows, columns]` with batch stride 0. A
/// dimension of extent 1 has stride 0, whatever the tensor's stride, and so does not constrain
/// alignment.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct View {
    /// Address of the first element; 0 for a tensor without memory (`FakeTensor` or no elements).
    pub data: u64,
    pub dtype: DType,
    pub device: DeviceId,
    /// The tensor's rank, 0 to 3.
    pub rank: usize,
    pub shape: [i64; 3],
    /// In elements.
    pub stride: [i64; 3],
    pub read_only: bool,
    /// Whether the tensor has no memory: kernels can be compiled for the view, but not run.
    pub fake: bool,
}

impl View {
    /// The transposed matrix (of each batch).
    pub fn transposed(&self) -> View {
        let ([l, m, n], [of_l, of_m, of_n]) = (self.shape, self.stride);
        View { shape: [l, n, m], stride: [of_l, of_n, of_m], ..*self }
    }

    /// A placeholder to read a tensor into.
    pub const UNREAD: View = View {
        data: 0,
        dtype: DType::F32,
        device: DeviceId::Cpu,
        rank: 0,
        shape: [1; 3],
        stride: [0; 3],
        read_only: false,
        fake: false,
    };

    /// A row-major array at an address. None if it has more than three dimensions.
    pub fn row_major(dtype: DType, device: DeviceId, data: u64, dims: &[i64]) -> Option<View> {
        let first = 3usize.checked_sub(dims.len())?;
        let mut view = View { data, dtype, device, rank: dims.len(), ..View::UNREAD };
        view.shape[first..].copy_from_slice(dims);
        let mut step = 1;
        for dim in (first..3).rev() {
            view.stride[dim] = if view.shape[dim] == 1 { 0 } else { step };
            step *= view.shape[dim].max(1);
        }
        Some(view)
    }

    /// The tensor's shape at its own rank.
    pub fn user_shape(&self) -> &[i64] {
        &self.shape[3 - self.rank..]
    }

    /// The tensor's strides at its own rank, in elements; 0 for dimensions of extent 1.
    pub fn user_stride(&self) -> &[i64] {
        &self.stride[3 - self.rank..]
    }

    /// Whether the last dimension is contiguous and each other dimension steps over the later ones.
    pub fn is_row_major(&self) -> bool {
        let mut reach = 1;
        (0..3).rev().all(|dim| {
            let fits = self.shape[dim] == 1 || self.stride[dim] == reach;
            reach *= self.shape[dim];
            fits
        })
    }

    /// The device in words: `on cuda:0`.
    pub fn place(&self) -> String {
        format!("on {}{}", self.device, if self.fake { " (FakeTensor)" } else { "" })
    }

    /// Whether the views are equal except for the address, and the addresses are equal modulo 16.
    pub fn differs_only_in_address(&self, other: &View) -> bool {
        (self.data ^ other.data).is_multiple_of(16) && View { data: self.data, ..*other } == *self
    }

    pub fn numel(&self) -> i64 {
        self.shape.iter().product()
    }

    /// Bytes of all elements.
    pub fn bytes(&self) -> i64 {
        self.dtype.bytes_of(self.numel())
    }

    /// The stride of a dimension in bytes. Rows of a type whose byte has several elements begin at
    /// whole bytes.
    #[inline(always)]
    pub fn byte_stride(&self, dim: usize) -> i64 {
        self.dtype.bytes_of(self.stride[dim])
    }

    /// Bytes that the elements along a contiguous dimension take.
    pub fn row_bytes(&self, dim: usize) -> i64 {
        self.dtype.bytes_of(self.shape[dim])
    }

    /// The address of the element at an offset in elements: of its byte, if that has several.
    pub fn address_of(&self, offset: i64) -> u64 {
        self.data.wrapping_add_signed((offset * i64::from(self.dtype.bits())) >> 3)
    }

    /// The view broadcast to this shape. `None` if an extent other than 1 differs.
    pub fn broadcast(&self, shape: [i64; 3]) -> Option<View> {
        let fits = self.shape.iter().zip(shape).all(|(ours, wanted)| *ours == wanted || *ours == 1);
        fits.then_some(View { rank: 3, shape, ..*self })
    }

    /// All rows as one matrix. None if no stride leads from each row to the next.
    pub fn rows(&self) -> Option<View> {
        let [l, m, k] = self.shape;
        let [of_l, of_m, _] = self.stride;
        let of_row = if m == 1 && l > 1 { of_l } else { of_m };
        let is_matrix = l <= 1 || m <= 1 || of_l == m * of_m;
        is_matrix.then_some(View {
            rank: 2,
            shape: [1, l * m, k],
            stride: [0, of_row, self.stride[2]],
            ..*self
        })
    }

    /// The half-open address range from the first element to the end of the last one.
    pub fn byte_range(&self) -> (u64, u64) {
        if self.numel() == 0 {
            return (self.data, self.data);
        }
        let last: i64 =
            self.shape.iter().zip(self.stride).map(|(extent, stride)| (extent - 1) * stride).sum();
        (self.data, self.data + self.dtype.bytes_of(last + 1) as u64)
    }

    /// Whether the elements fill their address range without gaps, in any order of dimensions.
    pub fn is_contiguous(&self) -> bool {
        let mut reach = 1;
        self.strided_dims().all(|(stride, extent)| {
            let next = stride == reach;
            reach *= extent;
            next
        })
    }

    /// (stride, extent) of the dimensions of extent above 1, smallest stride first.
    fn strided_dims(&self) -> impl Iterator<Item = (i64, i64)> {
        // A sort in place: every launch sorts, and the order is usually right already.
        let mut dims = [2, 1, 0].map(|dim| (self.stride[dim], self.shape[dim]));
        for (at, next) in [(0, 1), (1, 2), (0, 1)] {
            if dims[next] < dims[at] {
                dims.swap(at, next);
            }
        }
        dims.into_iter().filter(|(_, extent)| *extent > 1)
    }

    /// Whether two indices can address the same element. Sorted by stride, each dimension must step
    /// over the reach of the smaller ones. Exact for layouts that tensor libraries create; other
    /// layouts may yield a false positive.
    pub fn overlaps_itself(&self) -> bool {
        if self.numel() <= 1 {
            return false;
        }
        let mut reach = 0;
        for (stride, extent) in self.strided_dims() {
            if stride <= reach {
                return true;
            }
            reach += stride * (extent - 1);
        }
        false
    }

    /// Whether writing `self` may change what `other` reads: the address ranges overlap, and the
    /// views are not column blocks (or row blocks of each matrix of a batch) that interleave in one
    /// tensor.
    pub fn may_alias(&self, other: &View) -> bool {
        if self.device != other.device || self.numel() == 0 || other.numel() == 0 {
            return false;
        }
        let (ours, theirs) = (self.byte_range(), other.byte_range());
        if ours.1 <= theirs.0 || theirs.1 <= ours.0 {
            return false;
        }
        !self.interleaves(other)
    }

    /// Whether the views interleave at some pitch: within each period of one dimension's stride,
    /// the views occupy disjoint byte ranges.
    fn interleaves(&self, other: &View) -> bool {
        let distance = other.data as i64 - self.data as i64;
        [self, other].into_iter().flat_map(View::byte_strided_dims).any(|(pitch, _)| {
            let offset = distance.rem_euclid(pitch);
            offset >= self.window(pitch) && offset + other.window(pitch) <= pitch
        })
    }

    /// The bytes that the view spans within one period of `pitch`, ignoring steps by whole periods.
    fn window(&self, pitch: i64) -> i64 {
        let within = self.byte_strided_dims().filter(|(step, _)| step % pitch != 0);
        self.dtype.bytes() + within.map(|(step, extent)| step * (extent - 1)).sum::<i64>()
    }

    /// (stride in bytes, extent) of the dimensions of extent above 1.
    fn byte_strided_dims(&self) -> impl Iterator<Item = (i64, i64)> {
        self.strided_dims()
            .filter(|(stride, _)| *stride > 0)
            .map(|(stride, extent)| (self.dtype.bytes_of(stride), extent))
    }

    /// The widest vector in bytes, up to 16, that loads along dimension `unit` may use: the largest
    /// power of two that divides the address and the byte stride of every other dimension.
    pub fn alignment(&self, unit: usize) -> i64 {
        let mut bits = self.data as i64 | 16;
        for dim in (0..3).filter(|dim| *dim != unit) {
            bits |= self.byte_stride(dim);
        }
        1 << bits.trailing_zeros()
    }

    /// Whether TMA can step along all dimensions: byte strides below 2^40 (CUDA Driver API,
    /// `cuTensorMapEncodeTiled`).
    pub fn is_in_reach_of_tma(&self) -> bool {
        (0..3).fold(0, |bits, dim| bits | self.byte_stride(dim)) >> 40 == 0
    }
}

/// `float16[64, 32]`; unless it is row-major, with its strides: `float16[64, 32] strides [1, 64]`.
impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.user_shape())?;
        match self.numel() == 0 || self.is_row_major() {
            true => Ok(()),
            false => write!(f, " strides {:?}", self.user_stride()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(data: u64, shape: [i64; 3], stride: [i64; 3]) -> View {
        View {
            data,
            dtype: DType::F16,
            device: DeviceId::Cpu,
            rank: 3,
            shape,
            stride,
            read_only: false,
            fake: false,
        }
    }

    #[test]
    fn a_byte_may_hold_several_elements() {
        let int4 = DType::describe("int4");
        let pairs = View { dtype: int4, ..view(64, [3, 8, 32], [8 * 32, 32, 1]) };
        assert_eq!((pairs.bytes(), pairs.row_bytes(2), pairs.byte_stride(1)), (384, 16, 16));
        assert_eq!((pairs.byte_range(), pairs.alignment(2)), ((64, 64 + 384), 16));
        assert_eq!([0, 1, 2, 33].map(|offset| pairs.address_of(offset)), [64, 64, 65, 80]);
        let narrow = View { stride: [8 * 24, 24, 1], ..pairs };
        assert_eq!((narrow.alignment(2), narrow.is_in_reach_of_tma()), (4, true));
        assert!(!pairs.may_alias(&View { data: 64 + 384, ..pairs }));
        assert!(pairs.may_alias(&View { data: 64 + 383, ..pairs }));
    }

    #[test]
    fn alignment_looks_at_address_and_outer_strides() {
        assert_eq!(view(64, [1, 8, 8], [0, 8, 1]).alignment(2), 16);
        assert_eq!(view(64, [1, 8, 8], [0, 10, 1]).alignment(2), 4);
        assert_eq!(view(64, [1, 8, 8], [0, 9, 1]).alignment(2), 2);
        assert_eq!(view(66, [1, 8, 8], [0, 8, 1]).alignment(2), 2);
        assert_eq!(view(64, [1, 1, 8], [0, 0, 1]).alignment(2), 16);
    }
}
