"""Faults outside of the driver, in processes of the stand-in: NVRTC, memory and threads of the
host, the file of the tuner's results.
"""

import ctypes
import itertools
import json
import os
import random
import resource
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cutlass_api
import numpy as np
from cutlass_api import _core
from cutlass_api.arguments import EpilogueArguments, GemmArguments

from support import fault_paths, faults

# Processes are aborted, and write no core files.
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


# NVRTC, replaced by nvrtc_faults.c.

NVRTC_ERRORS = {1: "NVRTC_ERROR_OUT_OF_MEMORY", 11: "NVRTC_ERROR_INTERNAL_ERROR"}


def check_nvrtc() -> None:
    """Prints the names of the calls that fail."""
    nvrtc = ctypes.CDLL("libnvrtc.so.13")
    nvrtc.name_of.restype = ctypes.c_char_p
    number = itertools.count()

    def new() -> Callable[[], str]:
        """What compiles a source that no cache has, to machine code and to PTX."""
        source = f"__global__ void f(float* x) {{ *x = {os.getpid()} + {next(number)}; }}"
        kernel = cutlass_api.cuda_kernel(source, "f", grid=1)
        return lambda: kernel.compile(cc=90).ptx

    def calls() -> list[str]:
        return [nvrtc.name_of(at).decode() for at in range(1, nvrtc.calls() + 1)]

    def clean() -> list[str]:
        nvrtc.fault(0, 0)
        assert ".entry" in new()()
        return calls()

    def with_fault(at: int, code: int) -> str:
        """Returns the call that fails."""
        compiled, before = new(), nvrtc.open_programs()
        nvrtc.fault(at, code)
        try:
            compiled()
        except RuntimeError as error:
            message = str(error)
        else:
            message = ""
        name = calls()[at - 1]
        if name == "nvrtcDestroyProgram":
            assert message == "", message
        else:
            # A message names the result, not its size.
            expected = f"{name.removesuffix('Size')} failed with {NVRTC_ERRORS[code]}"
            assert expected in message, (name, message)
        nvrtc.fault(0, 0)
        assert ".entry" in compiled()
        assert nvrtc.open_programs() - before == (name == "nvrtcDestroyProgram")
        return name

    opening = faults.forked(clean)
    failed = {faults.forked(with_fault, at, code) for at in (1, 2, 3) for code in NVRTC_ERRORS}
    assert failed == set(opening[:3]), failed
    clean()
    later = clean()
    assert later == opening[3:], (opening, later)
    codes = itertools.cycle(NVRTC_ERRORS)
    failed |= {with_fault(at, next(codes)) for at in range(1, len(later) + 1)}
    json.dump(sorted(failed), sys.stdout)


# Memory and threads of the host, refused by allocations.c.


def check_heap() -> None:
    """Refuses allocations of a first run, one in 24 in a process of its own. Prints how many
    processes ended in which way.
    """
    heap = ctypes.CDLL(os.environ["LD_PRELOAD"])
    heap.allocations.restype = ctypes.c_long
    path = fault_paths.PATHS["run"]["first run with tensor maps"]
    prepare = path.share()
    faults.forked(faults.without_fault, path, prepare)  # fills the cache on disk

    def count() -> int:
        call, before = prepare(), heap.allocations()
        call()
        return heap.allocations() - before

    def refuse(number: int) -> str:
        sys.stderr.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        call = prepare()
        heap.refuse_allocation(ctypes.c_long(number))
        try:
            call()
            outcome = "served"
        except (MemoryError, RuntimeError) as error:
            outcome = f"raised {type(error).__name__}"
        call()
        return outcome

    outcomes = Counter[str]()
    for number in range(1, faults.forked(count) + 1, 24):
        try:
            outcomes[faults.forked(refuse, number)] += 1
        except faults.ProcessEnded as ended:
            # Rust's message, then abort(3); the dynamic linker exits.
            assert ended.status in (signal.SIGABRT, 127 << 8), ended
            outcomes["aborted"] += 1
    # Nothing that is wrong was stored.
    assert faults.forked(count) > 0
    json.dump(outcomes, sys.stdout)


