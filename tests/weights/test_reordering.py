"""The kernel of ``repack`` and ``unpack``, against the operators of torch that do the same."""

import shutil

import pytest
import stand_in
import torch
from cutlass_api import quantize
from cutlass_api._tracing import is_launched
from cutlass_api.weights import _reordering
from cutlass_api.weights._packing import repacked
from support.helpers import spilled_bytes
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import DeviceType

TYPES = pytest.mark.parametrize("is_float", [False, True])


@pytest.mark.skipif(not shutil.which("cargo"), reason="needs cargo for the emulator")
def test_in_the_emulator():
    script = "from support import emulated_quantize\nemulated_quantize.check_reordering()"
    assert stand_in.run(script, emulated=True) == "done\n"


@pytest.mark.usefixtures("cache_directory")
@pytest.mark.parametrize("cc", [80, 90])
@pytest.mark.parametrize("to_kernels", [False, True])
@TYPES
def test_no_register_spills(to_kernels, is_float, cc):
    program = _reordering.program(to_kernels, is_float).compile(cc=cc)
    assert program.log == "" and spilled_bytes(program) == 0


def test_fake_tensors_of_a_gpu_are_not_launched(monkeypatch):
    monkeypatch.setattr(_reordering, "launch", None)
    weight = quantize.int4(torch.randn(6, 64))
    with FakeTensorMode():
        values = torch.empty(6, 32, dtype=torch.uint8, device="cuda")
        assert _reordering.reorder(values, True, False).shape == (6, 2, 4)
    assert not is_launched(weight.values)


@pytest.mark.gpu
@TYPES
@pytest.mark.parametrize("n, k", [(1, 32), (513, 4128), (4096, 14336)])
def test_on_a_gpu(n, k, is_float):
    values = torch.randint(0, 256, (n * k // 2 + 1,), dtype=torch.uint8)
    for part in (values[:-1], values[1:]):
        stored = part.view(n, k // 2)
        words = _reordering.reorder(stored.cuda(), True, is_float)
        assert torch.equal(words.cpu(), repacked(stored, is_float))
        assert torch.equal(_reordering.reorder(words, False, is_float).cpu(), stored)


@pytest.mark.gpu
def test_a_weight_on_a_gpu_takes_one_kernel():
    weight = quantize.mxfp4(torch.randn(64, 256, device="cuda"))
    words = weight.repack()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        weight.repack()
        torch.cuda.synchronize()
    kernels = [each.name for each in profile.events() if each.device_type == DeviceType.CUDA]
    assert len(kernels) == 1 and "reorder" in kernels[0], kernels
    assert words.repack() is words
