"""The site: its menu, its pages from outside of docs/, and what pages copy from elsewhere."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import stand_in

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))
import findings_page  # noqa: E402
import notebook_pages  # noqa: E402

FINDINGS = sorted((ROOT / "findings").glob("*"))


def test_every_page_is_in_the_menu_once() -> None:
    menu = re.findall(r"^ +- .+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    pages |= {notebook_pages.place(path) for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert len(menu) == len(set(menu)) and pages < set(menu)
    assert "findings.md" in menu


@pytest.mark.parametrize("path", FINDINGS, ids=lambda path: path.stem)
def test_a_finding_says_what_is_expected_and_what_is_true(path: Path) -> None:
    """`read` refuses other forms."""
    one = findings_page.read(path)
    section = findings_page.page().split("\n## ")[1 + FINDINGS.index(path)]
    for text in (one.expected, one.true, one.seen, f"`findings/{path.name}`"):
        assert text in section


FIRST = "#!/usr/bin/env bash"
GOOD = ("# Expected: a sum.", "# True: a", "# product.", "# Seen with: torch 2.15.0: 6.")


@pytest.mark.parametrize(
    "lines",
    [
        ("# A product.", *GOOD),
        GOOD[1:],
        GOOD[:3],
        (GOOD[0], GOOD[3], *GOOD[1:3]),
        ("", *GOOD),
        (*GOOD[:3], "# Seen with: torch."),
        (*GOOD[:3], "# Seen with: torch 2.15"),
    ],
)
def test_another_form_of_a_finding_is_refused(tmp_path: Path, lines) -> None:
    path = tmp_path / "a_sum.sh"
    path.write_text("\n".join((FIRST, *GOOD, "set -e", "# more\n")))
    assert findings_page.read(path) == findings_page.Finding(
        "a_sum", "a sum.", "a product.", "torch 2.15.0: 6."
    )
    path.write_text("\n".join((FIRST, *lines, "set -e\n")))
    with pytest.raises(ValueError, match=r"a_sum\.sh: "):
        findings_page.read(path)


@pytest.mark.parametrize("path", notebook_pages.NOTEBOOKS, ids=lambda path: path.stem)
def test_the_page_of_a_notebook_has_its_cells_and_images(path: Path) -> None:
    page, images = notebook_pages.page(path)
    cells = json.loads(path.read_text())["cells"]
    assert page.startswith("# ") and page.count("````python\n") == sum(
        cell["cell_type"] == "code" for cell in cells
    )
    assert all("".join(cell["source"]).rstrip() in page for cell in cells)
    saved = sum("image/png" in out.get("data", {}) for c in cells for out in c.get("outputs", ()))
    assert len(images) == saved and all(f"]({name})" in page for name in images)
    assert all(content.startswith(b"\x89PNG") for content in images.values())


@pytest.mark.skipif(not shutil.which("cargo"), reason="needs cargo for the emulator")
def test_a_kernel_is_tested_without_a_gpu_as_the_page_says() -> None:
    page = (ROOT / "docs/guide/own_kernels.md").read_text()
    kernel = re.search(r"```python\n(.*?)^if torch.cuda", page, re.DOTALL | re.MULTILINE)[1]
    recipe = re.search(r"```\n(from stand_in\b.*?)```", page, re.DOTALL)[1]
    assert "assert" in recipe
    stand_in.run(kernel + recipe, emulated=True)
    with pytest.raises(AssertionError):
        stand_in.run(kernel.replace("x[i] * x[i]", "x[i]") + recipe, emulated=True)


#: A layout in a name or a table, such as `tn`, `_ttt_` or `tt float16`.
LAYOUT = re.compile(r"(?<![.\w/])(?:tt|tn|nt|[tn]{3})(?![.\w/])|_[tnp]{3}_")
CODE = re.DOTALL | re.MULTILINE
#: Where the guide explains layouts.
LEGENDS = ("first_product.md#choose-a-kernel", "command_line.md#products")


@pytest.mark.parametrize(
    "name",
    ["README.md", "docs/benchmarks.md", "benchmarks/README.md"]
    + [f"docs/guide/{path.name}" for path in sorted((ROOT / "docs/guide").glob("*.md"))],
)
def test_a_page_explains_layouts_before_it_names_one(name: str) -> None:
    text = re.sub(r"^```python\n.*?^```$", "", (ROOT / name).read_text(), flags=CODE)
    used = LAYOUT.search(text)
    if used is None:
        return
    # In the paragraph or the table of the first one, or the next.
    end = text.find("\n\n", text.find("\n\n", used.end()) + 2)
    before = text[:end]
    assert any(legend in before for legend in ("row-major", *LEGENDS)), f"{name}: {before[-300:]}"


BLOCK = re.compile(r"<!-- results -->\n(.*?)<!-- end of results -->", re.DOTALL)


def table_rows(text: str) -> list[str]:
    return re.findall(r"^\| .* \|$", text, re.MULTILINE)


def test_results_of_the_readme_are_those_of_the_benchmarks() -> None:
    """And of the home page, which shows them from README.md: no page has a copy."""
    (block,) = BLOCK.findall((ROOT / "README.md").read_text())
    means = table_rows((ROOT / "docs/benchmarks.md").read_text().split("\n| | value |")[0])
    shown = table_rows(block)
    assert len(shown) > 10 and [row for row in means if row in shown] and set(shown) <= set(means)
    assert "![" in block
    facts = (ROOT / "docs/benchmarks.md").read_text()
    assert "| NVIDIA H200, " in facts and "| torch | 2.11" in facts, "as the text says"
    home = (ROOT / "docs/index.md").read_text()
    assert not set(table_rows(home)) & set(means) and "<!-- results of README.md -->" in home


def test_the_home_page_begins_with_what_is_gained() -> None:
    """The table and the plot come before the first code, which a screen shows without scrolling."""
    home = (ROOT / "docs/index.md").read_text()
    code = re.search(r"^```python\n(.*?)^```$", home, CODE)
    assert home.find("<!-- results of README.md -->") < code.start()
    assert max(map(len, code[1].splitlines())) <= 60
    ruled = home.split("## Which function do I call?")[1].split("\n## ")[0]
    guide = {f"guide/{path.name}" for path in (ROOT / "docs/guide").glob("*.md")}
    assert guide <= set(re.findall(r"\]\((guide/\w+\.md)[#)\w-]*", ruled)), "a task for each page"


def test_the_readme_names_what_a_build_needs_and_ends_with_families() -> None:
    readme = (ROOT / "README.md").read_text()
    version = re.search(r'^rust-version = "([\d.]+)"', (ROOT / "Cargo.toml").read_text(), CODE)[1]
    for name in ("README.md", "CONTRIBUTING.md", "docs/index.md"):
        assert f"Rust {version}" in (ROOT / name).read_text(), name
    project = (ROOT / "pyproject.toml").read_text()
    extras = re.search(r"optional-dependencies\]\n(.*?)\n\[", project, CODE)[1]
    users = {"cuda", "models", "bench"}
    assert users < set(re.findall(r"^(\w+) = \[", extras, re.MULTILINE))
    assert users == set(re.findall(r"pip install \.\[(\w+)\]", readme))
    assert re.findall(r"^## (.*)$", readme, re.MULTILINE)[-1] == "Families"
    assert "tcgen05" in readme.split("\n## ")[0]
