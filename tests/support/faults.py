"""Faults of the driver in a process of the stand-in: each call of a path fails once, with each
error, and once for good.

Each fault has a forked process of its own, since a process opens a device and loads a program once.
"""

import gc
import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from stand_in import device

from support.driver_calls import BEFORE_RELEASES, RELEASES
from support.fault_paths import PATHS, Call, Path

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
    fails with each error, a later one with one of them that does not last, in turns. Of many calls
    of a name, the first and the last fail.
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
        for code in LASTING if seen[name] == 1 else ():
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
