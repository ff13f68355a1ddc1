"""scripts/lint_text.py: comments, docstrings and Markdown that it refuses or accepts."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
import lint_text

LONG = "word " * 20


def findings(name, text):
    return [
        finding.removeprefix(f"{name}:").split(": ")[:2]
        for finding in lint_text.lint(Path(name), text)
    ]


@pytest.mark.parametrize(
    "name, text, lines",
    [
        ("a.rs", f"let a = 1; // {LONG}\n", ["1"]),
        ("a.rs", f'let a = "{LONG}// {LONG}";\n', []),
        ("a.rs", f'let a = r#"\n// {LONG} "\n"#; let b: &\'static str = c; // {LONG}', ["3"]),
        ("a.cuh", f"/* short\n * {LONG}short\n */ int a;\n", ["2"]),
        ("a.cu", f"int a;  // see https://docs.nvidia.com {LONG}", []),
        ("a.py", f'"""Short.\n\n{LONG}longer"""\nA = "{LONG}longer still"\n', ["3"]),
        ("a.py", f"def f():\n    '''Short.'''\n    return 1  # {LONG}\n", ["3"]),
        ("a.md", f"{LONG}longer\n| {LONG} |\n", ["1"]),
        ("a.md", f"```\n{LONG}longer\n```\n```python\n{LONG}longer\n```\n", ["5"]),
        ("Makefile", f"a: # {LONG}\n\t{LONG}longer\n", ["1"]),
    ],
)
def test_long_lines(name, text, lines):
    found = findings(name, text)
    assert [line for line, _ in found] == lines
    assert all(reason.endswith("columns, at most 100") for _, reason in found)


@pytest.mark.parametrize(
    "text, word",
    [
        ("The kernel is told the strides.", "'told'"),
        ("The given stream.", "'given'"),
        ("A warpgroup hands back its stages.", "'hands back'"),
        ("Shapes made by chance.", "'by chance'"),
        ("The lock is no longer held.", "'no longer'"),
        ("This used to be slow.", "'used to'"),
        ("Measured on 23 November.", "'23 November'"),
        ("Measured on 2026-11-23.", "'2026-11-23'"),
        ("As since run 20.", "'run 20'"),
        ("A lent machine.", "'lent'"),
        ("A name no longer than 72 characters.", None),
        ("A flag that is used to select the tile.", None),
        ("Release the stage, silently.", None),
        ("`given` is a parameter.", None),
    ],
)
def test_words(text, word):
    expected = [["1", word]] if word else []
    assert findings("a.md", text) == expected
    if "`" not in text:
        assert findings("a.py", f"# {text}\n") == expected
        assert findings("a.rs", f"/// {text}\n") == expected
        assert findings("a.rs", f'let message = "{text}";\n') == []


@pytest.mark.parametrize(
    "name, text",
    [
        ("a.py", "def test_the_error_is_told():\n    pass\n"),
        ("a.rs", "#[test]\nfn the_error_is_told() {}\n"),
    ],
)
def test_names_of_tests(name, text):
    (found,) = findings(name, text)
    assert found[1] == "'told'"
    assert findings(name, text.replace("told", "raised")) == []
    assert findings(name, text.replace("test", "any")) == [], "other functions are code"
