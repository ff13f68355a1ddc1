"""The main loop of sm80's kernels in machine code: float8 beside int8 on chips whose tensor cores
multiply float8, mixed products beside float16.
"""

import re
from collections import Counter

import cutlass_api
import pytest
import torch
from cutlass_api import inspection
from cutlass_api.arguments import GemmArguments, PerformanceControls
from cutlass_api.metadata import Sm80DesignMetadata
from support.helpers import fake
from support.properties import SPARSE, some

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2

#: Instructions of the loop over K beyond those of int8, of 250 to 390, and those of chains or
#: conversions: ptxas computes some addresses again where registers are few.
TOLERANCE = 16
#: Without all kernels: the tiles to compile, without and with fast sums.
FEW_TILES = [((64, 128, 128), False), ((128, 128, 128), True), ((64, 128, 64), False)]

pytestmark = pytest.mark.skipif(not inspection.nvdisasm(), reason="needs nvdisasm")


def main_loop(code: str) -> list[str]:
    """The operations of the loop with the most products, without operands and modifiers."""
    labels: dict[str, int] = {}
    operations: list[str] = []
    loops = []
    for line in map(str.strip, code.splitlines()):
        if label := re.match(r"(\.L\w+):", line):
            labels[label[1]] = len(operations)
        if found := re.match(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(\w+)(.*)", line):
            operations.append(found[1])
            target = re.search(r"`\((\.L\w+)\)", found[2])
            if found[1] == "BRA" and target and target[1] in labels:
                loops.append(operations[labels[target[1]] :])
    return max(loops, key=lambda loop: sum(name.endswith("MMA") for name in loop))


def loops(args: GemmArguments, cc: int) -> dict[tuple[object, ...], Counter[str]]:
    """The counts of operations in the main loops of sm80's kernels for loads of 16 bytes, by tile,
    warps, and whether all products form one chain.
    """
    found = {}
    is_integer = args.A.element_type.name == args.B.element_type.name == "int8"
    tiles = [tile for tile, _ in FEW_TILES]
    for kernel in cutlass_api.get_kernels(args, cc=cc):
        design = kernel.metadata.design
        if not isinstance(design, Sm80DesignMetadata) or design.load_bytes != 16:
            continue
        key = design.tile_shape, design.fast_sums
        if SPARSE == 1 or (design.tile_shape in tiles if is_integer else key in FEW_TILES):
            code = kernel.compile(args, cc).compiled_obj.sass
            found[design.tile_shape, design.warp_shape, design.fast_sums] = Counter(main_loop(code))
    return found


def arguments(a: torch.dtype, b: torch.dtype, out: torch.dtype) -> GemmArguments:
    """K-major operands."""
    extent = 1024
    return GemmArguments(
        fake(extent, extent, dtype=a),
        fake(extent, extent, dtype=b, layout="n"),
        fake(extent, extent, dtype=out),
        "int32" if a == b == torch.int8 else "float32",
        performance=PerformanceControls(fast_sums=True),
    )


@pytest.mark.usefixtures("cache_directory")
@pytest.mark.parametrize("cc", [89, 120])
def test_float8_runs_as_int8_does(cc):
    integers = loops(arguments(torch.int8, torch.int8, torch.int32), cc)
    same = 0
    for a, out in [(E4M3, torch.float32), (E5M2, torch.bfloat16)]:
        for (tile, warps, is_fast), loop in loops(arguments(a, E4M3, out), cc).items():
            m, n, k = tile
            threads = 32 * warps[0] * warps[1]
            products = m * n * k // (16 * 8 * 32 * warps[0] * warps[1])
            assert loop["QMMA"] == products and not {"HMMA", "IMMA"} & loop.keys()
            # Chains end with each K block of 128, or with every fourth, where the sums become zero.
            sums = 0 if is_fast else m * n // threads
            assert loop["FADD"] == sums
            clears = 0 if out == torch.float32 else sums
            if beside := integers.get((tile, warps, False)):
                most = beside.total() + TOLERANCE + sums + clears
                assert loop.total() <= most, (tile, warps, is_fast, out)
                same += 1
    assert same >= 4


#: Types of a mixed product, and the instructions that convert a word of four weights.
MIXED = [
    *[(torch.float16, torch.int8, 5), (torch.float16, torch.uint8, 4)],
    *[(torch.bfloat16, torch.int8, 8), (torch.bfloat16, torch.uint8, 10)],
    *[(torch.int8, torch.float16, 5), (torch.uint8, torch.bfloat16, 10)],
]


@pytest.mark.usefixtures("cache_directory")
@pytest.mark.parametrize("cc", some([89, 80, 120]))
def test_mixed_products_run_as_float16_does(cc):
    """Each warp converts the words of its rows or columns, and loads 16-bit elements by 8 bytes a
    lane: twice as many instructions as ldmatrix.
    """
    alike = loops(arguments(torch.float16, torch.float16, torch.float32), cc)
    for a, b, of_word in MIXED:
        found = loops(arguments(a, b, a if a.itemsize == 2 else b), cc)
        assert found
        for (tile, warps, _), loop in found.items():
            m, n, k = tile
            assert loop["HMMA"] == m * n * k // (16 * 8 * 16 * warps[0] * warps[1])
            extents = m // warps[0], n // warps[1]
            narrow, wide = extents if a.itemsize == 1 else reversed(extents)
            others = narrow // 8 * k // 16 * of_word + wide // 16 * k // 16
            # The sums of float32 outputs are added to totals.
            if beside := alike.get((tile, warps, False)):
                most = beside.total() - beside["FADD"] + others + TOLERANCE
                assert loop.total() <= most, (tile, warps, a, b, loop.total(), most)


@pytest.mark.usefixtures("cache_directory")
@pytest.mark.parametrize("cc", [90, 100])
def test_other_chips_multiply_float8_as_float16(cc):
    """Without the additions that ptxas would add: it keeps the sums of each instruction apart."""
    for (tile, warps, is_fast), loop in loops(arguments(E4M3, E5M2, torch.float32), cc).items():
        sums = 0 if is_fast else tile[0] * tile[1] // (32 * warps[0] * warps[1])
        assert loop["HMMA"] and loop["FADD"] == sums and "QMMA" not in loop
