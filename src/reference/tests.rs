//! Compares every type and layout with naive loops over the same operands, in exact arithmetic.

use std::ops::Range;

use super::element::{Element, with_element};
use super::*;
use crate::operand::{Class, DType, DeviceId, View};
use crate::problem::{ElementwiseProblem, GemmProblem, GroupedGemmProblem, Problem};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.next() as usize % choices.len()]
    }
}

/// A tensor with gaps around and between its elements. All bytes start out random.
struct Tensor {
    bytes: Vec<u8>,
    /// The offset of the first element, in bytes.
    origin: usize,
    dtype: DType,
    shape: [i64; 3],
    stride: [i64; 3],
}

impl Tensor {
    fn new(random: &mut Random, dtype: DType, shape: [i64; 3], stride: [i64; 3]) -> Tensor {
        let stride = std::array::from_fn(|dim| if shape[dim] == 1 { 0 } else { stride[dim] });
        let reach: i64 = (0..3).map(|dim| (shape[dim] - 1).max(0) * stride[dim]).sum();
        let origin = (3 * dtype.bytes()) as usize;
        let bytes = (0..origin + ((reach + 4) * dtype.bytes()) as usize)
            .map(|_| random.next() as u8)
            .collect();
        let mut tensor = Tensor { bytes, origin, dtype, shape, stride };
        tensor.fill(|| match dtype {
            DType::I8 | DType::U8 | DType::I32 => random.next() as i32 as f64,
            _ => (random.next() % 33) as f64 * 0.25 - 4.0,
        });
        tensor
    }

    /// A random layout that an output can have; with `input`, also broadcast and overlapping ones.
    fn random(random: &mut Random, dtype: DType, shape: [i64; 3], input: bool) -> Tensor {
        let [l, m, n] = shape;
        let mut layouts = vec![
            [m * n, n, 1],
            [m * n, 1, m],
            [1, n * l, l],
            [m * (2 * n + 3), 2 * n + 3, 2],
            [2 * m * n + 1, 2, 2 * m],
        ];
        if input {
            layouts.extend([[0, n, 1], [1, n, 1], [2, 1, 1], [m * n, 0, 1], [0, 1, 0], [0, 0, 0]]);
        }
        let stride = random.pick(&layouts);
        Tensor::new(random, dtype, shape, stride)
    }

    fn view(&self) -> View {
        let Tensor { dtype, shape, stride, .. } = *self;
        let data = self.bytes.as_ptr().expose_provenance() as u64 + self.origin as u64;
        View { data, dtype, rank: 3, shape, stride, ..View::UNREAD }
    }

    fn indices(&self) -> impl Iterator<Item = [i64; 3]> + use<> {
        let [l, m, n] = self.shape;
        (0..l).flat_map(move |i| (0..m).flat_map(move |j| (0..n).map(move |k| [i, j, k])))
    }

    fn place(&self, index: [i64; 3]) -> Range<usize> {
        let element: i64 = (0..3).map(|dim| index[dim] * self.stride[dim]).sum();
        let start = self.origin + (element * self.dtype.bytes()) as usize;
        start..start + self.dtype.bytes() as usize
    }

    fn get(&self, index: [i64; 3]) -> f64 {
        let bytes = &self.bytes[self.place(index)];
        with_element!(self.dtype, T => {
            unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }.decode()
        })
    }

    fn set(&mut self, index: [i64; 3], value: f64) {
        let place = self.place(index);
        let bytes = &mut self.bytes[place];
        with_element!(self.dtype, T => unsafe {
            bytes.as_mut_ptr().cast::<T>().write_unaligned(T::encode(value))
        });
    }

    fn fill(&mut self, mut value: impl FnMut() -> f64) {
        self.indices().for_each(|index| self.set(index, value()));
    }

    /// A copy with its elements set to the exact result. `integers`: both inputs are integers.
    fn with(&self, integers: bool, value: impl Fn([i64; 3]) -> Exact) -> Tensor {
        let mut copy = Tensor { bytes: self.bytes.clone(), ..*self };
        for index in self.indices() {
            let exact = value(index);
            copy.set(index, if integers { exact.integer as i32 as f64 } else { exact.float });
        }
        copy
    }
}

/// One result in both arithmetics. float64 is exact for the values of these tensors.
#[derive(Default)]
struct Exact {
    float: f64,
    integer: i128,
}

fn product(a: &Tensor, b: &Tensor, [l, m, n]: [i64; 3]) -> Exact {
    (0..a.shape[2]).fold(Exact::default(), |sum, k| {
        let (left, right) = (a.get([l, m, k]), b.get([l, k, n]));
        Exact {
            float: sum.float + left * right,
            integer: sum.integer + left as i128 * right as i128,
        }
    })
}

