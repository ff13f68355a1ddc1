//! Packing: copies operands that TMA cannot address into workspace, K-major and 16-byte aligned.

use super::fields::assert_fields;
use crate::operand::View;

/// One operand of the launch: `PackOperand` of `kernels/pack.cuh`, byte for byte. All zeros for an
/// operand that is not packed.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PackOperand {
    source: u64,
    destination: u64,
    /// Strides along batch, rows and columns, in elements. The copy is contiguous along columns.
    source_stride: [i64; 3],
    /// Strides of rows and of matrices in the copy, in bytes.
    pitch: i64,
    batch_pitch: i64,
    rows: i32,
    columns: i32,
    batch: i32,
    tiles: i32,
}

assert_fields!(PackOperand, 72, source_stride: 16, pitch: 40, rows: 56);

/// An operand to pack.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PackedOperand {
    params: PackOperand,
    /// CTAs of one matrix; `params` holds them in 32 bits.
    tiles: u64,
    /// The copy, as a view in the dimensions of the original.
    view: View,
}

impl PackedOperand {
    /// Packs a view to an address, contiguous along dimension `k`, with rows along dimension
    /// `rows`.
    pub fn new(view: &View, rows: usize, k: usize, destination: u64) -> PackedOperand {
        // A matrix that all batches share is copied once.
        let batch = if view.stride[0] == 0 { 1 } else { view.shape[0] };
        // Rows that begin at L2 cache lines (128 bytes) load faster.
        let pitch = (view.row_bytes(k) + 127) / 128 * 128;
        let batch_pitch = pitch * view.shape[rows];
        let transposes = view.stride[k] != 1 && view.stride[rows] == 1;
        // A thread moves 4 pieces of 16 bytes; a transposing CTA moves 128 bytes of rows by 128
        // columns.
        let tiles = if transposes {
            view.row_bytes(rows).unsigned_abs().div_ceil(128)
                * view.shape[k].unsigned_abs().div_ceil(128)
        } else {
            let vectors = view.row_bytes(k).unsigned_abs().div_ceil(16);
            (view.shape[rows].unsigned_abs() * vectors).div_ceil(1024)
        };
        let params = PackOperand {
            source: view.data,
            destination,
            source_stride: [view.stride[0], view.stride[rows], view.stride[k]],
            pitch,
            batch_pitch,
            rows: view.shape[rows] as i32,
            columns: view.shape[k] as i32,
            batch: batch as i32,
            tiles: tiles as i32,
        };
        let elements = |bytes: i64| 8 * bytes / i64::from(view.dtype.bits());
        let mut stride = [0; 3];
        stride[k] = 1;
        stride[rows] = elements(pitch);
        stride[0] = if batch == 1 { 0 } else { elements(batch_pitch) };
        PackedOperand { params, tiles, view: View { data: destination, stride, ..*view } }
    }

    pub fn bytes(&self) -> u64 {
        (self.params.batch_pitch * i64::from(self.params.batch)) as u64
    }
}

/// The launch that packs one or both operands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pack {
    operands: [Option<PackedOperand>; 2],
}

impl Pack {
    pub const THREADS: u32 = 256;

    pub fn new(operands: [Option<PackedOperand>; 2]) -> Pack {
        Pack { operands }
    }

    /// The packed view of the program's A (0) or B (1), if it is packed.
    pub fn view(&self, at: usize) -> Option<View> {
        self.operands[at].map(|operand| operand.view)
    }

    /// Bytes of workspace.
    pub fn bytes(&self) -> u64 {
        self.operands.iter().flatten().map(PackedOperand::bytes).sum()
    }

    /// `PackParams` of `kernels/pack.cuh`.
    pub fn params(&self) -> [PackOperand; 2] {
        self.operands
            .map(|operand| operand.map_or(PackOperand::default(), |operand| operand.params))
    }

    /// The largest of the numbers that the kernel holds in 32 bits: bytes of a row or of a column,
    /// 16-byte pieces of a matrix, CTAs.
    pub fn largest_count(&self) -> u64 {
        let of = |operand: &PackedOperand| {
            let PackOperand { pitch, rows, batch, .. } = operand.params;
            let lines = operand.view.dtype.bytes_of(i64::from(rows));
            let (pieces, ctas) =
                (i64::from(rows) * (pitch / 16), operand.tiles * u64::from(batch.unsigned_abs()));
            (pitch.max(lines).max(pieces)).unsigned_abs().max(ctas)
        };
        let operands = self.operands.iter().flatten();
        operands
            .clone()
            .map(of)
            .max()
            .unwrap_or(0)
            .max(operands.map(|o| o.tiles * o.params.batch as u64).sum())
    }

    /// CTAs of the launch.
    pub fn grid(&self) -> u32 {
        self.operands.iter().flatten().map(|o| o.params.tiles as u32 * o.params.batch as u32).sum()
    }
}
