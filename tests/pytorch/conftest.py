"""Random values, and the integration into ``torch.compile``, for the tests that need it."""

from collections.abc import Iterator

import cutlass_api.inductor
import pytest
import torch


@pytest.fixture
def enabled() -> Iterator[None]:
    with cutlass_api.inductor.enabled():
        yield


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def dynamo() -> None:
    """Forgets code that other tests compiled."""
    torch._dynamo.reset()
