"""A CUDA driver and CUDA tensors for machines without a GPU: compiled from C, loaded in
subprocesses.

A script that :func:`run` starts loads the stand-in as ``libcuda.so.1``, and imports
:mod:`stand_in.device` for tensors.
"""

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import cutlass_api
from support import warm

HERE = Path(__file__).parent


@functools.cache
def build() -> Path:
    """The folder with ``libcuda.so.1`` and the counters of instructions and allocations; built once
    a run.
    """
    folder = _folder()
    _compile("cuda.c", folder / "libcuda.so.1")
    _compile("allocations.c", folder / "allocations.so")
    _compile("count.c", folder / "count", shared=False)
    return folder


def _folder() -> Path:
    """A new folder, which this process removes when it ends."""
    folder = tempfile.mkdtemp(prefix="rutlass-stand-in-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _compile(source: str, output: Path, *libraries: Path | str, shared: bool = True) -> None:
    # The linker that Rust needs is a C compiler, so there is one.
    command = [os.environ.get("CC", "cc"), "-O2", "-Wall", "-Wextra", "-Werror"]
    command += ["-shared", "-fPIC"] if shared else []
    command += ["-o", str(output), str(HERE / source), "-Wl,--no-as-needed"]
    subprocess.run([*command, *map(str, libraries), "-ldl"], check=True)


def build_nvrtc(real: Path, folder: Path) -> None:
    """Puts ``libnvrtc.so`` into a folder: the real library, with epilogues that do not compile."""
    _compile("nvrtc.c", folder / "libnvrtc.so", real, f"-Wl,-rpath,{real.parent}")
    _link_builtins(real, folder)


def build_faulty_nvrtc(folder: Path) -> dict[str, str]:
    """Puts ``libnvrtc.so.13`` into a folder: the real library, whose calls fail on demand. Returns
    the variables of processes that use it.
    """
    return _build_wrapper("nvrtc_faults.c", folder)


def build_locked_nvrtc(folder: Path) -> dict[str, str]:
    """As :func:`build_faulty_nvrtc`, with compilations that hold a lock."""
    return _build_wrapper("nvrtc_locked.c", folder)


def _build_wrapper(source: str, folder: Path) -> dict[str, str]:
    _compile(source, folder / "libnvrtc.so.13")
    _link_builtins(_real_nvrtc(), folder)
    return {"LD_LIBRARY_PATH": str(folder), "REAL_NVRTC": str(_real_nvrtc())}


def _real_nvrtc() -> Path:
    return Path(cutlass_api._core.nvrtc_info()[0]).resolve()


def _link_builtins(real: Path, folder: Path) -> None:
    for builtins in real.parent.glob("libnvrtc-builtins.so*"):
        (folder / builtins.name).symlink_to(builtins)


@functools.cache
def build_emulator() -> dict[str, str]:
    """The variables of processes whose launches the CPU executes. cargo builds the emulator; its
    lock lets several workers of pytest-xdist build at once.
    """
    folder = _folder()
    shutil.copytree(build(), folder, dirs_exist_ok=True)
    _compile("nvrtc_ptx.c", folder / "libnvrtc.so.13")
    command = ["cargo", "build", "--quiet", "--release", "--package", "emulator"]
    root = HERE.parent.parent
    subprocess.run(command, cwd=root, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    return {
        "LD_LIBRARY_PATH": str(folder),
        "STAND_IN": str(folder / "libcuda.so.1"),
        "EMULATOR": str(target / "release" / "libemulator.so"),
        "REAL_NVRTC": str(_real_nvrtc()),
        # Other tests cache machine code under the same keys.
        "CUTLASS_API_CACHE_DIR": str(
            Path(os.environ.get("CUTLASS_API_CACHE_DIR", folder)) / "programs_for_emulator"
        ),
        # The workers of pytest-xdist occupy the cores.
        "OMP_NUM_THREADS": "1",
    }


def environment(*, emulated: bool = False) -> dict[str, str]:
    """The environment of a process whose CUDA driver is the stand-in.

    ``emulated``: the CPU executes launches, if the process imports :mod:`stand_in.emulated` first.
    """
    folder = build()
    known = {
        "LD_LIBRARY_PATH": str(folder),
        "STAND_IN": str(folder / "libcuda.so.1"),
        # The tested package may also be on the path.
        "PYTHONPATH": os.pathsep.join(
            [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        # Hashes decide how long a dictionary look-up probes.
        "PYTHONHASHSEED": "0",
    }
    return {**os.environ, **known, **(build_emulator() if emulated else {})}


def run(script: str, *, counted: bool = False, emulated: bool = False, **more: str) -> str:
    """The output of a Python script in a process whose CUDA driver is the stand-in. Fails if the
    script fails.

    ``counted``: return the instruction counts between each ``begin()`` and ``end()`` instead of the
    script's output. ``emulated``: the CPU executes launches. ``more``: environment variables,
    which need an interpreter of their own since imports read some of them.
    """
    variables = {**environment(emulated=emulated), **more}
    if emulated and not more:
        server = warm.server("stand_in.emulated", variables)
        result = server.run(script, environment=variables, timeout=600)
    else:
        command = [sys.executable, "-c", script]
        if counted:
            command.insert(0, str(build() / "count"))
        if emulated:
            command[-1] = f"import stand_in.emulated\n{script}"
        result = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600)
    if result.returncode != 0:
        raise AssertionError(
            f"the script failed with {result.returncode}:\n{result.stdout}\n{result.stderr}"
        )
    return result.stdout


#: The common prefix of scripts about a GEMM: three float16 tensors, arguments, streams, a kernel.
GEMM = textwrap.dedent(
    """
    import json, threading
    import cutlass_api
    from cutlass_api.arguments import EpilogueArguments, GemmArguments
    from stand_in import device
    from stand_in.device import Tensor, raises

    A, B, OUT = 0x10000000, 0x20000000, 0x30000000
    a, b, out = Tensor(A, (128, 256)), Tensor(B, (256, 64)), Tensor(OUT, (128, 64))
    STREAM, OTHER_DEVICE = 0x5010, 0x6010
    args = GemmArguments(a, b, out, "float32")

    def first(args, family):
        return [
            kernel
            for kernel in cutlass_api.get_kernels(args)
            if family in kernel.metadata.kernel_name
        ][0]

    kernel = first(args, "sm80")
    """
)


def run_gemm(script: str, **kwargs: Any) -> str:
    """The output of a script after :data:`GEMM`."""
    return run(GEMM + textwrap.dedent(script), **kwargs)
