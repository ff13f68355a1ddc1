"""Checks comments, docstrings and Markdown: line length and words. `make lint` runs it.

    python scripts/lint_text.py [PATH...]    # files or folders; without any, the repository

Lines with a comment, lines of docstrings and lines of Markdown end by column 100. Exempt are lines
with a URL and, in Markdown, table rows and code fences without a language, which hold output.
Words that describe how the code came to be, or that have a better term, are refused in comments,
docstrings, names of tests and Markdown outside code. Formatters check the rest of the code.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
COLUMNS = 100
FOLDERS = ("src", "kernels", "python", "scripts", "tests", "benchmarks", "docs")
C_LIKE = {".rs", ".cu", ".cuh", ".h", ".c", ".cpp"}
SUFFIXES = C_LIKE | {".py", ".pyi", ".md"}

MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
#: What is refused, and what to write instead.
REFUSED = [
    (r"told|tells?|asked|asks|given|gives?", "name the actor and the operation, or the value"),
    (r"hand(?:s|ed|ing)? back", "release, return"),
    (r"(?:by|of) chance", "random"),
    (r"nobody|whoever", "name the subject"),
    (r"no longer(?! than)|was found|were found", "present tense"),
    (r"(?<!\bis )(?<!\bare )(?<!\bbe )used to", "present tense"),
    (rf"\d{{1,2}} (?:{MONTHS})|(?:{MONTHS}) (?:\d{{1,2}}, )?20\d\d|20\d\d-\d\d-\d\d", "no dates"),
    (r"runs? \d+|lent|lease[ds]?|sessions?", "no history of the development"),
]
REFUSED_WORDS = re.compile("|".join(rf"(\b(?:{words})\b)" for words, _ in REFUSED), re.IGNORECASE)

#: Strings, which are skipped, and comments, which are kept in the group.
C_COMMENTS = re.compile(
    r"""b?r(?P<hashes>\#*)".*?"(?P=hashes) | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\\n])'
    | (?P<comment> //[^\n]* | /\*.*?\*/ )""",
    re.DOTALL | re.VERBOSE,
)
#: The name of a test in Rust.
RUST_TEST = re.compile(r"#\[test\]\s+fn (\w+)")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def numbered(text: str, first: int) -> Iterator[tuple[int, str]]:
    yield from enumerate(text.split("\n"), first)


def python_prose(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED[1:]) and node.name.lower().startswith("test"):
            yield node.lineno, node.name.replace("_", " ")
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            yield from numbered(ast.get_source_segment(text, docstring) or "", docstring.lineno)


def c_prose(text: str) -> Iterator[tuple[int, str]]:
    for match in C_COMMENTS.finditer(text):
        if match["comment"]:
            yield from numbered(match["comment"], text.count("\n", 0, match.start()) + 1)
    for match in RUST_TEST.finditer(text):
        yield text.count("\n", 0, match.start(1)) + 1, match[1].replace("_", " ")


def markdown_prose(text: str) -> Iterator[tuple[int, str]]:
    """Lines without inline code. Code keeps its place as an empty line: only its length counts."""
    fence = None
    for number, line in numbered(text, 1):
        if line.lstrip().startswith("```"):
            fence = line.strip() if fence is None else None
        elif fence is None:
            yield number, re.sub(r"`[^`]*`", "", line)
        elif fence != "```":
            yield number, ""


def prose(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """The parts of a file that are written for people, line by line, with line numbers."""
    if path.suffix == ".md":
        return markdown_prose(text)
    if path.suffix in (".py", ".pyi"):
        return python_prose(text)
    if path.suffix in C_LIKE:
        return c_prose(text)
    return ((at, line.partition("#")[2]) for at, line in numbered(text, 1) if "#" in line)


def lint(path: Path, text: str) -> list[str]:
    """The findings in one file, each as `path:line: finding`."""
    found = set()
    lines = text.split("\n")
    for number, words in prose(path, text):
        line = lines[number - 1]
        exempt = "://" in line or (path.suffix == ".md" and line.lstrip().startswith("|"))
        if len(line) > COLUMNS and not exempt:
            found.add((number, f"{len(line)} columns, at most {COLUMNS}"))
        for match in REFUSED_WORDS.finditer(words):
            advice = REFUSED[(match.lastindex or 1) - 1][1]
            found.add((number, f"{match[0]!r}: {advice}"))
    return [f"{path}:{number}: {finding}" for number, finding in sorted(found)]


def files(roots: list[Path]) -> Iterator[Path]:
    for root in roots:
        if root.is_file():
            yield root
        else:
            yield from (path for path in sorted(root.rglob("*")) if path.suffix in SUFFIXES)


def main() -> int:
    everything = [*(ROOT / folder for folder in FOLDERS), *sorted(ROOT.glob("*.md"))]
    roots = [Path(name) for name in sys.argv[1:]] or [*everything, ROOT / "Makefile"]
    found = [finding for path in files(roots) for finding in lint(path, path.read_text("utf-8"))]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
