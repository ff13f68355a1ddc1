"""``load``: fills a model from a checkpoint."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from cutlass_api._progress import progress_bar
from cutlass_api.nn._beside import place_side_by_side
from cutlass_api.nn._checkpoints import Checkpoint, Header, listed
from cutlass_api.nn._layers import (
    check_patterns,
    check_unheld,
    is_conv1d,
    unwrapped,
)
from cutlass_api.nn._linear import Linear
from cutlass_api.nn._load_experts import (
    MERGING,
    Mixtures,
    activations_of,
    merged,
    on_meta,
    stack_of,
)
from cutlass_api.nn._names import Names, is_pretrained
from cutlass_api.nn._report import Loading, bytes_of
from cutlass_api.nn._save import attach
from cutlass_api.nn._stored import Reader, Stored, stored_layers
from cutlass_api.nn._targets import Targets, describe
from cutlass_api.weights import Weight, from_gpt_oss
from cutlass_api.weights._adjacent import identity


def load(
    model: torch.nn.Module,
    folder: str | PathLike[str],
    *,
    device: torch.device | str | int | None = None,
    ignore: Sequence[str] = (),
) -> Loading:
    """Fills a model from a checkpoint: a folder of safetensors and ``config.json``.

    - ``model``: on GPUs, the CPU or ``meta``. A model of transformers, whose rules map the names of
      the file, or any module whose ``state_dict`` has these names.
    - ``device``: where that goes which is on ``meta``. None: torch's default device.
    - ``ignore``: patterns of :mod:`fnmatch` for names of tensors in the file that are left out.

    The checkpoint is not quantized, or as one of these ``quant_method`` says in its configuration:

    - "compressed-tensors": integers of 4 and 8 bits, float8, MXFP4, NVFP4;
    - "gptq" and "awq" of 4 bits; "modelopt": FP8, NVFP4 and INT4;
    - "fp8": float8_e4m3fn with scales for the matrix, for rows, for 1 x 128 or for 128 x 128, in
      float32 or float8_e8m0fnu, as DeepSeek-V3 and Qwen3-FP8;
    - "mxfp4": the experts of gpt-oss.

    The formats of layers are those of their tensors. A quantized layer replaces the
    ``torch.nn.Linear``, or transformers' Conv1D, by :class:`Linear`; if the checkpoint quantizes
    activations in 8 bits, so does the layer, with scales of each call instead of calibrated ones.
    Where it cannot be replaced, as a subclass, or is an operand of a conversion, the weight is
    dequantized, and the report says so. Other tensors are converted to the dtype that the model
    has. Shards are mapped, and each tensor is copied once to the model.

    Mixtures of experts of transformers' models become :class:`Experts`, unless :func:`convert`
    would leave them. Their weights stay quantized: of all formats for each expert, of float8 and
    MXFP4 also stacked. Activations are quantized in float8 alone, else they have 16 bits. Weights
    with a permutation (act-order), and experts of several formats are dequantized.

    Returns and prints a table of what the layers are now.

    Raises FileNotFoundError for a missing folder or shard, and ValueError for files that are not
    read, a ``quant_method`` or options of it that are not served, tensors of the file that fit
    nothing, and tensors of the model that the file lacks, each with name, shape and dtype: the
    model is then unchanged. What a reader of :mod:`cutlass_api.weights` refuses is a ValueError,
    too, which lists all tensors that are not loaded; the others are.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"load: model is {type(model).__name__}; pass a torch.nn.Module")
    check_patterns("load", "ignore", ignore)
    check_unheld("load", model)
    model = unwrapped(model)
    target = torch.get_default_device() if device is None else torch.device(device)
    if target.type == "meta":
        target = torch.device("cpu")
    torch.empty(0, device=target)  # raises for a device that is not there
    with torch.device("cpu"):  # a default of meta, as in a context, is that of the model alone
        checkpoint = Checkpoint(folder)
        reader = Reader(checkpoint.quantization, checkpoint.metadata)
        filling = Filling(model, checkpoint, reader, target)
        if device is not None:
            filling.targets.check_placed()
        filling.plan(ignore)
        filling.run()
    attach(model)
    print(filling.report)
    return filling.report


@dataclass
class Task:
    """A tensor of the model, or several that a converter makes. ``sources``: names in the file as
    if layers were not quantized.
    """

    target: str
    sources: list[str] = field(default_factory=list)
    #: The pattern of each source, of operands of a converter.
    patterns: dict[str, str] = field(default_factory=dict)


