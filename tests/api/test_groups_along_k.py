"""Grouped GEMMs whose groups divide K: arguments, kernels, and results on the CPU."""

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import EpilogueArguments, GroupedGemmArguments, ScaledTensor
from cutlass_api.library import ScaleMode, ScaleSwizzleMode
from support.helpers import DTYPES, fake, fake_grouped, fake_groups_along_k, names, run_first

ENDS = torch.tensor([0, 3, 3, 8, 8], dtype=torch.int32)


def arguments(a=(4, 9), b=(9, 6), out=(5, 4, 6), offsets=ENDS, dtype=torch.float32, epilogue=None):
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=generator).to(dtype) for shape in (a, b))
    out = torch.full(out, torch.nan, dtype=dtype) if isinstance(out, tuple) else out
    accumulator = torch.float64 if dtype is torch.float64 else torch.float32
    return GroupedGemmArguments(a, b, out, accumulator, offsets, epilogue)


def operands(args):
    return [getattr(args, name).tensor.runtime_tensor for name in ("A", "B", "out")]


def expected(args, ends=ENDS):
    a, b, _ = operands(args)
    spans = zip([0, *ends.tolist()[:-1]], ends.tolist(), strict=True)
    return torch.stack([a[:, start:end].double() @ b[start:end].double() for start, end in spans])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("a", [(4, 9), (1, 4, 9)])
def test_every_group_has_a_matrix_of_the_output(dtype, a):
    args = arguments(a=a, dtype=dtype)
    left, right, out = operands(args)
    left[..., 8:] = torch.nan
    right[8:] = torch.nan
    run_first(args)
    wanted = expected(args if left.dim() == 2 else arguments(dtype=dtype))
    torch.testing.assert_close(out, wanted.to(dtype), rtol=0.01, atol=1e-6)
    assert not out[[0, 2, 4]].any()


def test_without_k_the_output_is_zero():
    args = arguments(a=(4, 0), b=(0, 6), offsets=torch.zeros_like(ENDS))
    run_first(args)
    assert not operands(args)[2].any()


def test_an_epilogue_sees_the_batch_and_accumulates_in_place():
    out = torch.randn(5, 4, 6)
    before = out.clone()
    add = "def add(accum, C, bias):\n    D = accum + C + bias\n    return D"
    bias = torch.randn(5, 1, 6)
    args = arguments(out=out, epilogue=EpilogueArguments(add, C=out, bias=bias, D=out))
    run_first(args)
    torch.testing.assert_close(out.double(), expected(args) + before + bias)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"b": (8, 6)}, ["TotalK", "A", "9", "B", "8"]),
        ({"out": (5, 3, 6)}, ["M", "out", "3", "A", "4"]),
        ({"out": (5, 4, 7)}, ["N", "out", "7", "B", "6"]),
        ({"a": (2, 4, 9)}, ["A", "rank", "[2, 4, 9]"]),
    ],
)
def test_mismatches(change, words):
    with pytest.raises(ValueError) as error:
        arguments(**change)
    assert not [word for word in words if word not in str(error.value)], str(error.value)


@pytest.mark.parametrize("count", [1, 4, 6])
def test_a_wrong_number_of_offsets_finds_no_kernels(count):
    args = arguments(offsets=torch.zeros(count, dtype=torch.int32))
    assert cutlass_api.get_kernels(args) == []
    kernel = cutlass_api.get_kernels(arguments())[0]
    assert f"offsets has {count} entries for 5 groups" in str(kernel.supports(args).error)


@pytest.mark.parametrize("ends", [[5, 3, 3, 3, 3], [-1, 0, 0, 0, 8], [1, 2, 3, 4, 10]], ids=str)
def test_wrong_offsets_are_refused_before_anything_is_written(ends):
    args = arguments(offsets=torch.tensor(ends, dtype=torch.int32))
    with pytest.raises(ValueError, match="lie in 0 to 9, the columns of A, but group"):
        run_first(args)
    assert operands(args)[2].isnan().all()


