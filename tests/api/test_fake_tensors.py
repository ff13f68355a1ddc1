"""All kinds of arguments, found and compiled on FakeTensors, and run on real tensors on CPU and
GPU.
"""

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import (
    ElementwiseArguments,
    EpilogueArguments,
    GemmArguments,
    GroupedGemmArguments,
)
from support.helpers import run_python
from torch._subclasses.fake_tensor import FakeTensorMode

ENDS = [3, 3, 20, 32]


def tensors(kind, device):
    """Operands by name. Under a FakeTensorMode they are fake, and the offsets' values are
    irrelevant.
    """
    shapes = {"A": (32, 64), "B": (64, 48), "out": (32, 48)}
    if kind == "elementwise":
        shapes = dict.fromkeys(shapes, (32, 64))
    shapes |= {"grouped": {"B": (4, 64, 48)}, "fused": {"bias": (48,)}}.get(kind, {})
    operands = {
        name: torch.randn(shape, device=device, dtype=torch.float16)
        for name, shape in shapes.items()
    }
    if kind == "grouped":
        operands["offsets"] = torch.tensor(ENDS, dtype=torch.int32, device=device)
    return operands


def arguments(kind, operands):
    if kind == "elementwise":
        return ElementwiseArguments(**operands)
    if kind == "grouped":
        return GroupedGemmArguments(**operands, accumulator_type=torch.float32)
    if kind == "gemm":
        return GemmArguments(**operands, accumulator_type=torch.float32)

    def biased(accum, bias):
        D = torch.relu(accum + bias)
        return D

    a, b, out, bias = operands.values()
    return GemmArguments(a, b, out, torch.float32, EpilogueArguments(biased, bias=bias, D=out))


def wanted(kind, operands):
    a, b = (operands[name].double() for name in ("A", "B"))
    if kind == "elementwise":
        return a + b
    if kind == "grouped":
        return torch.cat([a[i:j] @ of for i, j, of in zip([0, *ENDS[:-1]], ENDS, b, strict=True)])
    return a @ b if kind == "gemm" else torch.relu(a @ b + operands["bias"].double())


def assert_near(kind, operands):
    out = operands["out"].double()
    torch.testing.assert_close(out, wanted(kind, operands), rtol=2e-3, atol=2e-2)


KINDS = pytest.mark.parametrize("kind", ["gemm", "fused", "grouped", "elementwise"])
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


@DEVICES
@KINDS
def test_compiled_on_fakes_and_run_on_real_ones(kind, device):
    with FakeTensorMode(allow_non_fake_inputs=True):
        described = arguments(kind, tensors(kind, device))
    kernels = cutlass_api.get_kernels(described)
    assert kernels
    artifacts = [(kernel, kernel.compile(described)) for kernel in kernels[:3]]
    for kernel, artifact in artifacts:
        assert kernel.supports(described)
        operands = tensors(kind, device)
        operands["out"].fill_(float("nan"))
        kernel.run(arguments(kind, operands), artifact)
        assert_near(kind, operands)
        with pytest.raises(ValueError, match="FakeTensor"):
            kernel.run(described, artifact)


@DEVICES
@pytest.mark.parametrize("kind", ["gemm", "fused", "elementwise"])
def test_bound_on_fakes_and_launched_on_real_ones(kind, device):
    """The offsets of a grouped GEMM cannot be swapped."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        fakes = tensors(kind, device)
        described = arguments(kind, fakes)
    kernel = cutlass_api.get_kernels(described)[0]
    launch = kernel.bind(described)
    operands = tensors(kind, device)
    launch(**operands)
    assert_near(kind, operands)
    on_real = kernel.bind(arguments(kind, operands))
    for name in operands:
        others = {other: operands[other] for other in operands if other != name}
        fake = {name: fakes[name]}
        for call, given in ((launch, operands | fake), (launch, others), (on_real, fake)):
            with pytest.raises(ValueError, match=rf"^{name} is a FakeTensor without memory"):
                call(**given)


@KINDS
def test_found_for_a_chip_that_is_not_here(kind):
    with FakeTensorMode(allow_non_fake_inputs=True):
        described = arguments(kind, tensors(kind, "cuda"))
    for cc, architecture in ((80, "sm_80"), (90, "sm_90a")):
        kernels = cutlass_api.get_kernels(described, cc=cc)
        artifact = kernels[0].compile(described, cc=cc)
        assert artifact.compiled_obj.architecture == architecture


def test_nothing_is_allocated_and_nothing_imported():
    code = """
        import sys
        import cutlass_api, torch
        from torch._subclasses.fake_tensor import FakeTensorMode
        with FakeTensorMode():
            a = torch.empty(1 << 20, 1 << 20, dtype=torch.float16, device="cuda")  # two TB
            args = cutlass_api.arguments.GemmArguments(a, a, a.clone(), torch.float32)
        assert args.A.data_ptr == 0 and args.A.shape == (1 << 20, 1 << 20)
        kernels = cutlass_api.get_kernels(args, cc=90)
        assert kernels and all(kernel.supports(args) for kernel in kernels)
    """
    run_python(code)
