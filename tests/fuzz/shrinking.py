"""Smaller cases: candidates for the smallest case that fails in the same way."""

from collections.abc import Iterator
from dataclasses import replace

from support.memory import Form

from .cases import ALONG_K, Case, Result, Stage


def smaller(case: Case) -> Iterator[Case]:
    """Cases that are smaller in one way, the largest steps first. Types and kernel stay."""
    yield from _with_less_epilogue(case)
    steps = {"m": 1, "n": 1, "k": case.k_step}
    for name, step in steps.items():
        if (count := getattr(case, name) // step) > 1:
            yield _resized(case, name, count // 2 * step)
    if case.batch is not None:
        yield _without_batch(case)
        if case.batch > 1:
            yield replace(case, batch=case.batch // 2)
    for at in range(len(case.ends)):
        yield replace(case, ends=case.ends[:at] + case.ends[at + 1 :])
    for name in ("a", "b", "out"):
        for form in _plainer(getattr(case, name)):
            yield replace(case, **{name: form})
    for name in ("leading_one", "by_index", "scaled_tensors", "fast_sums"):
        if getattr(case, name):
            yield replace(case, **{name: False})
    for name, step in steps.items():
        if (extent := getattr(case, name)) > step:
            yield _resized(case, name, extent - step)


def _with_less_epilogue(case: Case) -> Iterator[Case]:
    if case.stages:
        yield replace(case, stages=())
    for name in ("a_scales", "b_scales"):
        if (scales := getattr(case, name)) is not None:
            yield replace(case, **{name: None})
            if scales.zeros or scales.swizzled:
                yield replace(case, **{name: replace(scales, zeros="", swizzled=False)})
    if case.codes is not None:
        for name in ("is_permuted", "factor_of_rows"):
            if getattr(case.codes, name):
                yield replace(case, codes=replace(case.codes, **{name: False}))
    for at, stage in enumerate(case.stages):
        before, after = case.stages[:at], case.stages[at + 1 :]
        yield replace(case, stages=before + after)
        results = stage.results
        less = [Stage(stage.expression, stage.operand, results[:-1])] if results else []
        if stage.operand is not None:
            operands = (replace(stage.operand, form=form) for form in _plainer(stage.operand.form))
            less += [replace(stage, operand=operand) for operand in operands]
        for other in less:
            yield replace(case, stages=(*before, other, *after))


def _plainer(form: Form) -> Iterator[Form]:
    """A plain form of the same order, and forms with one property less."""
    plain = Form(form.order)
    if form == plain:
        return
    yield plain
    for name, default in vars(plain).items():
        if getattr(form, name) != default:
            yield replace(form, **{name: default})


def _resized(case: Case, name: str, extent: int) -> Case:
    """The case with another extent. Ends of groups stay within what they divide, or outside."""
    ends = case.ends
    if name == ("k" if case.operation == ALONG_K else "m"):
        ends = tuple(min(end, extent) if end <= case.divided else end for end in ends)
    return replace(case, **{name: extent, "ends": ends})


def _without_batch(case: Case) -> Case:
    def of_matrix(result: Result) -> Result:
        dims = (dim - 1 if dim > 0 else dim for dim in result.dims if dim != 0)
        return replace(result, dims=tuple(dims))

    stages = [replace(each, results=tuple(map(of_matrix, each.results))) for each in case.stages]
    a, b = (replace(form, batches="apart") for form in (case.a, case.b))
    return replace(case, batch=None, stages=tuple(stages), a=a, b=b)
