"""`cutlass_api.scaled_mm`, `int8_mm` and `mixed_mm`: results, options and refusals."""

import math

import pytest
import torch
from cutlass_api import int8_mm, mixed_mm, scaled_mm
from support.eight_bits import devices, factors, float8, integers

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


# scaled_mm.


def test_dtypes_by_default():
    a, b, one = float8(4, 8), float8(8, 6), torch.ones(())
    assert scaled_mm(a, b, one, one).dtype == torch.bfloat16
    assert scaled_mm(a, b, one, one, out_dtype=None).dtype == E4M3
    a, b = integers(4, 8), integers(8, 6)
    assert int8_mm(a, b).dtype == torch.int32
    assert int8_mm(a, b, one).dtype == int8_mm(a, b, scale_b=one).dtype == torch.bfloat16
    assert mixed_mm(a.half(), b).dtype == torch.float16
    assert mixed_mm(a, b.bfloat16()).dtype == torch.bfloat16


@devices
def test_nan_scales_pass_through(device):
    a, b = float8(4, 8, device=device), float8(8, 6, device=device)
    scale_a, scale_b = factors(4, 1, device=device), factors(1, 6, device=device)
    scale_a[1], scale_b[0, 2] = math.nan, math.inf
    expected = (a.double() @ b.double()) * scale_a * scale_b
    products = [
        scaled_mm(a, b, scale_a, scale_b),
        int8_mm(a.to(torch.int8), b.to(torch.int8), scale_a, scale_b),
        mixed_mm(a.half(), b.to(torch.int8), scale_a),
    ]
    assert torch.equal(products[0].isnan(), expected.isnan())
    assert all(product[1].isnan().all() and product[0, 0].isfinite() for product in products)


# int8_mm.


@devices
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("k_major", [True, False])
def test_int8_mm_into_eight_bits(dtype, k_major, device):
    """To exact integers: the scales are powers of two, and many quotients are ties."""
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    a, b = integers(33, 48, device=device), integers(18, 48, device=device).t()
    if not k_major:
        a, b = a.t().contiguous().t(), b.contiguous()
    rows = torch.tensor([2.0**-2, 2.0**-7], device=device).repeat(17)[:33, None]
    columns = torch.tensor([0.25, 0.5], device=device).repeat(9)[None]
    bias, zeros = torch.arange(18.0, device=device), torch.arange(-9, 9, device=device)
    exact = (a.double() @ b.double()).long()

    def saturated(quotient, zero):
        assert (quotient % 1 == 0.5).any() or quotient.dtype is torch.int64
        return (quotient.round().long() + zero).clamp(low, high).to(dtype)

    scaled = exact.double() * rows * columns
    for zero in (None, torch.tensor(7, dtype=torch.int32, device=device), zeros.to(torch.int8)):
        out = int8_mm(a, b, rows, columns, out_dtype=dtype, zero_point=zero)
        assert torch.equal(out, saturated(scaled, 0 if zero is None else zero.long()))
        out = int8_mm(a, b, rows, columns, bias, dtype, zero)
        assert torch.equal(out, saturated(scaled + bias, 0 if zero is None else zero.long()))
    assert torch.equal(int8_mm(a, b, out_dtype=dtype), exact.clamp(low, high).to(dtype))


def test_int8_mm_of_operands_with_zero_points():
    """The correction of the docstring: a zero point of `a` is a bias."""
    a, b = integers(20, 39, dtype=torch.uint8), integers(39, 24)
    scale_a, scale_b = factors() / 100, factors(1, 24)
    expected = ((a.double() - 131) @ b.double()) * scale_a * scale_b
    bias = -(131 * scale_a * scale_b * b.sum(0))[0]
    out = int8_mm(a, b, scale_a, scale_b, bias, torch.float32)
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-2)


# mixed_mm.


# Batches.


