"""Switches the integration on and off through Inductor's extension points."""

import functools
from typing import Any

import torch
from torch._inductor import choices as inductor_choices
from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.virtualized import V

from cutlass_api._core import __version__
from cutlass_api.inductor._fusion import ProductPass
from cutlass_api.inductor._handler import make_choices
from cutlass_api.inductor._options import Options, handler_in_force, options_in_force


def is_enabled() -> Options | None:
    """The options with which the calling thread offers our kernels; None if it offers none."""
    return options_in_force()


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
    if candidates < 1:
        raise ValueError(f"candidates is {candidates}; pass 1 or more")
    _check_version()
    disable()
    options = Options(candidates, fuse)
    # Version and options enter Inductor's cache keys: a partial is pickled by value (PyTorch 2.11),
    # the handler has a uuid (2.12 on), and so has the pass.
    config.inductor_choices_class = functools.partial(
        make_choices, options=options, version=__version__, base=config.inductor_choices_class
    )
    V.set_choices_handler(_configured_handler())
    earlier = config.post_grad_custom_post_pass
    config.post_grad_custom_post_pass = ProductPass(options, __version__, earlier)


def disable() -> None:
    """Withdraws our kernels from functions that the calling thread compiles from now on. Compiled
    code stays."""
    if isinstance(config.post_grad_custom_post_pass, ProductPass):
        config.post_grad_custom_post_pass = config.post_grad_custom_post_pass.replaced
    factory = config.inductor_choices_class
    if getattr(factory, "func", None) is make_choices:
        config.inductor_choices_class = factory.keywords["base"]
    if handler_in_force() is not None:
        V.set_choices_handler(_configured_handler())


def _configured_handler() -> InductorChoices:
    """A handler of choices as Inductor makes it for a thread without one."""
    factory = config.inductor_choices_class
    create: Any = getattr(inductor_choices, "create_inductor_choices", None)  # PyTorch 2.15
    if create is not None:
        return create(factory)
    return factory() if factory else InductorChoices()


def _check_version() -> None:
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    if (major, minor) < (2, 11):
        raise RuntimeError(
            f"cutlass_api.inductor needs PyTorch 2.11 or later, and this is {torch.__version__}: "
            "install a newer PyTorch, or call cutlass_api.matmul and torch.ops.cutlass_api"
        )
