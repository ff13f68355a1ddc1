"""Products of 16-bit floats and 8-bit weights by sm80 on a GPU. On compute capability 9.0, other
families rank first.
"""

import pytest
from support import mixed
from support.gpu_helpers import fail_with

pytestmark = pytest.mark.gpu

#: Tests that share the problems, which processes of pytest-xdist run side by side.
PARTS = 16


@pytest.mark.parametrize("part", range(PARTS))
def test_every_kernel_of_sm80(part):
    fail_with(mixed.failures("cuda", part=part, parts=PARTS))
