"""`cutlass_api.quantize`: arithmetic, layouts and refusals, and its kernels."""

import itertools
import math
import shutil

import cutlass_api
import pytest
import stand_in
import torch
from cutlass_api import quantize
from cutlass_api.ops import OPS, _quantize
from helpers import cuobjdump, run_python, spilled_bytes
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.library import opcheck

INPUTS = [torch.float32, torch.float16, torch.bfloat16]
OUTPUTS = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}
#: A bound of the relative rounding error, and the step of the smallest numbers.
ROUNDING = {
    torch.float8_e4m3fn: (2.0**-4, 2.0**-9),
    torch.float8_e5m2: (2.0**-3, 2.0**-16),
    torch.int8: (0, 1.0),
}
#: The kinds of scales, and the extents that share one.
KINDS = {
    "per_tensor": (quantize.per_tensor, (-1, -1)),
    "per_row": (quantize.per_row, (1, -1)),
    "per_column": (quantize.per_column, (-1, 1)),
    "1x128": (lambda x, dtype: quantize.per_block(x, dtype, (1, 128)), (1, 128)),
    "128x1": (lambda x, dtype: quantize.per_block(x, dtype, (128, 1)), (128, 1)),
    "128x128": (lambda x, dtype: quantize.per_block(x, dtype, (128, 128)), (128, 128)),
}
kinds = pytest.mark.parametrize("kind", KINDS)
inputs = pytest.mark.parametrize("input", INPUTS, ids=str)
outputs = pytest.mark.parametrize("output", OUTPUTS, ids=str)
NAN, INF = math.nan, math.inf


def randn(rows, columns, dtype=torch.float32, spread=4, device="cpu"):
    """Random values. The magnitudes of rows differ by 10^spread at most."""
    generator = torch.Generator().manual_seed(rows * 1000 + columns)
    values = torch.randn(rows, columns, generator=generator)
    factors = torch.logspace(-spread / 2, spread / 2, rows)
    return (values * factors[torch.randperm(rows, generator=generator), None]).to(device, dtype)


def expanded(scales, like, extents):
    """The scale of each element."""
    for dim, extent in enumerate(extents):
        if scales.dim() == 2 and extent != -1:
            scales = scales.repeat_interleave(extent, dim).narrow(dim, 0, like.shape[dim])
    return scales.expand(like.shape)


VIEWS = {
    "rows": lambda x: x,
    "columns": lambda x: x.mT.contiguous().mT,
    "sliced": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "offset": lambda x: torch.nn.functional.pad(x, (1, 2))[:, 1:-2],
    "padded": lambda x: torch.nn.functional.pad(x, (0, 16))[:, :-16],
    "expanded": lambda x: x[:1].expand(x.shape),
}


# Arithmetic and layouts.


@kinds
@inputs
@outputs
@pytest.mark.parametrize("view", VIEWS)
def test_results(kind, input, output, view):
    function, extents = KINDS[kind]
    x = VIEWS[view](randn(150, 300, input))
    quantized, scales = function(x, output)
    assert quantized.dtype == output and quantized.shape == x.shape
    assert scales.dtype == torch.float32 and not scales.isnan().any()
    each = expanded(scales, x, extents).double()
    exact = x.double()
    relative, step = ROUNDING[output]
    error = (quantized.double() * each - exact).abs()
    assert (error <= (exact.abs() * relative).maximum(each * step / 2) * (1 + 1e-5)).all()
    # The scale is the largest magnitude over the largest number, rounded once.
    height, width = (
        size if extent == -1 else extent for size, extent in zip(x.shape, extents, strict=True)
    )
    found = scales.reshape(1, 1) if kind == "per_tensor" else scales
    for row, column in itertools.product(*map(range, found.shape)):
        group = exact[row * height : (row + 1) * height, column * width : (column + 1) * width]
        largest = group.abs().max()
        assert found[row, column] == (largest / OUTPUTS[output]).float()


