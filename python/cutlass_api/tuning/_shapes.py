"""Tunes a table of shapes, for ``python -m cutlass_api tune``."""

from collections.abc import Callable, Sequence
from typing import Any

from cutlass_api.bench.gemm import Inputs, Shape, float32_precision
from cutlass_api.tuning import TuningResult, autotune


def tune_shapes(
    shapes: Sequence[Shape],
    dtypes: Sequence[str],
    show: Callable[[TuningResult], None],
    **options: Any,
) -> list[TuningResult]:
    """Tunes all shapes in all types on random operands; grouped GEMMs in bfloat16 alone, as the
    benchmark. Calls ``show`` with each result. ``options``: of `autotune`."""
    results = []
    for dtype in dtypes:
        with float32_precision(dtype):
            for shape in (shape for shape in shapes if not shape.groups or dtype == "bfloat16"):
                results.append(autotune(Inputs(shape, dtype, sets=1).arguments()[0], **options))
                show(results[-1])
    return results


__all__ = ["tune_shapes"]
