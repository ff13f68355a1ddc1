"""Fused epilogues: a Python function of the accumulator, computed with the kernel that made it.

So far its signature is read and checked here, and no kernel fuses one yet: ``supports`` says so, and ``get_kernels``
finds none for arguments that carry an epilogue.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

ACCUMULATOR = "accum"
OUTPUT = "D"


def _definition(epilogue_fn: Callable[..., Any] | str) -> ast.FunctionDef:
    """The syntax tree of the one function in ``epilogue_fn``."""
    source = epilogue_fn if isinstance(epilogue_fn, str) else inspect.getsource(epilogue_fn)
    tree = ast.parse(textwrap.dedent(source))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    if len(functions) != 1:
        raise ValueError(f"an epilogue is one function definition, but its source holds {len(functions)}")
    return functions[0]


def _returned_names(definition: ast.FunctionDef) -> list[str]:
    if not definition.body or not isinstance(definition.body[-1], ast.Return):
        raise ValueError(f"line {definition.lineno}: an epilogue function ends with a return of its outputs' names")
    value = definition.body[-1].value
    values = value.elts if isinstance(value, ast.Tuple) else [value]
    names = []
    for node in values:
        if not isinstance(node, ast.Name):
            raise ValueError(f"line {definition.body[-1].lineno}: an epilogue function returns names, not expressions")
        names.append(node.id)
    return names


def _check_single_assignment(definition: ast.FunctionDef, parameters: list[str]) -> None:
    defined = set(parameters)
    for statement in definition.body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                if node.id in defined:
                    raise ValueError(f"Variable '{node.id}' cannot be defined twice.")
                defined.add(node.id)


class EpilogueArguments:
    """An epilogue function with its operands.

    ``epilogue_fn`` is a Python function or its source. Its first parameter is ``accum``, the accumulator; one of the
    names that it returns is ``D``, the main output. Every other parameter and every returned name is a keyword here, a
    tensor or a number. Raises ValueError where one is missing, or one too many is given.
    """

    def __init__(self, epilogue_fn: Callable[..., Any] | str, **kwargs: Any) -> None:
        definition = _definition(epilogue_fn)
        inputs = [argument.arg for argument in definition.args.args]
        if ACCUMULATOR not in inputs:
            raise ValueError("accum must be an input to the epilogue function")
        if inputs[0] != ACCUMULATOR:
            raise ValueError(f"accum must be the first input to the epilogue function, which is {inputs[0]!r}")
        _check_single_assignment(definition, inputs)
        outputs = _returned_names(definition)
        if OUTPUT not in outputs:
            raise ValueError("Output node D is not found in the epilogue function")
        names = [name for name in dict.fromkeys([*inputs, *outputs]) if name != ACCUMULATOR or name in outputs]
        for name in names:
            if name not in kwargs and name != ACCUMULATOR:
                raise ValueError(f"Argument {name} is not provided in the kwargs of the EpilogueArguments constructor")
        for name in kwargs:
            if name not in names:
                raise ValueError(f"Argument {name} is no parameter and no output of the epilogue function")
        self.epilogue_fn = epilogue_fn
        self._parameters = {name: kwargs[name] for name in names if name in kwargs}

    @property
    def parameters(self) -> list[Any]:
        """The operands: inputs in the order of the function's parameters, then outputs in the order returned."""
        return list(self._parameters.values())

    @property
    def parameter_names(self) -> list[str]:
        """The names of :attr:`parameters`."""
        return list(self._parameters)

    @property
    def tensors(self) -> list[Any]:
        """Those of :attr:`parameters` that are tensors."""
        return [value for value in self._parameters.values() if hasattr(value, "__dlpack__")]


__all__ = ["EpilogueArguments"]
