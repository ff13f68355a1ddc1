"""As emulation.py: products by weights of 4 bits."""

from support import codes
from support.emulation import finish


def check(shape: tuple[int, int, int], is_thorough: bool) -> None:
    """Some kernels of each case, in turn; if ``is_thorough``, every kernel of the first case."""
    failures = []
    for at, name in enumerate(codes.CASES):
        failures += codes.failures_of(name, shape, at, 1 if is_thorough and at == 0 else 12)
    finish(failures)
