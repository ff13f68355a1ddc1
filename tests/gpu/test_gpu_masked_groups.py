"""Masked grouped GEMMs on a GPU, every kernel, against torch in float64.

Outputs are filled with NaN: a write behind the rows of a group is detected.
"""

import cutlass_api
import pytest
import torch
from support.gpu_helpers import fail_with
from support.groups import HALF, grouped_kernels
from support.masked_groups import (
    CASES,
    WRONG_COUNTS,
    MaskedGroups,
    of_kernel,
    with_epilogue,
    with_scales,
)
from support.memory import Form
from support.properties import Types, family_of

pytestmark = pytest.mark.gpu

KERNELS = grouped_kernels("m")
E4M3 = torch.float8_e4m3fn


@pytest.mark.parametrize(("family", "types"), KERNELS, ids=str)
def test_every_kernel(family: str, types: Types, artifacts) -> None:
    failures = []
    kernels = KERNELS[family, types]
    for at, (kernel, artifact) in enumerate(zip(kernels, artifacts.of(kernels), strict=True)):
        trial = of_kernel(kernel, CASES[at % len(CASES)])
        try:
            trial.check(kernel, trial.arguments(), artifact=artifact)
        except AssertionError as error:
            failures.append(str(error))
    fail_with(failures)


@pytest.mark.parametrize("has_product", [False, True], ids=["one product", "two products"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_epilogues(case, has_product) -> None:
    if has_product and (cutlass_api.utils.device_cc() // 10 != 9 or case[2] % 8 or case[3] % 8):
        pytest.skip("kernels of two products are for Hopper, and rows of 16 bytes")
    trial = MaskedGroups(HALF, *case)
    args, wanted = with_epilogue(trial, has_product)
    for kernel in cutlass_api.get_kernels(args):
        trial.check(kernel, args, wanted)


@pytest.mark.parametrize("blocks", [False, True], ids=["rows and columns", "blocks"])
@pytest.mark.parametrize("out", [torch.bfloat16, torch.float32])
def test_scales(blocks, out) -> None:
    if cutlass_api.utils.device_cc() // 10 != 9:
        pytest.skip("sm90 is for Hopper")
    types = Types(E4M3, E4M3, torch.float32, out)
    forms = (Form(multiple=16), Form("n", multiple=16), Form(multiple=8))
    trial = MaskedGroups(types, [0, 1, 300, 37, 128], 300, 264, 304, forms)
    args, wanted = with_scales(trial, blocks)
    kernels = [each for each in cutlass_api.get_kernels(args) if family_of(each) == "sm90"]
    assert kernels
    for kernel in kernels:
        trial.check(kernel, args, wanted)


def test_counts_change_between_replays_of_a_graph() -> None:
    trial = MaskedGroups(HALF, [0, 3, 300, 64], 320, 320, 192)
    args = trial.arguments()
    for kernel in cutlass_api.get_kernels(args):
        artifact = kernel.compile(args)
        kernel.run(args, artifact)  # loads the program
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kernel.run(args, artifact)
        for counts in ([0] * 4, [320] * 4, [1, 0, 129, 7], *([*x, 5] for x in WRONG_COUNTS)):
            trial.set_counts(counts)
            trial.out.memory.bytes.fill_(trial.out.poison)
            graph.replay()
            trial.compare(kernel)


def test_the_function_reads_no_count_on_the_host() -> None:
    a, b = (torch.randn(4, n, 64, device="cuda").bfloat16() for n in (16, 64))
    counts = torch.tensor([0, 5, 16, 1], device="cuda")
    bias, out = torch.randn(4, 64, device="cuda"), torch.zeros(4, 16, 64, device="cuda").bfloat16()
    cutlass_api.masked_grouped_mm(a, b, counts, bias=bias, out=out)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        cutlass_api.masked_grouped_mm(a, b, counts, bias=bias, out=out)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    wanted = a.double() @ b.double() + bias[:, None].double()
    for group, count in enumerate(counts.tolist()):
        torch.testing.assert_close(
            out[group, :count].double(), wanted[group, :count], rtol=0.01, atol=0.05
        )
        assert not out[group, count:].any()
