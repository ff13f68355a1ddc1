"""The site's pages of the notebooks, with their saved outputs. `docs_hooks.py` adds them."""

import base64
import json
from pathlib import Path
from typing import Any

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))


def place(path: Path) -> str:
    """Where the page of a notebook is in the site."""
    return f"notebooks/{path.stem}.md"


def page(path: Path) -> tuple[str, dict[str, bytes]]:
    """The page in Markdown, and its images by file name, which lie beside it."""
    parts, images = [], {}
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(_fence(source, "python"))
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}_{len(images)}.png"
                images[name] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![plot]({name})")
            elif "text/html" in data:
                parts.append(_html(data["text/html"]))
            else:
                parts.append(_fence("".join(output.get("text") or data.get("text/plain", ""))))
    return "\n\n".join(parts) + "\n", images


def _fence(text: str, language: str = "") -> str:
    # Longer than any fence inside.
    return f"````{language}\n{text.rstrip()}\n````"


def _html(parts: Any) -> str:
    # An empty line would end HTML in Markdown.
    return "\n".join(line for line in "".join(parts).splitlines() if line.strip())
