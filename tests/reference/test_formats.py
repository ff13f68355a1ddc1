"""Every format of weights: quantized, stored, dequantized, multiplied, and refused."""

import math
import re
import shutil
from pathlib import Path

import cutlass_api
import ml_dtypes
import numpy as np
import pytest
import stand_in
import torch
from cutlass_api import mixed_mm, scaled_mm
from cutlass_api._dtypes import ELEMENTS
from cutlass_api.weights._formats import FORMATS, GROUPS, Fields, Format, find_format
from cutlass_api.weights._scales import OF_FLOAT8, ROW, TENSOR
from support.formats import (
    ERRORS,
    NAMED,
    K,
    N,
    composed,
    operand_for,
    product,
    quantized,
    random_weight,
)
from support.properties import SPARSE

formats = pytest.mark.parametrize("name", NAMED)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(1)


def multiply(format, fields, x):
    """A product by the reference, in float32."""
    out = torch.empty(len(x), N)
    arguments = product(format, fields, x, out)
    cutlass_api.get_kernels(arguments)[0].run(arguments)
    return out


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            assert torch.equal(a.float(), b.float())


def test_names_differ_and_each_format_is_found():
    assert len(NAMED) == len(FORMATS)
    for each in FORMATS:
        for is_a in (True, False):
            key = (each.dtype, each.scales.block(is_a), each.scales.is_swizzled)
            is_symmetric = each.scales.block() == each.scales.block(False)
            assert find_format(*key) == (each, is_a or is_symmetric)


@formats
def test_round_trip(name, generator):
    format, weight = NAMED[name], random_weight(generator)
    fields = quantized(format, weight)
    layout = format.layout(N, K)
    present = {key: tensor for key, tensor in fields._asdict().items() if tensor is not None}
    assert {key: (tuple(x.shape), x.dtype) for key, x in present.items()} == layout
    format.check(fields)
    # One rounding to float32, of the product with the scale.
    dequantized = format.dequantize(fields)
    assert dequantized.dtype is torch.float32
    assert torch.equal(dequantized, composed(format, fields).float())
    assert (dequantized - weight).norm() < ERRORS[format.dtype] * weight.norm()
    # A matrix (K, N) has the transposed fields.
    key = (format.dtype, format.scales.block(is_a=False), format.scales.is_swizzled)
    transposed = Fields(*torch.ops.cutlass_api.quantize(weight.t().contiguous(), *key))
    assert_same(transposed.t(), fields)
    assert_same(format.unpack(format.repack(fields)), fields)


@formats
def test_products(name, generator):
    """The reference computes with a quantized weight what it computes with the dequantized one."""
    format, weight = NAMED[name], random_weight(generator)
    fields, x = quantized(format, weight), operand_for(format, generator)
    out = multiply(format, fields, x)
    dequantized = format.dequantize(fields)
    expected = cutlass_api.matmul(x.float(), dequantized.t())
    close = {"rtol": 1e-6, "atol": 1e-6 * float(expected.abs().max())}
    torch.testing.assert_close(out, expected, **close)
    # As a user calls them.
    scale = format.of_product(fields)[0]["scale_b"]
    if format.dtype.is_floating_point:
        ours = scaled_mm(x, fields.values.t(), torch.ones(()), scale, torch.float32)
        assert torch.equal(ours, out)
    elif format.scales in (TENSOR, ROW):
        ours = mixed_mm(x, fields.values.t(), scale, torch.float32)
        assert torch.equal(ours, out)
    # The fields as a file holds them: bytes, a dtype and a shape.
    stored = Fields(
        *(
            None
            if each is None
            else torch.frombuffer(
                bytearray(each.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()),
                dtype=each.dtype,
            ).view(each.shape)
            for each in fields
        )
    )
    assert_same(stored, fields)
    assert torch.equal(multiply(format, stored, x), out)


