"""The CPU reference against torch in float64 and int64: every type, layout and rank, odd extents,
random strides.
"""

import textwrap
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import ElementwiseArguments, GemmArguments, GroupedGemmArguments
from hypothesis import given, settings
from hypothesis import strategies as st
from support.forks import FORK
from support.helpers import DTYPES, INTEGERS, accumulator_of, coarse, exact, gemm, run_python, same
from support.properties import multiplies_codes

REFERENCE = [
    kernel
    for kernel in cutlass_api.get_kernels(providers=["reference"])
    if not multiplies_codes(kernel)
]


def types_of(operation):
    """(A, B, accumulator, out) of every reference kernel of an operation, as torch dtypes."""
    found = []
    for kernel in REFERENCE:
        if kernel.metadata.kernel_name.startswith(f"reference_{operation}_"):
            operands = kernel.metadata.operands
            accumulator = getattr(operands, "accumulator_type", operands.out.dtype)
            parts = (operands.A.dtype, operands.B.dtype, accumulator, operands.out.dtype)
            dtypes = [DTYPES[dtype.name] for dtype in parts]
            found.append(pytest.param(*dtypes, id=kernel.metadata.kernel_name))
    return found


def unwritten(*shape, dtype):
    """An output whose unwritten elements are visible: NaN, or 77 for integers."""
    return torch.full(shape, 77 if dtype in INTEGERS else torch.nan).to(dtype)


def close_by(actual, expected, units=1):
    """Whether two tensors of a 16-bit float type differ by some units in the last place at most.

    torch rounds float64 to 16 bits by way of float32, so that about one in 1e5 of its results is
    off by one unit.
    """

    def place(tensor):
        bits = tensor.contiguous().view(torch.int16).to(torch.int32)
        return torch.where(bits < 0, -(bits & 0x7FFF), bits)

    return ((place(actual) - place(expected)).abs() <= units).all()


@pytest.mark.parametrize("a_dtype, b_dtype, accumulator, out_dtype", types_of("gemm"))
def test_all_types(a_dtype, b_dtype, accumulator, out_dtype):
    for shape in [(), (3,)]:
        a, b = coarse(*shape, 17, 23, dtype=a_dtype), coarse(*shape, 23, 11, dtype=b_dtype)
        out = gemm(a, b, unwritten(*shape, 17, 11, dtype=out_dtype), accumulator)
        assert same(out, exact(a, b, out_dtype))


@pytest.mark.parametrize("m, n, k", [(127, 129, 1031), (257, 131, 67), (131, 3, 1027)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.int8], ids=str)
def test_across_tiles(m, n, k, dtype):
    a, b = coarse(m, k, dtype=dtype), coarse(k, n, dtype=dtype)
    out = gemm(a, b, unwritten(m, n, dtype=accumulator_of(dtype)), accumulator_of(dtype))
    assert same(out, exact(a, b, out.dtype))


def test_integers_wrap():
    a = torch.full((2, 3), 2**31 - 1, dtype=torch.int32)
    out = gemm(a, a.T.contiguous(), unwritten(2, 2, dtype=torch.int32), torch.int32)
    assert same(out, torch.full((2, 2), 3, dtype=torch.int32))
    a = torch.full((1, 9), 127, dtype=torch.int8)
    narrow = gemm(a, a.T.contiguous(), unwritten(1, 1, dtype=torch.int8), torch.int32)
    assert narrow.item() == ((9 * 127 * 127 + 128) % 256) - 128


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str
)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_spreads_as_in_torch(dtype, value):
    a, b = torch.ones(4, 5, dtype=dtype), torch.ones(5, 3, dtype=dtype)
    a[1, 2], b[3, 1] = value, 0
    out = gemm(a, b, unwritten(4, 3, dtype=dtype), accumulator_of(dtype))
    assert torch.equal(out.nan_to_num(7, 8, 9), (a @ b).nan_to_num(7, 8, 9))


#: For each type: the largest finite number, and what larger magnitudes round to: infinity, or NaN
#: in a type without infinities. torch's casts to float8_e4m3fn saturate from torch 2.13 on.
OVERFLOWS = {
    torch.float16: (65504.0, torch.inf),
    torch.bfloat16: (torch.finfo(torch.bfloat16).max, torch.inf),
    torch.float8_e4m3fn: (448.0, torch.nan),
    torch.float8_e5m2: (57344.0, torch.inf),
}


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", OVERFLOWS, ids=str)
def test_overflow_does_not_saturate(dtype, sign):
    largest, beyond = OVERFLOWS[dtype]
    assert largest == torch.finfo(dtype).max
    a = torch.tensor([[largest]]).to(dtype)
    factors = sign * torch.tensor([[1.0, 1.25, largest]])
    out = gemm(a, factors.to(dtype), unwritten(1, 3, dtype=dtype)).to(torch.float64)
    expected = sign * torch.tensor([[largest, beyond, beyond]], dtype=torch.float64)
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


