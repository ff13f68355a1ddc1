"""Products as code for NVIDIA's operators computes them, on the CPU and on a GPU."""

import os

import pytest
import torch
from cutlass_api import operators as ops
from cutlass_api.operators.utils import device as devices
from cutlass_api.operators.utils.dtype import to_cutlass_type
from support.helpers import coarse, exact, fake, laid_out
from torch._functorch import config as functorch
from torch._subclasses.fake_tensor import FakeTensorMode

HALF, SINGLE = torch.float16, torch.float32
HOPPER = [ops.TargetSm("90a")]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    return request.param


class Product:
    """Arguments of a GEMM, the operators that a client finds for them, and the exact result."""

    def __init__(self, device, m=72, n=136, k=32, batch=(), layout="ttt", **options):
        dtype = options.pop("dtype", HALF)
        self.accumulator = options.pop("accumulator", SINGLE)
        shapes, dtypes = ((m, k), (k, n), (m, n)), (dtype, dtype, options.pop("out", dtype))
        self.a, self.b, self.out = (
            laid_out(coarse(*batch, *shape, dtype=dtype), letter).to(device)
            for shape, dtype, letter in zip(shapes, dtypes, layout, strict=True)
        )
        self.args = self.arguments(**options)

    def arguments(self, **options):
        options = {"accumulator_type": self.accumulator, **options}
        return ops.GemmArguments(A=self.a, B=self.b, out=self.out, **options)

    def operators(self):
        target = devices.device_or_env_target_sm() if self.a.is_cuda else None
        found = ops.get_operators(self.args, target_sm=target)
        assert found
        return found

    def check(self):
        """Compares ``out`` with the product, and overwrites it."""
        expected = exact(self.a.cpu(), self.b.cpu(), self.out.dtype)
        assert torch.equal(self.out.cpu(), expected)
        self.out.zero_()


#: dtype, accumulator type, dtype of out, batch, orders of A, B and out.
CASES = [
    (HALF, SINGLE, HALF, (), "ttt"),
    (HALF, SINGLE, HALF, (1,), "tnt"),
    (HALF, SINGLE, SINGLE, (3,), "ntt"),
    (HALF, HALF, HALF, (), "tnn"),
    (torch.bfloat16, SINGLE, torch.bfloat16, (2,), "nnn"),
    (SINGLE, SINGLE, SINGLE, (), "nnt"),
    (torch.float64, torch.float64, torch.float64, (2,), "ttn"),
    (torch.float8_e4m3fn, SINGLE, torch.bfloat16, (), "tnt"),
    (torch.int8, torch.int32, torch.int32, (2,), "ttt"),
]


@pytest.mark.parametrize(("dtype", "accumulator", "out", "batch", "layout"), CASES)
def test_products(device, dtype, accumulator, out, batch, layout):
    product = Product(
        device, batch=batch, layout=layout, dtype=dtype, accumulator=accumulator, out=out
    )
    operator = product.operators()[0]
    operands = operator.metadata.operands
    types = operands.A.dtype, operands.out.dtype, operands.accumulator_type
    assert types == tuple(map(to_cutlass_type, (dtype, out, accumulator)))
    assert product.args.accumulator_type is operands.accumulator_type
    operator.run(product.args)
    product.check()


@pytest.mark.parametrize("shape", [(33, 17, 19), (1, 40, 8), (256, 512, 1024)])
def test_odd_extents_and_addresses(device, exchange_mode, shape):
    product = Product(device, *(extent + 3 for extent in shape), out=SINGLE)
    m, n, k = shape
    product.a, product.b = product.a[1 : 1 + m, 3 : 3 + k], product.b[:k, 1 : 1 + n]
    product.out = product.out[3 : 3 + m, 2 : 2 + n]
    product.args = product.arguments()
    product.operators()[0].run(product.args)
    product.check()