def check_interpreter() -> None:
    """Refuses each allocation of Python objects by calls of the library. Prints how many were
    refused, by call.
    """
    import _testcapi

    a, b, out = fault_paths.operands()
    args = GemmArguments(a, b, out, "float32")
    kernel = fault_paths.kernel_of("_tt", args)
    artifact = kernel.compile(args)
    calls: dict[str, Callable[[], Any]] = {
        "arguments": lambda: GemmArguments(a, b, out, "float32"),
        "kernels": lambda: cutlass_api.get_kernels(args),
        "compile": lambda: kernel.compile(args),
        "run": lambda: kernel.run(args, artifact, stream=fault_paths.STREAM),
        "bind": lambda: kernel.bind(args, artifact, fault_paths.STREAM)(),
        "matmul": lambda: cutlass_api.matmul(a, b, out=out),
    }
    refused = Counter[str]()
    for name, call in calls.items():
        call()
        served = 0
        for at in itertools.count(1):
            _testcapi.set_nomemory(at, at + 1)
            try:
                call()
                served += 1
            except BaseException as error:
                raised = error
                served = 0
            finally:
                _testcapi.remove_mem_hooks()
            if served == 0:
                # PyO3 panics where it makes an object that Python has no memory for.
                is_panic = type(raised).__name__ == "PanicException"
                assert is_panic or isinstance(raised, (MemoryError, RuntimeError)), raised
                refused[name] += 1
            call()
            if served == 10:  # beyond the call's last allocation
                break
    json.dump(refused, sys.stdout)


