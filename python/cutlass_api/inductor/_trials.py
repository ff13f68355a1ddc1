"""The choice between an operator of ours and what it replaces, before the graph is lowered.

The operator is lowered in a graph of its own, where Inductor times its choices. What torch computes
faster stays in the graph as it is, and is lowered with its neighbours as without us.
"""

import logging
from typing import Any

import torch
from torch import fx

from cutlass_api.inductor import _candidates as ours
from cutlass_api.inductor import _lowering
from cutlass_api.inductor._nodes import value_of
from cutlass_api.inductor._torch import V, lower_alone

log = logging.getLogger(__name__)

#: The place among the alternatives of two products in which an epilogue is fused into one of them.
PARTLY = 1


class Trial:
    """A graph of a call of one of our operators. node: of this call in another graph. alone: the
    products among the operations that it replaces, if the others take no time."""

    def __init__(self, node: fx.Node, alone: fx.GraphModule | None = None) -> None:
        graph = fx.Graph()
        values: list[torch.Tensor] = []
        inputs: dict[fx.Node, fx.Node] = {}

        def placeholder(arg: fx.Node) -> fx.Node:
            if arg not in inputs:
                values.append(value_of(arg))
                inputs[arg] = graph.placeholder(f"x{len(inputs)}")
                inputs[arg].meta["val"] = values[-1]
            return inputs[arg]

        for arg in node.all_input_nodes:
            placeholder(arg)
        args, kwargs = (fx.node.map_arg(each, placeholder) for each in (node.args, node.kwargs))
        self._call = graph.call_function(node.target, args, kwargs)
        self._call.meta = {**node.meta, _lowering.ALONE: alone}
        graph.output(self._call)
        self._module = fx.GraphModule(torch.nn.Module(), graph)
        self._values = values

    def winner(self) -> Any:
        """The fastest choice; None if there is none."""
        try:
            with V.fake_mode:
                inputs = [
                    torch.empty_strided(
                        value.shape, value.stride(), dtype=value.dtype, device=value.device
                    )
                    for value in self._values
                ]
            lower_alone(self._module, inputs)
        except Exception:
            log.debug("no trial of %s", self._call.target, exc_info=True)
        return self._call.meta.get(ours.WINNER)


def is_partly(winner: Any) -> bool:
    """Whether the fastest of the choices of two products has the epilogue fused into one."""
    return isinstance(winner, _lowering.ReplacedCaller) and winner.at == PARTLY
