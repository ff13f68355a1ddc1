"""The operators under test, in the order of the guide's table."""

from operators import dense, eight_bits, fused, quantized_linear

GROUPS = (dense, fused, eight_bits, quantized_linear)
CASES = {case.name: case for group in GROUPS for case in group.CASES}
