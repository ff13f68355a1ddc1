"""The kernels as operators of NVIDIA's `cutlass.operators`: searches, metadata, runs on the CPU.

`make test-nvidia-operators` runs these tests in an environment with NVIDIA's packages.
"""

import dataclasses
import pickle
import textwrap
import warnings
import weakref

import cutlass.operators as nvidia
import cutlass_api
import pytest
import stand_in
import torch
from cutlass_api import operators as ops
from support.helpers import fake

if nvidia is ops:
    pytest.skip(
        "nvidia-cutlass-operators is not installed; `make test-nvidia-operators` runs these tests",
        allow_module_level=True,
    )

from cutlass.operators import metadata, mma, workspace

RUTLASS = nvidia.available_providers["rutlass"]
#: The accumulators of element types.
ACCUMULATORS = {torch.float64: torch.float64, torch.int8: torch.int32}
#: The element types of the output.
OUTPUTS = {torch.int8: torch.int32}


def fake_arguments(m=512, n=256, k=768, dtype=torch.bfloat16, package=nvidia):
    """Arguments of a GEMM of FakeTensors on a GPU."""
    types = (dtype, dtype, OUTPUTS.get(dtype, dtype))
    shapes = ((m, k), (k, n), (m, n))
    tensors = (fake(*shape, dtype=each) for shape, each in zip(shapes, types, strict=True))
    return package.GemmArguments(*tensors, ACCUMULATORS.get(dtype, torch.float32))


def real_arguments(m=24, n=16, k=32, dtype=torch.float32, epilogue=None):
    """Arguments of a GEMM on the CPU, and their tensors."""
    tensors = torch.randn(m, k).to(dtype), torch.randn(k, n).to(dtype), torch.empty(m, n).to(dtype)
    return nvidia.GemmArguments(*tensors, torch.float32, epilogue), tensors


def own(found):
    """Which operators are of this package."""
    return [operator for operator in found if operator.metadata.provider is RUTLASS]


def names(found):
    return [operator.metadata.operator_name for operator in found]


def test_the_provider_comes_first():
    assert list(nvidia.available_providers) == ["rutlass", "cutedsl"]
    assert issubclass(RUTLASS, nvidia.Provider)
    found = nvidia.get_operators(fake_arguments(), target_sm="90a")
    first = own(found)
    assert found[: len(first)] == first and len(found) > len(first) > 100
    assert all(isinstance(operator, nvidia.Operator) for operator in found)
    assert nvidia.get_operators(fake_arguments(), target_sm="90a", limit=10) == found[:10]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("target", ["80", "89", "90", "90a"])
def test_the_kernels_are_those_of_this_package_in_its_order(target, dtype):
    found = nvidia.get_operators(fake_arguments(dtype=dtype), target_sm=target)
    expected = ops.get_operators(fake_arguments(dtype=dtype, package=ops), target_sm=target)
    assert names(own(found)) == names(expected)


def test_what_others_lack_on_hopper():
    def count(args):
        found = nvidia.get_operators(args, target_sm="90a")
        return len(own(found)), len(found) - len(own(found))

    for dtype in (torch.float32, torch.float64):
        mine, others = count(fake_arguments(dtype=dtype))
        assert mine and not others
    mine, others = count(fake_arguments(k=767, n=255))
    assert mine and not others


def test_other_targets():
    assert not own(nvidia.get_operators(fake_arguments(), target_sm="70"))
    assert not own(nvidia.get_operators(fake_arguments(), target_sm="75"))
    # From Blackwell on, kernels without its instructions step back.
    blackwell = nvidia.get_operators(fake_arguments(), target_sm="100a")
    assert blackwell and not own(blackwell)
    assert own(nvidia.get_operators(fake_arguments(dtype=torch.float64), target_sm="100a"))
    only = nvidia.get_operators(
        fake_arguments(),
        lambda described: described.design.tile_shape == (64, 64, 64),
        target_sm="120",
    )
    assert own(only) == only[: len(own(only))]


