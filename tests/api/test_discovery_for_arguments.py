"""`get_kernels` for arguments: which kernels it finds, and their order."""

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import (
    ElementwiseArguments,
    EpilogueArguments,
    GemmArguments,
    GroupedGemmArguments,
)
from cutlass_api.metadata import GroupedGemmOperandsMetadata
from support.helpers import (
    DTYPES,
    LAYOUTS,
    SELDOM_STORED,
    cpu_gemm,
    fake,
    fake_gemm,
    fake_grouped,
    names,
    output_of,
)
from torch._subclasses.fake_tensor import FakeTensorMode


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_fake_tensors_on_a_gpu_find_kernels_that_support_them(dtype, layout):
    args = fake_gemm(128, 192, 256, dtype=dtype, out=output_of(dtype), layout=layout)
    found = cutlass_api.get_kernels(args)
    assert found
    assert all(kernel.metadata.min_cc >= 80 for kernel in found)
    for kernel in found:
        assert kernel.supports(args), kernel.supports(args).error
        assert kernel.metadata.supports(args), kernel.metadata.supports(args).error
    others = [kernel for kernel in cutlass_api.get_kernels() if kernel not in set(found)]
    assert not any(kernel.supports(args) for kernel in others)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensor_cores_are_ranked_first(dtype, layout):
    found = cutlass_api.get_kernels(fake_gemm(4096, 4096, 4096, dtype=dtype, layout=layout))
    assert found[0].metadata.kernel_name.startswith("sm")
    assert not found[0].metadata.kernel_name.startswith("simt")
    # simt kernels rank behind all kernels that use tensor cores, except tiles of 8 columns.
    families = [name.split("_")[0] for name in names(found)]
    assert "simt" in families
    for kernel in found[families.index("simt") :]:
        assert 8 in kernel.metadata.design.tile_shape or "Simt" in type(kernel).__name__


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (0, 5, 7), (5, 0, 7), (5, 7, 0), (3, 5, 7), (127, 131, 129)], ids=str
)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_every_shape_finds_a_kernel(shape, layout, dtype):
    args = fake_gemm(*shape, dtype=dtype, out=output_of(dtype), layout=layout)
    found = cutlass_api.get_kernels(args)
    assert found
    for kernel in found:
        assert kernel.metadata.supports(args), f"{kernel}: {kernel.metadata.supports(args).error}"


@pytest.mark.parametrize(
    "layout, m, n, k, served",
    [
        ("ttt", 387, 264, 136, True),
        ("ttt", 387, 264, 131, False),  # rows of A end unaligned
        ("ttt", 387, 259, 136, False),  # of B, and of out
        ("tnt", 387, 264, 136, True),
        ("tnt", 387, 260, 136, False),  # N is no multiple of 8
        ("tnn", 388, 264, 136, True),
        ("tnn", 388, 259, 136, False),  # of torch's own output, which has no columns
        ("nnt", 388, 260, 136, False),  # columns of A
    ],
)
def test_sums_of_halves_stay_in_float32_on_hopper_where_rows_end_aligned(layout, m, n, k, served):
    """For unaligned rows, products of torch and sm80 are more exact (docs/design/accuracy.md)."""
    for dtype in (torch.float16, torch.bfloat16):
        args = fake_gemm(m, n, k, dtype=dtype, out=torch.float32, layout=layout)
        families = {name.split("_")[0] for name in names(cutlass_api.get_kernels(args, cc=90))}
        assert families == ({"sm90"} if served else set()) | {"sm80", "simt"}


@pytest.mark.parametrize("pad", [1, 2, 4, 8])
def test_unaligned_rows_and_addresses(pad):
    parent = fake(64, 64 + pad)
    a = parent[:, :64]
    args = GemmArguments(a, fake(64, 64), fake(64, 64), "float32")
    found = cutlass_api.get_kernels(args)
    assert found
    for kernel in found:
        assert kernel.metadata.supports(args), f"{kernel}: {kernel.metadata.supports(args).error}"
        # A kernel's `load_bytes` divides the row stride.
        assert (64 + pad) % kernel.metadata.operands.A.divisibility == 0
    for kernel in cutlass_api.get_kernels(cc=90):
        if kernel not in found and kernel.metadata.operands.A.dtype == torch.float16:
            assert not kernel.supports(args)


