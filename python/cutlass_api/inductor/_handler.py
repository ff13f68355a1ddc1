"""Inductor's handler of choices, which offers our kernels for ``mm``, ``addmm``, ``bmm``,
``baddbmm`` and ``_int_mm``."""

import logging
from collections.abc import Callable
from typing import Any

import torch

from cutlass_api.arguments import EpilogueArguments, GemmArguments
from cutlass_api.inductor import Options
from cutlass_api.inductor import _candidates as ours
from cutlass_api.inductor._options import identity, options_in_force
from cutlass_api.inductor._timing import time_alike
from cutlass_api.inductor._torch import InductorChoices, V

log = logging.getLogger(__name__)

#: Inductor's names of the operations whose choices pass through its handler.
_PRODUCTS = ("mm", "bmm", "int_mm")
_SUMS = ("addmm", "baddbmm")


class Choices(InductorChoices):
    """Adds our kernels to the choices of a product. Other decisions are the parent's."""

    cutlass_api_options: Options
    #: Of the package: compiled graphs depend on it.
    cutlass_api_version: str
    #: The node whose choices were offered last, and whether they are timed by our timer.
    _node: Any = None
    _times_alike: bool = False

    def uuid(self) -> Any:
        """Part of Inductor's cache keys."""
        return identity(self.cutlass_api_options, self.cutlass_api_version)

    def get_template_configs(
        self, kernel_inputs: Any, templates: Any, op_name: str, *args: Any, **kwargs: Any
    ) -> list[Any]:
        """Inductor's choices for an operation, and ours."""
        choices = list(
            super().get_template_configs(kernel_inputs, templates, op_name, *args, **kwargs)
        )
        # Inductor may ask several times for one node: for ATEN, then for Triton.
        node = V.graph.current_node
        if node is not self._node:
            self._node, self._times_alike = node, False
            added = self._offered(kernel_inputs, op_name)
            self._times_alike = bool(added) and time_alike(choices + added)
            return choices + added
        if self._times_alike:
            time_alike(choices)
        return choices

    def _offered(self, kernel_inputs: Any, op_name: str) -> list[Any]:
        """Our choices; none for a product that our kernels do not describe (a dtype, a layout):
        such a product must still compile."""
        try:
            return self._ours(kernel_inputs, op_name)
        except Exception:
            log.debug("no kernels of ours for %s", op_name, exc_info=True)
            return []

    def _ours(self, kernel_inputs: Any, op_name: str) -> list[Any]:
        is_sum = op_name in _SUMS
        if not (is_sum or op_name in _PRODUCTS) or not ours.are_wanted():
            return []
        options = options_in_force()
        if options is None:
            return []
        if kernel_inputs.device_type != "cuda" or torch.version.hip is not None:
            return []
        nodes = kernel_inputs.nodes()
        layout = kernel_inputs.output_layout(flexible=False)
        if any(extent == 0 for node in nodes for extent in node.get_size()):
            return []

        def arguments(out: torch.Tensor, *inputs: torch.Tensor) -> GemmArguments:
            *added, a, b = inputs
            accumulator = ours.accumulator(a.dtype, b.dtype)
            epilogue = EpilogueArguments(ours.ADDMM, C=added[0], D=out) if is_sum else None
            return GemmArguments(a, b, out, accumulator_type=accumulator, epilogue=epilogue)

        names = ("alpha", "beta") if is_sum else ()
        scalars = {name: kernel_inputs.get_scalar(name) for name in names}
        choice = ours.ADDMM_CHOICE if is_sum else ours.GEMM
        return list(ours.callers(options.candidates, choice, nodes, layout, arguments, **scalars))


def make_choices(
    *, options: Options, version: str, base: Callable[[], InductorChoices] | None
) -> Choices:
    """The handler. base: the factory that was configured before, whose class is the parent."""
    parent = base() if base else InductorChoices()
    # (Choices, InductorChoices) is no valid order of bases.
    bases = (Choices,) if type(parent) is InductorChoices else (Choices, type(parent))
    handler: Choices = object.__new__(type("Choices", bases, {}))
    handler.__dict__.update(vars(parent))
    handler.cutlass_api_options, handler.cutlass_api_version = options, version
    return handler
