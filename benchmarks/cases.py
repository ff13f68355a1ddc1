"""The rows of `compile`: which models are timed on how many tokens, and their results."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

MODELS = ("mlp", "gelu_mlp", "llama", "epilogue", "nvgemm")
METHODS = ("eager", "compiled", "again", "ours")
NVGEMM_METHODS = ("eager", "compiled", "again", "added", "ours")
TOKENS: dict[str, Sequence[int]] = {"llama": (1, 16, 512)}
MLP_TOKENS = (1, 4, 16, 64, 256, 2048)
BLOCKS, QUICK_BLOCKS = 8, 2


@dataclass(frozen=True)
class Extents:
    """Extents of the models. ``products`` are the (M, N, K) of the model ``epilogue``."""

    hidden: int = 4096
    intermediate: int = 11008
    llama_intermediate: int = 14336
    heads: int = 32
    key_value_heads: int = 8
    products: tuple[tuple[int, int, int], ...] = (
        (16, 11008, 4096),
        (512, 11008, 4096),
        (4096, 11008, 4096),
        (4096, 4096, 4096),
    )


@dataclass(frozen=True)
class Case:
    """One row to measure. ``size``: the number of tokens, or M, N and K."""

    model: str
    size: tuple[int, ...]
    blocks: int

    def __str__(self) -> str:
        return f"{self.model} {'x'.join(map(str, self.size))}"


def baseline(model: str) -> str:
    """The method that ours is compared with: eager for NVGEMM, else torch's choices."""
    return "eager" if model == "nvgemm" else "compiled"


@dataclass
class Row:
    """The results of one case, by method. Times are in microseconds and of one block."""

    model: str
    size: tuple[int, ...]
    blocks: int
    microseconds: dict[str, float] = field(default_factory=dict)
    #: Seconds of the first call.
    compile_seconds: dict[str, float] = field(default_factory=dict)
    #: The largest relative norm error of a row of the output.
    errors: dict[str, float] = field(default_factory=dict)
    #: Host time of one call of all blocks, in microseconds.
    host: dict[str, float] = field(default_factory=dict)
    #: How often the generated code calls each GEMM kernel.
    kernels: dict[str, dict[str, int]] = field(default_factory=dict)
    #: The time of each turn.
    turns: dict[str, list[float]] = field(default_factory=dict)
    #: Why a method has no time.
    failures: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def case(self) -> Case:
        return Case(self.model, tuple(self.size), self.blocks)

    @property
    def name(self) -> str:
        return str(self.case)

    @property
    def ratio(self) -> float:
        """The time of torch over ours, or NaN."""
        torch = self.microseconds.get(baseline(self.model), math.nan)
        return torch / self.microseconds.get("ours", math.nan)

    @property
    def spread(self) -> float:
        """The difference of the two compilations by torch over the time of the first, or NaN."""
        first = self.microseconds.get("compiled", math.nan)
        return abs(first - self.microseconds.get("again", math.nan)) / first

    @property
    def compile_ratio(self) -> float:
        """Our compile time over that of torch, or NaN."""
        torch = self.compile_seconds.get("compiled", math.nan)
        return self.compile_seconds.get("ours", math.nan) / torch


def kinds(calls: Mapping[str, int] | None) -> tuple[int, ...]:
    """The number of calls of our kernels, of ATEN's and of Triton's templates; empty for None."""
    if calls is None:
        return ()
    ours = sum(
        calls[name] for name in calls if "cutlass_api" in name or "nv_universal_gemm" in name
    )
    triton = sum(calls[name] for name in calls if "triton_tem" in name)
    return ours, sum(calls.values()) - ours - triton, triton


def cases(
    models: Iterable[str],
    tokens: Sequence[int] | None = None,
    blocks: int = BLOCKS,
    extents: Extents | None = None,
) -> list[Case]:
    """The rows of these models. ``tokens`` replaces the defaults of all models but ``epilogue``."""
    extents = extents or Extents()
    found: list[Case] = []
    for model in models:
        if model == "epilogue":
            found += [Case(model, product, 1) for product in extents.products]
        else:
            counts: Sequence[int] = tokens or TOKENS.get(model, MLP_TOKENS)
            found += [Case(model, (n,), 1 if model == "llama" else blocks) for n in counts]
    return found
