"""Tensors of every framework as operands: their views, and errors that name the operand."""

import functools
import re

import cutlass_api
import ml_dtypes
import numpy as np
import pytest
import torch
from cutlass_api.arguments import DenseTensor, ElementwiseArguments, GemmArguments
from support.helpers import (
    DTYPES,
    REFUSED,
    accumulator_of,
    coarse,
    exact,
    fake,
    fake_gemm,
    gemm,
    output_of,
    run_first,
    same,
)

pytestmark = pytest.mark.usefixtures("exchange_mode")
dtypes = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
EXTENSIONS = {
    torch.bfloat16: ml_dtypes.bfloat16,
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.float8_e5m2: ml_dtypes.float8_e5m2,
}


def as_numpy(tensor):
    """A NumPy array over the same memory, with the types of ml_dtypes where NumPy has none."""
    if tensor.dtype in EXTENSIONS:
        bits = torch.uint8 if tensor.element_size() == 1 else torch.int16
        return tensor.view(bits).numpy().view(EXTENSIONS[tensor.dtype])
    return tensor.numpy()


def to_jax(tensor):
    jax = pytest.importorskip("jax")
    # By default, JAX makes no 64-bit arrays.
    with jax.enable_x64(True):
        return jax.numpy.array(as_numpy(tensor))


ones = torch.ones
# Views.


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_what_is_none_of_the_operands_doing_is_passed_on(error):
    class Array:
        def __dlpack__(self, **options):
            raise error("at this moment")

        def __dlpack_device__(self):
            return (1, 0)

    with pytest.raises(error, match=r"^at this moment$"):
        DenseTensor(Array())


ADDRESSES = {
    "torch": (torch.Tensor.detach, torch.Tensor.data_ptr),
    "numpy": (as_numpy, lambda array: array.ctypes.data),
    "jax": (to_jax, lambda array: array.unsafe_buffer_pointer()),
}


@dtypes
@pytest.mark.parametrize("convert, address", ADDRESSES.values(), ids=ADDRESSES)
def test_tensors_of_every_framework(dtype, convert, address):
    tensor = coarse(3, 4, 5, dtype=dtype)
    array = convert(tensor)
    operand = DenseTensor(array)
    assert (operand.shape, operand.stride, operand.numel()) == ((3, 4, 5), (20, 5, 1), 60)
    assert operand.element_type == dtype
    assert convert is not as_numpy or operand.element_type == array.dtype
    assert operand.data_ptr == address(array)


@dtypes
@pytest.mark.parametrize("device", ["cuda", "cuda:1", "cpu"])
def test_fake_tensors(dtype, device):
    operand = DenseTensor(fake(2, 4, 6, dtype=dtype, device=device, layout="n"))
    assert (operand.shape, operand.stride, operand.numel()) == ((2, 4, 6), (24, 1, 4), 48)
    assert (operand.element_type, operand.data_ptr) == (dtype, 0)
    device = "cuda:0" if device == "cuda" else device
    assert device in repr(operand)


@dtypes
@pytest.mark.parametrize(
    "convert", [lambda tensor: tensor, as_numpy, to_jax], ids=["torch", "numpy", "jax"]
)
def test_inputs_of_every_framework_are_computed_on(dtype, convert):
    a, b = coarse(3, 5, dtype=dtype), coarse(5, 4, dtype=dtype)
    out = torch.full((3, 4), 7, dtype=output_of(dtype))
    gemm(convert(a), convert(b), out, accumulator_of(dtype))
    assert torch.equal(out, exact(a, b, out.dtype))


@dtypes
def test_numpy_outputs(dtype):
    a, b = coarse(3, 5, dtype=dtype), coarse(5, 4, dtype=dtype)
    out = torch.zeros(3, 4, dtype=dtype)
    gemm(a, b, as_numpy(out), accumulator_of(dtype))
    assert same(out, exact(a, b, dtype))


