"""Switches the integration on and off through Inductor's extension points."""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch._inductor import choices as inductor_choices
from torch._inductor import config
from torch._inductor.virtualized import V

from cutlass_api._core import __version__
from cutlass_api.inductor._fusion import ProductPass
from cutlass_api.inductor._handler import make_choices

#: The key of our handler among those registered with Inductor (PyTorch 2.15).
_KEY = "cutlass_api"


@dataclass(frozen=True)
class Options:
    """candidates: kernels that Inductor times for each product. fuse: whether pointwise operations
    behind a product are offered as fused epilogues."""

    candidates: int = 6
    fuse: bool = True


@dataclass
class _State:
    """What `disable` restores."""

    options: Options
    factory: Any
    post_pass: Any


_state: _State | None = None


def is_enabled() -> Options | None:
    """The options in force, or None."""
    return _state.options if _state else None


def enable(*, candidates: int = 6, fuse: bool = True) -> None:
    """Offers our kernels to Inductor's autotuner, for functions that compile from now on.

    candidates: how many kernels Inductor times for each product, those that rank first for its
    shape. fuse: whether the pointwise operations behind a product (bias, activation, residual,
    another product, casts, scale) are also timed as one fused kernel.

    A second call replaces the options. Inductor keeps its handler of choices, and from PyTorch 2.12
    on its configuration, per thread: call `enable` in the thread that compiles. A graph pass or a
    class of choices that is already configured stays in force.

    Raises ValueError if candidates is less than 1, RuntimeError for an unsupported PyTorch.
    """
    global _state
    if candidates < 1:
        raise ValueError(f"candidates is {candidates}; pass 1 or more")
    _check_version()
    disable()
    options = Options(candidates, fuse)
    factory, post_pass = config.inductor_choices_class, config.post_grad_custom_post_pass
    # Version and options enter Inductor's cache keys: a partial is pickled by value (PyTorch 2.11),
    # the handler has a uuid (2.12 on), and so has the pass.
    identity = (__version__, candidates, fuse)
    ours = functools.partial(make_choices, candidates=candidates, identity=identity)
    register = getattr(inductor_choices, "register_inductor_choices", None)
    if register is not None:
        register(_KEY, ours)
    else:
        config.inductor_choices_class = functools.partial(ours, base=factory)
        V.set_choices_handler(config.inductor_choices_class())
    config.post_grad_custom_post_pass = ProductPass(fuse, identity, post_pass)
    _state = _State(options, factory, post_pass)


def disable() -> None:
    """Withdraws our kernels from functions that compile from now on. Compiled code stays."""
    global _state
    if _state is None:
        return
    unregister = getattr(inductor_choices, "unregister_inductor_choices", None)
    if unregister is not None:
        unregister(_KEY)
    else:
        config.inductor_choices_class = _state.factory
        V.set_choices_handler(
            _state.factory() if _state.factory else inductor_choices.InductorChoices()
        )
    config.post_grad_custom_post_pass = _state.post_pass
    _state = None


def _check_version() -> None:
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    if (major, minor) < (2, 11):
        raise RuntimeError(
            f"cutlass_api.inductor needs PyTorch 2.11 or later, and this is {torch.__version__}: "
            "install a newer PyTorch, or call cutlass_api.matmul and torch.ops.cutlass_api"
        )
