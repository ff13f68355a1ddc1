"""Wrapped tensors, and the constraints that an operator of one's own puts on them."""

from dataclasses import dataclass

import pytest
import torch
from cutlass_api import operators as ops
from cutlass_api.operators import metadata
from cutlass_api.operators.utils import dtype as dtypes
from cutlass_api.operators.utils.tensor import TensorWrapper

#: Shapes of bytes in memory order, and the permutation of their dimensions.
PACKED = [((64, 128), (0, 1)), ((64, 128), (1, 0)), ((2, 64, 128), (0, 1, 2))]
PACKED += [((2, 64, 128), (0, 2, 1)), ((1, 32, 256), (0, 1, 2))]


@pytest.mark.parametrize(("shape", "order"), PACKED)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn, torch.float4_e2m1fn_x2])
def test_shapes_and_strides_count_elements(shape, order, dtype, exchange_mode):
    is_packed = dtype == torch.float4_e2m1fn_x2
    # The same layout of whole elements: two of four bits for each byte.
    whole = torch.empty((*shape[:-1], shape[-1] * (1 + is_packed))).permute(order)
    if is_packed:
        made = torch.zeros(shape, dtype=torch.uint8).view(dtype).permute(order)
    else:
        made = torch.zeros(shape).to(dtype).permute(order)
    wrapper = TensorWrapper(made, alignment_bytes=16)
    assert (wrapper.shape, wrapper.stride) == (whole.shape, whole.stride())
    assert wrapper.numel() == whole.numel() and wrapper.runtime_tensor is made
    again = TensorWrapper(wrapper)
    assert (again.shape, again.stride, again.dtype) == (
        wrapper.shape,
        wrapper.stride,
        wrapper.dtype,
    )
    assert ops.DenseTensor(again).shape == whole.shape