def test_scales_of_blocks_count_the_k_of_all_groups():
    float8 = torch.float8_e4m3fn
    a, b = torch.randn(4, 64).to(float8), torch.randn(64, 6).to(float8)
    scale, ends = torch.rand(4, 2) + 0.5, ENDS * 7
    mode, swizzle = ScaleMode.Blockwise1x32, ScaleSwizzleMode.SwizzleNone
    out = torch.full((5, 4, 6), torch.nan)
    run_first(GroupedGemmArguments(ScaledTensor(a, scale, mode, swizzle), b, out, "float32", ends))
    left = a.double() * scale.double().repeat_interleave(32, 1)
    spans = zip([0, *ends.tolist()[:-1]], ends.tolist(), strict=True)
    wanted = [left[:, start:end] @ b[start:end].double() for start, end in spans]
    torch.testing.assert_close(out, torch.stack(wanted).float())


@pytest.mark.parametrize("layout", ["ntt", "ttt", "nnt", "tnt"])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_every_product_has_kernels(dtype, layout):
    for shape in ((256, 128, 300), (257, 131, 67), (1, 1, 1), (7, 33, 0)):
        args = fake_groups_along_k(*shape, dtype=dtype, layout=layout)
        for cc in (80, 90, 120):
            found = cutlass_api.get_kernels(args, cc=cc)
            assert found
            for kernel in found:
                assert kernel.metadata.operands.offsets_along == "k"
                assert kernel.supports(args) and kernel.metadata.supports(args), kernel
                assert kernel.get_workspace_size(args) == 0


def test_tensor_cores_multiply_what_they_can():
    def first(cc, *shape, **options):
        args = fake_groups_along_k(*shape, **options)
        return cutlass_api.get_kernels(args, cc=cc)[0].metadata.kernel_name.split("_")[0]

    for dtype in (torch.float16, torch.bfloat16):
        assert [first(cc, 2048, 768, 8192, 128, dtype=dtype) for cc in (80, 90)] == ["sm80", "sm90"]
        # Rows that TMA cannot address; an order whose groups begin inside of its boxes.
        assert first(90, 1027, 771, 8192, 128, dtype=dtype) == "sm80"
        assert first(90, 2048, 768, 8192, 128, dtype=dtype, layout="ttt") == "sm80"
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        assert first(90, 2048, 768, 8192, 128, dtype=torch.float32) == "sm80"
        torch.set_float32_matmul_precision("highest")
        assert first(90, 2048, 768, 8192, 128, dtype=torch.float32) == "simt"
    finally:
        torch.set_float32_matmul_precision(before)


def test_kernels_of_groups_along_m_and_along_k_refuse_each_other():
    along = {"m": fake_grouped(), "k": fake_groups_along_k()}
    for own, other in ("mk", "km"):
        for kernel in cutlass_api.get_kernels(along[own], cc=90):
            assert "it computes" in str(kernel.supports(along[other]).error)
            operands = kernel.metadata.operands
            assert operands.supports(along[own]) and not operands.supports(along[other])
            for another in cutlass_api.get_kernels(along[other], cc=90):
                assert not operands.supports(another.metadata.operands)


def test_one_group_along_k_differs_from_one_along_m():
    """The operands of both have the same shapes, apart from leading extents of 1."""
    x, ends = torch.randn(8, 8), torch.tensor([5], dtype=torch.int32)
    along_m, along_k = torch.full((8, 8), torch.nan), torch.full((1, 8, 8), torch.nan)
    run_first(GroupedGemmArguments(x, x[None], along_m, torch.float32, ends))
    run_first(GroupedGemmArguments(x, x, along_k, torch.float32, ends))
    torch.testing.assert_close(along_m[:5], x[:5] @ x)
    assert along_m[5:].isnan().all()
    torch.testing.assert_close(along_k[0], x[:, :5] @ x[:5])


def test_explain(capsys):
    cutlass_api.explain(fake_groups_along_k(2048, 768, 8192, 128), cc=90)
    lines = capsys.readouterr().out.splitlines()
    (first,) = [line for line in lines if line.lstrip().startswith("1 ")]
    assert "sm90_k_grouped_gemm_bf16xbf16_f32_bf16_ntt_" in first


def test_epilogues_stand_behind_every_family():
    out = fake(4, 256, 128, dtype=torch.float32)
    source = "def f(accum, C):\n    D = accum + C\n    return D"
    epilogue = EpilogueArguments(source, C=out, D=out)
    args = GroupedGemmArguments(
        *(fake(256, 300, dtype=torch.bfloat16, layout="n"), fake(300, 128, dtype=torch.bfloat16)),
        *(out, "float32", fake(4, dtype=torch.int32), epilogue),
    )
    found = cutlass_api.get_kernels(args, cc=90)
    assert {name.split("_")[0] for name in names(found)} == {"sm90", "sm80", "simt"}
