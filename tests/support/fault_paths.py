"""Paths of driver calls: what fails in turn, and what may fail without an exception."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cutlass_api
from cutlass_api import _core
from cutlass_api.arguments import EpilogueArguments, GemmArguments
from cutlass_api.artifact import CompiledArtifact
from stand_in import device
from stand_in.device import Tensor

from support.driver_calls import GRAPHS

A, B, OUT, MORE = 0x10000000, 0x20000000, 0x30000000, 0x40000000
STREAM = 0x5010
#: A launch that the driver refuses on a created stream is made again in the device's context.
RETRIED = {"cuLaunchKernelEx"}


Call = Callable[[], Any]


@dataclass(frozen=True)
class Path:
    """Calls of the driver that belong together.

    - ``share``: makes what the processes of all faults share. Returns what each process does next,
      which returns the call of the library that makes the calls of the driver.
    - ``survives``: calls whose failure may raise nothing. The result is then as without a fault.
    - ``compared``: bytes of the last launch's parameters that all results have in common; None: a
      result is no launch.
    """

    share: Callable[[], Callable[[], Call]]
    survives: frozenset[str] | set[str] = frozenset()
    compared: int | None = 128


def operands(m: int = 128, k: int = 256, n: int = 64, moved: int = 0) -> list[Tensor]:
    """A, B and out in float16; ``moved``: bytes behind their usual addresses."""
    shapes = {A: (m, k), B: (k, n), OUT: (m, n)}
    return [Tensor(address + moved, shape) for address, shape in shapes.items()]


def gemm(*extents: int, moved: int = 0, epilogue: Any = None) -> GemmArguments:
    a, b, out = operands(*extents, moved=moved)
    return GemmArguments(a, b, out, "float32", *([epilogue(out)] if epilogue else []))


def kernel_of(family: str, args: Any) -> Any:
    kernels = cutlass_api.get_kernels(args)
    return next(kernel for kernel in kernels if family in kernel.metadata.kernel_name)


def settled(call: Call, times: int) -> Call:
    for _ in range(times):
        call()
    return call


# Runs of a kernel.

PACKED, SPLIT = (128, 257, 65), (256, 32768, 512)


def first_run(family: str, *extents: int, stream: int = STREAM, epilogue: Any = None) -> Path:
    def share() -> Callable[[], Call]:
        args = gemm(*extents, epilogue=epilogue)
        kernel = kernel_of(family, args)
        return lambda: lambda: kernel.run(args, stream=stream)

    return Path(share, RETRIED if stream else set(), compared=16 if epilogue else 128)


def opening_run() -> Callable[[], Call]:
    """The first call of a process: opens the device, too. Returns what is known of the device."""
    args = gemm()
    kernel = next(of for of in cutlass_api.get_kernels(cc=90) if "sm80" in of.metadata.kernel_name)

    def call() -> dict[str, float]:
        kernel.run(args, stream=STREAM)
        return _core.chip_rates()

    return lambda: call


def later_run(family: str, *extents: int, stream: int = STREAM, times: int = 2) -> Path:
    """A run like ``times`` runs before."""

    def share() -> Callable[[], Call]:
        args = gemm(*extents)
        kernel = kernel_of(family, args)

        def prepare() -> Call:
            artifact = kernel.compile(args)
            return settled(lambda: kernel.run(args, artifact, stream=stream), times)

        return prepare

    return Path(share, (RETRIED if stream else set()) | (GRAPHS if times > 2 else set()))


def moved_run(family: str, *extents: int, times: int = 2) -> Path:
    """A run of new arguments, whose memory is elsewhere, with the program's last launch."""

    def share() -> Callable[[], Call]:
        tensors, elsewhere = operands(*extents), operands(*extents, moved=4096)
        same = [GemmArguments(*tensors, "float32") for _ in range(times + 1)]
        moved = [GemmArguments(*elsewhere, "float32") for _ in range(3)]
        kernel = kernel_of(family, same[0])

        def prepare() -> Call:
            artifact = kernel.compile(same.pop())

            def run(args: Any) -> None:
                kernel.run(args, artifact, stream=STREAM, assume_supported_args=True)

            settled(lambda: run(same.pop()), times)
            return lambda: run(moved.pop())

        return prepare

    return Path(share, RETRIED | (GRAPHS if times > 2 else set()))


def from_bytes(args: Any, kernel: Any) -> Callable[[], CompiledArtifact]:
    """What makes an artifact of the kernel whose program is not loaded."""
    data = kernel.compile(args, 90).to_bytes()
    return lambda: CompiledArtifact.from_bytes(data)


def run_of_bytes() -> Callable[[], Call]:
    args = gemm()
    kernel = kernel_of("_tt", args)
    make = from_bytes(args, kernel)

    def prepare() -> Call:
        artifact = make()
        return lambda: kernel.run(args, artifact, stream=STREAM)

    return prepare


def compile_() -> Callable[[], Call]:
    args = gemm(*PACKED)
    kernel = kernel_of("_pp", args)
    return lambda: lambda: kernel.compile(args)


# Prepared launches.


def bind(*extents: int) -> Path:
    def share() -> Callable[[], Call]:
        args = gemm(*extents)
        kernel = kernel_of("sm90", args)
        make = from_bytes(args, kernel)
        return lambda: lambda: kernel.bind(args, make(), STREAM)()

    return Path(share, RETRIED)


def bound(*, replaces: bool) -> Path:
    def share() -> Callable[[], Call]:
        args, other = gemm(), operands(moved=4096)[0]
        kernel = kernel_of("_tt", args)

        def prepare() -> Call:
            launch = kernel.bind(args, stream=STREAM)
            launch()
            return (lambda: launch(A=other)) if replaces else launch

        return prepare

    return Path(share, RETRIED)


