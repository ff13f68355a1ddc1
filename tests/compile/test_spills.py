"""Kernels that use the most registers spill none, and the compiler warns of nothing."""

from functools import partial

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import (
    EpilogueArguments,
    GemmArguments,
    GroupedGemmArguments,
    PerformanceControls,
)
from cutlass_api.metadata import SimtDesignMetadata, Sm80DesignMetadata, Sm90DesignMetadata
from cutlass_api.ops import _epilogues
from cutlass_api.ops._gated_mlp import gate_and_up
from support.compiling import check_code, demanding
from support.epilogues import fake_fused, linear
from support.helpers import fake, fake_gemm
from support.properties import diagonals

functions = pytest.mark.parametrize("function", [None, linear], ids=["plain", "linear"])


def float32_kernels(function, layout, is_wanted):
    """Arguments with or without an epilogue, and the kernels of some designs for them."""
    arguments = partial(fake_fused, function) if function else fake_gemm
    args = arguments(dtype=torch.float32, layout=layout)
    kernels = cutlass_api.get_kernels(args, cc=90)
    return args, [kernel for kernel in kernels if is_wanted(kernel.metadata.design)]


@pytest.mark.usefixtures("tf32_allowed", "cache_directory")
@pytest.mark.parametrize(
    "function, layout",
    diagonals([None, linear], ["nnt", "ttt"]),
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_operands_from_registers_spill_none(function, layout):
    """float32 operands of which one is not K-major; the output transposed or not."""
    args, kernels = float32_kernels(
        function,
        layout,
        lambda design: isinstance(design, Sm90DesignMetadata) and not any(design.packed),
    )
    assert len(kernels) >= 9
    check_code(kernels, args)


@pytest.mark.usefixtures("cache_directory")
@pytest.mark.parametrize(
    "accumulates, out_dtype", diagonals([False, True], [torch.bfloat16, torch.float32]), ids=str
)
def test_groups_along_k_neither_spill_nor_serialize(accumulates, out_dtype):
    """Also with an epilogue that adds to the output."""
    m, n, k, groups = 512, 768, 4096, 16
    a, b = fake(m, k, dtype=torch.bfloat16, layout="n"), fake(k, n, dtype=torch.bfloat16)
    out, ends = fake(groups, m, n, dtype=out_dtype), fake(groups, dtype=torch.int32)
    add = "def add(accum, C):\n    D = accum + C\n    return D"
    epilogue = EpilogueArguments(add, C=out, D=out) if accumulates else None
    args = GroupedGemmArguments(a, b, out, "float32", ends, epilogue)
    kernels = [
        kernel
        for kernel in cutlass_api.get_kernels(args, cc=90)
        if isinstance(kernel.metadata.design, Sm90DesignMetadata)
    ]
    assert len(kernels) >= 8
    check_code(kernels, args)


#: The epilogue, and the shapes of x and y, for 16 groups of 512 x 768 outputs and a K of 4096.
SCALED_ALONG_K = {
    "plain": ("accum", ()),
    "rows": ("accum * x * y", ((16, 512, 1), (16, 1, 768))),
    "added": ("accum * x * y + C", ((16, 512, 1), (16, 1, 768))),
    "blocks": (
        "scale_blocks(accum, a=x, b=y, a_block=(1, 128), b_block=(128, 1))",
        ((512, 32), (32, 768)),
    ),
    "wide": (
        "scale_blocks(accum, a=x, b=y, a_block=(1, 128), b_block=(128, 128))",
        ((512, 32), (32, 6)),
    ),
}


@pytest.mark.usefixtures("cache_directory")
@pytest.mark.parametrize(
    "kind, out_dtype", diagonals(SCALED_ALONG_K, [torch.bfloat16, torch.float32]), ids=str
)
def test_float8_groups_along_k_neither_spill_nor_serialize(kind, out_dtype):
    """All tiles, also those of fast sums."""
    (source, shapes), dtype = SCALED_ALONG_K[kind], torch.float8_e4m3fn
    a, b = fake(512, 4096, dtype=dtype), fake(4096, 768, dtype=dtype, layout="n")
    out, ends = fake(16, 512, 768, dtype=out_dtype), fake(16, dtype=torch.int32)
    operands = {
        name: fake(*shape, dtype=torch.float32) for name, shape in zip("xy", shapes, strict=False)
    }
    operands |= {"C": out} if "C" in source else {}
    source = f"def f({', '.join(['accum', *operands])}): D = {source}; return D"
    epilogue = None if kind == "plain" else EpilogueArguments(source, D=out, **operands)
    controls = PerformanceControls(fast_sums=True)
    args = GroupedGemmArguments(a, b, out, "float32", ends, epilogue, controls)
    kernels = cutlass_api.get_kernels(args, cc=90)
    kernels = [each for each in kernels if isinstance(each.metadata.design, Sm90DesignMetadata)]
    assert len(kernels) >= (3 if "scale_blocks" in source else 6)
    check_code(kernels, args)


#: Short, and of all operands: a clamped gate, biases of groups, a residual, factors of rows, a
#: second output.
TWO_PRODUCTS = {
    "swiglu": "D = silu(accum) * product(up)\n    return D\n",
    "clamped": """gate = minimum(accum + bias, 7.0)
    D = gate * sigmoid(gate * 1.702) * (clamp(product(up) + of_up, -7.0, 7.0) + 1) * row + C
    return D, gate
""",
}


@pytest.mark.usefixtures("cache_directory")
@pytest.mark.parametrize(
    "name, dtype", diagonals(TWO_PRODUCTS, [torch.float16, torch.bfloat16]), ids=str
)
def test_two_products_in_groups_neither_spill_nor_serialize(name, dtype):
    """Both schedules of sm90."""
    body = TWO_PRODUCTS[name]
    m, n, k, groups = 2048, 768, 2048, 16
    a, out, ends = fake(m, k, dtype=dtype), fake(m, n, dtype=dtype), fake(groups, dtype=torch.int32)
    b, up = (fake(groups, k, n, dtype=dtype, layout="n") for _ in range(2))
    operands = {"D": out, "up": up}
    if "C" in body:
        operands |= {name: fake(groups, 1, n, dtype=dtype) for name in ("bias", "of_up")}
        operands |= {"row": fake(m, 1, dtype=torch.float32)}
        operands |= {"C": fake(m, n, dtype=dtype), "gate": fake(m, n, dtype=dtype)}
    names = ", ".join(name for name in operands if name not in ("D", "gate"))
    epilogue = EpilogueArguments(f"def f(accum, {names}):\n    {body}", **operands)
    args = GroupedGemmArguments(a, b, out, "float32", ends, epilogue)
    kernels = list(cutlass_api.get_kernels(args, cc=90))
    assert {kernel.metadata.design.schedule for kernel in kernels} == {"cooperative", "pingpong"}
    assert len(kernels) >= 6
    check_code(kernels, args)


@pytest.mark.usefixtures("cache_directory")
@pytest.mark.parametrize("interleaved", [False, True])
def test_gated_layers_of_groups_neither_spill_nor_serialize(interleaved):
    """The forward of training, which stores the sums of gate and up."""
    m, n, k, groups, dtype = 2048, 768, 2048, 16, torch.bfloat16
    a, out, ends = fake(m, k, dtype=dtype), fake(m, n, dtype=dtype), fake(groups, dtype=torch.int32)
    weight, bias = fake(groups, k, 2 * n, dtype=dtype, layout="n"), fake(groups, 1, 2 * n)
    of_weight, of_bias, sums = (
        gate_and_up(each, interleaved) for each in (weight, bias, fake(m, 2 * n, dtype=dtype))
    )
    given = dict(zip(("factor", "gate_bias", "up_bias"), (of_weight[1], *of_bias), strict=True))
    source = _epilogues.gated("silu", "gate_bias", "up_bias", returns_sums=True)
    fused = EpilogueArguments(source, D=out, gate=sums[0], up=sums[1], **given)
    args = GroupedGemmArguments(a, of_weight[0], out, "float32", ends, fused)
    kernels = list(cutlass_api.get_kernels(args, cc=90))
    assert len(kernels) >= 6
    check_code(kernels, args)


@pytest.mark.usefixtures("cache_directory")
@functions
def test_float32_kernels_spill_none(function):
    """Both operands pass through registers, which needs the most."""
    args, kernels = float32_kernels(
        function,
        "tnt",
        lambda design: isinstance(design, SimtDesignMetadata) and design.load_bytes == 16,
    )
    assert len(kernels) == 6
    check_code(kernels, args)


#: The blocks of A and of B that share a scale.
BLOCKS = {
    "blocks": ((1, 128), (128, 128)),
    "columns": ((1, 128), (128, 1)),
    "mx": ((1, 32), (32, 1)),
}


def scaled_arguments(kind):
    """Arguments of a float8 product with scales of a kind."""
    extent, float8 = 1024, torch.float8_e4m3fn
    a, b = (fake(extent, extent, dtype=float8, layout=letter) for letter in "tn")
    out = fake(extent, extent, dtype=torch.bfloat16)
    source, shapes = "accum * x * y", [(extent, 1), (1, extent)]
    if kind == "tensor":
        shapes = [(1,), (1,)]
    elif kind in BLOCKS:
        source = f"scale_blocks(accum, x, y, {BLOCKS[kind][0]}, {BLOCKS[kind][1]})"
        shapes = [(extent // rows, extent // columns) for rows, columns in BLOCKS[kind]]
    dtype = torch.float8_e8m0fnu if kind == "mx" else torch.float32
    x, y = (fake(*shape, dtype=dtype) for shape in shapes)
    source = f"def epilogue(accum, x, y):\n    D = {source}\n    return D\n"
    epilogue = EpilogueArguments(source, x=x, y=y, D=out)
    controls = PerformanceControls(fast_sums=kind == "fast")
    return GemmArguments(a, b, out, "float32", epilogue, controls)


def sm90_kernels(args):
    """Those that pack no operand: packing changes the launch, not the program's main loop."""
    return [
        kernel
        for kernel in cutlass_api.get_kernels(args, cc=90)
        if "sm90" in kernel.metadata.kernel_name and not any(kernel.metadata.design.packed)
    ]


@pytest.mark.parametrize("kind", ["tensor", "rows", "fast", *BLOCKS])
def test_scaled_float8_kernels_neither_spill_nor_serialize(kind, cache_directory):
    """ptxas warns of wgmma that it serializes."""
    args = scaled_arguments(kind)
    kernels = sm90_kernels(args)
    if kind == "fast":
        kernels = [kernel for kernel in kernels if kernel.metadata.design.fast_sums]
    assert kernels
    check_code(demanding(kernels, 3), args)


@pytest.mark.parametrize(
    "kind, cc", diagonals(["tensor", "rows", "fast", *BLOCKS], [89, 90, 100, 120])
)
def test_scaled_float8_kernels_of_sm80_spill_none(kind, cc, cache_directory):
    args = scaled_arguments(kind)
    kernels = [
        kernel
        for kernel in cutlass_api.get_kernels(args, cc=cc)
        if isinstance(kernel.metadata.design, Sm80DesignMetadata)
        and kernel.metadata.design.fast_sums == (kind == "fast")
    ]
    assert len(kernels) >= 3
    check_code(demanding(kernels, 3), args, cc)


@pytest.mark.parametrize("cc, weights", diagonals([80, 89, 120], [torch.int8, torch.uint8]))
def test_scaled_mixed_kernels_of_sm80_spill_none(cc, weights, cache_directory):
    """Scales of columns and a bias."""
    extent, half = 1024, torch.bfloat16
    a, b = fake(extent, extent, dtype=half), fake(extent, extent, dtype=weights, layout="n")
    scales, bias = fake(1, extent, dtype=torch.float32), fake(extent, dtype=half)
    out = fake(extent, extent, dtype=half)
    source = "def epilogue(accum, x, y):\n    D = accum * x + y\n    return D\n"
    epilogue = EpilogueArguments(source, x=scales, y=bias, D=out)
    args = GemmArguments(a, b, out, "float32", epilogue)
    kernels = [
        kernel
        for kernel in cutlass_api.get_kernels(args, cc=cc)
        if isinstance(kernel.metadata.design, Sm80DesignMetadata)
    ]
    assert len(kernels) >= 8
    check_code(demanding(kernels, 3), args, cc)


def test_scaled_grouped_kernels_neither_spill_nor_serialize(cache_directory):
    """Scales of groups and columns behind the main loop, then an epilogue."""
    m, n, k, groups = 1024, 1024, 512, 4
    a = fake(m, k, dtype=torch.float8_e4m3fn)
    b = fake(groups, k, n, dtype=torch.float8_e4m3fn, layout="n")
    out = fake(m, n, dtype=torch.float32)
    epilogue = EpilogueArguments(
        "def epilogue(accum, s, x, bias, c):\n"
        "    D = relu(scale_blocks(accum, b=s, b_block=(-1, 1)) * x + bias) + c\n    return D\n",
        s=fake(groups, 1, n, dtype=torch.float32),
        x=fake(m, 1, dtype=torch.float32),
        bias=fake(n, dtype=torch.bfloat16),
        c=fake(m, n, dtype=torch.bfloat16),
        D=out,
    )
    ends, controls = fake(groups, dtype=torch.int32), PerformanceControls(fast_sums=True)
    args = GroupedGemmArguments(a, b, out, "float32", ends, epilogue, controls)
    kernels = sm90_kernels(args)
    assert sum(kernel.metadata.design.fast_sums for kernel in kernels) == 3
    check_code(kernels, args)


#: Types of A and B, of scales and of zero points, and the elements of K that share a scale.
SCALED_INTEGERS = [
    (torch.float16, torch.int8, torch.float32, torch.int8, 32),
    (torch.uint8, torch.float16, torch.float16, torch.float16, 96),
    (torch.int8, torch.bfloat16, torch.bfloat16, torch.int32, 128),
    (torch.bfloat16, torch.uint8, torch.float32, torch.float32, 16),
]


@pytest.mark.parametrize("a_type, b_type, scales, zeros, depth", SCALED_INTEGERS, ids=str)
def test_scaled_mixed_kernels_neither_spill_nor_serialize(
    a_type, b_type, scales, zeros, depth, cache_directory
):
    """With zero points, a bias and a residual."""
    m, n, k = 1024, 1024, 768
    side, shape, block = "b", (k // depth, n), (depth, 1)
    if not a_type.is_floating_point:
        side, shape, block = "a", (m, k // depth), (1, depth)
    dtype = a_type if a_type.is_floating_point else b_type
    out = fake(m, n, dtype=dtype)
    epilogue = EpilogueArguments(
        f"def epilogue(accum, s, z, bias, c):\n"
        f"    sums = scale_blocks(accum, {side}=s, {side}_block={block}, {side}_zero=z)\n"
        f"    D = relu(sums + bias) + c\n    return D\n",
        s=fake(*shape, dtype=scales),
        z=fake(*shape, dtype=zeros),
        bias=fake(n, dtype=dtype),
        c=fake(m, n, dtype=dtype),
        D=out,
    )
    a, b = fake(m, k, dtype=a_type), fake(k, n, dtype=b_type, layout="n")
    args = GemmArguments(a, b, out, "float32", epilogue)
    kernels = sm90_kernels(args)
    assert len(kernels) >= 12
    check_code(demanding(kernels, 4), args)
