"""The autotuner: times kernels on the operands at hand, and remembers the fastest.

:func:`autotune` times the kernels that serve arguments and keeps the results in a SQLite file in
the cache directory. From then on ``get_kernels``, ``matmul``, the operators and
:mod:`cutlass_api.inductor` rank the measured kernels of such a problem first, in every process on
such a device. The environment variable ``CUTLASS_API_TUNE`` is ``use`` by default. With ``off``,
rankings ignore the results. With ``record``, the first call of ``matmul`` or an operator on a new
problem tunes it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from numbers import Integral
from typing import Any

from cutlass_api import _core
from cutlass_api._calls import products_of
from cutlass_api._core import Kernel, TuningBenchmark
from cutlass_api.tuning._own import AutotunedKernel, autotuned
from cutlass_api.tuning._result import Trial, TuningResult
from cutlass_api.tuning._store import (
    ImportReport,
    StoredResult,
    clear,
    export_results,
    import_results,
    stored_results,
)
from cutlass_api.tuning._tuner import Candidate, Key, tune

#: Kernels that a halving search times: the first by the cost model.
CANDIDATES = 16

#: Batch (or groups), M, N and K.
Extents = tuple[int, int, int, int]


def autotune(
    args: Any,
    *operands: Any,
    kernels: Sequence[Kernel] | None = None,
    search: str = "halving",
    budget: float | None = None,
    key: "str | Callable[[Extents], Extents]" = "exact",
    check: bool | float = False,
    devices: "str | Sequence[int] | None" = None,
    progress: bool = True,
) -> TuningResult:
    """Times kernels on copies of the operands, and stores the results.

    - ``args``: ``GemmArguments`` or ``GroupedGemmArguments`` on a GPU, with or without an epilogue;
      or a function that launches one product, with its operands behind it, as
      ``autotune(cutlass_api.linear, x, weight)``. The function is called once.
      The operands are read, not written. Several copies, together larger than the L2 cache, are
      made in device memory.
    - ``kernels``: the candidates; None: those that ``get_kernels(args)`` returns.
    - ``search``: ``"halving"`` times the first 16 candidates, as ``get_kernels`` ranks them, and
      drops the slower half in each round; ``"exhaustive"`` times all of them.
    - ``budget``: an int is the most candidates to time, a float the seconds after which no further
      candidate is timed.
    - ``key``: to which problems the result applies. ``"exact"``: those of the same extents;
      ``"pow2"``: those whose extents round up to the same powers of two; a function from (batch,
      M, N, K), or (groups, M, N, K), to four numbers: problems for which it returns the same. Such
      a result stays in this process. Dtypes, layouts, alignments, epilogue and device always belong
      to the key.
    - ``check``: whether to compare all outputs of each candidate with the CPU reference before the
      candidate is timed. An element may differ by ``tolerance * (abs(expected) + rms)``, where rms
      is the root mean square of the reference's output. A number is the tolerance; with True, the
      tolerance follows from dtypes and K. Integers are equal, or differ by at most 1 behind an
      epilogue.
    - ``devices``: the GPUs that share the candidates: ``"all"`` of the name of the operands' GPU,
      or ordinals of such GPUs. The first, for ``"all"`` the operands' own, times the fastest of all
      once more. None: the operands' GPU alone.
    - ``progress``: whether to show progress, if rich is installed and the output is a terminal or a
      notebook.

    The result replaces earlier ones of the same key. A kernel that fails is reported in the result
    and never chosen. Ctrl-C keeps what has been measured, unless the store has a result of the key.

    Raises ValueError for other arguments, FakeTensors and unknown options, and RuntimeError if no
    candidate could be timed.
    """
    if callable(args):
        products = products_of(args, *operands)
        if len(products) != 1:
            raise ValueError(f"the call launches {len(products)} products; tune each by its own")
        (args,) = products
    elif operands:
        raise TypeError(
            f"args is a {type(args).__name__}, and operands follow; pass arguments such as "
            "GemmArguments alone, or a function in front: autotune(cutlass_api.linear, x, weight)"
        )
    if search not in ("halving", "exhaustive"):
        raise ValueError(f'search is {search!r}; pass "halving" or "exhaustive"')
    if isinstance(budget, bool) or (budget is not None and not budget > 0):
        raise ValueError(f"budget is {budget!r}; pass a positive number of candidates or seconds")
    if isinstance(check, bool):
        checks: dict[str, Any] = {"checks": check}
    elif 0 < check < math.inf:
        checks = {"checks": True, "tolerance": float(check)}
    else:
        raise ValueError(f"check is {check!r}; pass True, False or a positive tolerance")
    benchmarks = _benchmarks(args, devices, checks)
    candidates = list(_get_kernels(args) if kernels is None else kernels)
    if not candidates:
        raise ValueError(
            "there is no kernel to tune: "
            + ("get_kernels(args) is empty" if kernels is None else "kernels is empty")
        )
    most = len(candidates) if search == "exhaustive" else CANDIDATES
    seconds = None
    if isinstance(budget, Integral):
        most = min(most, int(budget))
    elif budget is not None:
        seconds = budget
    return tune(
        benchmarks,
        _candidates(benchmarks[0], candidates[:most]),
        _key_of(benchmarks[0], key),
        seconds=seconds,
        untried=max(len(candidates) - most, 0),
        progress=progress,
    )


def _candidates(benchmark: TuningBenchmark, kernels: Sequence[Kernel]) -> dict[str, Candidate]:
    return {
        kernel.metadata.kernel_name: Candidate(
            kernel, partial(benchmark.compile, kernel), partial(_core.tuning_identity, kernel)
        )
        for kernel in kernels
    }


def _benchmarks(
    args: Any, devices: "str | Sequence[int] | None", checks: dict[str, Any]
) -> list[TuningBenchmark]:
    """A benchmark on each device: all of one name, because other times do not compare."""
    if devices is None:
        return [TuningBenchmark(args, **checks)]
    if isinstance(devices, str):
        if devices != "all":
            raise ValueError(f'devices is {devices!r}; pass "all", or a list of ordinals')
        first = TuningBenchmark(args, **checks)
        others = [TuningBenchmark(args, device=other, **checks) for other in first.alike()[1:]]
        return [first, *others]
    ordinals = list(dict.fromkeys(devices))
    if not ordinals:
        raise ValueError("devices is empty; pass ordinals, or None for the operands' GPU")
    alike = TuningBenchmark(args).alike()
    for ordinal in ordinals:
        if ordinal not in alike:
            raise ValueError(
                f"devices has {ordinal}, and the GPUs of the name of the operands' GPU are "
                f"{alike}; times of other GPUs do not compare"
            )
    return [TuningBenchmark(args, device=ordinal, **checks) for ordinal in ordinals]


def _get_kernels(args: Any) -> list[Kernel]:
    found = _core.get_kernels(args)
    # Kernels for any strides are slower where others serve.
    return [kernel for kernel in found if not _is_simt(kernel)] or list(found)


def _is_simt(kernel: Kernel) -> bool:
    return isinstance(kernel, _core.SimtGemmKernel)


def _key_of(benchmark: TuningBenchmark, key: "str | Callable[[Extents], Extents]") -> Key:
    if isinstance(key, str):
        if key not in ("exact", "pow2"):
            raise ValueError(f'key is {key!r}; pass "exact", "pow2" or a function of the extents')
        return Key(benchmark.key(key))
    # Another process may have another function of this name.
    name = f"{getattr(key, '__qualname__', type(key).__name__)}@{id(key):x}"
    text = benchmark.key(name, tuple(key(benchmark.extents)))
    # From now on, rankings of this process look for keys of this function, too.
    _core.register_tuning_key(name, key)
    return Key(text, persists=False)


@contextmanager
def enabled() -> Iterator[None]:
    """Tunes products inside a ``with`` block, as ``CUTLASS_API_TUNE=record`` does: the first call
    of ``matmul`` or an operator on a new problem times its kernels, and stores the results. The
    mode belongs to the process, not to the thread. On the CPU, nothing is tuned::

        with cutlass_api.tuning.enabled():
            model(x)
    """
    _modes.append("record")
    _core.replace_tuning_mode("record")
    try:
        yield
    finally:
        _modes.pop()
        _core.replace_tuning_mode(_modes[-1] if _modes else None)


#: The modes of the blocks that are entered.
_modes: list[str] = []


def _record(benchmark: TuningBenchmark, kernels: Sequence[Kernel]) -> None:
    """Tunes a problem of ``matmul`` or an operator at its first call, with
    ``CUTLASS_API_TUNE=record``; once in a process, whether it succeeds or not."""
    key = benchmark.key("exact")
    if key not in _recorded_keys:
        _recorded_keys.add(key)
        tune([benchmark], _candidates(benchmark, kernels[:CANDIDATES]), Key(key))


_recorded_keys: set[str] = set()


__all__ = [
    "AutotunedKernel",
    "ImportReport",
    "StoredResult",
    "Trial",
    "TuningResult",
    "autotune",
    "autotuned",
    "clear",
    "enabled",
    "export_results",
    "import_results",
    "stored_results",
]
