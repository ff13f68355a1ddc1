"""Epilogues with the product of a second matrix, without a GPU."""

import cutlass_api
import pytest
import torch
from cutlass_api import fusion
from cutlass_api.arguments import (
    ElementwiseArguments,
    EpilogueArguments,
    GemmArguments,
    GroupedGemmArguments,
)
from support import memory
from support.dual_groups import CASES, WEIGHTS, DualGroups
from support.epilogues import assert_close, fused
from support.helpers import coarse, fake, run_first

SWIGLU = "def epilogue(accum, up):\n    D = silu(accum) * product(up)\n    return D\n"


def test_a_second_product_of_integers():
    a, b, up = (torch.randint(-9, 9, of, dtype=torch.int8) for of in ((5, 7), (7, 9), (7, 9)))
    out = torch.zeros(5, 9, dtype=torch.int32)
    source = "def epilogue(accum, up):\n    D = accum - product(up)\n    return D\n"
    run_first(fused(a, b, out, source, torch.int32, up=up))
    assert torch.equal(out, a.int() @ b.int() - a.int() @ up.int())


def test_a_second_product_among_other_operands():
    source = """
        def epilogue(accum, bias, up, C):
            other = product(up)
            D = relu(accum + bias) * (other + C) + other
            return D, other
    """
    a, b, up, C = (coarse(*of) for of in ((5, 7), (7, 9), (7, 9), (5, 9)))
    bias, out, other = coarse(9), torch.zeros(5, 9), torch.zeros(5, 9)
    run_first(fused(a, b, out, source, up=up, bias=bias, C=C, other=other))
    assert_close(other, a @ up)
    assert_close(out, torch.relu(a @ b + bias) * (a @ up + C) + a @ up)


REFUSED_FACTORS = {
    "requires B's: float32 with shape": lambda a, b: torch.randn(9, 7).mT,
    "float16 with shape .* requires B's": lambda a, b: torch.randn(7, 9).half(),
    r"shape \[7, 8\] .* requires B's": lambda a, b: torch.randn(7, 8),
    "up is B itself; write accum": lambda a, b: b,
    "a number was passed; pass a matrix": lambda a, b: 2.0,
}


@pytest.mark.parametrize("message", REFUSED_FACTORS)
def test_a_second_matrix_is_like_b(message):
    a, b = torch.randn(5, 7), torch.randn(7, 9)
    with pytest.raises(ValueError, match=message):
        fused(a, b, torch.zeros(5, 9), SWIGLU, up=REFUSED_FACTORS[message](a, b))


def product_of(body, names="up"):
    return f"def epilogue(accum, {names}):\n    {body}\n    return D\n"


@pytest.mark.parametrize(
    "source, message",
    [
        (product_of("D = product(up) * product(up)"), "can be called once"),
        (product_of("D = product(up) * product(down)", "up, down"), "can be called once"),
        (product_of("D = product(accum)"), "takes a parameter of the epilogue function"),
        (product_of("D = product(up + 1)"), "takes a parameter of the epilogue function"),
        (product_of("D = product()"), "product is missing its argument 'B'"),
    ],
)
def test_a_product_is_of_one_parameter(source, message):
    with pytest.raises(ValueError, match=message):
        fusion.trace(source)


def test_a_second_matrix_is_read_by_the_product_alone():
    a, b, up = torch.randn(5, 7), torch.randn(7, 7), torch.randn(7, 7)
    with pytest.raises(ValueError, match="cannot read its elements, too"):
        fused(a, b, torch.zeros(5, 7), product_of("D = product(up) + up"), up=up)


def test_a_second_product_is_of_a_gemm_and_not_reduced():
    up, out = torch.randn(7, 9), torch.zeros(5, 9)
    source = (
        "def epilogue(accum, up):\n    D = product(up)\n    S = sum(D, dim=-1)\n    return D, S\n"
    )
    with pytest.raises(ValueError, match="S is a reduction, which an epilogue with product"):
        fused(torch.randn(5, 7), torch.randn(7, 9), out, source, up=up, S=torch.zeros(5))
    epilogue = EpilogueArguments(SWIGLU, D=out, up=torch.randn(5, 9))
    with pytest.raises(ValueError, match="only the epilogue of a GEMM, also with groups along M"):
        ElementwiseArguments(torch.randn(5, 9), torch.randn(5, 9), out, epilogue=epilogue)


def test_a_second_product_is_described():
    traced = fusion.trace(SWIGLU)
    assert str(traced) == "D = (silu(accum) * product(up))"
    assert ("product", 0) in traced.nodes
    assert fusion.trace(traced.source).nodes == traced.nodes
    out = torch.zeros(5, 9)
    arguments = EpilogueArguments(SWIGLU, D=out, up=torch.randn(7, 9))
    assert arguments.trace((5, 9)) is arguments.traced_epilogue
    with pytest.raises(RuntimeError, match="stands for A @ B"):
        fusion.product(out)


DUAL_KERNELS = {
    (64, 48, 64, "tnt", torch.bfloat16): {"sm90"},
    (8, 48, 64, "nnt", torch.float16): {"sm90"},
    (64, 44, 64, "tnt", torch.bfloat16): set(),  # N in blocks of 8
    (64, 48, 60, "tnt", torch.bfloat16): set(),  # rows of K in multiples of 16 bytes
    (64, 48, 64, "ttt", torch.bfloat16): set(),  # K-major weights
    (64, 48, 64, "tnn", torch.bfloat16): set(),
    (64, 48, 64, "tnt", torch.float32): set(),
}