# Accuracy.


def test_every_result_is_rounded_once():
    a, b = torch.randn(200, 300, dtype=torch.float64), torch.randn(300, 200, dtype=torch.float64)
    a, b = a.to(torch.float32), b.to(torch.float32)
    right = a.to(torch.float64) @ b.to(torch.float64)
    assert same(gemm(a, b, unwritten(200, 200, dtype=torch.float32)), right.to(torch.float32))
    for dtype in (torch.float16, torch.bfloat16):
        assert close_by(gemm(a, b, unwritten(200, 200, dtype=dtype)), right.to(dtype))


def test_float16_is_rounded_from_float64_directly():
    # 1 + 2^-11 is half-way between two float16 values; the 2^-40 above it decides, and float32
    # loses it.
    a = torch.tensor([[1.0, 2.0**-11, 2.0**-20]])
    b = torch.tensor([[1.0], [1.0], [2.0**-20]])
    assert gemm(a, b, unwritten(1, 1, dtype=torch.float16)).item() == 1 + 2**-10


def test_the_same_each_time():
    a, b = torch.randn(150, 1500), torch.randn(1500, 170)
    first = gemm(a, b, torch.empty(150, 170))
    assert all(torch.equal(first, gemm(a, b, torch.empty(150, 170))) for _ in range(5))


# Random problems.

extents = st.integers(0, 9)


@st.composite
def strided(draw, shape, dtype, output=False):
    """A tensor with random strides within a larger memory, and the memory, full of values."""
    order = draw(st.permutations(range(len(shape))))
    strides, step = [0] * len(shape), 1
    for dim in order:
        gap = draw(st.integers(0, 2))
        strides[dim] = 0 if not output and draw(st.integers(0, 9)) == 0 else step * (1 + gap)
        step *= (1 + gap) * max(shape[dim], 1)
    offset = draw(st.integers(0, 3))
    memory = coarse(
        offset + step + 8,
        dtype=dtype,
        generator=torch.Generator().manual_seed(draw(st.integers(0, 999))),
    )
    return memory.as_strided(shape, strides, offset), memory


@st.composite
def gemms(draw):
    a_dtype, b_dtype, accumulator, out_dtype = draw(
        st.sampled_from([p.values for p in types_of("gemm")])
    )
    m, n, k = draw(extents), draw(extents), draw(extents)
    batch = draw(st.sampled_from([(), (0,), (1,), (2,), (3,)]))
    a, _ = draw(strided((*batch, m, k), a_dtype))
    b, _ = draw(strided((*batch, k, n), b_dtype))
    out, memory = draw(strided((*batch, m, n), out_dtype, output=True))
    return a, b, out, memory, accumulator


@settings(max_examples=300, deadline=None)
@given(gemms())
def test_random_gemms_and_the_gaps_around_them(problem):
    a, b, out, memory, accumulator = problem
    expected = memory.clone()
    expected.as_strided(out.shape, out.stride(), out.storage_offset()).copy_(exact(a, b, out.dtype))
    gemm(a, b, out, accumulator)
    # Compare the whole memory: bytes between and around the elements stay unchanged.
    assert same(memory, expected)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_random_sums(data):
    dtype = data.draw(st.sampled_from(list(DTYPES.values())))
    shape = data.draw(st.lists(extents, min_size=1, max_size=3).map(tuple))
    a, _ = data.draw(strided(shape, dtype))
    b, _ = data.draw(strided(shape, dtype))
    out, memory = data.draw(strided(shape, dtype, output=True))
    expected = memory.clone()
    add_into(expected.as_strided(out.shape, out.stride(), out.storage_offset()), a, b)
    run(ElementwiseArguments(a, b, out))
    assert same(memory, expected)


def add_into(out, a, b):
    wide = torch.int64 if out.dtype in INTEGERS else torch.float64
    out.copy_((a.to(wide) + b.to(wide)).to(out.dtype))


def run(args):
    (kernel,) = cutlass_api.get_kernels(args)
    kernel.run(args)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=5),
    st.integers(0, 3),
    st.integers(0, 6),
    st.integers(0, 6),
)
def test_random_groups(sizes, spare, n, k):
    rows = sum(sizes) + spare
    a, b = coarse(rows, k), coarse(len(sizes), k, n)
    out = torch.full((rows, n), torch.nan)
    offsets = torch.tensor(sizes).cumsum(0).to(torch.int32)
    run(GroupedGemmArguments(a, b, out, torch.float32, offsets))
    start = 0
    for group, size in enumerate(sizes):
        assert torch.equal(
            out[start : start + size], exact(a[start : start + size], b[group], torch.float32)
        )
        start += size
    assert out[start:].isnan().all(), "rows of no group are left as they are"


