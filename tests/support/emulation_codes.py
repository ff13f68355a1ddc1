"""As emulation.py: products by weights of 4 bits."""

from support import codes
from support.emulation import finish


def check(shape: tuple[int, int, int], is_thorough: bool) -> None:
    """Every sixth kernel; if ``is_thorough``, every kernel of the first case."""
    failures = []
    for at, name in enumerate(codes.CASES):
        failures += codes.failures_of(name, shape, 1 if is_thorough and at == 0 else 6)
    finish(failures)
