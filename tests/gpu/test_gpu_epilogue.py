"""Fused epilogues on a GPU, against the same function on torch tensors, and against the CPU
reference.

The factors are coarse, so that their sums are exact in float32 in any order: any difference comes
from the epilogue.
"""

from concurrent.futures import ThreadPoolExecutor

import cutlass_api
import pytest
import torch
from support.epilogue_trials import (
    BF16,
    DUAL,
    E4M3,
    E5M2,
    F16,
    F32,
    F64,
    S8,
    S32,
    DualTrial,
    Trial,
    factors,
    gemm_operands,
    in_form,
)
from support.epilogues import (
    CASES,
    REDUCTIONS,
    assert_close,
    dequantize,
    expected,
    fused,
    integer_arithmetic,
    linear,
)
from support.helpers import coarse
from support.joint import CASES as JOINT
from support.joint import JointTrial
from support.memory import Form, Output
from support.properties import float32_precision, from_registers, over_grid

pytestmark = pytest.mark.gpu

#: Batch, M, N, K: whole tiles, odd numbers, less than a vector, several matrices, an empty product.
SHAPES = [
    ((), 256, 384, 128),
    ((), 131, 67, 40),
    ((), 5, 3, 8),
    ((3,), 70, 136, 24),
    ((2,), 33, 65, 0),
]


def check_all(trials):
    work = [(trial, kernel) for trial in trials for kernel in trial.kernels()]
    with ThreadPoolExecutor(16) as pool:  # compiling takes longest
        list(pool.map(lambda pair: pair[1].compile(pair[0].args), work))
    failures = []
    for trial, kernel in work:
        try:
            trial.check(kernel)
        except AssertionError as error:
            failures.append(f"{kernel.metadata.kernel_name}: {error}")
    assert not failures, f"{len(failures)} of {len(work)}:\n" + "\n".join(failures[:10])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_functions_layouts_and_broadcasts(case):
    check_all(Trial(case, *shape, seed=seed) for seed, shape in enumerate(SHAPES * 2))


@pytest.mark.parametrize("case, kinds", REDUCTIONS, ids=lambda case: getattr(case, "name", ""))
def test_reductions_behind_every_layout(case, kinds):
    check_all(
        Trial(case, *shape, seed=seed, reductions=kinds) for seed, shape in enumerate(SHAPES * 2)
    )


@pytest.mark.parametrize("case", DUAL, ids=str)
def test_two_products(case):
    if cutlass_api.utils.device_cc() // 10 != 9:
        pytest.skip("sm90 is for Hopper")
    trials = [DualTrial(*case, seed=seed) for seed in range(3)]
    # torch's strides of a matrix without elements are those of unaligned rows.
    assert all(trial.kernels() for trial in trials) or case[3] == 0
    check_all(trials)


@pytest.mark.parametrize("seed", range(len(JOINT)))
def test_several_matrices_b(seed):
    if cutlass_api.utils.device_cc() // 10 != 9:
        pytest.skip("sm90 is for Hopper")
    trials = [JointTrial(*JOINT[at % len(JOINT)], seed=at) for at in (seed, seed + 1)]
    assert any(trial.kernels() for trial in trials)
    check_all(trials)


REDUCED_TYPES = [
    (F16, F16, F16),
    (BF16, F32, F32),
    (F32, F32, F32),
    (F64, F64, F64),
    (E5M2, E5M2, F32),
]


@pytest.mark.parametrize("dtype, out_dtype, accumulator", REDUCED_TYPES, ids=str)
def test_reductions_of_dtypes(dtype, out_dtype, accumulator):
    with float32_precision("high"):
        shapes = [
            shape if accumulator != F16 else (*shape[:3], min(shape[3], 16)) for shape in SHAPES
        ]
        check_all(
            Trial(case, *shape, dtype, out_dtype, accumulator, seed, kinds)
            for case, kinds in REDUCTIONS
            for seed, shape in enumerate(shapes)
        )