# Products whose kernel the library chooses, and users' kernels.


def matmul(*extents: int, times: int = 0) -> Path:
    def share() -> Callable[[], Call]:
        a, b, out = operands(*extents)
        cutlass_api.get_kernels(GemmArguments(a, b, out, "float32"))
        return lambda: settled(lambda: cutlass_api.matmul(a, b, out=out), times)

    return Path(share)


def operator(times: int) -> Path:
    """A product as the operators of torch launch it."""

    def share() -> Callable[[], Call]:
        a, b, out = operands()
        _core.device_cc()
        scaled = "def f(accum, x):\n    D = accum * x\n    return D"
        return lambda: settled(
            lambda: _core.launch_gemm(a, b, 2.0, out=out, epilogue=scaled), times
        )

    return Path(share)


COPY = """
#include "common/tma.cuh"
__global__ void copy(const __grid_constant__ TensorMap map, float* out, int n) {
  if (threadIdx.x < n) out[threadIdx.x] = reinterpret_cast<const float*>(&map)[0];
}
"""


def own_kernel(times: int) -> Path:
    def share() -> Callable[[], Call]:
        x, out = (Tensor(at, (64, 64), bits=32) for at in (A, OUT))
        kernel = cutlass_api.cuda_kernel(COPY, "copy", grid=1, block=64)
        map_of_x = cutlass_api.TensorMap(x, (8, 8))
        _core.device_cc()
        return lambda: settled(lambda: kernel(map_of_x, out, 3, stream=STREAM), times)

    return Path(share)


# The tuner.


def few_copies() -> None:
    """Lets benchmarks make two sets of operands."""
    device.library.stand_in_set_l2(1)


def benchmark(*, checks: bool) -> Path:
    def share() -> Callable[[], Call]:
        few_copies()
        args = gemm(*((32, 64, 24) if checks else PACKED))
        kernel = kernel_of("sm80" if checks else "_pp", args)

        def call() -> None:
            benchmark = _core.TuningBenchmark(args, checks=checks)
            benchmark.record(benchmark.compile(kernel)).turn(2)

        return lambda: call

    return Path(share, RETRIED, compared=None)


def own_benchmark() -> Callable[[], Call]:
    few_copies()
    out = Tensor(OUT, (64, 64), bits=32)
    source = "__global__ void fill(float* out) { *out = 1; }"
    function = cutlass_api.cuda_kernel(source, "fill", grid=1)
    _core.device_cc()
    return lambda: lambda: _core.CudaBenchmark(function, (out,)).record(function).turn(2)


def autotune() -> Callable[[], Call]:
    few_copies()
    args = gemm()
    kernels = [kernel_of("sm80", args)]
    for module in ("cutlass_api.tuning", "concurrent.futures.thread"):
        importlib.import_module(module)  # which the first call would import

    def call() -> None:
        result = cutlass_api.autotune(args, kernels=kernels, budget=1e-9, progress=False)
        errors = [trial.error for trial in result.trials if trial.error]
        if errors:
            raise RuntimeError(errors[0])

    return lambda: call


def sums(out: Tensor) -> EpilogueArguments:
    source = "def f(accum):\n    D = accum\n    sums = sum(accum, 1)\n    return D, sums"
    return EpilogueArguments(source, D=out, sums=Tensor(MORE, (128,), bits=32))


PATHS: dict[str, dict[str, Path]] = {
    "opening": {"first run of a process": Path(opening_run, RETRIED)},
    "run": {
        "first run": first_run("sm80"),
        "first run on the default stream": first_run("sm80", stream=0),
        "first run with tensor maps": first_run("_tt"),
        "first run with packed operands": first_run("_pp", *PACKED),
        "first run of a grid split": first_run("gridsplit", *SPLIT),
        "first run with a reduction": first_run("sm80", epilogue=sums),
        "run of an artifact from bytes": Path(run_of_bytes, RETRIED),
        "compile": Path(compile_, compared=None),
        "later run": later_run("_tt"),
        "later run on the default stream": later_run("_tt", stream=0),
        "later run of a grid split": later_run("gridsplit", *SPLIT),
        "run of moved operands": moved_run("_tt"),
        "run of moved operands of a grid split": moved_run("gridsplit", *SPLIT),
        "bind": bind(),
        "bind with packed operands": bind(*PACKED),
        "bound launch": bound(replaces=False),
        "bound launch of another operand": bound(replaces=True),
    },
    "graphs": {
        "promotion": later_run("sm90", times=21),
        "promotion on the default stream": later_run("sm90", times=21, stream=0),
        "promotion of a kernel with clusters": later_run("cluster2x1", times=21),
        "launch of a graph": later_run("sm90", times=30),
        "launch of a graph on the default stream": later_run("sm90", times=30, stream=0),
        "change of a graph": moved_run("sm90", times=30),
    },
    "products": {
        "first matmul": matmul(),
        "later matmul": matmul(times=2),
        "first matmul with workspace": matmul(*SPLIT),
        "later matmul with workspace": matmul(*SPLIT, times=2),
        "first product of an operator": operator(0),
        "later product of an operator": operator(2),
        "first call of a user's kernel": own_kernel(0),
        "later call of a user's kernel": own_kernel(2),
    },
    "tuner": {
        "benchmark": benchmark(checks=False),
        "benchmark with checks": benchmark(checks=True),
        "benchmark of a user's kernel": Path(own_benchmark, compared=None),
        "autotune": Path(autotune, RETRIED, compared=None),
    },
}
