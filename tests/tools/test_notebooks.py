"""The notebooks: each runs from top to bottom on a GPU, and is stored with the outputs of such a
run, unless its first cell says otherwise.
"""

import ast
import json
import re

import cutlass_api
import pytest
from support.notebooks import (
    KERNEL,
    NEEDS_A_GPU,
    NOTEBOOKS,
    ON_FAKE_TENSORS,
    ON_THE_CPU,
    ROOT,
    SAVED_WITHOUT_A_GPU,
    code_cells,
    differing,
    lines,
    printed,
    saved,
    states,
)

notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)

#: Notebooks whose saved outputs are older than the code: execute them on a GPU, and remove them.
#: By what shows it: a run on the CPU, or one on FakeTensors.
STALE_ON_THE_CPU = {
    "000_gemm",
    "001_fused_epilogues",
    "002_bring_your_own_kernel",
    "004_fake_tensors",
    "007_gemm_ladder",
}
STALE_ON_FAKE_TENSORS = {
    "000_gemm",
    "001_fused_epilogues",
    "003_host_latency",
    "004_fake_tensors",
}


@notebooks
def test_it_is_kept_with_the_outputs_of_a_whole_run(path):
    cells = list(code_cells(path).values())
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    said = "".join("".join(output.get("text", [])) for cell in cells for output in cell["outputs"])
    assert bool(re.search(r"\bno GPU\b", said)) == states(path, SAVED_WITHOUT_A_GPU)
    draws = any("matplotlib" in "".join(cell["source"]) for cell in cells)
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs) == draws
    assert not [output for output in outputs if output["output_type"] == "error"]
    for cell in cells:
        ast.parse("".join(cell["source"]))


def require_packages(path):
    """Skips the test of a notebook whose packages are not installed."""
    source = "".join("".join(cell["source"]) for cell in code_cells(path).values())
    for package in ("matplotlib", "transformers"):
        if f"import {package}" in source:
            pytest.importorskip(package)


@pytest.mark.gpu
@notebooks
def test_it_runs(path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    require_packages(path)
    notebook = nbformat.read(path, as_version=4)
    options = {"timeout": 300, "kernel_name": "python3"}
    resources = {"metadata": {"path": path.parent}}
    nbclient.NotebookClient(notebook, resources=resources, **options).execute()


def check(path, wrong, stale):
    """Fails for outputs that the code does not print, unless the notebook is known as stale."""
    if path.stem in stale:
        assert wrong, f"{path.stem} is not stale; remove it from the list"
    else:
        assert not wrong, f"{path.stem} is stale; execute it on a GPU:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    "path",
    [path for path in NOTEBOOKS if not states(path, NEEDS_A_GPU)],
    ids=lambda path: path.stem,
)
def test_it_runs_without_a_gpu(path):
    """And prints the saved errors; if outputs are saved without a GPU, the saved lines."""
    require_packages(path)
    said = printed(ON_THE_CPU, path)
    assert re.search(r"\bno GPU\b", "".join(said.values())), "it says what it does instead"
    wrong = differing(path, said, is_whole=states(path, SAVED_WITHOUT_A_GPU))
    check(path, wrong, STALE_ON_THE_CPU)


@pytest.mark.parametrize(
    "path",
    [path for path in NOTEBOOKS if not states(path, SAVED_WITHOUT_A_GPU)],
    ids=lambda path: path.stem,
)
def test_its_searches_find_what_is_saved(path):
    """Counts of kernels, generated code and errors, by FakeTensors of a Hopper GPU."""
    said = printed(ON_FAKE_TENSORS, path)
    refused = {at for at, text in said.items() if "is a FakeTensor\n" in text}
    kept = {at: text for at, text in said.items() if at not in refused}
    assert any(lines(text) for text in list(kept.values())[1:])
    check(path, differing(path, kept, is_whole=True), STALE_ON_FAKE_TENSORS)


@notebooks
def test_its_kernels_exist(path):
    names = {kernel.metadata.kernel_name for kernel in cutlass_api.get_kernels()}
    found = {re.sub(r"_epilogue_\w+$", "", name) for name in KERNEL.findall(str(saved(path)))}
    assert found <= names, sorted(found - names)


def test_another_output_is_noticed(tmp_path):
    """Another count, error, kernel or repr than the code has."""

    sources = ("", "try: ...\nexcept ValueError: ...", "")

    def notebook(*outputs):
        cells = [
            {"cell_type": "code", "source": [source], "outputs": [{"text": [text]}]}
            for source, text in zip(sources, outputs, strict=True)
        ]
        path = tmp_path / "one.ipynb"
        path.write_text(json.dumps({"cells": cells}))
        return path

    said = ("a GPU\n", "refused: K is 5\n", "12 found in 3 us: sm90_gemm_a\n<Program of f>\n")
    path = notebook("an H100", "refused: K is 9", "12 found in 4 us: sm90_gemm_b\n<Program of f>")
    by_cell = dict(enumerate(said))
    assert differing(path, by_cell, is_whole=False) == []
    assert differing(path, by_cell, is_whole=True) == ["cell 1: refused: K is 5"]
    path = notebook("", "refused: K has 9", "11 found in 4 us: sm90_gemm_b\nProgram(f)")
    assert differing(path, by_cell, is_whole=False) == [
        "cell 1: refused: K is #",
        "cell 2: <Program ...>",
    ]
    assert "cell 2: 12 found in # us: KERNEL" in differing(path, by_cell, is_whole=True)


def cells_of_a_printed_notebook(text):
    """The code cells of a notebook saved as text: after each `In [...]:`, the longest run of Python
    lines.
    """
    for part in re.split(r"^In \[[^\]]*\]:\n", text, flags=re.MULTILINE)[1:]:
        text_lines = part.splitlines()
        for end in range(len(text_lines), 0, -1):
            source = "\n".join(text_lines[:end])
            try:
                ast.parse(source)
            except SyntaxError:
                continue
            yield source
            break


@pytest.mark.gpu
def test_the_original_s_latency_notebook_runs_unchanged(capsys):
    """The notebook of the original `cutlass_api`, if it is beside this checkout."""
    found = sorted((ROOT.parent / "shared" / "seeds").glob("000_*.txt"))
    if not found:
        pytest.skip("the original's notebook is not beside this checkout (shared/seeds/000_*.txt)")
    names = {}
    cells = list(cells_of_a_printed_notebook(found[0].read_text()))
    assert len(cells) > 10
    for cell in cells:
        exec(compile(cell, "seed 000", "exec"), names)
    assert names["time_wo_supports"] < 1e-3
    assert "Speedups with TVM-FFI" in capsys.readouterr().out
