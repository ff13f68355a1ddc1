"""Prologues on a GPU, against the same function in float64."""

from concurrent.futures import ThreadPoolExecutor

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import EpilogueArguments, GemmArguments, PrologueArguments
from support.prologues import (
    BF16,
    CASES,
    EPSILON,
    F32,
    Quantized,
    Trial,
    residual_rms_norm,
    rms_norm,
    trials,
)
from support.properties import first_of_families

pytestmark = pytest.mark.gpu


def check_all(made):
    work = [(trial, kernel) for trial in made for kernel in first_of_families(trial.args)]
    assert {trial.said for trial, _ in work} == {trial.said for trial in made}
    with ThreadPoolExecutor(16) as pool:  # compiling takes longest
        list(pool.map(lambda pair: pair[1].compile(pair[0].args), work))
    failures = [trial.failure(kernel) for trial, kernel in work]
    failures = [failure for failure in failures if failure]
    assert not failures, f"{len(failures)} of {len(work)}:\n" + "\n".join(failures[:10])


def test_functions_shapes_and_layouts():
    """The first kernel of each family."""
    check_all(list(trials()))


@pytest.mark.parametrize("m", [1, 8, 64, 600])
def test_layers_of_a_model(m):
    """600 rows are more than multiprocessors: small CTAs of the row kernel."""
    check_all([Trial(case, (), m, 6144, 4096, seed=m) for case in CASES[:4]])


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
@pytest.mark.parametrize("m", [1, 40, 300])
def test_quantized_activations(dtype, m):
    trial = Quantized(dtype, m, 4096, 4112)
    for kernel in first_of_families(trial.args):
        trial.check(kernel)


def operands(m, n, k, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)

    def values(*shape):
        return torch.randn(shape, generator=generator, device="cuda").to(BF16)

    return values(m, k), values(n, k).T, values(m, k), values(k)


def of_layer(a, residual, weight):
    total = a.double() + residual.double()
    scaled = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + EPSILON)
    return (scaled * weight.double()).to(BF16).double(), total


def error(actual, wanted):
    return float((actual.double() - wanted).norm() / wanted.norm())


def layer(seed=0, m=3, n=6144, k=4096):
    a, b, residual, weight = operands(m, n, k, seed)
    out, total = torch.empty(m, n, dtype=BF16, device="cuda"), torch.empty_like(a)
    prologue = PrologueArguments(residual_rms_norm, residual=residual, weight=weight, total=total)
    return GemmArguments(a, b, out, F32, prologue=prologue), out, total


def test_bits_are_the_same_in_every_run():
    args, out, total = layer()
    for kernel in first_of_families(args):
        kernel.run(args)
        first = out.clone(), total.clone()
        for _ in range(5):
            out.fill_(torch.nan)
            total.fill_(torch.nan)
            kernel.run(args)
            assert torch.equal(out, first[0]) and torch.equal(total, first[1])


@pytest.mark.parametrize("m", [1, 8, 64, 300])
@pytest.mark.parametrize("own_workspace", [False, True])
def test_launches_without_synchronization(m, own_workspace):
    """Each launch overwrites the activations that the one before it reads, and has another A. The
    product of each kernel fills the multiprocessors or not, and overlaps with the row kernel or
    not.
    """
    n, k, count = 4096, 4096, 200
    inputs = torch.randn(count, m, k, device="cuda").to(BF16)
    _, b, _, weight = operands(m, n, k)
    outs = torch.empty(count, m, n, dtype=BF16, device="cuda")
    wanted = [of_layer(each, torch.zeros_like(each), weight)[0] @ b.double() for each in inputs]
    prologue = PrologueArguments(rms_norm, weight=weight, eps=EPSILON)
    sets = [
        GemmArguments(a, b, out, F32, prologue=prologue)
        for a, out in zip(inputs, outs, strict=True)
    ]
    for kernel in first_of_families(sets[0]):
        artifact = kernel.compile(sets[0])
        workspace = None
        if own_workspace:
            size = kernel.get_workspace_size(sets[0])
            workspace = torch.empty(size, dtype=torch.uint8, device="cuda")
        outs.fill_(torch.nan)
        torch.cuda.synchronize()
        for args in sets:
            kernel.run(args, artifact, workspace=workspace)
        torch.cuda.synchronize()
        worst = max(error(out, each) for out, each in zip(outs, wanted, strict=True))
        assert worst < 5e-3, f"{kernel.metadata.kernel_name}: {worst}"


