"""Prologues: tracing, operands, which kernels serve them, and what is refused."""

import cutlass_api
import numpy as np
import pytest
import torch
from cutlass_api import _core as core
from cutlass_api.arguments import (
    EpilogueArguments,
    GemmArguments,
    PrologueArguments,
    ScaledTensor,
)
from support import prologues
from support.helpers import fake
from support.prologues import CASES

BF16, F32 = torch.bfloat16, torch.float32
SCALED = "def scaled(A, factor):\n    A = A * factor\n    return A\n"
STORED = "def stored(A, other):\n    total = A + other\n    A = total\n    return A, total\n"


def gemm(m=4, n=24, k=64, a=None, dtype=BF16, b_dtype=BF16, **options):
    a = torch.zeros(m, k, dtype=dtype) if a is None else a
    b, out = torch.zeros(k, n, dtype=b_dtype), torch.zeros(m, n, dtype=b_dtype)
    return GemmArguments(a, b, out, F32, **options)


def fake_gemm(m=4, n=64, k=64, source=SCALED, dtype=BF16, a_layout="t", **operands):
    a = fake(m, k, dtype=dtype, layout=a_layout)
    b, out = fake(k, n, dtype=dtype, layout="n"), fake(m, n, dtype=dtype)
    prologue = PrologueArguments(source, **(operands or {"factor": 2.0}))
    return GemmArguments(a, b, out, F32, prologue=prologue)


def test_what_a_prologue_shows():
    weight = torch.zeros(64, dtype=BF16)
    prologue = PrologueArguments(prologues.rms_norm, weight=weight, eps=1e-5)
    assert prologue.parameter_names == ["weight", "eps"] and prologue.parameters[0] is weight
    assert prologue.tensors == {"weight": weight}
    assert prologue.prologue_fn is prologues.rms_norm
    traced = prologue.traced_prologue
    assert (traced.inputs, traced.outputs) == (["weight", "eps"], ["A"])
    assert str(traced) == "A = ((A * rsqrt((mean((A * A)) + eps))) * weight)"
    assert repr(prologue) == f"<PrologueArguments {traced}: weight=bfloat16[64], eps=1e-5 on cpu>"
    args = gemm(prologue=prologue)
    assert args.prologue is prologue and gemm().prologue is None
    assert f"prologue={prologue!r}" in repr(args)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_source_of_a_graph_traces_to_the_same(case):
    operands = {name: 1.0 for name in [*case.tensors, *case.numbers, *case.outputs]}
    traced = PrologueArguments(case.function, **operands).traced_prologue
    again = PrologueArguments(traced.source, **operands).traced_prologue
    assert str(again) == str(traced) and again.source.startswith("def prologue(A")


def test_a_kernel_serves_its_own_prologue_only():
    first, other = fake_gemm(), fake_gemm(source=SCALED.replace("*", "+"))
    plain = GemmArguments(first.A, first.B, first.out, F32)
    kernel = cutlass_api.get_kernels(first, cc=90)[0]
    name = kernel.metadata.kernel_name
    assert "_prologue_" in name and "factor: a number" in kernel.metadata.epilogue.epilogue
    assert cutlass_api.get_kernels(fake_gemm(), cc=90)[0] is kernel
    assert kernel.supports(first) and not kernel.supports(other)
    assert "before the product, and the arguments carry A = (A + factor)" in str(
        kernel.supports(other).error
    )
    assert "and the arguments carry none" in str(kernel.supports(plain).error)
    assert not cutlass_api.get_kernels(plain, cc=90)[0].supports(first)
    # A number is a launch parameter.
    assert kernel.supports(fake_gemm(factor=3.0))


def names(args, **options):
    return [each.metadata.kernel_name for each in cutlass_api.get_kernels(args, **options)]


@pytest.mark.parametrize("cc", [80, 90, 120])
@pytest.mark.parametrize("options", [{"m": 4}, {"m": 300}, {"a_layout": "n"}, {"k": 65}])
def test_the_ranking_is_that_of_the_product(options, cc):
    """The product of row-major, aligned activations, whatever A is."""
    args = fake_gemm(**options)
    a = fake(*args.A.shape, dtype=BF16) if options.get("k") != 65 else fake(4, 72, dtype=BF16)
    plain = GemmArguments(a[:, :65] if "k" in options else a, args.B, args.out, F32)
    found = names(args, cc=cc)
    assert found and [name.split("_prologue_")[0] for name in found] == names(plain, cc=cc)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_the_product_multiplies_another_dtype(dtype):
    m, n, k = 4, 64, 64
    a, out = fake(m, k, dtype=BF16), fake(m, n, dtype=BF16)
    b = fake(k, n, dtype=dtype, layout="n")
    accumulator = torch.int32 if dtype == torch.int8 else F32
    prologue = PrologueArguments(SCALED, dtype=dtype, factor=2.0)
    assert prologue.dtype == dtype and f"as {str(dtype)[6:]}" in repr(prologue)
    kernels = cutlass_api.get_kernels(
        GemmArguments(a, b, out, accumulator, prologue=prologue), cc=90
    )
    assert kernels and all(each.metadata.operands.A.dtype == dtype for each in kernels)
    assert f"A: bfloat16 as {str(dtype)[6:]}" in kernels[0].metadata.epilogue.epilogue


