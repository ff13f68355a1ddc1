"""Hardware counters of one GEMM, by Nsight Compute.

``ncu`` runs this module as a program, which launches the kernel once between
``cudaProfilerStart`` and ``cudaProfilerStop``. It repeats each GPU kernel for every group of
counters, with cold caches.
"""

import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutlass_api.bench import limits
from cutlass_api.bench.limits import float32_precision
from cutlass_api.bench.products import Inputs, Shape

INSTALL = (
    "ncu is not on PATH; install Nsight Compute, which CUDA toolkits include, or put its folder on "
    "PATH (https://developer.nvidia.com/nsight-compute)"
)
PERMISSION = (
    "this user may not read the GPU's counters (ERR_NVGPUCTRPERM). Run as root; or, as an "
    "administrator, load the driver with NVreg_RestrictProfilingToAdminUsers=0; or start the "
    "container with --cap-add=SYS_ADMIN (https://developer.nvidia.com/ERR_NVGPUCTRPERM)"
)
_PEAK = ".avg.pct_of_peak_sustained_elapsed"
_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
#: What is read, by the name of its counter in Nsight Compute: title, factor, format and unit.
COUNTERS = {
    "gpu__time_duration.sum": ("duration", 1e6, ".2f", "us"),
    "sm__cycles_elapsed.max": ("cycles", 1, ".0f", ""),
    f"sm__pipe_tensor_cycles_active{_PEAK}": ("tensor cores", 1, ".1f", "%"),
    f"sm__throughput{_PEAK}": ("busiest unit of the multiprocessors", 1, ".1f", "%"),
    f"l1tex__throughput{_PEAK}": ("L1 cache and shared memory", 1, ".1f", "%"),
    f"lts__throughput{_PEAK}": ("L2 cache", 1, ".1f", "%"),
    f"dram__throughput{_PEAK}": ("memory", 1, ".1f", "%"),
    "dram__bytes.sum.per_second": ("memory traffic", 1e-12, ".3f", "TB/s"),
    "lts__t_sector_hit_rate.pct": ("hits in the L2 cache", 1, ".1f", "%"),
    "sm__warps_active.avg.per_cycle_active": ("warps of a multiprocessor", 1, ".0f", ""),
    _CONFLICTS: ("shared-memory bank conflicts", 1, ".0f", ""),
}
#: Cycles that a warp waits for each reason per instruction, in the section `WarpStateStats`.
_STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio")
#: Reasons shown, the longest first.
STALLS = 5


@dataclass(frozen=True)
class Product:
    """A GEMM, and the kernel that computes it: the first whose name contains ``pattern``."""

    m: int
    n: int
    k: int
    layout: str
    dtype: str
    pattern: str = ""

    @property
    def flop(self) -> int:
        return 2 * self.m * self.n * self.k

    def launch(self) -> None:
        """Runs the kernel: once unseen, once between the calls that start and stop a profiler.

        Raises ValueError if no kernel that serves the product has such a name.
        """
        import torch

        import cutlass_api

        shape = Shape("", self.m, self.n, self.k, self.layout)
        with float32_precision(self.dtype):
            (args,) = Inputs(shape, self.dtype, sets=1).arguments()
            serving = cutlass_api.get_kernels(args)
        kernels = [each for each in serving if self.pattern in each.metadata.kernel_name]
        if not kernels:
            raise ValueError(
                f"none of the {len(serving)} kernels of this product has {self.pattern!r} in its "
                "name; `python -m cutlass_api kernels` lists names"
            )
        kernels[0].run(args)
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        kernels[0].run(args)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


