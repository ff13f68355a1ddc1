"""The tensors of a model that a checkpoint fills."""

import warnings
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from cutlass_api._dtypes import FLOATS
from cutlass_api.nn._checkpoints import Header, listed
from cutlass_api.nn._layers import COMPILED, extents, is_conv1d, original, unfit
from cutlass_api.nn._linear import Linear
from cutlass_api.nn._mixture import Experts
from cutlass_api.nn._names import INITIALIZED
from cutlass_api.weights import Weight
from cutlass_api.weights._adjacent import identity
from cutlass_api.weights._shards import is_dtensor


class Targets:
    """Parameters and persistent buffers by name. Those on ``meta`` go to ``device``."""

    def __init__(self, model: torch.nn.Module, device: torch.device) -> None:
        self.model, self.device = model, device
        #: A quantized weight is a matrix on meta.
        self.expected: dict[str, Tensor] = {}
        self._homes: dict[int, list[str]] = defaultdict(list)
        #: Names that have the same memory, and the name that was filled.
        self._names: dict[Any, list[str]] = defaultdict(list)
        self._filled: dict[Any, str] = {}
        #: Names of quantized weights, each with its device.
        self._quantized: dict[str, torch.device] = {}
        for name, module in model.named_modules(remove_duplicate=False):
            home = original(name)
            self._homes[id(module)].append(home)
            self._add(f"{home}." if home else "", module)

    def _add(self, dot: str, module: torch.nn.Module) -> None:
        tensors = {**module._parameters, **module._buffers}
        if isinstance(module, Linear) and module.format is not None:
            weight = module.weight
            self._quantized[f"{dot}weight"] = weight.device
            matrix = torch.empty(weight.shape, dtype=weight.dtype, device="meta")
            tensors = {"weight": matrix, **module._parameters}
        if isinstance(module, Experts):
            tensors = dict(module._parameters)
            for name, stack in module.stacks().items():
                self._quantized[dot + name] = stack.device
                tensors[name] = torch.empty(stack.shape, dtype=torch.bfloat16, device="meta")
        for name, tensor in tensors.items():
            if is_lazy(tensor):
                raise ValueError(
                    f"load: {dot}{name} is not initialized; call the model once before load"
                )
            if tensor is not None and name not in module._non_persistent_buffers_set:
                self.expected[dot + name] = tensor
                self._names[identity(tensor)].append(dot + name)

    def check_placed(self) -> None:
        """Warns if ``device`` has no effect: all of the model is elsewhere."""
        found = sorted({self.device_of(name).type for name in self.expected})
        if found and self.device.type not in found:
            warnings.warn(
                f"load: device is {str(self.device)!r}, where that goes which is on meta, and the "
                f"model is on {', '.join(found)}; call model.to({str(self.device)!r})",
                stacklevel=3,
            )

    def module(self, home: str) -> Any:
        """The module of a name, without that of ``torch.compile`` around it."""
        found = self.model.get_submodule(home)
        while COMPILED in found._modules:
            found = found.get_submodule(COMPILED)
        return found

    def owner(self, target: str) -> Any:
        return self.module(target.rpartition(".")[0])

    def device_of(self, target: str) -> torch.device:
        tensor = self.expected[target]
        device = self._quantized.get(target, tensor.device)
        return self.device if device.type == "meta" else device

    def problems(
        self, name: str, target: str, header: Header, is_value: bool, is_scaled: bool
    ) -> list[str]:
        """Why a tensor of the file is not a value of one of the model, or an operand of one.
        ``is_scaled``: whether scales of the target lie in another tensor.
        """
        tensor = self.expected[target]
        alike = {header.dtype, tensor.dtype} <= {*FLOATS, torch.float64}
        reason = None
        if target in self._quantized:
            reason = "is quantized already; load before you convert"
        elif is_dtensor(tensor):
            reason = "is a DTensor; load before you shard"
        elif is_value and header.shape != tuple(tensor.shape):
            reason = f"is {describe(tensor)}"
        elif is_scaled and header.dtype in (torch.float8_e4m3fn, torch.uint8):
            reason = None
        elif header.dtype != tensor.dtype and not alike:
            reason = f"is {describe(tensor)}"
            if header.dtype is torch.float8_e4m3fn:
                reason += ", and there is no scale beside it"
        return [] if reason is None else [f"{name} {header}: the model's {target} {reason}"]

    def refusal(self, home: str) -> str | None:
        """Why a module cannot be replaced by a quantized layer; None if it can."""
        module = self.module(home)
        if isinstance(module, Linear):
            return None
        if not home:
            return "is the model itself"
        if not isinstance(module, torch.nn.Linear) and not is_conv1d(module):
            return f"is a {type(module).__qualname__}"
        return unfit(module, self.module(home.rpartition(".")[0]))

    def replace(self, home: str, weight: Weight, activations: str | None) -> None:
        """Puts a quantized layer in place of a linear one."""
        module = self.module(home)
        if tuple(weight.shape) != extents(module):
            raise ValueError(
                f"the file has {list(weight.shape)}, and the model expects {list(extents(module))}"
            )
        bias = module.bias
        if bias is not None and bias.is_meta:
            bias = self._set_all(f"{home}.bias", torch.empty_like(bias, device=self.device))
        layer = Linear(weight, bias, activations).train(module.training)
        for name in self._homes[id(module)]:
            parent, _, last = name.rpartition(".")
            self.module(parent)._modules[last] = layer
            alike = self._names[identity(self.expected[f"{name}.weight"])]
            if f"{name}.weight" in alike:
                alike.remove(f"{name}.weight")
        self._homes[id(layer)] = self._homes[id(module)]

    def assign(self, target: str, tensor: Tensor) -> None:
        """Copies a tensor to the model."""
        old = self.expected[target]
        if tuple(tensor.shape) != tuple(old.shape):
            raise ValueError(f"is {list(tensor.shape)}, and the model expects {describe(old)}")
        other = self._filled.setdefault(identity(old), target)
        if other != target:
            current = getattr(self.owner(target), target.rpartition(".")[2])
            if not torch.equal(current, tensor.to(current)):
                raise ValueError(
                    f"differs from {other}, and the model has one tensor for both; untie them, as "
                    "with tie_word_embeddings=False"
                )
        elif old.is_meta:
            new = torch.empty(old.shape, dtype=old.dtype, device=self.device)
            self._set_all(target, new.copy_(tensor))
        else:
            with torch.no_grad():
                old.copy_(tensor)

    def _set_all(self, target: str, tensor: Tensor) -> Tensor:
        """Replaces a tensor on meta under all its names."""
        old = self.expected[target]
        if isinstance(old, torch.nn.Parameter):
            tensor = torch.nn.Parameter(tensor, old.requires_grad)
        names = self._names[identity(old)]
        for name in names:
            own, last = self.owner(name), name.rpartition(".")[2]
            (own._parameters if last in own._parameters else own._buffers)[last] = tensor
            self.expected[name] = tensor
        self._names[identity(tensor)] = names
        if identity(old) in self._filled:
            self._filled[identity(tensor)] = self._filled[identity(old)]
        return tensor

    def share(self, name: str, source: str) -> None:
        """Sets a tensor to the value of another one, which is filled."""
        if name not in self._names[identity(self.expected[source])]:
            self.assign(name, self.expected[source].detach())

    def finish(self, is_pretrained: bool) -> None:
        """Computes what is on meta and in no file: buffers as those of rotary embeddings.

        Raises ValueError for modules that have no rule for that.
        """
        left = [
            (home, module, name)
            for home, module in self.model.named_modules()
            for name, tensor in (*module._parameters.items(), *module._buffers.items())
            if tensor is not None and tensor.is_meta
        ]
        if left and not is_pretrained:
            rows = [f"{home}.{name}".lstrip(".") for home, _, name in left]
            raise ValueError(
                "load: all tensors of the file are loaded, and these are on meta and in no file; "
                f"construct the model on a device, or assign them{listed(rows)}"
            )
        if left:
            self._initialize(left)

    def _initialize(self, left: list[tuple[str, Any, str]]) -> None:
        """Initializes tensors as transformers does when a file lacks them. Their modules also
        initialize those of other modules, but for tensors with a mark.
        """
        model = self.model
        done = [x for x in (*model.parameters(), *model.buffers()) if not x.is_meta]
        done = [x for x in done if not hasattr(x, INITIALIZED)]
        for _, module, name in left:
            tensors = module._parameters if name in module._parameters else module._buffers
            empty = torch.empty_like(tensors[name], device=self.device)
            is_parameter = isinstance(tensors[name], torch.nn.Parameter)
            tensors[name] = torch.nn.Parameter(empty) if is_parameter else empty
        for tensor in done:
            setattr(tensor, INITIALIZED, True)
        with torch.no_grad():
            for home, module in {home: module for home, module, _ in left}.items():
                self._model_of(home)._init_weights(module)
        for tensor in done:
            delattr(tensor, INITIALIZED)

    def _model_of(self, home: str) -> Any:
        """The model of transformers that contains a module."""
        from transformers import PreTrainedModel

        while home:
            if isinstance(found := self.module(original(home)), PreTrainedModel):
                return found
            home = home.rpartition(".")[0]
        return self.model


def describe(tensor: Tensor) -> str:
    """The dtype and shape of a tensor."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
