"""DTensors, parallel modules and expert parallelism in process groups of two and four ranks.

On the CPU, gloo communicates and the reference computes. `-m multi_gpu` runs the same checks with
NCCL on as many GPUs. `checks_of_processes.py` has the checks.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("torch.distributed.tensor")
TESTS = Path(__file__).parents[1]
CHECKED = "support.checks_of_processes"
CHECKS = [
    line.split("(")[0].removeprefix("def check_")
    for line in (TESTS / "support/checks_of_processes.py").read_text().splitlines()
    if line.startswith("def check_")
]
gpus = torch.cuda.device_count()
checks = pytest.mark.parametrize("check", CHECKS)


def run_ranks(folder, module, backend, *sizes, timeout=240):
    """The outcome of each check in each rank, by the size of the group: "" or a traceback."""
    command = [sys.executable, "-m", "support.distributed"]
    arguments = [module, backend, folder, *sizes]
    try:
        done = subprocess.run(
            list(map(str, command + arguments)),
            cwd=TESTS,
            timeout=timeout,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        output = done.stdout
    except subprocess.TimeoutExpired as expired:
        output = f"after {timeout} s: {expired.stdout}"
    files = {(size, rank): folder / f"{size}_{rank}.json" for size in sizes for rank in range(size)}
    return output, {
        key: json.loads(file.read_text()) if file.exists() else {} for key, file in files.items()
    }


def assert_passed(outcome, size, check):
    output, found = outcome
    for rank in range(size):
        result = found[size, rank].get(f"check_{check}", f"did not finish: {output}")
        assert result == "", f"rank {rank} of {size}: {result}"


@pytest.fixture(scope="module")
def on_cpus(tmp_path_factory):
    return run_ranks(tmp_path_factory.mktemp("ranks"), CHECKED, "gloo", 2, 4)


@checks
@pytest.mark.parametrize("size", [2, 4])
def test_ranks(on_cpus, size, check):
    assert_passed(on_cpus, size, check)


@pytest.fixture(scope="module")
def on_gpus(tmp_path_factory):
    sizes = [size for size in (2, 4) if size <= gpus]
    return run_ranks(tmp_path_factory.mktemp("ranks"), CHECKED, "nccl", *sizes)


@pytest.mark.gpu
@pytest.mark.multi_gpu
@pytest.mark.skipif(gpus < 2, reason="asks for two GPUs")
@checks
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_on_gpus(on_gpus, size, check):
    if size > gpus:
        pytest.skip("asks for four GPUs")
    assert_passed(on_gpus, size, check)
