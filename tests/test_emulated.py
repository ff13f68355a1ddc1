"""What kernels compute, by the emulator: every family and design, without a GPU.

The emulator executes PTX on the CPU (tests/emulator). It shows wrong results, writes outside of an
output, accesses outside of the operands and hangs; it shows neither races nor missing waits.
"""

import shutil

import pytest
import stand_in

pytestmark = pytest.mark.skipif(not shutil.which("cargo"), reason="needs cargo for the emulator")

#: Processes that share the kernels of `designs`.
PARTS = 4


def emulate(call: str) -> str:
    """The output of a function of emulation.py in a process whose launches the CPU executes."""
    return stand_in.run(f"import stand_in.emulated, emulation\nemulation.{call}", emulated=True)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_design(part):
    assert int(emulate(f"designs({part}, {PARTS})")) > 100


@pytest.mark.parametrize("group", ["views", "shapes", "grouped", "epilogues", "elementwise"])
def test_operands(group):
    emulate(f"{group}()")


@pytest.mark.parametrize("name, message", [
    ("out_of_bounds", "x"),
    ("misaligned", "x"),
    ("hangs", "x"),
])
def test_mistakes_are_reported(name, message):
    assert message in emulate(f"mistake({name!r})")