@pytest.mark.parametrize(
    "view",
    [
        lambda t: t[:, ::2],
        lambda t: t[::3],
        lambda t: t[1:, 3:],
        lambda t: t.T,
        lambda t: t[:1].expand(6, 8),
        lambda t: t[:, :1].expand(6, 8),
        lambda t: t.as_strided((6, 8), (3, 1)),
        lambda t: t.as_strided((2, 5, 8), (1, 8, 1)),
    ],
    ids=[
        "every 2nd",
        "rows",
        "offset",
        "transposed",
        "0 rows",
        "0 columns",
        "overlapping",
        "batch of 1",
    ],
)
@pytest.mark.parametrize("convert", [lambda tensor: tensor, as_numpy], ids=["torch", "numpy"])
def test_strided_inputs_are_read_in_place(view, convert):
    a = view(coarse(6, 8))
    b = coarse(*a.shape[:-2], a.shape[-1], 3)
    array = convert(a)
    operand = DenseTensor(array)
    assert operand.shape == a.shape
    assert operand.stride == tuple(
        s if e > 1 else 0 for s, e in zip(a.stride(), a.shape, strict=True)
    )
    assert operand.data_ptr == a.data_ptr()
    out = torch.full((*a.shape[:-1], 3), torch.nan)
    assert torch.equal(gemm(array, b, out), exact(a, b, torch.float32))


def test_a_batch_stride_smaller_than_a_matrix():
    a = coarse(64).as_strided((4, 3, 5), (2, 5, 1))
    b = coarse(64).as_strided((4, 5, 6), (0, 6, 1))
    assert torch.equal(gemm(a, b, torch.full((4, 3, 6), torch.nan)), exact(a, b, torch.float32))


def test_read_only_inputs_are_read():
    a = np.eye(3, dtype=np.float32)
    a.flags.writeable = False
    assert np.array_equal(gemm(a, a, np.zeros((3, 3), np.float32)), a)


def test_what_autograd_watches_is_read_by_value():
    a, b = coarse(3, 3).requires_grad_(), torch.nn.Parameter(coarse(3, 3))
    out = torch.zeros(3, 3)
    gemm(a * 2, b, out)
    assert torch.equal(out, (a * 2 @ b).detach())
    assert not out.requires_grad


def test_an_export_that_is_a_copy_is_refused():
    class Copied:
        def __dlpack__(self, **_):
            return np.eye(3, dtype=np.float32).__dlpack__(max_version=(1, 0), copy=True)

    with pytest.raises(BufferError, match=r"^A is exported as a copy"):
        GemmArguments(Copied(), torch.eye(3), torch.eye(3), "float32")


def test_a_stream_means_nothing_to_numpy():
    a, b, out = coarse(3, 4).numpy(), coarse(4, 5).numpy(), np.zeros((3, 5), np.float32)
    args = GemmArguments(a, b, out, "float32")
    cutlass_api.get_kernels(args)[0].run(args, stream=0)
    assert np.array_equal(out, a @ b)


def test_extents_of_zero_and_one():
    operand = DenseTensor(torch.zeros(1, 5)[:, :1])
    assert (operand.shape, operand.stride, operand.numel()) == ((1, 1), (0, 0), 1)
    assert DenseTensor(torch.zeros(0, 5)).numel() == 0


@pytest.mark.parametrize(
    "make", [lambda t: t.conj().imag, lambda t: torch._neg_view(t.real)], ids=["imag", "neg_view"]
)
@pytest.mark.parametrize("extent", [1, 3])
def test_lazily_negated_tensors_are_read_right_or_refused(make, extent):
    # torch flips the sign of such a view when it is read; the memory holds the opposite.
    negated = make(torch.complex(ones(extent, extent), ones(extent, extent)))
    out = torch.zeros(extent, extent)
    try:
        gemm(negated, torch.eye(extent), out)
    except REFUSED as error:
        assert str(error).startswith("A ")
    else:
        assert torch.equal(out, negated + 0)


def test_a_lazily_negated_output_is_written_right_or_refused():
    out = torch.zeros(3, 3, dtype=torch.complex64).conj().imag
    try:
        gemm(torch.eye(3), ones(3, 3), out)
    except REFUSED as error:
        assert str(error).startswith("out ")
    else:
        assert torch.equal(out + 0, ones(3, 3))


