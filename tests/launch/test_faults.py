"""Faults: each call of the driver and of NVRTC fails, allocations and threads are refused, the disk
fills, files are torn, processes are killed while they write. Each ends in an exception that names
the cause, leaks nothing, leaves nothing wrong in a cache, and does not keep the next call from
working.
"""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from contextlib import closing
from pathlib import Path

import pytest
import stand_in
from support.driver_calls import ALL, CALLS
from support.helpers import run_python, start_python

# The driver. tests/support/fault_paths.py has the paths, and faults.py what is expected of each.


@pytest.mark.parametrize("group", CALLS)
def test_each_call_of_the_driver_fails_in_turn(group: str, tmp_path: Path) -> None:
    # The tuner's results would rank kernels of other tests.
    folder = {"CUTLASS_API_CACHE_DIR": str(tmp_path)} if group == "tuner" else {}
    report = json.loads(stand_in.run(f"import support.faults as f; f.check({group!r})", **folder))
    for name, path in report.items():
        print(f"{name}: {len(path['calls'])} calls, {path['faults']} faults")
    wrong = [text for path in report.values() for text in path["wrong"]]
    assert not wrong, "\n".join(wrong[:20])
    called = {call for path in report.values() for call in path["calls"]}
    assert CALLS[group] <= called, CALLS[group] - called


def test_no_call_of_the_driver_is_left_out() -> None:
    folder = Path(__file__).parents[2] / "src" / "driver"
    text = "".join(source.read_text() for source in folder.glob("*.rs"))
    used = {*re.findall(r"sys::(cu[A-Z]\w+)\(", text), "cuEventElapsedTime"}
    used |= {"cuGetErrorName", "cuGetErrorString"}
    assert used == ALL


def test_a_product_is_not_tuned_if_the_stream_is_unknown() -> None:
    stand_in.run_gemm(
        """
        device.fail("cuStreamIsCapturing", 2)
        with raises(RuntimeError, "cuStreamIsCapturing failed with CUDA_ERROR_OUT_OF_MEMORY"):
            cutlass_api.matmul(a, b, out=out)
        """,
        CUTLASS_API_TUNE="record",
    )


# NVRTC and the host. tests/support/host_faults.py has what is expected.


def test_each_call_of_nvrtc_fails_in_turn(tmp_path: Path) -> None:
    variables = stand_in.build_faulty_nvrtc(tmp_path)
    variables["LD_LIBRARY_PATH"] += f":{stand_in.build()}"
    out = stand_in.run("import support.host_faults as h; h.check_nvrtc()", **variables)
    source = Path(__file__).parents[2] / "src" / "compile" / "nvrtc.rs"
    assert {*json.loads(out), "nvrtcGetErrorString"} == set(
        re.findall(r'b"(nvrtc\w+)"', source.read_text())
    ) | {"nvrtcGetProgramLogSize"}


def run_preloaded(function: str) -> str:
    """Runs a check of tests/support/host_faults.py whose allocations and threads can be refused."""
    preloaded = str(stand_in.build() / "allocations.so")
    return stand_in.run(f"import support.host_faults as h; h.{function}()", LD_PRELOAD=preloaded)


def test_a_refused_allocation_aborts_the_process_or_raises() -> None:
    outcomes = json.loads(run_preloaded("check_heap"))
    assert outcomes["aborted"] > 10, outcomes


def test_a_refused_python_object_raises() -> None:
    pytest.importorskip("_testcapi")
    refused = json.loads(stand_in.run("import support.host_faults as h; h.check_interpreter()"))
    assert refused["kernels"] > 0 and refused["compile"] > 0, refused


def test_buffers_of_the_operands_size_raise_memory_errors() -> None:
    run_preloaded("check_large_buffers")


def test_no_thread_is_needed() -> None:
    run_preloaded("check_threads")


# Files.

#: Compiles kernels. `limit` limits the size of the files that the process writes, as a full disk
#: does. Where a signal is not ignored, as Python does, it kills the process at the limit.
COMPILE = """
    import os, resource, signal, sys
    import cutlass_api
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Python would keep a truncated file (findings/full_disk_truncates_bytecode.sh).
    sys.dont_write_bytecode = True

    def limit(bytes_, kills=False):
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if kills else signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, resource.RLIM_INFINITY))

    def compiled(number):
        source = f"__global__ void f(float* x) {{ *x = {number}; }}"
        return cutlass_api.cuda_kernel(source, "f", grid=1).compile(cc=90)
"""


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def compile_(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(COMPILE) + textwrap.dedent(script)],
        env={**os.environ, "CUTLASS_API_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_full_disk_costs_the_file_alone(tmp_path: Path) -> None:
    done = compile_(
        """
        limit(1000)
        compiled(1), compiled(2)
        limit(resource.RLIM_INFINITY)
        compiled(3)
        """,
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"compiled programs cannot be cached in {tmp_path}") == 1, done.stderr
    (file,) = files_in(tmp_path)
    assert file.suffix == ".cubin"


def test_what_a_killed_writer_leaves_is_not_used_and_is_removed(tmp_path: Path) -> None:
    for _ in range(2):
        killed = compile_("limit(1000, kills=True); compiled(1)", tmp_path)
        assert killed.returncode == -signal.SIGXFSZ, killed
    left = files_in(tmp_path)
    assert [path.suffix for path in left] == ["", ""] and left[0].stat().st_size == 1000
    # Another process may be writing the later one.
    os.utime(left[0], (time.time() - 7200,) * 2)
    assert compile_("compiled(1)", tmp_path).returncode == 0
    (file,) = set(files_in(tmp_path)) - {left[1]}
    assert file.suffix == ".cubin"
    # The file is whole: another process uses it.
    inode = file.stat().st_ino
    assert compile_("limit(0, kills=True); compiled(1)", tmp_path).returncode == 0
    assert file.stat().st_ino == inode


def test_a_torn_store_is_set_aside(tmp_path: Path) -> None:
    script = f"import support.host_faults as h; h.check_damaged_store(h.Path({str(tmp_path)!r}))"
    assert int(stand_in.run(script)) > 20


def test_an_interrupted_write_leaves_the_store_as_before(tmp_path: Path) -> None:
    script = (
        f"import support.host_faults as h; h.check_interrupted_store(h.Path({str(tmp_path)!r}))"
    )
    failed, killed = json.loads(stand_in.run(script))
    assert failed > 5 and killed > 5, (failed, killed)


def test_a_locked_store_keeps_results_in_memory(tmp_path: Path) -> None:
    script = """
        import sys, warnings
        from cutlass_api import _core
        warnings.simplefilter("always")
        _core.add_tuning_results([("a device", 13, sys.argv[1], "a kernel", "a program", 1e-6)])
        assert sys.argv[1] in {key for _, _, key, *_ in _core.tuning_results()}
    """
    folder = {"CUTLASS_API_CACHE_DIR": str(tmp_path)}
    run_python(script, "one", **folder)
    with closing(sqlite3.connect(tmp_path / "tuning.sqlite3")) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        locked_out = start_python(script, "two", **folder)  # waits for five seconds
        _, warned = locked_out.communicate(timeout=60)
        assert locked_out.returncode == 0, warned
        warning = "database is locked; results of this process stay in memory"
        assert warned.count(warning) == 1, warned
        connection.rollback()
    run_python(script, "three", **folder)
    with closing(sqlite3.connect(tmp_path / "tuning.sqlite3")) as connection:
        keys = connection.execute("SELECT key FROM results").fetchall()
    assert sorted(keys) == [("one",), ("three",)]