@kinds
@outputs
def test_the_largest_magnitude_becomes_the_largest_number(kind, output):
    function, extents = KINDS[kind]
    x = randn(256, 256, spread=60)
    quantized, _ = function(x, output)
    height, width = (256 if extent == -1 else extent for extent in extents)
    groups = quantized.float().abs().view(256 // height, height, 256 // width, width)
    assert (groups.amax((1, 3)) == OUTPUTS[output]).all()


def test_layouts():
    x = randn(200, 300)
    q, scales = quantize.per_tensor(x)
    assert q.stride() == (300, 1) and scales.shape == ()
    for of in (x, x.mT.contiguous().mT):
        q, scales = quantize.per_row(of)
        assert q.stride() == of.stride()
        assert scales.shape == (200, 1) and scales.is_contiguous()
        q, scales = quantize.per_column(of)
        assert scales.shape == (1, 300) and scales.is_contiguous()
        _, scales = quantize.per_block(of)
        assert scales.shape == (200, 3) and scales.stride() == (1, 200)
        _, scales = quantize.per_block(of, block=(128, 1))
        assert scales.shape == (2, 300) and scales.stride() == (300, 1)
        _, scales = quantize.per_block(of, block=(128, 128))
        assert scales.shape == (2, 3) and scales.stride() == ((4, 1) if of is x else (1, 4))
    assert quantize.per_row(x[:, ::2])[0].is_contiguous()


@kinds
@inputs
@outputs
def test_zeros(kind, input, output):
    function, _ = KINDS[kind]
    quantized, scales = function(torch.zeros(130, 140, dtype=input), output)
    assert (scales == 2.0**-126).all() and (quantized.float() == 0).all()


@outputs
def test_extremes(output):
    """Subnormal and huge rows, and NaN and infinity, which other rows do not see."""
    x = torch.tensor(
        [[1e-45, 1e-42, -2e-40], [3e38, -3.4e38, 1], [1, NAN, 2], [1, INF, 2], [-INF, NAN, 0]]
    )
    quantized, scales = quantize.per_row(x, output)
    values = quantized.float()
    assert scales[0] == 2.0**-126 and scales[1] == torch.tensor(3.4e38) / OUTPUTS[output]
    assert values[1, 1] == -OUTPUTS[output] and values[:2].isfinite().all()
    assert scales[2].isnan() and scales[3] == INF and scales[4].isnan()
    assert (values * scales)[2:].isnan().all()


@kinds
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0, 0)])
def test_empty(kind, shape):
    quantized, scales = KINDS[kind][0](torch.empty(shape), torch.int8)
    assert quantized.shape == shape and (scales == 2.0**-126).all()


# Products of what is quantized.


@pytest.mark.parametrize("dtypes", [(torch.float8_e4m3fn,) * 2, (torch.float8_e5m2,) * 2])
def test_products_by_scaled_mm(dtypes):
    x, weight = randn(40, 130, spread=1), randn(24, 130, spread=1)
    expected = x.double() @ weight.double().mT
    for function in (quantize.per_tensor, quantize.per_row):
        (a, scale_a), (b, scale_b) = (
            function(*pair) for pair in zip((x, weight), dtypes, strict=True)
        )
        out = cutlass_api.scaled_mm(a, b.t(), scale_a, scale_b.t(), torch.float32)
        exact = (a.double() * scale_a) @ (b.double() * scale_b).mT
        torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)
        assert (out - expected).norm() < 0.1 * expected.norm()


def test_products_by_int8_mm():
    x, weight = randn(40, 130, spread=1), randn(130, 24, spread=1)
    (a, scale_a), (b, scale_b) = (
        quantize.per_row(x, torch.int8),
        quantize.per_column(weight, torch.int8),
    )
    out = cutlass_api.int8_mm(a, b, scale_a, scale_b, out_dtype=torch.float32)
    expected = x.double() @ weight.double()
    assert (out - expected).norm() < 0.02 * expected.norm()
    mixed = cutlass_api.mixed_mm(x.half(), b, scale_b, torch.float32)
    assert (mixed - expected).norm() < 0.02 * expected.norm()


# Traces and refusals.


@kinds
def test_opcheck(kind):
    x = randn(130, 140)
    # torch compares no float8 tensors.
    opcheck(OPS.quantize.default, (x, torch.int8, KINDS[kind][1]))
    opcheck(OPS.quantize.default, (x.mT, torch.int8, KINDS[kind][1]))