# Errors.


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=["float32", "bfloat16"])
def test_read_only_outputs(dtype):
    a, out = np.eye(3, dtype=dtype), np.zeros((3, 3), dtype)
    out.flags.writeable = False
    with pytest.raises(ValueError, match=r"^out is read-only"):
        GemmArguments(a, a, out, "float32")


@pytest.mark.parametrize("name", ["A", "B", "out"])
def test_masked_arrays_are_refused(name):
    class Subclass(np.ma.MaskedArray):
        pass

    arguments = functools.partial(GemmArguments, accumulator_type="float64")
    for masked in (np.ma.ones((3, 3)), np.ma.ones((3, 3)).view(Subclass)):
        operands = {"A": np.eye(3), "B": np.eye(3), "out": np.zeros((3, 3))} | {name: masked}
        for call in (cutlass_api.matmul, arguments):
            with pytest.raises(TypeError, match=rf"^{name} is a MaskedArray .* \.filled\(value\)"):
                call(**operands)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int8"])
def test_jax_outputs_are_immutable(dtype):
    jnp = pytest.importorskip("jax").numpy
    a = jnp.eye(3, dtype=dtype)
    with pytest.raises(ValueError, match=r"^out "):
        GemmArguments(a, a, jnp.zeros((3, 3), dtype), "float32")


@pytest.mark.parametrize("stride", [(0, 1), (1, 0), (2, 1), (1, 2), (0, 0), (5, 3, 1)], ids=str)
def test_outputs_that_overlap_themselves(stride):
    shape = (2, 3, 3)[-len(stride) :]
    message = re.escape(f"out with shape {list(shape)} and strides {list(stride)}")
    with pytest.raises(ValueError, match=f"^{message}"):
        GemmArguments(ones(shape), ones(shape), ones(64).as_strided(shape, stride), "float32")


@pytest.mark.parametrize("name", ["A", "B"])
@pytest.mark.parametrize(
    "overlap",
    [lambda t: t[:4, :4], lambda t: t[:4, :4].T, lambda t: t[3:7, 3:7]],
    ids=["same", "transposed", "corner"],
)
def test_outputs_that_share_memory_with_an_input(name, overlap):
    parent = ones(8, 8)
    operands = {"A": ones(4, 4), "B": ones(4, 4), "out": parent[:4, :4]} | {name: overlap(parent)}
    with pytest.raises(ValueError, match=rf"^out shares memory with {name}"):
        GemmArguments(**operands, accumulator_type="float32")


@pytest.mark.parametrize(
    "parts",
    [
        lambda t: t.view(2, 3, 4, 4).unbind(1),
        lambda t: t.view(3, 2, 4, 4).unbind(0),
        lambda t: t.view(2, 4, 4, 3).unbind(3),
        lambda t: t[:48].view(4, 12).split(4, 1),
        lambda t: t[:48].view(12, 4).T.split(4, 1),
    ],
    ids=["of each pair of matrices", "of several matrices", "every third", "columns", "rows"],
)
def test_blocks_are_no_overlap(parts):
    a, b, out = parts(coarse(96))
    expected = exact(a, b, torch.float32)
    assert torch.equal(gemm(a, b, out), expected)


def test_blocks_of_a_batch_that_share_a_row():
    parent = ones(2, 9, 4)
    with pytest.raises(ValueError, match=r"^out shares memory with A"):
        GemmArguments(parent[:, :4], ones(2, 4, 4), parent[:, 3:7], "float32")
    GemmArguments(parent[0, :4, :0], ones(0, 4), parent[0, :4], "float32")  # A has no elements


def test_elementwise_in_place():
    a, b = coarse(3, 4), coarse(3, 4)
    expected = a + b
    run_first(ElementwiseArguments(a, b, a))
    assert torch.equal(a, expected)
    with pytest.raises(ValueError, match="out shares memory with B"):
        square = ones(3, 3)
        ElementwiseArguments(ones(3, 3), square.T, square)