def test_metadata_has_their_classes():
    args = fake_arguments()
    for operator in own(nvidia.get_operators(args, target_sm="90a")):
        described = operator.metadata
        assert isinstance(described, nvidia.OperatorMetadata)
        assert isinstance(described.operands, metadata.GemmOperandsMetadata)
        assert isinstance(described.design, metadata.BLASDesignMetadata)
        for name in ("A", "B", "out"):
            constraints = getattr(described.operands, name)
            assert isinstance(constraints, metadata.DenseTensorConstraints)
            assert constraints.dtype is getattr(args, name).dtype
            assert constraints.supports(getattr(args, name))
        assert described.operands.accumulator_type is args.accumulator_type
        assert described.operands.supports(described.operands)
        assert described.supports(args, target_sm="90a")
        assert not described.supports(fake_arguments(dtype=torch.float16))
        assert type(described.operator_class(described)) is type(operator)
        assert pickle.loads(pickle.dumps(operator)).own.kernel is operator.own.kernel
        expected = {
            90: mma.HopperWgmma,
            80: None if "simt" in described.operator_name else mma.AmpereMma,
        }
        assert described.design.mma_instruction_type is expected[operator.designed_for_min_cc]
    other = dataclasses.replace(described, operator_name="other")
    with pytest.raises(ValueError, match="'other', which no operator"):
        other.operator_class(other)


@pytest.mark.parametrize("fuses", [False, True])
def test_descriptions_are_pickled(fuses):
    """PyTorch compiles in other processes, which receive the metadata of an operator."""
    found = nvidia.get_operators(fake_arguments(), target_sm="90a", providers=[RUTLASS])
    operator = next(each for each in found if ("EFC" in type(each).__name__) == fuses)
    described = pickle.loads(pickle.dumps(operator.metadata))
    assert described.operands == operator.metadata.operands
    assert described.operator_class is type(operator)
    again = described.operator_class(described)
    assert again.own == operator.own and again.supports(fake_arguments(), "90a")
    assert pickle.loads(pickle.dumps(operator)).own == operator.own


def test_targets_are_theirs():
    args = fake_arguments()
    operator = nvidia.get_operators(args, target_sm="90a")[0]
    assert operator.metadata.supported_targets == [nvidia.TargetSm("90a")]
    assert operator.supports(args, "90a") and operator.designed_for_min_cc == 90
    status = operator.supports(args, target_sm="100a")
    assert isinstance(status, nvidia.Status) and not status
    assert isinstance(status.error, ValueError)


def test_filters_and_the_manifest():
    args = fake_arguments()

    def is_wide(described):
        return described.operands.A.dtype.width == 16 and described.design.tile_shape[1] >= 128

    found = nvidia.get_operators(args, is_wide, "90a", providers=[RUTLASS])
    assert found and all(is_wide(operator.metadata) for operator in found)
    manifest = nvidia.Manifest()
    manifest.add_operators(nvidia.get_operators(args, target_sm="90a"))
    assert manifest.filter_operators(args, is_wide, "90a", [RUTLASS]) == found
    assert manifest.filter_operators(fake_arguments(dtype=torch.float64)) == []
    kind = type(found[0])
    assert kind.generate_operators(is_wide, None, "90a", args)[0] == found[0]


def test_all_kernels_are_described():
    found = nvidia.get_operators(providers=[RUTLASS])
    assert len(set(names(found))) == len(found) > 10_000
    assert all(operator.metadata.operands.A.dtype.width >= 8 for operator in found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2])
def test_run_on_the_cpu(dtype):
    args, (a, b, out) = real_arguments(dtype=dtype)
    operator = nvidia.get_operators(args)[0]
    artifact = operator.compile(args)
    assert isinstance(artifact, nvidia.CompiledArtifact) and artifact.operator_obj is operator
    for options in ({"compiled_artifact": artifact}, {"assume_supported_args": True}):
        out.zero_()
        operator.run(args, stream=None, **options)
        error = max(torch.finfo(dtype).eps, 1e-5)
        torch.testing.assert_close(out.float(), a.float() @ b.float(), rtol=error, atol=error)
    size = operator.get_workspace_size(args)
    assert size == workspace.AllocationRequirement.empty()
    operator.run(args, artifact, workspace=workspace.Workspace(torch.empty(0)))


def test_strides_are_kept():
    out = torch.zeros(16, 24).t()
    a, b = torch.randn(64, 48)[::2, 3:35].t()[:, :24].t(), torch.randn(32, 17)[:, 1:]
    args = nvidia.GemmArguments(a, b, out, torch.float32)
    nvidia.get_operators(args)[0].run(args)
    torch.testing.assert_close(out, a @ b)


