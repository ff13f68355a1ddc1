"""Kernels for weights of 4 and 8 bits compile without spills. None needs a GPU."""

import cutlass_api
import pytest
import torch
from cutlass_api import weights
from cutlass_api.arguments import EpilogueArguments, GemmArguments, GroupedGemmArguments
from cutlass_api.ops import _epilogues
from cutlass_api.ops._quantized import mixed_operands
from support.codes import CASES
from support.compiling import check_code
from support.helpers import fake
from torch._subclasses.fake_tensor import FakeTensorMode

#: A case with the most scales, and one whose factors are float32 numbers. Capabilities, and which
#: kernels of each: on Hopper, others with each case.
DEMANDING = ("nvfp4", "uint4, added zero points")
STEPS = {80: 6, 90: 4, 120: 6}


def fake_args(name):
    """Arguments of FakeTensors on a GPU."""
    case = CASES[name]
    weight = case.make(96, 352).repack()
    with FakeTensorMode() as mode:
        x, out = fake(5, 352, dtype=case.wide), fake(5, 96, dtype=case.out)
        return GemmArguments(x, on_a_gpu(weight, mode), out, torch.float32)


def fake_groups(name):
    """The same of a stack of weights."""
    case = CASES[name]
    stack = weights.stack([case.make(96, 352) for _ in range(3)]).repack()
    with FakeTensorMode() as mode:
        x, out = fake(5, 352, dtype=case.wide), fake(5, 96, dtype=case.out)
        ends = fake(3, dtype=torch.int32)
        return GroupedGemmArguments(x, on_a_gpu(stack, mode), out, torch.float32, ends)


def on_a_gpu(weight, mode):
    fields = {key: mode.from_tensor(x).to("cuda") for key, x in weight.tensors().items()}
    return type(weight)(**fields)


@pytest.mark.parametrize("cc", STEPS)
@pytest.mark.parametrize("name", DEMANDING)
def test_no_register_spills(name, cc, cache_directory):
    args = fake_args(name)
    first = DEMANDING.index(name)
    found = cutlass_api.get_kernels(args, cc=cc)
    kernels = [*found[first :: STEPS[cc]], found[-1]]  # `simt` ranks last
    assert {kernel.metadata.kernel_name.split("_")[0] for kernel in kernels} > {"skinny"}
    check_code(kernels, args, cc)


ZEROS = [torch.int8, torch.uint8, torch.int32, torch.float16, torch.bfloat16, torch.float32]


@pytest.mark.parametrize("dtype", ZEROS, ids=str)
def test_zero_points_of_8_bits_compile_in_every_dtype(dtype, cache_directory):
    cc, (m, n, k) = 90, (5, 96, 512)
    shapes = ((m, k), (m, n), (n, k), (k // 128, n), (k // 128, n))
    dtypes = (torch.float16, torch.float16, torch.int8, torch.float32, dtype)
    with FakeTensorMode(), torch.device("cuda"):
        tensors = (torch.empty(x, dtype=of) for x, of in zip(shapes, dtypes, strict=True))
        x, out, w, scale, zero = tensors
        w = w.t()
        operands, blocks = mixed_operands(x, w, scale, zero)
        source = _epilogues.scaled(*operands, blocks=blocks)
        epilogue = EpilogueArguments(source, D=out, **operands)
        args = GemmArguments(x, w, out, torch.float32, epilogue=epilogue)
    found = cutlass_api.get_kernels(args, cc=cc)
    names = [kernel.metadata.kernel_name for kernel in found]
    first = {name.split("_")[0]: found[at] for at, name in reversed(list(enumerate(names)))}
    assert set(first) >= {"skinny", "sm90", "simt"}
    check_code(list(first.values()), args, cc)


@pytest.mark.parametrize("name", ("nvfp4", "uint4, added zero points"))
def test_groups_spill_no_registers(name, cache_directory):
    """All tiles of sm90 with the second case, whose factors are float32 numbers."""
    args = fake_groups(name)
    found = cutlass_api.get_kernels(args, cc=90)
    kernels = [each for each in found if each.metadata.kernel_name.startswith("sm90")]
    assert len(kernels) == 5
    check_code(kernels if name != DEMANDING[0] else kernels[::3], args)
