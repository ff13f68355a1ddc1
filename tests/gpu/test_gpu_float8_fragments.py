"""The operands of `mma.sync` of float8 in registers, on a GPU that has the instruction, if only in
PTX.
"""

import pytest
import torch
from support import float8_fragments

pytestmark = pytest.mark.gpu


def test_fragments_of_float8():
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs compute capability 8.9 or later")
    assert float8_fragments.failures("cuda") == []