def test_replaced_and_released_tensors():
    args, (a, b, out) = real_arguments()
    operator = nvidia.get_operators(args)[0]
    artifact = operator.compile(args)
    other = torch.randn_like(a)
    args.A.tensor._runtime_tensor = other
    args.A.tensor._data_ptr = other.data_ptr()
    operator.run(args, artifact)
    torch.testing.assert_close(out, other @ b)
    # The arguments of PyTorch's generated code outlive the tensors.
    reference = weakref.ref(other)
    args.A.tensor._runtime_tensor = None
    del other
    assert reference() is None
    with pytest.raises(ValueError, match="set _runtime_tensor"):
        operator.run(args, artifact, assume_supported_args=True)


def test_a_gpu_kernel_refuses_tensors_of_the_cpu():
    args, _ = real_arguments(dtype=torch.bfloat16)
    operator = own(nvidia.get_operators(args, target_sm="90a"))[0]
    assert operator.supports(args, "90a") and not operator.supports(args)
    with pytest.raises(ValueError, match="does not support the provided arguments"):
        operator.run(args)


def test_compile_without_a_gpu():
    args = fake_arguments()
    operator = nvidia.get_operators(args, target_sm="90a", limit=1)[0]
    artifact = operator.compile(args, "90a")
    assert artifact.compiled_for == nvidia.TargetSm("90a")
    assert isinstance(artifact.compiled_obj, cutlass_api.artifact.CompiledArtifact)


def test_workspace_is_described_in_their_class():
    args = fake_arguments(64, 64, 8192)
    sizes = [
        operator.get_workspace_size(args)
        for operator in own(nvidia.get_operators(args, target_sm="90a"))
    ]
    assert all(isinstance(size, workspace.AllocationRequirement) for size in sizes)
    assert any(size.size_bytes and size.ptr_alignment == 16 for size in sizes)


SOURCE = "def f(accum, bias, scale):\n    D = relu(accum * scale + bias)\n    return D"


def test_epilogues():
    bias, out = torch.randn(16), torch.empty(24, 16)
    epilogue = nvidia.EpilogueArguments(SOURCE, bias=bias, scale=2.0, D=out)
    args, (a, b, _) = real_arguments(epilogue=epilogue)
    operator = nvidia.get_operators(args)[0]
    assert isinstance(operator.metadata.epilogue, metadata.EpilogueMetadata)
    operator.run(args, operator.compile(args))
    torch.testing.assert_close(out, (2 * (a @ b) + bias).relu())
    plain, _ = real_arguments()
    assert not operator.supports(plain)
    assert not nvidia.get_operators(plain)[0].supports(args)
    source = "def f(accum):\n    D = tanh(accum)\n    return D"
    other, _ = real_arguments(epilogue=nvidia.EpilogueArguments(source, D=out))
    assert not operator.supports(other)
    again = operator.metadata.operator_class(operator.metadata)
    assert again.supports(args) and again.own.kernel is operator.own.kernel


def fused(accum, residual):
    F = gelu(accum)  # noqa: F821
    D = F + residual
    E = sigmoid(F)  # noqa: F821
    return D, E


def test_epilogue_functions_are_fused_on_hopper():
    shape, dtype = (512, 256), torch.bfloat16
    tensors = {name: fake(*shape, dtype=dtype) for name in ("residual", "D", "E")}
    epilogue = nvidia.EpilogueArguments(fused, **tensors)
    plain = fake_arguments()
    args = nvidia.GemmArguments(plain.A, plain.B, plain.out, torch.float32, epilogue)
    found = nvidia.get_operators(args, target_sm="90a")
    assert len(found) > 100 and own(found) == found
    assert all(operator.supports(args, "90a") for operator in found[:5])


@pytest.mark.parametrize(
    ("reduction", "shape"), [("max(accum, dim=-1)", (1, 24)), ("sum(accum)", (1, 1))]
)
def test_reductions_onto_a_destination_are_not_offered(reduction, shape):
    source = f"def f(accum):\n    D = accum\n    total = {reduction}\n    return D, total"
    out, total = torch.empty(24, 16), torch.zeros(shape).t()
    args, _ = real_arguments(epilogue=nvidia.EpilogueArguments(source, D=out, total=total))
    assert nvidia.get_operators(args) == []
    operator = nvidia.get_operators(real_arguments()[0])[0]
    status = operator.supports(args)
    assert not status and "adds to its destination" in str(status.error)


