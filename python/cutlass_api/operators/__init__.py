"""The interface of ``cutlass.operators``, NVIDIA's later name for ``cutlass_api``.

::

    import torch
    import cutlass.operators as ops  # or: from cutlass_api import operators as ops

    a, b = (torch.randn(4096, 4096, device="cuda", dtype=torch.float16) for _ in range(2))
    out = torch.empty_like(a)
    args = ops.GemmArguments(a, b, out, accumulator_type=torch.float32)
    operator = ops.get_operators(args, target_sm="90a")[0]
    artifact = operator.compile(args)
    operator.run(args, artifact)

The kernels, the rules of what they serve and the ranking are those of ``cutlass_api``.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from cutlass_api._core import Status
from cutlass_api.operators import fusion as fusion
from cutlass_api.operators import mma, workspace
from cutlass_api.operators.arch import ArchPortability, TargetSm
from cutlass_api.operators.arguments import (
    DenseTensor,
    EpilogueArguments,
    GemmArguments,
    GroupedGemmArguments,
    IndexPtrGroupedGemmArguments,
    Load,
    Operand,
    PerformanceControls,
    RuntimeArguments,
    ScaledOperand,
    ScaleMode,
    ScaleSwizzleMode,
    Store,
    Transport,
)
from cutlass_api.operators.artifact import CompiledArtifact
from cutlass_api.operators.base import Operator
from cutlass_api.operators.config import GlobalOptions
from cutlass_api.operators.export import register as register
from cutlass_api.operators.heuristics import (
    Heuristic,
    available_heuristics,
    get_heuristic,
    register_heuristic,
)
from cutlass_api.operators.manifest import Manifest
from cutlass_api.operators.metadata import OperatorMetadata
from cutlass_api.operators.providers import (
    CuTeDSLProvider,
    Provider,
    available_providers,
    register_provider,
)
from cutlass_api.operators.typing import NumericLike, TensorLike

#: The version of NVIDIA's package whose interface this is.
__version__ = "0.3.0"


def get_operators(
    args: RuntimeArguments | None = None,
    metadata_filter: Callable[[OperatorMetadata], bool] | None = None,
    target_sm: TargetSm | str | None = None,
    providers: Sequence[Any] | None = None,
    heuristic: Heuristic | None = None,
    limit: int | None = None,
) -> list[Operator]:
    """Operators. Those of this package are ranked by estimated time, fastest first.

    - ``args``: return the operators that serve these arguments; None: return all operators.
    - ``metadata_filter``: a predicate over :class:`OperatorMetadata`.
    - ``target_sm``: return operators for this target, such as ``"90a"``, whatever the operands'
      device; None: for the operands' device, on the CPU those of the CPU.
    - ``providers``: classes of providers; None: all.
    - ``heuristic``: orders the operators anew, and may leave some out.
    - ``limit``: how many to return at most; None: all.

    Raises ValueError if ``limit`` is not positive, TypeError for objects of other classes,
    NotImplementedError for a target that no operator runs on, and RuntimeError if the heuristic
    returns an operator that is new or repeated.
    """
    if limit is not None and not (isinstance(limit, int) and limit > 0):
        kind = ValueError if isinstance(limit, int) else TypeError
        raise kind(f"limit is {limit!r}; pass a positive integer or None")
    if heuristic is not None and (isinstance(heuristic, type) or not hasattr(heuristic, "rank")):
        raise TypeError(
            f"heuristic is {heuristic!r}; pass an instance of a Heuristic, such as "
            "get_heuristic(name)(), or None"
        )
    found = Manifest.get_operators(args, metadata_filter, target_sm, providers)
    if heuristic is not None:
        ranked = heuristic.rank(args, list(found), target_sm=target_sm, limit=limit)
        if not isinstance(ranked, Sequence):
            raise TypeError(
                f"rank of heuristic {type(heuristic).__name__} returned {ranked!r}; return a list "
                "of operators"
            )
        if Counter(map(id, ranked)) - Counter(map(id, found)):
            raise RuntimeError(
                f"heuristic {type(heuristic).__name__} returned operators that are new or "
                "repeated; return some of those that it receives, in another order"
            )
        found = ranked
    return found if limit is None else found[:limit]


__all__ = [
    "ArchPortability",
    "CompiledArtifact",
    "CuTeDSLProvider",
    "DenseTensor",
    "EpilogueArguments",
    "GemmArguments",
    "GlobalOptions",
    "GroupedGemmArguments",
    "Heuristic",
    "IndexPtrGroupedGemmArguments",
    "Load",
    "Manifest",
    "NumericLike",
    "Operand",
    "Operator",
    "OperatorMetadata",
    "PerformanceControls",
    "Provider",
    "RuntimeArguments",
    "ScaleMode",
    "ScaleSwizzleMode",
    "ScaledOperand",
    "Status",
    "Store",
    "TargetSm",
    "TensorLike",
    "Transport",
    "available_heuristics",
    "available_providers",
    "get_heuristic",
    "get_operators",
    "mma",
    "register_heuristic",
    "register_provider",
    "workspace",
]
