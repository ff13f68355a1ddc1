"""get_kernels and Manifest: what is found, in which order, how fast."""

import json
import math
import statistics
import time
from pathlib import Path

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import (
    ElementwiseArguments,
    EpilogueArguments,
    GemmArguments,
    GroupedGemmArguments,
)
from cutlass_api.metadata import (
    GroupedGemmOperandsMetadata,
    SkinnyDesignMetadata,
    Sm90DesignMetadata,
)
from stand_in import run_gemm
from support.helpers import (
    DTYPES,
    INTEGERS,
    LAYOUTS,
    SELDOM_STORED,
    accumulator_of,
    fake,
    fake_gemm,
    names,
    output_of,
    run_python,
)
from support.pace import slowness

FAMILIES = {type(kernel) for kernel in cutlass_api.get_kernels()}


def cpu_gemm(dtype=torch.float32, m=8, n=8, k=8):
    a, b = torch.ones(m, k).to(dtype), torch.ones(k, n).to(dtype)
    return GemmArguments(
        a, b, torch.ones(m, n).to(output_of(dtype)), accumulator_type=accumulator_of(dtype)
    )


# Without arguments.


def test_names_are_unique_and_read_well():
    found = names(cutlass_api.get_kernels())
    assert len(set(found)) == len(found) > 100
    assert all(name.isidentifier() for name in found), [
        name for name in found if not name.isidentifier()
    ]
    # Inductor drops kernels with EFC in their names.
    assert not [name for name in found if "EFC" in name]


def test_a_client_builds_a_dictionary_by_name():
    by_name = {kernel.metadata.kernel_name: kernel for kernel in cutlass_api.get_kernels()}
    for name, kernel in by_name.items():
        assert isinstance(kernel, cutlass_api.Kernel)
        assert type(kernel) is kernel.metadata.kernel_class
        assert name in repr(kernel)


def test_the_order_and_the_objects_are_the_same_each_time():
    first, second = cutlass_api.get_kernels(), cutlass_api.get_kernels()
    assert all(a is b for a, b in zip(first, second, strict=True))
    args = fake_gemm()
    first, second = cutlass_api.get_kernels(args), cutlass_api.get_kernels(args)
    assert first
    assert all(a is b for a, b in zip(first, second, strict=True))
    assert set(map(id, first)) <= set(map(id, cutlass_api.get_kernels()))


@pytest.mark.parametrize(
    "sets, bound",
    [(["later", "last"], 1.03), (["broad_a", "broad_b"], 1.08)],
    ids=["five or six timed", "ten to twenty timed"],
)
def test_the_ranking_agrees_with_timings(sets, bound):
    """Random products with the timings of several kernels each on an H100. Of those that the space
    still offers, the first in the ranking takes about as long as the fastest."""
    data = json.loads((Path(__file__).parents[2] / "benchmarks/random_h100.json").read_text())
    lost = []
    for m, n, k, layout, _, _, timed in (product for name in sets for product in data[name]):
        times = {data["kernels"][index]: time for index, time in timed}
        dtype = torch.bfloat16 if "bf16" in next(iter(times)) else torch.float16
        args = fake_gemm(m, n, k, layout=f"{layout}t", dtype=dtype)
        ranked = [
            times[name] for name in names(cutlass_api.get_kernels(args, cc=90)) if name in times
        ]
        if len(ranked) > 1:
            lost.append(math.log(ranked[0] / min(ranked)))
    first_over_best = math.exp(statistics.mean(lost))
    print(f"{len(lost)}: {first_over_best:.4f}, {math.exp(max(lost)):.2f} at worst")
    assert len(lost) > 700
    assert first_over_best < bound


def test_the_order_is_the_same_in_every_process():
    code = "import cutlass_api as c; print([k.metadata.kernel_name for k in c.get_kernels()])"
    assert run_python(code) == f"{names(cutlass_api.get_kernels())}\n"


