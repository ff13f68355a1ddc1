"""The layout of src/: short files, no import cycles, and folders that import downwards only."""

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"
MAX_LINES = 500
#: The folders from the top: each imports only later ones.
FLOORS = ["python", "tune", "launch", "compile", "kernel"]
FLOORS += ["reference", "problem", "epilogue", "operand", "driver", "process"]

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


@pytest.mark.parametrize(
    "module", MODULES.values(), ids=lambda module: str(module.path.relative_to(SRC))
)
def test_files_are_short(module):
    assert module.path.read_text().count("\n") <= MAX_LINES


def test_imports_form_no_circle():
    graph = {module: imports(module) for module in MODULES.values()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        names = [str(module.path.relative_to(SRC)) for module in reversed(error.args[1])]
        pytest.fail("a circle of imports: " + " -> ".join(names))


def test_folders_import_downwards():
    assert {module.place[0] for module in MODULES.values() if module.place} <= set(FLOORS)
    upwards = [
        f"{module.path.relative_to(SRC)} imports {other.path.relative_to(SRC)}"
        for module in MODULES.values()
        for other in imports(module)
        if module.place and FLOORS.index(module.place[0]) > FLOORS.index(other.place[0])
    ]
    assert not upwards
