"""The Python snippets of the pages run as they stand."""

import pkgutil
import re
import runpy
import subprocess
import sys
from pathlib import Path

import cutlass_api
import pytest
import torch

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks/README.md"]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
FENCE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NEEDS_A_GPU = "# Needs a CUDA GPU."


def snippets():
    for page in PAGES:
        text = page.read_text()
        for match in FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            marks = [pytest.mark.gpu] if match[1].startswith(NEEDS_A_GPU) else []
            name = f"{page.relative_to(ROOT)}:{line}"
            yield pytest.param(match[1], id=name, marks=marks)


@pytest.mark.parametrize("code", list(snippets()))
def test_a_snippet_runs(code, tmp_path):
    # In a file, as epilogue functions are parsed from their source.
    path = tmp_path / "snippet.py"
    path.write_text(code)
    # Code for a GPU may set options of torch; a registered kernel stays in the process.
    if code.startswith(NEEDS_A_GPU) or ".register\n" in code:
        subprocess.run([sys.executable, path], check=True, timeout=300)
        return
    names = runpy.run_path(str(path))
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    if {"a", "b", "out"} <= names.keys() and ".run(args" in code and "assert " not in code:
        expected = names["a"].double() @ names["b"].double()
        if "epilogue" in names:
            expected, _ = names["epilogue"](expected, names["bias"].double(), 0.5)
        assert (names["out"].double() - expected).norm() < 1e-3 * expected.norm()


def test_the_readme_has_snippets():
    assert len(FENCE.findall(PAGES[0].read_text())) >= 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_paths_exist(page):
    text = page.read_text()
    prose = re.sub(r"`[^`\n]*`", "", text)
    linked = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose)
    named = re.findall(r"`((?:src|kernels|docs|tests|scripts|benchmarks|notebooks)/[\w/.]*)`", text)
    paths = {page.parent / path for path in linked} | {ROOT / path for path in named}
    missing = sorted(str(path.relative_to(ROOT)) for path in paths if not path.exists())
    assert not missing


def test_the_reference_has_every_public_module():
    public = {
        f"cutlass_api.{module.name}"
        for module in pkgutil.iter_modules(cutlass_api.__path__)
        if not module.name.startswith("_")
    }
    # Tools of `python -m cutlass_api`.
    public -= {"cutlass_api.bench", "cutlass_api.inspection"}
    pages = "".join(page.read_text() for page in (ROOT / "docs/api").glob("*.md"))
    described = re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE)
    assert not [name for name in public if not any(each.startswith(name) for each in described)]
