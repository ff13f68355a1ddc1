"""The options of the integration, and whether the calling thread compiles with them."""

from dataclasses import astuple, dataclass
from typing import Any

from torch._inductor import config
from torch._inductor.virtualized import V


@dataclass(frozen=True)
class Options:
    """candidates: kernels that Inductor times for each product. fuse: whether pointwise operations
    behind a product are offered as fused epilogues."""

    candidates: int = 6
    fuse: bool = True


def handler_in_force() -> Any:
    """Our handler of choices, if the calling thread takes the choices of products from it."""
    # PyTorch 2.15 can compose several handlers, of which one owns the method.
    handler = getattr(V.choices.get_template_configs, "__self__", None)
    return handler if hasattr(handler, "cutlass_api_options") else None


def options_in_force() -> Options | None:
    """The options of our handler of choices and our graph pass, None unless the calling thread has
    both: Inductor keeps the handler per thread, and the pass per thread or per process."""
    options: Options | None = getattr(handler_in_force(), "cutlass_api_options", None)
    of_pass = getattr(config.post_grad_custom_post_pass, "cutlass_api_options", None)
    return options if options == of_pass else None


def identity(options: Options, version: str) -> tuple[Any, ...]:
    """What compiled graphs depend on: part of Inductor's cache keys. version: of the package."""
    return ("cutlass_api", version, *astuple(options))
