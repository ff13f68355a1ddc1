use super::config::Elementwise;
use super::dimensions::merged;
use super::launch::{Vectors, params};
use crate::kernel::types::Types;
use crate::operand::{DType, DeviceId, View};
use crate::problem::ElementwiseProblem;

fn view(shape: [i64; 3], stride: [i64; 3]) -> View {
    let (dtype, device) = (DType::F32, DeviceId::Cuda(0));
    View { data: 1 << 20, dtype, device, rank: 3, shape, stride, read_only: false, fake: true }
}

fn merged_of(strides: [[i64; 3]; 3], shape: [i64; 3]) -> [View; 3] {
    let [a, b, out] = strides.map(|stride| view(shape, stride));
    merged(&ElementwiseProblem { a, b, out }, true)
}

#[test]
fn contiguous_sums_are_a_single_row_in_any_order() {
    for stride in [[35, 7, 1], [1, 3, 15], [5, 1, 15]] {
        for view in merged_of([stride; 3], [3, 5, 7]) {
            assert_eq!((view.shape, view.stride), ([1, 1, 105], [0, 0, 1]), "{stride:?}");
        }
    }
}

#[test]
fn rows_that_are_padded_or_repeated_stay_rows() {
    let [a, b, out] = merged_of([[0, 7, 1], [0, 0, 1], [0, 8, 1]], [1, 5, 7]);
    assert_eq!(out.shape, [1, 5, 7]);
    assert_eq!([a.stride, b.stride, out.stride], [[0, 7, 1], [0, 0, 1], [0, 8, 1]]);
    let [a, b, out] = merged_of([[0, 1, 5], [0, 7, 1], [0, 1, 5]], [1, 5, 7]);
    assert_eq!(out.shape, [1, 7, 5], "the output is column-major");
    assert_eq!([a.stride, b.stride, out.stride], [[0, 5, 1], [0, 1, 7], [0, 5, 1]]);
}

#[test]
fn a_single_element_is_a_row_of_one() {
    let [a, _, out] = merged_of([[0; 3]; 3], [1; 3]);
    assert_eq!((a.shape, out.stride), ([1; 3], [0, 0, 1]));
}

#[test]
fn chunks_are_moved_at_once_where_operands_lie_side_by_side() {
    let types = Types { a: DType::F16, b: DType::F16, accumulator: DType::F32, out: DType::F16 };
    let rows = |data: u64, pitch: i64, step: i64| View {
        data,
        dtype: DType::F16,
        ..view([1, 10, 100], [0, pitch, step])
    };
    let (whole, odd) = (1 << 20, (1 << 20) + 2);
    // One operand's address, its row stride and element stride; the expected `vectors`, rows, and
    // chunks of a row.
    let cases = [
        (whole, 100, 1, Vectors::Aligned, (1, 125)),
        (whole, 104, 1, Vectors::Aligned, (10, 13)),
        (odd, 100, 1, Vectors::Loose, (1, 126)),
        (whole, 101, 1, Vectors::Loose, (10, 14)),
        (whole, 200, 2, Vectors::None, (1, 125)),
    ];
    for (address, pitch, step, vectors, expected) in cases {
        let (aligned, other) = (rows(1 << 22, pitch, step), rows(address, pitch, step));
        for [a, b, out] in
            [[other, aligned, aligned], [aligned, other, aligned], [aligned, aligned, other]]
        {
            let problem = ElementwiseProblem { a, b, out };
            let (ctas, joined) = params(Elementwise, types, &problem, true);
            assert_eq!(joined.vectors, vectors as i32, "{address:#x} {pitch}");
            assert_eq!((i64::from(joined.rows), joined.chunks), expected, "{address:#x} {pitch}");
            assert_eq!(joined.a_bytes, 2 * (9 * pitch + 99 * step + 1));
            assert_eq!(ctas, 1);
            // With an epilogue, rows are not merged.
            let (_, rows) = params(Elementwise, types, &problem, false);
            assert_eq!((rows.rows, rows.n, rows.chunks), (10, 100, 13));
            assert!(rows.vectors != Vectors::Loose as i32);
        }
    }
}
