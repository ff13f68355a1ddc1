"""`python -m benchmarks all` and `compare`: the page, its sections, and what got slower."""

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
from cutlass_api.bench import gemm, options
from cutlass_api.bench.products import FOLDER
from support import benches
from support.benches import CONTEXT, PNG, ROOT, gemm_rows, of, run

from benchmarks import compare, page, suite
from benchmarks.cases import MODELS


def section(title: str, found: dict | None, failure: str = "") -> dict:
    return {
        "title": title,
        "command": "python -m cutlass_api bench",
        "seconds": 3,
        "failure": failure,
        "results": found,
    }


@pytest.fixture
def document() -> dict:
    """A document of `all`."""
    found = benches.results()
    limits = {"l2_bytes": 50 << 20, "copy_rate": 2.5e12, "product_rates": {"float16": 6e14}}
    return {
        "commands": ["python -m benchmarks all --quick"],
        "quick": False,
        "environment": {
            "rutlass": "0.1.0",
            "torch": "2.15.0",
            "GPU 0": "a GPU, compute capability 9.0, 132 multiprocessors",
            "NVRTC": "13.0 (/home/me/libnvrtc.so)",
            "CUTLASS_API_CACHE_DIR": "/home/me/cache",
            "CUTLASS_API_TUNE": "off",
        },
        "sections": {
            "limits": section("Limits of the GPU", {**CONTEXT, **limits, "smi": {"driver": "570"}}),
            "latency": section("Host time of a launch", found["latency"]),
            "gemm_float16": section("GEMM, float16", found["gemm"]),
            "ladder": section("The ladder", found["ladder"]),
            "llama_int8": section("Weights of a Llama, int8", found["llama"], "stopped after 5 s"),
            "experts": section("Mixtures of experts", found["experts"]),
            "quantize": section("Quantization", found["quantize"]),
            "model_qwen3-8b": section("Layers of qwen3-8b", found["model"]),
            "compile_mlp": section("torch.compile, mlp", found["compile"]),
            "compile_llama": section(
                "torch.compile, llama", None, "exit status 1: no ```module```"
            ),
        },
    }


def sections(text: str) -> dict[str, str]:
    """The text below each heading."""
    parts = [part.partition("\n") for part in text.split("\n## ")[1:]]
    return {heading: body for heading, _, body in parts}