@pytest.mark.parametrize("cc", [80, 86, 89, 90, 100, 120])
def test_a_compute_capability_alone_gives_its_gpu_kernels(cc):
    found = cutlass_api.get_kernels(cc=cc)
    assert found
    assert all(80 <= kernel.metadata.min_cc <= cc for kernel in found)
    everything = cutlass_api.get_kernels(providers=["nvrtc"])
    # Only Hopper has Hopper's instructions, and some skinny kernels exceed other chips' shared
    # memory.
    ours = [k for k in everything if k.metadata.min_cc <= cc]
    assert set(found) <= set(ours) and found == [k for k in ours if k in set(found)]
    elsewhere = {type(k.metadata.design) for k in set(ours) - set(found)}
    assert elsewhere <= ({Sm90DesignMetadata, SkinnyDesignMetadata} if cc != 90 else set())
    remaining = {type(kernel.metadata.design) for kernel in found}
    assert SkinnyDesignMetadata in remaining and (Sm90DesignMetadata in remaining) == (cc == 90)


def test_90_includes_what_80_runs():
    assert set(names(cutlass_api.get_kernels(cc=80))) <= set(names(cutlass_api.get_kernels(cc=90)))


@pytest.mark.parametrize("cc", [0, 60, 70, 75])
@pytest.mark.parametrize("args", [None, cpu_gemm, fake_gemm], ids=["none", "cpu", "cuda"])
def test_an_old_capability_finds_nothing(cc, args):
    assert cutlass_api.get_kernels(args and args(), cc=cc) == []


def test_metadata_filter():
    seen = []

    def wanted(metadata):
        seen.append(metadata)
        return metadata.operands.A.dtype == torch.bfloat16

    found = cutlass_api.get_kernels(metadata_filter=wanted)
    everything = cutlass_api.get_kernels()
    assert [metadata.kernel_name for metadata in seen] == names(everything)
    assert all(isinstance(metadata, cutlass_api.KernelMetadata) for metadata in seen)
    assert found == [
        kernel for kernel in everything if kernel.metadata.operands.A.dtype == torch.bfloat16
    ]
    assert 0 < len(found) < len(everything)
    assert cutlass_api.get_kernels(metadata_filter=lambda metadata: False) == []


def test_an_error_in_a_filter_reaches_the_caller():
    with pytest.raises(ZeroDivisionError):
        cutlass_api.get_kernels(metadata_filter=lambda metadata: 1 / 0)


def test_providers():
    gpu, cpu = (cutlass_api.get_kernels(providers=[name]) for name in ("nvrtc", "reference"))
    assert gpu
    assert cpu
    assert all(kernel.metadata.min_cc >= 80 for kernel in gpu)
    assert set(names(gpu)).isdisjoint(names(cpu))
    both = cutlass_api.get_kernels(providers=["reference", "nvrtc"])
    assert both == cutlass_api.get_kernels()
    assert len(both) == len(gpu) + len(cpu)
    assert cutlass_api.get_kernels(providers=[]) == []
    assert cutlass_api.get_kernels(fake_gemm(), providers=["reference"]) == []


@pytest.mark.parametrize("providers", [["cutedsl"], ["nvrtc", "cutedsl"]])
def test_an_unknown_provider(providers):
    with pytest.raises(ValueError, match=r"cutedsl.*nvrtc.*reference"):
        cutlass_api.get_kernels(providers=providers)


def test_other_wrong_parameters_are_named():
    for cc in ("90", True, torch.ones(3)):
        with pytest.raises(TypeError, match=r"^cc is .*; pass ten times major plus minor"):
            cutlass_api.get_kernels(cc=cc)
    with pytest.raises(TypeError, match=r"^providers is 'nvrtc'; pass a list of names"):
        cutlass_api.get_kernels(providers="nvrtc")
    with pytest.raises(TypeError, match=r"^args is a Tensor; pass GemmArguments"):
        cutlass_api.get_kernels(*torch.ones(3, 2, 2))


def test_modules_that_are_hidden_and_paths_that_are_none():
    code = """
        import sys
        sys.modules["torch"] = None  # as imports are kept from finding it
        sys.path += [b"/bytes", None, 3]
        import numpy as np
        import cutlass_api
        a = np.eye(3, dtype=np.float32)
        args = cutlass_api.arguments.GemmArguments(
            a, a, np.zeros_like(a), accumulator_type="float32"
        )
        assert cutlass_api.get_kernels(args, cc=90)
        print(np.array_equal(cutlass_api.matmul(a, a), a))
    """
    assert run_python(code) == "True\n"


