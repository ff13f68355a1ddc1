"""`python -m benchmarks compile` at small extents on the CPU, and `tensor_parallel`."""

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from cutlass_api.bench import compiling
from cutlass_api.bench import options as types
from cutlass_api.bench.generated_code import called_kernels
from nvidia_cutlass_stub.releases import NVGEMM
from support import benches
from support.benches import run
from torch.nn import functional

from benchmarks import cases, methods, models
from benchmarks import compile as command

EXTENTS = cases.Extents(64, 128, 192, 4, 2, ((3, 128, 64), (100, 64, 96)))
CASE = cases.Case("mlp", (4,), 1)


@contextmanager
def integration(enabled) -> Iterator[None]:
    """Replaces `cutlass_api.inductor` by a module with this context manager."""
    module = ModuleType("cutlass_api.inductor")
    module.enabled = enabled
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cutlass_api.inductor", module)
        yield


def options(**others) -> methods.Options:
    return methods.Options(
        **{"device": "cpu", "mode": "default", "extents": EXTENTS, "rounds": 3} | others
    )


def table(rows) -> dict[str, str]:
    """The cells of the first row by title."""
    header, cells = command.Compile().table(rows)
    return dict(zip(header, cells[0], strict=True))


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> tuple[cases.Row, list[str], Path]:
    """A row, the steps that were logged, and the folder of generated code."""
    steps, entered = [], []
    code = tmp_path_factory.mktemp("code")

    @contextmanager
    def enabled() -> Iterator[None]:
        entered.append("ours")
        yield

    with integration(enabled):
        (row,) = methods.measure([CASE], options(code=code), steps.append)
    assert entered == ["ours"]
    return row, steps, code


def test_a_row_has_every_method(measured) -> None:
    row, steps, code = measured
    assert row.failures == {} and row.notes == []
    assert set(row.microseconds) == set(row.turns) == set(row.host) == set(cases.METHODS)
    assert all(time > 0 for time in row.microseconds.values())
    assert all(len(turns) == 3 for turns in row.turns.values())
    for values in (row.compile_seconds, row.errors, row.kernels):
        assert set(values) == {"compiled", "again", "ours"}
    # Compiled code of its own for each method.
    assert all(seconds > 0.1 for seconds in row.compile_seconds.values())
    assert all(error < 2e-2 for error in row.errors.values())
    assert all(cases.kinds(calls) == (0, 3, 0) for calls in row.kernels.values())
    assert row.ratio == row.microseconds["compiled"] / row.microseconds["ours"]
    compiled = ("compiled", "again", "ours")
    assert [step.split(",")[0] for step in steps] == [f"mlp 4: {each}" for each in compiled]
    assert {file.name for file in code.iterdir()} == {f"mlp_4_{each}.py" for each in compiled}
    cells = table([row])
    assert cells.pop("added us") == "", "NVGEMM has a model of its own"
    assert all(cells.values()) and cells["ours+ATEN+Triton"] == "0+3+0"


def test_rows_are_written_and_read(measured, tmp_path: Path) -> None:
    row = measured[0]
    path = tmp_path / "compile.json"
    command.Compile().write(path, {"device": "a GPU"}, [row])
    assert command.read_rows(str(path)) == {CASE: replace(row, size=[4])}
    read = json.loads(path.read_text())
    assert read["device"] == "a GPU" and read["means"]["mlp"]["ratio"] == pytest.approx(row.ratio)


def test_an_earlier_run_replaces_torch(measured) -> None:
    earlier = measured[0]
    with integration(nullcontext):
        (row,) = methods.measure([CASE], options(baseline={CASE: earlier}))
    for method in ("compiled", "again"):
        assert row.microseconds[method] == earlier.microseconds[method]
        assert row.compile_seconds[method] == earlier.compile_seconds[method]
    assert set(row.turns) == {"eager", "ours"}
    assert row.notes == ["compiled and again are from an earlier run"]