def grouped(along, dtype=torch.float32):
    shapes = {
        "m": ((40, 32), (3, 32, 16), (40, 16)),
        "k": ((24, 40), (40, 16), (3, 24, 16)),
        "n": ((3, 24, 32), (32, 40), (24, 40)),
    }
    tensors = [torch.randn(shape).to(dtype) for shape in shapes[along]]
    offsets = torch.tensor([8, 20, 40], dtype=torch.int32)
    args = nvidia.IndexPtrGroupedGemmArguments(*tensors, torch.float32, offsets, along)
    return args, tensors


@pytest.mark.parametrize("along", ["m", "k"])
def test_groups(along):
    args, (a, b, out) = grouped(along)
    operator = nvidia.get_operators(args)[0]
    operands = operator.metadata.operands
    assert isinstance(operands, metadata.IndexPtrGroupedGemmOperandsMetadata)
    assert operands.offsets_along == along and operands.offsets.dtype is args.offsets.dtype
    operator.run(args, operator.compile(args))
    for group, (start, end) in enumerate([(0, 8), (8, 20), (20, 40)]):
        if along == "m":
            torch.testing.assert_close(out[start:end], a[start:end] @ b[group])
        else:
            torch.testing.assert_close(out[group], a[:, start:end] @ b[start:end])
    found = nvidia.get_operators(grouped(along, torch.bfloat16)[0], target_sm="90a")
    assert found and own(found) == found


def test_groups_of_other_forms():
    assert nvidia.get_operators(grouped("n")[0]) == []
    args, (a, b, out) = grouped("m")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        tensors = a, b, out, torch.float32, args.offsets
        deprecated = nvidia.GroupedGemmArguments(*tensors)
    assert names(nvidia.get_operators(deprecated)) == names(nvidia.get_operators(args))


