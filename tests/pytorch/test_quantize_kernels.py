"""The kernels of `cutlass_api.quantize`, by the emulator and on a GPU."""

import itertools
import shutil

import pytest
import stand_in
import torch
from cutlass_api.ops import OPS, _quantize
from cutlass_api.weights import _kernels
from support.helpers import spilled_bytes
from support.properties import SPARSE, some
from support.quantized import INPUTS, VIEWS, WAYS, check_kernels, compare, problems

needs_cargo = pytest.mark.skipif(not shutil.which("cargo"), reason="needs cargo for the emulator")


def emulate(call):
    script = f"from support import emulated_quantize\nemulated_quantize.{call}"
    return stand_in.run(script, emulated=True)


@needs_cargo
@pytest.mark.parametrize("output", some(WAYS), ids=str)
def test_kernels_in_the_emulator(output):
    assert emulate(f"check({str(output).removeprefix('torch.')!r})") == "done\n"


@pytest.mark.gpu
@pytest.mark.parametrize("input", INPUTS, ids=str)
@pytest.mark.parametrize("output", WAYS, ids=str)
def test_kernels_on_a_gpu(input, output):
    def run(x, *rest):
        # A copy with the strides of x.
        storage = torch.as_strided(x, (x.untyped_storage().nbytes() // x.itemsize,), (1,), 0)
        there = storage.cuda().as_strided(x.shape, x.stride(), x.storage_offset())
        return OPS.quantize(there, *rest)

    check_kernels(run, input, output)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "output, way", [(output, way) for output in WAYS for way in WAYS[output]], ids=str
)
def test_large_matrices_and_graphs_on_a_gpu(output, way):
    x = torch.randn(8192, 5120, device="cuda", dtype=torch.bfloat16)
    compare(x.cpu(), output, way, lambda a, *rest: OPS.quantize(x, *rest), way)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = OPS.quantize(x, output, *way)
    x.mul_(2)
    graph.replay()
    for one, other in zip(captured, OPS.quantize(x, output, *way), strict=True):
        assert torch.equal(one.float(), other.float())


def programs():
    """The functions of kernels/quantize.cuh that any matrix needs, and their threads."""
    found = set()

    class Recorder:
        def __init__(self, name, threads):
            found.add((name, threads))

        def launch(self, args, grid):
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_kernels, "program", Recorder)
        patch.setattr(_quantize, "compute", _kernels.launch)
        for input, output in itertools.product(INPUTS, WAYS):
            for shape, way in problems(output):
                for view in ("rows", "sliced", "padded"):
                    OPS.quantize(VIEWS[view](torch.empty(shape, dtype=input)), output, *way)
    return sorted(found)


@pytest.mark.usefixtures("cache_directory")
@pytest.mark.parametrize("cc, step", [(80, 6), (90, 2)] if SPARSE == 1 else [(80, 11), (90, 5)])
def test_no_register_spills(cc, step):
    # One of the programs that differ in types of the same width alone: they differ in conversions.
    sample = {}
    for name, threads in programs():
        alike = name.replace("bf16", "f16").replace("e5m2", "e4m3").replace("u8", "s8")
        sample[alike] = (name, threads)
    # Each second one is for aligned rows. Of two programs that differ in this, one.
    chosen = [list(sample.values())[at + at // 2 % 2] for at in range(0, len(sample) - 1, 2)]
    assert len(chosen) > 60
    for name, threads in chosen[::step]:
        program = _kernels.program(name, threads).compile(cc=cc)
        assert program.log == "", name
        assert spilled_bytes(program) == 0, name
