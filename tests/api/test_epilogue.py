"""Fused epilogues without a GPU: CPU reference results, kernels that fuse, refused operands."""

import cutlass_api
import numpy
import pytest
import torch
from cutlass_api.arguments import (
    ElementwiseArguments,
    EpilogueArguments,
    GemmArguments,
    GroupedGemmArguments,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from support import memory
from support.epilogues import (
    CASES,
    FULL,
    ONE,
    ROW,
    assert_close,
    bias_gelu,
    dequantize,
    expected,
    fake_fused,
    fused,
    integer_arithmetic,
    linear,
    operands_of,
    plain,
    shape_of,
)
from support.group_rows import CASES as CASES_OF_GROUPS
from support.group_rows import GroupRows
from support.helpers import (
    DTYPES,
    INTEGERS,
    accumulator_of,
    coarse,
    fake,
    fake_gemm,
    laid_out,
    names,
    run_first,
)


def run_case(case, a, b, out, given, others, accumulator_type=torch.float32):
    args = fused(a, b, out, case.function, accumulator_type, **given, **others)
    run_first(args)
    product = (a.double() @ b.double()).to(accumulator_type)
    wanted = expected(case.function, product, given, accumulator_type)
    assert_close(out, wanted["D"], f"D of {case.name}")
    for name, tensor in others.items():
        assert_close(tensor, wanted[name], f"{name} of {case.name}")


# Results of the reference.


@pytest.mark.parametrize("shape", [(17, 9), (2, 5, 130)], ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_functions_compute_what_torch_does(case, shape):
    *batch, m, n = shape
    a, b, out = coarse(*batch, m, 12), coarse(*batch, 12, n), torch.full(shape, torch.nan)
    others = {name: torch.full(shape, torch.nan) for name in case.others}
    run_case(case, a, b, out, operands_of(case, shape, torch.float32), others)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_operands_and_outputs_of_every_dtype(dtype):
    case = next(case for case in CASES if case.name == "aux_store")
    a, b = coarse(11, 8, dtype=torch.float16), coarse(8, 13, dtype=torch.float16)
    given = operands_of(case, (11, 13), dtype)
    other = torch.zeros(11, 13, dtype=dtype)
    if dtype in INTEGERS:
        given = given | {"C": given["C"].abs().to(dtype)}
        args = fused(a, b, torch.zeros(11, 13), case.function, **given, F=other)
        run_first(args)
        wanted = expected(case.function, a.float() @ b.float(), given)["F"]
        # Truncated towards zero, and wrapped where that is too large: the low bits of an int32.
        assert torch.equal(other, wanted.to(torch.int32).to(dtype))
    else:
        run_case(case, a, b, torch.zeros(11, 13), given, {"F": other})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_the_main_output_in_other_types(dtype):
    a, b, out = coarse(6, 7, dtype=dtype), coarse(7, 5, dtype=dtype), torch.zeros(6, 5, dtype=dtype)
    operands = operands_of(CASES[1], (6, 5), dtype)
    run_case(CASES[1], a, b, out, operands, {}, accumulator_of(dtype))


def test_integer_accumulators():
    a, b = coarse(6, 40, dtype=torch.int8), coarse(40, 5, dtype=torch.int8)
    accum = (a.long() @ b.long()).int()
    row, column = torch.rand(5), torch.rand(6, 1)
    out = torch.zeros(6, 5, dtype=torch.float16)
    run_first(fused(a, b, out, dequantize, torch.int32, row=row, column=column))
    assert_close(out, accum * row * column)
    # Operations among integers stay integers, and wrap like torch's.
    out, other = torch.zeros(6, 5, dtype=torch.int8), torch.zeros(6, 5, dtype=torch.int32)
    c = torch.randint(-(2**31), 2**31, (6, 5)).int()
    run_first(fused(a, b, out, integer_arithmetic, torch.int32, C=c, offset=2**31 - 1, E=other))
    wanted = expected(integer_arithmetic, accum, {"C": c, "offset": 2**31 - 1})
    assert torch.equal(other, wanted["E"])
    assert torch.equal(out, wanted["D"].to(torch.int8))
    with pytest.raises(ValueError, match="offset is 2147483648, which exceeds int32"):
        fused(a, b, out, integer_arithmetic, torch.int32, C=c, offset=2**31, E=other)
    with pytest.raises(ValueError, match=f"offset: {2**70} does not fit into a 64-bit integer"):
        fused(a, b, out, integer_arithmetic, torch.int32, C=c, offset=2**70, E=other)


LARGE = 2**24 + 1  # no float32


@pytest.mark.parametrize(
    "expression, wanted",
    [
        (f"accum * 0 + {LARGE}", LARGE),
        ("accum * 0 + (2**24 + 1)", LARGE),
        ("accum * 0 + -2147483648", -(2**31)),
        ("accum * 0 + (2**31 - 1)", 2**31 - 1),
        ("accum * 0 + 2**31", None),
        ("2147483647 * (accum + 2)", -6),
        ("accum * 0 + -(-2147483648)", None),
        ("accum + 9223372036854775807", None),
    ],
)
def test_numbers_behind_integer_accumulators(expression, wanted):
    ones, out = torch.ones(4, 4, dtype=torch.int8), torch.zeros(4, 4, dtype=torch.int32)
    source = f"def f(accum):\n    D = {expression}\n    return D"
    if wanted is None:
        message = r"a number in the epilogue is \d+, which exceeds int32"
        with pytest.raises(ValueError, match=message):
            fused(ones, ones, out, source, torch.int32)
    else:
        run_first(fused(ones, ones, out, source, torch.int32))
        assert (out == wanted).all()
        on_gpu = fake_fused(source, dtype=torch.float16)
        kernel = cutlass_api.get_kernels(on_gpu, cc=90)[0]
        assert kernel.compile(on_gpu, cc=90).compiled_obj.log == ""
    # With a float32 accumulator, the result is a float.
    ones, out = torch.ones(4, 4), torch.zeros(4, 4)
    run_first(fused(ones, ones, out, source))
    accum = torch.full((4, 4), 4.0)
    assert torch.equal(out, eval(expression, {"accum": accum, "where": torch.where}).float())


def test_numbers_of_numpy():
    ones, out = torch.ones(4, 4, dtype=torch.int8), torch.zeros(4, 4, dtype=torch.int32)
    source = "def f(accum, x):\n    D = accum * 0 + x\n    return D"
    for number, wanted in ((numpy.int64(LARGE), LARGE), (numpy.float32(2.75), 2)):
        run_first(fused(ones, ones, out, source, torch.int32, x=number))
        assert (out == wanted).all()
    with pytest.raises(ValueError, match="x is 2147483648, which exceeds int32"):
        fused(ones, ones, out, source, torch.int32, x=numpy.int64(2**31))


@pytest.mark.parametrize("layout", ["ttt", "ttn", "nnt", "tnn"])
def test_layouts_and_views(layout):
    a, b = laid_out(coarse(9, 6), layout[0]), laid_out(coarse(6, 14), layout[1])
    out = laid_out(torch.full((9, 14), torch.nan), layout[2])
    parent = torch.full((20, 40), torch.nan)
    strided = parent[1:19:2, 3:31:2]
    repeated = coarse(1, 14).expand(9, 14)
    case = next(case for case in CASES if case.name == "aux_store")
    for c in (laid_out(coarse(9, 14), "n"), coarse(18, 28)[::2, ::2], repeated):
        run_case(case, a, b, out, {"C": c, "alpha": 2.0}, {"F": strided})
        assert parent[0].isnan().all()
        assert parent[:, 0].isnan().all()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_shapes_dtypes_and_broadcasts(data):
    def pick(values):
        return data.draw(st.sampled_from(values))

    batch = pick([(), (1,), (3,)])
    shape = (*batch, pick([1, 2, 7, 130]), pick([1, 3, 8, 129]))
    k = pick([0, 1, 5])
    dtype = pick([torch.float16, torch.bfloat16, torch.float32])
    case = pick(CASES)
    a, b = coarse(*batch, shape[-2], k, dtype=dtype), coarse(*batch, k, shape[-1], dtype=dtype)
    given = {}
    for name, kind in case.tensors.items():
        kind = pick([kind, ONE, ROW, FULL])
        tensor = coarse(*shape_of(kind, shape), dtype=pick([dtype, torch.float32]))
        given[name] = laid_out(tensor, pick("tn") if kind == FULL else "t")
        if name == "scale":
            given[name] = given[name].abs() + 1
    others = {
        name: laid_out(torch.zeros(shape, dtype=pick([dtype, torch.float32])), pick("tn"))
        for name in case.others
    }
    out = laid_out(torch.zeros(shape, dtype=dtype), pick("tn"))
    run_case(case, a, b, out, given | case.numbers, others)


def test_numpy_and_numbers_of_every_kind():
    a = numpy.ones((4, 4), dtype=numpy.float32)
    for alpha in (2, 2.0, True, numpy.float32(2), numpy.int64(2)):
        out = numpy.zeros((4, 4), dtype=numpy.float32)
        run_first(fused(a, a, out, linear, C=a, alpha=alpha, beta=numpy.float64(1)))
        assert (out == 4 * float(alpha) + 1).all()


def test_nan_goes_through_relu_and_clamp():
    def function(accum):
        E = torch.clamp(accum, -1, 1)
        D = torch.relu(accum)
        return D, E

    a = torch.tensor([[torch.nan, 1.0], [0.0, -3.0]])
    out, other = torch.zeros(2, 2), torch.zeros(2, 2)
    run_first(fused(a, torch.eye(2), out, function, E=other))
    wanted = expected(function, torch.tensor([[torch.nan, torch.nan], [0.0, -3.0]]), {})
    torch.testing.assert_close(out, wanted["D"], equal_nan=True)
    torch.testing.assert_close(other, wanted["E"], equal_nan=True)


def test_in_place():
    a, b, c = coarse(5, 6), coarse(6, 7), coarse(5, 7)
    before = c.clone()
    run_first(fused(a, b, c, linear, C=c, alpha=1.0, beta=2.0))
    assert_close(c, a @ b + 2 * before)


def test_where_d_is_not_out_d_is_written():
    a, c = torch.eye(3), torch.ones(3, 3)
    out, d = torch.full((3, 3), 7.0), torch.zeros(3, 3, dtype=torch.float16)
    epilogue = EpilogueArguments(linear, C=c, alpha=2.0, beta=1.0, D=d)
    run_first(GemmArguments(a, a, out, "float32", epilogue))
    assert torch.equal(d, (2 * a + 1).half())
    assert (out == 7).all()


def test_grouped_and_elementwise_operations():
    a, b, c = coarse(10, 6), coarse(3, 6, 5), coarse(10, 5)
    offsets = torch.tensor([4, 4, 9], dtype=torch.int32)
    out = torch.full((10, 5), 7.0)
    epilogue = EpilogueArguments(linear, C=c, alpha=2.0, beta=1.0, D=out)
    run_first(GroupedGemmArguments(a, b, out, "float32", offsets, epilogue))
    assert_close(out[:4], 2 * (a[:4] @ b[0]) + c[:4])
    assert_close(out[4:9], 2 * (a[4:9] @ b[2]) + c[4:9])
    assert (out[9] == 7).all()
    x, y, out = coarse(4, 5), coarse(4, 5), torch.zeros(4, 5)
    bias = coarse(5)
    run_first(ElementwiseArguments(x, y, out, EpilogueArguments(bias_gelu, bias=bias, D=out)))
    assert_close(out, torch.nn.functional.gelu(x + y + bias))


@pytest.mark.parametrize("seed", range(len(CASES_OF_GROUPS)))
def test_rows_of_groups(seed, monkeypatch):
    monkeypatch.setattr(memory, "DEVICE", torch.device("cpu"))
    trial = GroupRows(*CASES_OF_GROUPS[seed], seed)
    (kernel,) = cutlass_api.get_kernels(trial.args)
    trial.check(kernel)


@pytest.mark.parametrize("shape", [(3, 5), (2, 1, 5), (3, 10, 5), (3, 1, 4), (1, 3, 5)], ids=str)
def test_shapes_that_are_no_rows_of_groups(shape):
    offsets, out = torch.tensor([4, 4, 9], dtype=torch.int32), torch.zeros(10, 5)
    epilogue = EpilogueArguments(bias_gelu, bias=torch.zeros(shape), D=out)
    message = r"bias with shape .* a row for each group with shape \[3, 1, 5\]"
    with pytest.raises(ValueError, match=message):
        GroupedGemmArguments(coarse(10, 6), coarse(3, 6, 5), out, "float32", offsets, epilogue)


# The kernels that fuse an epilogue.


def test_every_family_offers_kernels():
    args = fake_fused()
    plain_args = fake_gemm()
    with_epilogue, without = (cutlass_api.get_kernels(each, cc=90) for each in (args, plain_args))
    stem = [name.rsplit("_epilogue_", 1)[0] for name in names(with_epilogue)]
    left_out = [kernel.metadata.design for kernel in without if names([kernel])[0] not in stem]
    for design in left_out:
        sharers = 1 if design.schedule == "pingpong" else design.consumers
        sums = design.tile_shape[0] * design.tile_shape[1] // (128 * sharers)
        assert sums > 176, "only what has too few registers left"
    assert left_out
    assert set(stem) < set(names(without))
    assert set(map(type, with_epilogue)) == set(map(type, without))
    # One consumer's epilogue runs under the other's products.
    large = cutlass_api.get_kernels(fake_fused(m=4096, n=4096, k=4096), cc=90)[0]
    assert large.metadata.design.schedule == "pingpong"
    for kernel in with_epilogue:
        assert kernel.supports(args)
        assert not kernel.supports(plain_args)
        assert kernel.metadata.supports(args)
        assert not kernel.metadata.supports(plain_args)
        assert "alpha * accum" in kernel.metadata.epilogue.epilogue
    for kernel in without:
        assert "it fuses none" in str(kernel.supports(args).error)
        assert not kernel.metadata.supports(args)
        assert kernel.metadata.epilogue is None


def test_a_kernel_is_known_by_its_epilogue_and_its_types():
    first = cutlass_api.get_kernels(fake_fused(), cc=90)[0]
    # Other numbers, shapes and strides keep the kernel; other types and functions need another.
    wide = fake(512, 512)[:256, 128:384]
    assert cutlass_api.get_kernels(fake_fused(alpha=5, C=wide, beta=-1.0), cc=90)[0] is first
    other = fake_fused(operand=torch.float32)
    for args in (other, fake_fused(plain)):
        assert cutlass_api.get_kernels(args, cc=90)[0] is not first
        reason = "it fuses the epilogue D = ((alpha * accum) + (beta * C))"
        assert reason in str(first.supports(args).error)
        with pytest.raises(ValueError, match="does not support the provided arguments"):
            first.run(args, assume_supported_args=False)
    assert first not in cutlass_api.get_kernels()
    one_more = fake_fused(beta=fake(1))
    assert cutlass_api.get_kernels(one_more, cc=90)[0] is not first


# Each kind of C, its text in the epilogue's description, and the other kinds that a kernel serves.
LYING = {
    "full": (lambda: fake(256, 256), "C: float16)", {"row"}),
    "columns": (lambda: fake(256, 256, layout="n"), "C: float16 by columns)", {"column"}),
    "row": (lambda: fake(256), "C: float16 for each column)", set()),
    "every second": (lambda: fake(512)[::2], "C: float16 for each column)", {"row", "element"}),
    "column": (lambda: fake(256, 1), "C: float16 for each row)", set()),
    "element": (lambda: fake(1, 1), "C: float16 for all)", set()),
    "strided": (
        lambda: fake(256, 512)[:, ::2],
        "C: float16 with strides)",
        {"full", "columns", "row", "every second", "column", "element"},
    ),
}


def test_a_kernel_knows_what_repeats_and_what_lies_side_by_side():
    args = {kind: fake_fused(C=c()) for kind, (c, _, _) in LYING.items()}
    kernels = {kind: cutlass_api.get_kernels(args[kind], cc=90)[0] for kind in LYING}
    assert len({id(kernel) for kernel in kernels.values()}) == len(kernels)
    for kind, (_, said, others) in LYING.items():
        text = kernels[kind].metadata.epilogue.epilogue
        assert said in text.replace(", alpha: a number, beta: a number", "")
        served = {other for other in LYING if kernels[kind].supports(args[other])}
        assert served == {kind} | others, kind
    error = str(kernels["row"].supports(args["full"]).error)
    assert "C: float16 for each column" in error
    with pytest.raises(ValueError, match="does not support the provided arguments"):
        kernels["row"].run(args["full"], assume_supported_args=False)
    restored = cutlass_api.artifact.CompiledArtifact.from_bytes(
        kernels["row"].compile(args["row"], cc=90).to_bytes()
    )
    assert restored.kernel_obj is kernels["row"]


def test_an_operand_of_an_output_with_one_row_is_not_broadcast():
    # A kernel discovered for an output of one row or column serves any number of rows or columns.
    for shape in ((1, 256), (256, 1)):
        args = fake_fused(m=shape[0], n=shape[1], C=fake(*shape))
        kernel = cutlass_api.get_kernels(args, cc=90)[0]
        assert "for" not in kernel.metadata.epilogue.epilogue
        assert "it fuses" not in str(kernel.supports(fake_fused(C=fake(256, 256))).error)
    first = cutlass_api.get_kernels(fake_fused(), cc=90)[0]
    assert first.supports(fake_fused(m=1, C=fake(1, 256)))


def test_a_new_number_compiles_nothing():
    program, again = (
        cutlass_api.get_kernels(args, cc=90)[0].compile(args, cc=90).compiled_obj
        for args in (fake_fused(), fake_fused(alpha=17))
    )
    assert (again.source, again.kernel_name) == (program.source, program.kernel_name)
    assert again.cubin == program.cubin


def test_the_reference_needs_no_compilation_and_can_be_bound():
    a, b, c, out = coarse(5, 6), coarse(6, 7), coarse(5, 7), torch.zeros(5, 7)
    args = fused(a, b, out, linear, C=c, alpha=2.0, beta=1.0)
    kernel = cutlass_api.get_kernels(args)[0]
    on_gpu = cutlass_api.get_kernels(fake_fused(), cc=90)[0].compile(fake_fused(), cc=90)
    for call in (kernel.bind, kernel.run):
        with pytest.raises(TypeError, match="compiled_artifact is a int; pass the result"):
            call(args, 3)
        with pytest.raises(ValueError, match="compiled_artifact is of sm90_gemm"):
            call(args, on_gpu)
    launch = kernel.bind(args, kernel.compile(args))
    launch()
    assert_close(out, 2 * (a @ b) + c)
    c += 1
    launch()
    assert_close(out, 2 * (a @ b) + c)
    other = coarse(5, 7)
    launch(C=other, beta=3)
    assert_close(out, 2 * (a @ b) + 3 * other)
    launch()
    assert_close(out, 2 * (a @ b) + c)
    known = "their epilogue has C, alpha, beta, and D is passed as out"
    wrong = {
        r"C is float32 \[5, 8\] .* bound for float32 \[5, 7\]": {"C": coarse(5, 8)},
        "C was bound as a tensor": {"C": 1.0},
        "beta was bound as a number": {"beta": other},
        f"no operand 'gamma'; {known}": {"gamma": 1.0},
        "no operand 'D'": {"D": out},
    }
    for message, swaps in wrong.items():
        error = TypeError if message.startswith("no operand") else ValueError
        with pytest.raises(error, match=message):
            launch(**swaps)
    plain_args = GemmArguments(a, b, out, "float32")
    with pytest.raises(TypeError, match="the bound arguments have no operand 'C', and no epilogue"):
        cutlass_api.get_kernels(plain_args)[0].bind(plain_args)(C=c)
    moved = c.clone() + 1
    c.data = moved
    kernel.run(args)
    assert_close(out, 2 * (a @ b) + moved)
    c.data = torch.zeros(5, 8)
    with pytest.raises(ValueError, match=r"C with shape \[5, 8\] does not broadcast"):
        kernel.run(args)
    c.data = torch.zeros(5, 7, dtype=torch.float64)
    for assumed in (False, True):
        with pytest.raises(ValueError, match="C: float64"):
            kernel.run(args, assume_supported_args=assumed)


def test_fake_tensors_are_described_and_not_run():
    args = fused(*(fake(4, 4, device="cpu") for _ in range(3)), plain)
    kernel = cutlass_api.get_kernels(args)[0]
    with pytest.raises(ValueError, match="FakeTensor"):
        kernel.run(args)
    real = [torch.ones(4, 4, dtype=torch.float16) for _ in range(3)]
    args = fused(*real, linear, C=fake(4, 4, device="cpu"), alpha=1, beta=1)
    with pytest.raises(ValueError, match="C is a FakeTensor"):
        cutlass_api.get_kernels(args)[0].run(args)


def test_epilogues_of_other_classes_find_no_built_in_kernel():
    a = torch.ones(3, 3)
    args = GemmArguments(a, a, torch.ones(3, 3), "float32", epilogue=object())
    assert cutlass_api.get_kernels(args) == []
    kernel = cutlass_api.get_kernels(GemmArguments(a, a, torch.ones(3, 3), "float32"))[0]
    assert "the epilogue is a object" in str(kernel.supports(args).error)