def test_a_failure_leaves_the_other_methods_and_rows(capfd) -> None:
    class Refused(Exception):
        pass

    def enabled() -> None:
        raise Refused("no kernels\nmore")

    odd = cases.Case("llama", (0, 0), 1)
    with integration(enabled):
        rows = list(methods.measure([odd, CASE], options(repeat_torch=False)))
    assert rows[0].failures["eager"].startswith("ValueError: ") and not rows[0].microseconds
    assert rows[1].failures == {"ours": "Refused: no kernels"}
    assert set(rows[1].microseconds) == {"eager", "compiled"}
    assert "Refused: no kernels" in capfd.readouterr().err
    cells = table(rows[1:])
    assert cells["ours us"] == "failed" and cells["ratio"] == cells["again us"] == ""
    assert command.Compile().summary(rows)["mlp"] == {"rows": 1, "rows without a ratio": 1}


def test_a_wrong_result_is_not_timed(monkeypatch) -> None:
    original = torch.compile

    def doubled(function, **settings):
        # The code of `ours` alone is wrong.
        if not function.__name__.endswith("ours"):
            return original(function, **settings)
        return lambda *inputs: 1.1 * function(*inputs)

    monkeypatch.setattr(torch, "compile", doubled)
    with integration(nullcontext):
        (row,) = methods.measure([CASE], options(repeat_torch=False))
    assert row.errors["ours"] == pytest.approx(0.1, rel=0.1)
    assert row.failures["ours"].startswith("ArithmeticError: relative error 0.1")
    assert set(row.microseconds) == {"eager", "compiled"}


def test_compilation_during_the_timing_is_noticed() -> None:
    @contextmanager
    def enabled() -> Iterator[None]:
        torch._dynamo.reset()
        yield

    with integration(enabled):
        (row,) = methods.measure([CASE], options(repeat_torch=False))
    assert "Dynamo compiled during the timing" in row.failures["eager"]
    assert not row.microseconds


def test_caches_are_kept_in_a_folder(tmp_path: Path) -> None:
    for _ in range(2):
        with integration(nullcontext):
            (row,) = methods.measure([CASE], options(repeat_torch=False, cache=tmp_path))
        # Code from a cache is reported too.
        assert cases.kinds(row.kernels["ours"]) == (0, 3, 0)
    assert {folder.name for folder in (tmp_path / "mlp_4").iterdir()} == {"compiled", "ours"}


CODE = '''
async_compile.triton('triton_tem_fused_mm_1', """
def triton_tem_fused_mm_1(a):
    cutlass_api.arguments.GemmArguments(a)
""")
import cutlass_api
from torch._inductor.select_algorithm import extern_kernels
class Runner:
    def call(self, args):
        extern_kernels.mm(arg0, reinterpret_tensor(arg1, (4, 8), (1, 4), 0), out=buf0)
        triton_poi_fused_add_0.run(buf0, 32, stream=stream0)
        triton_tem_fused_mm_1.run(buf0, arg2, buf1, 1, 1, 1, stream=stream0)
        triton_tem_fused_mm_1.run(buf1, arg2, buf2, 1, 1, 1, stream=stream0)
        buf3 = torch.ops.cutlass_api.addmm.default(buf2, arg3, arg4)
        extern_kernels.cutlass_api_mm_sm90(buf3, arg5, out=buf4)
        nv_universal_gemm_mm_0.run(buf4, arg6, buf5, stream=stream0)
        return (buf5, )
'''


def test_the_kernels_of_generated_code_are_counted() -> None:
    calls = called_kernels(CODE)
    assert calls == {
        "extern_kernels.mm": 1,
        "triton_tem_fused_mm_1": 2,
        "torch.ops.cutlass_api.addmm.default": 1,
        "extern_kernels.cutlass_api_mm_sm90": 1,
        "nv_universal_gemm_mm_0": 1,
    }
    assert cases.kinds(calls) == (3, 1, 2)