def test_each_product_of_a_batch_may_have_zero_points():
    a, b = integers(3, 20, 39), integers(3, 39, 24)
    zeros, scale = torch.arange(72, dtype=torch.int32).view(3, 1, 24), factors() / 100
    out = int8_mm(a, b, scale, out_dtype=torch.int8, zero_point=zeros)
    for of, *operands, zero in zip(out, a, b, zeros, strict=True):
        expected = int8_mm(*operands, scale, out_dtype=torch.int8, zero_point=zero)
        assert torch.equal(of, expected)
    with pytest.raises(ValueError, match=r"behind a dimension of 3"):
        int8_mm(a, b, out_dtype=torch.int8, zero_point=zeros[:2])


def of_each(function, batch, *args):
    """The function of the products of a batch, one by one."""
    return torch.stack(
        [
            function(*(x[at % len(x)] if x is not None and x.dim() == 3 else x for x in args))
            for at in range(batch)
        ]
    )


#: The shapes of a and b.
BATCHES = [
    ((3, 20, 48), (3, 48, 24)),
    ((3, 20, 48), (48, 24)),
    ((20, 48), (3, 48, 24)),
    ((1, 20, 48), (3, 48, 24)),
]
batches = pytest.mark.parametrize("shapes", BATCHES, ids=str)


@devices
@batches
def test_batches_of_integer_and_mixed_products(shapes, device):
    a, b = (integers(*shape, device=device) for shape in shapes)
    out = int8_mm(a, b)
    assert out.dtype is torch.int32 and torch.equal(out, of_each(int8_mm, 3, a, b))
    eight = int8_mm(a, b, out_dtype=torch.int8)
    assert torch.equal(eight, out.clamp(-128, 127).to(torch.int8))
    x = torch.randn(shapes[0], device=device).half()
    for scale, zero in [
        (None, None),
        ((24,), None),
        ((20, 1), None),
        ((3, 20, 1), None),
        ((3, 1, 24), (24,)),
        ((3, 24), (1, 24)),
        ((3, 3, 24), (3, 1, 24)),
        ((3, 3, 24), (3, 3, 24)),
    ]:
        scale = None if scale is None else factors(*scale, device=device) / 100
        zero = None if zero is None else integers(*zero, device=device)

        def mixed(x, b, scale, zero):
            return mixed_mm(x, b, scale, torch.float32, zero)

        out = mixed(x, b, scale, zero)
        torch.testing.assert_close(out, of_each(mixed, 3, x, b, scale, zero))
        if zero is not None:  # integers on the left
            scale, zero = ((s.mT if s.dim() > 1 else s[:, None]) for s in (scale, zero))
            out = mixed(b.mT, x.mT, scale, zero)
            torch.testing.assert_close(out, of_each(mixed, 3, b.mT, x.mT, scale, zero))


# Traces and refusals.