def test_float32_operands_from_registers():
    """Epilogues and reductions behind all kernels of `test_tf32_operands_from_registers`."""

    class OfHopper(Trial):
        def kernels(self):
            return [
                kernel for kernel in cutlass_api.get_kernels(self.args) if from_registers(kernel)
            ]

    with float32_precision("high"):
        trials = [
            OfHopper(case, *shape, F32, F32, F32, seed, kinds)
            for case, kinds in [(CASES[1], None), *REDUCTIONS[:2]]
            for seed, shape in [
                (0, ((), 256, 384, 128)),
                (2, ((), 132, 68, 40)),
                (12, ((3,), 72, 136, 24)),
                (14, ((), 260, 260, 64)),
            ]
        ]
        # The seed also determines the layout.
        assert all(trial.kernels() for trial in trials)
        assert {
            kernel.metadata.design.swapped for trial in trials for kernel in trial.kernels()
        } == {True, False}
        check_all(trials)


def test_epilogues_behind_k_over_the_grid():
    """Grid split: functions, reductions, and an in-place output, whose elements are processed once
    each.
    """
    if cutlass_api.utils.device_cc() // 10 != 9:
        pytest.skip("sm90 is for Hopper")

    class OverGrid(Trial):
        def kernels(self):
            return over_grid(self.args)

    # Two or three splits, some with more K blocks than others, and up to eight.
    shapes = [((5,), 136, 136, 2056), ((2,), 264, 72, 4104)]
    cases = [(CASES[1], None), *REDUCTIONS[:2]]
    trials = [
        OverGrid(case, *shape, seed=seed, reductions=kinds)
        for case, kinds in cases
        for seed, shape in [(0, shapes[0]), (2, shapes[1]), (12, shapes[0]), (14, shapes[1])]
    ]
    assert all(trial.kernels() for trial in trials)
    check_all(trials)
    a, b, c = (coarse(*shape, dtype=F16).cuda() for shape in [(264, 4104), (4104, 72), (264, 72)])
    before = c.clone()
    args = fused(a, b, c, linear, C=c, alpha=1.0, beta=2.0)
    for kernel in over_grid(args):
        c.copy_(before)
        kernel.run(args)
        assert_close(c, a.double() @ b.double() + 2 * before.double(), repr(kernel))


@pytest.mark.parametrize(
    "m, n, k, layout", [(200, 600, 512, "ttt"), (37, 264, 1024, "tnn"), (1024, 9, 256, "ntt")]
)
def test_reductions_by_all_kernels_the_same_bits_every_time(m, n, k, layout):
    source = (
        "def f(accum):\n    D = accum\n    S = sum(D, -1)\n    T = sum(D, -2)\n    U = max(D, 0)\n"
        "    return D, S, T, U"
    )
    generator = torch.Generator("cuda").manual_seed(0)
    a, b = (torch.randn(*s, device="cuda", generator=generator).half() for s in ((m, k), (k, n)))
    a, b = (
        x if letter == "t" else x.mT.contiguous().mT
        for x, letter in zip((a, b), layout[:2], strict=True)
    )
    out = (
        torch.empty(m, n, device="cuda", dtype=F16)
        if layout[2] == "t"
        else torch.empty(n, m, device="cuda", dtype=F16).mT
    )
    results = {
        name: torch.empty(extent, device="cuda") for name, extent in (("S", m), ("T", n), ("U", n))
    }
    args = fused(a, b, out, source, **results)
    product = a.double() @ b.double()
    wanted = {"S": product.sum(-1), "T": product.sum(-2), "U": product.amax(0)}
    kernels = cutlass_api.get_kernels(args)
    kernels = kernels[:12] + kernels[12::4]
    with ThreadPoolExecutor(16) as pool:
        artifacts = list(pool.map(lambda kernel: kernel.compile(args), kernels))
    for kernel, artifact in zip(kernels, artifacts, strict=True):
        workspace = torch.empty(kernel.get_workspace_size(args), dtype=torch.uint8, device="cuda")
        for value in (float("nan"), 3.0):
            for tensor in results.values():
                tensor.fill_(torch.nan)
            workspace.view(torch.float32).fill_(value)
            kernel.run(args, artifact, workspace=workspace)
            again = {name: tensor.clone() for name, tensor in results.items()}
            for name, tensor in results.items():
                off = (tensor.double() - wanted[name]).abs().max()
                assert off < 2e-3 * max(m, n, k) ** 0.5, (kernel, name, off)
        kernel.run(args, artifact)
        for name, tensor in results.items():
            assert torch.equal(tensor, again[name]), (kernel, name)


