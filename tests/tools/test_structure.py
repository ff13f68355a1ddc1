"""The layout of the sources: short files, no circles of imports, and folders that import downwards
only. A test file imports no other test file.
"""

import ast
import re
import subprocess
from graphlib import CycleError, TopologicalSorter

import pytest
from support import ROOT

SRC, KERNELS, PYTHON = ROOT / "src", ROOT / "kernels", ROOT / "python"
MAX_LINES = 500
#: The folders of src/ from the top: each imports only later ones.
FLOORS = ["python", "tune", "launch", "compile", "kernel"]
FLOORS += ["reference", "problem", "epilogue", "xla", "operand", "driver", "process"]
#: The modules of cutlass_api from the top: each imports only those of later floors.
PYTHON_FLOORS = [
    {"__main__"},
    {"_commands"},
    {"bench"},
    {"transformers"},
    {"jax"},
    {"inductor", "nn"},
    {"distributed", "quantize"},
    {"ops"},
    {"weights"},
    {"operators"},
    {"providers", "profiling", "manifest"},
    {"cuda", "explanation", "tuning", "utils"},
    {"metadata", "inspection", "_cutlass_stub"},
    {
        "_batches",
        "_checks",
        "_dtypes",
        "_calls",
        "_faces",
        "_log",
        "_progress",
        "_ranges",
        "_tables",
        "_tracing",
    },
    {"arguments", "artifact", "config", "fusion", "kernel", "library", "status", "typing"},
    {"_core"},
]
#: Imports that run up, each with its reason.
UPWARDS = {
    ("nn", "transformers"): "for a model of transformers, whose save_pretrained calls a quantizer",
}
#: The folders of kernels/ from the top; files beside them come first.
KERNEL_FLOORS = ["", "ladder", "sm90", "sm80", "skinny", "quantize", "common"]
#: Folders of src/kernel/ that import folders which import them.
KERNEL_CIRCLES = {"cost": "the cost models read the configurations of their families"}
#: Files to check, and those without a limit: the stub has as many lines as the extension has items.
CHECKED = ("src", "kernels", "python", "tests", "benchmarks", "scripts")
SOURCES = {".rs", ".cuh", ".cu", ".cpp", ".c", ".h", ".py", ".pyi"}
UNLIMITED = {"python/cutlass_api/_core.pyi"}

