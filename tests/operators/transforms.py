"""What PyTorch does with a function: each transform runs calls and returns tensors to compare."""

import copy
import io
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from cutlass_api.ops._operators import OPERATORS
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointPolicy, checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts as selective_contexts
from torch.utils.flop_counter import FlopCounterMode

from operators.calls import RUNS_ALL, Arguments, Call
from operators.functional import FUNCTIONALS, applied, looped, loss, mapped, vmap

Tensors = list[torch.Tensor]
#: The most elements of samples of transforms that run calls many times.
MEDIUM = 1024


def eager(call: Call) -> Tensors:
    return call.run()


@dataclass(frozen=True, eq=False, kw_only=True)
class Transform:
    """``run``: the results of calls that pass through the transform.

    - ``reference``: the function that runs torch's calls.
    - ``dtypes``: those of samples; by default all.
    - ``roundings``: how often a result was rounded to its dtype at most.
    - ``is_joint``: whether calls of all samples pass through at once.
    - ``largest``: the most elements that the tensors of a sample have.
    - ``is_cheap``: whether all samples of one dtype take little time.
    - ``is_rounded``: whether the operands are rounded from float64.
    - ``eps``: the least rounding error of the operands.
    - ``outer``, ``inner``: the names of two nested transforms.
    """

    name: str
    run: Callable[[Call], Tensors]
    reference: Callable[[Call], Tensors]
    dtypes: Sequence[torch.dtype] = ()
    roundings: int = 1
    is_joint: bool = False
    largest: float = math.inf
    is_cheap: bool = False
    is_rounded: bool = False
    eps: float = 0
    outer: str = ""
    inner: str = ""

    @property
    def is_slow(self) -> bool:
        return self.is_joint or bool(self.outer and not self.is_cheap)

    def serves(self, sample: Arguments) -> bool:
        tensors = [x for x in tree_leaves(sample) if isinstance(x, torch.Tensor)]
        floats = [x.dtype for x in tensors if x.is_floating_point()]
        if self.dtypes and not all(x in self.dtypes for x in floats):
            return False
        return sum(x.numel() for x in tensors) <= self.largest


# ---- out -----------------------------------------------------------------------------------------


def out(call: Call) -> Tensors:
    """Into tensors of both orders of memory. Counts as a write of each."""
    outs = [torch.full_like(x, 7) for x in call.run()]
    outs += [reordered(x) for x in outs]
    half = len(outs) // 2
    versions = [x._version for x in outs]
    for part in (outs[:half], outs[half:]):
        call.write(part, call.tensors)
    for x, version in zip(outs, versions, strict=True):
        assert x._version > version, "no write of out is counted"
    return outs


def reordered(x: torch.Tensor) -> torch.Tensor:
    """The same values in another order of memory."""
    if x.dim() > 1:
        return x.mT.contiguous().mT
    return x.repeat_interleave(2)[::2] if x.dim() else x.clone()


def twice(call: Call) -> Tensors:
    return call.run() * 2


# ---- traces --------------------------------------------------------------------------------------


def compiled(call: Call, **options: Any) -> Tensors:
    torch._dynamo.reset()
    return torch.compile(call.__call__, **options)(*call.tensors)


class Module(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> Any:
        return self.function(*tensors)


def exported(call: Call, strict: bool = False) -> Tensors:
    program = torch.export.export(Module(call), tuple(call.tensors), strict=strict)
    return program.module()(*call.tensors)


def made_fx(call: Call) -> Tensors:
    return make_fx(call, tracing_mode="symbolic")(*call.tensors)(*call.tensors)


def symbolic_trace(call: Call) -> Tensors:
    """With the tensors as arguments by name: torch.fx traces no variable number of arguments."""
    names = [f"x{at}" for at in range(len(call.tensors))]
    scope = {"call": call}
    exec(f"def function({', '.join(names)}):\n    return call({', '.join(names)})", scope)
    return torch.fx.symbolic_trace(scope["function"])(*call.tensors)


# ---- without data --------------------------------------------------------------------------------


def fake(call: Call) -> Tensors:
    mode = FakeTensorMode()
    return ones(call, call(*map(mode.from_tensor, call.tensors)))


def meta(call: Call) -> Tensors:
    results = call(*(described(x, "meta") for x in call.tensors))
    assert all(x.is_meta for x in results)
    return ones(call, results)


def ones(call: Call, results: Tensors) -> Tensors:
    """Tensors of ones, of the shapes and dtypes of results, which have the strides of real ones."""
    real = [x.stride() for x in call.run() if x.numel()]
    assert [x.stride() for x in results if x.numel()] == real, "other strides than of real results"
    return [described(x, "cpu") for x in results]


def described(x: torch.Tensor, device: str) -> torch.Tensor:
    y = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)
    return y if device == "meta" else y.fill_(1)