def quantized(rows, k):
    values = torch.randn(rows, k).to(torch.float8_e4m3fn)
    scales = (torch.rand(rows, k // 32) + 0.5).to(torch.float8_e8m0fnu)
    return values, scales, values.float() * scales.float().repeat_interleave(32, 1)


def swizzled(scales):
    """Scales in tiles of 128 x 4, padded."""
    padded = torch.zeros(-(-scales.shape[0] // 128) * 128, scales.shape[1], dtype=torch.uint8)
    padded[: len(scales)] = scales.view(torch.uint8)
    tiles = padded.view(-1, 4, 32, scales.shape[1] // 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.flatten().view(torch.float8_e8m0fnu)


@pytest.mark.parametrize("swizzle", nvidia.ScaleSwizzleMode)
def test_scaled_operands(swizzle):
    a, scale_a, exact_a = quantized(128, 256)
    b, scale_b, exact_b = quantized(64, 256)
    if swizzle is nvidia.ScaleSwizzleMode.Swizzle32x4x4:
        scale_a, scale_b = swizzled(scale_a), swizzled(scale_b)
    mode, out = nvidia.ScaleMode.Blockwise1x32, torch.empty(128, 64)
    operands = (
        nvidia.ScaledOperand(values, scale, mode, swizzle)
        for values, scale in ((a, scale_a), (b.t(), scale_b))
    )
    args = nvidia.GemmArguments(*operands, out, torch.float32)
    operator = own(nvidia.get_operators(args))[0]
    constraints = operator.metadata.operands.A
    assert isinstance(constraints, metadata.ScaledOperandConstraints)
    assert constraints.swizzle is swizzle and constraints.mode == mode
    assert constraints.dtype is args.A.dtype
    operator.run(args, operator.compile(args))
    torch.testing.assert_close(out, exact_a @ exact_b.t())
    assert own(nvidia.get_operators(args, target_sm="90a"))


def test_arguments_of_others_and_tensors_without_tvm_ffi():
    @dataclasses.dataclass
    class Other(nvidia.RuntimeArguments):
        A: nvidia.TensorLike

    assert nvidia.get_operators(Other(torch.zeros(4))) == []
    args, _ = real_arguments()
    operator = nvidia.get_operators(args)[0]
    options = nvidia.GlobalOptions()
    before = options.save()
    options.use_tvm_ffi = False
    try:
        args, _ = real_arguments()
        assert nvidia.get_operators(args, target_sm="90a") == []
        assert "use_tvm_ffi" in str(operator.supports(args).error)
    finally:
        options.restore(before)


def test_nvgemm_tries_ten_of_these():
    pytest.importorskip("torch._inductor.kernel.vendored_templates.cutedsl.wrappers")
    from torch._inductor.codegen.nv_universal_gemm import kernel_cache
    from torch._inductor.kernel.vendored_templates.cutedsl.wrappers import dense_gemm_efc_kernel

    assert dense_gemm_efc_kernel.__file__.startswith(torch.__path__[0])
    args = fake_arguments()
    candidates = kernel_cache._args_query_candidates(args, 90, efc_only=False)
    assert own(candidates[:10]) == candidates[:10] and len(candidates) > 100
    fusing = kernel_cache._args_query_candidates(args, 90, efc_only=True)
    assert own(fusing) == fusing and len(fusing) >= 10
    expected = ops.get_operators(fake_arguments(package=ops), target_sm="90a")
    assert names(fusing) == [name for name in names(expected) if "_tile" in name]


def test_launches_on_streams():
    """On the stand-in driver, which records the stream of each launch."""
    script = """
    import cutlass_api, torch
    import cutlass.operators as nvidia
    from cuda.bindings.driver import CUstream
    from stand_in import device

    M, N, K = 64, 64, 8192
    shapes = ((M, K), (K, N), (M, N))
    tensors = [device.torch_tensor(at << 28, shape) for at, shape in enumerate(shapes, 1)]
    args = nvidia.GemmArguments(*tensors, torch.float32)
    own = nvidia.get_operators(args, providers=[nvidia.available_providers["rutlass"]])
    sizes = [operator.get_workspace_size(args).size_bytes for operator in own]
    for size in (0, max(sizes)):
        operator = own[sizes.index(size)]
        workspace = nvidia.workspace.Workspace(device.torch_tensor(0x50000000, (size // 2,)))
        artifact = operator.compile(args)
        for stream in (None, 0x5010, CUstream(0x5010), 0):
            operator.run(args, artifact, stream, workspace if size else None)
            print(size > 0, artifact.compiled_for, device.library.stand_in_last_stream())
    """
    printed = stand_in.run(textwrap.dedent(script)).splitlines()
    streams = (0, 0x5010, 0x5010, 0)
    assert printed == [f"{is_split} 90a {at}" for is_split in (False, True) for at in streams]


def test_meta_tensors_and_others_that_the_core_does_not_read():
    (_, tensors), plain = real_arguments(), nvidia.get_operators(fake_arguments(), target_sm="90a")
    on_meta = nvidia.GemmArguments(*(each.to("meta") for each in tensors), torch.float32)
    assert own(nvidia.get_operators(on_meta, target_sm="90a"))
    operator = own(plain)[0]
    for wrong in (None, "x", tensors[0], nvidia.DenseTensor(None)):
        args, _ = real_arguments()
        args.A = wrong
        assert not operator._supports(args) and not operator._supports(args, "90a")
    args, _ = real_arguments()
    args.A.tensor._runtime_tensor = torch.eye(24, 32).to_sparse()
    assert not operator._supports(args) and own(nvidia.get_operators(args)) == []
    args, _ = real_arguments()
    args.epilogue = "x"
    assert "pass EpilogueArguments" in str(operator._supports(args).error)


def test_what_a_client_writes_into_metadata_is_its_own():
    args = fake_arguments()
    first = own(nvidia.get_operators(args, target_sm="90a"))
    first[0].metadata.operands.A.divisibility = 1 << 20
    first[1].metadata.supported_targets.clear()
    first[2].metadata.operands.B = None
    again = own(nvidia.get_operators(args, target_sm="90a"))
    names = [each.metadata.operator_name for each in again]
    assert names == [each.metadata.operator_name for each in first]
    assert all(each.metadata.operands.A.divisibility <= 16 for each in (*again, *first[1:]))
    assert all(each.metadata.operands.B and each.metadata.supported_targets for each in again)