def test_the_page_is_written_from_a_file(monkeypatch, tmp_path: Path, capsys, document) -> None:
    pytest.importorskip("matplotlib")
    source, out = tmp_path / "all.json", tmp_path / "benchmarks.md"
    source.write_text(json.dumps(document))
    run(monkeypatch, "all", "--from", source, "--out", out, "--json", tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(source.read_text())
    plots = {path.stem for path in (tmp_path / "benchmarks").iterdir()}
    assert plots == set(document["sections"]) - {"limits", "compile_llama"}
    text = out.read_text()
    for name in plots:
        assert f"](benchmarks/{name}.png)" in text
        content = (tmp_path / "benchmarks" / f"{name}.png").read_bytes()
        assert content.startswith(PNG)
    lint = [sys.executable, ROOT / "scripts/lint_text.py", out]
    found = subprocess.run(lint, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def test_the_page_ends_with_what_is_slower_than_torch(document) -> None:
    text = page.render(document, {})
    intro, body = text.split("\n## ", 1)[0], sections(text)
    assert list(body) == [
        *(each["title"] for each in document["sections"].values()),
        "Slower than torch",
    ]
    for fact in ("| NVRTC | 13.0 |", "| CUTLASS_API_TUNE | off |", "| driver | 570 |"):
        assert fact in intro
    assert "python -m benchmarks all --quick" in intro and "/home/me" not in text
    slower = [line.split(" | ") for line in body["Slower than torch"].splitlines() if "`" in line]
    # Only the launches that torch does as well are compared.
    assert slower[0][0] == "| `cutlass_api.matmul(a, b)`"
    assert slower[0][2:] == ["3.00", "6.00", "0.500 |"]
    assert slower[1][:2] == ["| `square 192x256x256 tt float16`", "`gemm_float16`"]
    assert slower[1][4] == f"{14 / (12 * 1.4):.3f} |"
    assert " ".join(body["Slower than torch"].split()).endswith(
        "Without a comparison to torch: `llama_int8` (failed in part), `quantize` (torch has no "
        "counterpart), `compile_llama` (failed)."
    )


def test_the_page_begins_with_a_row_for_each_section(document) -> None:
    header, _, *lines = page.render(document, {}).partition("| section ")[2].splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines[: lines.index("")]]
    assert header == "| compared with | rows | mean | least |"
    found = {name: rest for name, *rest in rows}
    # The limits are no comparison, torch refuses these rows of int8, and compile_llama failed.
    assert list(found) == [
        *("Host time of a launch", "GEMM, float16", "The ladder"),
        *("Mixtures of experts, layer", "Quantization"),
        *("Layers of qwen3-8b", "Layers of qwen3-8b, int4", "torch.compile, mlp"),
    ]
    assert found["Layers of qwen3-8b"] == ["torch", "1", "1.200", "1.200"]
    assert found["Layers of qwen3-8b, int4"] == ["torch", "1", "3.000", "3.000"]
    assert found["Quantization"] == ["a copy of as many bytes", "2", "0.566", "0.400"]
    assert found["GEMM, float16"][1] == "4" and float(found["GEMM, float16"][3]) < 1


def test_a_section_has_its_table_its_mean_and_its_failure(document) -> None:
    body = sections(page.render(document, {"quantize": "plots/quantize.png"}))
    assert "| copy | 2.50 TB/s |" in body["Limits of the GPU"]
    mean = "Geometric mean of the time of a copy of as many bytes over ours: 0.566 in 2 rows"
    assert mean in " ".join(body["Quantization"].split())
    assert "![Quantization](plots/quantize.png)" in body["Quantization"]
    assert "| `per_row, float32 to int8` | 32 x 32 | 20.0 |" in body["Quantization"]
    assert "torch over ours: 1.500 in 1 rows" in body["torch.compile, mlp"]
    assert "failed:\n\n```\nstopped after 5 s\n```" in body["Weights of a Llama, int8"]
    assert "`int8 16x4096x4096`" in body["Weights of a Llama, int8"], "rows before the failure"
    assert "exit status 1: no '''module'''" in body["torch.compile, llama"]
    document["sections"] = {"gemm_float16": section("GEMM", of(gemm_rows(4)))}
    assert "No row." in sections(page.render(document, {}))["Slower than torch"]
    assert "no figures to report" not in page.render(document, {})
    assert "no figures to report" in page.render(document | {"quick": True}, {})


PROGRAM = f"""#!{sys.executable}
import json, sys, time
if "limits" in sys.argv:
    print("no GPU", file=sys.stderr)
    sys.exit("it failed")
written = {{"GPU 0": "a GPU"}} if "env" in sys.argv else {{"rows": sys.argv[2:-2]}}
open(sys.argv[-1], "w").write(json.dumps(written))
if "latency" in sys.argv:
    time.sleep(60)
"""


def test_a_failure_costs_only_its_section(monkeypatch, tmp_path: Path, capfd) -> None:
    """Processes that fail, exceed the time limit, and succeed."""
    program = tmp_path / "python"
    program.write_text(PROGRAM)
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(page, "write", lambda document, out: None)
    path = tmp_path / "all.json"
    names = "limits,latency,quantize,gemm_exact,compile_mlp"
    arguments = ["--only", names, "--limit", "2", "--json", path]
    out = ["--out", tmp_path / "page.md"]
    with pytest.raises(SystemExit, match="failed: limits, latency"):
        run(monkeypatch, "all", *arguments, *out)
    read = json.loads(path.read_text())
    assert read["environment"] == {"GPU 0": "a GPU"} and read["quick"] is False
    assert read["commands"] == [f"python -m benchmarks all --only {names}"]
    done = read["sections"]
    assert list(done) == ["limits", "latency", "gemm_exact", "quantize", "compile_mlp"]
    assert done["limits"]["failure"] == "exit status 1: it failed" and not done["limits"]["results"]
    assert done["latency"]["failure"] == "stopped after 2 s"
    assert done["latency"]["results"] == {"rows": ["cutlass_api", "bench", "latency"]}, (
        "rows before the time limit"
    )
    assert done["quantize"]["failure"] == done["gemm_exact"]["failure"] == ""
    expected = ["cutlass_api", "bench", "gemm", "--shapes", "exact", "--dtype"]
    expected += ["float32", "float64"]
    assert done["gemm_exact"]["results"] == {"rows": expected}
    printed = capfd.readouterr()
    assert "== limits: exit status 1: it failed" in printed.out and "no GPU" in printed.err
    shown: list[dict] = []
    suite.measure({"quantize": ["-m", "x"]}, 9, 0, lambda name, found: shown.append(found))
    assert shown[0]["failure"] == "not started: no time left"


def test_sections_are_chosen() -> None:
    names = [each.name for each in suite.chosen(["compile", "gemm_weak"], is_quick=False)]
    assert names == ["gemm_weak", *(f"compile_{m}" for m in MODELS[:-1])]
    assert suite.chosen([], is_quick=False) == list(suite.SECTIONS)
    quick = suite.chosen([], is_quick=True)
    assert {each.bench for each in quick} == {each.bench for each in suite.SECTIONS}
    assert len(quick) < len(suite.SECTIONS)


def test_each_section_is_a_command(monkeypatch) -> None:
    """With its arguments, the command gets as far as to look for a GPU."""

    class Reached(Exception):
        pass

    def device() -> str:
        raise Reached

    monkeypatch.setattr(options, "device", device)
    for each in suite.SECTIONS:
        for is_quick in (False, True)[: 1 + (each.quick is not None)]:
            with pytest.raises(Reached):
                _, program, *rest = suite.command(each, is_quick)
                assert (program == "cutlass_api") == (rest[0] == "bench")
                run(monkeypatch, *rest, device=None)


def test_what_cannot_be_run_is_refused_first(monkeypatch, tmp_path: Path, capsys) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(options, "device", lambda: pytest.fail("it went on to measure"))
    out = ["--out", tmp_path / "page.md"]
    for wrong, said in (
        (["--only", "gemm,speed"], "there is no section 'speed'; choose from limits, latency"),
        (["--from", ROOT / "benchmarks/gemm_h200.json"], "is no file of `all --json`"),
        (["--out", tmp_path / "missing/page.md"], "missing does not exist; create it"),
    ):
        with pytest.raises(SystemExit):
            run(monkeypatch, "all", *out, *wrong, device=None)
        assert said in capsys.readouterr().err


def test_files_of_one_machine_are_merged(document) -> None:
    later = copy.deepcopy(document)
    later["commands"] = ["python -m benchmarks all --only quantize,latency"]
    later["sections"] = {name: later["sections"][name] for name in ("quantize", "latency")}
    later["sections"]["latency"]["seconds"] = 99
    first = copy.deepcopy(document)
    del first["sections"]["quantize"]
    both = suite.merged([first, later])
    assert list(both["sections"]) == [
        each.name for each in suite.SECTIONS if each.name in document["sections"]
    ]
    assert both["sections"]["latency"]["seconds"] == 99
    assert both["commands"] == document["commands"] + later["commands"]
    later["environment"]["torch"] = "2.11.0"
    with pytest.raises(ValueError, match=r"differ in torch: 2.15.0 and 2.11.0"):
        suite.merged([first, later])


def compared(old: list, new: list, **others) -> compare.Comparison:
    return compare.compare(of(old), of(new) | others)


def test_noise_and_clocks_are_not_flagged() -> None:
    flagged = 0
    for seed in range(20):
        old, new = (gemm_rows(45, 2 * seed + at, noise=0.01) for at in (0, 1))
        found = compared(old, new)
        assert len(found.changes) == 45 and not found.missing and not found.differences
        flagged += len(found.flagged)
    assert flagged <= 2
    slow = gemm_rows(45, 1, noise=0.01)
    for row in slow:  # a machine of a lower clock
        row.first, row.torch = 1.3 * row.first, 1.3 * row.torch
    assert not compared(gemm_rows(45, 0, noise=0.01), slow).flagged


def test_slower_rows_are_flagged() -> None:
    old = gemm_rows(45, 0, noise=0.005)
    new = gemm_rows(45, 1, noise=0.005, slower={7: 1.15, 30: 1.2})
    new[30].kernel = "sm90_c"
    found = compared(old, new)
    names = ["gemm: square 1984x256x256 tt float16", "gemm: square 512x256x256 tt float16"]
    _, cells = compare.cells(found.flagged)
    assert [each[0] for each in cells] == names
    assert cells[0][-1] == "SLOWER sm90_a before, now sm90_c" and cells[1][-1] == "SLOWER"
    # All of ours, while torch's times are the same.
    everything = gemm_rows(45, 1, noise=0.005, slower=dict.fromkeys(range(45), 1.1))
    assert len(compared(old, everything).flagged) == 45


def test_a_faster_torch_is_no_slower_row() -> None:
    old, new = gemm_rows(20, 0, noise=0.005), gemm_rows(20, 1, noise=0.005)
    new[3].torch *= 0.7
    found = compared(old, new, torch="2.16.0")
    assert found.differences == ["torch: 2.15.0 before, now 2.16.0"] and not found.flagged


def test_the_turns_of_a_row_bound_its_noise() -> None:
    """The same change in two rows, of which one has turns that differ."""
    old, new = (gemm_rows(20, slower=by) for by in ({}, {1: 1.1, 2: 1.1}))
    for rows in (old, new):
        for at, row in enumerate(rows):
            width = 0.5 if at == 1 else 0.01
            row.quartiles = {
                name: (time * (1 - width / 2), time * (1 + width / 2))
                for name, time in (("first", row.first), ("torch", row.torch))
            }
    assert [change.name for change in compared(old, new).flagged] == [
        "square 192x256x256 tt float16"
    ]


def test_every_benchmark_is_compared_with_itself_made_slower(document) -> None:
    assert not compare.compare(document, document).flagged
    new = copy.deepcopy(document)
    part = new["sections"]
    part["latency"]["results"]["rows"][1]["microseconds"] *= 1.5
    part["latency"]["results"]["rows"][1]["ratio"] *= 1.5
    part["gemm_float16"]["results"]["rows"][0]["first"] *= 1.5
    part["ladder"]["results"]["rows"][0]["microseconds"] *= 1.5
    part["llama_int8"]["results"]["rows"][0]["first"] *= 1.5
    part["experts"]["results"]["rows"][0]["ours"] *= 1.5
    part["quantize"]["results"]["rows"][0]["microseconds"] *= 1.5
    part["model_qwen3-8b"]["results"]["rows"][0]["microseconds"]["ours"] *= 1.5
    part["compile_mlp"]["results"]["rows"][0]["microseconds"]["ours"] *= 1.5
    found = compare.compare(document, new)
    assert {change.bench for change in found.flagged} == set(benches.results()) - {
        "jax",
        "tensor_parallel",
    }
    assert all(change.ours == change.slower == pytest.approx(1.5) for change in found.flagged)
    # A section beside a file of the benchmark alone.
    alone = compare.compare(document, part["gemm_float16"]["results"])
    assert [change.name for change in alone.flagged] == ["square 64x256x256 tt float16"]
    assert any(name.startswith("latency: ") for name in alone.missing)


def test_the_command_fails_if_a_row_got_slower(monkeypatch, tmp_path: Path, capsys) -> None:
    old, new, out = (tmp_path / name for name in ("old.json", "new.json", "out.json"))
    bench = gemm.Gemm()
    bench.write(old, CONTEXT, gemm_rows(9))
    bench.write(new, CONTEXT | {"device": "another GPU"}, gemm_rows(8, slower={4: 1.5}))
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "compare", old, new, "--json", out)
    assert ended.value.code == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "The files differ in device: a GPU before, now another GPU"
    assert lines[-1] == "1 of 8 rows got slower beyond noise"
    assert lines[-2] == "only in one file: gemm: square 576x256x256 tt float16"
    (line,) = [line for line in lines if "SLOWER" in line]
    assert "square 320x256x256" in line and "\x1b" not in line
    read = json.loads(out.read_text())
    assert [row["flagged"] for row in read["rows"]] == [True] + 7 * [False]
    run(monkeypatch, "compare", old, old)
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "compare", old, tmp_path / "none.json")
    assert ended.value.code == 2
    with pytest.raises(SystemExit, match=r"no results of `bench latency`"):
        run(monkeypatch, "compare", old, FOLDER / "public.json")