class Filling:
    """A load: :meth:`plan` finds what goes where and changes nothing, :meth:`run` does it."""

    def __init__(
        self, model: torch.nn.Module, checkpoint: Checkpoint, reader: Reader, device: torch.device
    ) -> None:
        self.model, self.checkpoint, self.reader = model, checkpoint, reader
        self.targets = Targets(model, device)
        self.mixtures = Mixtures(model, self.targets.expected)
        self.names = Names(model, self.targets.expected)
        self.layers: dict[str, Stored] = {}
        self.tasks: dict[str, Task] = {}
        self.report = Loading(str(checkpoint.folder), reader.method)

    # ---- plan -------------------------------------------------------------------------------

    def plan(self, ignore: Sequence[str]) -> None:
        """Raises ValueError if the checkpoint and the model do not fit."""
        headers = {
            name: header
            for name, header in self.checkpoint.headers.items()
            if not any(fnmatchcase(name, pattern) for pattern in ignore)
        }
        self.layers, unread = stored_layers(headers)
        parts = {part for layer in self.layers.values() for part in layer.parts.values()}
        found = [*self.layers, *(name for name in headers if name not in parts)]
        unread = [name for name in unread if self.names.find(name)[0] not in self.targets.expected]
        problems = self.mixtures.find_scales(headers, self.names)
        problems += self.mixtures.find_blocks(headers, self.names)
        stacked = set(self.mixtures.scales.values())
        for name in found:
            if name in stacked:
                continue
            target, pattern = self.names.find(name)
            target = self.mixtures.blocks.get(name, target)
            if target in self.targets.expected:
                task = self.tasks.setdefault(target, Task(target))
                if task.sources and pattern is None:
                    problems.append(f"{name} and {task.sources[0]}: both are {target}")
                task.sources.append(name)
                if pattern is not None:
                    task.patterns[name] = pattern
                if name not in self.layers:
                    is_scaled = target in self.mixtures.scales
                    is_value = pattern is None and name not in self.mixtures.blocks
                    problems += self.targets.problems(
                        name, target, headers[name], is_value, is_scaled
                    )
            elif name in unread or self.names.is_unneeded(target) or self._is_no_bias(name):
                self.report.unread.append(name)
            else:
                problems.append(self._unexpected(name, target, headers))
        problems += self._missing()
        if problems:
            raise ValueError(
                f"load: {self.checkpoint.folder} does not fit the model, which is unchanged"
                f"{listed(problems)}"
            )
        self._try_layers()

    def _is_no_bias(self, name: str) -> bool:
        """Whether a tensor is the zero bias that AutoGPTQ writes for layers that have none."""
        home, _, last = name.rpartition(".")
        if last != "bias" or f"{home}.weight" not in self.layers:
            return False
        return not self.checkpoint.peek(name).any()

    def _unexpected(self, name: str, target: str, headers: dict[str, Header]) -> str:
        stored = self.layers.get(name)
        shown = name if stored is None else next(iter(stored.parts.values()))
        renamed = f" (for transformers, {target})" if target != name else ""
        home = target.rpartition(".")[0]
        there = [key for key in self.targets.expected if key.rpartition(".")[0] == home][:4]
        expected = ", ".join(f"{key} {describe(self.targets.expected[key])}" for key in there)
        return (
            f"{shown} {headers[shown]}: the model has no {name}{renamed}; "
            + (f"it has {expected}" if there else f"it has no module {home or 'of this name'}")
            + "; pass ignore= for what it does not need"
        )

    def _missing(self) -> list[str]:
        """What the file lacks. A tensor with the memory of another one has its value."""
        given = {identity(self.targets.expected[name]): name for name in self.tasks}
        made = self._made()
        problems = []
        for name, tensor in self.targets.expected.items():
            if name in self.tasks or name in made:
                continue
            source = given.get(identity(tensor)) or self.names.tied.get(name)
            if source in self.tasks:
                self.report.tied[name] = source
            elif not self.names.is_optional(name):
                problems.append(f"{name} {describe(tensor)}: missing in the file")
        return problems

    def _made(self) -> set[str]:
        """What converters make in addition to the first of their targets."""
        made = set()
        for task in self.tasks.values():
            for pattern in set(task.patterns.values()):
                first, *others = self.names.converter(pattern).target_patterns
                made |= {task.target.replace(first, other) for other in others}
        return made

    def _try_layers(self) -> None:
        """Reads a layer of each kind: what is wrong with one is wrong with all."""
        kinds: dict[Any, tuple[Stored, str]] = {}
        headers = self.checkpoint.headers
        for name, layer in self.layers.items():
            target = self.names.find(name)[0]
            if target in self.tasks:
                dtype = self.targets.expected[target].dtype
                key = (dtype, *((part, headers[full].dtype) for part, full in layer.parts.items()))
                kinds.setdefault(key, (layer, target))
        for name, target in self.mixtures.blocks.items():
            if self.mixtures.weights[target] is None:
                scales = headers[self.mixtures.scales[target]]
                stack = from_gpt_oss(on_meta(headers[name]), on_meta(scales))
                with self._trying(name):
                    check_served(stack[0], None, self.targets.expected[target].dtype)
        for (dtype, *_), (layer, target) in kinds.items():
            device = self.targets.device_of(target)
            parts = layer.parts.items()
            tensors = {part: self.checkpoint.peek(full).to(device) for part, full in parts}
            with self._trying(layer.name):
                check_served(*self.reader.read(layer, tensors), dtype)

    @contextmanager
    def _trying(self, name: str) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"load: {name} of {self.checkpoint.folder}: {error}. The model is unchanged"
            ) from None

    # ---- run --------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises ValueError that lists what is not loaded."""
        sources = {task.target: self._files_of(task) for task in self.tasks.values()}
        self.checkpoint.expect(name for files in sources.values() for name in files)
        order = sorted(
            self.tasks.values(),
            key=lambda task: max(self.checkpoint.file_of[name] for name in sources[task.target]),
        )
        failures = []
        with progress_bar(True, "load", len(order)) as bar:
            for task in order:
                try:
                    self._fill(task)
                except Exception as error:  # all that fails is listed
                    failures.append(f"{task.target}: {error}")
                bar.step(task.target)
        if not failures:
            self._tie()
            self.mixtures.replace()
            self.targets.finish(is_pretrained(self.model))
            place_side_by_side(self.model)
        self.report.tensors, self.report.bytes = len(order), bytes_of(self.model)
        if failures:
            raise ValueError(
                f"load: the model is loaded in part. {len(failures)} of {len(order)} tensors are "
                f"not loaded{listed(failures)}"
            )

    def _files_of(self, task: Task) -> list[str]:
        """The names in the file that a task reads."""
        scales = self.mixtures.scales.get(task.target)
        return [
            full
            for name in task.sources
            for full in (self.layers[name].parts.values() if name in self.layers else (name,))
        ] + ([scales] if scales is not None else [])

    def _fill(self, task: Task) -> None:
        if task.target in self.mixtures.scales:
            return self._fill_scaled(task)
        if task.patterns:
            return self._convert(task)
        (name,) = task.sources
        if name not in self.layers:
            return self.targets.assign(task.target, self.checkpoint.read(name))
        weight, activations = self._read(self.layers[name], task.target)
        home = task.target.rpartition(".")[0]
        reason = self.targets.refusal(home)
        if reason is None:
            check_served(weight, activations, self.targets.expected[task.target].dtype)
            self.targets.replace(home, weight, activations)
            self.report.quantized[home] = (weight.shape, describe_weight(weight, activations))
        else:
            self.targets.assign(task.target, self._dequantized(task.target, weight))
            self.report.dequantized[home] = (weight.shape, reason)

    def _read(self, layer: Stored, target: str) -> tuple[Weight, str | None]:
        # Memory of their own: fields may be views of what is read.
        device = self.targets.device_of(target)
        tensors = {
            part: self.checkpoint.read(full).to(device, copy=True)
            for part, full in layer.parts.items()
        }
        return self.reader.read(layer, tensors)

    def _dequantized(self, target: str, weight: Weight) -> Tensor:
        matrix = weight.dequantize(self.targets.expected[target].dtype)
        module = self.targets.owner(target)
        return matrix.t() if is_conv1d(module) else matrix

    def _convert(self, task: Task) -> None:
        """Makes a tensor of several."""
        read = {
            name: self._read(self.layers[name], task.target)
            for name in task.sources
            if name in self.layers
        }
        weights = {name: weight for name, (weight, _) in read.items()}
        reason: str | None = f"is a part of {task.target}"
        if len(read) == len(task.sources) and self._merges(task):
            given = [(each, activations_of(each, kind)) for each, kind in read.values()]
            reason = self.mixtures.refusal(task.target, given)
        if reason is None:
            has_parts = len(set(task.patterns.values())) > 1
            stack = merged(weights, partial(self._merge, task), has_parts)
            return self._stack(task, stack, given[0][1])
        tensors = {}
        for name in task.sources:
            if name not in weights:
                tensors[name] = self.checkpoint.read(name)
                continue
            tensors[name] = self._dequantized(task.target, weights.pop(name))
            self.report.dequantized[self.layers[name].name] = (tensors[name].shape, str(reason))
        for target, tensor in self._made_of(task, tensors).items():
            self.targets.assign(target, tensor[0] if isinstance(tensor, list) else tensor)

    def _merges(self, task: Task) -> bool:
        """Whether the converter of a task does nothing but merge its operands."""
        converter = self.names.converter(next(iter(task.patterns.values())))
        return all(type(each).__name__ in MERGING for each in converter.operations)

    def _made_of(self, task: Task, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """Runs a converter of transformers."""
        converter = self.names.converter(next(iter(task.patterns.values())))
        for name in self.names.sorted(task.sources):
            converter.add_tensor(task.target, name, task.patterns[name], tensors[name])
        made: dict[str, Any] = converter.convert(
            task.target, model=self.model, config=self.model.config
        )
        return made

    def _merge(self, task: Task, tensors: dict[str, Tensor]) -> Tensor:
        (made,) = self._made_of(task, tensors).values()
        tensor: Tensor = made[0] if isinstance(made, list) else made
        return tensor

    def _fill_scaled(self, task: Task) -> None:
        """A stacked weight whose scales are one tensor: MXFP4, float8, or 16 bits and useless
        scales.
        """
        device = self.targets.device_of(task.target)
        tensors = {x: self.checkpoint.read(x).to(device, copy=True) for x in task.sources}
        name = self.mixtures.scales[task.target]
        scales = self.checkpoint.read(name).to(device, copy=True)
        if task.sources[0] in self.mixtures.blocks:
            return self._stack(task, from_gpt_oss(tensors.popitem()[1], scales), None)
        dtypes = {each.dtype for each in tensors.values()}
        if dtypes == {torch.float8_e4m3fn}:
            bits = {key: each.view(torch.uint8) for key, each in tensors.items()}
            values = self._merge(task, bits) if task.patterns else bits.popitem()[1]
            return self._stack(task, stack_of(values.view(torch.float8_e4m3fn), scales), "fp8")
        if torch.float8_e4m3fn in dtypes:
            raise ValueError("some experts are float8_e4m3fn, and others are not")
        self.report.unread.append(name)
        merge = self._merge(task, tensors) if task.patterns else tensors.popitem()[1]
        self.targets.assign(task.target, merge)

    def _stack(self, task: Task, stack: Weight, activations: str | None) -> None:
        """Keeps a stack for the layer, or dequantizes it if the module stays."""
        target, expected = task.target, self.targets.expected[task.target]
        self.mixtures.check_shape(target, stack)
        reason = self.mixtures.weights[target]
        if reason is None:
            check_served(stack[0], activations, expected.dtype)
            self.mixtures.stacks[target] = stack, activations
            self.report.quantized[target] = (stack.shape, describe_weight(stack, activations))
        else:
            self.targets.assign(target, self.mixtures.dequantized(target, stack))
            self.report.dequantized[target] = (stack.shape, reason)

    def _tie(self) -> None:
        """Sets tensors that the file lacks to the value of others."""
        for name, source in self.report.tied.items():
            home, of_source = (each.rpartition(".")[0] for each in (name, source))
            if of_source not in self.report.quantized:
                self.targets.share(name, source)
                continue
            layer: Any = self.targets.module(of_source)
            reason = self.targets.refusal(home)
            if reason is None:
                self.targets.replace(home, layer.weight, layer.activations)
                self.report.quantized[home] = self.report.quantized[of_source]
            else:
                self.targets.assign(name, self._dequantized(name, layer.weight))
                self.report.dequantized[home] = (layer.weight.shape, reason)


def check_served(weight: Weight, activations: str | None, dtype: torch.dtype) -> None:
    """Raises ValueError if a layer does not take an input of this dtype."""
    on_meta = type(weight)(**{key: x.to("meta") for key, x in weight.tensors().items()})
    with torch.no_grad():
        x = torch.empty(1, weight.shape[1], dtype=dtype, device="meta")
        try:
            Linear(on_meta, None, activations)(x)
        except ValueError as error:
            raise ValueError(
                f"{error}. The model has {dtype}; call model.bfloat16() before load"
            ) from None


def describe_weight(weight: Weight, activations: str | None) -> str:
    """The result of a layer in the table."""
    text = f"{type(weight).__name__}, a scale for each {weight.format.scales.name()}"
    return text + (f", activations {activations}" if activations else "")