ONE, ROWS, COLUMNS = torch.ones(()), torch.ones(4, 1), torch.ones(1, 6)
A8, B8, A, B = float8(4, 8), float8(8, 6), integers(4, 8), integers(8, 6)
REFUSALS = {
    # Blocks of K, a vector instead of a column, and the other operand's shape.
    r"scaled_mm: scale_a has shape \[4\]": lambda: scaled_mm(A8, B8, torch.ones(4), ONE),
    r"scaled_mm: scale_b has shape \[4, 1\]; .*each column, of shape \[1, 6\]": lambda: scaled_mm(
        A8, B8, ROWS, ROWS
    ),
    "scaled_mm: scale_b is on meta and A on cpu": lambda: scaled_mm(
        A8, B8, ONE, COLUMNS.to("meta")
    ),
    r"scaled_mm: scale_result has shape \[4, 1\]; pass one factor, of shape": lambda: scaled_mm(
        A8, B8, ONE, ONE, E4M3, scale_result=ROWS
    ),
    r"scaled_mm: bias has shape \[4, 1\]; pass shape \[6\]": lambda: scaled_mm(
        A8, B8, ONE, ONE, bias=ROWS
    ),
    "scaled_mm: A is torch.float8_e4m3fnuz .*; pass float8_e4m3fn or float8_e5m2": lambda: (
        scaled_mm(A8.float().to(torch.float8_e4m3fnuz), B8, ONE, ONE)
    ),
    "scaled_mm: .*no kernel computes float8_e4m3fn @ float8_e4m3fn.* into int8; pass an output in "
    "float32 or float16 or bfloat16 or float8_e4m3fn": lambda: scaled_mm(
        A8, B8, ONE, ONE, torch.int8
    ),
    "mixed_mm: .* into float8_e5m2; pass an output in float16 or float32$": lambda: mixed_mm(
        A.half(), B, out_dtype=E5M2
    ),
    "int_mm: A is torch.float8_e4m3fn": lambda: int8_mm(A8, B8),
    "int8_mm: A is torch.float8_e4m3fn": lambda: int8_mm(A8, B8, ONE),
    r"int8_mm: scale_a has shape \[1, 6\]": lambda: int8_mm(A, B, COLUMNS),
    "int8_mm: scale_b is torch.bfloat16": lambda: int8_mm(A, B, None, COLUMNS.bfloat16()),
    r"int8_mm: bias has shape \[4\]": lambda: int8_mm(A, B, bias=torch.ones(4)),
    "int8_mm: out_dtype is torch.int16; pass one of torch.int32": lambda: int8_mm(
        A, B, out_dtype=torch.int16
    ),
    "int8_mm: zero_point is for int8 and uint8; out_dtype is torch.int32": lambda: int8_mm(
        A, B, zero_point=ONE
    ),
    r"int8_mm: zero_point has shape \[4\]; pass one element, or shape \[6\]": lambda: int8_mm(
        A, B, out_dtype=torch.int8, zero_point=torch.ones(4)
    ),
    "int8_mm: zero_point is torch.float32; pass torch.int8": lambda: int8_mm(
        A, B, out_dtype=torch.int8, zero_point=ONE
    ),
    # Batches.
    r"int8_mm: scale_a has shape \[2, 4, 1\]; .*of shape \[4, 1\], for all products or behind a "
    "dimension of 3": lambda: int8_mm(A.expand(3, 4, 8), B, ROWS.expand(2, 4, 1)),
    r"scaled_mm: A has shape \[\] and B": lambda: scaled_mm(A8[0, 0], B8, ONE, ONE),
    r"int8_mm: A has shape \[\] and B": lambda: int8_mm(A[0, 0], B, ONE),
    r"mixed_mm: A has shape \[4, 8\] and B \[\]": lambda: mixed_mm(A.half(), B[0, 0], ONE),
    r"mixed_mm: A has shape \[4, 8\] and B \[8\]": lambda: mixed_mm(A.half(), B[:, 0]),
    r"int_mm: A has shape \[4, 8\] and B \[8\]": lambda: int8_mm(A, B[:, 0]),
    r"int8_mm: A has shape \[4, 8\] and B \[8\]": lambda: int8_mm(A, B[:, 0], ONE),
    "int_mm: dimension L differs": lambda: int8_mm(A.expand(3, 4, 8), B.expand(2, 8, 6)),
    "mixed_mm: A is torch.float8_e4m3fn": lambda: mixed_mm(A8, B),
    r"mixed_mm: scale has shape \[2, 6\]; pass one factor, .*each column, of shape \[6\] or "
    r"\[1, 6\], or one for each row, of shape \[4, 1\]": lambda: mixed_mm(
        A.half(), B, torch.ones(2, 6)
    ),
    "mixed_mm: scale is torch.float64; pass torch.float16": lambda: mixed_mm(
        A.half(), B, ONE.double()
    ),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_refusals(message):
    with pytest.raises(ValueError, match=f"^cutlass_api::{message}"):
        REFUSALS[message]()