def test_one_wrong_row_is_an_error() -> None:
    expected = torch.randn(10_000, 8)
    out = expected.clone()
    assert compiling.largest_error(out, expected) == 0
    out[7] *= 1.5
    assert compiling.largest_error([expected, out], [expected, expected]) == pytest.approx(0.5)
    out[9] = torch.nan
    assert not compiling.largest_error(out, expected) <= compiling.ERROR_LIMIT


def test_the_rows_of_each_model() -> None:
    sizes = {
        model: [case.size for case in cases.cases([model])] for model in ("mlp", "llama", "nvgemm")
    }
    assert sizes["mlp"] == sizes["nvgemm"] == [(1,), (4,), (16,), (64,), (256,), (2048,)]
    assert sizes["llama"] == [(1,), (16,), (512,)]
    assert cases.cases(["epilogue"], [5])[0] == cases.Case("epilogue", (16, 11008, 4096), 1)
    assert cases.cases(["llama", "gelu_mlp"], [5], 2) == [
        cases.Case("llama", (5,), 1),
        cases.Case("gelu_mlp", (5,), 2),
    ]


@pytest.mark.parametrize("model", cases.MODELS)
def test_models_compute_their_formula(model: str) -> None:
    if model == "llama":
        pytest.importorskip("transformers")
    with torch.no_grad():
        for case in cases.cases([model], [5], 3, EXTENTS):
            work = models.build(case, EXTENTS, "cpu")
            out = work.module(*work.other_inputs)
            tensors = out if isinstance(out, list) else [out]
            assert all(each.dtype == torch.bfloat16 and each.isfinite().all() for each in tensors)
            assert work.blocks == {"llama": 1, "epilogue": len(tensors)}.get(model, 3)
            expected = formula(model, work)
            assert compiling.largest_error(out, expected) < 2e-2


def formula(model: str, work: models.Workload):
    """The output in float32, written without the model's classes."""
    at = {name: value.float() for name, value in work.module.named_parameters()}
    x, *tables = (each.float() for each in work.other_inputs) if work.other_inputs else (None,)
    if model == "epilogue":
        return [
            functional.gelu(at[f"x.{i}"] @ at[f"weight.{i}"].T + at[f"bias.{i}"])
            + at[f"residual.{i}"]
            for i in range(work.blocks)
        ]
    if model == "llama":
        return work.module.float()(x, *tables)
    for i in range(work.blocks):
        if model == "gelu_mlp":
            inner = functional.gelu(x @ at[f"{i}.fc1.weight"].T + at[f"{i}.fc1.bias"])
            x = x + inner @ at[f"{i}.fc2.weight"].T + at[f"{i}.fc2.bias"]
        else:
            inner = functional.silu(x @ at[f"{i}.gate.weight"].T) * (x @ at[f"{i}.up.weight"].T)
            x = x + inner @ at[f"{i}.down.weight"].T
    return x


NVGEMM_IS_OURS = NVGEMM.holds(torch.__version__)


@pytest.mark.skipif(NVGEMM_IS_OURS, reason="tests the refusal by torch after 2.13")
def test_nvgemm_of_another_torch_is_refused() -> None:
    (row,) = methods.measure(cases.cases(["nvgemm"], [4], 1, EXTENTS), options())
    for method in ("added", "ours"):
        assert f"use torch {NVGEMM}" in row.failures[method]
    assert set(row.microseconds) == {"eager", "compiled", "again"}


