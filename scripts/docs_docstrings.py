"""Converts docstrings to Markdown for the site: an extension of Griffe, which reads the package.

The docstrings are text for `help()`: roles such as ``:func:`name```, code blocks behind ``::``, and
paragraphs that describe parameters as ``name: description``.
"""

import re
import textwrap
from typing import Any

import griffe

ROLE = re.compile(r":(?:func|mod|class|meth):`~?([^`]+)`")
BLOCK = re.compile(r"^(?P<before>.*?)::\n\n(?P<code>(?:    .*\n|\n)+)", re.MULTILINE)
CODE = re.compile(r"(```.*?^```|`[^`]*`)", re.DOTALL | re.MULTILINE)


def fenced(block: re.Match[str]) -> str:
    """A code block of reStructuredText as one of Markdown."""
    before = f"{block['before']}:\n\n" if block["before"] else ""
    return f"{before}```python\n{textwrap.dedent(block['code']).strip()}\n```\n\n"


def listed(paragraph: str, names: set[str]) -> str:
    """A paragraph with a list item for each parameter that it describes."""
    if not names or paragraph.startswith(("- ", "```")):
        return paragraph
    name = rf"`*(?:{'|'.join(map(re.escape, sorted(names)))})`*"
    start = re.compile(rf"(?:^|(?<=[.;])\s)({name}(?:, {name})*): ")
    parts = start.split(" ".join(paragraph.split("\n")))
    if len(parts) == 1:
        return paragraph
    items = [
        f"- `{named.replace('`', '').replace(', ', '`, `')}`: {text}"
        for named, text in zip(parts[1::2], parts[2::2], strict=True)
    ]
    items[-1], *rest = re.split(r"(?<=\.) (?=Raises |Returns )", items[-1], maxsplit=1)
    return "\n\n".join([*filter(None, [parts[0].strip()]), "\n".join(items), *rest])


def markdown(text: str, names: set[str]) -> str:
    """A docstring as Markdown. names: the parameters that it may describe."""
    text = ROLE.sub(r"`\1`", text.replace("``", "`"))
    text = BLOCK.sub(fenced, text + "\n").strip()
    parts = CODE.split(text)
    # Stars are factors here, and no emphasis.
    parts[::2] = [part.replace("*", r"\*").replace("<", "&lt;") for part in parts[::2]]
    return "\n\n".join(listed(each, names) for each in "".join(parts).split("\n\n"))


def names_of(object: Any) -> set[str]:
    """The parameters of a function, or of a class's constructor with its attributes."""
    if object.is_function:
        return {each.name.lstrip("*") for each in object.parameters}
    if not object.is_class:
        return set()
    constructors = (object.members.get(name) for name in ("__new__", "__init__"))
    named = [names_of(each) for each in constructors if each is not None and not each.is_alias]
    return set(object.attributes).union(*named) - {"self", "cls"}


class Docstrings(griffe.Extension):
    """Rewrites every docstring of the package once it is loaded."""

    def on_package(self, *, pkg: Any, **_: Any) -> None:
        self.rewrite(pkg)

    def rewrite(self, object: Any) -> None:
        if object.docstring is not None:
            object.docstring.value = markdown(object.docstring.value, names_of(object))
        if object.is_class and "__init__" not in object.members and "__new__" in object.members:
            # The signature of a class is that of its `__init__`.
            object.set_member("__init__", object.members["__new__"])
            object.members["__new__"].returns = None
        for member in object.members.values():
            if not member.is_alias:
                self.rewrite(member)