def shapes(call: Call) -> Tensors:
    return [torch.ones_like(x) for x in call.run()]


# ---- modes ---------------------------------------------------------------------------------------


def flops(call: Call) -> Tensors:
    with FlopCounterMode(display=False) as counter:
        results = call.run()
    return [*results, torch.tensor(counter.get_total_flops())]


def autocast(call: Call, dtype: torch.dtype) -> Tensors:
    with torch.autocast(call.tensors[0].device.type, dtype=dtype):
        return call.run()


def inference(call: Call) -> Tensors:
    with torch.inference_mode():
        results = call.run()
    assert all(x.is_inference() for x in results)
    return results


# ---- autograd ------------------------------------------------------------------------------------


def with_leaves(call: Call) -> Tensors:
    tensors = list(call.tensors)
    for at in call.leaves:
        tensors[at] = tensors[at].detach().requires_grad_()
    return tensors


def gradients(call: Call, tensors: Tensors, results: Tensors, order: int = 1) -> Tensors:
    """The gradients of the leaves, and of a scalar function of these gradients."""
    leaves, found = [tensors[at] for at in call.leaves], []
    for _ in range(order):
        results = list(torch.autograd.grad(loss(results), leaves, create_graph=order > 1))
        found += results
    return found


def backward(call: Call, function: Callable[..., Any] | None = None, order: int = 1) -> Tensors:
    tensors = with_leaves(call)
    results = (function or call)(*tensors)
    return [x.detach() for x in (*results, *gradients(call, tensors, results, order))]


def each_leaf(call: Call) -> Tensors:
    """The gradient of each tensor alone."""
    found: Tensors = []
    assert call.leaves
    for at in call.leaves:
        found += backward(Call(call.function, call.arguments, leaves=[at]))
    return found


def checkpointed(call: Call) -> Tensors:
    return backward(call, lambda *xs: checkpoint(call, *xs, use_reentrant=False))


class Products(TorchDispatchMode):
    """The products that a call computes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), options: Any = None
    ) -> Any:
        if "cutlass_api" in str(operator):
            self.found.append(operator)
        return operator(*args, **(options or {}))


def selective(call: Call) -> Tensors:
    """A policy that saves the operators that users call: backward computes none again."""
    products = Products()
    named = [each.overload for each in OPERATORS.values() if each.summary]

    def policy(context: Any, operator: Any, *args: Any, **options: Any) -> CheckpointPolicy:
        is_named = operator in named
        return CheckpointPolicy.MUST_SAVE if is_named else CheckpointPolicy.PREFER_RECOMPUTE

    @contextmanager
    def again(saved: Any) -> Iterator[None]:
        with products, saved:
            yield

    def contexts() -> tuple[Any, Any]:
        forward, recompute = selective_contexts(policy)
        return forward, again(recompute)

    results = backward(
        call, lambda *xs: checkpoint(call, *xs, use_reentrant=False, context_fn=contexts)
    )
    assert not products.found, f"backward computes {products.found} again"
    return results


def compiled_autograd(call: Call) -> Tensors:
    """The graph of backward is interpreted. If all samples run, that of the first is compiled."""
    torch._dynamo.reset()
    if RUNS_ALL and len(call.arguments) > 1:
        first = Call(call.function, call.arguments[:1], leaves=call.leaves[:1])
        traced_backward(first, torch.compile(backend="eager"))
    return traced_backward(call, lambda graph: graph)


def traced_backward(call: Call, compiler: Callable[..., Any]) -> Tensors:
    with torch._dynamo.compiled_autograd._enable(compiler):
        tensors = with_leaves(call)
        results = call(*tensors)
        loss(results).backward()
    return [x.detach() for x in (*results, *(tensors[at].grad for at in call.leaves))]


def compiled_backward(call: Call) -> Tensors:
    torch._dynamo.reset()
    return backward(call, torch.compile(call.__call__, backend="aot_eager", fullgraph=True))


def gradcheck(call: Call) -> Tensors:
    torch.autograd.gradcheck(call, with_leaves(call), fast_mode=True)
    return []


def gradgradcheck(call: Call) -> Tensors:
    torch.autograd.gradgradcheck(call, with_leaves(call), fast_mode=True)
    return []


# ---- modules -------------------------------------------------------------------------------------


class Holder(torch.nn.Module):
    """A module that holds the tensors of a call: floats as parameters, others as buffers."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = Call(call.function, call.arguments)
        self.count = len(call.tensors)
        for at, x in enumerate(call.tensors):
            if at in call.leaves:
                self.register_parameter(f"x{at}", torch.nn.Parameter(x))
            else:
                self.register_buffer(f"x{at}", x)

    def forward(self) -> Tensors:
        return self.call(*(getattr(self, f"x{at}") for at in range(self.count)))