def test_a_padded_row_is_as_good_as_a_whole_one():
    # The extent along K is odd, but the row stride is padded to 16 bytes.
    args = GemmArguments(fake(64, 64)[:, :37], fake(64, 64)[:37], fake(64, 64), "float32")
    for kernel in cutlass_api.get_kernels(args):
        status = kernel.metadata.supports(args)
        assert status, f"{kernel} is found, yet its own metadata says: {status.error}"


def test_nothing_is_stepped_along_where_there_are_no_elements():
    a = fake(8).as_strided((1, 0), (4, 2))
    args = GemmArguments(a, fake(0, 16), fake(1, 16), "float32")
    for kernel in cutlass_api.get_kernels(args):
        assert kernel.metadata.supports(args), f"{kernel}: {kernel.metadata.supports(args).error}"


def test_batches():
    operands = [fake(3, 64, 64) for _ in range(3)]
    found = cutlass_api.get_kernels(GemmArguments(*operands, "float32"))
    assert found
    assert not found[0].metadata.kernel_name.startswith("simt")
    expanded = [fake(64, 64).expand(3, 64, 64), operands[1], operands[2]]
    assert cutlass_api.get_kernels(GemmArguments(*expanded, "float32"))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_cpu_operands_find_the_reference(dtype):
    args = cpu_gemm(dtype)
    (kernel,) = cutlass_api.get_kernels(args)
    assert kernel.metadata.kernel_name.startswith("reference_gemm")
    assert kernel.supports(args)
    assert kernel.metadata.supports(args)


def test_the_reference_serves_the_other_operations():
    a = torch.ones(8, 8)
    offsets = torch.tensor([3, 8], dtype=torch.int32)
    grouped = GroupedGemmArguments(a, torch.ones(2, 8, 8), torch.ones(8, 8), torch.float32, offsets)
    assert names(cutlass_api.get_kernels(grouped)) == ["reference_grouped_gemm_f32xf32_f32_f32"]
    added = ElementwiseArguments(a, a, torch.ones(8, 8))
    assert names(cutlass_api.get_kernels(added)) == ["reference_elementwise_add_f32xf32_f32_f32"]
    assert cutlass_api.get_kernels(grouped)[0].metadata.supports(grouped)
    assert cutlass_api.get_kernels(added)[0].metadata.supports(added)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_every_grouped_gemm_has_kernels(dtype, layout):
    for shape in ((300, 256, 128), (300, 257, 131), (1, 1, 1), (7, 33, 0)):
        args = fake_grouped(*shape, dtype=dtype, layout=layout)
        for cc in (80, 90, 120):
            found = cutlass_api.get_kernels(args, cc=cc)
            assert found
            for kernel in found:
                assert isinstance(kernel.metadata.operands, GroupedGemmOperandsMetadata)
                assert kernel.supports(args) and kernel.metadata.supports(args), kernel
                assert kernel.get_workspace_size(args) == 0


def test_grouped_gemms_of_aligned_halves_are_for_the_tensor_cores():
    for dtype in (torch.float16, torch.bfloat16):
        for layout in ("ttt", "tnt"):
            first = {
                cc: cutlass_api.get_kernels(fake_grouped(dtype=dtype, layout=layout), cc=cc)[0]
                for cc in (80, 90)
            }
            assert first[80].metadata.kernel_name.startswith("sm80_grouped_gemm_")
            assert first[90].metadata.kernel_name.startswith("sm90_grouped_gemm_")
            for odd in (1026, 1027):
                args = fake_grouped(8192, odd, odd, 12, dtype=dtype, layout=layout)
                first = cutlass_api.get_kernels(args, cc=90)[0]
                assert first.metadata.kernel_name.startswith("sm80_grouped_gemm_")
    # Few rows per group rank tiles with fewer rows first.
    few, many = (
        cutlass_api.get_kernels(fake_grouped(rows, 4096, 4096, 8), cc=90)[0] for rows in (64, 8192)
    )
    assert few.metadata.design.tile_shape[0] == 64 and many.metadata.design.tile_shape[0] >= 128


