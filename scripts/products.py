"""Random products of every kind that has a cost model, which `time_products.py` times."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

DEVICE = "cuda"

#: Hidden and feed-forward sizes of language models, and tokens.
WIDTHS = (1024, 1536, 2048, 2560, 2816, 3072, 3584, 4096, 5120, 5376, 6144, 6912, 7168, 8192)
WIDTHS += (8960, 9728, 11008, 12288, 13824, 14336, 16384, 28672)
TOKENS = (96, 128, 192, 256, 320, 384, 512, 640, 768, 896, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
FEW_TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
#: Rows that `skinny` serves.
SKINNY = (1, 2, 3, 4, 8, 16)
#: Shares of layouts: those of a linear layer and of its gradients are frequent.
LAYOUTS = {"tn": 0.3, "tt": 0.3, "nt": 0.25, "nn": 0.15}
LINEAR = {"tn": 1.0}
#: The share of layers of language models; the others have any extents.
LAYERS = 0.5
MOST_ELEMENTS = 2e8
EPILOGUE = """
def epilogue(accum, C):
    D = relu(accum + C)
    return D
"""


@dataclass(frozen=True)
class Kind:
    """Products of some types.

    - ``b``: a dtype, or a function of `cutlass_api.quantize` that makes weights.
    - ``few_rows``: the share of products with few rows, which are among ``rows``.
    - ``step``: of extents. 1: rows of most operands are unaligned.
    - ``most_flop``: larger products take too long.
    - ``family``: that of the kernels to time, if not all. On Hopper, others are faster than those
      of `sm80` and `simt`, which are the fastest elsewhere.
    """

    a: str
    b: str
    out: str
    accumulator: str = "float32"
    layouts: tuple[str, ...] = tuple(LAYOUTS)
    few_rows: float = 0.1
    rows: tuple[int, ...] = FEW_TOKENS
    step: int = 8
    most_flop: float = 4e11
    is_grouped: bool = False
    is_fused: bool = False
    family: str = ""


_HALF = ("bfloat16", "bfloat16", "bfloat16")
KINDS = {
    "float16": Kind("float16", "float16", "float16"),
    "bfloat16": Kind(*_HALF),
    "unaligned": Kind(*_HALF, step=1),
    "fused": Kind(*_HALF, is_fused=True),
    "float32 output": Kind("bfloat16", "bfloat16", "float32"),
    "tf32": Kind("float32", "float32", "float32"),
    "float32": Kind("float32", "float32", "float32", most_flop=1e11),
    "float64": Kind("float64", "float64", "float64", "float64", most_flop=1e11),
    "float8": Kind("float8_e4m3fn", "float8_e4m3fn", "bfloat16", layouts=("tn",), step=16),
    "int8": Kind("int8", "int8", "int32", "int32", layouts=("tn",), step=16),
    "int8 weights": Kind("bfloat16", "int8", "bfloat16", layouts=("tn",), few_rows=0.4, step=16),
    "fp8 weights": Kind("bfloat16", "fp8", "bfloat16", layouts=("tn",), few_rows=0.4, step=128),
    "int4 weights": Kind("bfloat16", "int4", "bfloat16", layouts=("tn",), few_rows=0.4, step=128),
    "mxfp4 weights": Kind("bfloat16", "mxfp4", "bfloat16", layouts=("tn",), few_rows=0.4, step=128),
    "groups": Kind(*_HALF, layouts=("tn", "tt"), is_grouped=True),
    "groups of int4": Kind(
        "bfloat16", "int4", "bfloat16", layouts=("tn",), step=128, is_grouped=True
    ),
    "sm80": Kind(*_HALF, most_flop=1e11, family="sm80"),
    "sm80 unaligned": Kind(*_HALF, step=1, most_flop=1e11, family="sm80"),
    "sm80 int8": Kind(
        "int8", "int8", "int32", "int32", layouts=("tn",), step=16, most_flop=1e11, family="sm80"
    ),
    "sm80 groups": Kind(*_HALF, layouts=("tn", "tt"), is_grouped=True, family="sm80"),
    "simt": Kind(*_HALF, most_flop=2e9, family="simt"),
    "simt weights": Kind(
        "bfloat16", "int4", "bfloat16", layouts=("tn",), step=128, most_flop=2e9, family="simt"
    ),
    "skinny": Kind(*_HALF, few_rows=1.0, rows=SKINNY, family="skinny"),
    "skinny bytes": Kind(
        "bfloat16",
        "int8",
        "bfloat16",
        layouts=("tn",),
        few_rows=1.0,
        rows=SKINNY,
        step=16,
        family="skinny",
    ),
    "skinny codes": Kind(
        "bfloat16",
        "int4",
        "bfloat16",
        layouts=("tn",),
        few_rows=1.0,
        rows=SKINNY,
        step=128,
        family="skinny",
    ),
}
FORMATS = ("fp8", "int4", "mxfp4")


@dataclass(frozen=True)
class Product:
    """``layout``: of A and B, t row-major, n column-major. ``groups``: 0 without groups."""

    kind: str
    m: int
    n: int
    k: int
    layout: str
    groups: int = 0

    def __str__(self) -> str:
        groups = f" in {self.groups}" if self.groups else ""
        return f"{self.kind} {self.m}x{self.n}x{self.k}{groups} {self.layout}"

    @property
    def bytes(self) -> int:
        """Of the operands, weights of 4 bits with those of their scales."""
        kind, groups = KINDS[self.kind], max(self.groups, 1)
        b_bits = {"fp8": 8, "int4": 5, "mxfp4": 5}.get(kind.b) or 8 * _dtype(kind.b).itemsize
        a, out = (_dtype(name).itemsize for name in (kind.a, kind.out))
        return self.m * self.k * a + groups * self.k * self.n * b_bits // 8 + self.m * self.n * out

    def arguments(self) -> Any:
        """Arguments with operands of their own; of FakeTensors under a `FakeTensorMode`."""
        from cutlass_api.arguments import EpilogueArguments, GemmArguments, GroupedGemmArguments

        kind = KINDS[self.kind]
        a = _matrix(kind.a, self.m, self.k, self.layout[0])
        out = torch.empty(self.m, self.n, dtype=_dtype(kind.out), device=DEVICE)
        groups = (self.groups,) if self.groups else ()
        b = _weight(kind.b, *groups, self.k, self.n, order=self.layout[1])
        if self.groups:
            # Sizes of groups differ, as those of a router do.
            generator = torch.Generator().manual_seed(0)
            ends = torch.randint(self.m + 1, (self.groups - 1,), generator=generator).sort().values
            offsets = torch.cat([ends, torch.tensor([self.m])]).to(DEVICE, torch.int32)
            return GroupedGemmArguments(a, b, out, kind.accumulator, offsets)
        if kind.is_fused:
            c = _matrix(kind.out, self.m, self.n, "t")
            epilogue = EpilogueArguments(EPILOGUE, C=c, D=out)
            return GemmArguments(a, b, out, kind.accumulator, epilogue)
        return GemmArguments(a, b, out, kind.accumulator)


def _dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _matrix(dtype: str, rows: int, columns: int, order: str, *batch: int) -> torch.Tensor:
    shape = (*batch, rows, columns) if order == "t" else (*batch, columns, rows)
    if dtype == "int8":
        made = torch.randint(-128, 128, shape, dtype=torch.int8, device=DEVICE)
    elif dtype == "float8_e4m3fn":
        made = torch.randn(shape, dtype=torch.bfloat16, device=DEVICE).to(torch.float8_e4m3fn)
    else:
        made = torch.randn(shape, dtype=_dtype(dtype), device=DEVICE)
    return made if order == "t" else made.mT


def _weight(name: str, *shape: int, order: str) -> Any:
    """A matrix B, or several: (K, N), or (groups, K, N)."""
    *batch, k, n = shape
    if name not in FORMATS:
        return _matrix(name, k, n, order, *batch)
    from cutlass_api import quantize, weights

    made = [
        getattr(quantize, name)(torch.randn(n, k, dtype=torch.bfloat16, device=DEVICE))
        for _ in range(batch[0] if batch else 1)
    ]
    return (weights.stack(made) if batch else made[0]).repack()


def _extent(chance: random.Random, least: int, most: int, step: int) -> int:
    """A multiple of ``step``, small ones as likely as large ones."""
    return step * max(1, round(least / step * (most / least) ** chance.random()))


def random_product(name: str, chance: random.Random) -> Product:
    kind = KINDS[name]
    layout = chance.choices(kind.layouts, [LAYOUTS[of] for of in kind.layouts])[0]
    while True:
        is_layer = chance.random() < LAYERS and kind.step > 1
        groups = chance.choice((4, 8, 16, 32, 64)) if kind.is_grouped else 0
        n, k = (
            chance.choice(WIDTHS) if is_layer else _extent(chance, 512, 16384, kind.step)
            for _ in range(2)
        )
        if kind.is_grouped:
            m = chance.choice((64, 256, 1024, 4096, 16384))
        elif chance.random() < kind.few_rows:
            m = chance.choice(kind.rows)
            m = m if layout[0] == "t" else max(m, 8)
        elif is_layer:
            m = chance.choice(TOKENS)
            if layout == "nt":  # a weight's gradient sums over tokens
                m, k = k, m
        else:
            m, n = (_extent(chance, 72, 8192, kind.step) for _ in range(2))
            k = _extent(chance, 64, 32768, kind.step)
        elements = m * k + max(groups, 1) * k * n + m * n
        if 2 * m * n * k <= kind.most_flop and elements <= MOST_ELEMENTS:
            return Product(name, m, n, k, layout, groups)


def random_products(kinds: list[str], count: int, seed: int) -> Iterator[Product]:
    """``count`` products of each kind, the kinds in turns."""
    chances = {name: random.Random(f"{seed} {name}") for name in kinds}
    for _ in range(count):
        for name, chance in chances.items():
            yield random_product(name, chance)
