"""A Triton kernel with three tensors, to time its launch. Triton needs the source in a file."""

import triton
import triton.language as tl


# Triton interprets annotations, so the tensors have none.
@triton.jit
def add(a, b, out, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Adds BLOCK elements in one CTA."""
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(a + at) + tl.load(b + at))