@dataclass(frozen=True)
class Measured:
    """One GPU kernel of a run, such as the GEMM, or the packing of an operand before it.

    - ``values``: by counter of `COUNTERS`, in seconds, bytes, bytes per second, percent or counts;
      None where the chip has no such counter.
    - ``stalls``: cycles that a warp waits per instruction, by reason, the longest first.
    """

    name: str
    values: dict[str, float | None]
    stalls: dict[str, float]

    def share_of_peak(self, flop: float, dtype: str, rates: limits.Rates) -> float | None:
        """The share of the peak rate that these operations make in the kernel's cycles."""
        cycles = self.values["sm__cycles_elapsed.max"]
        per_cycle = limits.type_peak(rates, dtype) / rates["clock_hz"]
        return None if not cycles else flop / (cycles * per_cycle)


def measure(product: Product) -> list[Measured]:
    """Runs the product under ``ncu``. Raises RuntimeError without it, and if it fails."""
    ncu = shutil.which("ncu")
    if ncu is None:
        raise RuntimeError(INSTALL)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "counters.csv")
        ended = subprocess.run(
            command(ncu, product, log),
            capture_output=True,
            text=True,
            # A repeated launch would be part of a CUDA graph.
            env={**os.environ, "CUTLASS_API_LAUNCH_GRAPHS": "0"},
        )
        text = log.read_text() if log.exists() else ""
    if "ERR_NVGPUCTRPERM" in text + ended.stderr:
        raise RuntimeError(PERMISSION)
    found = parse(text)
    if not found:
        said = [line for line in (ended.stderr + text).splitlines() if line.strip()]
        raise RuntimeError("ncu has measured no kernel:\n" + "\n".join(said[-8:]))
    return found


def command(ncu: str, product: Product, log: Path) -> list[str]:
    """The command line of ``ncu``. The clocks stay as they are."""
    parts = (product.m, product.n, product.k, product.layout, product.dtype, product.pattern)
    return [
        ncu,
        *("--metrics", ",".join(COUNTERS), "--section", "WarpStateStats"),
        *("--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)),
        *("--profile-from-start", "off", "--clock-control", "none"),
        *(sys.executable, "-m", "cutlass_api.bench.counters", *map(str, parts)),
    ]


def parse(text: str) -> list[Measured]:
    """The kernels in the output of ``ncu``: a line of titles, one of units, one for each kernel."""
    lines = [line for line in text.splitlines() if line.startswith('"')]
    titles, *rows = csv.reader(lines) if lines else [[]]

    def number(cell: str | None) -> float | None:
        try:
            return float((cell or "").replace(",", ""))
        except ValueError:  # n/a
            return None

    found = []
    for row in rows[1:]:
        cells: dict[str, Any] = dict(zip(titles, row, strict=False))
        values = {name: number(cells.get(name)) for name in COUNTERS}
        duration = values["gpu__time_duration.sum"]
        values["gpu__time_duration.sum"] = None if duration is None else 1e-9 * duration
        stalls = {
            match[1].replace("_", " "): number(cell) or 0.0
            for title, cell in cells.items()
            if (match := _STALL.fullmatch(title))
        }
        longest = sorted(stalls, key=lambda reason: -stalls[reason])
        found.append(
            Measured(
                cells.get("Kernel Name", ""),
                values,
                {reason: stalls[reason] for reason in longest if reason != "selected"},
            )
        )
    return found


HEADER = ("counter", "value", "unit")


def cells(one: Measured, share: float | None) -> list[tuple[str, str, str]]:
    """A row of a table for each counter. ``share``: of the peak rate."""
    rows = [] if share is None else [("share of peak", f"{100 * share:.1f}", "%")]
    for counter, (title, factor, form, unit) in COUNTERS.items():
        value = one.values[counter]
        if value is not None:
            rows.append((title, format(factor * value, form), unit))
    for reason, cycles in list(one.stalls.items())[:STALLS]:
        rows.append((f"stall: {reason}", f"{cycles:.2f}", "cycles an instruction"))
    return rows


def main(arguments: Sequence[str]) -> None:
    """The program under ``ncu``."""
    m, n, k, layout, dtype, pattern = arguments
    try:
        Product(int(m), int(n), int(k), layout, dtype, pattern).launch()
    except ValueError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main(sys.argv[1:])
