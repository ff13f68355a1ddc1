"""What a GPU does at most: its memory, its L2 cache and its arithmetic units.

Peak rates follow from what the driver reports (``chip_rates``); `Limits` also measures the rates
that the GPU sustains: of a copy, and of a large product by torch.
"""

import math
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

from cutlass_api import _core
from cutlass_api.bench.timing import ROUNDS, in_turns, repeated
from cutlass_api.bench.types import TYPES

#: The types of which torch multiplies any layout and extents. Their rates are measured.
DTYPES = ("float16", "bfloat16", "tf32", "float32", "float64")
#: M, N and K of the product that measures a rate: on tensor cores, and on slower units.
TENSOR_EXTENT, EXTENT = 8192, 4096
#: The duration of a turn of products.
TURN_SECONDS = 30e-3
#: Bytes of the source of a copy. The target has as many, so that next to nothing of either stays in
#: L2.
COPIED_BYTES = 2 << 30
#: The duration of a turn of copies.
COPY_SECONDS = 3e-3
#: Bytes of a benchmark's weights, at least: more than the L2 cache of any GPU holds.
WEIGHT_BYTES = 256_000_000
#: What nvidia-smi reports of a GPU, by the name of its query.
SMI_FACTS = {
    "driver_version": "driver",
    "clocks.max.sm": "highest clock",
    "clocks.sm": "clock after the products",
    "clocks.mem": "memory clock",
    "power.limit": "power limit",
}


Rates = Mapping[str, float]


def peak_rates(cc: int | None = None) -> dict[str, float]:
    """The peak rates of torch's current CUDA device (``chip_rates``).

    ``cc``: of a typical chip of this compute capability instead.
    """
    import torch

    return _core.chip_rates(torch.cuda.current_device() if cc is None else 0, cc)


def peak(rates: Rates, unit: str) -> float:
    """FLOP/s of all multiprocessors at the highest clock. Sustained clocks are lower.

    ``unit``: the key in ``rates`` of what multiplies.
    """
    return rates["multiprocessors"] * rates["clock_hz"] * rates[unit]


def type_peak(rates: Rates, dtype: str) -> float:
    """FLOP/s of all multiprocessors at the highest clock in a type of :data:`TYPES`."""
    return TYPES[dtype].share * peak(rates, TYPES[dtype].unit)


def l2_bytes() -> int:
    """Bytes of the L2 cache of torch's current CUDA device."""
    return int(peak_rates()["l2_bytes"])


def sets_beyond_l2(one_set_bytes: int, least_bytes: int = 0) -> int:
    """How many sets of operands exceed twice the L2 cache, and have this many bytes: at least 2, at
    most 200.
    """
    bytes_of_sets = max(2.2 * l2_bytes(), least_bytes)
    return min(max(math.ceil(bytes_of_sets / one_set_bytes), 2), 200)


def copy_rate() -> float:
    """Bytes per second that a copy within device memory reads and writes, both counted.

    Copies 2 GiB of random bytes in two ways, and returns the rate of the faster one: a
    device-to-device memcpy on a stream, and an elementwise kernel (``torch.add(x, 0, out=y)`` in
    float32). A memcpy node of a CUDA graph can be slower than either, so no graph is used.
    """
    import torch

    source = torch.randint(0, 255, (COPIED_BYTES,), device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    numbers, copied = source.view(torch.float32), target.view(torch.float32)
    methods = {
        "memcpy": repeated(lambda: target.copy_(source), COPY_SECONDS),
        "kernel": repeated(lambda: torch.add(numbers, 0, out=copied), COPY_SECONDS),
    }
    in_turns(methods, ROUNDS)
    return 2 * COPIED_BYTES / (1e-6 * min(timed.median for timed in methods.values()))


@contextmanager
def float32_precision(dtype: str) -> Iterator[None]:
    """Whether torch, and the kernels that follow it, round float32 operands: for "tf32"."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def product_rate(dtype: str) -> float:
    """FLOP/s of a large product of random operands by torch, in turns of 30 ms."""
    import torch

    extent = EXTENT if dtype in ("float32", "float64") else TENSOR_EXTENT
    a, b = (TYPES[dtype].random(extent, extent) for _ in range(2))
    timed = repeated(partial(torch.matmul, a, b, out=torch.empty_like(a)), TURN_SECONDS)
    with float32_precision(dtype):
        in_turns({"product": timed}, ROUNDS)
    return 2 * extent**3 / (1e-6 * timed.median)


class Limits:
    """The limits of torch's current CUDA device. Rates are measured at their first use."""

    def __init__(self) -> None:
        self.rates = peak_rates()
        #: FLOP/s that torch's products sustain, by dtype, as far as measured.
        self.product_rates: dict[str, float] = {}

    @cached_property
    def copy_rate(self) -> float:
        """Bytes per second that a copy reads and writes (`copy_rate`)."""
        return copy_rate()

    def product_rate(self, dtype: str) -> float:
        """FLOP/s that torch's products sustain (`product_rate`), of other types than
        :data:`DTYPES` the peak rate."""
        if dtype not in DTYPES:
            return type_peak(self.rates, dtype)
        if dtype not in self.product_rates:
            self.product_rates[dtype] = product_rate(dtype)
        return self.product_rates[dtype]

    def measure(self, dtype: str) -> None:
        """Measures the rates that `floor` uses, and frees their operands."""
        import torch

        _ = self.copy_rate, self.product_rate(dtype)
        torch.cuda.empty_cache()

    def floor(self, dtype: str, flop: float, byte_count: float) -> float:
        """Microseconds of the arithmetic or of the memory traffic, whichever takes longer."""
        return 1e6 * max(flop / self.product_rate(dtype), byte_count / self.copy_rate)

    def entries(self) -> dict[str, Any]:
        """The peak and the measured rates, as JSON."""
        return {**self.rates, "copy_rate": self.copy_rate, "product_rates": self.product_rates}


HEADER = ("limit", "peak", "measured", "unit")


def cells(limits: Limits) -> list[tuple[str, ...]]:
    """A row of a table for each limit."""
    rates = limits.rates
    bandwidths = rates["memory_bytes_per_second"], limits.copy_rate
    found: list[tuple[str, ...]] = [
        ("multiprocessors", f"{rates['multiprocessors']:.0f}", "", ""),
        ("clock", f"{1e-6 * rates['clock_hz']:.0f}", "", "MHz"),
        ("L2 cache", f"{rates['l2_bytes'] / 2**20:.0f}", "", "MiB"),
        ("memory", *(f"{1e-12 * rate:.2f}" for rate in bandwidths), "TB/s"),
    ]
    for dtype, measured in limits.product_rates.items():
        both = type_peak(rates, dtype), measured
        found.append((f"{dtype} products", *(f"{1e-12 * rate:.0f}" for rate in both), "TFLOP/s"))
    return found


def smi_facts() -> dict[str, str]:
    """What nvidia-smi reports of torch's current CUDA device; nothing if it cannot."""
    import torch

    tool = shutil.which("nvidia-smi")
    uuid = getattr(torch.cuda.get_device_properties(), "uuid", None)
    if tool is None or uuid is None:
        return {}
    query = [f"--query-gpu={','.join(SMI_FACTS)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            [tool, f"--id=GPU-{uuid}", *query], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    values = [value.strip() for value in done.stdout.strip().split(",")]
    if done.returncode or len(values) != len(SMI_FACTS):
        return {}
    return {
        name: value
        for name, value in zip(SMI_FACTS.values(), values, strict=True)
        if not value.startswith("[")  # [N/A], [Not Supported]
    }