#: Comments and strings, which contain no imports.
TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|r(\#*)".*?"\1|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\\n])\'', re.S)
USE = re.compile(r"\b(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);")
#: A declaration or import of a module, with its attributes. A facade contains nothing else.
DECLARATION = re.compile(r"#!?\[[^\]]*\]|(?:pub(?:\([^)]*\))?\s+)?(?:mod\s+\w+\s*;|use\s[^;]+;)")


def expanded(tree):
    """The paths of a `use` tree, each with the name that it is imported as."""
    head, brace, rest = tree.strip().partition("{")
    if not brace:
        path, _, alias = head.partition(" as ")
        segments = path.strip().split("::")
        if segments[-1] == "self":
            segments.pop()
        return [(segments, alias.strip() or segments[-1])]  # a glob is named *
    branches, depth, start = [], 0, 0
    inside = rest.rpartition("}")[0] + ","
    for at, letter in enumerate(inside):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            branches.append(inside[start:at])
            start = at + 1
    return [pair for branch in branches if branch.strip() for pair in expanded(head + branch)]


class Module:
    """A file of src/: its place in the crate, what it imports, and whether it holds code."""

    def __init__(self, path):
        self.path = path
        parts = path.relative_to(SRC).with_suffix("").parts
        self.place = () if parts == ("lib",) else parts[:-1] if parts[-1] == "mod" else parts
        # A file's tests are at its end.
        code = TEXT.sub("", path.read_text()).partition("#[cfg(test)]\nmod tests {")[0]
        self.children = set(re.findall(r"\bmod\s+(\w+)\s*;", code))
        self.is_facade = path.stem in ("mod", "lib") and not DECLARATION.sub("", code).strip()
        body = USE.sub("", code)
        self.names, self.imports = {}, []
        for public, tree in USE.findall(code):
            for segments, alias in expanded(" ".join(tree.split())):
                self.names[alias] = self.absolute(segments)
                # A pure re-export is not an import.
                if not public or re.search(rf"\b{re.escape(alias)}\b", body):
                    self.imports.append(self.names[alias])
        for path in re.findall(r"(?<![\w:])\w+(?:::\w+)+", body):
            self.imports.append(self.absolute(path.split("::")))

    def absolute(self, segments):
        """A path as segments from the root of the crate; None outside of it."""
        first, *rest = segments
        if first == "crate":
            return tuple(rest)
        if first == "self":
            return (*self.place, *rest)
        if first == "super":
            place = self.place[:-1]
            while rest and rest[0] == "super":
                place, rest = place[:-1], rest[1:]
            return (*place, *rest)
        if first in self.children:
            return (*self.place, *segments)
        imported = self.names.get(first)
        return (*imported, *rest) if imported is not None else None


MODULES = {module.place: module for module in map(Module, sorted(SRC.rglob("*.rs")))}


def defining(path):
    """The module that holds the code behind a path; None for a facade itself."""
    for length in range(len(path), -1, -1):
        module = MODULES.get(path[:length])
        if module is None:
            continue
        rest = path[length:]
        behind = module.names.get(rest[0]) if rest else None
        if behind is not None and behind[: length + 1] != path[: length + 1]:
            return defining((*behind, *rest[1:]))
        return None if module.is_facade else module
    return None


def imports(module):
    """The modules whose code a module uses."""
    if module.is_facade:
        return set()
    found = (defining(path) for path in module.imports if path is not None)
    return {other for other in found if other not in (None, module)}


def tracked():
    """The source files of the repository, or of a copy without git."""
    listed = subprocess.run(["git", "ls-files", *CHECKED], cwd=ROOT, capture_output=True, text=True)
    paths = [ROOT / line for line in listed.stdout.splitlines()]
    paths = paths or [path for folder in CHECKED for path in (ROOT / folder).rglob("*")]
    return [path for path in paths if path.suffix in SOURCES and path.exists()]


def check_circles(graph, name):
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("a circle of imports: " + " -> ".join(map(name, reversed(error.args[1]))))


def test_files_are_short():
    lines = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in tracked()}
    assert len(lines) > 500 and "kernels/sm90.cuh" in lines
    long = {path: count for path, count in lines.items() if count > MAX_LINES}
    assert long.keys() <= UNLIMITED, long


# src/


def test_imports_form_no_circle():
    graph = {module: imports(module) for module in MODULES.values()}
    check_circles(graph, lambda module: str(module.path.relative_to(SRC)))


def test_folders_import_downwards():
    assert {module.place[0] for module in MODULES.values() if module.place} <= set(FLOORS)
    upwards = [
        f"{module.path.relative_to(SRC)} imports {other.path.relative_to(SRC)}"
        for module in MODULES.values()
        for other in imports(module)
        if module.place and FLOORS.index(module.place[0]) > FLOORS.index(other.place[0])
    ]
    assert not upwards


def test_folders_of_kernels_form_no_circle():
    graph = {}
    for module in MODULES.values():
        for other in imports(module):
            if module.place[:1] == other.place[:1] == ("kernel",):
                ours, theirs = (each.path.parent.name for each in (module, other))
                if "kernel" not in (ours, theirs) and ours not in ({theirs} | {*KERNEL_CIRCLES}):
                    graph.setdefault(ours, set()).add(theirs)
    assert graph["sm90"] == {"cost"}, "families import no other family"
    check_circles(graph, str)


# kernels/


def test_kernels_include_downwards():
    graph = {}
    for path in KERNELS.rglob("*.cuh"):
        names = re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE)
        graph[path] = {KERNELS / name for name in names}
    assert all(path.exists() for paths in graph.values() for path in paths)

    def floor(path):
        return KERNEL_FLOORS.index("" if path.parent == KERNELS else path.parent.name)

    upwards = [(a, b) for a, paths in graph.items() for b in paths if floor(a) > floor(b)]
    assert not upwards and sum(map(len, graph.values())) > 100
    check_circles(graph, lambda path: str(path.relative_to(KERNELS)))


