"""The operators under test, in the order of the guide's table."""

from operators import dense, eight_bits, fused, quantized_grouped, quantized_linear

GROUPS = (dense, fused, eight_bits, quantized_linear, quantized_grouped)
CASES = {case.name: case for group in GROUPS for case in group.CASES}
