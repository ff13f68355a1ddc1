"""The record of an operator of ``torch.ops.cutlass_api``, from which its registrations are made."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

#: Owns the registrations: they last until the process ends.
LIBRARY = torch.library.Library("cutlass_api", "DEF")
#: The operators, as torch's dispatcher calls them.
OPS: Any = torch.ops.cutlass_api
#: The types of devices that are served.
DEVICES = ("cpu", "cuda", "meta")
#: Kernels are chosen for the strides at hand, so compiled code keeps the strides of eager code.
TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)


class Call:
    """The arguments of a call, as attributes with the schema's names, defaults included.

    Rules read their arguments here, so that none of them repeats a schema. In place of tensors, a
    rule for FLOPs gets shapes, one for sharding DTensor's specs, and one for vmap a second call
    with the mapped dimensions.
    """

    #: For a rule for FLOPs: the shape of the result.
    out_shape: Any

    def __init__(self, operator: "Operator", values: Sequence[Any]) -> None:
        self.operator = operator
        self.__dict__.update(zip(operator.names, values, strict=True))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"cutlass_api::{self.operator.name} has no argument {name}")

    @property
    def factors(self) -> tuple[Any, Any]:
        """The arguments A and B of a product, which have other names in some schemas."""
        a, b = self.operator.factors
        return getattr(self, a), getattr(self, b)

    @property
    def others(self) -> dict[str, Any]:
        """The tensors and lists of tensors that are passed, except for the factors, by name."""
        names = [name for name in self.operator.tensors if name not in self.operator.factors]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def replace(self, **values: Any) -> "Call":
        return Call(self.operator, list({**self.by_name, **values}.values()))

    @property
    def by_name(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.operator.names}

    def run(self, operator: Any = None, **others: Any) -> Any:
        """Calls the operator, or another one, with other options that this one lacks."""
        args, options = self.operator.split(list(self.by_name.values()))
        return (operator or self.operator.overload)(*args, **{**options, **others})


class NoDerivative(Exception):
    """Raised by ``save`` of a gradient formula: backward refuses a gradient.

    ``advice``: what to call instead, as an infinitive. ``condition``: what the refusal depends on.
    ``names``: the arguments without a derivative; None: all that require grad.
    """

    def __init__(self, advice: str, condition: str = "", names: Sequence[str] | None = None):
        super().__init__(advice)
        self.advice, self.condition, self.names = advice, condition, names


class Gradient(NamedTuple):
    """A gradient formula. ``backward`` computes with operators that can be differentiated again.

    ``save(ctx, call, output)`` saves what ``backward`` needs, and raises :class:`NoDerivative` for
    what has no gradient. ``backward(ctx, needs, *grads)`` returns the gradients by the names of
    arguments, a list for a list. ``needs``: a call with a boolean in place of each tensor.
    ``stores(call)``: the operator that also stores what ``backward`` would compute again, and whose
    first output is the result; None: no other one. A dispatch mode of the user sees this one alone.
    """

    save: Callable[[Any, Call, Any], None]
    backward: Callable[..., dict[str, Any]]
    stores: Callable[[Call], str | None] | None = None


class Lowering(NamedTuple):
    """The product that Inductor offers kernels for in place of a call.

    ``operands``: the arguments of the call that are operands of the epilogue, in its order, a list
    for its members. ``epilogue``: the source of the epilogue; None: the product itself.
    ``out_dtype``: the dtype of the output. ``offsets``: the argument that holds the offsets of a
    grouped product. ``weight``: of a weight whose fields are among the operands, the name of its
    class, and the activation; ``epilogue`` is None if operands are computed from the fields, and
    ``element`` is the type of elements of 4 bits. ``joint``: how many of the operands behind the
    first are weights of one product; biases follow them. 0 for another product.
    """

    operands: Sequence[str] = ()
    epilogue: str | None = None
    out_dtype: torch.dtype | None = None
    fast_sums: bool = False
    offsets: str | None = None
    weight: dict[str, Any] | None = None
    element: str | None = None
    joint: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Operator:
    """An operator: every rule that torch registers, and its row of the guide to PyTorch.

    - ``schema``: as ``torch.library`` takes it.
    - ``compute``: the function that runs for tensors of the CPU and CUDA, and for FakeTensors and
      meta tensors, of which it checks what the launch of real tensors checks. With ``has_out``, it
      takes ``out=``, too.
    - ``gradient``: a formula, or, if there is none, what to call instead, as :class:`NoDerivative`.
    - ``vmap``: ``vmap(call, dims, size)`` returns the output of ``size`` examples and its mapped
      dimension, as ``torch.library.register_vmap``. ``dims``: a call with the mapped dimension in
      place of each tensor, None for a tensor that is not mapped.
    - ``flops``: the number of floating-point operations, from a call with shapes.
    - ``sharding``: the :class:`_labels.Rule` of a call with specs of DTensors.
    - ``factors``: the names of the arguments A and B of a product, for the rules of all products.
    - ``batched``: the operator that computes a batch of this product; None: this one.
    - ``autocast``: the names of the operands that autocast casts if they hold floats, or
      ``autocast(call, cast)``, which returns the call to run. Empty if none is cast, as by torch's
      operators for 8 bits. The overload ``out`` casts nothing, as those of torch.
    - ``has_out``: whether there is an overload ``out``, which takes the output in place of its
      dtype. It returns nothing: compiled code cannot functionalize an operator that returns an
      alias.
    - ``lowering``: ``lowering(call)`` returns what Inductor offers kernels for in place of a call
      of FakeTensors, whose sizes may be symbolic, or None if it calls the operator. Inductor calls
      operators without the attribute as they are, and decomposes none.
    - ``summary``: the result, as the guide's table says. Empty for an operator that autograd calls.
    """

    schema: str
    compute: Callable[..., Any]
    gradient: Gradient | str
    vmap: Callable[[Call, Call, int], tuple[Any, Any]]
    flops: Callable[[Call], Any]
    sharding: Callable[[Call], Any]
    factors: tuple[str, ...] = ()
    batched: str | None = None
    autocast: Sequence[str] | Callable[[Call, Callable[[Any], Any]], Call] = ()
    has_out: bool = True
    lowering: Callable[[Call], Lowering | None] | None = None
    summary: str = ""

    @cached_property
    def name(self) -> str:
        return self.schema.partition("(")[0]

    @cached_property
    def overload(self) -> Any:
        return getattr(OPS, self.name).default

    @cached_property
    def arguments(self) -> Sequence[Any]:
        return self.overload._schema.arguments  # type: ignore[no-any-return]

    @cached_property
    def names(self) -> list[str]:
        return [argument.name for argument in self.arguments]

    @cached_property
    def tensors(self) -> list[str]:
        """The arguments that are tensors or lists of tensors."""
        return [each.name for each in self.arguments if "Tensor" in str(each.type)]

    @cached_property
    def keywords(self) -> list[str]:
        return [argument.name for argument in self.arguments if argument.kwarg_only]

    def values(self, args: Sequence[Any], options: dict[str, Any]) -> list[Any]:
        """The arguments of a call in the order of the schema, defaults included."""
        rest = self.arguments[len(args) :]
        return [*args, *(options.get(each.name, each.default_value) for each in rest)]

    def bind(self, args: Sequence[Any], options: dict[str, Any]) -> Call:
        return Call(self, self.values(args, options))

    def split(self, values: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """All arguments in the order of the schema, as positional ones and keywords."""
        count = len(values) - len(self.keywords)
        return values[:count], dict(zip(self.keywords, values[count:], strict=True))

    @property
    def out_schema(self) -> str:
        name, _, rest = self.schema.partition("(")
        arguments = rest.rpartition(") ->")[0]
        arguments = arguments.removesuffix(", ScalarType? out_dtype=None")
        arguments = arguments.removesuffix(", *")
        keywords = "" if ", *, " in arguments else ", *"
        return f"{name}.out({arguments}{keywords}, Tensor(a!) out) -> ()"

    def overloads(self) -> Iterator[tuple[str, str, Callable[..., Any]]]:
        """The name, the schema and the function of each overload."""
        yield self.name, self.schema, self.compute
        if self.has_out:

            def into(*args: Any, out: Tensor, **options: Any) -> None:
                # An epilogue of the user may round to integers.
                if self.factors and "epilogue" not in self.names:
                    factor = args[self.names.index(self.factors[0])]
                    check_out_dtype(f"cutlass_api::{self.name}: out", out.dtype, factor.dtype)
                self.compute(*args, out=out, **options)

            yield f"{self.name}.out", self.out_schema, into

    def register(self) -> None:
        """Defines the overloads, for CPU, CUDA and FakeTensors."""
        for name, schema, function in self.overloads():
            LIBRARY.define(schema, tags=TAGS)
            for key in ("CPU", "CUDA"):
                LIBRARY.impl(name, function, key)
            fake = on_served_devices(function)
            torch.library.register_fake(f"cutlass_api::{name}", fake, lib=LIBRARY)


def check_out_dtype(out: str, dtype: torch.dtype, of_factor: torch.dtype) -> None:
    """Refuses integers for a product of floats, as torch does."""
    if of_factor.is_floating_point and not dtype.is_floating_point:
        raise ValueError(
            f"{out} is {dtype}, which holds no fractions of a product of {of_factor}; pass a "
            "floating-point dtype, and convert the result"
        )


def on_served_devices(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function for FakeTensors, which torch calls for every device."""

    def fake(*args: Any, **options: Any) -> Any:
        for value in args:
            if isinstance(value, Tensor) and value.device.type not in DEVICES:
                raise RuntimeError(f"no kernel for device {value.device}")
        return function(*args, **options)

    return fake