def test_dtypes_without_products_are_refused():
    with pytest.raises(TypeError, match="does not name a supported element type"):
        PrologueArguments(SCALED, dtype="float4_e2m1fn", factor=2.0)


def test_the_workspace_holds_the_activations():
    args = fake_gemm(m=5, k=65)
    plain = GemmArguments(fake(5, 80, dtype=BF16)[:, :65], args.B, args.out, F32)
    found = [cutlass_api.get_kernels(each, cc=90) for each in (args, plain)]
    for kernel, product in zip(*found, strict=True):
        # Rows of 80 elements, in whole units of 256 bytes.
        size = kernel.get_workspace_size(args) - product.get_workspace_size(plain)
        assert size == 1024


def test_the_cpu_computes_any_number_of_rows():
    a = torch.randn(70, 64).to(BF16)
    args = gemm(70, a=a, prologue=PrologueArguments(SCALED, factor=2.0))
    assert [type(each).__name__ for each in cutlass_api.get_kernels(args)] == ["ReferenceKernel"]


def test_kernels_written_in_python_refuse_prologues():
    class Own(cutlass_api.Kernel):
        pass

    prologue = PrologueArguments(SCALED, factor=2.0)
    status = Own(None).supports(gemm(prologue=prologue))
    assert not status and "only built-in kernels compute one" in str(status.error)


def tensor(*shape, dtype=BF16):
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize(
    "source, operands, message",
    [
        (SCALED, {}, "Argument factor is not provided in the kwargs of the PrologueArguments"),
        (
            SCALED,
            {"factor": 1, "more": 2},
            "Argument more is neither a parameter nor an output of the prologue function",
        ),
        ("def f(A):\n    x = A\n    return x\n", {"x": 1}, "A is not returned by the prologue"),
        ("def f(x):\n    return x\n", {}, "A must be an input to the prologue function"),
        ("def f(x, A):\n    return A\n", {"x": 1}, "A must be the first input to the prologue"),
        (
            "def f(A):\n    A = A + 1\n    A = A + 1\n    return A\n",
            {},
            "Variable 'A' cannot be defined twice",
        ),
        ("def f(A):\n    A = mean(A, dim=0)\n    return A\n", {}, "reduces the rows of A over K"),
        ("def f(A):\n    A = A / prod(A)\n    return A\n", {}, r"use sum\(x\), mean\(x\) or amax"),
        ("def f(A, x):\n    A = product(x)\n    return A\n", {"x": 1}, "belongs into the epilogue"),
        ("def f(A, D):\n    A = A * D\n    return A\n", {"D": 1}, "is named D, as an operand"),
        ("def f(A):\n    for i in x: pass\n    return A\n", {}, "cannot be used in a prologue"),
    ],
    ids=lambda value: "",
)
def test_functions_that_are_no_prologue(source, operands, message):
    with pytest.raises(ValueError, match=message):
        PrologueArguments(source, **operands)


def test_reductions_over_k_are_no_part_of_an_epilogue():
    with pytest.raises(ValueError, match=r"the mean over K of A in a prologue"):
        EpilogueArguments("def f(accum):\n    D = accum / mean(accum)\n    return D\n", D=1)