def test_wrong_arguments_are_named():
    with pytest.raises(TypeError, match=r"\bargs\b"):
        cutlass_api.get_kernels(3)


def test_all_that_is_asked_for_holds_together():
    found = cutlass_api.get_kernels(
        fake_gemm(),
        metadata_filter=lambda m: m.design.tile_shape[0] <= 64,
        cc=80,
        providers=["nvrtc"],
    )
    assert found
    assert all(kernel.metadata.design.tile_shape[0] <= 64 for kernel in found)


# For arguments.


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
    others = set(map(id, cutlass_api.get_kernels())) - set(map(id, found))
    assert all(
        not kernel.supports(args) for kernel in cutlass_api.get_kernels() if id(kernel) in others
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_tensor_cores_are_ranked_first(dtype, layout):
    found = cutlass_api.get_kernels(fake_gemm(4096, 4096, 4096, dtype=dtype, layout=layout))
    assert found[0].metadata.kernel_name.startswith("sm")
    assert not found[0].metadata.kernel_name.startswith("simt")
    # simt kernels rank behind all kernels that use tensor cores, except tiles of 8 columns.
    families = [kernel.metadata.kernel_name.split("_")[0] for kernel in found]
    assert "simt" in families
    behind = found[families.index("simt") :]
    assert all(
        8 in kernel.metadata.design.tile_shape or type(kernel).__name__.startswith("Simt")
        for kernel in behind
    )


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
    args = GemmArguments(a, fake(64, 64), fake(64, 64), accumulator_type=torch.float32)
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
    args = GemmArguments(
        fake(64, 64)[:, :37], fake(64, 64)[:37], fake(64, 64), accumulator_type=torch.float32
    )
    for kernel in cutlass_api.get_kernels(args):
        status = kernel.metadata.supports(args)
        assert status, f"{kernel} is found, yet its own metadata says: {status.error}"


def test_nothing_is_stepped_along_where_there_are_no_elements():
    a = fake(8).as_strided((1, 0), (4, 2))
    args = GemmArguments(a, fake(0, 16), fake(1, 16), accumulator_type=torch.float32)
    for kernel in cutlass_api.get_kernels(args):
        assert kernel.metadata.supports(args), f"{kernel}: {kernel.metadata.supports(args).error}"


def test_batches():
    operands = [fake(3, 64, 64) for _ in range(3)]
    found = cutlass_api.get_kernels(GemmArguments(*operands, accumulator_type=torch.float32))
    assert found
    assert not found[0].metadata.kernel_name.startswith("simt")
    expanded = [fake(64, 64).expand(3, 64, 64), operands[1], operands[2]]
    assert cutlass_api.get_kernels(GemmArguments(*expanded, accumulator_type=torch.float32))


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


def fake_grouped(rows=300, n=256, k=128, groups=4, dtype=torch.bfloat16, layout="ttt", **kwargs):
    return GroupedGemmArguments(
        fake(rows, k, dtype=dtype, layout=layout[0]),
        fake(groups, k, n, dtype=dtype, layout=layout[1]),
        fake(rows, n, dtype=output_of(dtype) if dtype in INTEGERS else dtype, layout=layout[2]),
        accumulator_of(dtype),
        fake(groups, dtype=torch.int32),
        **kwargs,
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_every_grouped_gemm_has_kernels(dtype, layout):
    for shape in ((300, 256, 128), (300, 257, 131), (1, 1, 1), (7, 33, 0)):
        args = fake_grouped(*shape, dtype=dtype, layout=layout)
        for cc in (80, 90, 120):
            found = cutlass_api.get_kernels(args, cc=cc)
            assert found
            assert all(
                isinstance(kernel.metadata.operands, GroupedGemmOperandsMetadata)
                for kernel in found
            )
            for kernel in found:
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
    # Few rows per group rank tiles with fewer rows first.
    few, many = (
        cutlass_api.get_kernels(fake_grouped(rows, 4096, 4096, 8), cc=90)[0] for rows in (64, 8192)
    )
    assert few.metadata.design.tile_shape[0] == 64 and many.metadata.design.tile_shape[0] >= 128


def test_an_epilogue_stands_behind_a_grouped_gemm_of_every_family():
    out = fake(300, 256, dtype=torch.bfloat16)
    epilogue = EpilogueArguments(
        "def f(accum, bias):\n    D = accum + bias\n    return D", bias=fake(256), D=out
    )
    args = fake_grouped(epilogue=epilogue)
    found = cutlass_api.get_kernels(args, cc=90)
    assert {kernel.metadata.kernel_name.split("_")[0] for kernel in found} == {
        "sm90",
        "sm80",
        "simt",
    }
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
    with pytest.raises(
        ValueError, match=r"^Kernel does not support the provided arguments: .*out is on cpu"
    ):
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
    for device, family in (("cuda", "simt"), ("cpu", "reference")):

        def tensor(*shape, dtype, device=device):
            return fake(*shape, dtype=dtype, device=device)

        if grouped:
            args = GroupedGemmArguments(
                tensor(64, 32, dtype=a),
                tensor(2, 32, 16, dtype=b),
                tensor(64, 16, dtype=out),
                accumulator,
                tensor(2, dtype=torch.int32),
            )
        else:
            operands = tensor(64, 32, dtype=a), tensor(32, 16, dtype=b), tensor(64, 16, dtype=out)
            args = GemmArguments(*operands, accumulator_type=accumulator)
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


# Manifest.


def test_manifest():
    manifest = cutlass_api.Manifest()
    assert manifest.kernels == []
    args = fake_gemm()
    found = manifest.add_kernels(args)
    assert found == manifest.kernels == cutlass_api.get_kernels(args)
    assert manifest.add_kernels(args) == found
    assert manifest.kernels == found, "each kernel once"
    more = manifest.add_kernels(
        args=cpu_gemm(), metadata_filter=lambda m: True, cc=None, providers=["reference"]
    )
    assert len(more) == 1
    assert manifest.kernels == found + more
    manifest.kernels.clear()
    assert len(manifest.kernels) == len(found) + 1, "the list is the caller's own"
    assert cutlass_api.Manifest.get_kernels(args, cc=90) == cutlass_api.get_kernels(args, cc=90)
    with pytest.raises(ValueError, match="unknown"):
        manifest.add_kernels(providers=["unknown"])


def test_a_manifest_of_everything_is_quick_to_make():
    start = time.perf_counter()
    manifest = cutlass_api.Manifest()
    manifest.add_kernels()
    manifest.add_kernels()
    assert len(manifest.kernels) == len(cutlass_api.get_kernels())
    assert time.perf_counter() - start < 0.5


def wide_and_narrow(m, n, k=4096, **more):
    return [
        k
        for k in cutlass_api.get_kernels(fake_gemm(m, n, k, **more))
        if "skinny" in k.metadata.kernel_name
    ]


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


# Time.


@pytest.mark.timing
def test_all_kernels_by_name_in_a_fresh_process():
    code = """
        import time
        import cutlass_api
        from support.pace import slowness
        before = slowness()
        start = time.perf_counter()
        kernels = {kernel.metadata.kernel_name: kernel for kernel in cutlass_api.get_kernels()}
        seconds = time.perf_counter() - start
        # Use the better of the two paces: a slow moment beside the call must not excuse the call.
        print(seconds, seconds / min(before, slowness()))
    """
    tests = str(Path(__file__).parents[1])
    # The best of several runs: other work on the machine must not fail the test.
    times = [tuple(map(float, run_python(code, PYTHONPATH=tests).split())) for _ in range(15)]
    seconds, best = map(min, zip(*times, strict=True))
    print(
        f"get_kernels() and a dictionary by name: {seconds * 1e3:.1f} ms, "
        f"{best * 1e3:.1f} at the reference's pace"
    )
    assert best < 0.020


def with_an_epilogue():
    out = fake(4096, 4096, dtype=torch.bfloat16)
    epilogue = EpilogueArguments(
        "def f(accum, bias):\n    D = relu(accum + bias)\n    return D", bias=fake(4096), D=out
    )
    a, b = (fake(4096, 4096, dtype=torch.bfloat16) for _ in range(2))
    return GemmArguments(a, b, out, torch.float32, epilogue=epilogue)


#: Few and many supporting kernels.
QUICKLY_FOUND = {
    "128 cubed": lambda: fake_gemm(128, 128, 128),
    "4096 cubed": lambda: fake_gemm(4096, 4096, 4096, dtype=torch.bfloat16, layout="tnt"),
    "300x5000x700": lambda: fake_gemm(300, 5000, 700),
    "float32 sums": lambda: fake_gemm(4096, 4096, 4096, out=torch.float32),
    "float8": lambda: fake_gemm(37, 37, 37, dtype=torch.float8_e4m3fn),
    "int8": lambda: fake_gemm(4096, 4096, 4096, dtype=torch.int8, out=torch.int32),
    "one row": lambda: fake_gemm(1, 4096, 4096, layout="tnt"),
    "grouped": lambda: fake_grouped(8192, 2048, 1024, 12),
    "epilogue": with_an_epilogue,
}


@pytest.mark.timing
@pytest.mark.parametrize("arguments", QUICKLY_FOUND.values(), ids=QUICKLY_FOUND)
def test_kernels_for_arguments(arguments):
    args = arguments()

    def seconds():
        start = time.perf_counter()
        found = cutlass_api.get_kernels(args, cc=90)
        taken = time.perf_counter() - start
        assert found
        return taken

    def median():
        before = slowness()
        taken = statistics.median(seconds() for _ in range(100))
        return taken, taken / min(before, slowness())

    taken, best = map(min, zip(*(median() for _ in range(5)), strict=True))
    print(f"get_kernels(args): {taken * 1e6:.1f} us, {best * 1e6:.1f} at the reference's pace")
    assert best < 100e-6


#: Bounds on the instructions of `get_kernels(args)`, on x86-64 with a release build: a fixed part,
#: and a part per kernel found, to estimate its time, sort it and look up its object. Kernels that
#: do not support the arguments cost next to nothing.
CALL, KERNEL = 12_000, 2_200


def test_discovery_spends_its_time_on_what_it_finds():
    problems = [
        (128, 128, 128, 16),
        (4096, 4096, 4096, 16),
        (300, 5000, 700, 16),
        (301, 5001, 701, 16),
        (1, 4096, 4096, 16),
        # Kernels of every layout support one element. float64 has fewer than float16: each of a
        # million instructions is a stop of the counted process.
        (1, 1, 1, 64),
    ]
    # Counts instructions: times vary on a busy machine.
    counts = run_gemm(
        f"""
        for m, n, k, bits in {problems}:
            pairs = (A, (m, k)), (B, (k, n)), (OUT, (m, n))
            a, b, out = (Tensor(*pair, bits=bits) for pair in pairs)
            args = GemmArguments(a, b, out, f"float{{max(bits, 32)}}")
            for _ in range(20):
                cutlass_api.get_kernels(args, cc=90)
                device.begin
            device.begin(); cutlass_api.get_kernels(args, cc=90); device.end()
        """,
        counted=True,
    )
    for (*shape, bits), count in zip(problems, map(int, counts.split()), strict=True):
        args = fake_gemm(*shape, dtype=torch.float16 if bits == 16 else torch.float64)
        found = len(cutlass_api.get_kernels(args, cc=90))
        print(f"{shape}: {count} instructions, {found} kernels")
        assert count < CALL + KERNEL * found


def test_tma_takes_no_steps_of_a_terabyte():
    def arguments(batch_stride):
        a = fake(2, 512, 512)
        a = a.new_empty_strided(a.shape, (batch_stride, 512, 1))
        return GemmArguments(
            a, fake(2, 512, 512), fake(2, 512, 512), accumulator_type=torch.float32
        )

    near, far = arguments(2**39 - 8), arguments(2**39)
    first = cutlass_api.get_kernels(near, cc=90)[0]
    assert first.metadata.kernel_name.startswith("sm90_gemm_f16xf16_f32_f16_ttt_")
    reason = "A has strides [549755813888, 512, 1]; TMA takes steps of less than 2^40 bytes"
    assert reason in str(first.supports(far).error)
    others = cutlass_api.get_kernels(far, cc=90)
    assert first not in others and others