def test_an_artifact_serves_operands_of_its_kind(device, exchange_mode):
    first, *others = products = [Product(device, m) for m in (72, 72, 24)]
    operator = first.operators()[0]
    artifact = operator.compile(first.args)
    operator.run(first.args, artifact)
    for product in others:
        operator.run(product.args, compiled_artifact=artifact, assume_supported_args=True)
    # Results are those of the other interface for operands, too.
    options = ops.GlobalOptions()
    options.use_tvm_ffi = not options.use_tvm_ffi
    again = Product(device)
    operator.run(again.args, artifact)
    for product in (*products, again):
        product.check()


@pytest.mark.parametrize("form", ["none", "null", "current", "other"])
def test_streams(device, form):
    """Work that precedes and follows on the stream is in its order."""
    product = Product(device)
    if device == "cpu" and form in ("current", "other"):
        pytest.skip("the CPU has no streams")
    operator = product.operators()[0]
    artifact = operator.compile(product.args)
    stream = {"none": None, "null": 0}.get(form)
    if form == "current":
        stream = torch.cuda.current_stream()
    elif form == "other":
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            product.a.neg_()
    operator.run(product.args, artifact, stream=stream, assume_supported_args=True)
    if device == "cuda":
        torch.cuda.synchronize()
    product.check()


def test_workspace(device):
    product = Product(device, 64, 64, 8192, out=SINGLE)
    sizes = {each: each.get_workspace_size(product.args) for each in product.operators()}
    operator = max(sizes, key=lambda each: sizes[each].size_bytes)
    size = sizes[operator]
    assert (size.size_bytes > 0) == (device == "cuda")
    artifact = operator.compile(product.args)
    data = torch.empty(size.size_bytes, dtype=torch.int8, device=device)
    for workspace in (data, ops.workspace.Workspace(data), None):
        operator.run(product.args, artifact, workspace=workspace)
        product.check()


@pytest.mark.parametrize("batch", [(), (2,)])
def test_fake_tensors_suffice_to_compile(device, exchange_mode, batch):
    product = Product(device, batch=batch)
    with functorch.patch(fake_tensor_allow_unsafe_data_ptr_access=False):
        with FakeTensorMode() as mode:
            tensors = [mode.from_tensor(each) for each in (product.a, product.b, product.out)]
        fakes = ops.GemmArguments(*tensors, accumulator_type=SINGLE)
        target = devices.device_or_env_target_sm() if device == "cuda" else None
        operator = ops.get_operators(fakes, target_sm=target)[0]
        artifact = operator.compile(fakes)
    assert operator.metadata == product.operators()[0].metadata
    with pytest.raises(ValueError, match="FakeTensor"):
        operator.run(fakes, artifact)
    operator.run(product.args, artifact)
    product.check()


@pytest.mark.parametrize("accumulator", [SINGLE, HALF])
def test_operators_are_compiled_for_hopper_anywhere(accumulator):
    """Compiles for FakeTensors of a GPU. The operator may have another accumulator type."""
    tensors = fake(128, 512), fake(512, 256), fake(128, 256)
    found = ops.get_operators(ops.GemmArguments(*tensors, SINGLE), target_sm="90a")
    operator = next(each for each in found if each.metadata.supported_targets == HOPPER)
    artifact = operator.compile(ops.GemmArguments(*tensors, accumulator), target_sm="90a")
    assert (artifact.operator_obj, artifact.compiled_for) == (operator, *HOPPER)


def test_assumed_arguments_may_have_another_accumulator_type(device):
    """The operator sums in its own type, which the notebook on latency relies on."""
    product = Product(device)
    operator = product.operators()[0]
    args = product.arguments(accumulator_type=HALF)
    artifact = operator.compile(args)
    operator.run(args, artifact, assume_supported_args=True)
    product.check()


def test_reasons(device):
    product = Product(device)
    operator = product.operators()[0]
    product.a = product.a.bfloat16()
    args, before = product.arguments(), product.out.clone()
    status = operator.supports(args)
    assert not status and "A is not supported: operand has dtype b" in str(status.error)
    with pytest.raises(ValueError, match="A has dtype bfloat16"):
        operator.run(args)
    assert torch.equal(product.out, before)


