"""How CTAs that have parts of K agree, without a GPU: kernels/sm90/parts.cuh, compiled for the CPU."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

KERNELS = Path(__file__).parent.parent / "kernels"


def test_every_slice_is_added_up_once_in_order_whoever_runs_when(tmp_path: Path) -> None:
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    if not shutil.which(compiler[0]):
        pytest.skip("needs a C++ compiler")
    # In place of the headers that only NVRTC understands; parts.cpp has what they would declare.
    for name in ("common/cluster.cuh", "common/ptx.cuh", "common/types.cuh", "common/wgmma.cuh", "sm90/params.cuh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    shutil.copy(KERNELS / "sm90/parts.cuh", tmp_path / "sm90")
    program, source = tmp_path / "parts", Path(__file__).parent / "kernels/parts.cpp"
    flags = ["-std=c++20", "-O2", "-ffp-contract=off", "-pthread", f"-I{tmp_path}"]
    subprocess.run([*compiler, *flags, source, "-o", program], check=True)
    done = subprocess.run([program, "300"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
