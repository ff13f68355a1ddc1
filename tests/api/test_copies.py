"""Copies and pickles of kernels, artifacts and arguments, and what refuses them."""

import copy
import io
import pickle

import cutlass_api
import pytest
import torch
from cutlass_api import _core
from cutlass_api.arguments import (
    ElementwiseArguments,
    EpilogueArguments,
    GemmArguments,
    GroupedGemmArguments,
    PerformanceControls,
    PrologueArguments,
)
from support.helpers import fake


def saved_by_torch(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "torch.save": saved_by_torch,
}


@pytest.fixture(params=COPIES.values(), ids=COPIES)
def copied(request):
    return request.param


def ones(*shape, dtype=torch.bfloat16):
    return torch.ones(shape, dtype=dtype)


def with_bias(accum, bias, alpha):
    D = accum * alpha + bias
    return D


def made(kind):
    a, b, out = ones(4, 64), ones(32, 64).t(), ones(4, 32)
    scaled = EpilogueArguments(with_bias, D=out, bias=ones(32), alpha=2.0)
    offsets = torch.tensor([2, 4], dtype=torch.int32)
    of_groups = (a, ones(2, 64, 32), out, "float32", offsets)
    prologue = "def prologue(A, w):\n    A = A * w\n    return A"
    return {
        "gemm": lambda: GemmArguments(a, b, out, "float32"),
        "joint": lambda: GemmArguments(a, [b, b], ones(4, 64), "float32"),
        "epilogue": lambda: GemmArguments(a, b, out, "float32", scaled),
        "prologue": lambda: GemmArguments(
            a, b, out, "float32", prologue=PrologueArguments(prologue, w=ones(64), dtype="bfloat16")
        ),
        "performance": lambda: GemmArguments(
            a, b, out, "float32", performance=PerformanceControls(fast_sums=True)
        ),
        "int8 weight": lambda: GemmArguments(
            a, cutlass_api.quantize.int8(ones(32, 64), 64), out, "float32"
        ),
        "grouped": lambda: GroupedGemmArguments(*of_groups),
        "gathered": lambda: GroupedGemmArguments(*of_groups, index=offsets.repeat(2) - 2),
        "elementwise": lambda: ElementwiseArguments(a, a, ones(4, 64)),
    }[kind]()


KINDS = ("gemm", "joint", "epilogue", "prologue", "performance", "int8 weight", "grouped")


@pytest.mark.parametrize("kind", [*KINDS, "gathered", "elementwise"])
def test_arguments(kind, copied):
    args = made(kind)
    twin = copied(args)
    assert type(twin) is type(args) and repr(twin) == repr(args)
    assert twin.performance == args.performance
    assert twin.out.data_ptr != args.out.data_ptr, "a copy has memory of its own"
    for each in (args, twin):
        cutlass_api.get_kernels(each)[0].run(each)
    outs = [each.out.tensor.runtime_tensor for each in (args, twin)]
    assert torch.equal(*outs) and not (outs[0] == 1).all()


def test_tensors_that_arguments_share(copied):
    args = made("epilogue")
    twin = copied(args)
    assert twin.epilogue.tensors["D"].data_ptr() == twin.out.data_ptr
    shallow = copy.copy(args)
    assert shallow.A.data_ptr == args.A.data_ptr and shallow is not args


@pytest.mark.parametrize("kind", ["epilogue", "prologue"])
def test_functions_with_operands(kind, copied):
    function = getattr(made(kind), kind)
    assert repr(copied(function)) == repr(function)


def test_kernels_are_copied_by_name(copied):
    """One kernel of each class, in a list of `get_kernels`, and an artifact."""
    kernels = {type(kernel): kernel for kernel in cutlass_api.get_kernels()}
    assert len(kernels) == 6
    assert all(copied(kernel) is kernel for kernel in kernels.values())
    args = made("gemm")
    (kernel,) = found = cutlass_api.get_kernels(args)
    assert copied(found[:])[0] is kernel
    assert copied(kernel.compile(args)).kernel_obj is kernel


def test_kernels_that_have_no_name_of_their_own():
    args = made("epilogue")
    (fused,) = cutlass_api.get_kernels(args)
    assert copy.deepcopy(fused) is copy.copy(fused) is fused
    with pytest.raises(TypeError, match=r"pickle reference_.*, which fuses an epilogue"):
        pickle.dumps(fused)

    class Own(cutlass_api.Kernel):
        pass

    with pytest.raises(TypeError, match=r"pickle <Own .*, a kernel written in Python; define"):
        pickle.dumps(Own(fused.metadata))
    with pytest.raises(ValueError, match="has no kernel named sm70_gemm"):
        _core.kernel_by_name("sm70_gemm")


@pytest.mark.parametrize("function", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_prepared_launch_refuses(function):
    args = made("gemm")
    launch = cutlass_api.get_kernels(args)[0].bind(args)
    with pytest.raises(TypeError, match=r"pickle a PreparedLaunch of reference_.*; call"):
        function(launch)


def test_arguments_that_cannot_be_copied(copied):
    faked = GemmArguments(fake(4, 64), fake(64, 32), fake(4, 32), "float32")
    with pytest.raises(ValueError, match=r"^A is a FakeTensor"):
        copied(faked)
    args = GemmArguments(
        ones(4, 64), cutlass_api.quantize.int4(ones(32, 64)), ones(4, 32), "float32"
    )
    with pytest.raises(TypeError, match=r"pickle <ScaledTensor int4.* of a weight; copy"):
        copied(args)
