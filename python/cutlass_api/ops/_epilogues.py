"""The epilogues of the operators, as source text."""

from collections.abc import Mapping, Sequence
from typing import Any

from cutlass_api._batches import second_factor
from cutlass_api._core import trace_epilogue
from cutlass_api.fusion._sources import GATE_DERIVATIVES as GATE_DERIVATIVES
from cutlass_api.fusion._sources import PREACTIVATION_DERIVATIVES as PREACTIVATION_DERIVATIVES
from cutlass_api.fusion._sources import known_activation as known_activation
from cutlass_api.fusion._sources import linear as linear

#: Sources are lines, as :func:`one_line` says.
SUM = "def epilogue(accum, input): D = accum + input; return D"
SCALED = "def epilogue(accum, input, alpha): D = accum * alpha; return D"
SCALED_SUM = "def epilogue(accum, input, beta, alpha): D = accum * alpha + input * beta; return D"
BIAS = "def epilogue(accum, bias): D = accum + bias; return D"
#: Operations of which one float operand makes all operands floats.
ARITHMETIC = ("add", "subtract", "multiply", "divide", "maximum", "minimum")


def gated(activation: str, *biases: str, returns_sums: bool = False) -> str:
    """D = activation(gate) * up, or the expression of gate and up that ``activation`` is.

    gate = accum + gate_bias and up = A @ factor + up_bias, without the biases that are not passed
    by these names. ``returns_sums``: gate and up are further outputs.
    """
    value = activation
    if activation.isidentifier():
        value = f"{known_activation('grouped_gated_mm', activation)}(gate) * up"
    gate, up = (f" + {name}" if name in biases else "" for name in ("gate_bias", "up_bias"))
    return (
        f"def epilogue({', '.join(('accum', 'factor', *biases))}): gate = accum{gate}; "
        f"up = product(factor){up}; D = {value}; return D{', gate, up' if returns_sums else ''}"
    )


def gated_gradient(activation: str) -> str:
    """D = activation(gate) * up, and the gradients of gate and of up from that of D, which is
    accum."""
    return (
        f"def epilogue(accum, gate, up): value = {activation}(gate); D = value * up; "
        f"of_gate = accum * up * ({GATE_DERIVATIVES[activation]}); of_up = accum * value; "
        "return D, of_gate, of_up"
    )


def clamped_swiglu(limit: float, alpha: float) -> str:
    """The gate of gpt-oss, as an expression for :func:`gated`."""
    gate = f"minimum(gate, {limit})"
    return f"(clamp(up, {-limit}, {limit}) + 1) * {gate} * sigmoid({alpha} * {gate})"


def one_line(source: str) -> str:
    """The source of a traced epilogue in one line, as an argument of operators in graphs: torch
    2.11 writes it into a comment of generated code, of which further lines would be statements.
    """
    head, *body = source.splitlines()
    return f"{head} {'; '.join(map(str.strip, body))}"


def scaled(
    *operands: str,
    blocks: Mapping[str, str] | None = None,
    bounds: tuple[int, int] | None = None,
    activation: str | None = None,
) -> str:
    """D = activation(accum * scale_a * scale_b + bias) * scale_result, without what is not an
    operand.

    ``bounds``: of an integer output that saturates, D = clamp(round(D) + zero_point, *bounds).
    ``blocks``: for each factor, ``a`` or ``b``, whose scales vary along K, the arguments of
    ``scale_blocks`` that follow the scales.

    Not cached: torch.compile warns of a cached function in a trace.
    """
    value, blocks = "accum", blocks or {}
    if blocks:
        scales = [f"{factor}=scale_{factor}, {block}" for factor, block in blocks.items()]
        value = f"scale_blocks({', '.join(['accum', *scales])})"
    whole = [f"scale_{factor}" for factor in ("a", "b") if factor not in blocks]
    value = " * ".join([value, *(name for name in whole if name in operands)])
    if "bias" in operands:
        value = f"{value} + bias"
    if activation is not None:
        value = f"{activation}({value})"
    if "scale_result" in operands:
        value = f"({value}) * scale_result"
    if bounds is not None:
        zero = " + zero_point" if "zero_point" in operands else ""
        value = f"clamp(round({value}){zero}, {bounds[0]}, {bounds[1]})"
    return f"def epilogue({', '.join(('accum', *operands))}): D = {value}; return D"


def factor(epilogue: str) -> int | None:
    """The position of the operand that A is multiplied by, too: the argument of `product`."""
    return second_factor(trace_epilogue(epilogue))


def scales_blocks(epilogue: str) -> bool:
    return ("scale_blocks",) in trace_epilogue(epilogue).nodes


def reads_floats(epilogue: str) -> bool:
    """Whether each operation on an integer accumulator also reads a float, if the operands do: then
    the values are those of a float32 accumulator.
    """
    is_float: list[bool] = []
    for node in trace_epilogue(epilogue).nodes:
        kinds = [is_float[at] for at in nodes_of(*node)]
        if kinds and not (any(kinds) if node[0] in ARITHMETIC else all(kinds)):
            return False
        is_float.append(bool(kinds) or node[0] == "input")
    return True


def addends(epilogue: str) -> list[int] | None:
    """The operands that D adds to a multiple of the accumulator; None if D is no such sum.

    Then D of a product is the sum of D over parts of K, where one part alone adds the operands.
    """
    traced = trace_epilogue(epilogue)
    operands = [nodes_of(*node) for node in traced.nodes]
    readers = [at for reads in operands for at in reads]
    # Of each node: whether it grows with the accumulator, None if not linearly.
    grows: list[bool | None] = []
    found: list[int] = []
    for (name, *_), reads in zip(traced.nodes, operands, strict=True):
        kinds = [grows[at] for at in reads]
        if name in ("input", "number"):
            grows.append(False)
        elif name == "accum":
            grows.append(True)
        elif name in ("product", "scale_blocks") or None in kinds:
            grows.append(None)
        elif not any(kinds):
            grows.append(False)
        elif all(kinds):
            grows.append(True if name in ("add", "subtract", "negate") else None)
        elif name == "multiply" or (name == "divide" and kinds[0]):
            grows.append(True)
        elif name in ("add", "subtract"):
            other = reads[kinds.index(False)]
            is_addend = traced.nodes[other][0] == "input" and readers.count(other) == 1
            found += [traced.nodes[other][1]] if is_addend else []
            grows.append(True if is_addend else None)
        else:
            grows.append(None)
    return found if grows[traced.results[0][1]] else None


def nodes_of(name: str, *arguments: Any) -> Sequence[int]:
    """The nodes that a node of an epilogue reads."""
    if name in ("input", "number", "product"):
        return ()
    return arguments[1:] if name == "cast" else arguments


def check_outputs(operator: str, epilogue: str) -> None:
    """Refuses an epilogue with outputs other than D, and with reductions."""
    traced = trace_epilogue(epilogue)
    if traced.results != [("D", traced.results[0][1], False)]:
        raise ValueError(
            f"cutlass_api::{operator}: the epilogue returns {', '.join(traced.outputs)}; the "
            "operator returns D alone and reduces nothing: pass tensors for further outputs to "
            "cutlass_api.matmul, outside of traces and autograd"
        )
