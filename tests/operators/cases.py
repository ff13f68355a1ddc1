"""The operators under test, in the order of the guide's table."""

from operators import dense, eight_bits, fused

CASES = {case.name: case for group in (dense, fused, eight_bits) for case in group.CASES}