def test_an_epilogue_stands_behind_a_grouped_gemm_of_every_family():
    out = fake(300, 256, dtype=torch.bfloat16)
    source = "def f(accum, bias):\n    D = accum + bias\n    return D"
    epilogue = EpilogueArguments(source, bias=fake(256), D=out)
    args = fake_grouped(epilogue=epilogue)
    found = cutlass_api.get_kernels(args, cc=90)
    assert {name.split("_")[0] for name in names(found)} == {"sm90", "sm80", "simt"}
    assert all(kernel.metadata.epilogue is not None for kernel in found)


def test_a_grouped_gemm_of_fake_tensors_is_compiled_but_not_run():
    args = fake_grouped()
    for kernel in cutlass_api.get_kernels(args, cc=90)[::8]:
        artifact = kernel.compile(args, cc=90)
        with pytest.raises(ValueError, match="A is a FakeTensor"):
            kernel.run(args, artifact)


def test_kernels_of_a_gemm_and_of_a_grouped_one_refuse_each_other():
    plain, grouped = fake_gemm(dtype=torch.bfloat16), fake_grouped()
    for kernel in cutlass_api.get_kernels(plain, cc=90):
        assert "it computes gemm, not grouped_gemm" in str(kernel.supports(grouped).error)
    for kernel in cutlass_api.get_kernels(grouped, cc=90):
        assert "it computes grouped_gemm, not gemm" in str(kernel.supports(plain).error)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("cc", [80, 90, 100])
def test_a_capability_with_cpu_operands_finds_gpu_kernels_only(dtype, cc):
    found = cutlass_api.get_kernels(cpu_gemm(dtype, 64, 64, 64), cc=cc)
    assert found
    assert all(80 <= kernel.metadata.min_cc <= cc for kernel in found)


def test_supports_says_why_not():
    kernel = cutlass_api.get_kernels(fake_gemm())[0]
    status = kernel.supports(cpu_gemm())
    assert not status
    assert "A has dtype float32" in str(status.error)
    simt = cutlass_api.get_kernels(fake_gemm(dtype=torch.float32))[0]
    assert "out is on cpu" in str(simt.supports(cpu_gemm()).error)
    reference = cutlass_api.get_kernels(cpu_gemm())[0]
    assert "out is on cuda:0" in str(reference.supports(fake_gemm(dtype=torch.float32)).error)
    message = r"^Kernel does not support the provided arguments: .*out is on cpu"
    with pytest.raises(ValueError, match=message):
        simt.run(cpu_gemm())


def test_unsupported_accumulators_find_nothing():
    assert cutlass_api.get_kernels(fake_gemm(dtype=torch.bfloat16, accumulator=torch.float16)) == []
    assert cutlass_api.get_kernels(fake_gemm(dtype=torch.float16, accumulator=torch.int32)) == []
    found = cutlass_api.get_kernels(fake_gemm(dtype=torch.float16, accumulator=torch.float16))
    assert found
    assert all(kernel.metadata.operands.accumulator_type == torch.float16 for kernel in found)


