"""Compiles a function once per setting with Inductor's cache, and prints which of them hit.

``python warm_cache.py SETTING...``: each setting is ``torch`` for torch alone, ``enabled`` for the
integration, or ``other`` for the integration of another version. The process imports `cutlass_api`
at the first setting that needs it.
"""

import sys

import torch
from torch._dynamo.utils import counters


def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w  # a call of ATEN: no C++ is compiled


def hits(setting: str) -> bool:
    """Whether the cache has code for the function, compiled with this setting."""
    if setting != "torch":
        import cutlass_api.inductor
        from cutlass_api.inductor import _integration

        version = "99.0" if setting == "other" else cutlass_api.__version__
        _integration.__version__ = version
        cutlass_api.inductor.enable()
    elif "cutlass_api" in sys.modules:
        sys.modules["cutlass_api"].inductor.disable()
    torch._dynamo.reset()
    counters.clear()
    torch.compile(function)(torch.ones(8, 16), torch.ones(16, 8))
    found = counters["inductor"]["fxgraph_cache_hit"]
    assert found + counters["inductor"]["fxgraph_cache_miss"] == 1, counters
    return bool(found)


if __name__ == "__main__":
    print(*(hits(setting) for setting in sys.argv[1:]))
