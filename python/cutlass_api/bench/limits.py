"""What a GPU does at most: its memory, its L2 cache and its arithmetic units.

`Device` holds attributes that the driver reports, and the peak rates that follow from them;
`Limits` also measures the rates that the GPU sustains: a copy, and a large product by torch.
"""

import math
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from typing import Any

from cutlass_api.bench import ROUNDS
from cutlass_api.bench.bandwidth import Stream, copy_rate
from cutlass_api.tuning._search import in_turns

#: FLOP per cycle of one multiprocessor by compute capability, dense and with float32 accumulation;
#: a multiply-add counts as two. float32 is that of FMA, float64 the faster of FMA and tensor cores.
#: Sources: CUDA C++ Programming Guide, "Arithmetic Instructions" (FMA); for tensor cores, the rates
#: over multiprocessors and boost clock in the whitepapers of A100 (8.0), GA102 (8.6), L40S (8.9),
#: H100 (9.0), B200 (10.0) and RTX PRO Blackwell (12.0). GeForce cards of 8.6, 8.9 and 12.0 have
#: half of these tensor rates. Other compute capabilities are unknown here.
FLOP_PER_CYCLE = {
    80: {"float16": 2048, "tf32": 1024, "float32": 128, "float64": 128},
    86: {"float16": 1024, "tf32": 512, "float32": 256, "float64": 4},
    89: {"float16": 1024, "tf32": 512, "float32": 256, "float64": 4},
    90: {"float16": 4096, "tf32": 2048, "float32": 256, "float64": 256},
    100: {"float16": 8192, "tf32": 4096, "float32": 256, "float64": 128},
    120: {"float16": 1024, "tf32": 512, "float32": 256, "float64": 4},
}
DTYPES = ("float16", "bfloat16", "tf32", "float32", "float64")
#: M, N and K of the product that measures a rate: on tensor cores, and on slower units.
TENSOR_EXTENT, EXTENT = 8192, 4096
#: The duration of a turn of products.
TURN_SECONDS = 30e-3
#: What nvidia-smi reports of a GPU, by the name of its query.
SMI_FACTS = {
    "driver_version": "driver",
    "clocks.max.sm": "highest clock",
    "clocks.sm": "clock after the products",
    "clocks.mem": "memory clock",
    "power.limit": "power limit",
}


@dataclass(frozen=True)
class Device:
    """Attributes of a GPU. ``None``: torch or the driver does not report it."""

    name: str
    cc: int
    multiprocessors: int
    l2_bytes: int
    #: The highest clock of the multiprocessors.
    clock_hz: float | None
    memory_clock_hz: float | None
    bus_bits: int | None

    @classmethod
    def current(cls) -> "Device":
        """torch's current CUDA device."""
        import torch

        found = torch.cuda.get_device_properties()

        def kilohertz(name: str) -> float | None:
            return 1e3 * getattr(found, name, 0) or None

        return cls(
            name=found.name,
            cc=10 * found.major + found.minor,
            multiprocessors=found.multi_processor_count,
            l2_bytes=found.L2_cache_size,
            clock_hz=kilohertz("clock_rate"),
            memory_clock_hz=kilohertz("memory_clock_rate"),
            bus_bits=getattr(found, "memory_bus_width", 0) or None,
        )

    @property
    def peak_bytes_per_second(self) -> float | None:
        """Of the memory's pins: two transfers in each cycle of the memory clock."""
        if self.memory_clock_hz is None or self.bus_bits is None:
            return None
        return 2 * self.memory_clock_hz * self.bus_bits / 8

    def peak_flops(self, dtype: str) -> float | None:
        """FLOP/s of all multiprocessors at the highest clock. Sustained clocks are lower."""
        per_cycle = FLOP_PER_CYCLE.get(self.cc, {}).get(dtype.replace("bfloat", "float"))
        if per_cycle is None or self.clock_hz is None:
            return None
        return per_cycle * self.multiprocessors * self.clock_hz


def l2_bytes() -> int:
    """Bytes of the L2 cache of torch's current CUDA device."""
    return Device.current().l2_bytes


def sets_beyond_l2(one_set_bytes: int) -> int:
    """How many sets of operands exceed twice the L2 cache: at least 2, at most 200."""
    return min(max(math.ceil(2.2 * l2_bytes() / one_set_bytes), 2), 200)


def product_rate(dtype: str) -> float:
    """FLOP/s of a large product of random operands by torch, in turns of 30 ms.

    For "tf32" and "float32", torch's float32 precision must be set
    (:func:`cutlass_api.bench.gemm.float32_precision`).
    """
    import torch

    extent = EXTENT if dtype in ("float32", "float64") else TENSOR_EXTENT
    element = torch.float32 if dtype == "tf32" else getattr(torch, dtype)
    a, b = (torch.randn(extent, extent, device="cuda", dtype=element) for _ in range(2))
    launch = partial(torch.matmul, a, b, out=torch.empty_like(a))
    launch()
    calls = max(1, math.ceil(TURN_SECONDS / _seconds(launch)))
    timed = Stream(launch, calls)
    in_turns({"product": timed}, ROUNDS)
    return 2 * extent**3 / (1e-6 * timed.median)


def _seconds(launch: Callable[[], Any]) -> float:
    """The time of one launch on the clock of the host."""
    import torch

    torch.cuda.synchronize()
    begin = time.perf_counter()
    launch()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


class Limits:
    """The limits of torch's current CUDA device. Rates are measured at their first use."""

    def __init__(self) -> None:
        self.device = Device.current()
        #: FLOP/s that torch's products sustain, by dtype, as far as measured.
        self.product_rates: dict[str, float] = {}

    @cached_property
    def copy_rate(self) -> float:
        """Bytes per second that a copy reads and writes (:mod:`.bandwidth`)."""
        return copy_rate()

    def product_rate(self, dtype: str) -> float:
        """FLOP/s that torch's products sustain (`product_rate`)."""
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
        """The attributes and the measured rates, as JSON."""
        attributes = {name: each for name, each in asdict(self.device).items() if name != "name"}
        return {**attributes, "copy_rate": self.copy_rate, "product_rates": self.product_rates}


HEADER = ("limit", "peak", "measured", "unit")


def cells(limits: Limits) -> list[tuple[str, ...]]:
    """A row of a table for each limit. Peaks that are unknown are empty."""

    def number(value: float | None, scale: float, form: str) -> str:
        return "" if value is None else format(value * scale, form)

    device = limits.device
    found: list[tuple[str, ...]] = [
        ("multiprocessors", str(device.multiprocessors), "", ""),
        ("clock", number(device.clock_hz, 1e-6, ".0f"), "", "MHz"),
        ("L2 cache", number(device.l2_bytes, 2**-20, ".0f"), "", "MiB"),
        (
            "memory",
            number(device.peak_bytes_per_second, 1e-12, ".2f"),
            f"{1e-12 * limits.copy_rate:.2f}",
            "TB/s",
        ),
    ]
    for dtype, rate in limits.product_rates.items():
        peak = number(device.peak_flops(dtype), 1e-12, ".0f")
        found.append((f"{dtype} products", peak, f"{1e-12 * rate:.0f}", "TFLOP/s"))
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


__all__ = [
    "DTYPES",
    "HEADER",
    "Device",
    "Limits",
    "cells",
    "l2_bytes",
    "product_rate",
    "sets_beyond_l2",
    "smi_facts",
]
