"""The functions of epilogues, from the core's table, and what torch computes for each."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from cutlass_api._core import epilogue_functions

#: By name, without their other spellings.
FUNCTIONS = {function.names[0]: function for function in epilogue_functions()}
#: Those that `linear` takes by name.
ACTIVATIONS = tuple(name for name, function in FUNCTIONS.items() if function.backward is not None)


@cache
def torch_function(name: str) -> Callable[..., Any] | None:
    """The function of torch that computes the same as one of the table; None if torch has none."""
    import torch

    function = FUNCTIONS[name]
    if not function.torch:
        return None
    found: Any = torch
    for part in function.torch.split("."):
        found = getattr(found, part)
    keywords = dict(function.torch_keywords)
    return partial(found, **keywords) if keywords else found


def compute(name: str, *values: Any, **options: Any) -> Any:
    """Calls the function of torch. Numbers become float32 tensors."""
    import torch

    function = torch_function(name)
    assert function is not None
    return function(
        *(v if isinstance(v, torch.Tensor) else torch.tensor(float(v)) for v in values), **options
    )
