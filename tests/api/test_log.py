"""`CUTLASS_API_LOG`, and the warning about a cache that cannot be written."""

import re
import textwrap

import pytest
from stand_in import run_gemm
from support.helpers import start_python

#: Computes on the CPU twice, and compiles for a GPU twice.
SCRIPT = """
    import numpy, cutlass_api
    from cutlass_api.arguments import GemmArguments

    a = numpy.ones((64, 64), numpy.float16)
    out = cutlass_api.matmul(a, a)
    cutlass_api.matmul(a, a)
    args = GemmArguments(a, a, out, "float32")
    for kernel in cutlass_api.get_kernels(args, cc=80)[:2]:
        kernel.compile(args, cc=80)
        kernel.compile(args, cc=80)
"""


def messages(folder, level, script=SCRIPT):
    environment = {"CUTLASS_API_LOG": level, "CUTLASS_API_CACHE_DIR": str(folder)}
    process = start_python(script, **environment)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return err.splitlines()


def test_levels(tmp_path):
    first = messages(tmp_path, "info")
    prefix = r"cutlass_api: "
    choice = "gemm 1x64x64x64 f16t16 f16t16 f16t16 sums f32: reference_gemm_f16xf16_f32_f16"
    patterns = [rf"{choice}, on the CPU", *[r"\S+ for sm_80: compiled by NVRTC in \d+\.\d ms"] * 2]
    assert len(first) == 3
    for line, pattern in zip(first, patterns, strict=True):
        assert re.fullmatch(prefix + pattern, line), line
    second = messages(tmp_path, "debug")
    assert sum("from the disk cache in" in line for line in second) == 2
    assert sum(line.endswith("from memory") for line in second) == 2
    assert any(re.match(r"reference +1 of \d+ kernels serve it", line) for line in second)
    assert messages(tmp_path, "") == []


def test_an_unknown_level(tmp_path):
    assert messages(tmp_path, "loud", "import cutlass_api") == [
        'cutlass_api: CUTLASS_API_LOG is "loud"; it must be info or debug; only warnings are logged'
    ]


@pytest.mark.parametrize("level", ["", "info"])
def test_a_cache_that_cannot_be_written_warns_once(tmp_path, level):
    (tmp_path / "file").write_text("not a folder")
    lines = messages(tmp_path / "file", level)
    (warning,) = (line for line in lines if "cannot be cached" in line)
    assert str(tmp_path / "file") in warning and "CUTLASS_API_CACHE_DIR" in warning


def test_handlers_of_the_program_get_the_messages(tmp_path):
    script = """
        import logging, cutlass_api
        logger = logging.getLogger("cutlass_api")
        logger.addHandler(logging.FileHandler(r"{file}"))
        logger.setLevel(logging.INFO)
    """
    script = script.format(file=tmp_path / "log")
    assert messages(tmp_path, "info", textwrap.dedent(script) + textwrap.dedent(SCRIPT)) == []
    assert len((tmp_path / "log").read_text().splitlines()) == 3


def test_why_a_kernel_was_chosen(tmp_path):
    script = """
        import sys
        sys.stderr = sys.stdout  # which run_gemm returns
        cutlass_api.matmul(a, b, out=out)
    """
    lines = run_gemm(script, CUTLASS_API_LOG="info", CUTLASS_API_CACHE_DIR=str(tmp_path))
    choice, origin = lines.splitlines()
    kernel = r"(\S+_gemm_\S+)"
    known = re.fullmatch(
        rf"cutlass_api: gemm .*: {kernel}, place 1 of \d+ kernels, estimated at \d+\.\d us", choice
    )
    assert known and f"{known[1]} for sm_" in origin
