"""The integration into ``torch.compile``, for the tests that need it."""

from collections.abc import Iterator

import cutlass_api.inductor
import pytest


@pytest.fixture
def enabled() -> Iterator[None]:
    with cutlass_api.inductor.enabled():
        yield
