"""`TensorMap`: what launches of users' kernels carry of it, and what it refuses."""

import textwrap

import cutlass_api
import pytest
import torch
from cutlass_api import cuda_kernel
from support.cuda_launches import run
from support.helpers import fake

MAP = """
    MAP = '#include "common/tma.cuh"\\n__global__ void f(const __grid_constant__ TensorMap map) {}'
    def described(map):
        # Type, swizzle, address, extents, strides and box of the map that the launch passes.
        device.expect_words(0)
        device.library.stand_in_expect(128)
        cuda_kernel(MAP, "f", grid=1)(map)
        raw = ctypes.string_at(device.library.stand_in_last_parameters(), 108)
        kind, swizzle, address, *more = struct.unpack("<2iQ5Q4Q5I", raw)
        return kind, swizzle, address, more[:5], more[5:9], more[9:]
"""


def run_with_map(script):
    return run(textwrap.dedent(MAP) + textwrap.dedent(script))


def test_a_tensor_map_describes_its_tensor():
    run_with_map(
        """
        from cutlass_api import TensorMap
        half = Tensor(X, (6, 128))
        assert repr(TensorMap(half, (4, 64))) == (
            "<TensorMap float16[6, 128], box=[4, 64], swizzle=0, on cuda:0>"
        )
        # CUDA's float16 is type 6, and its swizzle of 128 bytes is 3.
        assert described(TensorMap(half, [4, 64], swizzle=128)) == (
            6, 3, X, [128, 6, 1, 1, 1], [256, 0, 0, 0], [64, 4, 1, 1, 1])
        batch = Tensor(X + 16, (5, 6, 128), strides=(2048, 256, 1))
        assert described(TensorMap(batch, (1, 4, 16), swizzle=32)) == (
            6, 1, X + 16, [128, 6, 5, 1, 1], [512, 4096, 0, 0], [16, 4, 1, 1, 1])
        # The stride of an extent of 1 is never used.
        row = Tensor(X, (1, 20), strides=(3, 1))
        assert described(TensorMap(row, (1, 8)))[3:5] == ([20, 1, 1, 1, 1], [48, 0, 0, 0])
        assert described(TensorMap(f32(X, 7), (4,))) == (
            7, 0, X, [7, 1, 1, 1, 1], [0] * 4, [4, 1, 1, 1, 1])
        args = cutlass_api.arguments.ElementwiseArguments(half, half, Tensor(OUT, (6, 128)))
        assert described(TensorMap(args.A, (1, 8)))[2] == X
        """
    )


def test_a_tensor_map_follows_its_tensor():
    run_with_map(
        """
        half = Tensor(X, (6, 128))
        map = cutlass_api.TensorMap(half, (4, 64))
        half.describe(OUT, (6, 128))
        assert described(map)[2] == OUT
        half.describe(OUT, (6, 120))
        with raises(ValueError, "the tensor of map of f has another shape", "a new TensorMap"):
            described(map)
        """
    )


def test_tensor_maps_and_other_arguments_are_not_exchanged():
    run_with_map(
        """
        half = Tensor(X, (6, 128))
        map, f = cutlass_api.TensorMap(half, (4, 64)), cuda_kernel(MAP, "f", grid=1)
        for wrong, what in [(half, "a tensor"), (None, "None"), (3, "3")]:
            with raises((TypeError, ValueError), *(
                ["no tensor among the arguments"] if what != "a tensor" else
                ["map of f is a tensor map, and the argument is a tensor; pass "
                 "cutlass_api.TensorMap(tensor, box)"])):
                f(wrong)
        square = cuda_kernel("__global__ void g(const float* x, int n) {}", "g", grid=1)
        with raises(TypeError, "x of g is a pointer, and the argument is a TensorMap"):
            square(map, 1)
        with raises(TypeError, "n of g is a number (int32), and the argument is a TensorMap"):
            square(x, map)
        two = cuda_kernel(MAP.replace("map)", "map, const float* x)"), "f", grid=1)
        with raises(ValueError, "map of f is on cuda:0, and x of f on cuda:1"):
            two(map, f32(X, 4, device=1))
        """
    )


@pytest.mark.parametrize(
    "shape, box, options, message",
    [
        ((6, 128), (4,), {}, r"box \[4\] has 1 extents, and the tensor has rank 2"),
        ((), (), {}, "the tensor has rank 0"),
        ((6, 128), (4, 257), {}, r"box is \[4, 257\]; its extents are 1 to 256"),
        ((6, 128), (0, 64), {}, r"box is \[0, 64\]"),
        ((0, 128), (4, 64), {}, r"the tensor has shape \[0, 128\]; extents are 1 to 2\^32"),
        ((6, 128), (4, 4), {}, "a row of the box has 8 bytes; pass a multiple of 16"),
        ((6, 128), (4, 128), {"swizzle": 128}, "swizzle is 128, and a row of the box has 256"),
        ((6, 128), (4, 8), {"swizzle": 16}, "swizzle is 16"),
        ((6, 100), (4, 8), {}, "a stride of 200 bytes; TMA needs positive multiples of 16"),
    ],
)
def test_tensors_and_boxes_that_tma_cannot_address(shape, box, options, message):
    tensor = torch.zeros(shape, dtype=torch.float16)
    with pytest.raises(ValueError, match=message):
        cutlass_api.TensorMap(tensor, box, **options)


def test_layouts_and_types_that_tma_cannot_address():
    matrix = torch.zeros(64, 64, dtype=torch.float16)
    with pytest.raises(ValueError, match="last dimension has stride 64, and TMA needs 1"):
        cutlass_api.TensorMap(matrix.T, (8, 8))
    with pytest.raises(ValueError, match=r"begins at 0x.*, and TMA needs a multiple of 16 bytes"):
        cutlass_api.TensorMap(matrix[:, 4:], (8, 8))
    with pytest.raises(ValueError, match="dtype int64, which TMA does not copy"):
        cutlass_api.TensorMap(matrix.long(), (8, 8))
    with pytest.raises(TypeError, match="box is 8; pass a tuple of ints"):
        cutlass_api.TensorMap(matrix, 8)
    with pytest.raises(TypeError, match="tensor"):
        cutlass_api.TensorMap("a tensor", (8, 8))


def test_a_tensor_map_of_a_fake_tensor_compiles():
    map = cutlass_api.TensorMap(fake(64, 64), (8, 64))
    source = '#include "common/tma.cuh"\n__global__ void f(const __grid_constant__ TensorMap m) {}'
    kernel = cuda_kernel(source, "f", grid=1)
    assert kernel.compile(map, cc=90).architecture == "sm_90a"
