"""Progress of a search, by rich if it is installed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    def step(self, kernel: str, best: float) -> None:
        """One more kernel has its first times; ``best``: the least so far, in microseconds."""


class _Silent:
    def step(self, kernel: str, best: float) -> None:
        pass


class _Bar:
    def __init__(self, progress: object, task: object) -> None:
        self._progress, self._task = progress, task

    def step(self, kernel: str, best: float) -> None:
        self._progress.update(  # type: ignore[attr-defined]
            self._task, advance=1, best=f"best {best:.2f} us", kernel=kernel
        )


@contextmanager
def progress_bar(is_shown: bool, problem: str, kernels: int) -> Iterator[Progress]:
    """Shows the problem, kernels done, the best time, the time left and the latest kernel. Silent
    without rich, and if the output is neither a terminal nor a notebook."""
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
        TextColumn("{task.fields[best]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[kernel]}"),
    )
    with RichProgress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(problem, total=kernels, best="", kernel="")
        yield _Bar(progress, task)


__all__ = ["Progress", "progress_bar"]