@pytest.mark.parametrize(
    "name",
    [
        each.name
        for each in FORMATS
        if not each.dtype.is_floating_point
        and each.scales.extent == 1
        and each.scales.varies_along_k
    ],
)
def test_groups_by_mixed_mm(name, generator):
    """mixed_mm takes groups that divide K, of integers on either side."""
    format, weight = NAMED[name], random_weight(generator)[:, :256]
    fields = quantized(format, weight)
    x = operand_for(format, generator)[:, :256]
    zero = fields.zeros
    expected = x.double() @ format.dequantize(fields).double().t()
    right = mixed_mm(
        x, fields.values.t(), fields.scales.t(), torch.float32, None if zero is None else zero.t()
    )
    left = mixed_mm(fields.values, x.t(), fields.scales, torch.float32, zero)
    for out in (right, left.t()):
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-4)


@formats
def test_bad_fields_are_refused(name, generator):
    format, fields = NAMED[name], quantized(NAMED[name], random_weight(generator))
    for key, tensor in fields._asdict().items():
        if tensor is None:
            bad = {f"takes no {key}": fields.scales}
        else:
            short = tensor[:-1] if tensor.dim() else tensor.expand(2)
            # Fewer rows of values do not fit the scales of rows, which are the first to say so.
            bad = {
                f"{key} is torch.int64; pass {tensor.dtype}": torch.zeros(
                    tensor.shape, dtype=torch.int64
                )
            }
            if key != "values":
                bad[f"{key} has shape {list(short.shape)}; pass {list(tensor.shape)}"] = short
                bad[f"{key} is on meta and values on cpu; move {key}"] = tensor.to("meta")
            if key == "zeros":
                bad["requires zeros"] = None
        for message, other in bad.items():
            with pytest.raises(ValueError, match=re.escape(message)):
                format.dequantize(fields._replace(**{key: other}))


@pytest.mark.skipif(not shutil.which("cargo"), reason="needs cargo for the emulator")
def test_products_on_hopper():
    script = "from support import emulation_formats\nemulation_formats.formats()"
    assert int(stand_in.run(script, emulated=True)) >= len(FORMATS[::SPARSE])


def test_the_guide_has_the_shapes_of_scales():
    page = (Path(__file__).parents[2] / "docs/guide/eight_bits.md").read_text()
    table = page.partition("## Scales\n")[2].partition("\n## ")[0]
    cells = [[x.strip() for x in line.strip("|").split("|")] for line in table.splitlines()]
    shapes = {(row[2], row[3], row[4]) for row in cells if len(row) == 6}
    for scales in OF_FLOAT8:
        if scales == TENSOR or scales.is_swizzled:
            continue
        m, n, k = 300, 500, 700
        names = {"M": m, "N": n, "K": k, "ceil": math.ceil}
        found = [
            row
            for row in shapes
            if row[0].startswith("(M") or row[0].startswith("(ceil")
            if "group" not in row[0]
            if eval(row[0], names) == scales.shape(m, k)
            if eval(row[1], names) == scales.shape(n, k, is_a=False)
        ]
        assert [f"torch.{row[2]}" for row in found] == [str(scales.dtype)]


# Formats of classes of weights.


@pytest.mark.parametrize(
    "element", [x for x in ELEMENTS.values() if x.codes and x.xla_code], ids=lambda x: x.name
)
def test_codes_mean_what_ml_dtypes_says(element):
    # Kernels read an int4 with 8 added.
    codes = np.arange(16, dtype=np.uint8) ^ (8 if element.name == "int4" else 0)
    numbers = codes.view(getattr(ml_dtypes, element.name)).astype(np.float32)
    assert numbers.tolist() == element.codes


@pytest.mark.parametrize("adds_zero", [False, True])
def test_a_scale_of_the_tensor_and_added_zero_points_in_a_product(adds_zero, generator):
    """Of 8 bits, which kernels read: by the operands that a record passes to them."""
    format = Format("int8", GROUPS[32], torch.float32, adds_zero, has_factor=True)
    weight = torch.randint(-9, 9, (N, K), generator=generator).to(torch.int8)
    scales, zeros = torch.rand(2, N, -(-K // 32), generator=generator) + 0.5
    fields = Fields(weight, scales, zeros, torch.tensor(0.75))
    x = operand_for(format, generator)
    expected = x.double() @ format.dequantize(fields).double().t()
    torch.testing.assert_close(multiply(format, fields, x).double(), expected, rtol=1e-4, atol=1e-3)