/// Runs a GEMM and compares every byte of the output's buffer, gaps included.
fn check_gemm(a: &Tensor, b: &Tensor, out: &Tensor, accumulator: DType) {
    let integers = a.dtype.is_integer() && b.dtype.is_integer();
    let expected = out.with(integers, |index| product(a, b, index));
    let problem = GemmProblem::new(a.view(), b.view(), out.view(), accumulator).unwrap();
    unsafe { run(&Problem::Gemm(problem), None) }.unwrap();
    let describe = |t: &Tensor| format!("{} {:?} {:?}", t.dtype, t.shape, t.stride);
    assert!(out.bytes == expected.bytes, "{} @ {} = {}", describe(a), describe(b), describe(out));
}

#[test]
fn gemm_of_all_types_layouts_and_extents() {
    let random = &mut Random(1);
    let mut combinations = 0;
    for a in DType::whole() {
        for b in DType::whole() {
            for out in DType::whole() {
                for accumulator in
                    DType::all().filter(|accumulator| multiplies(a, b, *accumulator, out))
                {
                    combinations += 1;
                    for _ in 0..6 {
                        let [l, m, n, k] =
                            [[1, 2, 3, 0], [1, 5, 7, 13], [1, 3, 8, 0], [1, 2, 17, 0]]
                                .map(|c| random.pick(&c));
                        let a = Tensor::random(random, a, [l, m, k], true);
                        let b = Tensor::random(random, b, [l, k, n], true);
                        let out = Tensor::random(random, out, [l, m, n], false);
                        check_gemm(&a, &b, &out, accumulator);
                    }
                }
            }
        }
    }
    // Pairs of floats are stored as any float and int32, those of a float and an integer as any
    // float, each with two accumulators; float16 has a third. Integers: no 8-bit floats.
    let count = |holds: fn(DType) -> bool| DType::whole().filter(|dtype| holds(*dtype)).count();
    let (floats, integers) = (count(DType::is_float), count(DType::is_integer));
    let narrow = count(|dtype| dtype.class() == Some(Class::Float8));
    let with_a_float = floats * floats * (floats + 1) + 2 * floats * integers * floats;
    let of_integers = integers * integers * (floats - narrow + integers);
    assert_eq!(combinations, with_a_float * 2 + floats + 1 + of_integers);
}

#[test]
fn gemm_across_region_boundaries() {
    let random = &mut Random(2);
    for (dtype, accumulator) in
        [(DType::F32, DType::F32), (DType::I8, DType::I32), (DType::I32, DType::I32)]
    {
        for (m, n) in [(131, 3), (2, 150)] {
            let a = Tensor::new(random, dtype, [2, m, 1027], [0, 1, m]);
            let b = Tensor::new(random, dtype, [2, 1027, n], [7, n, 1]);
            let out = Tensor::new(random, accumulator, [2, m, n], [1, 2, 2 * m]);
            check_gemm(&a, &b, &out, accumulator);
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let random = &mut Random(3);
    let mut tensor = |shape: [i64; 3]| {
        let mut tensor = Tensor::new(random, DType::F64, shape, [0, shape[2], 1]);
        tensor.fill(|| random.next() as f64 / 3.0);
        tensor
    };
    let (a, b, out) = (tensor([1, 200, 1500]), tensor([1, 1500, 300]), tensor([1, 200, 300]));
    let problem =
        Problem::Gemm(GemmProblem::new(a.view(), b.view(), out.view(), DType::F64).unwrap());
    let with_threads = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| unsafe { run(&problem, None) }).unwrap();
        out.bytes.clone()
    };
    let alone = with_threads(1);
    assert!((0..3).all(|_| with_threads(5) == alone));
}

#[test]
fn groups_write_their_rows_only() {
    let random = &mut Random(4);
    for (ends, groups) in [(vec![0, 3, 3, 8], 4), (vec![10], 1), (vec![], 0)] {
        let a = Tensor::random(random, DType::F16, [1, 10, 6], true);
        let b = Tensor::random(random, DType::Bf16, [groups, 6, 5], true);
        let out = Tensor::random(random, DType::F32, [1, 10, 5], false);
        let mut offsets = Tensor::new(random, DType::I32, [1, 1, groups], [0, 0, 3]);
        (0..).zip(&ends).for_each(|(group, end)| offsets.set([0, 0, group], f64::from(*end)));
        let mut expected = out.with(false, |_| Exact::default());
        for index in out.indices() {
            let group = ends.iter().position(|end| index[1] < i64::from(*end));
            let sum = |group: usize| {
                (0..6).map(|k| a.get([0, index[1], k]) * b.get([group as i64, k, index[2]])).sum()
            };
            expected.set(index, group.map_or_else(|| out.get(index), sum));
        }
        unsafe { run(&grouped(&a, &b, &out, &offsets), None) }.unwrap();
        assert!(out.bytes == expected.bytes, "{ends:?}");
    }
}

