"""The Python snippets of the pages run as they stand."""

import importlib
import pkgutil
import re
import runpy
import subprocess
import sys
from pathlib import Path

import cutlass_api
import pytest
import torch
from cutlass_api._core import ELEMENT_TYPES

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
    names = {module.name for module in pkgutil.iter_modules(cutlass_api.__path__)}
    # Tools of `python -m cutlass_api`.
    modules = [f"cutlass_api.{name}" for name in names - {"bench", "inspection"} if name[0] != "_"]
    public = [name for name in modules if importlib.import_module(name).__all__]
    pages = "".join(page.read_text() for page in (ROOT / "docs/api").glob("*.md"))
    described = re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE)
    assert not [name for name in public if not any(each.startswith(name) for each in described)]


def family_of(kernel):
    return type(kernel).__name__.removesuffix("Kernel").removesuffix("Gemm").lower()


def splits_of(kernels):
    """The ways in which kernels of a family split K, in the words of README's table."""

    def text(way, splitting):
        pairs = {pair_of(kernel) for kernel in splitting}
        bits = [[re.search(r"\d+", name)[0] for name in pair] for pair in every_pair]
        of_one_size = {pair for pair, (a, b) in zip(every_pair, bits, strict=True) if a == b}
        types = ""
        if pairs == of_one_size != set(every_pair):
            types = " of operands of one size"
        elif pairs != set(every_pair):
            types = " of " + " and ".join(sorted({a for a, _ in pairs}))
        cc = min(kernel.metadata.min_cc for kernel in splitting)
        later = f" on {cc / 10} and later" if cc > least_cc(kernels) else ""
        return f"{way} splits{types}{later}"

    def pair_of(kernel):
        operands = kernel.metadata.operands
        return str(operands.A.dtype), str(operands.B.dtype)

    def way_of(kernel):
        design = kernel.metadata.design
        if getattr(design, "over_grid", False):
            return "grid"
        return "cluster" if design and design.cluster_shape[2] > 1 else None

    every_pair = sorted({pair_of(kernel) for kernel in kernels})
    ways = {way: [k for k in kernels if way_of(k) == way] for way in ("cluster", "grid")}
    return "; ".join(text(way, found) for way, found in ways.items() if found) or "none"


def least_cc(kernels):
    return min(kernel.metadata.min_cc for kernel in kernels)


def types_in(cell):
    names = r"\b(float64|float32|float16|bfloat16|e4m3fn|e5m2|int32|int8|uint8)\b"
    pairs = {"int8", "uint8"} if "(integers" in cell else set()
    codes = {each.name for each in ELEMENT_TYPES if each.is_packed and each.cuda_name}
    return {*re.findall(names, cell)} | pairs | (codes if "or 4 bits" in cell else set())


def test_the_table_of_families_says_what_kernels_do():
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", PAGES[0].read_text(), re.MULTILINE)
    table = {family: [cell.strip() for cell in cells.split("|")] for family, cells in rows}
    kernels = {}
    for kernel in cutlass_api.get_kernels():
        kernels.setdefault(family_of(kernel), []).append(kernel)
    assert table.keys() == kernels.keys()
    for family, (hardware, types, _, splits) in table.items():
        assert (family, splits) == (family, splits_of(kernels[family]))
        operands = [kernel.metadata.operands for kernel in kernels[family]]
        found = {str(of.dtype).removeprefix("float8_") for k in operands for of in (k.A, k.B)}
        named = table["simt"][1] if "as `simt`" in types else types
        if "one type" in types:
            named = named.replace("or 4 bits", "")
        assert (family, types_in(named)) == (family, found)
        cc = least_cc(kernels[family])
        assert (f"{cc / 10}" in hardware) if cc else (hardware == "CPU")
