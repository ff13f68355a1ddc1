"""`bench model` on the CPU: models of the right sizes, each method, its options, table and plot."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cutlass_api.bench import model, options
from cutlass_api.bench.architectures import ARCHITECTURES
from support.benches import MODELS, PNG, Clock, run
from support.properties import some

pytest.importorskip("transformers")
from cutlass_api.bench import layers, model_methods

#: Parameters of a layer, and of the published model; of vit-l and bert-large with the pooler.
PARAMETERS = {
    "llama-3-8b": (218_112_000, 8_030_261_248),
    "qwen3-8b": (192_946_432, 8_190_735_360),
    "qwen3-4b": (100_930_816, 4_022_468_096),
    "qwen3-0.6b": (15_730_944, 596_049_920),
    "vit-l": (12_596_224, 303_301_632 + 1_049_600),
    "bert-large": (12_596_224, 335_141_888),
    "gpt2-large": (19_677_440, 774_030_080),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_models_have_the_sizes_of_the_published_ones(name: str) -> None:
    own = ARCHITECTURES[name]
    layer = layers.in_bfloat16(lambda: layers.Layers(own, 1), "meta")
    with torch.device("meta"):
        whole = own.class_of("modeling", own.causal or "Model")(own.make_config())
    counts = [sum(each.numel() for each in module.parameters()) for module in (layer, whole)]
    assert tuple(counts) == PARAMETERS[name]
    assert layers.weight_bytes(layer) == 2 * counts[0]
    count = layers.stack_size(own)
    assert count >= 2 and 2 * count * counts[0] >= 256e6
    assert count == 2 or 2 * (count - 1) * counts[0] < 256e6


def tiny(name: str):
    """The same architecture, two layers of 128 features."""
    own = ARCHITECTURES[name]
    if own.family == "gpt2":
        others = {"n_embd": 128, "n_head": 4, "n_layer": 2, "vocab_size": 256}
        return own.with_config(**others, bos_token_id=0, eos_token_id=0)
    others = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4}
    others |= {"num_key_value_heads": 2, "vocab_size": 256} if own.causal else {}
    others |= {"head_dim": 32} if own.family == "qwen3" else {}
    return own.with_config(**others, num_hidden_layers=2)


def how(**others) -> model_methods.Options:
    return model_methods.Options(
        **{
            "copy_rate": 1e12,
            "device": "cpu",
            "mode": "default",
            "rounds": 3,
            "schemes": ["int4"],
            "layers": 2,
            "architectures": {name: tiny(name) for name in ARCHITECTURES},
        }
        | others
    )


@pytest.fixture
def by_dynamo(monkeypatch) -> list[tuple[str, bool]]:
    """Compiles without Inductor, and replaces graphs. Lists what compiles, with our kernels or
    without."""
    from cutlass_api import inductor

    compiled, original = [], torch.compile

    def compile(function, **settings):
        name = getattr(function, "__name__", "")
        compiled.append((name, inductor.is_enabled() is not None))
        options = {key: settings[key] for key in ("dynamic", "fullgraph") if key in settings}
        return original(function, backend="eager", **options)

    monkeypatch.setattr(torch, "compile", compile)
    monkeypatch.setattr(model_methods, "capture", lambda _, launches, least: Clock(9.0, launches))
    monkeypatch.setattr(model_methods, "GENERATE_ROUNDS", 2)
    return compiled


# The test of `generate` has a Qwen.
@pytest.mark.parametrize("name", some(["llama-3-8b", "qwen3-0.6b", "vit-l", "gpt2-large"]))
def test_layers_are_timed_by_each_method(by_dynamo, name: str) -> None:
    steps: list[str] = []
    (row,) = model_methods.measure([model.Case(name, 2, 5)], how(), steps.append)
    methods = {"eager", "compiled", "ours", "int4"}
    assert not row.failures and row.name == f"{name} 2x5" and row.layers == 2
    assert set(row.microseconds) == set(row.turns) == set(row.limits) == methods
    assert set(row.compile_seconds) == set(row.errors) == methods - {"eager"}
    # The same operations without Inductor: the converted model is compared with itself.
    assert all(error < 1e-2 for error in row.errors.values())
    assert row.limits["ours"] / row.limits["int4"] == pytest.approx(3.7, rel=0.1)
    assert [each for each, _ in by_dynamo] == [
        "start",
        *(f"{name}_2x5_{method}" for method in ("compiled", "ours", "int4")),
    ]
    assert any(": int4: " in step and "linear layers replaced" in step for step in steps)


@pytest.mark.parametrize("name", ["qwen3-0.6b"])
def test_generate_is_timed_by_each_method(by_dynamo, name: str) -> None:
    (row,) = model_methods.measure([model.Case(name, 2, 16, 4)], how())
    methods = {"eager", "compiled", "ours", "int4"}
    assert not row.failures and row.name == f"{name} 2x16 + 4"
    assert set(row.microseconds) == set(row.limits) == methods
    assert all(len(turns) == 2 for turns in row.turns.values())
    assert set(row.errors) == set(row.compile_seconds) == methods - {"eager"}
    assert [with_ours for _, with_ours in by_dynamo] == [False, False, True, True]
    assert row.rate(row.microseconds["ours"]) == 2e6 / row.microseconds["ours"]
    # A step reads one row of the embeddings, unless they also make the logits.
    whole = how().architectures[name]
    with torch.device("meta"):
        made = whole.class_of("modeling", whole.causal)(whole.make_config())
    read = 2 * sum(each.numel() for each in made.parameters())
    read -= 2 * 256 * 128 if name == "llama-3-8b" else 0
    assert row.limits["ours"] == pytest.approx(1e6 * read / 1e12)


def test_a_failure_leaves_the_other_methods(by_dynamo, monkeypatch, capfd) -> None:
    def convert(module, scheme):
        raise ValueError("nothing to replace\nmore")

    original = torch.compile

    def compile(function, **settings):
        if not function.__name__.endswith("ours"):
            return original(function, **settings)
        return lambda *inputs: 1.5 * function(*inputs)

    monkeypatch.setattr(torch, "compile", compile)
    monkeypatch.setattr(model_methods, "convert", convert)
    (row,) = model_methods.measure([model.Case("bert-large", 1, 3)], how())
    assert set(row.microseconds) == {"eager", "compiled"}
    assert row.failures["int4"] == "ValueError: nothing to replace"
    assert row.failures["ours"].startswith("ArithmeticError: relative error 0.5")
    assert "nothing to replace" in capfd.readouterr().err
    header, (cells,) = model.Model().table([row])
    shown = dict(zip(header, cells, strict=True))
    assert shown["ours us"] == shown["int4 us"] == "failed" and shown["compiled/ours"] == ""


def test_caches_are_kept_in_a_folder(by_dynamo, monkeypatch, tmp_path: Path) -> None:
    folders = []
    original = model_methods.own_caches

    def own_caches(folder, triton, programs):
        folders.append((folder, programs))
        return original(folder, triton, programs)

    monkeypatch.setattr(model_methods, "own_caches", own_caches)
    list(model_methods.measure([model.Case("vit-l", 1, 3)], how(cache=tmp_path, schemes=())))
    at = tmp_path / "vit-l_1x3"
    assert folders == [(at / "compiled", None), (at / "ours", None)]


def test_the_rows_of_each_model() -> None:
    def names(*arguments, **others) -> list[str]:
        return [str(case) for case in model.cases(*arguments, **others)]

    assert names(["qwen3-8b"]) == ["qwen3-8b 1x1", "qwen3-8b 1x8", "qwen3-8b 1x64"]
    assert names(["vit-l"]) == ["vit-l 8x197", "vit-l 64x197"]
    assert names(["bert-large"], [4], [9]) == ["bert-large 4x9"]
    assert names(["gpt2-large"], generated=64) == ["gpt2-large 1x16 + 64"]
    both = names(["qwen3-4b"], [2], [1], generated=8)
    assert both == ["qwen3-4b 2x1", "qwen3-4b 2x16 + 8"]


def test_the_table_has_the_methods_that_were_timed() -> None:
    bench = model.Model()
    header, cells = bench.table(MODELS[:1])
    assert dict(zip(header, cells[0], strict=True)) == {
        "model": "qwen3-8b 1x8",
        **{"eager us": "400.0", "compiled us": "300.0", "ours us": "250.0", "int4 us": "100.0"},
        "limit us": "200.0",
        **{"compiled/ours": "1.20", "compiled/int4": "3.00"},
        **{"compiled share": "0.67", "ours share": "0.80", "int4 share": "0.50"},
        **{"compiled s": "40.0", "ours s": "30.0", "int4 s": "20.0"},
        **{"compiled error": "4.0e-03", "ours error": "3.0e-03", "int4 error": "3.0e-03"},
    }
    header, cells = bench.table(MODELS)
    layers_row, generated = (dict(zip(header, each, strict=True)) for each in cells)
    assert layers_row["ours us"] == "250.0" and layers_row["ours tokens/s"] == ""
    assert generated["ours us"] == "" and generated["ours tokens/s"] == "400.0"
    assert generated["limit tokens/s"] == "500.0" and generated["int4 tokens/s"] == "failed"
    assert bench.summary(MODELS)["ours"] == {
        "compiled / it": pytest.approx((1.2 * 1.6) ** 0.5),
        "least": pytest.approx(1.2),
        "least share of reading the weights": pytest.approx(0.8),
    }
    remarks = list(bench.remarks(MODELS))
    assert remarks[-1] == "qwen3-8b 2x16 + 64: int4 failed: RuntimeError: out of memory"


def test_each_scheme_is_a_group_of_its_own() -> None:
    first, second, third = model.Model().entries({}, MODELS)
    assert (first.name, first.group, first.torch, first.ours) == ("qwen3-8b 1x8", "", 300.0, 250.0)
    assert first.noise is not None and 0 < first.noise < 0.1
    assert (second.name, second.group, second.ours) == ("qwen3-8b 1x8 int4", "int4", 100.0)
    assert second.noise is None and third.name == "qwen3-8b 2x16 + 64"


@pytest.mark.parametrize("rows", [MODELS, MODELS[:1], MODELS[1:]])
def test_a_plot_has_bars_for_each_method(monkeypatch, tmp_path: Path, rows) -> None:
    figures = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.setattr(figures, "close", lambda figure: None)
    model.Model().plot(tmp_path / "rows.png", {"device": "a GPU"}, rows)
    drawn = figures.gcf().axes
    assert (tmp_path / "rows.png").read_bytes().startswith(PNG)
    titles = ["tokens/s" if row.generated else "microseconds" for row in rows]
    assert [axes.get_ylabel() for axes in drawn] == titles
    labels = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in drawn]
    for shown in labels:
        assert {"eager", "compiled", "ours", "int4"} < set(shown)
    monkeypatch.undo()
    figures.close("all")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["bert"], "invalid choice: 'bert'"),
        (["vit-l", "--tokens", "1,0"], "argument --tokens: '0' must be a positive integer"),
        (["vit-l", "--scheme", "int3"], "there is no scheme 'int3'; choose from fp8, int8"),
        (["qwen3-8b", "--generate", "1"], "the first token needs no cache; pass 2 or more"),
        (["qwen3-8b", "--cache", __file__], "is not a folder: File exists"),
    ],
)
def test_wrong_options_are_refused_first(capsys, monkeypatch, arguments, expected: str) -> None:
    monkeypatch.setattr(options, "device", lambda: pytest.fail("it went on to measure"))
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "bench", "model", *arguments, device=None)
    assert ended.value.code == 2 and expected in capsys.readouterr().err


def test_what_cannot_be_built_is_refused(monkeypatch) -> None:
    with pytest.raises(SystemExit, match="vit-l is an encoder, which generates no text"):
        run(monkeypatch, "bench", "model", "qwen3-8b", "vit-l", "--generate", "8")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SystemExit, match=r"pip install transformers \(or rutlass\[models\]\)"):
        run(monkeypatch, "bench", "model", "qwen3-8b")


def test_the_command_skips_rows_after_the_limit(capsys, monkeypatch, tmp_path: Path) -> None:
    path, clock = tmp_path / "model.json", SimpleNamespace(has_passed=lambda: False)

    def measure(cases, options, log):
        assert options.schemes == ["int4", "fp8"] and options.copy_rate == 2e12
        for case in cases:
            clock.has_passed = lambda: True
            yield replace(MODELS[0], batch=case.batch, tokens=case.tokens)

    monkeypatch.setattr(model_methods, "measure", measure)
    monkeypatch.setattr(model, "copy_rate", lambda: 2e12)
    monkeypatch.setattr(model, "Deadline", lambda seconds: clock)
    shared = ["--tokens", "1,8", "--scheme", "int4", "fp8", "int4", "--limit", "90"]
    run(monkeypatch, "bench", "model", "qwen3-8b", *shared, "--json", path)
    printed = capsys.readouterr().out
    assert "qwen3-8b 1x8: skipped: 90 s have passed\n" in printed
    assert "ours: compiled / it 1.2, least 1.2" in printed
    read = json.loads(path.read_text())
    assert read["skipped"] == ["qwen3-8b 1x8"] and len(read["rows"]) == 1
    assert read["copy_rate"] == 2e12 and read["cached"] is False and read["transformers"]


@pytest.mark.gpu
def test_layers_on_a_gpu() -> None:
    (row,) = model_methods.measure(
        [model.Case("qwen3-8b", 1, 8)], how(device="cuda", mode=model_methods.Options.mode)
    )
    assert not row.failures and set(row.microseconds) == {"eager", "compiled", "ours", "int4"}
