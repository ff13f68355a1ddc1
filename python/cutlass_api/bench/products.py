"""Products to measure: tables of shapes, and their operands."""

import json
import reprlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from cutlass_api.arguments import GemmArguments, GroupedGemmArguments
from cutlass_api.bench.limits import DTYPES, sets_beyond_l2
from cutlass_api.bench.types import TYPES


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


#: The tables of this package, a JSON file each.
FOLDER = Path(__file__).with_name("shapes")
TABLES = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def table(source: str) -> list[Shape]:
    """The shapes of a table: the name of one in :data:`TABLES`, or the path of a JSON file.

    The file is an object of named groups. A group has a ``layout`` and a list ``mnk`` of products,
    ``lmnk`` of batched products or ``total_m_n_k_groups`` of grouped GEMMs; the last are timed with
    equal and with uneven groups. Strings beside the groups are notes. Raises ValueError if the file
    cannot be read or has another form.
    """
    path = FOLDER / f"{source}.json" if source in TABLES else Path(source)
    try:
        groups = json.loads(path.read_text("utf-8"))
        if not isinstance(groups, dict):
            raise ValueError(f"{reprlib.repr(groups)} must be an object of groups by name")
        named = [(label, group) for label, group in groups.items() if not isinstance(group, str)]
        shapes = [shape for label, group in named for shape in _group(label, group)]
        if not shapes:
            raise ValueError("it has no groups; add one with layout and mnk")
    except OSError as error:
        raise ValueError(
            f"{source} cannot be read: {error.strerror}; pass a JSON file or the name of a table: "
            f"{', '.join(TABLES)}"
        ) from None
    except ValueError as error:
        raise ValueError(f"{source} is no table of shapes in JSON: {error}") from None
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


def in_type(shapes: Iterable[Shape], dtype: str) -> Iterator[Shape]:
    """The shapes to measure in a type: grouped GEMMs in bfloat16 alone."""
    return (shape for shape in shapes if not shape.groups or dtype == "bfloat16")


class Inputs:
    """Sets of operands of one shape. ``dtype``: a name of :data:`TYPES`. ``sets``: their number;
    None: together larger than L2."""

    def __init__(self, shape: Shape, dtype: str, sets: int | None = None) -> None:
        import torch

        self.shape, self.type, self.dtype = shape, TYPES[dtype], dtype
        element = getattr(torch, self.type.element)
        count = sets or sets_beyond_l2(element.itemsize * shape.elements)

        def matrix(*extents: int, order: str) -> Any:
            *batch, rows, columns = extents
            if order == "t":
                return self.type.random(*batch, rows, columns)
            return self.type.random(*batch, columns, rows).mT

        self.groups = (shape.groups,) if shape.groups else ()
        batch = (shape.batch,) if shape.batch > 1 else ()
        output = getattr(torch, self.type.output)
        self.sets = [
            (
                matrix(*batch, shape.m, shape.k, order=shape.layout[0]),
                matrix(*batch, *self.groups, shape.k, shape.n, order=shape.layout[1]),
                torch.empty(*batch, shape.m, shape.n, device="cuda", dtype=output),
            )
            for _ in range(count)
        ]

    @cached_property
    def stream(self) -> Any:
        import torch

        return torch.cuda.Stream()

    @cached_property
    def offsets(self) -> Any:
        """The offsets of the groups."""
        import torch

        generator = torch.Generator().manual_seed(0)
        m, groups = self.shape.m, self.shape.groups
        dealt = (
            torch.randint(groups, (m,), generator=generator)
            if self.shape.uneven
            else torch.arange(m) % groups
        )
        ends = dealt.bincount(minlength=groups).cumsum(0)
        return ends.to(device="cuda", dtype=torch.int32)

    def arguments(self) -> list[Any]:
        accumulator = self.type.accumulator
        if self.groups:
            return [
                GroupedGemmArguments(*one_set, accumulator, self.offsets) for one_set in self.sets
            ]
        return [GemmArguments(*one_set, accumulator_type=accumulator) for one_set in self.sets]

    def torch_launches(self) -> list[Callable[[], Any]]:
        """A launch of torch's product for each set; none where torch does not multiply them."""
        import torch

        if self.groups:
            return [partial(torch._grouped_mm, a, b, offs=self.offsets) for a, b, _ in self.sets]
        product = self.type.torch_product()
        if self.dtype not in DTYPES:
            try:
                product(*self.sets[0])
            except (RuntimeError, ValueError):
                return []
        return [partial(product, *one_set) for one_set in self.sets]


def fake_arguments(shape: Shape, dtype: str) -> GemmArguments:
    """Arguments of a product on a CUDA device, without memory and without a GPU."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        found: GemmArguments = Inputs(shape, dtype, sets=1).arguments()[0]
    return found
