"""Passes the samples of an operator through a transform, and compares the results with torch's."""

import contextlib
import re
from collections.abc import Callable, Sequence
from traceback import clear_frames
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from operators.calls import Arguments, Call, writes
from operators.case import REFUSED, WORKS, Case, expected, samples
from operators.transforms import EAGER, Tensors, Transform

#: The largest error of sums in float32 and float64, in units of the rounding error of the result.
TOLERANCE = 64
#: The same for float8 on a GPU, relative to the largest value: Hopper keeps 14 bits of such sums.
TRUNCATION = 2**-12
#: The largest error relative to torch's own, of results that are rounded more than once.
OWN_ERRORS = 2
F64_EPS = torch.finfo(torch.float64).eps
#: torch multiplies these on the CPU alone.
INTEGERS = (torch.int8, torch.uint8, torch.int64)
#: The least magnitude of what a small result is computed of.
LEAST_SCALE = 0.25
#: What a refusal says: the name of an operator or of a function, or which dtypes it does not serve.
NAMED = re.compile(r"cutlass_api(::|\.)\w+|no kernel computes \w+ @ \w+")
#: torch's errors in code that is wrong.
BUGS = (AssertionError, AttributeError, IndexError, KeyError, TypeError)
#: Our dtypes where torch's differ. Sums of int8 do not overflow.
OTHER_DTYPES = {torch.int8: torch.int32}
#: Magnitudes from which numbers are stored as NaN or infinity.
OVERFLOW = {
    torch.float8_e4m3fn: (464, torch.nan),
    torch.float8_e5m2: (61440, torch.inf),
    torch.float16: (65520, torch.inf),
}


#: By the identity of samples, which a process keeps: whether the operator works eagerly.
EAGERLY: dict[int, bool] = {}


class Attempt:
    """The results of a transform, or its error."""

    def __init__(self, run: Callable[[Call], Tensors], call: Call) -> None:
        self.results: Tensors = []
        self.error: Exception | None = None
        try:
            self.results = run(call)
        except Exception as error:
            # In PyTorch 2.11 the modes of a checkpoint whose function raises stay active as long as
            # its frame exists.
            clear_frames(error.__traceback__)
            self.error = error


def outcomes(case: Case, transform: Transform, arguments: Sequence[Arguments]) -> set[str]:
    """What the samples of an operator do. A failure names the sample."""
    rest, found = list(arguments), set()
    if transform.is_joint and len(rest) > 1:
        ready = [x for x in rest if works_eagerly(case, x)]
        with contextlib.suppress(AssertionError):
            if ready and outcome(case, transform, ready) == WORKS:
                found = {WORKS}
                rest = [x for x in rest if not any(x is each for each in ready)]
    for sample in rest:
        try:
            result = outcome(case, transform, [sample])
            if result not in (expected(case, transform), None):
                error = Attempt(transform.run, ours(case, [sample])).error
                raise AssertionError(f"{result}: {error!r}")
            found.add(result)
        except AssertionError as error:
            message = f"{case.name}, {transform.name}, {described(sample)}: {error}"
            raise AssertionError(message) from error
    return found - {None}


def works_eagerly(case: Case, sample: Arguments) -> bool:
    if id(sample) not in EAGERLY:
        EAGERLY[id(sample)] = outcome(case, EAGER, [sample]) == WORKS
    return EAGERLY[id(sample)]


def described(sample: Arguments) -> str:
    def of(x: Any) -> Any:
        return f"{x.dtype}{list(x.shape)}" if isinstance(x, torch.Tensor) else x

    return str(tree_map(of, tuple(sample)))


def ours(case: Case, arguments: Sequence[Arguments]) -> Call:
    return Call(case.ours, arguments, case.into, case.leaves)


