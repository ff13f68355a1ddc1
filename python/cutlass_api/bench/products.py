"""Products to measure: tables of shapes, and their operands."""

import json
import reprlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cutlass_api.arguments import GemmArguments, GroupedGemmArguments
from cutlass_api.bench.limits import sets_beyond_l2


@dataclass(frozen=True)
class Shape:
    """One product: C (m, n) = A (m, k) @ B (k, n).

    - ``layout``: of A and B, t row-major, n column-major.
    - ``batch``: the number of products, each with operands of its own.
    - ``groups``: the number of groups of a grouped GEMM, or 0. Each group of rows of A has its B.
    - ``uneven``: whether the sizes of groups are random, instead of as equal as possible.
    """

    label: str
    m: int
    n: int
    k: int
    layout: str = "tt"
    groups: int = 0
    uneven: bool = False
    batch: int = 1

    @property
    def elements(self) -> int:
        """The number of elements of all operands."""
        one = self.m * self.k + max(self.groups, 1) * self.k * self.n + self.m * self.n
        return self.batch * one


def table(path: Path | None) -> list[Shape]:
    """The shapes in a JSON file, or a built-in table for None.

    The file is an object of named groups. A group has a ``layout`` and a list ``mnk`` of products,
    ``lmnk`` of batched products or ``total_m_n_k_groups`` of grouped GEMMs; the last are timed with
    equal and with uneven groups. Strings beside the groups are notes. Raises ValueError if the file
    has another form.
    """
    try:
        groups = json.loads(path.read_text()) if path else BUILT_IN
        if not isinstance(groups, dict):
            raise ValueError(f"{reprlib.repr(groups)} must be an object of groups by name")
        named = [(label, group) for label, group in groups.items() if not isinstance(group, str)]
        shapes = [shape for label, group in named for shape in _group(label, group)]
        if not shapes:
            raise ValueError("it has no groups; add one with layout and mnk")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"{path} is no table of shapes in JSON: {error}") from None
    return shapes


def _group(label: str, group: Any) -> list[Shape]:
    """The shapes of one group of a table."""
    if not isinstance(group, dict):
        raise ValueError(
            f"group {label!r} is {reprlib.repr(group)}; it must be an object with layout and mnk"
        )
    layout = group.get("layout", "tt")
    if layout not in ("tt", "tn", "nt", "nn"):
        raise ValueError(
            f"group {label!r} has layout {layout!r}; it must be two letters, t or n, for A and B"
        )

    def rows(key: str, *extents: str) -> Iterator[list[int]]:
        listed = group.get(key, [])
        for row in listed if isinstance(listed, list) else [listed]:
            # isinstance(True, int) is true.
            right = isinstance(row, list) and all(
                type(extent) is int and extent > 0 for extent in row
            )
            if not right or len(row) != len(extents):
                expected = f"[{', '.join(extents)}] in positive integers"
                raise ValueError(
                    f"group {label!r} has {reprlib.repr(row)} in {key}; it must be {expected}"
                )
            yield row

    shapes = [Shape(label, m, n, k, layout) for m, n, k in rows("mnk", "m", "n", "k")]
    for batch, m, n, k in rows("lmnk", "l", "m", "n", "k"):
        shapes.append(Shape(label, m, n, k, layout, batch=batch))
    for m, n, k, groups in rows("total_m_n_k_groups", "total m", "n", "k", "groups"):
        shapes.append(Shape(label, m, n, k, layout, groups))
        shapes.append(Shape(f"{label}, uneven", m, n, k, layout, groups, uneven=True))
    if not shapes:
        raise ValueError(
            f"group {label!r} has no shapes; list them as mnk, lmnk or total_m_n_k_groups"
        )
    return shapes


#: The default shapes: squares, a transformer's weights, unaligned rows, deep K, grouped GEMMs.
BUILT_IN: dict[str, Any] = {
    "square": {
        "layout": "tt",
        "mnk": [[512, 512, 512], [1024, 1024, 1024], [4096, 4096, 4096], [8192, 8192, 8192]],
    },
    "weights": {"layout": "tn", "mnk": [[m, 4096, 11008] for m in (1, 16, 64, 256, 1024, 4096)]},
    "unaligned": {"layout": "tt", "mnk": [[4095, 4097, 4093], [300, 5000, 700]]},
    "deep k": {"layout": "tt", "mnk": [[128, 128, 16384], [64, 4096, 16384]]},
    "experts": {
        "layout": "tn",
        "total_m_n_k_groups": [[8192, 2048, 1024, 12], [16384, 1408, 2048, 64]],
    },
}


def in_type(shapes: Iterable[Shape], dtype: str) -> Iterator[Shape]:
    """The shapes to measure in a type: grouped GEMMs in bfloat16 alone."""
    return (shape for shape in shapes if not shape.groups or dtype == "bfloat16")


class Inputs:
    """Sets of operands of one shape. ``sets``: their number; None: together larger than L2."""

    def __init__(self, shape: Shape, dtype: str, sets: int | None = None) -> None:
        import torch

        element = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
        count = sets or sets_beyond_l2(element.itemsize * shape.elements)

        def matrix(*extents: int, order: str) -> Any:
            *batch, rows, columns = extents
            if order == "t":
                return torch.randn(*batch, rows, columns, device="cuda", dtype=element)
            return torch.randn(*batch, columns, rows, device="cuda", dtype=element).mT

        generator = torch.Generator().manual_seed(0)
        groups = max(shape.groups, 1)
        dealt = (
            torch.randint(groups, (shape.m,), generator=generator)
            if shape.uneven
            else torch.arange(shape.m) % groups
        )
        self.offsets = (
            dealt.bincount(minlength=groups).cumsum(0).to(device="cuda", dtype=torch.int32)
        )
        self.groups = (shape.groups,) if shape.groups else ()
        batch = (shape.batch,) if shape.batch > 1 else ()
        self.accumulator = "float64" if dtype == "float64" else "float32"
        self.sets = [
            (
                matrix(*batch, shape.m, shape.k, order=shape.layout[0]),
                matrix(*batch, *self.groups, shape.k, shape.n, order=shape.layout[1]),
                torch.empty(*batch, shape.m, shape.n, device="cuda", dtype=element),
            )
            for _ in range(count)
        ]
        self.stream = torch.cuda.Stream()

    def arguments(self) -> list[Any]:
        if self.groups:
            return [
                GroupedGemmArguments(*one_set, "float32", self.offsets) for one_set in self.sets
            ]
        return [GemmArguments(*one_set, accumulator_type=self.accumulator) for one_set in self.sets]

    def torch_launches(self) -> list[Callable[[], Any]]:
        import torch

        if self.groups:
            return [partial(torch._grouped_mm, a, b, offs=self.offsets) for a, b, _ in self.sets]
        return [partial(torch.matmul, a, b, out=c) for a, b, c in self.sets]