@pytest.mark.parametrize("axis", [0, 1])
def test_negative_strides(axis):
    a = np.flip(np.eye(3, dtype=np.float32), axis)
    with pytest.raises(ValueError, match=rf"^A has a negative stride \({a.strides[axis] // 4}\)"):
        GemmArguments(a, ones(3, 3), ones(3, 3), "float32")


@pytest.mark.parametrize("name", ["A", "B", "out"])
@pytest.mark.parametrize("shape", [(), (1, 1, 1, 1), (3,)], ids=["rank 0", "rank 4", "rank 1"])
@pytest.mark.parametrize(
    "make", [torch.ones, np.ones, lambda shape: fake(*shape)], ids=["torch", "numpy", "fake"]
)
def test_ranks(name, shape, make):
    operands = {"A": ones(3, 3), "B": ones(3, 3), "out": ones(3, 3)} | {name: make(shape)}
    with pytest.raises(ValueError, match=rf"{name} .*has rank {len(shape)}\b"):
        GemmArguments(**operands, accumulator_type="float32")


@pytest.mark.parametrize("name", ["A", "B", "out"])
@pytest.mark.parametrize(
    "value", [None, 1.5, [[1.0]], "A", torch.float32, b"0123"], ids=lambda v: type(v).__name__
)
def test_what_is_no_tensor(name, value):
    operands = {"A": ones(3, 3), "B": ones(3, 3), "out": ones(3, 3)} | {name: value}
    with pytest.raises(TypeError, match=rf"^{name} is a {type(value).__name__}"):
        GemmArguments(**operands, accumulator_type="float32")


@pytest.mark.parametrize("name", ["A", "B"])
def test_mixed_devices(name):
    operands = {"A": fake(3, 3), "B": fake(3, 3), "out": fake(3, 3)}
    for other in (fake(3, 3, device="cpu"), fake(3, 3, device="cuda:1"), ones(3, 3).half()):
        with pytest.raises(ValueError, match=f"^{name} is on {other.device}, but out is on cuda:0"):
            GemmArguments(**operands | {name: other}, accumulator_type="float32")


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.eye(3).to_mkldnn(),
        lambda: torch.eye(3, device="meta"),
        lambda: torch._efficientzerotensor(3, 3),
        lambda: np.eye(3, dtype=">f4"),
        lambda: np.eye(3, dtype=ml_dtypes.float8_e4m3),
        lambda: np.array([["a"] * 3] * 3),
        lambda: np.array([[None] * 3] * 3),
    ],
    ids=["sparse", "csr", "mkldnn", "meta", "zeros", "big-endian", "float8", "strings", "objects"],
)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_tensors_without_plain_memory(make):
    with pytest.raises(REFUSED, match=r"^A ") as error:
        GemmArguments(make(), torch.eye(3), torch.eye(3), "float32")
    assert len(str(error.value).splitlines()) == 1, "a message for users, not a C++ stack"


@pytest.mark.parametrize(
    "name", ["int64", "complex64", "bool", "int16", "uint4", "int3", "float8_e4m3fnuz"]
)
@pytest.mark.parametrize("make", [torch.empty, fake], ids=["real", "fake"])
def test_unsupported_types_find_no_kernel_and_are_named(name, make):
    device = "cuda" if make is fake else "cpu"
    a = make(16, 16, dtype=getattr(torch, name))
    args = GemmArguments(a, a, make(16, 16, dtype=torch.float32), "float32")
    assert cutlass_api.get_kernels(args) == []
    kernel = next(k for k in cutlass_api.get_kernels(cc=None if device == "cpu" else 90))
    reason = str(kernel.supports(args).error)
    assert "A has dtype" in reason and name in reason
    with pytest.raises(ValueError, match="A has dtype"):
        kernel.run(args)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_fake_tensors_cannot_be_run_on(device):
    args = fake_gemm(device=device)
    kernel = cutlass_api.get_kernels(args)[0]
    for assume in (False, True):
        with pytest.raises(ValueError, match="A is a FakeTensor"):
            kernel.run(args, assume_supported_args=assume)