def test_filters_of_design_and_operands():
    cutlass = pytest.importorskip("cutlass")
    args = Product("cpu").args

    def has_64_rows(described):
        if isinstance(described.design, ops.metadata.Sm100DesignMetadata):
            return False
        return getattr(described.design, "tile_shape", (0,))[0] == 64

    def is_half(described):
        operands = described.operands
        return isinstance(operands, ops.metadata.GemmOperandsMetadata) and (
            operands.A.dtype == operands.B.dtype == operands.out.dtype == cutlass.Float16
        )

    found = ops.get_operators(args, metadata_filter=has_64_rows, target_sm="90a")
    assert found and all(each.metadata.design.tile_shape[0] == 64 for each in found)
    assert all(is_half(each.metadata) for each in found)
    assert all(each.metadata.operands.accumulator_type == cutlass.Float32 for each in found)
    everything = ops.get_operators(metadata_filter=lambda each: has_64_rows(each) and is_half(each))
    assert set(found) < set(everything)
    of_sm100 = ops.get_operators(
        metadata_filter=lambda each: isinstance(each.design, ops.metadata.Sm100DesignMetadata)
    )
    assert of_sm100 == []


@pytest.mark.gpu
def test_a_cuda_graph_repeats_launches():
    products = [Product("cuda") for _ in range(20)]
    operator = products[0].operators()[0]
    artifact = operator.compile(products[0].args)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for product in products:
            operator.run(
                product.args,
                compiled_artifact=artifact,
                stream=torch.cuda.current_stream(),
                assume_supported_args=True,
            )
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        for product in products:
            product.check()
            product.a.neg_()


@pytest.mark.gpu
def test_the_target_of_the_device():
    major, minor = torch.cuda.get_device_capability()
    target = devices.device_or_env_target_sm()
    assert target == ops.TargetSm(cc=10 * major + minor)
    assert devices.device_or_env_supports("80")
    product = Product("cuda")
    compiled_for = product.operators()[0].compile(product.args).compiled_for
    assert target.supports_operators_from([compiled_for])


def test_the_target_of_the_environment(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    assert devices.device_or_env_target_sm() == ops.TargetSm("90a")
    assert devices.device_or_env_supports("80") and devices.device_or_env_supports(["100f", "90a"])
    status = devices.device_or_env_supports("100a")
    assert "target 90a runs no operator of 100a" in str(status.error)
    monkeypatch.setenv("CUTE_DSL_ARCH", "hopper")
    assert "CUTE_DSL_ARCH is 'hopper'" in str(devices.device_or_env_supports("80").error)


# ---- arrays of other frameworks ------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(), (1,)])
def test_jax_arrays(device, exchange_mode, batch):
    # By default, JAX allocates three quarters of a GPU's memory with its first array.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    cutlass = pytest.importorskip("cutlass")
    if device == "cuda" and jax.default_backend() != "gpu":
        pytest.skip(f"JAX runs on {jax.default_backend()} here")
    product = Product(device, batch=batch)
    place = jax.devices("gpu" if device == "cuda" else "cpu")[0]
    a, b = (
        jax.block_until_ready(jax.device_put(each.cpu().numpy(), place))
        for each in (product.a, product.b)
    )
    product.args = ops.GemmArguments(a, b, product.out, accumulator_type=cutlass.Float32)
    assert product.args.A.dtype is cutlass.Float16 and product.args.B.shape == (*batch, 32, 136)
    product.operators()[0].run(product.args)
    product.check()
    # Unlike NVIDIA's: JAX takes its arrays for immutable.
    with pytest.raises(ValueError, match="out is read-only"):
        ops.GemmArguments(a, b, jax.numpy.zeros(product.out.shape, "float16"), "float32")


def test_tvm_ffi_tensors(device, exchange_mode):
    tvm_ffi = pytest.importorskip("tvm_ffi")
    product = Product(device)
    tensors = (tvm_ffi.from_dlpack(each) for each in (product.a, product.b, product.out))
    product.args = ops.GemmArguments(*tensors, accumulator_type=SINGLE)
    operator = product.operators()[0]
    operator.run(product.args, operator.compile(product.args), assume_supported_args=True)
    product.check()
