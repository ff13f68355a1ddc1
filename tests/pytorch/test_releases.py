"""Releases of PyTorch: the supported ones are the same everywhere, and others do no harm."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import cutlass_api.inductor
import nvidia_cutlass_stub
import pytest
import torch
from nvidia_cutlass_stub.releases import INDUCTOR, NVGEMM
from support.helpers import run_python
from support.pretended_gpu import lower

ROOT = Path(__file__).parents[2]
#: The only file that imports torch._inductor.
SHIM = ROOT / "python/cutlass_api/inductor/_torch.py"
#: What waits for modules of torch._inductor, and imports none.
WAITING = {ROOT / f"python/nvidia_cutlass_stub/{name}.py" for name in ("nvgemm", "probes")}
NEWER = ["2.16.0", "2.16.0a0+git1234567", "2.100.1", "3.0.0", "of my own"]
OLDER = ["2.10.1", "1.13.1+cu117"]
HELD = ["2.11.0", "2.13.0a0+git1234567", "2.15.1+cu132"]


# ---- one place for the range ---------------------------------------------------------------------


def pages() -> Iterator[Path]:
    for pattern in (
        *("*.md", "Makefile", "pyproject.toml", ".github/workflows/*.yml", "docs/**/*.md"),
        *("benchmarks/**/*.md", "benchmarks/**/*.py", "python/**/*.py", "scripts/*.py"),
        *("notebooks/*.ipynb", "tests/**/*.py"),
    ):
        yield from ROOT.glob(pattern)


def test_each_page_names_the_same_releases() -> None:
    found: dict[str, set[Path]] = {str(INDUCTOR): set(), str(NVGEMM): set()}
    for page in pages():
        text = " ".join(page.read_text().split())
        for named in re.findall(r"\b2\.1\d (?:to|or|-) 2\.1\d\b", text):
            assert named in found, f"{page} names PyTorch {named}"
            found[named].add(page.relative_to(ROOT))
    expected = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/guide/pytorch.md")
    for names in found.values():
        assert set(map(Path, expected)) <= names


def test_what_is_installed_to_test_are_supported_releases() -> None:
    pinned = re.search(r'"torch==(.*)"', (ROOT / "pyproject.toml").read_text())[1]
    assert pinned.startswith(f"{INDUCTOR.last[0]}.{INDUCTOR.last[1]}.")
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    assert f"torch {pinned}," in contributing and f"PyTorch {pinned[:4]} does" in contributing
    for page in (ROOT / "Makefile", ROOT / "CONTRIBUTING.md", *ROOT.glob(".github/workflows/*")):
        for version in re.findall(r'(?:TORCH=|venv-torch-|torch: ")(\d[\d.]*\d)', page.read_text()):
            assert INDUCTOR.holds(version), f"{page} installs torch {version}"
    workflow = (ROOT / ".github/workflows/tests.yml").read_text()
    matrix = re.findall(r'\{ python: "(.*)", torch: "(.*)" \}', workflow)
    for python in {python for python, _ in matrix}:
        versions = [torch for other, torch in matrix if other == python]
        # PyTorch 2.15 needs Python 3.11.
        newest = "2.14.1" if python == "3.10" else pinned
        assert versions == [f"{INDUCTOR.first[0]}.{INDUCTOR.first[1]}.0", newest], python


# ---- one importer of torch._inductor -------------------------------------------------------------


def uses(source: str) -> list[str]:
    """The lines that import torch._inductor, or reach it by another way. `"torch._inductor" in
    sys.modules` only looks."""
    tree = ast.parse(source)
    looks = {
        node.left
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and ast.unparse(node.comparators[0]) == "sys.modules"
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
        elif isinstance(node, ast.Constant) and node not in looks:
            # Prose has spaces.
            names = [node.value] if re.fullmatch(r"[\w.]+", str(node.value)) else []
        else:
            continue
        found += [node.lineno for name in names if str(name).startswith("torch._inductor")]
    lines = source.splitlines()
    return list(dict.fromkeys(lines[at - 1].strip() for at in found))


def test_one_file_imports_inductor() -> None:
    files = {*ROOT.glob("python/**/*.py"), *ROOT.glob("benchmarks/**/*.py")}
    others = files - {SHIM} - WAITING
    found = {str(file.relative_to(ROOT)): uses(file.read_text()) for file in others}
    assert {file: lines for file, lines in found.items() if lines} == {}
    assert uses(SHIM.read_text())


@pytest.mark.parametrize(
    "line",
    [
        "import torch._inductor.config",
        "from torch._inductor import config",
        "from torch import _inductor",
        "torch._inductor.config.max_autotune = True",
        "x = import_module('torch._inductor.utils')",
        "x = sys.modules.get('torch._inductor.utils')",
    ],
)
def test_every_way_to_import_inductor_is_found(line: str) -> None:
    assert uses(f"import sys\n{line}\n") == [line]
    harmless = "x = 'torch._inductor' in sys.modules\n'''See torch._inductor.config.'''\n"
    assert uses(harmless) == []


# ---- releases that are not supported -------------------------------------------------------------


@pytest.mark.parametrize("version", [*OLDER, *HELD, *NEWER])
def test_versions_have_a_place(version: str) -> None:
    places = INDUCTOR.follows(version), INDUCTOR.holds(version), INDUCTOR.precedes(version)
    assert places == (version in OLDER, version in HELD, version in NEWER)


@pytest.mark.parametrize("version", NEWER)
def test_a_newer_torch_warns_once(version: str, monkeypatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    cutlass_api.inductor._warn_of_newer.cache_clear()
    with pytest.warns(UserWarning) as warned:
        cutlass_api.inductor.enable()
        cutlass_api.inductor.enable(candidates=2)
        with cutlass_api.inductor.enabled():
            assert cutlass_api.inductor.is_enabled() is None
    (message,) = (str(each.message) for each in warned if "cutlass_api" in str(each.message))
    assert version in message and str(INDUCTOR) in message and "rutlass" in message
    cutlass_api.inductor.disable()  # does nothing
    with pytest.raises(ValueError, match="candidates is 0"):
        cutlass_api.inductor.enable(candidates=0)


@pytest.mark.filterwarnings("ignore:cutlass_api.inductor supports")
def test_a_newer_torch_compiles_as_without_us(monkeypatch) -> None:
    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.relu(a @ b)

    inputs = [torch.ones(192, 256).half(), torch.ones(256, 320).half()]
    with cutlass_api.inductor.enabled():
        assert "cutlass_api" in lower(function, inputs).code
    monkeypatch.setattr(torch, "__version__", "2.16.0a0+git1234567")
    with cutlass_api.inductor.enabled():
        lowered = lower(function, inputs)
    assert "cutlass_api" not in str(lowered.graph) + lowered.code
    assert "extern_kernels.mm(" in lowered.code


@pytest.mark.parametrize("version", OLDER)
def test_an_older_torch_is_refused(version: str, monkeypatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    message = f"needs PyTorch {INDUCTOR}, and this is {version}"
    with pytest.raises(RuntimeError, match=re.escape(message)):
        cutlass_api.inductor.enable()
    assert cutlass_api.inductor.is_enabled() is None
    cutlass_api.inductor.disable()


@pytest.mark.parametrize("version", [*OLDER, *HELD, *NEWER])
def test_the_stand_in_answers_torch_s_probes_where_nvgemm_is_ours(version, monkeypatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    assert nvidia_cutlass_stub.is_wanted(is_probe=True) == NVGEMM.holds(version)
    assert nvidia_cutlass_stub.is_wanted(is_probe=False)


#: A torch of a version in which modules are gone for our packages: their import fails.
GONE = """
    import builtins, sys, warnings
    import torch

    def import_(name, globals=None, *rest, **named):
        importer = (globals or {}).get("__name__", "").partition(".")[0]
        if importer in ("cutlass_api", "nvidia_cutlass_stub") and name.startswith(tuple(gone)):
            raise ImportError(f"{name} is gone")
        return import_before(name, globals, *rest, **named)

    version, *gone = sys.argv[1:]
    torch.__version__ = type(torch.__version__)(version)
    import_before, builtins.__import__ = builtins.__import__, import_
    a, b = torch.ones(4, 8), torch.ones(8, 4)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
