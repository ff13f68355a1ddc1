"""Tables in HTML, for notebooks."""

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

#: The most rows of a table.
ROWS = 50

Element = TypeVar("Element")


def html_table(
    titles: Sequence[str], rows: Iterable[Sequence[str]], total: int, caption: str = ""
) -> str:
    """A table of the first rows; behind it, how many of ``total`` rows are left out."""
    from html import escape

    def line(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    lines = [line("td", row) for row in islice(rows, ROWS)]
    above = f"<p>{escape(caption)}</p>" if caption else ""
    below = f"<p>{total - len(lines)} more</p>" if total > len(lines) else ""
    return f"{above}<table>{line('th', titles)}{''.join(lines)}</table>{below}"


class Listing(list[Element]):
    """A list that notebooks show as a table. Its slices are such lists, too."""

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return self._with(found) if isinstance(index, slice) else found

    def _with(self, elements: "list[Element]") -> "Listing[Element]":
        """A list of some of the elements."""
        return type(self)(elements)

    def _titles(self) -> Sequence[str]:
        raise NotImplementedError

    def _cells(self, element: Element) -> Sequence[str]:
        """The row of an element."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return html_table(self._titles(), map(self._cells, self), len(self))


__all__ = ["Listing", "html_table"]