def test_four_bits_have_the_class_of_cutlass():
    cutlass = pytest.importorskip("cutlass")
    pairs = torch.zeros(8, 8, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    dtype = TensorWrapper(pairs).dtype
    assert dtype == cutlass.Float4E2M1FN and dtypes.torch_storage_packing_factor(dtype) == 2


DTYPES = [torch.float16, torch.bfloat16, torch.float64, torch.float8_e5m2, torch.int8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES)
def test_element_types_of_frameworks(dtype):
    pytest.importorskip("cutlass")
    jnp = pytest.importorskip("jax").numpy
    name = str(dtype).removeprefix("torch.")
    known = dtypes.cutlass_type_from_torch_type(dtype)
    of_jax = jnp.dtype(name)
    assert dtypes.cutlass_type_from_jax_type(of_jax) is known
    forms = [known, dtype, of_jax, TensorWrapper(torch.zeros(8, 8).to(dtype)).dtype]
    # `bool` is no element type of kernels: it has its class alone.
    for form in forms if dtype != torch.bool else forms[:1]:
        assert dtypes.torch_type_from_cutlass_type(form) == dtype
        assert dtypes.jax_type_from_cutlass_type(form) == of_jax
        assert dtypes.torch_storage_packing_factor(form) == 1


def test_element_types_that_a_framework_lacks():
    cutlass = pytest.importorskip("cutlass")
    pytest.importorskip("jax")
    with pytest.raises(KeyError, match="JAX has no dtype"):
        dtypes.jax_type_from_cutlass_type(cutlass.Float4E2M1FN)
    with pytest.raises(KeyError, match="complex64"):
        dtypes.torch_type_from_cutlass_type(torch.complex64)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_copies_are_those_of_the_framework(framework):
    tensor = torch.arange(6.0).view(2, 3)
    if framework == "jax":
        tensor = pytest.importorskip("jax").numpy.asarray(tensor.numpy())
    wrapper = TensorWrapper(tensor)
    on_cpu, half = wrapper.cpu(), wrapper.to("float16" if framework == "jax" else torch.float16)
    for copied in (on_cpu, half):
        assert type(copied) is type(tensor)
        assert copied.tolist() == tensor.tolist()
    assert TensorWrapper(half).dtype is dtypes.to_cutlass_type("float16")


@dataclass
class PairArguments(ops.RuntimeArguments):
    """Arguments with a constructor of their own, which makes operands."""

    A: ops.Operand
    out: ops.Operand

    def __init__(self, a, out):
        self.A, self.out = (ops.DenseTensor(TensorWrapper(each)) for each in (a, out))
        super().__init__()


@dataclass
class PairOperands(metadata.OperandsMetadata):
    A: metadata.OperandConstraints
    out: metadata.OperandConstraints

    def supports(self, args):
        for name in ("A", "out"):
            if not (status := getattr(self, name).supports(getattr(args, name))):
                return status
        return ops.Status.success()


def test_strides_of_extent_1_are_those_of_rows():
    """As NVIDIA's package reports them for JAX arrays."""
    jnp = pytest.importorskip("jax").numpy
    for shape, stride in (((1, 8), (8, 1)), ((8, 1), (1, 1)), ((2, 1, 4), (4, 4, 1))):
        assert TensorWrapper(jnp.zeros(shape)).stride == stride


class Copy(ops.Operator):
    supported_args_type = PairArguments
    designed_for_min_cc = 80

    def _compile(self, args, target_sm=None):
        return ops.CompiledArtifact(torch.Tensor.copy_, self, target_sm)

    def _run(self, args, compiled_artifact, stream, workspace=None):
        self.stream = stream
        a, out = args.A.tensor.runtime_tensor, args.out.tensor.runtime_tensor
        compiled_artifact.compiled_obj(out, a)

    @classmethod
    def _generate_operators(cls, metadata_filter, epilogue_args=None, target_sm=None, args=None):
        rows = metadata.DenseTensorConstraints(stride=(0, 1), dtype=torch.float16, divisibility=8)
        operands = PairOperands(rows, rows)
        return [cls(ops.OperatorMetadata("copy", cls, [ops.TargetSm("80")], operands))]


@pytest.fixture
def copy():
    (operator,) = Copy.generate_operators(metadata_filter=None)
    return operator


def halves(*shape, offset=0):
    count = torch.Size(shape).numel()
    return torch.randn(count + offset).half()[offset:].view(shape)


@pytest.mark.parametrize("shape", [(8, 16), (3, 8), (1024, 1024)])
def test_aligned_operands_are_run_on(copy, shape):
    a, out = halves(*shape), halves(*shape)
    args = PairArguments(a, out)
    assert args.performance is None and copy.supports(args, "90a")
    artifact = copy.compile(args, "90a")
    assert artifact.compiled_for == ops.TargetSm("90a") and artifact.operator_obj is copy
    copy.run(args, artifact)
    assert torch.equal(out, a)
    cuda = pytest.importorskip("cuda.bindings.driver")
    assert isinstance(copy.stream, cuda.CUstream) and int(copy.stream) == 0
    copy.run(args, artifact, stream=7)
    assert copy.stream == 7


@pytest.mark.parametrize(
    ("a", "reason"),
    [
        (halves(12, 10), "not divisible by 8 elements"),
        (halves(32, 32, offset=117), "not aligned to 16 bytes"),
        (halves(16, 8).t(), "strides"),
        (halves(8, 16).float(), "float32"),
    ],
    ids=["extent", "address", "order", "dtype"],
)
def test_other_operands_are_refused(copy, exchange_mode, a, reason):
    args = PairArguments(a, torch.empty_like(a).half())
    assert reason in str(copy.supports(args).error)
    with pytest.raises(ValueError, match=reason):
        copy.run(args)


@pytest.mark.parametrize(("offset", "alignment_bytes"), [(0, 4), (1, 2), (2, 4)])
def test_built_in_operators_have_constraints_of_alignment(offset, alignment_bytes):
    """Rows of 36 bytes begin at multiples of 4 bytes, from a first address of such a multiple."""
    a = halves(64, 18, offset=offset)
    args = ops.GemmArguments(a, halves(18, 64), halves(64, 64), "float32")
    found = [operator.metadata.operands.A for operator in ops.get_operators(args, target_sm="90a")]
    assert all(constraints.supports(args.A) for constraints in found)
    assert max(constraints.ptr_alignment_bytes for constraints in found) == alignment_bytes
