"""The releases of PyTorch that the package works with.

Code, messages and tests read them here. Pages, workflows and pyproject.toml name them again, and a
test compares.
"""

import re
from typing import NamedTuple


class Releases(NamedTuple):
    """Consecutive releases. Prints as ``2.11 to 2.15``."""

    first: tuple[int, int]
    last: tuple[int, int]

    def __str__(self) -> str:
        return " to ".join(f"{major}.{minor}" for major, minor in self)

    def precedes(self, version: str) -> bool:
        """Whether a version, such as ``2.16.0a0+git1234``, is newer than all of them. So is a
        version that names no release."""
        release = _release(version)
        return release is None or release > self.last

    def follows(self, version: str) -> bool:
        """Whether a version is older than all of them."""
        release = _release(version)
        return release is not None and release < self.first

    def holds(self, version: str) -> bool:
        """Whether a version is one of them."""
        return not (self.precedes(version) or self.follows(version))


def _release(version: str) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None


#: Those whose Inductor `cutlass_api.inductor` extends.
INDUCTOR = Releases((2, 11), (2, 15))
#: Those whose NVGEMM backend imports ``cutlass_api``. Later ones take any ``cutlass`` for the CuTe
#: DSL.
NVGEMM = Releases((2, 11), (2, 13))