def test_two_streams():
    """Launches on two streams have activations of their own."""
    made = [layer(seed, m=8) for seed in range(2)]
    streams = [torch.cuda.Stream() for _ in made]
    kernel = cutlass_api.get_kernels(made[0][0])[0]
    artifact = kernel.compile(made[0][0])
    torch.cuda.synchronize()
    for _ in range(100):
        for (args, _, _), stream in zip(made, streams, strict=True):
            kernel.run(args, artifact, stream=stream)
    torch.cuda.synchronize()
    for seed, (_, out, total) in enumerate(made):
        a, b, residual, weight = operands(8, 6144, 4096, seed)
        activations, wanted = of_layer(a, residual, weight)
        assert error(total, wanted) < 3e-3 and error(out, activations @ b.double()) < 5e-3


def test_a_chain_of_layers_in_a_graph():
    """Each layer reads what the one before it stored, on a stream and in a graph."""
    m, k = 5, 4096
    generator = torch.Generator("cuda").manual_seed(1)
    weights = [torch.randn(k, k, generator=generator, device="cuda").to(BF16) for _ in range(4)]
    x = torch.randn(m, k, generator=generator, device="cuda").to(BF16)
    norm = torch.randn(k, generator=generator, device="cuda").to(BF16)
    states = [(x, torch.zeros_like(x))]
    calls = []
    for weight in weights:
        a, residual = states[-1]
        out, total = torch.empty_like(x), torch.empty_like(x)
        prologue = PrologueArguments(residual_rms_norm, residual=residual, weight=norm, total=total)
        args = GemmArguments(a, weight.T, out, F32, prologue=prologue)
        kernel = cutlass_api.get_kernels(args)[0]
        calls.append((kernel, args, kernel.compile(args)))
        states.append((out, total))

    def run():
        for kernel, args, artifact in calls:
            kernel.run(args, artifact)

    def check():
        a, residual = states[0]
        for weight, (out, total) in zip(weights, states[1:], strict=True):
            activations, wanted = of_layer(a, residual, norm)
            assert error(total, wanted) < 3e-3
            assert error(out, activations @ weight.double().T) < 5e-3
            a, residual = out, total

    run()
    check()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(3):
        for out, total in states[1:]:
            out.fill_(torch.nan)
            total.fill_(torch.nan)
        x.copy_(torch.randn_like(x))
        graph.replay()
        check()


@pytest.mark.parametrize("m", [1, 8, 64, 300])
def test_several_matrices_b(m):
    """q, k and v behind one norm."""
    a, b, _, weight = operands(m, 6144, 4096)
    matrices = list(b.split([4096, 1024, 1024], dim=1))
    out = torch.empty(m, 6144, dtype=BF16, device="cuda")
    prologue = PrologueArguments(rms_norm, weight=weight, eps=EPSILON)
    args = GemmArguments(a, matrices, out, F32, prologue=prologue)
    wanted = of_layer(a, torch.zeros_like(a), weight)[0] @ b.double()
    for kernel in first_of_families(args):
        out.fill_(torch.nan)
        kernel.run(args)
        assert error(out, wanted) < 5e-3


@pytest.mark.parametrize("m", [1, 8, 64, 300])
def test_gate_and_up(m):
    """The second product of the epilogue multiplies the activations, too."""
    a, gate, _, weight = operands(m, 4096, 4096)
    up = operands(m, 4096, 4096, seed=1)[1]
    out = torch.empty(m, 4096, dtype=BF16, device="cuda")
    source = "def f(accum, up):\n    D = silu(accum) * product(up)\n    return D\n"
    epilogue = EpilogueArguments(source, D=out, up=up)
    prologue = PrologueArguments(rms_norm, weight=weight * 0.01, eps=EPSILON)
    args = GemmArguments(a, gate, out, F32, epilogue=epilogue, prologue=prologue)
    scaled = of_layer(a, torch.zeros_like(a), weight * 0.01)[0]
    wanted = torch.nn.functional.silu(scaled @ gate.double()) * (scaled @ up.double())
    for kernel in cutlass_api.get_kernels(args)[:4]:
        out.fill_(torch.nan)
        kernel.run(args)
        assert error(out, wanted) < 1e-2


def test_generated_code_launches_by_keyword():
    a, b, _, weight = operands(8, 512, 4096)
    out = torch.empty(8, 512, dtype=BF16, device="cuda")
    for _ in range(3):
        a = torch.randn_like(a)
        prologue = PrologueArguments(rms_norm, weight=weight, eps=EPSILON)
        cutlass_api._core.launch_gemm(a, b, out=out, prologue=prologue)
        wanted = of_layer(a, torch.zeros_like(a), weight)[0] @ b.double()
        assert error(out, wanted) < 5e-3


def test_tuning_compares_with_the_reference():
    args, _, _ = layer(m=2, n=512, k=1024)
    result = cutlass_api.tuning.autotune(args)
    assert "_prologue_" in result.winner.metadata.kernel_name
