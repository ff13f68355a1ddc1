"""DTensor's placements of the operands and results, made from the rules of the operators.

DTensor picks the way to place the tensors that moves the least data. Importing this module imports
torch.distributed.tensor and registers the rules.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy
from torch.distributed.tensor.experimental import register_sharding

from cutlass_api.ops._labels import Key, Labels, Rule, Spec, extents_of
from cutlass_api.ops._operator import Call, Operator
from cutlass_api.ops._operators import OPERATORS

Placement = Any
Placements = tuple[list[Placement], list[Placement]]


def placements(operator: Operator, *args: Any, **options: Any) -> list[Placements]:
    """All ways to place the tensors of a call along one mesh dimension."""
    call = operator.bind(args, options)
    specs, rule = specs_of(call), operator.sharding(call)
    unknown = rule.inputs.keys() - specs.keys()
    assert not unknown, f"labels of unknown arguments: {unknown}"
    return list(ways(rule, specs))


def specs_of(call: Call) -> dict[Key, Spec]:
    """The tensors among the arguments, also in lists, in order."""
    found: dict[Key, Spec] = {}
    for name in call.operator.tensors:
        value = getattr(call, name)
        if isinstance(value, (list, tuple)):
            found.update({(name, at): spec for at, spec in enumerate(value)})
        elif value is not None:
            found[name] = value
    return found


def ways(rule: Rule, specs: Mapping[Key, Spec]) -> Iterator[Placements]:
    """Outputs and inputs of each way to place the tensors along one mesh dimension."""
    extents = extents_of(specs, rule.inputs)
    devices = next(iter(specs.values())).mesh.size()
    labels = {key: rule.inputs.get(key, ()) for key in specs}

    def divides(name: str) -> bool:
        block = rule.blocks.get(name, 1)
        return block == 1 or (block > 0 and extents[name] % (block * devices) == 0)

    def shards(name: str) -> dict[Key, Placement]:
        return {key: sharded(own, name) for key, own in labels.items()}

    def parts(inputs: dict[Key, Placement]) -> Placements:
        """Placements of which the outputs are partial sums."""
        inputs |= dict.fromkeys(rule.addends, Partial())
        # An output without dimensions is an empty one.
        return [Partial() if own else Replicate() for own in rule.outputs], list(inputs.values())

    replicated = dict.fromkeys(specs, Replicate())
    yield [Replicate() for _ in rule.outputs], list(replicated.values())
    for name in rule.outputs[0]:
        if name is not None and name not in rule.whole and divides(name):
            yield [sharded(own, name) for own in rule.outputs], list(shards(name).values())
    for name in rule.sums:
        if divides(name):
            yield parts(shards(name))
    for factor in rule.factors:
        yield parts({**replicated, factor: Partial()})


def sharded(labels: Labels, name: str) -> Placement:
    return Shard(labels.index(name)) if name in labels else Replicate()


def strategy_of_lists(operator: Operator, schema: Any) -> Any:
    """The strategy of an operator that returns a list, which ``register_sharding`` does not serve.

    Its first argument is its only tensor.
    """
    source, *options = schema.args_schema
    spec = source.strategies[0].output_spec
    found = placements(operator, spec, *options)
    outputs = len(found[0][0])
    lists = [[*results, *inputs] for results, inputs in found]
    return expand_to_full_mesh_op_strategy(spec.mesh, schema, lists, input_index=outputs)


def register(operator: Operator) -> None:
    overload = operator.overload
    propagator = DTensor._op_dispatcher.sharding_propagator
    register_sharding(overload)(partial(placements, operator))
    if any(str(each.type) == "List[Tensor]" for each in overload._schema.returns):
        propagator.register_op_strategy(overload, partial(strategy_of_lists, operator))
    # DTensor caches what it computes for a call. By default, the key has the tensors and integers
    # alone, but dtypes, activations and epilogues count, too.
    has_list = any(str(each.type) == "List[Tensor]" for each in operator.arguments)
    propagator.op_to_schema_info[overload] = RuntimeSchemaInfo(
        0, operator.keywords or None, needs_pytree=has_list
    )


for operator in OPERATORS.values():
    register(operator)