def test_a_graph_replay_reduces_anew():
    a, b, _, out = gemm_operands()
    s = torch.zeros(256, 1, device="cuda")
    source = "def f(accum):\n    D = accum\n    S = sum(accum * accum, -1)\n    return D, S"
    args = fused(a, b, out, source, S=s)
    kernel = cutlass_api.get_kernels(args)[0]
    artifact = kernel.compile(args)
    workspace = torch.empty(kernel.get_workspace_size(args), dtype=torch.uint8, device="cuda")
    kernel.run(args, artifact)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel.run(args, artifact, workspace=workspace)
        kernel.run(args, artifact, workspace=workspace)
    for _ in range(2):
        a.mul_(-0.5)
        s.zero_()
        graph.replay()
        assert_close(s, (a.double() @ b.double()).square().sum(-1, keepdim=True).float())


TYPES = [
    (F16, F16, F16),
    (F16, F32, F32),
    (BF16, BF16, F32),
    (F32, F32, F32),
    (F64, F64, F64),
    (E4M3, BF16, F32),
    (E5M2, E5M2, F32),
]


@pytest.mark.parametrize("dtype, out_dtype, accumulator", TYPES, ids=str)
def test_dtypes(dtype, out_dtype, accumulator):
    with float32_precision("high"):
        cases = [
            case for case in CASES if case.name in ("aux_store", "scales", "choices", "bias_gelu")
        ]
        # Sums that a float16 accumulator holds exactly are short.
        shapes = [
            shape if accumulator != F16 else (*shape[:3], min(shape[3], 16)) for shape in SHAPES
        ]
        check_all(
            Trial(case, *shape, dtype, out_dtype, accumulator, seed=seed)
            for case in cases
            for seed, shape in enumerate(shapes)
        )


@pytest.mark.parametrize("out_dtype", [F16, F32, S8, S32], ids=str)
def test_integer_accumulators(out_dtype):
    for seed, (batch, m, n, k) in enumerate(SHAPES[:4]):
        a, b = factors(batch, m, n, k, S8, ["ttt", "tnt"][seed % 2], seed)
        accum = (a.double() @ b.double()).to(S32)
        c = torch.randint(-(2**31), 2**31 - 1, accum.shape).to(S32).cuda()
        row, column = torch.rand(n).cuda(), torch.rand(*batch, m, 1).cuda() / 64
        out, other = torch.zeros_like(accum).to(out_dtype), torch.zeros_like(accum)
        args = fused(a, b, out, integer_arithmetic, S32, C=c, offset=12345678, E=other)
        wanted = expected(integer_arithmetic, accum, {"C": c, "offset": 12345678})
        for kernel in cutlass_api.get_kernels(args)[::6]:
            kernel.run(args)
            assert torch.equal(other, wanted["E"]), kernel
            assert torch.equal(out, wanted["D"].to(out_dtype)), kernel
        args = fused(a, b, out, dequantize, S32, row=row, column=column)
        for kernel in cutlass_api.get_kernels(args)[::6]:
            kernel.run(args)
            exact = accum * row * column
            if out_dtype.is_floating_point:
                assert_close(out, exact, repr(kernel))
            else:
                # A product close to an integer may round to either side.
                off = (out.long() - exact.to(S32).to(out_dtype).long()).abs()
                assert (off.max() if out_dtype == S32 else off.bool().float().mean()) <= (
                    1 if out_dtype == S32 else 0.01
                )


