"""What ``convert`` has done."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from cutlass_api._tables import html_table
from cutlass_api.nn._layers import Layer
from cutlass_api.weights._adjacent import identity

TITLES = ("layer", "count", "(N, K)", "result")


class Report:
    """A table of layers, whose rows count layers that differ in numbers of their names."""

    @property
    def _summary(self) -> str:
        raise NotImplementedError

    def _results(self) -> Iterator[tuple[str, Sequence[int], str]]:
        """The name, (N, K) and the result of each layer."""
        raise NotImplementedError

    def _rows(self) -> Iterator[tuple[str, ...]]:
        named: dict[tuple[str, ...], list[str]] = {}
        for name, shape, result in self._results():
            pattern = re.sub(r"(?<![^.])\d+(?![^.])", "*", name)
            named.setdefault((pattern, str(list(shape)), result), []).append(name)
        for (pattern, extents, result), names in named.items():
            yield names[0] if len(names) == 1 else pattern, str(len(names)), extents, result

    def __repr__(self) -> str:
        rows = [TITLES, *self._rows()]
        if len(rows) == 1:
            return self._summary
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = (
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )
        return "\n".join([self._summary, *lines])

    def _repr_html_(self) -> str:
        rows = list(self._rows())
        return html_table(TITLES, rows, len(rows), self._summary)


class Conversion(Report):
    """What :func:`convert` has replaced, and what not. Prints as a table, whose rows count layers
    that differ in numbers of their names.

    - ``scheme``: the name of the scheme.
    - ``replaced``: the names of the layers and mixtures of experts that it replaced.
    - ``kept``: the names of others, each with the reason.
    - ``bytes_before``, ``bytes_after``: of all parameters and buffers of the model.
    """

    def __init__(
        self,
        scheme: str,
        layers: list[Layer],
        bytes_before: int,
        bytes_after: int,
        mixtures: Sequence[Layer] = (),
    ) -> None:
        self.scheme = scheme
        found = [*layers, *mixtures]
        self.replaced = [layer.name for layer in found if layer.reason is None]
        self.kept = {layer.name: layer.reason for layer in found if layer.reason is not None}
        self.bytes_before, self.bytes_after = bytes_before, bytes_after
        self._layers, self._mixtures = layers, mixtures

    def nothing(self, model: torch.nn.Module) -> str:
        """The message for a model without a layer to replace."""
        if self._layers or self._mixtures:
            return f"nothing to replace. {self}"
        return (
            f"nothing to replace: {type(model).__qualname__} has no torch.nn.Linear; convert "
            "before torch.jit, torch.export, or another quantizer changes the model"
        )

    @property
    def _summary(self) -> str:
        kinds = {"linear layers": self._layers, "mixtures of experts": self._mixtures}
        counts = [
            f"{sum(layer.reason is None for layer in found)} of {len(found)} {name}"
            for name, found in kinds.items()
            if found or name == "linear layers"
        ]
        return (
            f"{self.scheme}: {' and '.join(counts)} replaced, "
            f"{_size(self.bytes_before)} before, {_size(self.bytes_after)} after"
        )

    def _results(self) -> Iterator[tuple[str, Sequence[int], str]]:
        """Replaced layers first."""
        found = (*self._layers, *self._mixtures)
        for layer in sorted(found, key=lambda layer: layer.reason is not None):
            result = layer.result or self.scheme
            if layer.reason is not None:
                result = f"kept: {layer.reason}"
            yield layer.name, layer.shape, result


class Loading(Report):
    """What :func:`load` has read. Prints as a table of the layers that the file quantizes.

    - ``quantized``: the names of layers that are quantized, each with (N, K) and the format.
    - ``dequantized``: the names of others that the file quantizes, each with (N, K) and the reason.
    - ``tied``: the names of tensors that the file lacks, each with that whose value it has.
    - ``unread``: the names of tensors in the file that have no use in the model.
    """

    def __init__(self, folder: str, method: str | None) -> None:
        self.folder, self.method = folder, method
        self.tensors = self.bytes = 0
        self.quantized: dict[str, tuple[Sequence[int], str]] = {}
        self.dequantized: dict[str, tuple[Sequence[int], str]] = {}
        self.tied: dict[str, str] = {}
        self.unread: list[str] = []

    @property
    def _summary(self) -> str:
        parts = [f"{self.folder}: {self.tensors} tensors", _size(self.bytes)]
        parts += [f"quantized by {self.method}"] * (self.method is not None)
        parts += [f"{name} is {source}" for name, source in list(self.tied.items())[:3]]
        parts += [f"{len(self.unread)} not read, as {self.unread[0]}"] if self.unread else []
        return ", ".join(parts)

    def _results(self) -> Iterator[tuple[str, Sequence[int], str]]:
        for name, (shape, result) in self.quantized.items():
            yield name, shape, result
        for name, (shape, reason) in self.dequantized.items():
            yield name, shape, f"dequantized: {reason}"


def bytes_of(model: torch.nn.Module) -> int:
    """The bytes of all parameters and buffers; what is shared counts once."""
    tensors: dict[Any, int] = {}
    for module in model.modules():
        for each in (*module._parameters.values(), *module._buffers.values()):
            if each is not None and not is_lazy(each):
                tensors[identity(each)] = each.numel() * each.itemsize
    return sum(tensors.values())


def _size(count: int) -> str:
    """Bytes with a unit."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} bytes"
