"""Facts about this machine and installation, and the list of built-in kernels."""

import os
import platform
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from fnmatch import fnmatchcase
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cutlass_api import _core
from cutlass_api._core import Kernel, get_kernels

#: Distributions whose versions matter to a bug report.
PACKAGES = ("torch", "triton", "numpy", "cupy-cuda12x", "cupy-cuda13x", "jax")
#: How the names of the environment variables begin that decide what this package, the loader and
#: the CUDA driver find and do.
VARIABLES = ("CUTLASS_API_", "CUDA_", "LD_LIBRARY_PATH")


def environment() -> dict[str, str]:
    """The facts that a bug report needs, by name: versions, GPUs, driver, NVRTC, caches, settings.

    If a fact is unavailable, its value is the reason. Imports no other package. Opens every GPU,
    which takes some device memory until the process ends.
    """
    facts = {"rutlass": _core.__version__}
    facts |= {name: found for name in PACKAGES if (found := package_version(name))}
    facts |= {"Python": platform.python_version(), "platform": platform.platform()}
    try:
        facts |= _gpus()
    except RuntimeError as error:
        facts["GPU"] = f"none: {error}"
    try:
        path, (major, minor) = _core.nvrtc_info()
        facts["NVRTC"] = f"{major}.{minor} ({path})"
    except RuntimeError as error:
        facts["NVRTC"] = f"none: {error}"
    facts["compiled programs"] = _cache()
    try:
        facts["tuning"] = f"{_core.tuning_mode()}, {len(_core.tuning_results())} stored results"
    except (RuntimeError, ValueError) as error:
        facts["tuning"] = f"none: {error}"
    facts |= {name: os.environ[name] for name in sorted(os.environ) if name.startswith(VARIABLES)}
    return facts


def package_version(distribution: str) -> str | None:
    """The version of an installed distribution; None without it."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _gpus() -> dict[str, str]:
    count = _core.device_count()
    facts = {} if count else {"GPU": "none"}
    for ordinal in range(count):
        try:
            name, cc, multiprocessors, driver = _core.device_facts(ordinal)
        except RuntimeError as error:
            facts[f"GPU {ordinal}"] = f"unusable: {error}"
            continue
        cc_text = f"compute capability {cc // 10}.{cc % 10}"
        facts[f"GPU {ordinal}"] = f"{name}, {cc_text}, {multiprocessors} multiprocessors"
        facts["CUDA driver"] = f"{driver // 1000}.{driver % 1000 // 10}"
    return facts


def _cache() -> str:
    folder = _core.cache_directory()
    if folder is None:
        return "not cached"
    if refusal := _core.cache_refusal():
        return f"not cached in {folder}: {refusal}"
    files, size = _core.cache_usage()
    return f"{folder}, {files} files, {size / 2**20:.1f} MiB"


def matching_kernels(patterns: Sequence[str], cc: int | None = None) -> list[Kernel]:
    """The built-in kernels for a GPU of a compute capability (90: an H100; None: any) whose name
    contains each of the patterns, in which ``*`` and ``?`` stand for any characters.
    """

    def matches(name: str) -> bool:
        return all(fnmatchcase(name, f"*{pattern}*") for pattern in patterns)

    return [each for each in get_kernels(cc=cc) if matches(each.metadata.kernel_name)]


def nvdisasm() -> str | None:
    """The disassembler of a CUDA toolkit, of its package or of Triton; None without one."""
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin"
    found = shutil.which("nvdisasm") or shutil.which("nvdisasm", path=toolkit)
    if found:
        return found
    packages = Path(sysconfig.get_paths()["purelib"])
    places = ("nvidia/*/bin/nvdisasm", "triton/backends/nvidia/bin/nvdisasm")
    inside = [path for place in places for path in sorted(packages.glob(place), reverse=True)]
    return str(inside[0]) if inside else None


def disassemble(cubin: bytes) -> str:
    """The instructions of a cubin, as nvdisasm prints them.

    Raises RuntimeError if no nvdisasm is found, with the package to install, or if it fails.
    """
    tool = nvdisasm()
    if tool is None:
        raise RuntimeError(
            "no nvdisasm was found on PATH, in $CUDA_HOME/bin and in the installed packages; "
            "pip install nvidia-cuda-nvdisasm"
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "program.cubin"
        file.write_bytes(cubin)
        command = [tool, "--print-code", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{tool} failed: {done.stderr.strip()}")
    return done.stdout


#: The titles of `kernel_cells`.
HEADER = ("kernel", "family", "from", "tile", "cluster", "stages")


def kernel_cells(kernel: Kernel) -> tuple[str, ...]:
    """A kernel as a row of a table: its name, its class, the least compute capability, then tile,
    cluster and stages of its design, empty if the design has none."""
    metadata = kernel.metadata

    def extents(name: str) -> str:
        return "x".join(map(str, getattr(metadata.design, name, None) or ()))

    return (
        metadata.kernel_name,
        type(kernel).__name__,
        f"{metadata.min_cc // 10}.{metadata.min_cc % 10}",
        extents("tile_shape"),
        extents("cluster_shape"),
        str(getattr(metadata.design, "stages", "")),
    )


__all__ = [
    "HEADER",
    "disassemble",
    "environment",
    "kernel_cells",
    "matching_kernels",
    "nvdisasm",
    "package_version",
]