"""


def test_a_torch_without_inductor_s_private_names_warns(autoload: dict[str, str]) -> None:
    """Operators are registered, differentiate and compile."""
    code = """
        torch.compile(torch.mm)(a, b)  # torch looks for packages
        import cutlass_api, cutlass_api.inductor
        cutlass_api.inductor.enable()
        a.requires_grad_()
        out = torch.compile(lambda a, b: cutlass_api.matmul(a @ b, a), fullgraph=True)(a, b)
        out.sum().backward()
    (message,) = (str(each.message) for each in warned if "cutlass_api" in str(each.message))
    assert version in message and (out == 32).all() and a.grad is not None
    try:
        import cutlass_api.inductor._torch
    except ImportError:
        print("gone")
    """
    environment = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", **autoload}
    out = run_python(GONE + code, "2.16.0a0", "torch._inductor", timeout=120, **environment)
    assert out == "gone\n"


PRIVATE = ("torch._inductor", "torch._functorch", "torch._subclasses", "torch._dynamo")


def test_a_torch_without_the_private_names_of_operators_warns(autoload: dict[str, str]) -> None:
    """Products without operators still run."""
    code = """
        import cutlass_api, cutlass_api.inductor
        cutlass_api.inductor.enable()
        out = torch.empty(4, 4)
        cutlass_api.matmul(a, b, out)
    first, second = (str(each.message) for each in warned if "cutlass_api" in str(each.message))
    assert first.startswith("cutlass_api serves torch in part") and "is gone" in first
    assert version in second
    assert (out == 8).all() and cutlass_api.get_kernels()
    """
    run_python(GONE + code, "2.16.0", *PRIVATE, **autoload)
