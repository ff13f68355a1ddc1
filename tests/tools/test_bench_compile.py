"""`bench compile` at small extents on the CPU: methods, failures, results and options."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType

import pytest
import torch
from cutlass_api import __main__
from cutlass_api._commands import common
from cutlass_api.bench import compile as bench
from cutlass_api.bench import models
from torch.nn import functional

EXTENTS = bench.Extents(64, 128, 192, 4, 2, ((3, 128, 64), (100, 64, 96)))
CASE = bench.Case("mlp", (4,), 1)


@contextmanager
def integration(enabled) -> Iterator[None]:
    """Replaces `cutlass_api.inductor` by a module with this context manager."""
    module = ModuleType("cutlass_api.inductor")
    module.enabled = enabled
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "cutlass_api.inductor", module)
        yield


def options(**others) -> bench.Options:
    return bench.Options(
        **{"device": "cpu", "mode": "default", "extents": EXTENTS, "rounds": 3} | others
    )


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> tuple[bench.Row, list[str], Path]:
    """A row, the steps that were logged, and the folder of generated code."""
    steps, entered = [], []
    code = tmp_path_factory.mktemp("code")

    @contextmanager
    def enabled() -> Iterator[None]:
        entered.append("ours")
        yield

    shown = []
    with integration(enabled):
        (row,) = bench.measure([CASE], options(code=code), shown.append, steps.append)
    assert shown == [row] and entered == ["ours"]
    return row, steps, code


def test_a_row_has_every_method(measured) -> None:
    row, steps, code = measured
    assert row.failures == {} and row.notes == []
    assert set(row.microseconds) == set(row.turns) == set(row.host) == set(bench.METHODS)
    assert all(time > 0 for time in row.microseconds.values())
    assert all(len(turns) == 3 for turns in row.turns.values())
    for values in (row.compile_seconds, row.errors, row.kernels):
        assert set(values) == {"compiled", "again", "ours"}
    # Compiled code of its own for each method.
    assert all(seconds > 0.1 for seconds in row.compile_seconds.values())
    assert all(error < 2e-2 for error in row.errors.values())
    assert all(bench.kinds(calls) == (0, 3, 0) for calls in row.kernels.values())
    assert row.ratio == row.microseconds["compiled"] / row.microseconds["ours"]
    assert [step.split(",")[0] for step in steps] == [
        "mlp 4: compiled",
        "mlp 4: again",
        "mlp 4: ours",
    ]
    names = {f"mlp_4_{method}.py" for method in ("compiled", "again", "ours")}
    assert {file.name for file in code.iterdir()} == names
    cells = dict(zip(bench.HEADER, bench.line(row), strict=True))
    assert cells.pop("added us") == "", "NVGEMM has a model of its own"
    assert all(cells.values()) and cells["ours+ATEN+Triton"] == "0+3+0"


def test_rows_are_written_and_read(measured, tmp_path: Path) -> None:
    row = measured[0]
    path = tmp_path / "compile.json"
    bench.write_json(path, {"device": "a GPU"}, [row])
    assert bench.read_rows(path) == {CASE: row}
    read = json.loads(path.read_text())
    assert read["device"] == "a GPU" and read["means"]["mlp"]["ratio"] == pytest.approx(row.ratio)


def test_an_earlier_run_replaces_torch(measured) -> None:
    earlier = measured[0]
    with integration(nullcontext):
        (row,) = bench.measure([CASE], options(baseline={CASE: earlier}), lambda _: None)
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

    odd = bench.Case("llama", (0, 0), 1)
    with integration(enabled):
        rows = bench.measure([odd, CASE], options(repeat_torch=False), lambda _: None)
    assert rows[0].failures["eager"].startswith("ValueError: ") and not rows[0].microseconds
    assert rows[1].failures == {"ours": "Refused: no kernels"}
    assert set(rows[1].microseconds) == {"eager", "compiled"}
    assert "Refused: no kernels" in capfd.readouterr().err
    cells = dict(zip(bench.HEADER, bench.line(rows[1]), strict=True))
    assert cells["ours us"] == "failed" and cells["ratio"] == cells["again us"] == ""
    assert bench.means(rows)["mlp"] == {"rows": 1, "rows without a ratio": 1}


def test_a_wrong_result_is_not_timed(monkeypatch) -> None:
    original = torch.compile

    def doubled(function, **settings):
        # The code of `ours` alone is wrong.
        if not function.__name__.endswith("ours"):
            return original(function, **settings)
        return lambda *inputs: 1.1 * function(*inputs)

    monkeypatch.setattr(torch, "compile", doubled)
    with integration(nullcontext):
        (row,) = bench.measure([CASE], options(repeat_torch=False), lambda _: None)
    assert row.errors["ours"] == pytest.approx(0.1, rel=0.1)
    assert row.failures["ours"].startswith("ArithmeticError: relative error 0.1")
    assert set(row.microseconds) == {"eager", "compiled"}


def test_compilation_during_the_timing_is_noticed() -> None:
    @contextmanager
    def enabled() -> Iterator[None]:
        torch._dynamo.reset()
        yield

    with integration(enabled):
        (row,) = bench.measure([CASE], options(repeat_torch=False), lambda _: None)
    assert "Dynamo compiled during the timing" in row.failures["eager"]
    assert not row.microseconds


def test_caches_are_kept_in_a_folder(tmp_path: Path) -> None:
    for _ in range(2):
        with integration(nullcontext):
            (row,) = bench.measure(
                [CASE], options(repeat_torch=False, cache=tmp_path), lambda _: None
            )
        # Code from a cache is reported too.
        assert bench.kinds(row.kernels["ours"]) == (0, 3, 0)
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
    calls = bench.called_kernels(CODE)
    assert calls == {
        "extern_kernels.mm": 1,
        "triton_tem_fused_mm_1": 2,
        "torch.ops.cutlass_api.addmm.default": 1,
        "extern_kernels.cutlass_api_mm_sm90": 1,
        "nv_universal_gemm_mm_0": 1,
    }
    assert bench.kinds(calls) == (3, 1, 2)


def test_one_wrong_row_is_an_error() -> None:
    expected = torch.randn(10_000, 8)
    out = expected.clone()
    assert bench.largest_error(out, expected) == 0
    out[7] *= 1.5
    assert bench.largest_error([expected, out], [expected, expected]) == pytest.approx(0.5)
    out[9] = torch.nan
    assert not bench.largest_error(out, expected) <= bench.ERROR_LIMIT


def test_the_rows_of_each_model() -> None:
    sizes = {
        model: [case.size for case in bench.cases([model])] for model in ("mlp", "llama", "nvgemm")
    }
    assert sizes["mlp"] == sizes["nvgemm"] == [(1,), (4,), (16,), (64,), (256,), (2048,)]
    assert sizes["llama"] == [(1,), (16,), (512,)]
    assert bench.cases(["epilogue"], [5])[0] == bench.Case("epilogue", (16, 11008, 4096), 1)
    assert bench.cases(["llama", "gelu_mlp"], [5], 2) == [
        bench.Case("llama", (5,), 1),
        bench.Case("gelu_mlp", (5,), 2),
    ]


@pytest.mark.parametrize("model", bench.MODELS)
def test_models_compute_their_formula(model: str) -> None:
    if model == "llama":
        pytest.importorskip("transformers")
    with torch.no_grad():
        for case in bench.cases([model], [5], 3, EXTENTS):
            work = models.build(case, EXTENTS, "cpu")
            out = work.module(*work.other_inputs)
            tensors = out if isinstance(out, list) else [out]
            assert all(each.dtype == torch.bfloat16 and each.isfinite().all() for each in tensors)
            assert work.blocks == {"llama": 1, "epilogue": len(tensors)}.get(model, 3)
            expected = formula(model, work)
            assert bench.largest_error(out, expected) < 2e-2


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


NVGEMM_IS_OURS = (2, 11) <= tuple(map(int, torch.__version__.split(".")[:2])) <= (2, 13)


@pytest.mark.skipif(NVGEMM_IS_OURS, reason="tests the refusal by torch after 2.13")
def test_nvgemm_of_another_torch_is_refused() -> None:
    (row,) = bench.measure(bench.cases(["nvgemm"], [4], 1, EXTENTS), options(), lambda _: None)
    for method in ("added", "ours"):
        assert "use torch 2.11, 2.12 or 2.13" in row.failures[method]
    assert set(row.microseconds) == {"eager", "compiled", "again"}


@pytest.mark.skipif(not NVGEMM_IS_OURS, reason="NVGEMM imports cutlass_api until torch 2.13")
def test_nvgemm_meets_no_addmm() -> None:
    (row,) = bench.measure(bench.cases(["nvgemm"], [4], 2, EXTENTS), options(), lambda _: None)
    # The CPU has ATEN alone. NVGEMM has candidates for `mm`, but none for `addmm`.
    assert row.kernels["ours"] == {"extern_kernels.mm": 6}
    assert set(row.microseconds) == set(bench.NVGEMM_METHODS)
    assert row.ratio == row.microseconds["eager"] / row.microseconds["ours"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--models", "mlp,bert"], "there is no model 'bert'; choose from mlp, gelu_mlp, llama"),
        (["--tokens", "1,0"], "'0' must be a positive integer"),
        (["--tokens", "1,,2"], "'' must be a positive integer"),
        (["--blocks", "two"], "'two' must be a positive integer"),
        (["--baseline-json", "missing.json"], "missing.json cannot be read: No such file"),
        (["--baseline-json", __file__], "holds no results of `bench compile`"),
        (["--cache", __file__], "is not a folder: File exists"),
        (["--json", "/missing/rows.json"], "the folder /missing does not exist; create it"),
    ],
)
def test_wrong_options_are_refused_first(capsys, monkeypatch, arguments, expected: str) -> None:
    monkeypatch.setattr(sys, "argv", ["cutlass_api", "bench", "compile", *arguments])
    monkeypatch.setattr(common, "device", lambda: pytest.fail("it went on to measure"))
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 2
    assert f"argument {arguments[0]}: " in (said := capsys.readouterr().err) and expected in said


def test_the_command_writes_each_row(capsys, monkeypatch, tmp_path: Path) -> None:
    path = tmp_path / "compile.json"
    fine = bench.Row("mlp", (4,), 2, {"eager": 3.0, "compiled": 2.0, "ours": 1.0})
    failed = bench.Row("mlp", (8,), 2, failures={"ours": "no kernels"}, notes=["odd"])

    def measure(cases, options, show, log):
        assert cases == [bench.Case("mlp", (4,), 2), bench.Case("mlp", (8,), 2)]
        assert not options.repeat_torch and options.rounds == bench.QUICK_ROUNDS
        show(fine)
        assert list(bench.read_rows(path).values()) == [fine]
        show(failed)

    monkeypatch.setattr(common, "device", lambda: "a GPU")
    monkeypatch.setattr(bench, "measure", measure)
    arguments = ["--models", "mlp", "--tokens", "4,8", "--quick", "--json", str(path)]
    monkeypatch.setattr(sys, "argv", ["cutlass_api", "bench", "compile", *arguments])
    with pytest.raises(SystemExit) as ended:
        __main__.main()
    assert ended.value.code == 1
    printed = capsys.readouterr().out
    assert "mlp 8: ours failed: no kernels" in printed and "mlp 8: odd" in printed
    assert "mlp: rows 2, rows without a ratio 1, ratio 2, least ratio 2" in printed
    read = json.loads(path.read_text())
    assert read["device"] == "a GPU" and read["development"] is True and len(read["rows"]) == 2


@pytest.mark.gpu
def test_a_compiled_model_on_a_gpu() -> None:
    with integration(nullcontext):
        (row,) = bench.measure(
            [CASE], bench.Options(extents=EXTENTS, rounds=3, repeat_torch=False), lambda _: None
        )
    assert row.failures == {} and row.notes == []
    assert set(row.microseconds) == {"eager", "compiled", "ours"}
