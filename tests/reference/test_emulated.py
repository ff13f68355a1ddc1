"""What kernels compute, by the emulator: every family and design, without a GPU.

The emulator executes PTX on the CPU (tests/emulator). It shows wrong results, writes outside of an
output, accesses outside of the operands and hangs; it shows neither races nor missing waits. Some
kernels of each sample run, and all of them with `make test-kernels`.
"""

import json
import re
import shutil
from itertools import pairwise

import pytest
import stand_in
from support.properties import SPARSE, some

pytestmark = pytest.mark.skipif(not shutil.which("cargo"), reason="needs cargo for the emulator")

#: Processes that share the kernels of `designs`.
PARTS = 2


def emulate(*calls: str, module: str = "emulation") -> str:
    """The output of functions of a module in a process whose launches the CPU executes."""
    script = "".join(f"{module}.{call}\n" for call in calls)
    return stand_in.run(f"from support import {module}\n{script}", emulated=True)


def launches(*calls: str, module: str = "emulation") -> list[int]:
    """The launches of each function."""
    until = [0, *map(int, emulate(*calls, module=module).split())]
    return [after - before for before, after in pairwise(until)]


@pytest.mark.parametrize("part", range(PARTS))
def test_every_design(part):
    assert launches(f"designs({part}, {PARTS})")[0] > 64 // SPARSE


def test_kernels_that_differ_on_ampere():
    assert launches("on_ampere()")[0] >= 20 // SPARSE


@pytest.mark.parametrize("cc", [89, 90])
def test_float8_products_of_sm80(cc):
    calls = [f"{call}({cc})" for call in ("fragments", "special", "scales", "designs", "grouped")]
    counts = launches(*calls, module="emulation_float8")
    assert counts[0] == 8 and counts[1] > 10 and counts[2] >= 6, counts
    assert sum(counts[3:]) >= 20 // SPARSE, counts


@pytest.mark.parametrize("cc", some([80, 120]))
def test_mixed_products_of_sm80(cc):
    counts = launches(f"products({cc})", f"designs({cc})", module="emulation_mixed")
    assert counts[0] >= 10 and counts[1] >= 1, counts


# Those of a line share a process.
@pytest.mark.parametrize(
    "groups",
    some(["float32_sums elementwise shapes views", "grouped", "epilogues", "dual"]),
)
def test_operands(groups):
    counts = launches(*(f"{group}()" for group in groups.split()))
    assert len(counts) == len(groups.split()) and min(counts) > 1, counts


@pytest.mark.parametrize(
    "groups",
    some(
        [
            *("block_scales", "grouped_scales", "infinite_factors grid_splits"),
            *("integer_scales", "sums_with_factors"),
        ]
    ),
)
def test_scales(groups):
    counts = launches(*(f"{group}()" for group in groups.split()), module="emulation_scales")
    # Of four problems of grid splits, one or two kernels each; of others a sample.
    assert all(count >= 6 for count in counts), counts


def test_groups_along_k():
    calls = ("along_k()", "neighbours()", "wrong_offsets()", "accumulation()", "scales_along_k()")
    counts = launches(*calls, module="emulation_groups")
    assert counts[0] > 30 // SPARSE and min(counts[1:]) >= 4, counts


def test_two_products_in_groups():
    assert launches("two_products()", module="emulation_groups")[0] >= 6


def test_gated_layers_of_groups():
    # Both launches of each case.
    assert launches("gated_mlp()", module="emulation_groups")[0] >= 8


def test_rows_of_groups():
    assert launches("rows_of_groups()", module="emulation_groups")[0] >= 6


def test_rows_by_an_index():
    counts = launches("two_products(True)", "rows_of_groups(True)", module="emulation_groups")
    assert counts[0] >= 5 and counts[1] >= 3, counts


def test_masked_groups():
    assert launches("masked()", module="emulation_groups")[0] >= 8


def test_several_matrices_b():
    counts = launches("joint()", "moved()", module="emulation_joint")
    assert counts[0] > 50 // SPARSE and counts[1] == 8, counts


@pytest.mark.parametrize(
    "shape, is_thorough",
    some([((5, 70, 352), True), ((20, 130, 608), False), ((200, 130, 352), False)]),
)
def test_weights_of_4_bits(shape, is_thorough):
    assert launches(f"check({shape}, {is_thorough})", module="emulation_codes")[0] > 10


def test_groups_by_weights_of_4_bits():
    assert launches("groups()", module="emulation_codes")[0] >= 6


def test_persistent_ranges_of_columns():
    counts = launches("ranges((5, 200, 1312))", "ranges_of_batches()", module="emulation_codes")
    assert counts[0] > 40 // SPARSE and counts[1] > 10 // SPARSE, counts


def test_the_stand_in_forgets_the_tensor_described_longest_ago():
    """It has room for 64 tensors. Here 68 have been described, the first of 60 twice."""
    script = """
        known = [Tensor(A + 128 * at, (8, 8)) for at in range(60)]
        known[0].describe(B, (8, 8))
        others = [Tensor(OUT + 128 * at, (8, 8)) for at in range(5)]
        print(hex(GemmArguments(known[0], others[0], others[4], "float32").A.data_ptr))
    """
    assert stand_in.run_gemm(script) == "0x20000000\n"


@pytest.fixture(scope="module")
def errors():
    """The errors of kernels with mistakes, by the mistake."""
    return json.loads(emulate("mistakes()"))


@pytest.mark.parametrize(
    "mistake, message",
    {
        "read outside": r"are not allocated\n  at \d+: ld\.global\.f32, CTA .*, thread 31",
        "write outside": r"are not allocated\n  at \d+: st\.global\.f32, CTA .*, thread 31",
        "misaligned": r"is not aligned to 16 bytes\n  at \d+: ld\.global\.v4",
        "shared memory": r"shared bytes 0\.\.4 of 0\n  at \d+: st\.shared\.f32",
        "mbarrier": r"hangs.*\n  32 at \d+: mbarrier\.try_wait\.parity\.shared\.b64 polls",
        "barrier": r"hangs.*\n  16 at \d+: bar\.sync waits at barrier 1",
    }.items(),
)
def test_mistakes_are_reported(errors, mistake, message):
    assert re.search(message, errors[mistake])
    assert errors["none"] is None
