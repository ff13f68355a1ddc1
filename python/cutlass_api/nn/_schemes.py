"""The schemes of ``convert``: a record each."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cutlass_api import quantize
from cutlass_api.nn._linear import Linear
from cutlass_api.weights import Weight


@dataclass(frozen=True)
class Scheme:
    """A way to quantize a linear layer.

    ``quantize``: returns the weight of a matrix (N, K). ``activations``: as of :class:`Linear`.
    ``has_groups``: whether ``quantize`` takes ``group=``.
    """

    name: str
    quantize: Callable[..., Weight]
    activations: str | None = None
    has_groups: bool = False

    def with_group(self, group: int | None) -> "Scheme":
        """The scheme with a scale for each ``group`` elements of a row; None: as it is.

        Raises ValueError for a group that it does not serve.
        """
        if group is None:
            return self
        if not self.has_groups:
            grouped = ", ".join(repr(each.name) for each in SCHEMES.values() if each.has_groups)
            raise ValueError(
                f"group is {group}, and the scheme {self.name!r} takes none; omit group, or pass "
                f"one of {grouped}"
            )
        quantizer = partial(self.quantize, group=group)
        quantizer(torch.empty(0, 128, device="meta"))  # refuses other groups
        return Scheme(self.name, quantizer, self.activations)

    def layer(self, matrix: Tensor, bias: Tensor | None) -> Linear:
        """The layer that replaces one with a matrix (N, K)."""
        return Linear(self.quantize(matrix), bias, self.activations)

    def refusal(self, shape: Any, dtype: torch.dtype) -> str | None:
        """Why the scheme cannot replace a layer with such a matrix, whose input has its dtype; None
        if it can.
        """
        reason = self._error(shape, dtype)
        if reason and dtype is not torch.bfloat16 and self._error(shape, torch.bfloat16) is None:
            return f"is {dtype}; call model.bfloat16() before"
        return reason

    def _error(self, shape: Any, dtype: torch.dtype) -> str | None:
        try:
            layer = self.layer(torch.empty(shape, dtype=dtype, device="meta"), None)
            with torch.no_grad():
                layer(torch.empty(1, shape[1], dtype=dtype, device="meta"))
        except ValueError as error:
            return str(error).partition(": ")[2]
        return None


SCHEMES = {
    each.name: each
    for each in (
        Scheme("fp8", quantize.fp8, "fp8"),
        Scheme("int8", quantize.int8, "int8"),
        Scheme("fp8-block", partial(quantize.fp8, block=(128, 128)), "fp8"),
        Scheme("fp8-weight", quantize.fp8),
        Scheme("int8-weight", quantize.int8, has_groups=True),
        Scheme("int4", quantize.int4, has_groups=True),
        Scheme("uint4", quantize.uint4, has_groups=True),
        Scheme("mxfp4", quantize.mxfp4),
        Scheme("nvfp4", quantize.nvfp4),
    )
}


def scheme_of(name: Any, group: int | None) -> Scheme:
    """The scheme of a name. Raises ValueError for others, and for groups it does not serve."""
    if not isinstance(name, str) or name not in SCHEMES:
        raise ValueError(f"scheme is {name!r}; pass one of {', '.join(map(repr, SCHEMES))}")
    return SCHEMES[name].with_group(group)