def functional_call(call: Call) -> Tensors:
    holder = Holder(call)
    values = dict(holder.named_parameters()) | dict(holder.named_buffers())
    with torch.no_grad():
        return torch.func.functional_call(holder, values, ())


def copied(call: Call) -> Tensors:
    with torch.no_grad():
        return copy.deepcopy(Holder(call))()


def pickled(call: Call) -> Tensors:
    with torch.no_grad():
        file = io.BytesIO()
        torch.save(Holder(call), file)
        return torch.load(io.BytesIO(file.getvalue()), weights_only=False)()


# ---- distributed tensors -------------------------------------------------------------------------


def distributed(call: Call) -> Tensors:
    """Replicated, and sharded along the first dimension, over this process alone."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    mesh = init_device_mesh("cpu", (1,))
    results = []
    for placement in (Replicate(), Shard(0)):
        tensors = [
            DTensor.from_local(x, mesh, [placement if x.dim() else Replicate()])
            for x in call.tensors
        ]
        results += [x.full_tensor() for x in call(*tensors)]
    return results


def collective(call: Call) -> Tensors:
    """Of tensors that a collective operation returns before it ends."""
    return [x.clone() for x in call(*map(AsyncCollectiveTensor, call.tensors))]


def traced(name: str, run: Callable[[Call], Tensors], **options: Any) -> Transform:
    return Transform(name=name, run=run, reference=eager, **options)


def both(name: str, run: Callable[[Call], Tensors], **options: Any) -> Transform:
    return Transform(name=name, run=run, reference=run, **options)


def joint(name: str, run: Callable[[Call], Tensors], **options: Any) -> Transform:
    return Transform(name=name, run=run, is_joint=True, **options)


#: Of transforms with derivatives, whose results are rounded again and again.
DERIVED = {"roundings": 8}
VECTORS = {**DERIVED, "is_rounded": True}
TRANSFORMS = [
    traced("eager", eager, is_cheap=True),
    both("out=", out, is_cheap=True),
    joint("torch.compile", compiled, reference=eager),
    joint("torch.compile (dynamic)", partial(compiled, dynamic=True), reference=eager),
    joint("torch.compile (fullgraph)", partial(compiled, fullgraph=True), reference=eager),
    joint("torch.export", exported, reference=eager),
    joint("torch.export (strict)", partial(exported, strict=True), reference=eager),
    joint("make_fx", made_fx, reference=eager),
    traced("torch.fx.symbolic_trace", symbolic_trace),
    Transform(name="FakeTensor", run=fake, reference=shapes, is_cheap=True),
    Transform(name="meta", run=meta, reference=shapes, is_cheap=True),
    both("FlopCounterMode", flops),
    *(
        both(
            f"autocast ({str(dtype).removeprefix('torch.')})",
            partial(autocast, dtype=dtype),
            eps=torch.finfo(dtype).eps,
            roundings=4,  # of three matrices and the result
        )
        for dtype in (torch.bfloat16, torch.float16)
    ),
    both("inference_mode", inference),
    both("backward", backward, is_cheap=True, **DERIVED),
    both("backward of each operand", each_leaf, **DERIVED),
    both("backward of backward", partial(backward, order=2), is_cheap=True, **DERIVED),
    joint("compiled backward", compiled_backward, reference=backward, **DERIVED),
    joint(
        *("compiled autograd", compiled_autograd),
        reference=backward,
        largest=MEDIUM,
        **DERIVED,
    ),
    both("gradcheck", gradcheck, dtypes=[torch.float64]),
    both("gradgradcheck", gradgradcheck, dtypes=[torch.float64]),
    Transform(name="checkpoint", run=checkpointed, reference=backward, **DERIVED),
    Transform(name="selective checkpoint", run=selective, reference=backward, **DERIVED),
    both("functional_call", functional_call),
    traced("copy.deepcopy", copied),
    traced("torch.save", pickled),
    Transform(name="DTensor", run=distributed, reference=twice),
    traced("AsyncCollectiveTensor", collective),
    Transform(name="vmap", run=mapped, reference=looped, is_cheap=True),
    *(
        both(one.__name__, partial(applied, functionals=[one]), largest=MEDIUM, **VECTORS)
        for one in FUNCTIONALS
        if one is not vmap
    ),
]
EAGER = TRANSFORMS[0]
PAIRS = [
    both(
        f"{outer.__name__}({inner.__name__})",
        partial(applied, functionals=[inner, outer]),
        largest=MEDIUM,
        is_cheap={outer.__name__, inner.__name__} == {"vmap", "grad"},
        outer=outer.__name__,
        inner=inner.__name__,
        **VECTORS,
    )
    for outer in FUNCTIONALS
    for inner in FUNCTIONALS
]
