"""Hooks of MkDocs: pages from outside of docs/, and links that leave docs/.

Pages from outside are Markdown files, the notebooks and the findings.

Links of the pages are those of the repository. A link to a page of the site becomes a link inside
the site; another file of the repository is linked at `repo_url` (mkdocs.yml), or becomes plain text
without it.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

import findings_page
import notebook_pages
from mkdocs.structure.files import File

#: Files of the repository outside of docs/, by their place in the site.
FROM_REPOSITORY = {
    "benchmarks/index.md": "benchmarks/README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
    **{notebook_pages.place(path): f"notebooks/{path.name}" for path in notebook_pages.NOTEBOOKS},
}
#: What the home page shows of README.md: the text between two comments, in place of this one.
RESULTS = "<!-- results of README.md -->"
LINK = re.compile(r"(?P<text>!?\[[^\]]*\])\((?P<path>[^)#:\s]+)(?P<anchor>#[^)\s]*)?\)")


def root(config: Any) -> str:
    return posixpath.dirname(config.config_file_path)


def on_files(files: Any, config: Any) -> Any:
    for place, source in FROM_REPOSITORY.items():
        path = posixpath.join(root(config), source)
        if not source.endswith(".ipynb"):
            files.append(File.generated(config, place, abs_src_path=path))
            continue
        text, images = notebook_pages.page(Path(path))
        files.append(File.generated(config, place, content=text))
        for name, content in images.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    files.append(File.generated(config, "findings.md", content=findings_page.page()))
    return files


def results(readme: Path) -> str:
    """The text between README's two comments, with the links of a page in docs/."""
    found = readme.read_text("utf-8").split("<!-- results -->")[1]
    return found.partition("<!-- end of results -->")[0].replace("](docs/", "](").strip()


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    if RESULTS in markdown:
        markdown = markdown.replace(RESULTS, results(Path(root(config), "README.md")))
    places = {source: place for place, source in FROM_REPOSITORY.items()}
    here = page.file.src_uri
    folder = posixpath.dirname(FROM_REPOSITORY.get(here, f"docs/{here}"))

    def rewrite(link: re.Match[str]) -> str:
        text, anchor = link["text"], link["anchor"] or ""
        path = posixpath.normpath(posixpath.join(folder, link["path"]))
        place = places.get(path, path.removeprefix("docs/"))
        if files.get_file_from_path(place) is not None:
            return f"{text}({posixpath.relpath(place, posixpath.dirname(here))}{anchor})"
        if not posixpath.exists(posixpath.join(root(config), path)):
            return link[0]  # an error of the build, or no link
        if config.repo_url:
            return f"{text}({config.repo_url.rstrip('/')}/blob/HEAD/{path}{anchor})"
        return text[1:-1]

    return LINK.sub(rewrite, markdown)
