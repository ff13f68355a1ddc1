"""The limits of the GPU tests: what tensor cores round passes, and a wrong sum fails."""

import numpy as np
import pytest
import torch
from support import memory
from support.gemms import make_problem
from support.helpers import FLOAT8
from support.memory import Form
from support.problems import ENOUGH_FOR_A_RATIO, Problem, float8_product, rounded_once
from support.properties import Types

#: Bits of a term below its leading bit that float8 tensor cores keep.
FRACTION_BITS = 13
M, N = 80, 64
assert M * N > ENOUGH_FOR_A_RATIO


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch) -> None:
    monkeypatch.setattr(memory, "DEVICE", torch.device("cpu"))


def float8_sums(problem: Problem) -> torch.Tensor:
    """The product as float8 tensor cores compute it: each instruction aligns a sum and 32 products
    to the largest of these terms and truncates them; chains of 128 products are added in float32.
    """
    products = problem.a.double()[:, None, :] * problem.b.double().T
    total = torch.zeros(problem.shape, dtype=torch.float32)
    for chain in products.split(128, dim=-1):
        partial = torch.zeros(problem.shape, dtype=torch.float64)
        for instruction in chain.split(32, dim=-1):
            terms = torch.cat([instruction, partial[..., None]], dim=-1)
            largest = terms.abs().amax(-1, keepdim=True).clamp_min(1e-30)
            unit = 2.0 ** (largest.log2().floor() - FRACTION_BITS)
            partial = ((terms / unit).trunc() * unit).sum(-1)
        total += partial.float()
    return total


def float8_problem(a: torch.dtype, b: torch.dtype, k: int, *forms: Form) -> Problem:
    forms = forms or (Form("t"), Form("n"))
    return make_problem(Types(a, b, torch.float32, torch.float32), (M, N, k), *forms)


@pytest.mark.parametrize("k", [1, 3, 32, 40, 131, 256, 1040])
@pytest.mark.parametrize("b", FLOAT8, ids=str)
@pytest.mark.parametrize("a", FLOAT8, ids=str)
def test_float8_sums_of_tensor_cores_pass(a: torch.dtype, b: torch.dtype, k: int) -> None:
    problem = float8_problem(a, b, k)
    out = float8_sums(problem)
    assert problem.on_float8_tensor_cores.inaccuracy(out) is None
    assert problem.inaccuracy(sum(problem.parts).float()) is None
    if k > 32:  # CUDA cores add up in float32, and have its limit
        assert problem.inaccuracy(out)


@pytest.mark.parametrize("k", [3, 45, 300])
def test_float8_sums_of_equal_terms_pass(k: int) -> None:
    e4m3, forms = torch.float8_e4m3fn, (Form("t", broadcast=(-1,)), Form("n", broadcast=(-2,)))
    problem = float8_problem(e4m3, e4m3, k, *forms)
    assert problem.has_equal_terms
    assert problem.on_float8_tensor_cores.inaccuracy(float8_sums(problem)) is None


def without_a_block(problem: Problem, out: torch.Tensor) -> torch.Tensor:
    left, right = problem.a[:, 128:256].double(), problem.b[128:256].double()
    return out - (left @ right).float()


def with_swapped_rows(problem: Problem, out: torch.Tensor) -> torch.Tensor:
    order = torch.arange(M)
    order[[3, 70]] = order[[70, 3]]
    return out[order]


def with_one_missing_product(problem: Problem, out: torch.Tensor) -> torch.Tensor:
    return out - problem.a[:, 5:6].float() @ problem.b[5:6].float()


def with_one_wrong_element(problem: Problem, out: torch.Tensor) -> torch.Tensor:
    out = out.clone()
    out[7, 9] += 0.1 * problem.scales[7, 9]
    return out


@pytest.mark.parametrize("beside_torch", [False, True])
@pytest.mark.parametrize(
    "mistake",
    [without_a_block, with_swapped_rows, with_one_missing_product, with_one_wrong_element],
)
def test_mistakes_in_float8_sums_fail(mistake, beside_torch: bool) -> None:
    e4m3 = torch.float8_e4m3fn
    problem = float8_problem(e4m3, e4m3, 1040).on_float8_tensor_cores
    out = float8_sums(problem)
    if beside_torch:
        problem.torch_error = problem.error(out)
        assert problem.compares_with_torch and problem.limit == 1.2 * problem.torch_error
    assert problem.inaccuracy(out) is None
    assert problem.inaccuracy(mistake(problem, out))


@pytest.mark.parametrize("k", [61, 256])
def test_a_chain_of_float64_products_passes(k: int) -> None:
    """Also where torch adds up in several chains, and so with half the error or less."""
    double = torch.float64
    types = Types(double, double, double, double)
    problem = make_problem(types, (M, N, k), Form("t"), Form("n"))
    a, b = problem.a.numpy().astype(np.longdouble), problem.b.numpy().astype(np.longdouble)
    total = np.zeros((M, N))
    for at in range(k):  # close to a fused multiply-add, which rounds once
        total = (a[:, at, None] * b[at] + total).astype(np.float64)
    out = torch.from_numpy(total)
    problem.torch_error = problem.error(out) / 2
    assert problem.compares_with_torch
    assert problem.inaccuracy(out) is None
    assert problem.inaccuracy(out + 2 * problem.difference(out))
    assert problem.inaccuracy(with_one_missing_product(problem, out))


def test_integer_sums_round_once() -> None:
    tie = 2**26 + 2**18  # between two bfloat16; float32 rounds the sums beside it to it
    sums = torch.tensor([tie - 1, tie, tie + 1, -tie - 1, 2**31 - 1, -(2**31), 5])
    rounded = rounded_once(sums.int(), torch.bfloat16).double().tolist()
    above = 2**26 + 2**19
    assert rounded == [2**26, 2**26, above, -above, 2**31, -(2**31), 5]


@pytest.mark.parametrize("k", [16, 45])
def test_torch_multiplies_float8_copies(k: int) -> None:
    """Operands with any strides and extents become those that torch._scaled_mm takes."""
    a, b = torch.float8_e4m3fn, torch.float8_e5m2
    problem = float8_problem(a, a, k, Form("n", pad=3), Form("t", step=2))
    product = float8_product(problem.a, problem.b[:, :37], torch.float32, False)
    torch.testing.assert_close(product.double(), problem.parts[0][:, :37], atol=1e-3, rtol=1e-3)
    assert product.shape == (M, 37)
    assert float8_problem(b, b, k).on_float8_tensor_cores.torch_error is None
