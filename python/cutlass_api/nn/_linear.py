"""The linear layer with a weight of ``cutlass_api.weights``."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor

from cutlass_api._dtypes import FLOATS, HALF
from cutlass_api.nn import _activations
from cutlass_api.nn._eager import Prepared
from cutlass_api.nn._fields import bits_of, in_order, keeping, restore
from cutlass_api.ops import OPS
from cutlass_api.weights import Weight, _adjacent
from cutlass_api.weights._classes import CLASSES
from cutlass_api.weights._formats import Fields, names

Self = TypeVar("Self", bound="Linear")
#: The buffers of a quantized weight.
FIELDS = (*Fields._fields, "permutation")


class Linear(torch.nn.Module):
    """``torch.nn.Linear`` with a weight of any format of :mod:`cutlass_api.weights`.

    - ``weight``: a :class:`cutlass_api.weights.Weight` (N, K), which is repacked, or a plain matrix
      in float16 or bfloat16.
    - ``bias``: (N,), or None.
    - ``activations``: None, "fp8" or "int8". The input is quantized in each call, by one kernel,
      and multiplied in 8 bits, by one more. "fp8" takes :class:`cutlass_api.weights.Float8`: the
      input has a scale for each 128 elements of a row if scales of the weight vary along K, else
      one for each row. "int8" takes :class:`cutlass_api.weights.Int8` with a float32 scale for each
      row; so has the input.

    The result of an input (*, K) is input @ weight.T + bias, in the dtype of the input, or that of
    autocast. The input is float16 or bfloat16, with ``activations`` also float32.

    The fields of the weight are buffers: ``values``, ``scales``, ``zeros``, ``factor`` and
    ``permutation``; of a plain matrix, ``weight``. ``half()``, ``to(dtype)`` and the like convert a
    plain matrix and the bias alone. ``load_state_dict`` takes ``values`` in either order, and keeps
    that of the layer; it raises RuntimeError for tensors of other dtypes, which torch would
    convert. Input and bias have gradients, the weight has none. With ``activations``, the gradient
    of the input is that of the input without quantization.

    Raises ValueError for a weight, a bias or ``activations`` that are not served, and TypeError for
    a weight or a bias that are no tensors.
    """

    values: Tensor
    scales: Tensor
    bias: torch.nn.Parameter | None

    def __init__(
        self,
        weight: Weight | Tensor,
        bias: Tensor | None = None,
        activations: str | None = None,
    ) -> None:
        super().__init__()
        self._prepared = Prepared()
        if activations is not None:
            _activations.check(activations, weight)
        self.activations = activations
        #: The class of the weight, by name. None: a plain matrix.
        self.format: str | None = None
        tensors: Mapping[str, Tensor]
        if isinstance(weight, Weight):
            self.format = type(weight).__name__
            tensors = weight.repack().tensors()
        else:
            tensors = {"weight": _plain(weight)}
        # A property has the name of the plain matrix.
        for name in FIELDS if self.format else tensors:
            self._buffers[name] = tensors.get(name)
        if bias is not None:
            bias = _parameter(bias, self.weight)
        self.register_parameter("bias", bias)

    @property
    def weight(self) -> Any:
        """The weight: an object of ``cutlass_api.weights`` whose fields are the buffers, or the
        plain matrix.
        """
        if self.format is None:
            return self._buffers["weight"]
        fields = ((name, self._buffers[name]) for name in FIELDS)
        tensors = {name: x for name, x in fields if x is not None}
        return CLASSES[self.format].from_tensors(tensors)

    @property
    def in_features(self) -> int:
        """K."""
        return int(self.weight.shape[1])

    @property
    def out_features(self) -> int:
        """N."""
        return int(self.weight.shape[0])

    def repack(self: Self) -> Self:
        """Puts ``values`` of 4 bits in the order that kernels read; returns the layer."""
        return self._with(Weight.repack)

    def unpack(self: Self) -> Self:
        """Puts ``values`` of 4 bits in the order of storage; returns the layer."""
        return self._with(Weight.unpack)

    def _with(self: Self, order: Callable[[Weight], Weight]) -> Self:
        if self.format is not None:
            self._buffers["values"] = order(self.weight).values
            self._prepared.clear()
        return self

    def forward(self, input: Tensor) -> Tensor:
        """input @ weight.T + bias."""
        tensors = self._buffers
        if not torch.compiler.is_compiling():
            out = self._prepared.multiply(self, input)
            if out is not None:
                return out
        if self.format is None:
            return OPS.linear(input, tensors["weight"], self.bias, None)
        if self.activations is None:
            return OPS.quantized_linear(
                *(input, tensors["values"], tensors["scales"], tensors["zeros"]),
                *(tensors["factor"], tensors["permutation"], self.format, self.bias),
            )
        return _activations.linear(
            *(input, tensors["values"], tensors["scales"], tensors["permutation"]),
            *(self.bias, self.activations),
        )

    def extra_repr(self) -> str:
        """The sizes, the format and the activations."""
        weight = self.weight
        n, k = weight.shape
        parts = [f"in_features={k}", f"out_features={n}", f"bias={self.bias is not None}"]
        if self.format is None:
            parts.append(f"weight={_short(weight.dtype)}")
        else:
            shared = weight.format.scales.name()
            parts.append(
                f"weight={self.format}, {_short(weight.scales.dtype)} scale for each {shared}"
            )
            if weight.format.packing > 1 and not weight.is_repacked:
                parts.append("not repacked")
        if self.activations is not None:
            parts.append(f"activations={self.activations}")
        return ", ".join(parts)

    def _apply(self: Self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """As ``torch.nn.Module``, but the fields of a quantized weight keep their dtypes."""
        fields = [] if self.format is None else [self._buffers[name] for name in FIELDS]
        owner = f"Linear: the fields of {self.format}"
        self._prepared.clear()
        super()._apply(keeping(fn, fields, owner), recurse)
        return self

    def _replicate_for_data_parallel(self: Self) -> Self:
        # Replicas run in threads, on a GPU each.
        replica: Self = super()._replicate_for_data_parallel()
        replica._prepared = Prepared()
        return replica

    def __deepcopy__(self: Self, memo: dict[int, Any]) -> Self:
        new = memo[id(self)] = type(self).__new__(type(self))
        for field in self._buffers.values():
            if field is not None and _adjacent.is_part(field):
                memo.setdefault(id(field), field.clone())  # torch copies all of the storage
        new.__dict__.update(deepcopy(self.__dict__, memo))
        return new

    def __getstate__(self) -> dict[str, Any]:
        parts = self._parts()
        parameters = dict(self._parameters)
        if self.bias is not None and "bias" in parts:
            parameters["bias"] = torch.nn.Parameter(parts.pop("bias"), self.bias.requires_grad)
        buffers, dtypes = bits_of({**self._buffers, **parts})
        changed = {"_parameters": parameters, "_buffers": buffers}
        return {**vars(self), **changed, "_dtypes": dtypes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        dtypes = state.pop("_dtypes")
        super().__setstate__(state)
        restore(self._buffers, dtypes)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not keep_vars:
            destination.update((prefix + name, x) for name, x in self._parts().items())

    def _parts(self) -> dict[str, Tensor]:
        """What lies side by side with other layers (`_beside`), in storages of their own."""
        named = {**self._buffers, "bias": self.bias}
        parts = {name: x for name, x in named.items() if x is not None and _adjacent.is_part(x)}
        return {name: _adjacent.alone(x) for name, x in parts.items()}

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *others: Any, **options: Any
    ) -> None:
        """As ``torch.nn.Module``, but tensors of other dtypes are errors: torch converts them by
        value, and reports success.
        """
        found = dict(state_dict)
        *_, errors = others
        for name, own in self._buffers.items():
            tensor = found.get(prefix + name)
            if own is None or not isinstance(tensor, Tensor):
                continue
            if name == "values":
                tensor = in_order(tensor, self.weight)
            is_converted = name == "weight" and tensor.dtype in FLOATS
            if tensor.dtype is own.dtype or is_converted:
                found[prefix + name] = tensor
                continue
            errors.append(
                f"{prefix}{name} is {tensor.dtype}, and the layer has {own.dtype}: it is no "
                f"{self.format or 'plain matrix'}, or of another scheme."
            )
            found[prefix + name] = own  # neither missing nor changed
        super()._load_from_state_dict(found, prefix, *others, **options)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _plain(weight: Any) -> Tensor:
    """A plain matrix, without its gradient."""
    if not isinstance(weight, Tensor):
        raise TypeError(
            f"Linear: weight is {type(weight).__name__}; pass a weight of cutlass_api.weights, or "
            "a matrix"
        )
    if weight.dim() != 2 or weight.dtype not in HALF:
        raise ValueError(
            f"Linear: weight is {weight.dtype} {list(weight.shape)}; pass a matrix in "
            f"{names(HALF)}, or a weight of cutlass_api.weights"
        )
    return weight.detach()


def _parameter(bias: Any, weight: Any) -> torch.nn.Parameter:
    """The bias of a weight (N, K) as a parameter."""
    if not isinstance(bias, Tensor):
        raise TypeError(f"Linear: bias is {type(bias).__name__}; pass a tensor, or None")
    if bias.shape != weight.shape[:1] or not bias.is_floating_point():
        raise ValueError(
            f"Linear: bias is {bias.dtype} {list(bias.shape)}; pass {list(weight.shape[:1])} in "
            f"{names(FLOATS)}"
        )
    if bias.device != weight.device:
        raise ValueError(
            f"Linear: bias is on {bias.device} and the weight on {weight.device}; move one"
        )
    return bias if isinstance(bias, torch.nn.Parameter) else torch.nn.Parameter(bias)
