"""Faults of the driver in a process of the stand-in: each call of a path fails once, with each
error, and once for good.

Each fault has a forked process of its own, since a process opens a device and loads a program once.
"""

import gc
import importlib
import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import cutlass_api
from cutlass_api import _core
from cutlass_api.arguments import EpilogueArguments, GemmArguments
from cutlass_api.artifact import CompiledArtifact
from stand_in import device
from stand_in.device import Tensor

A, B, OUT, MORE = 0x10000000, 0x20000000, 0x30000000, 0x40000000
STREAM = 0x5010
INVALID_VALUE = "CUDA_ERROR_INVALID_VALUE"
#: Errors of one call, and errors after which a context is lost.
ONCE = {
    1: INVALID_VALUE,
    2: "CUDA_ERROR_OUT_OF_MEMORY",
    46: "CUDA_ERROR_DEVICE_UNAVAILABLE",
    719: "CUDA_ERROR_LAUNCH_FAILED",
}
LASTING = {700: "CUDA_ERROR_ILLEGAL_ADDRESS"}
IS_LOST = "the CUDA context is lost"

#: Calls whose failure raises nothing: what they release stays.
RELEASES = {
    "cuCtxPopCurrent_v2",
    "cuEventDestroy_v2",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuLibraryUnload",
    "cuMemFree_v2",
    "cuMemPoolDestroy",
    "cuStreamDestroy_v2",
}
#: Calls that promotion to a graph makes. If one fails, the launch is made without a graph.
GRAPHS = {
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuGraphAddKernelNode_v2",
    "cuGraphCreate",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphInstantiateWithFlags",
    "cuGraphKernelNodeSetAttribute",
    "cuGraphLaunch",
    "cuStreamGetGreenCtx",
    "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode",
}
#: Calls that may precede a release. If one fails, what is released is released all the same.
BEFORE_RELEASES = {"cuCtxGetCurrent", "cuCtxPushCurrent_v2"}
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


# Faults.


class Result(NamedTuple):
    """What a call has done.

    - ``parameters``: of the last launch, in hexadecimal digits.
    """

    launches: int
    parameters: str
    returned: str


class Clean(NamedTuple):
    """A path without a fault."""

    calls: list[str]
    result: Result
    handles: dict[str, int]


def result_of(path: Path, call: Call) -> Result:
    before = device.launches()
    returned = repr(call())
    parameters = device.ctypes.string_at(
        device.library.stand_in_last_parameters(), path.compared or 0
    )
    return Result(device.launches() - before, parameters.hex(), returned)


def without_fault(path: Path, prepare: Callable[[], Call]) -> Clean:
    call = prepare()
    device.fault(0, 0)
    first = result_of(path, call)
    calls = device.end_fault()
    second = result_of(path, call)
    assert path.compared is None or (first == second and first.launches > 0), (first, second)
    del call
    gc.collect()
    return Clean(calls, first, device.handles())


def with_fault(
    path: Path, prepare: Callable[[], Call], clean: Clean, at: int, code: int, lasts: bool
) -> list[str]:
    """What is wrong where a call fails."""
    name, error = clean.calls[at - 1], (LASTING if lasts else ONCE)[code]
    expected = f"{name.removesuffix('_v2').removesuffix('WithFlags')} failed with {error}"
    # The driver may not know an attribute.
    is_unknown = (name, error) == ("cuDeviceGetAttribute", INVALID_VALUE)
    releases = RELEASES - {"cuCtxPopCurrent_v2"}
    precedes_release = not releases.isdisjoint(clean.calls[at : at + 2])
    survives = path.survives | RELEASES | (BEFORE_RELEASES if precedes_release else set())
    wrong: list[str] = []

    def raised(message: str) -> None:
        # Of calls that fail from now on, another one may raise.
        names_cause = (f"failed with {error}" if lasts else expected) in message
        is_lost = lasts or error == "CUDA_ERROR_LAUNCH_FAILED"
        if not names_cause or is_lost != (IS_LOST in message):
            wrong.append(f"raised {message}")

    def returned(when: str, result: Result) -> None:
        if path.compared is not None and result != clean.result and not is_unknown:
            wrong.append(f"{when} {result} in place of {clean.result}")

    call = prepare()
    device.fault(at, code, lasts=lasts)
    try:
        returned("with the fault", result_of(path, call))
        if name not in survives and not is_unknown:
            wrong.append("raised nothing")
    except RuntimeError as refusal:
        raised(str(refusal))
    if lasts:
        try:
            call()
            wrong.append("later raised nothing")
        except RuntimeError as refusal:
            raised(str(refusal))
        return wrong
    device.end_fault()
    returned("later", result_of(path, call))
    del call
    gc.collect()
    held = device.handles()
    leaked = {kind: count for kind, count in held.items() if count > clean.handles[kind]}
    # What the driver refuses to release stays.
    if leaked and name not in RELEASES | {"cuMemFreeAsync"}:
        wrong.append(f"leaked {leaked}; without a fault: {clean.handles}")
    return wrong


class ProcessEnded(RuntimeError):
    """A process ended without a result."""

    def __init__(self, status: int) -> None:
        super().__init__(f"a process ended with status {status}")
        self.status = status


def forked(work: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function in a forked process, through JSON. Raises RuntimeError if the
    function or the process fails.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            result: Any = {"result": work(*arguments)}
        except BaseException:
            result = {"error": traceback.format_exc()}
        with os.fdopen(writing, "w") as pipe:
            json.dump(result, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise ProcessEnded(status)
    answer = json.loads(text)
    if "error" in answer:
        raise RuntimeError(answer["error"])
    return answer["result"]


def faults(calls: list[str]) -> Iterator[tuple[int, int, bool]]:
    """What to fail: the call's number, the error, and whether it lasts. The first call of a name
    fails with each error, a later one with one of them, in turns. Of many calls of a name, the
    first and the last fail.
    """
    seen, left = Counter[str](), Counter(calls)
    for at, name in enumerate(calls, start=1):
        seen[name] += 1
        left[name] -= 1
        if len(calls) > 50 and seen[name] > 1 and left[name] > 0:
            continue
        once = list(ONCE)
        for code in once if seen[name] == 1 else [once[at % len(once)]]:
            yield at, code, False
        for code in LASTING:
            yield at, code, True


def check(group: str) -> None:
    """Prints, for each path of a group, the calls of the driver, the number of faults, and what is
    wrong.
    """
    report: dict[str, Any] = {}
    for name, path in PATHS[group].items():
        prepare = path.share()
        gc.freeze()
        forked(without_fault, path, prepare)  # fills the cache on disk
        calls, result, handles = forked(without_fault, path, prepare)
        clean = Clean(calls, Result(*result), handles)
        planned, wrong = list(faults(calls)), []
        for at, code, lasts in planned:
            try:
                found = forked(with_fault, path, prepare, clean, at, code, lasts)
            except RuntimeError as error:
                found = [str(error)]
            wrong += [f"{name}: call {at}, {calls[at - 1]}, error {code}: {of}" for of in found]
        report[name] = {"calls": calls, "faults": len(planned), "wrong": wrong}
    json.dump(report, sys.stdout)
