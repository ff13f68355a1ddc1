"""Compiled kernels."""

import pytest
from support.gpu_helpers import Artifacts, say
from support.problems import WORST


@pytest.fixture(scope="session")
def artifacts(request) -> Artifacts:
    """The compiled kernels of this test run. Prints the largest errors at the end."""
    yield Artifacts()
    lines = [
        f"{ratio:6.3f}  {family:5} {types:40} {where}"
        for (family, types), (ratio, where) in sorted(WORST.items(), key=lambda item: -item[1][0])
    ]
    if lines:
        say(
            request,
            "worst error by family and types, as a multiple of torch's own:\n" + "\n".join(lines),
        )