@pytest.mark.skipif(not NVGEMM_IS_OURS, reason="NVGEMM imports cutlass_api until torch 2.13")
def test_nvgemm_meets_no_addmm() -> None:
    (row,) = methods.measure(cases.cases(["nvgemm"], [4], 2, EXTENTS), options())
    # The CPU has ATEN alone. NVGEMM has candidates for `mm`, but none for `addmm`.
    assert row.kernels["ours"] == {"extern_kernels.mm": 6}
    assert set(row.microseconds) == set(cases.NVGEMM_METHODS)
    assert row.ratio == row.microseconds["eager"] / row.microseconds["ours"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--models", "mlp,bert"], "there is no model 'bert'; choose from mlp, gelu_mlp, llama"),
        (["--tokens", "1,0"], "'0' must be a positive integer"),
        (["--tokens", "1,,2"], "'' must be a positive integer"),
        (["--blocks", "two"], "'two' must be a positive integer"),
        (["--baseline-json", "missing.json"], "missing.json cannot be read: No such file"),
        (["--baseline-json", __file__], "is no JSON"),
        (["--cache", __file__], "is not a folder: File exists"),
        (["--json", "/missing/rows.json"], "the folder /missing does not exist; create it"),
    ],
)
def test_wrong_options_are_refused_first(capsys, monkeypatch, arguments, expected: str) -> None:
    monkeypatch.setattr(types, "device", lambda: pytest.fail("it went on to measure"))
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "compile", *arguments, device=None)
    assert ended.value.code == 2
    assert f"argument {arguments[0]}: " in (said := capsys.readouterr().err) and expected in said


def test_the_command_writes_each_row(capsys, monkeypatch, tmp_path: Path) -> None:
    path = tmp_path / "compile.json"
    fine = cases.Row("mlp", (4,), 2, {"eager": 3.0, "compiled": 2.0, "ours": 1.0})
    failed = cases.Row("mlp", (8,), 2, failures={"ours": "no kernels"}, notes=["odd"])

    def measure(of, options, log):
        assert of == [cases.Case("mlp", (4,), 2), cases.Case("mlp", (8,), 2)]
        assert not options.repeat_torch and options.rounds == methods.QUICK_ROUNDS
        yield fine
        assert [row.size for row in command.read_rows(str(path)).values()] == [[4]]
        yield failed

    monkeypatch.setattr(methods, "measure", measure)
    arguments = ["--models", "mlp", "--tokens", "4,8", "--quick", "--json", str(path)]
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "compile", *arguments)
    assert ended.value.code == 1
    printed = capsys.readouterr().out
    assert "mlp 8: ours failed: no kernels" in printed and "mlp 8: odd" in printed
    assert "mlp: rows 2, rows without a ratio 1, ratio 2, least ratio 2" in printed
    read = json.loads(path.read_text())
    assert read["device"] == "a GPU" and read["development"] is True and len(read["rows"]) == 2


@pytest.mark.gpu
def test_a_compiled_model_on_a_gpu() -> None:
    with integration(nullcontext):
        (row,) = methods.measure(
            [CASE], methods.Options(extents=EXTENTS, rounds=3, repeat_torch=False)
        )
    assert row.failures == {} and row.notes == []
    assert set(row.microseconds) == {"eager", "compiled", "ours"}


def test_a_tensor_parallel_mlp_on_the_cpu(tmp_path: Path, monkeypatch) -> None:
    others = ["--device", "cpu", "--tokens", "1,3", "--extents", "32,64", "--rounds", "2"]
    others += ["--json", tmp_path / "rows.json"]
    ended = benches.ended("benchmarks", "tensor_parallel", *others)
    assert ended.returncode == 0, ended.stderr
    assert "MLP 32 x 64 in bfloat16, 2 ranks (the CPU)" in ended.stdout
    document = json.loads((tmp_path / "rows.json").read_text())
    rows = document["rows"]
    assert [row["tokens"] for row in rows] == [1, 3] and all(row["kernel"] > 0 for row in rows)
    ratios = [row["torch"] / row["ours"] for row in rows]
    assert document["summary"]["torch / ours"] == pytest.approx(math.sqrt(math.prod(ratios)))
    assert document["summary"]["lowest"] == min(ratios)
    with pytest.raises(SystemExit, match="the second a multiple of 2 ranks"):
        run(monkeypatch, "tensor_parallel", "--device", "cpu", "--extents", "32,63")
