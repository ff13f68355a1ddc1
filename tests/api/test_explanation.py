"""`explain`, `kernel.estimate`, and what an empty list of kernels says."""

import cutlass_api
import pytest
import torch
from support.helpers import cpu_gemm, fake_gemm


def test_explain_prints_families_and_the_first_kernels(capsys):
    args = fake_gemm(4096, 4096, 4096)
    cutlass_api.explain(args, cc=90)
    text = capsys.readouterr().out
    for family in ("sm90", "sm80", "skinny", "simt", "elementwise", "reference"):
        assert f"\n{family} " in f"\n{text}"
    assert "skinny       none of" in text and "M is 4096, and the kernel serves at most 64" in text
    first = [kernel.metadata.kernel_name for kernel in cutlass_api.get_kernels(args, cc=90)[:5]]
    positions = [text.index(name) for name in first]
    assert positions == sorted(positions)
    assert "total arithmetic" in text


def test_explain_on_the_cpu_names_the_reference(capsys):
    cutlass_api.explain(cpu_gemm())
    text = capsys.readouterr().out
    assert "reference    1 of" in text and "reference_gemm_f32xf32" in text
    assert "sm90         none of" in text and "total arithmetic" not in text


def test_explain_follows_the_choice_of_precision(capsys):
    args = fake_gemm(512, 512, 512, dtype=torch.float32)
    cutlass_api.explain(args, cc=90)
    assert "the kernel rounds float32 operands to tf32" in capsys.readouterr().out


def test_estimates_have_the_terms_of_the_model():
    args = fake_gemm(4096, 4096, 4096)
    kernels = cutlass_api.get_kernels(args, cc=90)
    estimates = [kernel.estimate(args, cc=90) for kernel in kernels[:20]]
    totals = [estimate.total_seconds for estimate in estimates]
    assert totals == sorted(totals)
    first = estimates[0]
    assert first.bytes == 3 * 2 * 4096**2 and first.waves >= 1
    terms = (first.arithmetic_seconds, first.memory_seconds, first.cache_seconds)
    assert all(0 < term < first.total_seconds for term in terms)
    # 137 GFLOP at less than the 990 TFLOP/s of the chip's specification.
    assert 139e-6 < first.total_seconds < 300e-6
    assert repr(first).startswith("Estimate(total_seconds=")


def test_estimates_are_refused_with_the_reason():
    args = fake_gemm(256, 256, 256)
    kernel = cutlass_api.get_kernels(args, cc=90)[0]
    with pytest.raises(ValueError, match="does not support the provided arguments: A has dtype"):
        kernel.estimate(fake_gemm(256, 256, 256, dtype=torch.float64), cc=90)
    with pytest.raises(ValueError, match=r"estimate\(args, cc=90\)"):
        kernel.estimate(cpu_gemm())
    reference = cutlass_api.get_kernels(cpu_gemm())[0]
    with pytest.raises(ValueError, match="the kernel runs on the CPU"):
        reference.estimate(cpu_gemm(), cc=90)


def test_an_empty_list_says_why_when_it_is_indexed():
    a, b = (torch.empty(64, 64, dtype=torch.float64) for _ in range(2))
    out = torch.empty(64, 64, dtype=torch.int8)
    args = cutlass_api.arguments.GemmArguments(a, b, out, "float64")
    kernels = cutlass_api.get_kernels(args)
    assert isinstance(kernels, list) and kernels == [] and not kernels and kernels[:1] == []
    with pytest.raises(IndexError, match="found no kernel") as raised:
        kernels[0]
    assert "reference    none of" in str(raised.value)
    assert "out has dtype int8" in str(raised.value)