@pytest.mark.parametrize(
    "types", SELDOM_STORED, ids=lambda types: "_".join(str(dtype)[6:] for dtype in types)
)
@pytest.mark.parametrize("grouped", [False, True], ids=["gemm", "grouped"])
def test_outputs_that_are_seldom_stored_have_few_kernels(types, grouped):
    a, b, accumulator, out = types
    shapes = {(64, 32): a, (2, 32, 16) if grouped else (32, 16): b, (64, 16): out}
    for device, family in (("cuda", "simt"), ("cpu", "reference")):
        operands = [fake(*of, dtype=dtype, device=device) for of, dtype in shapes.items()]
        if grouped:
            ends = fake(2, dtype=torch.int32, device=device)
            args = GroupedGemmArguments(*operands, accumulator, ends)
        else:
            args = GemmArguments(*operands, accumulator)
        (kernel,) = cutlass_api.get_kernels(args)
        assert kernel.metadata.kernel_name.startswith(family)
        assert kernel.supports(args)


def test_tf32_is_the_users_to_allow():
    args = fake_gemm(dtype=torch.float32)
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        exact = cutlass_api.get_kernels(args)
        torch.set_float32_matmul_precision("high")
        rounded = cutlass_api.get_kernels(args)
    finally:
        torch.set_float32_matmul_precision(before)
    assert names(exact) == [name for name in names(exact) if name.startswith("simt")]
    assert set(names(exact)) <= set(names(rounded))


def wide_and_narrow(m, n, k=4096, **more):
    kernels = cutlass_api.get_kernels(fake_gemm(m, n, k, **more))
    return [kernel for kernel in kernels if "skinny" in kernel.metadata.kernel_name]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_few_rows_or_columns_have_kernels_of_their_own(dtype, layout):
    for m, n in [(1, 4096), (4096, 1), (16, 4096), (4096, 16), (5, 4095), (4095, 5)]:
        found = wide_and_narrow(m, n, dtype=dtype, layout=layout)
        assert {kernel.metadata.design.narrow for kernel in found} == {"m" if m < n else "n"}
        for kernel in found:
            assert (m, n)[m > n] <= kernel.metadata.design.tile_shape[m > n]
    assert wide_and_narrow(65, 4096, dtype=dtype, layout=layout) == []
    few = cutlass_api.get_kernels(fake_gemm(1, 4096, dtype=dtype, layout=layout))
    skinny = next(kernel for kernel in few if "skinny" in kernel.metadata.kernel_name)
    refused = skinny.supports(fake_gemm(100, 4096, dtype=dtype, layout=layout))
    assert "M is 100, and the kernel serves at most" in str(refused.error)


def test_sums_that_stay_in_float32_are_left_to_more_exact_kernels():
    assert wide_and_narrow(1, 4096, out=torch.float32) == []
    assert wide_and_narrow(1, 4096, out=torch.bfloat16)
    assert wide_and_narrow(1, 4096, dtype=torch.float16, accumulator=torch.float16) == []


def test_tma_takes_no_steps_of_a_terabyte():
    def arguments(batch_stride):
        a = fake(2, 512, 512)
        a = a.new_empty_strided(a.shape, (batch_stride, 512, 1))
        return GemmArguments(a, fake(2, 512, 512), fake(2, 512, 512), "float32")

    near, far = arguments(2**39 - 8), arguments(2**39)
    first = cutlass_api.get_kernels(near, cc=90)[0]
    assert first.metadata.kernel_name.startswith("sm90_gemm_f16xf16_f32_f16_ttt_")
    reason = "A has strides [549755813888, 512, 1]; TMA takes steps of less than 2^40 bytes"
    assert reason in str(first.supports(far).error)
    others = cutlass_api.get_kernels(far, cc=90)
    assert first not in others and others


@pytest.mark.parametrize(("stride", "is_served"), [(2**27, True), (2**28, False), (2**40, False)])
def test_mixed_products_of_few_rows_take_rows_that_32_bits_reach(stride, is_served):
    """`skinny` has the bytes of eight rows in 32 bits."""
    with FakeTensorMode():
        wide = torch.empty_strided((64, 32), (1, stride), dtype=torch.int8, device="cuda")
    a, out = fake(4, 64), fake(4, 32)
    found = cutlass_api.get_kernels(GemmArguments(a, wide, out, torch.float32), cc=90)
    assert any("skinny" in name for name in names(found)) is is_served
