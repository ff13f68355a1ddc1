"""The layer of a mixture of experts."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from cutlass_api._dtypes import FLOATS
from cutlass_api.fusion._functions import ACTIVATIONS
from cutlass_api.nn import _stacks
from cutlass_api.nn._experts import Gate, Matrices, experts
from cutlass_api.nn._fields import bits_of, in_order, keeping, restore
from cutlass_api.nn._stacks import Stack
from cutlass_api.ops import _epilogues
from cutlass_api.ops._evaluate import evaluate
from cutlass_api.weights import Weight, stack
from cutlass_api.weights._formats import Fields, names

Self = TypeVar("Self", bound="Experts")
Activation = Callable[[Tensor], Tensor]


class Experts(torch.nn.Module):
    """The experts of one layer of a mixture: the feed-forward networks, without the router.

    With a router's scores, a layer of 8 experts of which each token takes 2 is::

        up = torch.nn.Parameter(torch.randn(8, 2 * 768, 2048) * 0.02)  # gate, then up
        down = torch.nn.Parameter(torch.randn(8, 2048, 768) * 0.02)
        layer = cutlass_api.nn.Experts(up, down)

        weights, index = scores.softmax(-1).topk(2)  # scores: (tokens, 8)
        out = layer(hidden_states, index, weights)  # (tokens, 2048)

    - ``up``: (experts, N, K): the layers of gate and up, one after the other, N = 2 * inner; or of
      experts without a gate, N = inner. ``down``: (experts, K, inner). As the weights of
      ``torch.nn.Linear``, with a dimension of experts in front; in float16, bfloat16, float32 or
      float64, both alike. Parameters stay the same objects. Either may be quantized: a stack of
      weights of any format of :mod:`cutlass_api.weights`, which is repacked, or a sequence of
      weights, one an expert, which are copied into a stack.
    - ``up_bias``, ``down_bias``: (experts, N) and (experts, K), or None.
    - ``activation``: the name of one of :mod:`cutlass_api.fusion`, for activation(gate) * up, or
      activation(up) without a gate; an expression of ``gate`` and ``up`` in the language of
      epilogues, as "silu(gate) * clamp(up, -7, 7)"; or a function of the product (rows, N) that
      returns (rows, inner).
    - ``interleaved``: whether rows of gate and up alternate, gate first, as those of gpt-oss.
    - ``transposed``: whether the tensors are (experts, K, N) and (experts, inner, K). Those of
      quantized weights never are.
    - ``activations``: as of :class:`Linear`. None: quantized weights multiply float16 or bfloat16.
      "fp8": the input of each :class:`cutlass_api.weights.Float8` is quantized in each call, and
      may be float32.

    The tensors have the names of transformers' models: ``gate_up_proj``, or ``up_proj`` if
    N = inner, and ``down_proj``; of biases, with ``_bias`` behind. Fields of quantized weights are
    buffers, as ``gate_up_proj_values`` and ``gate_up_proj_scales``, which keep their dtypes in
    ``half()``, ``to(dtype)`` and the like. They have no gradients; all else has.
    ``load_state_dict`` takes values of 4 bits in either order, and keeps that of the layer.

    Raises TypeError for operands that are no tensors, and ValueError for shapes, dtypes, formats
    and activations that do not fit.
    """

    def __init__(
        self,
        up: Tensor | Weight | Sequence[Weight],
        down: Tensor | Weight | Sequence[Weight],
        up_bias: Tensor | None = None,
        down_bias: Tensor | None = None,
        activation: str | Activation = "silu",
        *,
        interleaved: bool = False,
        transposed: bool = False,
        activations: str | None = None,
    ) -> None:
        super().__init__()
        self.interleaved, self.transposed = interleaved, transposed
        pairs = {"up": _checked("up", up), "down": _checked("down", down)}
        try:
            _stacks.check(activations, *pairs.values())
        except ValueError as error:
            raise ValueError(f"Experts: {error}") from None
        self.activations = activations
        shapes = {key: self._shape_of(weight) for key, weight in pairs.items()}
        (count, n, self.hidden_size), (_, _, inner) = shapes["up"], shapes["down"]
        _check_shapes(shapes["up"], shapes["down"])
        #: The extents: of experts, of an input's row, and of a row between up and down.
        self.num_experts, self.intermediate_size = count, inner
        self._names = {"up": "up_proj" if n == inner else "gate_up_proj", "down": "down_proj"}
        #: The formats of quantized weights by the name of the layer. None: a plain tensor.
        self.formats: dict[str, str | None] = {}
        for key, bias in (("up", up_bias), ("down", down_bias)):
            name, weight = self._names[key], pairs[key]
            self.formats[name] = type(weight).__name__ if isinstance(weight, Weight) else None
            if isinstance(weight, Weight):
                for field, tensor in weight.repack().tensors().items():
                    self.register_buffer(f"{name}_{field}", tensor)
            else:
                self.register_parameter(name, _parameter(weight))
            self.register_parameter(f"{name}_bias", _bias(f"{key}_bias", bias, shapes[key]))
        _check_activation(activation, n, inner, interleaved)
        self.activation = activation

    def _shape_of(self, weight: Tensor | Weight) -> tuple[int, int, int]:
        """(experts, N, K)."""
        count, n, k = weight.shape
        return (count, k, n) if self.transposed and isinstance(weight, Tensor) else (count, n, k)

    def _matrices(self, name: str) -> Matrices:
        """What the product takes."""
        form = self.formats[name]
        if form is None:
            weight: Tensor = self._parameters[name]
            return weight if self.transposed else weight.mT
        values, scales, *others = (self._buffers.get(f"{name}_{each}") for each in Fields._fields)
        assert values is not None and scales is not None
        activations = _stacks.of_format(form, self.activations)
        return Stack(Fields(values, scales, *others), form, activations)

    def stacks(self) -> dict[str, Any]:
        """The quantized weights, by the names of the tensors that they replace."""
        return {name: self._operand(name) for name, form in self.formats.items() if form}

    @property
    def up(self) -> Any:
        """The layers of gate and up: the parameter, or the stack of weights."""
        return self._operand(self._names["up"])

    @property
    def down(self) -> Any:
        """The layers of down: the parameter, or the stack of weights."""
        return self._operand(self._names["down"])

    def biases(self) -> tuple[torch.nn.Parameter | None, torch.nn.Parameter | None]:
        """Those of up and of down."""
        up, down = (self._parameters[f"{name}_bias"] for name in self._names.values())
        return up, down

    def extents(self) -> tuple[int, int, int]:
        """(experts, N, K) of up."""
        return self._shape_of(self.up)

    def _operand(self, name: str) -> Any:
        weight = self._matrices(name)
        return weight.weight() if isinstance(weight, Stack) else self._parameters[name]

    def forward(self, hidden_states: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """The sum over a token's experts of weight * down(activation(up(token))).

        - ``hidden_states``: (..., K). Dimensions in front are those of tokens.
        - ``index``: (tokens, top_k), or (..., top_k): the experts of each token, integers. Slots
          with the number of experts, or above, count nothing.
        - ``weights``: of the shape of ``index``, the factor of each.

        The result has the shape and the dtype of ``hidden_states``. Sums over experts are float32,
        in order: results repeat bit for bit. The host reads no index from a GPU: CUDA graphs can
        capture the call.

        Raises ValueError for other shapes, for an index that is no integer, and, on the CPU, for a
        negative one.
        """
        tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
        self._check(hidden_states, index, weights, tokens.shape[0])
        up, down = self._names.values()
        top_k = index.shape[-1]
        out = experts(
            tokens,
            index.reshape(-1, top_k),
            weights.reshape(-1, top_k),
            up=(self._matrices(up), self._parameters[f"{up}_bias"]),
            down=(self._matrices(down), self._parameters[f"{down}_bias"]),
            activate=self._activate(),
        )
        return out.reshape(*hidden_states.shape[:-1], out.shape[-1])

    def _activate(self) -> Activation | Gate:
        activation = self.activation
        if not isinstance(activation, str):
            return activation
        if "gate_up_proj" in self.formats:
            return Gate(activation, self.interleaved)
        source = f"def epilogue(accum): D = {activation}(accum); return D"
        return lambda rows: evaluate(source, rows, ())

    def _check(self, hidden_states: Tensor, index: Tensor, weights: Tensor, tokens: Any) -> None:
        if hidden_states.shape[-1] != self.hidden_size:
            raise ValueError(
                f"Experts: hidden_states has shape {list(hidden_states.shape)}; pass "
                f"(..., {self.hidden_size})"
            )
        if index.is_floating_point() or index.is_complex() or index.dtype is torch.bool:
            raise ValueError(f"Experts: index is {index.dtype}; pass torch.int64 or torch.int32")
        if index.shape != weights.shape or index.dim() < 2:
            raise ValueError(
                f"Experts: index has shape {list(index.shape)} and weights {list(weights.shape)}; "
                "pass (tokens, top_k) for both"
            )
        if index.shape[:-1].numel() != tokens:
            raise ValueError(
                f"Experts: index has shape {list(index.shape)}, and hidden_states "
                f"{list(hidden_states.shape)} has {tokens} tokens; pass a row of index for each"
            )

    def extra_repr(self) -> str:
        """The sizes, the activation and the formats."""
        parts = [
            f"{self.num_experts} experts",
            f"hidden_size={self.hidden_size}",
            f"intermediate_size={self.intermediate_size}",
        ]
        if not isinstance(self.activation, torch.nn.Module):
            parts.append(f"activation={self.activation}")
        has_gate = "gate_up_proj" in self.formats
        parts.append(
            ("interleaved gate" if self.interleaved else "gate") if has_gate else "no gate"
        )
        has_bias = any(self._parameters[f"{name}_bias"] is not None for name in self.formats)
        parts.append(f"bias={has_bias}")
        parts += [f"{name}={self._described(name)}" for name in self.formats]
        if self.activations is not None:
            parts.append(f"activations={self.activations}")
        return ", ".join(parts)

    def _described(self, name: str) -> str:
        weight = self._operand(name)
        if isinstance(weight, Weight):
            return f"{self.formats[name]}, a scale for each {weight.format.scales.name()}"
        return str(weight.dtype).removeprefix("torch.")

    def _fields(self) -> list[str]:
        """The buffers that are fields of quantized weights."""
        starts = tuple(f"{name}_" for name, form in self.formats.items() if form is not None)
        return [name for name in self._buffers if name.startswith(starts)] if starts else []

    def _apply(self: Self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """As ``torch.nn.Module``, but the fields of quantized weights keep their dtypes."""
        fields = [self._buffers[name] for name in self._fields()]
        super()._apply(keeping(fn, fields, "Experts: the fields of quantized weights"), recurse)
        return self

    def __getstate__(self) -> dict[str, Any]:
        buffers, dtypes = bits_of(self._buffers)
        return {**vars(self), "_buffers": buffers, "_dtypes": dtypes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        dtypes = state.pop("_dtypes")
        super().__setstate__(state)
        restore(self._buffers, dtypes)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *others: Any, **options: Any
    ) -> None:
        """As ``torch.nn.Module``, but fields of other dtypes are errors: torch converts them by
        value, and reports success.
        """
        found, (*_, errors) = dict(state_dict), others
        for name in self._fields():
            own, tensor = self._buffers[name], found.get(prefix + name)
            if own is None or tensor is None:
                continue
            if name.endswith("_values"):
                weight = self._operand(name.removesuffix("_values"))
                tensor = found[prefix + name] = in_order(tensor, weight)
            if tensor.dtype is own.dtype:
                continue
            errors.append(f"{prefix}{name} is {tensor.dtype}, and the layer has {own.dtype}.")
            found[prefix + name] = own  # neither missing nor changed
        super()._load_from_state_dict(found, prefix, *others, **options)


def _checked(name: str, weight: Any) -> Tensor | Weight:
    """A tensor of three dimensions, or a stack."""
    if isinstance(weight, Weight):
        if not weight.is_stack:
            raise ValueError(
                f"Experts: {name} is {weight!r}, one weight; pass a stack (experts, N, K), or a "
                "sequence with a weight for each expert"
            )
        return weight
    if isinstance(weight, Tensor):
        if weight.dim() != 3 or weight.dtype not in (torch.float64, *FLOATS):
            raise ValueError(
                f"Experts: {name} is {weight.dtype} {list(weight.shape)}; pass three dimensions in "
                f"{names(FLOATS)}, or a weight of cutlass_api.quantize for each expert"
            )
        return weight
    is_list = isinstance(weight, Sequence) and len(weight) > 0
    if not is_list or not all(isinstance(each, Weight) for each in weight):
        raise TypeError(
            f"Experts: {name} is {type(weight).__name__}; pass a tensor, a stack of weights, or a "
            "sequence with a weight of cutlass_api.weights for each expert"
        )
    try:
        return stack(weight)
    except ValueError as error:
        message = str(error).removeprefix("stack: ").replace("weights[", f"{name}[")
        raise ValueError(f"Experts: {message}") from None


def _check_shapes(up: tuple[int, int, int], down: tuple[int, int, int]) -> None:
    if up[0] != down[0]:
        raise ValueError(f"Experts: up has {up[0]} experts and down {down[0]}; pass equal numbers")
    if up[2] != down[1]:
        raise ValueError(
            f"Experts: up takes rows of {up[2]} and down returns {down[1]}; pass equal sizes, or "
            "transposed=True for (experts, K, N)"
        )


def _check_activation(activation: Any, n: int, inner: int, interleaved: bool) -> None:
    if not isinstance(activation, str):
        if not callable(activation):
            raise TypeError(f"Experts: activation is {activation!r}; pass a name or a function")
        if interleaved:
            raise ValueError(
                "Experts: interleaved=True is for an activation by name; let the function take the "
                "columns that alternate"
            )
        return
    if activation.isidentifier() and activation not in ACTIVATIONS:
        raise ValueError(
            f"Experts: activation is {activation!r}; pass a function, an expression of gate and "
            f"up, or one of {names(sorted(ACTIVATIONS))}"
        )
    if not activation.isidentifier():
        _check_expression(activation)
        if n == inner:
            raise ValueError(
                f"Experts: activation is {activation!r}, of gate and up, and up returns {n} "
                f"columns; pass {2 * inner}"
            )
    if n not in (inner, 2 * inner):
        raise ValueError(
            f"Experts: up returns {n} columns and down takes {inner}; pass {2 * inner} with a "
            f"gate, {inner} without"
        )
    if interleaved and n == inner:
        raise ValueError("Experts: interleaved=True needs a gate, and up has no columns of one")


def _check_expression(activation: str) -> None:
    one = torch.zeros(1)
    try:
        evaluate(_epilogues.gated(activation), one, [one])
    except (SyntaxError, TypeError, ValueError) as error:
        raise ValueError(f"Experts: activation is {activation!r}: {error}") from None


def _parameter(weight: Tensor) -> torch.nn.Parameter:
    return weight if isinstance(weight, torch.nn.Parameter) else torch.nn.Parameter(weight)


def _bias(name: str, bias: Any, shape: tuple[int, int, int]) -> torch.nn.Parameter | None:
    if bias is None:
        return None
    if not isinstance(bias, Tensor):
        raise TypeError(f"Experts: {name} is {type(bias).__name__}; pass a tensor, or None")
    if tuple(bias.shape) != shape[:2] or not bias.is_floating_point():
        raise ValueError(
            f"Experts: {name} is {bias.dtype} {list(bias.shape)}; pass {list(shape[:2])} in "
            f"{names(FLOATS)}"
        )
    return _parameter(bias)