def test_fake_tensors():
    x = randn(130, 300, torch.bfloat16)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        for view, (_, extents) in itertools.product(VIEWS.values(), KINDS.values()):
            real = view(x)
            expected = OPS.quantize(real, torch.float8_e5m2, extents)
            found = OPS.quantize(mode.from_tensor(real), torch.float8_e5m2, extents)
            for one, other in zip(found, expected, strict=True):
                assert (one.shape, one.stride(), one.dtype) == (
                    other.shape,
                    other.stride(),
                    other.dtype,
                )


def test_compiled():
    def layer(x, weight, scale_b):
        a, scale_a = quantize.per_row(x)
        return cutlass_api.scaled_mm(a, weight, scale_a, scale_b)

    b, scale_b = quantize.per_row(randn(24, 64))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for rows in (3, 40):
        args = (randn(rows, 64), b.t(), scale_b.t())
        assert torch.equal(compiled(*args), layer(*args))


X = randn(4, 8)
REFUSALS = {
    r"the input has shape \[4, 8, 1\]; pass a matrix": lambda: quantize.per_row(X[:, :, None]),
    r"the input dtype is torch.float64; pass one of torch.float32": lambda: quantize.per_tensor(
        X.double()
    ),
    r"the output dtype is torch.uint8; pass one of .*int8": lambda: quantize.per_row(
        X, torch.uint8
    ),
    r"the output dtype is torch.float8_e4m3fnuz": lambda: quantize.per_column(
        X, torch.float8_e4m3fnuz
    ),
    r"block is \(1, 64\); pass one of \(1, 128\)": lambda: quantize.per_block(X, block=(1, 64)),
}


@pytest.mark.parametrize("message", REFUSALS)
def test_refusals(message):
    with pytest.raises(ValueError, match=f"^cutlass_api::quantize: {message}"):
        REFUSALS[message]()


def test_gradients_are_refused():
    with pytest.raises(RuntimeError, match=r"cutlass_api::quantize has no derivative"):
        quantize.per_row(X.clone().requires_grad_())
    with torch.no_grad():
        quantize.per_row(X.clone().requires_grad_())


def test_the_module_imports_torch_when_it_is_used():
    script = """
        import sys, cutlass_api
        print("torch" in sys.modules)
        print(cutlass_api.quantize.per_row.__name__, "torch" in sys.modules)
    """
    assert run_python(script).splitlines() == ["False", "per_row True"]


# Kernels.

#: Shapes for all kinds of scales.
SHAPES = [(1, 1), (5, 8), (37, 131), (130, 304)]
#: Shapes for the other tiles of a kind: rows of a CTA and of several tiles, and so on.
LONG = [
    ("per_row", (3, 2048)),
    ("per_row", (2, 9000)),
    ("per_row", (1, 70000)),
    ("per_column", (2200, 16)),
    ("per_column", (2100, 9)),
    ("per_tensor", (5, 8192)),
]
PROBLEMS = [*itertools.product(KINDS, SHAPES), *LONG]


def outcome(result):
    """The bits of a result, with one pattern for NaN."""
    return [tensor.float().nan_to_num(nan=-1e30, posinf=-2e30) for tensor in result]


def compare(x, output, extents, run, where):
    """Compares a kernel with the CPU, to the bit. ``run``: ``OPS.quantize`` by the kernel."""
    expected = OPS.quantize(x, output, extents)
    found = [tensor.cpu() for tensor in run(x, output, extents)]
    for one, other in zip(outcome(found), outcome(expected), strict=True):
        assert one.stride() == other.stride() and torch.equal(one, other), where


def special(dtype):
    x = randn(7, 256, dtype)
    x[0, 3], x[1, 5], x[2, 6], x[2, 7] = NAN, INF, -INF, NAN
    x[3] = 0
    x[4] = 1e-7 if dtype is torch.float16 else 1e-39
    x[5] = torch.finfo(dtype).max
    x[5, ::3] *= -1
    return x