@pytest.mark.parametrize(
    "source, operands, options, message",
    [
        (SCALED, {"factor": tensor(63)}, {}, r"factor with shape \[63\] does not broadcast to .*A"),
        (SCALED, {"factor": tensor(4, 24)}, {}, r"\[4, 24\] does not broadcast to .* \[4, 64\]"),
        (SCALED, {"factor": 2.0}, {"k": 0}, r"A has shape \[4, 0\], with K = 0"),
        (
            STORED,
            {"other": 1.0, "total": tensor(4, 24)},
            {},
            r"total has shape \[4, 24\], but an output of a prologue must have the shape of A",
        ),
        (STORED, {"other": 1.0, "total": 2.0}, {}, "total"),
        (STORED, {"other": 1.0, "total": tensor(4, 64)}, {"n": 0}, "with N = 0: no kernel runs"),
        (
            STORED,
            {"other": 1.0, "total": tensor(1, 64).expand(4, 64)},
            {},
            "total with shape .* overlaps itself",
        ),
        (
            "def f(A):\n    a = sum(A)\n    b = mean(A)\n    c = amax(A)\n    d = sum(A * A)\n"
            "    e = sum(A + 1)\n    A = A * (a + b + c + d + e)\n    return A\n",
            {},
            {},
            "the prologue has 5 reductions",
        ),
    ],
    ids=lambda value: "",
)
def test_operands_that_do_not_fit(source, operands, options, message):
    with pytest.raises(ValueError, match=message):
        gemm(prologue=PrologueArguments(source, **operands), **options)


def test_nothing_to_compute():
    """No rows are no error."""
    args = gemm(0, prologue=PrologueArguments(STORED, other=1.0, total=tensor(0, 64)))
    cutlass_api.get_kernels(args)[0].run(args)


def test_outputs_overlap_nothing():
    a = torch.zeros(4, 64, dtype=BF16)
    for other, total, message in [
        (1.0, a, "the output total shares memory with A"),
        (a, torch.zeros(4, 64), None),
        (memory := torch.zeros(4, 64, dtype=BF16), memory, "total shares memory with other"),
    ]:
        prologue = PrologueArguments(STORED, other=other, total=total)
        if message is None:
            assert gemm(a=a, prologue=prologue)
            continue
        with pytest.raises(ValueError, match=message):
            gemm(a=a, prologue=prologue)
    square = torch.zeros(4, 64, dtype=BF16)
    b = torch.zeros(64, 64, dtype=BF16)
    prologue = PrologueArguments(STORED, other=square, total=torch.zeros(4, 64))
    with pytest.raises(ValueError, match="the output out shares memory with other"):
        GemmArguments(a, b, square, F32, prologue=prologue)
    prologue = PrologueArguments(STORED, other=1.0, total=square)
    with pytest.raises(ValueError, match=r"total of the prologue shares memory with .* out"):
        GemmArguments(a, b, square, F32, prologue=prologue)


NUMBERED = (
    "def f(A):\n    scale = amax(absolute(A)) / 448.0\n    A = A / scale\n    return A, scale\n"
)
DESCALED = "def f(accum, scale):\n    D = accum * scale\n    return D\n"


def test_the_epilogue_reads_what_the_prologue_stores():
    scale, out = torch.zeros(4, 1), torch.zeros(4, 24, dtype=BF16)
    prologue = PrologueArguments(NUMBERED, scale=scale)
    assert gemm(prologue=prologue, epilogue=EpilogueArguments(DESCALED, D=out, scale=scale))
    # Under another name.
    renamed = EpilogueArguments(DESCALED.replace("scale", "factor"), D=out, factor=scale)
    assert gemm(prologue=prologue, epilogue=renamed)
    shifted = torch.zeros(5, 1)
    prologue = PrologueArguments(NUMBERED, scale=shifted[1:])
    renamed = EpilogueArguments(DESCALED.replace("scale", "factor"), D=out, factor=shifted[:4])
    with pytest.raises(ValueError, match="scale shares memory with factor"):
        gemm(prologue=prologue, epilogue=renamed)


def test_numbers_of_rows_depend_on_reductions_alone():
    prologue = PrologueArguments(STORED, other=1.0, total=torch.zeros(4, 1))
    with pytest.raises(
        ValueError, match=r"total has extent 1 along K, and its value .* is not one"
    ):
        gemm(prologue=prologue)
    # A number of each row, in a tensor of the shape of A.
    assert gemm(prologue=PrologueArguments(NUMBERED, scale=torch.zeros(4, 64)))


def test_names_of_prologue_and_epilogue_differ():
    out = torch.zeros(4, 24, dtype=BF16)
    source = "def f(accum, factor):\n    D = accum * factor\n    return D\n"
    epilogue = EpilogueArguments(source, D=out, factor=2.0)
    with pytest.raises(ValueError, match="both have an operand factor; rename one"):
        gemm(prologue=PrologueArguments(SCALED, factor=2.0), epilogue=epilogue)
    with pytest.raises(TypeError, match="epilogue is a str; behind a prologue"):
        gemm(prologue=PrologueArguments(SCALED, factor=2.0), epilogue="relu")
    with pytest.raises(TypeError, match="PrologueArguments"):
        gemm(prologue=epilogue)


