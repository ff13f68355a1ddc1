"""Switches the integration on and off through Inductor's extension points."""

import functools

from cutlass_api._core import __version__
from cutlass_api.inductor import Options, _torch
from cutlass_api.inductor._fusion import ProductPass
from cutlass_api.inductor._handler import make_choices
from cutlass_api.inductor._options import handler_in_force
from cutlass_api.inductor._torch import config


def enable(options: Options) -> None:
    """Registers the handler and the pass, in place of those of an earlier call."""
    disable()
    _torch.set_choices(
        functools.partial(
            make_choices, options=options, version=__version__, base=config.inductor_choices_class
        )
    )
    earlier = config.post_grad_custom_post_pass
    config.post_grad_custom_post_pass = ProductPass(options, __version__, earlier)


def disable() -> None:
    """Restores what was configured before."""
    if isinstance(config.post_grad_custom_post_pass, ProductPass):
        config.post_grad_custom_post_pass = config.post_grad_custom_post_pass.replaced
    factory = config.inductor_choices_class
    if getattr(factory, "func", None) is make_choices:
        factory = config.inductor_choices_class = factory.keywords["base"]
    if handler_in_force() is not None:
        _torch.set_choices(factory)