@pytest.mark.parametrize("case", DUAL_KERNELS, ids=str)
def test_kernels_of_two_products(case):
    m, n, k, layout, dtype = case
    a, b, out = (
        fake(*of, dtype=dtype, layout=letter)
        for of, letter in zip(((m, k), (k, n), (m, n)), layout, strict=True)
    )
    args = fused(a, b, out, SWIGLU, up=fake(k, n, dtype=dtype, layout=layout[1]))
    kernels = cutlass_api.get_kernels(args, cc=90)
    assert {kernel.metadata.kernel_name.partition("_")[0] for kernel in kernels} == DUAL_KERNELS[
        case
    ]
    assert all(kernel.supports(args) for kernel in kernels)
    # A kernel that fuses none refuses these arguments, and one that fuses them others.
    plain = cutlass_api.get_kernels(GemmArguments(a, b, out, torch.float32), cc=90)[0]
    assert "it fuses none" in str(plain.supports(args).error)
    for kernel in kernels[:1]:
        assert not kernel.supports(GemmArguments(a, b, out, torch.float32))
        assert kernel.estimate(args, cc=90).bytes == 2 * (m * k + 2 * k * n + m * n)


# ---- groups along M ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(len(CASES)))
def test_two_products_in_groups(seed, monkeypatch):
    """On the CPU: tensors of their own, halves of one tensor, rows of one tensor that alternate."""
    monkeypatch.setattr(memory, "DEVICE", torch.device("cpu"))
    trial = DualGroups(*CASES[seed], list(WEIGHTS)[seed % len(WEIGHTS)], seed)
    (kernel,) = trial.kernels()
    trial.check(kernel)


def grouped(a, b, out, ends, source=SWIGLU, accumulator=torch.float32, **operands):
    ends = torch.tensor(ends, dtype=torch.int32)
    epilogue = EpilogueArguments(source, D=out, **operands)
    return GroupedGemmArguments(a, b, out, accumulator, ends, epilogue)


@pytest.mark.parametrize(
    "dtype, accumulator",
    [(torch.int8, torch.int32), (torch.float64, torch.float64), (torch.float32, torch.float32)],
    ids=str,
)
def test_types_of_two_products_in_groups(dtype, accumulator):
    a, b, up = (coarse(*of, dtype=dtype) for of in ((6, 7), (3, 7, 9), (3, 7, 9)))
    out = torch.full((6, 9), 77, dtype=accumulator)
    run_first(
        grouped(a, b, out, [2, 2, 5], product_of("D = accum - product(up)"), accumulator, up=up)
    )
    difference = b.double() - up.double()
    assert torch.equal(out[:2].double(), a[:2].double() @ difference[0])
    assert torch.equal(out[2:5].double(), a[2:5].double() @ difference[2])
    assert (out[5] == 77).all()


REFUSED_IN_GROUPS = {
    r"up is float32 with shape \[7, 9\] .* shape \[2, 7, 9\]": lambda b: b[0].clone(),
    r"shape \[2, 7, 8\] .* requires B's": lambda b: b[..., :8],
    r"shape \[3, 7, 9\] .* requires B's": lambda b: torch.randn(3, 7, 9),
    r"strides \[63, 1, 7\], but .* strides \[63, 9, 1\]": lambda b: torch.randn(2, 9, 7).mT,
    "float16 with shape .* requires B's": lambda b: b.half(),
    "up is B itself; write accum": lambda b: b,
}


@pytest.mark.parametrize("message", REFUSED_IN_GROUPS)
def test_a_second_matrix_of_groups_is_like_b(message):
    b = torch.randn(2, 7, 9)
    with pytest.raises(ValueError, match=message):
        grouped(torch.randn(5, 7), b, torch.zeros(5, 9), [2, 5], up=REFUSED_IN_GROUPS[message](b))


def test_groups_along_k_have_one_product():
    a, b, out = torch.randn(5, 7), torch.randn(7, 9), torch.zeros(2, 5, 9)
    with pytest.raises(ValueError, match="only the epilogue of a GEMM, also with groups along M"):
        grouped(a, b, out, [3, 7], up=torch.randn(7, 9))


GROUPED_KERNELS = {
    (64, 48, 64, "n", torch.bfloat16): {"sm90"},
    (8, 48, 64, "n", torch.float16): {"sm90"},
    (64, 44, 64, "n", torch.bfloat16): set(),  # N in blocks of 8
    (64, 48, 60, "n", torch.bfloat16): set(),  # rows of K in multiples of 16 bytes
    (64, 48, 64, "t", torch.bfloat16): set(),  # K-major weights
    (64, 48, 64, "n", torch.float32): set(),
}


@pytest.mark.parametrize("case", GROUPED_KERNELS, ids=str)
def test_kernels_of_two_products_in_groups(case):
    m, n, k, layout, dtype = case
    a, out, ends = fake(m, k, dtype=dtype), fake(m, n, dtype=dtype), fake(4, dtype=torch.int32)
    b, up = (fake(4, k, n, dtype=dtype, layout=layout) for _ in range(2))
    epilogue = EpilogueArguments(SWIGLU, D=out, up=up)
    args = GroupedGemmArguments(a, b, out, torch.float32, ends, epilogue)
    kernels = cutlass_api.get_kernels(args, cc=90)
    families = {kernel.metadata.kernel_name.partition("_")[0] for kernel in kernels}
    assert families == GROUPED_KERNELS[case]
    plain = GroupedGemmArguments(a, b, out, torch.float32, ends)
    for kernel in kernels:
        assert kernel.supports(args) and not kernel.supports(plain)
        assert kernel.estimate(args, cc=90).bytes >= 2 * (m * k + 2 * 4 * k * n + m * n)