# Python.


def python_imports(path, root):
    """Modules that a file imports, each with whether the import is outside of functions. Imports
    for a type checker do not count.
    """
    package = path.relative_to(root).parts[:-1]
    found = []

    def visit(node, at_start):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend((tuple(alias.name.split(".")), at_start) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = package[: len(package) - child.level + 1] if child.level else ()
                base += tuple(child.module.split(".")) if child.module else ()
                found.extend(((*base, alias.name), at_start) for alias in child.names)
            elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                continue
            is_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            visit(child, at_start and not is_function)

    visit(ast.parse(path.read_text()), True)
    return found


def python_graph(root, folder, *, lazy):
    """Each file of a folder with the files of it that it imports, by their places below `root`.
    Imports of an `__init__` are of what it exports, and it imports nothing.
    """
    places = {}
    for path in (root / folder).rglob("*.py"):
        *parents, name = path.relative_to(root).with_suffix("").parts
        places[tuple(parents if name == "__init__" else [*parents, name])] = path
    graph = {}
    for place, path in places.items():
        found = graph.setdefault(place, set())
        for name, at_start in python_imports(path, root) if path.stem != "__init__" else ():
            ends = [name[:end] for end in (len(name), len(name) - 1) if name[:end] in places]
            if ends and (lazy or at_start) and ends[0] != place:
                found.add(ends[0])
            elif not ends and name[:2] == ("cutlass_api", "_core"):
                found.add(name[:2])
    return graph


def dotted(place):
    return ".".join(place)


@pytest.mark.parametrize("root, folder", [(PYTHON, "cutlass_api"), (ROOT, "benchmarks")], ids=str)
def test_python_imports_form_no_circle(root, folder):
    graph = python_graph(root, folder, lazy=False)
    assert sum(map(len, graph.values())) > 5
    check_circles(graph, dotted)


def test_python_modules_import_downwards():
    floors = {name: at for at, names in enumerate(PYTHON_FLOORS) for name in names}
    graph = python_graph(PYTHON, "cutlass_api", lazy=True)
    assert {place[1] for place in graph if len(place) > 1} | {"_core"} == floors.keys()
    upwards = [
        f"{dotted(place)} imports {dotted(other)}"
        for place, others in graph.items()
        for other in others
        if len(place) > 1
        and len(other) > 1
        and place[1] != other[1]
        and (place[1], other[1]) not in UPWARDS
        and floors[place[1]] >= floors[other[1]]
    ]
    assert not upwards


def test_the_package_imports_nothing_around_it():
    outside = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"python"}
    names = {name[0] for path in PYTHON.rglob("*.py") for name, _ in python_imports(path, PYTHON)}
    assert "torch" in names and not names & (outside | {"support", "stand_in"})


# tests/


#: An import of a test file, also in the text of a script.
OF_A_TEST = re.compile(r"^\s*(?:from|import) (?:\w+\.)*(test_\w+)", re.MULTILINE)


def test_test_files_import_no_other():
    paths = list((ROOT / "tests").rglob("*.py"))
    tests = {path.stem for path in paths if path.stem.startswith("test_")}
    assert len(tests) > 60
    for path in paths:
        others = tests & {*OF_A_TEST.findall(path.read_text())} - {path.stem}
        assert not others, f"{path} imports {others}"


def test_helpers_of_tests_form_no_circle():
    for folder in ("support", "stand_in", "fuzz", "operators"):
        check_circles(python_graph(ROOT / "tests", folder, lazy=False), dotted)


def test_factors_of_cost_models_have_names_of_their_own():
    """`scripts/fit.py` finds a factor by its name."""
    sources = "".join(path.read_text() for path in (ROOT / "src/kernel").rglob("*.rs"))
    names = re.findall(r"^ +(?:pub )?(fitted_\w+) = [^;]+;$", sources, re.MULTILINE)
    assert len(names) > 40 and len(set(names)) == len(names)
