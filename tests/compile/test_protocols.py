"""Synchronization protocols of the kernels, compiled for the CPU and run without a GPU."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "kernels"


def run_on_cpu(folder: Path, program: str, header: str, replaced: list[str], rounds: int) -> None:
    """Compiles ``tests/support/kernels/<program>.cpp`` around a header of the kernels, and runs it.
    The program declares what it needs of the headers in `replaced`, which only NVRTC can compile.
    """
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    if not shutil.which(compiler[0]):
        pytest.skip("needs a C++ compiler")
    for name in replaced:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    (folder / header).parent.mkdir(exist_ok=True)
    shutil.copy(KERNELS / header, folder / header)
    source = Path(__file__).parents[1] / f"support/kernels/{program}.cpp"
    flags = ["-std=c++20", "-O2", "-ffp-contract=off", "-pthread", f"-I{folder}"]
    subprocess.run([*compiler, *flags, source, "-o", folder / program], check=True)
    done = subprocess.run(
        [folder / program, str(rounds)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_grid_split_reduces_each_share_once_and_in_order(tmp_path: Path) -> None:
    headers = [
        "common/cluster.cuh",
        "common/ptx.cuh",
        "common/types.cuh",
        "common/wgmma.cuh",
        "sm90/config.cuh",
        "sm90/params.cuh",
        "sm90/registers.cuh",
    ]
    run_on_cpu(tmp_path, "grid_split", "sm90/grid_split.cuh", headers, 100)


def test_no_stage_is_filled_while_a_consumer_reads_it(tmp_path: Path) -> None:
    run_on_cpu(tmp_path, "pipeline", "sm90/boxes.cuh", ["common/tma.cuh"], 100)