def far_out(accum):
    S = torch.nn.functional.silu(accum)
    G = torch.nn.functional.gelu(accum)
    T = torch.sigmoid(accum)
    D = accum
    return D, S, G, T


def test_activations_are_exact_to_the_far_ends():
    # Down to where silu's divisor exceeds 2^126, and gelu's values are below 1e-15.
    values = torch.linspace(-88, 88, 4096, device="cuda")[:, None]
    out, outputs = torch.empty_like(values), {name: torch.empty_like(values) for name in "SGT"}
    args = fused(values, torch.ones(1, 1, device="cuda"), out, far_out, **outputs)
    exact = values.double()
    wanted = {"S": exact * torch.sigmoid(exact), "T": torch.sigmoid(exact)}
    wanted["G"] = 0.5 * exact * torch.special.erfc(-exact / 2**0.5)
    families = {type(kernel): kernel for kernel in cutlass_api.get_kernels(args)}
    for kernel in families.values():
        kernel.run(args)
        for name, tensor in outputs.items():
            near = (exact.abs() < 8) if name == "G" else torch.ones_like(exact, dtype=torch.bool)
            torch.testing.assert_close(
                tensor.double()[near], wanted[name][near], rtol=1e-5, atol=1e-37
            )
            torch.testing.assert_close(tensor.double(), wanted[name], rtol=1e-5, atol=1e-13)
    # Infinite inputs stay infinite or become 0, and NaN stays NaN.
    ends = torch.tensor([torch.inf, -torch.inf, torch.nan], device="cuda")[:, None]
    outputs = {name: torch.empty_like(ends) for name in "SGT"}
    args = fused(ends, torch.ones(1, 1, device="cuda"), torch.empty_like(ends), far_out, **outputs)
    cutlass_api.get_kernels(args)[0].run(args)
    assert outputs["G"].flatten().tolist()[:2] == [torch.inf, 0]
    assert all(tensor[2].isnan() for tensor in outputs.values())


def lies_in_every_way(accum, row, column, element, full, turned, strided):
    P = accum + row
    D = torch.nn.functional.gelu(P) * element + column + full - turned + strided
    return D, P


@pytest.mark.parametrize("layout", ["ttt", "tnn"])
def test_operands_that_lie_in_every_way_behind_every_hopper_kernel(layout):
    # Two tiles and a remainder; rows with TMA alignment, and operands with unaligned rows.
    m, n, k = 300, 520, 136
    a, b, out = (
        in_form(coarse(*shape, dtype=F16), Form(order=order))
        for shape, order in zip(((m, k), (k, n), (m, n)), layout, strict=True)
    )
    operands = {
        "row": in_form(coarse(1, n, dtype=BF16), Form()),
        "column": in_form(coarse(m, 1, dtype=F16), Form()),
        "element": torch.full((1, 1), 0.5, device="cuda"),
        "full": in_form(coarse(m, n, dtype=F16), Form(multiple=8, pad=1)),
        "turned": in_form(coarse(m, n, dtype=F32), Form(order="n")),
        "strided": in_form(coarse(m, n, dtype=F16), Form(step=2)),
    }
    wanted = expected(lies_in_every_way, (a.double() @ b.double()).float(), operands, F32)
    other = Output((m, n), F16, Form(offset=1))
    args = fused(a, b, out, lies_in_every_way, **operands, P=other.tensor)
    kernels = [
        kernel
        for kernel in cutlass_api.get_kernels(args)
        if kernel.metadata.kernel_name.startswith("sm90")
    ]
    assert len(kernels) > 10
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda kernel: kernel.compile(args), kernels))
    for kernel in kernels:
        out.fill_(torch.nan)
        other.memory.bytes.fill_(other.poison)
        kernel.run(args)
        assert_close(out, wanted["D"], kernel.metadata.kernel_name)
        assert_close(other.tensor, wanted["P"], kernel.metadata.kernel_name)
        assert other.intact_around(), kernel.metadata.kernel_name