# The other operations.


@pytest.mark.parametrize("a_dtype, b_dtype, accumulator, out_dtype", types_of("grouped_gemm"))
def test_grouped_types(a_dtype, b_dtype, accumulator, out_dtype):
    a, b = coarse(1, 9, 5, dtype=a_dtype), coarse(3, 5, 4, dtype=b_dtype)
    out = unwritten(1, 9, 4, dtype=out_dtype)
    offsets = torch.tensor([4, 0, 4, 0, 9], dtype=torch.int32)[::2]
    run(GroupedGemmArguments(a, b, out, accumulator, offsets))
    for group, (start, end) in enumerate(pairwise([0, *offsets.tolist()])):
        assert same(out[0, start:end], exact(a[0, start:end], b[group], out_dtype))


@pytest.mark.parametrize("a_dtype, b_dtype, accumulator, out_dtype", types_of("elementwise_add"))
def test_elementwise_types(a_dtype, b_dtype, accumulator, out_dtype):
    a, b = coarse(37, 41, dtype=a_dtype), coarse(37, 41, dtype=b_dtype)
    out, expected = unwritten(37, 41, dtype=out_dtype), torch.empty(37, 41, dtype=out_dtype)
    run(ElementwiseArguments(a, b, out))
    add_into(expected, a, b)
    assert same(out, expected)
    if a_dtype == out_dtype:
        run(ElementwiseArguments(a, b, a))
        assert same(a, expected)


def test_every_operation_has_every_type():
    for operation in ("gemm", "elementwise_add"):
        assert {param.values[0] for param in types_of(operation)} == set(DTYPES.values())
    assert [x.values for x in types_of("grouped_gemm")] == [x.values for x in types_of("gemm")]


# Where it runs.


def test_an_artifact_is_optional_and_takes_no_compiler():
    a, out = coarse(4, 4), torch.zeros(4, 4)
    args = GemmArguments(a, a, out, "float32")
    (kernel,) = cutlass_api.get_kernels(args)
    artifact = kernel.compile(args)
    assert artifact.kernel_obj is kernel
    assert artifact.compiled_obj is None
    assert kernel.get_workspace_size(args) == 0
    kernel.run(args, artifact, stream=None, workspace=None, assume_supported_args=True)
    assert torch.equal(out, exact(a, a, torch.float32))
    with pytest.raises(ValueError, match="no compiled program"):
        artifact.to_bytes()


def test_results_do_not_depend_on_the_number_of_threads():
    script = """
        import hashlib, cutlass_api, numpy
        generator = numpy.random.default_rng(0)
        a, b = (generator.random(shape) for shape in ((200, 1500), (1500, 300)))
        print(hashlib.sha256(cutlass_api.matmul(a, b).tobytes()).hexdigest())
    """
    assert len({run_python(script, RAYON_NUM_THREADS=count) for count in "15"}) == 1


def test_several_threads():
    problems = []
    for index in range(8):
        a, b = coarse(64 + index, 100), coarse(100, 70)
        args = GemmArguments(a, b, torch.full((64 + index, 70), torch.nan), "float32")
        problems.append((args, exact(a, b, torch.float32)))

    def work(args, expected):
        kernel = cutlass_api.get_kernels(args)[0]
        for _ in range(20):
            kernel.run(args)
            assert torch.equal(args.out.tensor.runtime_tensor, expected)

    with ThreadPoolExecutor(len(problems)) as pool:
        for future in [pool.submit(work, *problem) for problem in problems]:
            future.result(60)


@pytest.mark.parametrize("used_before", [True, False], ids=["after use in the parent", "fresh"])
def test_a_forked_child(used_before):
    code = f"""
        if {used_before}:
            multiply()
        children = [fork(multiply) for _ in range(2)]
        print([ended(child) for child in children], multiply())
    """
    assert run_python(FORK + textwrap.dedent(code), timeout=60) == "[0, 0] None\n"


def test_float_sums_become_integers_as_on_a_gpu():
    """Rounded towards zero, saturated, and 0 for NaN."""
    a = torch.tensor([[0.75], [-0.75], [1.5], [-1.5], [3e9], [-3e9], [torch.nan], [torch.inf]])
    out = torch.zeros(8, 1, dtype=torch.int32)
    gemm(a, torch.ones(1, 1), out)
    limits = torch.iinfo(torch.int32)
    assert out.flatten().tolist() == [0, 0, 1, -1, limits.max, limits.min, 0, limits.max]
