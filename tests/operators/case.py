"""The record of an operator under test, and its samples.

Most samples are those of torch's OpInfo database. Importing it takes 10 s, so that it is imported
when the first samples are made, and only here.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from cutlass_api.ops import OPS
from torch.testing import make_tensor
from torch.utils._pytree import tree_map

from operators.calls import FLOATS, Arguments, Leaves, all_floats
from operators.transforms import Transform

WORKS, REFUSED = "works", "refused"
DENSE = (*FLOATS, torch.int8)
#: Transforms that need derivatives in forward mode.
FORWARD = ("jvp", "jacfwd", "hessian")
#: The transforms that differentiate.
DERIVATIVES = (
    *("backward", "backward of each operand", "backward of backward"),
    *("compiled backward", "compiled autograd", "checkpoint", "selective checkpoint"),
    *("grad", "vjp", "jacrev", *FORWARD),
)
#: Makes a tensor of a shape, by default of the dtype of the samples.
Make = Callable[..., torch.Tensor]


@dataclass(frozen=True, eq=False, kw_only=True)
class Case:
    """An operator.

    - ``ours`` and ``theirs``: functions with the same parameters.
    - ``into``: ours with ``out=``.
    - ``wide``: the reference, which gets operands in float64 and int64; by default ``theirs``. If
      it is not ``theirs``, torch's operator may refuse more.
    - ``database``: the name of the operator in torch's database.
    - ``own``: further samples, made by a function of shapes: arguments, of which the last may be a
      dictionary of options.
    - ``leaves``: which tensors are differentiated.
    - ``extends``: the mutations of samples that torch refuses and ours computes.
    - ``skips``: transforms that do not apply to the samples.
    - ``refuses``: the transforms that it refuses by name. ``lacks``: those that torch refuses, too.
    """

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    into: Callable[..., Any] | None = None
    wide: Callable[..., Any] | None = None
    database: str | None = None
    own: Callable[[Make], Iterable[Sequence[Any]]] = lambda t: ()
    dtypes: Sequence[torch.dtype] = DENSE
    leaves: Leaves = all_floats
    refuses: Sequence[str] = FORWARD
    lacks: Sequence[str] = ()
    extends: Sequence[str] = ()
    skips: Sequence[str] = ()


@cache
def samples(case: Case, dtype: torch.dtype, device: str) -> list[Arguments]:
    """The samples of an operator, each followed by the same with other strides."""
    torch.manual_seed(0)
    found = []
    for info in infos(case.database):
        if dtype in info.supported_dtypes(device):
            for each in info.sample_inputs(device, dtype, requires_grad=False):
                for sample in (each, each.noncontiguous()):
                    found.append(Arguments((sample.input, *sample.args), sample.kwargs))

    def t(*shape: int, dtype: torch.dtype = dtype, low: int = -3, high: int = 4) -> torch.Tensor:
        return make_tensor(shape, dtype=dtype, device=device, low=low, high=high)

    for args in case.own(t):
        *given, options = args if isinstance(args[-1], dict) else (*args, {})
        arguments = Arguments(tuple(given), options)
        found += [arguments, tree_map(strided, arguments)]
    # torch drops the fraction of factors of integers, ours does not.
    is_float = dtype.is_floating_point
    return [x for x in found if is_float or not any(is_fraction(y) for y in x.options.values())]


def strided(value: Any) -> Any:
    """A matrix of the other order of memory, in every second column."""
    if not isinstance(value, torch.Tensor) or value.dim() < 2 or not value.numel():
        return value
    return torch.stack([value, value]).permute(*range(1, value.dim() - 1), -1, -2, 0)[..., 0].mT


def is_fraction(value: Any) -> bool:
    return isinstance(value, float) and value % 1 != 0


@cache
def infos(name: str | None) -> list[Any]:
    if name is None:
        return []
    from torch.testing._internal.common_methods_invocations import op_db

    return [info for info in op_db if info.name == name and info.variant_test_name != "decomposed"]


def expected(case: Case, transform: Transform) -> str | None:
    """Whether the operator works or refuses; None if torch refuses."""
    names = {transform.name, *re.findall(r"\w+", transform.name if transform.outer else "")}
    is_served = not transform.dtypes or {*transform.dtypes} & {*case.dtypes}
    if names & {*case.lacks} or not is_served:
        return None
    return REFUSED if names & {*case.refuses} else WORKS


def operator(name: str) -> Callable[..., Any]:
    """An operator, as a function that can be pickled."""
    return partial(call_operator, name)


def call_operator(name: str, *args: Any, **options: Any) -> Any:
    return getattr(OPS, name)(*args, **options)
