"""The table of docs/guide/pytorch.md: what each operator does under each transform.

`python -m operators.table`, in tests/, writes it. The tests of this folder check each of its cells.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

from support import ROOT

from operators.case import Case, expected
from operators.cases import CASES
from operators.transforms import TRANSFORMS

PAGE = ROOT / "docs/guide/pytorch.md"
START, END = "<!-- table of transforms -->\n", "<!-- end of the table -->\n"
#: Names that are code, in front of a remark in parentheses.
CODE = re.compile(
    r"[\w.]*[._=][\w.=]*|vmap|grad|vjp|jvp|jacrev|jacfwd|hessian|\w*gradcheck|\w+Mode"
)


def table() -> str:
    """A row for the operators that do the same, a column for the transforms that all do alike."""
    columns = grouped(TRANSFORMS, lambda x: tuple(expected(case, x) for case in CASES.values()))
    firsts = [transforms[0] for transforms in columns]
    rows = grouped(CASES.values(), lambda case: tuple(expected(case, x) for x in firsts))
    heads = [", ".join(marked(x.name) for x in transforms) for transforms in columns]
    lines = [["operators", *heads], ["---"] * (len(columns) + 1)]
    for cases in rows:
        cells = [expected(cases[0], x) or "-" for x in firsts]
        lines.append([", ".join(titled(case) for case in cases), *cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> list[list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def titled(case: Case) -> str:
    name, _, remark = case.name.partition(", ")
    return f"`{name}`" + (f" ({remark})" if remark else "")


def marked(name: str) -> str:
    code, *remark = name.split(" ", 1)
    return " ".join([f"`{code}`", *remark]) if CODE.fullmatch(code) else name


def page() -> str:
    """The page with this table."""
    before, _, rest = PAGE.read_text().partition(START)
    return before + START + "\n" + table() + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page())
