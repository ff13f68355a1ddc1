"""The notebooks: each runs from top to bottom on a GPU, and is stored with the outputs of such a
run, unless its first cell says otherwise.
"""

import ast
import json
import re
from pathlib import Path

import pytest
from support.helpers import run_python

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


SAVED_WITHOUT_A_GPU = "The saved outputs are from a machine without a GPU"


def states(path, sentence):
    """Whether the first cell of a notebook contains a sentence."""
    first = json.loads(path.read_text())["cells"][0]
    return sentence in "".join(first["source"]).replace("\n", " ")


def code_cells(path):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


@notebooks
def test_it_is_kept_with_the_outputs_of_a_whole_run(path):
    cells = code_cells(path)
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
    source = "".join("".join(cell["source"]) for cell in code_cells(path))
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


def needs_a_gpu(path):
    """Whether a notebook cannot run without a GPU."""
    return states(path, "It needs a CUDA GPU")


#: Runs the code of a notebook cell by cell, in its folder, with sources that `inspect` and
#: tracebacks find.
EXECUTE = """
    import json, linecache, os, sys
    names = {"__name__": "__main__"}
    cells = json.load(open(sys.argv[1]))["cells"]
    os.chdir(os.path.dirname(sys.argv[1]))
    for at, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            source, file = "".join(cell["source"]), f"<cell {at}>"
            linecache.cache[file] = (len(source), None, source.splitlines(True), file)
            exec(compile(source, file, "exec"), names)
"""


@pytest.mark.parametrize(
    "path", [path for path in NOTEBOOKS if not needs_a_gpu(path)], ids=lambda path: path.stem
)
def test_it_runs_without_a_gpu(path):
    require_packages(path)
    variables = {"CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "Agg"}
    said = run_python(EXECUTE, path, timeout=120, is_warm=True, **variables)
    assert re.search(r"\bno GPU\b", said), "it says what it does instead"


def cells_of_a_printed_notebook(text):
    """The code cells of a notebook saved as text: after each `In [...]:`, the longest run of Python
    lines.
    """
    for printed in re.split(r"^In \[[^\]]*\]:\n", text, flags=re.MULTILINE)[1:]:
        lines = printed.splitlines()
        for end in range(len(lines), 0, -1):
            source = "\n".join(lines[:end])
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
