"""What a search measures."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from cutlass_api._tables import html_table


@dataclass(frozen=True)
class Trial:
    """What was measured of one kernel.

    - ``kernel``: its name; of a user's kernel, the config.
    - ``microseconds``: the time of one launch: the median over all rounds of a finalist, a rough
      time of other kernels; NaN if ``error`` says why there is none.
    - ``is_finalist``: whether all rounds timed it.
    - ``error``: why it could not be timed, or None.
    """

    kernel: str
    microseconds: float
    is_finalist: bool = False
    error: str | None = None


@dataclass(frozen=True)
class TuningResult:
    """The measurements of a search, fastest first.

    - ``winner``: the fastest kernel; of a user's kernel, the fastest config.
    - ``device``: the device's name.
    - ``key``: the problem's key in the store.
    - ``trials``: what was measured of each kernel; kernels that failed come last.
    - ``untried``: kernels that the search left out.
    """

    winner: Any
    device: str
    key: str
    trials: tuple[Trial, ...]
    untried: int = 0

    @property
    def microseconds(self) -> float:
        """The time of the winner."""
        return self.trials[0].microseconds

    def to_json(self) -> str:
        """The result as JSON."""
        content = {
            "device": self.device,
            "key": self.key,
            "winner": self.trials[0].kernel,
            "untried": self.untried,
            "trials": [
                {**asdict(trial), "microseconds": None if trial.error else trial.microseconds}
                for trial in self.trials
            ],
        }
        return json.dumps(content, indent=1)

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        for trial in self.trials:
            if trial.error is None:
                slower = trial.microseconds / self.microseconds
                yield f"{trial.microseconds:.2f}", f"{slower:.3f}", trial.kernel
            else:
                yield "-", "-", f"{trial.kernel}: {trial.error}"

    def __str__(self) -> str:
        lines = [f"{self.key} on {self.device}", f"{'us':>10}  {'to best':>7}  kernel"]
        lines += [f"{time:>10}  {ratio:>7}  {name}" for time, ratio, name in self._rows()]
        if self.untried:
            lines.append(f"{self.untried} further kernels were not timed")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        titles, caption = ("us", "to best", "kernel"), f"{self.key} on {self.device}"
        return html_table(titles, self._rows(), len(self.trials), caption)

    def plot(self) -> Any:
        """A matplotlib figure with a bar for each kernel's time. Raises ImportError without
        matplotlib."""
        import matplotlib.pyplot as plt

        timed = [trial for trial in self.trials if trial.error is None]
        figure, axes = plt.subplots(figsize=(8, 0.25 * len(timed) + 1.5), layout="constrained")
        axes.barh(range(len(timed)), [trial.microseconds for trial in timed], color="#4477aa")
        axes.set_yticks(range(len(timed)), [trial.kernel for trial in timed], fontsize=7)
        axes.invert_yaxis()
        axes.set_xlabel("microseconds")
        axes.set_title(f"{self.key} on {self.device}", fontsize=9)
        return figure


__all__ = ["Trial", "TuningResult"]
