"""The operators under test, in the order of the guide's table."""

from operators import dense

CASES = {case.name: case for group in (dense,) for case in group.CASES}
