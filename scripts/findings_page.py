"""The site's page of findings, from the first lines of the scripts in findings/.

Each script begins with comments of this form, which `read` checks:

    #!/usr/bin/env bash
    # Expected: what one would expect.
    # True: what is true instead.
    # Seen with: the package and its version, and what the script printed.

`docs_hooks.py` adds the page to the site.
"""

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "findings"
LABELS = ("Expected", "True", "Seen with")
INTRO = """\
# Findings

Other packages do not always do what one would expect. Each entry below is a script of `findings/`
that shows a difference on the versions it names: it creates an environment of its own, installs
these versions, and prints what it sees. None of the scripts needs a GPU.
"""


@dataclass(frozen=True)
class Finding:
    """``name``: of the script. The others: the text behind each of :data:`LABELS`."""

    name: str
    expected: str
    true: str
    seen: str


def read(path: Path) -> Finding:
    """The finding of a script. Raises ValueError if its first lines have another form."""
    first, *lines = path.read_text("utf-8").splitlines()
    comments: list[str] = []
    for line in lines:
        if not line.startswith("#"):
            break
        comments.append(line.removeprefix("#").strip())
    text = " ".join(comments)
    form = " ".join(rf"{label}: (\S.*?\.\"?)" for label in LABELS)
    match = re.fullmatch(form, text)
    if first != "#!/usr/bin/env bash" or match is None:
        raise ValueError(
            f"{path}: begin with #!/usr/bin/env bash and comments `Expected: ...`, `True: ...` and "
            "`Seen with: ...`, each of whole sentences"
        )
    if not re.search(r"\d+\.\d+", match[3]):
        raise ValueError(f"{path}: `Seen with: {match[3]}` names no version; add it")
    return Finding(path.stem, match[1], match[2], match[3])


def page() -> str:
    """The page in Markdown: a section for each script."""
    parts = [INTRO]
    for path in sorted(FOLDER.glob("*.sh")):
        one = read(path)
        title = one.name.replace("_", " ")
        texts = (one.expected, one.true, one.seen)
        lines = [f"- {label}: {text}" for label, text in zip(LABELS, texts, strict=True)]
        script = f"- Script: `findings/{path.name}`"
        parts.append("\n".join([f"## {title[0].upper()}{title[1:]}", "", *lines, script, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    print(page())
