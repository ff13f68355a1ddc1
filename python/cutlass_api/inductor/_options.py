"""Whether the calling thread compiles with the integration, and with which options."""

from dataclasses import astuple
from typing import Any

from cutlass_api.inductor import Options, _torch


def handler_in_force() -> Any:
    """Our handler of choices, if the calling thread takes the choices of products from it."""
    handler = _torch.choices_handler()
    return handler if hasattr(handler, "cutlass_api_options") else None


def options_in_force() -> Options | None:
    """The options of our handler of choices and our graph pass, None unless the calling thread has
    both: Inductor keeps the handler per thread, and the pass per thread or per process."""
    options: Options | None = getattr(handler_in_force(), "cutlass_api_options", None)
    of_pass = getattr(_torch.config.post_grad_custom_post_pass, "cutlass_api_options", None)
    return options if options == of_pass else None


def identity(options: Options, version: str) -> tuple[Any, ...]:
    """What compiled graphs depend on: part of Inductor's cache keys. version: of the package."""
    return ("cutlass_api", version, *astuple(options))