def check_large_buffers() -> None:
    """Buffers of the size of the user's tensors raise MemoryError."""
    heap = ctypes.CDLL(os.environ["LD_PRELOAD"])
    least = 1 << 20

    def refused(call: Callable[[], Any]) -> None:
        heap.refuse_allocations_from(ctypes.c_size_t(least))
        try:
            call()
        except MemoryError as error:
            assert "the host lacks" in str(error) and "bytes of memory for" in str(error), error
        else:
            raise AssertionError("nothing was raised")
        finally:
            heap.refuse_allocations_from(ctypes.c_size_t(2**64 - 1))

    a, b = np.ones((1, 2), np.float32), np.ones((2, least // 4), np.float32)
    out, largest = np.empty((1, least // 4), np.float32), np.empty(least // 4, np.float32)
    source = "def f(accum):\n    D = accum\n    largest = max(accum, 0)\n    return D, largest"
    args = GemmArguments(a, b, out, "float32", EpilogueArguments(source, D=out, largest=largest))
    (kernel,) = cutlass_api.get_kernels(args)
    kernel.run(args)  # starts the threads
    largest[:] = 0
    refused(lambda: kernel.run(args))
    kernel.run(args)
    assert (largest == 2).all()

    fault_paths.few_copies()
    args = fault_paths.gemm(16, 64, least // 2)
    _core.TuningBenchmark(args, checks=False)
    refused(lambda: _core.TuningBenchmark(args, checks=True))


def check_threads() -> None:
    """Companions of a kernel compile, and the CPU reference computes, where the system starts no
    thread.
    """
    heap = ctypes.CDLL(os.environ["LD_PRELOAD"])
    heap.refuse_threads(1)
    args = fault_paths.gemm(*fault_paths.PACKED)
    program = fault_paths.kernel_of("_pp", args).compile(args).compiled_obj
    assert program.cubin
    ones = np.ones((300, 300), np.float32)
    for refused in (1, 1, 0):
        heap.refuse_threads(refused)
        assert (cutlass_api.matmul(ones, ones) == 300).all()


# The file of the tuner's results.


def rows(count: int) -> list[tuple[Any, ...]]:
    return [
        ("a device", 13, f"exact {at} float16", f"kernel {at % 7}", "a program", 1e-6 * (at + 1))
        for at in range(count)
    ]


ADDED = ("a device", 13, "exact added", "a kernel", "a program", 1e-6)


def damages(whole: bytes) -> Iterator[bytes]:
    """The content of a store, cut, with flipped bits (in the header, in the table's declaration,
    anywhere), and with sectors of zeros.
    """
    random_ = random.Random(20)
    for _ in range(10):
        yield whole[: random_.randrange(len(whole))]
    for begin, end, count in ((0, 100, 10), (3700, 4096, 30), (0, len(whole), 20)):
        for _ in range(count):
            content = bytearray(whole)
            content[random_.randrange(begin, end)] ^= 1 << random_.randrange(8)
            yield bytes(content)
    for _ in range(10):
        at = random_.randrange(len(whole) // 512) * 512
        yield whole[:at] + bytes(512) + whole[at + 512 :]


def visit(folder: Path, added: tuple[Any, ...] | None) -> tuple[list[Any], list[str]]:
    """The results in a folder, and the warnings of reading them and of adding one."""
    os.environ["CUTLASS_API_CACHE_DIR"] = str(folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = _core.tuning_results()
        if added:
            _core.add_tuning_results([added])
        return found, [str(warning.message) for warning in caught]


def whole_store(folder: Path) -> bytes:
    os.environ["CUTLASS_API_CACHE_DIR"] = str(folder)
    faults.forked(_core.add_tuning_results, rows(300))
    return (folder / "tuning.sqlite3").read_bytes()


def check_damaged_store(folder: Path) -> None:
    """Reads damaged stores. Prints how many were set aside."""
    aside = 0
    for number, content in enumerate(damages(whole_store(folder / "whole"))):
        damaged = folder / str(number)
        damaged.mkdir()
        (damaged / "tuning.sqlite3").write_bytes(content)
        _, warned = faults.forked(visit, damaged, ADDED)
        found, later = faults.forked(visit, damaged, None)
        is_aside = (damaged / "tuning.aside-1.sqlite3").exists()
        assert len(warned) == is_aside and all("was set aside as" in text for text in warned), (
            warned
        )
        # The next process reads a whole store.
        assert list(ADDED) in found and later == [], (number, warned, later)
        aside += is_aside
    print(aside)


def check_interrupted_store(folder: Path) -> None:
    """Writes to stores on a disk that fills, and is killed while it writes. Prints how often a
    write failed, and how often it was killed.
    """
    content, more = whole_store(folder / "whole"), rows(900)[300:]
    failed = killed = 0

    def write(limit: int, action: signal.Handlers) -> tuple[int, list[str]]:
        sys.dont_write_bytecode = True
        signal.signal(signal.SIGXFSZ, action)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            _core.add_tuning_results(more)
            return len(_core.tuning_results()), [str(warning.message) for warning in caught]

    for limit in range(256, 3 * len(content), 6000):
        for action in (signal.SIG_IGN, signal.SIG_DFL):
            interrupted = folder / f"{limit} {action.name}"
            interrupted.mkdir()
            (interrupted / "tuning.sqlite3").write_bytes(content)
            os.environ["CUTLASS_API_CACHE_DIR"] = str(interrupted)
            is_whole = False
            try:
                known, warned = faults.forked(write, limit, action)
                # What cannot be written stays in memory.
                assert known == 900 and len(warned) <= 1, (known, warned)
                assert all("results of this process stay in memory" in text for text in warned), (
                    warned
                )
                is_whole = warned == []
                failed += not is_whole
            except faults.ProcessEnded as ended:
                assert ended.status == signal.SIGXFSZ and action == signal.SIG_DFL, ended
                killed += 1
            found, warned = faults.forked(visit, interrupted, ADDED)
            assert len(found) == (900 if is_whole else 300) and warned == [], (limit, warned)
    json.dump([failed, killed], sys.stdout)
