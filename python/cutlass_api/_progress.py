"""Progress of a loop, by rich if it is installed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Protocol


class Progress(Protocol):
    def step(self, item: str, note: str = "") -> None:
        """One more item is done. ``note``: what is known so far."""


class _Silent:
    def step(self, item: str, note: str = "") -> None:
        pass


class _Bar:
    def __init__(self, progress: object, task: object) -> None:
        self._progress, self._task = progress, task

    def step(self, item: str, note: str = "") -> None:
        self._progress.update(  # type: ignore[attr-defined]
            self._task, advance=1, note=note, item=item
        )


def _is_notebook() -> bool:
    """Whether the output is that of a notebook which shows bars. Without ipywidgets, rich warns,
    and leaves empty outputs."""
    is_output = type(sys.stdout).__module__.startswith("ipykernel.")
    return is_output and find_spec("ipywidgets") is not None


@contextmanager
def progress_bar(is_shown: bool, title: str, items: int) -> Iterator[Progress]:
    """Shows the title, items done, the note, the time left and the latest item. Silent without
    rich, and if the output is neither a terminal nor a notebook with ipywidgets."""
    # Before the import of rich, which takes a tenth of a second.
    is_shown = is_shown and (sys.stdout.isatty() or _is_notebook())
    if is_shown:
        try:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress
        except ImportError:
            is_shown = False
    if is_shown:
        console = Console()
        is_shown = console.is_terminal or console.is_jupyter
    if not is_shown:
        yield _Silent()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[item]}"),
    )
    with RichProgress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=items, note="", item="")
        yield _Bar(progress, task)


__all__ = ["Progress", "progress_bar"]
