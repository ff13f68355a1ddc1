"""Copies the docstrings of the Rust extension into its stub, for editors and the site.

    python scripts/stub_docstrings.py

The Rust sources hold the docstrings. tests/api/test_stubs.py fails if the stub has others.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cutlass_api import _core

STUB = Path(__file__).parent.parent / "python/cutlass_api/_core.pyi"
COLUMNS = 100
Documented = ast.ClassDef | ast.FunctionDef


def documented(stub: str) -> Iterator[tuple[str, Documented, Any]]:
    """Each class, function and member of a stub: its name, its node and the object at run time.

    Names with two underscores in front, whose docstrings are Python's, are left out.
    """
    for node in ast.parse(stub).body:
        if isinstance(node, Documented):
            value = getattr(_core, node.name)
            yield node.name, node, value
            for member in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(member, ast.FunctionDef) and not member.name.startswith("__"):
                    yield f"{node.name}.{member.name}", member, getattr(value, member.name)


def docstring(value: Any) -> str | None:
    """The docstring of an object of the extension; None without one."""
    return inspect.cleandoc(value.__doc__) if value.__doc__ else None


def literal(text: str, indent: str) -> str:
    """The source of a docstring, wrapped behind an indentation."""
    # The quotes of both ends, as the formatter puts those of a single line behind it.
    width = COLUMNS - len(indent) - 2 * len('"""')
    paragraphs = [
        textwrap.fill(paragraph, width, break_long_words=False, break_on_hyphens=False)
        for paragraph in text.split("\n\n")
    ]
    lines = "\n\n".join(paragraphs).split("\n")
    if len(lines) == 1:
        return f'{indent}"""{lines[0]}"""'
    body = [f"{indent}{line}".rstrip() for line in lines[1:]]
    return "\n".join([f'{indent}"""{lines[0]}', *body, f'{indent}"""'])


def with_docstrings(stub: str) -> str:
    """The stub with the docstrings of the extension, in place of those that it has."""
    lines = stub.split("\n")
    for _, node, value in reversed(list(documented(stub))):
        text, first = docstring(value), node.body[0]
        if text is None:
            continue
        source = literal(text, " " * (node.col_offset + 4)).split("\n")
        begin, end = first.lineno - 1, first.end_lineno
        if isinstance(first, ast.Expr):  # `...` or a docstring
            before = lines[begin][: first.col_offset].rstrip()
            lines[begin:end] = [*([before] if before else []), *source]
        else:
            decorators = getattr(first, "decorator_list", [])
            begin = min([begin, *(each.lineno - 1 for each in decorators)])
            lines[begin:begin] = [*source, ""]
    return "\n".join(lines)


if __name__ == "__main__":
    STUB.write_text(with_docstrings(STUB.read_text("utf-8")), "utf-8")