def outcome(case: Case, transform: Transform, arguments: Sequence[Arguments]) -> str | None:
    """Whether our operator works or refuses by name; None if torch's does not work, either.

    Raises AssertionError if the results differ from torch's.
    """
    found = Attempt(transform.run, ours(case, arguments))
    if expected(case, transform) == REFUSED and is_refusal(found.error):
        return REFUSED
    into = case.into and writes(case.theirs)
    tensors = [x for x in tree_leaves(arguments) if isinstance(x, torch.Tensor)]
    truncates = any(x.is_cuda and x.dtype in OVERFLOW and x.itemsize == 1 for x in tensors)
    if any(x.dtype in INTEGERS for x in tensors):
        arguments = tree_map(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x, arguments)
    call = Call(case.theirs, arguments, into, case.leaves)
    exact = case.wide or case.theirs
    wide = call.widened(exact)
    # The results of rounded operands are float64.
    torchs = Attempt(transform.reference, wide if transform.is_rounded else call)
    wanted = torchs if transform.is_rounded else Attempt(transform.reference, wide)
    if wanted.error is not None or (torchs.error is not None and case.wide is None):
        error = torchs.error or wanted.error
        assert found.error is not None, f"torch refuses, ours computes: {error!r}"
        return None
    if found.error is not None:
        if is_refusal(found.error):
            return REFUSED
        if type(Attempt(transform.run, call).error) is type(found.error):  # torch refuses, too
            return None
        raise AssertionError(f"no refusal by name: {found.error!r}") from found.error
    assert len(found.results) == len(wanted.results)
    eps, terms, narrow = transform.eps, None, None if transform.is_rounded else torchs
    if transform.is_rounded:
        eps = max(map(precision, [*call.tensors, *Attempt(EAGER.run, call).results]))
    for at, (x, exact) in enumerate(zip(found.results, wanted.results, strict=True)):
        dtype = torchs.results[at].dtype if torchs.results else x.dtype
        assert x.dtype in (dtype, OTHER_DTYPES.get(dtype)), f"{x.dtype}, torch returns {dtype}"
        unit = max(eps, precision(x))
        # Sums of narrower operands are float32, also where the loss is float64.
        sums = torch.finfo(torch.float64 if unit <= F64_EPS else torch.float32).eps
        bound = transform.roundings * unit + TOLERANCE * sums + truncates * TRUNCATION
        error = error_of(x, exact)
        if error > bound and (transform.roundings > 1 or truncates):
            # Where terms cancel, errors are relative to the sum of their magnitudes.
            terms = terms or Attempt(transform.reference, wide.of_magnitudes())
            if terms.error is None:
                bound *= max(1, scale_of(terms.results[at]) / scale_of(exact))
        if error > bound and transform.roundings > 1:
            # Where terms overflow, torch's results of such operands are as wrong.
            narrow = narrow or Attempt(transform.reference, call)
            if narrow.error is None:
                bound = max(bound, OWN_ERRORS * error_of(narrow.results[at], exact))
        assert error <= (bound if x.is_floating_point() else 0), f"error {error:.3g} in {x.dtype}"
    return WORKS


def is_refusal(error: BaseException | None) -> bool:
    """Whether an error, or one of its causes, names the operator, and none is one of wrong code."""
    is_named = False
    while error is not None:
        names = NAMED.search(str(error)) is not None
        if isinstance(error, BUGS) and not (names and isinstance(error, TypeError)):
            return False
        is_named = is_named or names
        error = error.__cause__
    return is_named


def error_of(x: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error of a result, relative to the largest of the exact values."""
    assert x.shape == exact.shape, f"{list(x.shape)}, torch returns {list(exact.shape)}"
    if not x.numel():
        return 0
    if x.dtype in OVERFLOW:
        limit, beyond = OVERFLOW[x.dtype]
        exact = torch.where(exact.abs() < limit, exact, beyond * exact.sign())
    x, exact = x.to("cpu", torch.float64), exact.to("cpu", torch.float64)
    error = (x - exact).abs()
    same = (x == exact) | (x.isnan() & exact.isnan())
    largest = torch.where(same, 0, error).nan_to_num(nan=torch.inf).max().item()
    return largest / scale_of(exact)


def scale_of(exact: torch.Tensor) -> float:
    """The largest of the exact values."""
    scale = exact.double().nan_to_num(nan=0, posinf=0, neginf=0).abs().max().item()
    return max(scale, LEAST_SCALE)


def precision(x: torch.Tensor) -> float:
    return torch.finfo(x.dtype).eps if x.is_floating_point() else 0


# ---- choices of samples --------------------------------------------------------------------------


def chosen(
    case: Case, transform: Transform, device: str, turn: int | None, is_whole: bool = False
) -> list[Arguments]:
    """All samples of all dtypes. With ``turn``, a number: the first sample of the first dtype, the
    same with other strides, and one of each other dtype, which depends on the turn. Of nested
    transforms, one of these. ``is_whole``: a third of the first dtype.
    """
    found = [samples(case, dtype, device) for dtype in case.dtypes]
    found = [[x for x in each if transform.serves(x)] for each in found]
    if turn is None and transform.is_slow:  # all of the first dtype, some of the others
        found[1:] = [each[:2] for each in found[1:]]
    if turn is None:
        return [x for each in found for x in each]
    first, *others = found
    few = first[turn % 3 :: 3] or first if is_whole else first[:2]
    few = [*few, *(each[turn % len(each)] for each in others if each)]
    floats = [x for x in few if Call(len, [x]).leaves]
    is_whole = is_whole or not transform.outer or not floats
    return few if is_whole else [floats[turn % len(floats)]]