def check_kernels(run, input, output):
    """Every group, tile and view of these types."""
    for kind, shape in PROBLEMS:
        compare(randn(*shape, input), output, KINDS[kind][1], run, (kind, shape))
    for (view, make), (name, (_, extents)) in itertools.product(VIEWS.items(), KINDS.items()):
        compare(make(randn(33, 272, input)), output, extents, run, (view, name))
    for name, (_, extents) in KINDS.items():
        compare(special(input), output, extents, run, ("special", name))


def check_in_emulator(input, output):
    """For a process of ``stand_in.run(..., emulated=True)``."""
    from stand_in.emulated import operand

    program, compute = _quantize.program, _quantize.compute

    class Emulated:
        def __init__(self, *key):
            self.kernel = program(*key)

        def launch(self, args, grid):
            self.kernel.launch(tuple(map(operand, args)), grid)

    def launch(input, out, scales, block):
        out.view(torch.uint8).fill_(0x55)
        scales.fill_(7)
        _quantize.launch(input, out, scales, block)

    def run(*args):
        _quantize.program, _quantize.compute = Emulated, launch
        try:
            return OPS.quantize(*args)
        finally:
            _quantize.program, _quantize.compute = program, compute

    check_kernels(run, getattr(torch, input), getattr(torch, output))
    print("done")


@pytest.mark.skipif(not shutil.which("cargo"), reason="needs cargo for the emulator")
@pytest.mark.parametrize("input", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("output", ["float8_e4m3fn", "float8_e5m2", "int8"])
def test_kernels_in_the_emulator(input, output):
    script = "import stand_in.emulated, test_quantize\n"
    script += f"test_quantize.check_in_emulator({input!r}, {output!r})"
    assert stand_in.run(script, emulated=True) == "done\n"


@pytest.mark.gpu
@inputs
@outputs
def test_kernels_on_a_gpu(input, output):
    def run(x, *rest):
        # A copy with the strides of x.
        storage = torch.as_strided(x, (x.untyped_storage().nbytes() // x.itemsize,), (1,), 0)
        there = storage.cuda().as_strided(x.shape, x.stride(), x.storage_offset())
        return OPS.quantize(there, *rest)

    check_kernels(run, input, output)


@pytest.mark.gpu
@kinds
def test_large_matrices_and_graphs_on_a_gpu(kind):
    function, extents = KINDS[kind]
    x = torch.randn(8192, 5120, device="cuda", dtype=torch.bfloat16)
    compare(x.cpu(), torch.float8_e4m3fn, extents, lambda a, *rest: OPS.quantize(x, *rest), kind)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = function(x, torch.float8_e4m3fn)
    x.mul_(2)
    graph.replay()
    for one, other in zip(captured, function(x, torch.float8_e4m3fn), strict=True):
        assert torch.equal(one.float(), other.float())


def programs():
    """The functions of kernels/quantize.cuh that any matrix needs, and their threads."""
    found = set()

    class Recorder:
        def __init__(self, name, threads):
            found.add((name, threads))

        def launch(self, args, grid):
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_quantize, "program", Recorder)
        patch.setattr(_quantize, "compute", _quantize.launch)
        for input, output, (kind, shape) in itertools.product(INPUTS, OUTPUTS, PROBLEMS):
            for view in ("rows", "sliced", "padded"):
                x = VIEWS[view](torch.empty(shape, dtype=input))
                OPS.quantize(x, output, KINDS[kind][1])
    return sorted(found)


@pytest.mark.skipif(not cuobjdump(), reason="needs cuobjdump of the package nvidia-cuda-cuobjdump")
@pytest.mark.usefixtures("cache_directory")
@pytest.mark.parametrize("cc", [80, 90])
def test_no_register_spills(cc, tmp_path):
    # Conversions differ between output types, and registers hardly.
    sample = [key for key in programs() if not ("e5m2" in key[0] and "f32" not in key[0])]
    assert len(sample) > 60
    for name, threads in sample:
        program = _quantize.program(name, threads).compile(cc=cc)
        assert program.log == "", name
        assert spilled_bytes(program, tmp_path) == 0, name