def test_gradients_are_refused_by_name():
    a = torch.zeros(4, 64, dtype=BF16, requires_grad=True)
    with pytest.raises(RuntimeError, match="A requires a gradient, and a product with a prologue"):
        gemm(a=a, prologue=PrologueArguments(SCALED, factor=2.0))
    weight = torch.nn.Parameter(torch.zeros(64, dtype=BF16))
    prologue = PrologueArguments(SCALED, factor=weight)
    with pytest.raises(RuntimeError, match="factor requires a gradient"):
        gemm(prologue=prologue)
    with torch.no_grad():
        assert gemm(prologue=prologue)


def test_scales_of_a_belong_into_the_prologue():
    scale = torch.ones(4, 1)
    a = ScaledTensor(torch.zeros(4, 64, dtype=BF16), scale, (1, 64), None)
    args = gemm(a=a, prologue=PrologueArguments(SCALED, factor=2.0))
    status = cutlass_api.get_kernels(gemm(prologue=args.prologue))[0].supports(args)
    assert not status


def test_numpy_operands():
    a = np.ones((2, 8), np.float16)
    b, out = np.ones((8, 4), np.float16), np.zeros((2, 4), np.float16)
    prologue = PrologueArguments(SCALED, factor=np.float32(3))
    args = GemmArguments(a, b, out, "float32", prologue=prologue)
    cutlass_api.get_kernels(args)[0].run(args)
    assert (out == 24).all()


def test_changed_operands_of_a_prologue_are_read_again():
    weight = torch.ones(64, dtype=BF16)
    a, b = torch.ones(2, 64, dtype=BF16), torch.ones(64, 8, dtype=BF16)
    out = torch.zeros(2, 8, dtype=BF16)
    args = GemmArguments(a, b, out, F32, prologue=PrologueArguments(SCALED, factor=weight))
    kernel = cutlass_api.get_kernels(args)[0]
    kernel.run(args)
    assert (out == 64).all()
    weight.data = torch.full((64,), 2, dtype=BF16)
    kernel.run(args)
    assert (out == 128).all()


def test_a_prepared_launch_takes_other_operands():
    b, out = torch.ones(64, 8, dtype=BF16), torch.zeros(2, 8, dtype=BF16)
    prologue = PrologueArguments(SCALED, factor=torch.ones(64, dtype=BF16))
    args = GemmArguments(torch.ones(2, 64, dtype=BF16), b, out, F32, prologue=prologue)
    launch = cutlass_api.get_kernels(args)[0].bind(args)
    launch(A=torch.full((2, 64), 2, dtype=BF16), factor=torch.full((64,), 3, dtype=BF16))
    assert (out == 384).all()
    with pytest.raises(TypeError, match="no operand 'weight'; their epilogue has factor"):
        launch(weight=1)


def test_launches_by_keyword():
    """What generated code calls: the source of the function and its tensors."""
    a, weight = torch.randn(3, 64).to(BF16), torch.randn(64).to(BF16)
    b, out = torch.randn(64, 8).to(BF16), torch.empty(3, 8).to(BF16)
    wanted = prologues.of_rms_norm(a.double(), weight.double(), 1e-5)["A"].to(BF16).double() @ (
        b.double()
    )
    source = PrologueArguments(prologues.rms_norm, weight=1, eps=1).traced_prologue.source
    for _ in range(2):
        prologue = PrologueArguments(source, weight=weight, eps=1e-5)
        core.launch_gemm(a, b, out=out, prologue=prologue)
        torch.testing.assert_close(out.double(), wanted, rtol=1e-2, atol=1e-1)
    shifted = "def f(accum, shift):\n    D = accum + shift\n    return D\n"
    core.launch_gemm(a, b, 2.0, out=out, epilogue=shifted, prologue=prologue)
    torch.testing.assert_close(out.double(), wanted + 2, rtol=1e-2, atol=1e-1)
    matrices = [half.T.contiguous().T for half in b.split(4, dim=1)]
    core.launch_gemm(a, matrices, out=out, prologue=prologue)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-2, atol=1e-1)
    core.check_gemm(a, b, out=out, prologue=prologue)
    with pytest.raises(ValueError, match="weight with shape"):
        core.check_gemm(a[:, :32], b[:32], out=out, prologue=prologue)
    offsets = torch.tensor([3], dtype=torch.int32)
    with pytest.raises(ValueError, match="pass it to a GEMM"):
        core.launch_gemm(a, b[None], out=out, offsets=offsets, prologue=prologue)
