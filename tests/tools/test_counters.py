"""`python -m cutlass_api profile`: what it reads from Nsight Compute, and what it says without."""

import json
import shutil
import stat
import subprocess
import sys

import pytest
import torch
from cutlass_api.bench import counters, limits
from cutlass_api.bench.types import TYPES
from support.benches import run, use_the_cpu

#: The output of `ncu --csv --page raw --print-units base`, shortened, of a chip without one of the
#: counters.
LOG = """\
==PROF== Connected to process 7 (/usr/bin/python3)
==PROF== Profiling "rutlass_pack" - 0: 0%....50%....100% - 4 passes
==PROF== Disconnected from process 7
"ID","Process ID","Kernel Name","dram__bytes.sum.per_second","gpu__time_duration.sum",\
"sm__cycles_elapsed.max","sm__throughput.avg.pct_of_peak_sustained_elapsed",\
"l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",\
"smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",\
"smsp__average_warps_issue_stalled_selected_per_issue_active.ratio",\
"smsp__average_warps_issue_stalled_wait_per_issue_active.ratio",\
"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
"","","","byte/second","ns","cycle","%","","inst","inst","inst","%"
"0","7","rutlass_pack","2,500,000,000,000.5","10,000","17,000","40.25","0","8.5","1","2","n/a"
"1","7","rutlass_sm90_gemm_f16","1e12","100000","130073.6","91","12","0.25","1","3.5","88.5"
"""


@pytest.fixture
def ncu(monkeypatch, tmp_path):
    """Puts a program named `ncu` on PATH, which writes a text to its log file and ends."""

    def install(text: str, status: int = 0, said: str = "") -> None:
        program = tmp_path / "ncu"
        program.write_text(
            f"#!{sys.executable}\n"
            "import os, sys\n"
            "assert os.environ['CUTLASS_API_LAUNCH_GRAPHS'] == '0'\n"
            "at = sys.argv.index('--log-file')\n"
            f"open(sys.argv[at + 1], 'w').write({text!r})\n"
            f"print({said!r}, file=sys.stderr)\n"
            f"sys.exit({status})\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    monkeypatch.setenv("PATH", str(tmp_path))
    rates = limits.peak_rates(90)
    monkeypatch.setattr(limits, "peak_rates", lambda: rates)
    return install


def test_counters_are_shown_by_kernel(monkeypatch, capsys, tmp_path, ncu) -> None:
    ncu(LOG)
    path = tmp_path / "counters.json"
    run(monkeypatch, "profile", "--shape", "4096,4096,4096", "--dtype", "fp16", "--json", path)
    pack, gemm = capsys.readouterr().out.split("rutlass_sm90_gemm_f16 (a GPU)")
    assert pack.strip().startswith("rutlass_pack (a GPU)") and "share of peak" not in pack
    lines = {
        name: value.split()
        for name, _, value in (line.strip().partition("  ") for line in gemm.splitlines())
    }
    # 2 x 4096^3 FLOP in 130073.6 cycles of 132 multiprocessors with 4096 FLOP each.
    flop = 2 * 4096**3 / 130073.6 / 132 / 4096
    assert lines["share of peak"] == [f"{100 * flop:.1f}", "%"]
    assert lines["duration"] == ["100.00", "us"] and lines["memory traffic"] == ["1.000", "TB/s"]
    assert lines["tensor cores"] == ["88.5", "%"]
    assert lines["shared-memory bank conflicts"] == ["12"]
    assert "tensor cores" not in pack and "2.500 TB/s" in " ".join(pack.split())
    stalls = [name for name in lines if name.startswith("stall")]
    assert stalls == ["stall: wait", "stall: long scoreboard"], "longest first, without `selected`"
    read = json.loads(path.read_text())
    assert read["product"]["dtype"] == "float16" and read["device"] == "a GPU"
    assert [each["name"] for each in read["kernels"]] == ["rutlass_pack", "rutlass_sm90_gemm_f16"]
    assert read["kernels"][0]["share_of_peak"] is None
    assert read["kernels"][0]["stalls"] == {"long scoreboard": 8.5, "wait": 2}


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_has_a_share_of_its_peak(monkeypatch, tmp_path, ncu, dtype) -> None:
    ncu(LOG)
    path = tmp_path / "counters.json"
    options = ["--shape", "4096,4096,4096", "--dtype", dtype, "--layout", "tn", "--json", path]
    run(monkeypatch, "profile", *options)
    read = json.loads(path.read_text())
    assert (read["product"]["dtype"], read["product"]["layout"]) == (dtype, "tn")
    rates = limits.peak_rates()
    seconds = 130073.6 / rates["clock_hz"]
    expected = 2 * 4096**3 / seconds / limits.type_peak(rates, dtype)
    assert read["kernels"][1]["share_of_peak"] == pytest.approx(expected)


@pytest.mark.gpu
def test_a_kernel_has_counters(tmp_path) -> None:
    if shutil.which("ncu") is None:
        pytest.skip("needs ncu, of Nsight Compute")
    path = tmp_path / "counters.json"
    program = [sys.executable, "-m", "cutlass_api", "profile", "--shape", "2048,2048,2048"]
    ended = subprocess.run([*program, "--json", path], capture_output=True, text=True)
    if ended.stderr.strip() == counters.PERMISSION:
        pytest.skip("this user may not read the GPU's counters")
    assert ended.returncode == 0, ended.stderr
    read = json.loads(path.read_text())["kernels"]
    (gemm,) = [each for each in read if "gemm" in each["name"]]
    missing = [name for name, value in gemm["values"].items() if value is None]
    assert not missing and gemm["stalls"]
    assert 0.1 < gemm["share_of_peak"] < 1


def test_without_nsight_compute_it_says_what_to_install(monkeypatch, ncu) -> None:
    with pytest.raises(SystemExit, match="install Nsight Compute"):
        run(monkeypatch, "profile", "--shape", "64,64,64")


def test_without_permission_it_says_how_to_get_it(monkeypatch, ncu) -> None:
    ncu("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", 1)
    with pytest.raises(SystemExit, match="NVreg_RestrictProfilingToAdminUsers=0"):
        run(monkeypatch, "profile", "--shape", "64,64,64")


def test_what_the_program_says_is_passed_on(monkeypatch, ncu) -> None:
    ncu("==PROF== Connected\n==WARNING== No kernels were profiled.", 1, "none of the 9 kernels")
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "profile", "--shape", "64,64,64")
    assert "none of the 9 kernels\n" in str(ended.value)
    assert "No kernels were profiled" in str(ended.value)


@pytest.mark.parametrize("shape", ["64,64", "64,64,0", "a,b,c"])
def test_other_shapes_are_refused(monkeypatch, capsys, shape) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "profile", "--shape", shape)
    assert "argument --shape: " in capsys.readouterr().err


def test_the_program_launches_once_within_the_profiled_range(monkeypatch) -> None:
    """On the CPU, with the reference for the kernel."""
    calls = []
    for name in ("start", "stop"):
        monkeypatch.setattr(torch.cuda.profiler, name, lambda name=name: calls.append(name))
    use_the_cpu(monkeypatch)
    counters.main(["8", "16", "24", "tn", "float16", "reference"])
    assert calls == ["start", "stop"]
    with pytest.raises(SystemExit, match=r"none of the \d+ kernels .* has 'sm70' in its name"):
        counters.main(["8", "16", "24", "tn", "float16", "sm70"])
