"""Arguments that public functions refuse by name. torch's dispatcher would print its schemas."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

#: By the annotation of a parameter: the classes that are accepted, and what to pass.
KINDS = {
    Tensor: (Tensor, "a tensor"),
    Tensor | None: ((Tensor, type(None)), "a tensor or None"),
    torch.dtype: (torch.dtype, "a torch.dtype, such as torch.int8"),
    torch.dtype | None: ((torch.dtype, type(None)), "a torch.dtype, such as torch.int8"),
}
LISTS = (Sequence[Tensor], Sequence[Tensor] | None)
#: A public function belongs to the package, or to a public module of it.
PACKAGE = "cutlass_api"


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which raises TypeError for arguments that are no tensor or no dtype, if it
    fails."""
    parameters = list(inspect.signature(function).parameters.values())
    kinds = {each.name: KINDS[each.annotation] for each in parameters if each.annotation in KINDS}
    lists = [each.name for each in parameters if each.annotation in LISTS]
    names = [each.name for each in parameters]
    optional = {each.name for each in parameters if each.default is None}
    module = function.__module__.removeprefix(f"{PACKAGE}.").partition(".")[0]
    public = ".".join((PACKAGE, *([] if module == "ops" else [module]), function.__name__))

    def check(args: tuple[Any, ...], options: dict[str, Any]) -> None:
        for name, value in (*zip(names, args, strict=False), *options.items()):
            if name in kinds and not isinstance(value, kinds[name][0]):
                refuse_class(public, name, value, kinds[name][1])
            elif type(value).__module__.startswith("torchao."):
                remedy = f"{name}.dequantize(), or a weight of cutlass_api.weights"
                raise TypeError(
                    f"{public}: {name} is a torchao {type(value).__name__}; pass {remedy}"
                ) from None
            elif name in lists and not (value is None and name in optional):
                refuse_members(public, name, value)

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        try:
            return function(*args, **options)
        except Exception:  # checks in front would take longer than the product's launch
            check(args, options)
            raise

    return cast(Callable[P, R], call)


def refuse_class(function: str, name: str, value: Any, remedy: str) -> None:
    """Raises TypeError, unless the value stands for a tensor, as the proxies of torch.fx."""
    if not hasattr(type(value), "__torch_function__"):
        raise TypeError(f"{function}: {name} is {shown(value)}; pass {remedy}") from None


def refuse_members(function: str, name: str, values: Any) -> None:
    if not isinstance(values, (list, tuple)):
        refuse_class(function, name, values, "a list of tensors")
        return
    for at, value in enumerate(values):
        if not isinstance(value, Tensor):
            refuse_class(function, f"{name}[{at}]", value, "a tensor")


def shown(value: Any) -> str:
    """A value in an error: a short constant, else its class."""
    if value is None or isinstance(value, (str, int, float, torch.dtype)):
        return repr(value)
    return f"a {type(value).__name__}"
