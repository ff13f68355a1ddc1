"""Epilogue functions that PyTorch generates for the CuTe DSL, in the language of epilogues.

Inductor's NVGEMM backend passes an epilogue as source with calls such as
``cute.math.exp2(x * 1.4426950408889634)`` and ``cute.where(operator.gt(x, y), x, y)``.
"""

import ast
import math
from functools import lru_cache
from typing import Any

from cutlass_api import _core

#: The dtypes that an epilogue may cast to, by the names of ``cutlass``.
_CASTS = {"Float16": "float16", "BFloat16": "bfloat16", "Float32": "float32"}
_NAMED_CASTS = ", ".join(_CASTS)
#: The functions of ``cute.math`` and ``mlir_math`` by the names of the language.
_FUNCTIONS = {
    **{name: name for name in ("sqrt", "rsqrt", "exp", "log", "sin", "cos", "erf", "tanh")},
    "abs": "abs",
    "absf": "abs",
}
#: Functions to another base: the function to base e, the factor of its argument and of its result.
_OTHER_BASES = {
    "exp2": ("exp", math.log(2), None),
    "log2": ("log", None, 1 / math.log(2)),
    "log10": ("log", None, 1 / math.log(10)),
}
_COMPARISONS: dict[str, type[ast.cmpop]] = {
    "eq": ast.Eq,
    "ne": ast.NotEq,
    "lt": ast.Lt,
    "le": ast.LtE,
    "gt": ast.Gt,
    "ge": ast.GtE,
}
_EXTREMA: dict[type[ast.cmpop], str] = {ast.Gt: "maximum", ast.Lt: "minimum"}
#: Numbers that Python has no literal for.
_NUMBERS = {"inf": "math.inf", "-inf": "(-math.inf)", "nan": "(math.inf - math.inf)"}


#: What only generated source has.
_MARKS = ("cute.", "cutlass.", "mlir_math.", "operator.", "float(")


@lru_cache(256)
def translate(source: str) -> str:
    """The source of the same function in the language of epilogues.

    Source in that language, and what this function does not know, stays as it is. Raises
    NotImplementedError for a cast to a dtype that no epilogue casts to.
    """
    if not any(mark in source for mark in _MARKS):
        return str(source)
    return ast.unparse(_Translation().visit(ast.parse(source)))


def check(source: str) -> None:
    """Raises NotImplementedError if the language of epilogues cannot express generated source."""
    try:
        _core.trace_epilogue(translate(source))
    except (ValueError, TypeError, SyntaxError) as error:
        raise NotImplementedError(f"no kernel fuses this epilogue: {error}") from error


class _Translation(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name):
            return _number(node) or node
        if not isinstance(node.func, ast.Attribute):
            return node
        owner, name, operands = ast.unparse(node.func.value), node.func.attr, node.args
        match owner, name:
            case "cute", "full_like":
                return operands[1]
            case "cute", "TensorSSA":
                return operands[0]
            case "cute", "where":
                return _extremum(*operands) or _call("where", *operands)
            case (("cute.math" | "mlir_math"), _):
                return _function(name, operands) or node
            case "operator", _ if name in _COMPARISONS:
                return ast.Compare(operands[0], [_COMPARISONS[name]()], [operands[1]])
            case "cutlass", _ if name in _CASTS:
                value = operands[0]
                return value if _constant(value) is not None else _cast(value, name)
            case _, "to":
                kind = operands[0]
                if ast.unparse(getattr(kind, "value", kind)) == "cutlass":
                    return _cast(node.func.value, getattr(kind, "attr", ""))
        return node


def _call(name: str, *operands: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(name, ast.Load()), list(operands), [])


def _cast(value: ast.expr, name: str) -> ast.expr:
    if name not in _CASTS:
        raise NotImplementedError(f"no kernel fuses a cast to {name}; cast to {_NAMED_CASTS}")
    return _call("cast", value, ast.parse(f"torch.{_CASTS[name]}", mode="eval").body)


def _number(node: ast.Call) -> ast.expr | None:
    """The number of a call such as ``float("-inf")``."""
    text = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
    if ast.unparse(node.func) != "float" or not isinstance(text, str):
        return None
    return ast.parse(_NUMBERS[text], mode="eval").body if text in _NUMBERS else None


def _constant(node: ast.expr) -> float | None:
    value: Any = node.value if isinstance(node, ast.Constant) else None
    return float(value) if isinstance(value, (int, float)) else None


def _extremum(condition: ast.expr, yes: ast.expr, no: ast.expr) -> ast.expr | None:
    """``maximum(x, y)``, NaN if either is NaN, for ``where(x > y, x, y)``, and ``minimum``.

    Generated source has this comparison inside the call only for torch's functions of these names.
    """
    if not isinstance(condition, ast.Compare) or len(condition.ops) != 1:
        return None
    name = _EXTREMA.get(type(condition.ops[0]))
    compared = (condition.left, condition.comparators[0])
    if name is None or [*map(ast.dump, compared)] != [ast.dump(yes), ast.dump(no)]:
        return None
    return _call(name, yes, no)


def _function(name: str, operands: list[ast.expr]) -> ast.expr | None:
    if name in _FUNCTIONS:
        return _call(_FUNCTIONS[name], *operands)
    if name not in _OTHER_BASES:
        return None
    function, inner, outer = _OTHER_BASES[name]
    (value,) = operands
    if inner is not None:
        value = _scaled(value, inner)
    called = _call(function, value)
    return called if outer is None else _scaled(called, outer)


def _scaled(value: ast.expr, factor: float) -> ast.expr:
    """``value * factor``. A factor in ``value`` that it cancels is left out."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        known = _constant(value.right)
        if known is not None and math.isclose(known * factor, 1, rel_tol=1e-15):
            return value.left
    return ast.BinOp(value, ast.Mult(), ast.Constant(factor))


__all__ = ["check", "translate"]