fn grouped(a: &Tensor, b: &Tensor, out: &Tensor, offsets: &Tensor) -> Problem {
    let offsets = View { rank: 1, ..offsets.view() };
    Problem::GroupedGemm(
        GroupedGemmProblem::new(a.view(), b.view(), out.view(), offsets, DType::F32).unwrap(),
    )
}

#[test]
fn wrong_offsets_are_refused_before_anything_is_written() {
    let random = &mut Random(5);
    let a = Tensor::new(random, DType::F32, [1, 10, 6], [0, 6, 1]);
    let b = Tensor::new(random, DType::F32, [2, 6, 5], [30, 5, 1]);
    let out = Tensor::new(random, DType::F32, [1, 10, 5], [0, 5, 1]);
    let before = out.bytes.clone();
    for (ends, group, start) in [([5, 4], 1, 5), ([5, 11], 1, 5), ([-1, 4], 0, 0)] {
        let mut offsets = Tensor::new(random, DType::I32, [1, 1, 2], [0, 0, 1]);
        (0..).zip(ends).for_each(|(group, end)| offsets.set([0, 0, group], end as f64));
        let error =
            ReferenceError::OffsetsOrder { group, start, end: ends[group as usize], rows: 10 };
        assert_eq!(unsafe { run(&grouped(&a, &b, &out, &offsets), None) }, Err(error));
    }
    let offsets = Tensor::new(random, DType::I32, [1, 1, 3], [0, 0, 1]);
    let error = ReferenceError::OffsetsLength { offsets: 3, groups: 2 };
    assert_eq!(unsafe { run(&grouped(&a, &b, &out, &offsets), None) }, Err(error));
    let Problem::GroupedGemm(two_groups) = grouped(&a, &b, &out, &offsets) else { unreachable!() };
    for rank in [1, 2] {
        let problem = GroupedGemmProblem { b: View { rank, ..two_groups.b }, ..two_groups };
        let error = ReferenceError::Rank { name: "B", rank, expected: 3 };
        assert_eq!(unsafe { run(&Problem::GroupedGemm(problem), None) }, Err(error));
    }
    assert!(out.bytes == before);
}

#[test]
fn sums_of_all_types_also_in_place() {
    let random = &mut Random(6);
    for left in DType::whole() {
        for right in DType::whole() {
            for result in DType::whole().filter(|result| adds(left, right, *result)) {
                let shape =
                    random.pick(&[[2, 5, 7], [1, 1, 1100], [1, 33, 1], [3, 0, 2], [2, 40, 3]]);
                let a = Tensor::random(random, left, shape, true);
                let b = Tensor::random(random, right, shape, true);
                let out = Tensor::random(random, result, shape, false);
                for (a, out) in [(&a, &out), (&out, &out)] {
                    if !adds(a.dtype, right, result) {
                        continue;
                    }
                    let expected = out.with(a.dtype.is_integer() && right.is_integer(), |index| {
                        let (left, right) = (a.get(index), b.get(index));
                        Exact {
                            float: left + right,
                            integer: (left as i128).wrapping_add(right as i128),
                        }
                    });
                    let problem = ElementwiseProblem::new(a.view(), b.view(), out.view()).unwrap();
                    unsafe { run(&Problem::Elementwise(problem), None) }.unwrap();
                    assert!(
                        out.bytes == expected.bytes,
                        "{} + {right} = {result}, {shape:?}",
                        a.dtype
                    );
                }
            }
        }
    }
}

#[test]
fn unsupported_problems_are_refused() {
    let view = |dtype| Tensor::new(&mut Random(7), dtype, [1, 0, 0], [0, 0, 1]).view();
    let gemm = |change: fn(&mut View), out| {
        let [mut a, mut b, mut out] = [view(DType::F32), view(DType::F32), view(out)];
        [&mut a, &mut b, &mut out].into_iter().for_each(change);
        unsafe { run(&Problem::Gemm(GemmProblem::new(a, b, out, DType::F32).unwrap()), None) }
    };
    assert_eq!(gemm(|_| (), DType::F16), Ok(()));
    assert_eq!(gemm(|view| view.fake = true, DType::F32), Err(ReferenceError::Fake { name: "A" }));
    let cuda = DeviceId::Cuda(1);
    let error = ReferenceError::Device { name: "A", device: cuda };
    assert_eq!(gemm(|view| view.device = DeviceId::Cuda(1), DType::F32), Err(error));
    let [f32, i8] = [DType::F32, DType::I8];
    assert_eq!(
        gemm(|_| (), i8),
        Err(ReferenceError::ProductTypes { a: f32, b: f32, accumulator: f32, out: i8 })
    );
    assert!(!multiplies(DType::F16, DType::Bf16, DType::F16, f32) && !multiplies(i8, i8, f32, f32));
    assert!(!multiplies(f32, i8, DType::I32, f32) && !multiplies(f32, f32, DType::Bf16, f32));
    assert!(
        !adds(f32, f32, DType::Other { code: 5, bits: 64, lanes: 1 }) && !adds(i8, i8, DType::E4m3)
    );
}
