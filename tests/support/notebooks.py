"""Runs of notebooks cell by cell, without a GPU, and what their saved outputs say."""

import json
import re
from html import unescape
from pathlib import Path

from support.helpers import run_python

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
#: Sentences of a notebook's first cell.
SAVED_WITHOUT_A_GPU = "The saved outputs are from a machine without a GPU"
NEEDS_A_GPU = "It needs a CUDA GPU"

#: Runs the code of a notebook cell by cell, in its folder, with sources that `inspect` and
#: tracebacks find. `run(cell)` runs one.
CELLS = """
    import json, linecache, os, sys
    names = {"__name__": "__main__"}
    cells = json.load(open(sys.argv[1]))["cells"]
    os.chdir(os.path.dirname(sys.argv[1]))

    def run(at):
        source, file = "".join(cells[at]["source"]), f"<cell {at}>"
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
        print(f"=== cell {at}", flush=True)
        exec(compile(source, file, "exec"), names)

    code = [at for at, cell in enumerate(cells) if cell["cell_type"] == "code"]
"""
ON_THE_CPU = f"""{CELLS}
    for at in code:
        run(at)
"""
#: With FakeTensors of a Hopper GPU: searches and compiles, and ends a cell where it runs something.
ON_FAKE_TENSORS = f"""{CELLS}
    import functools, torch, cutlass_api
    from torch._subclasses.fake_tensor import FakeTensorMode

    def get_kernels(args=None, metadata_filter=None, cc=90, **options):
        return search(args, metadata_filter, cc=cc, **options)

    search, cutlass_api.get_kernels = cutlass_api.get_kernels, get_kernels
    cutlass_api.utils.is_device_cc_supported = lambda ccs: True
    cutlass_api.utils.device_cc = lambda *device: 90
    torch.cuda.get_device_name = lambda *device: "a GPU"
    with FakeTensorMode(allow_non_fake_inputs=True):
        for at in code:
            try:
                run(at)
            except (Exception, SystemExit):
                pass
            sys.stdout.flush()
"""

KERNEL = re.compile(r"(?<!\w)(?:sm90|sm80|skinny|simt|reference)_\w+")


def code_cells(path: Path) -> dict[int, dict]:
    cells = enumerate(json.loads(path.read_text())["cells"])
    return {at: cell for at, cell in cells if cell["cell_type"] == "code"}


def states(path: Path, sentence: str) -> bool:
    """Whether the first cell of a notebook contains a sentence."""
    first = json.loads(path.read_text())["cells"][0]
    return sentence in "".join(first["source"]).replace("\n", " ")


def saved(path: Path) -> dict[int, str]:
    """What each code cell has printed, without the marks of HTML."""

    def text(output: dict) -> str:
        table = "".join(output.get("data", {}).get("text/html", ()))
        return "".join(output.get("text", ())) + unescape(re.sub(r"<[^>]+>", "", table))

    cells = code_cells(path).items()
    return {at: "".join(map(text, cell["outputs"])) for at, cell in cells}


def printed(script: str, path: Path) -> dict[int, str]:
    """What each code cell prints under one of the scripts."""
    variables = {"CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "Agg"}
    is_fake = script == ON_FAKE_TENSORS
    # torch may abort a process without a driver.
    said = run_python(script, path, timeout=120, is_warm=True, check=not is_fake, **variables)
    parts = re.split(r"^=== cell (\d+)\n", said, flags=re.MULTILINE)[1:]
    return {int(at): text for at, text in zip(parts[::2], parts[1::2], strict=True)}


def lines(text: str, with_counts: bool = True) -> set[str]:
    """Lines without what depends on the machine and on the ranking: times, sizes of programs,
    decimals, devices, names of kernels and values of metadata.

    ``with_counts``: whether other integers stay.
    """
    text = KERNEL.sub("KERNEL", text)
    text = re.sub(r"(\w+Metadata)\((.*)\)", _field_names, text)
    text = text.replace(" (FakeTensor)", "").replace("cuda:0", "cpu")
    text = re.sub(
        r"0x[0-9a-f]+|\d+\.\d+(e[+-]?\d+)?|\d+(?= (us|ms|s|bytes|registers)\b)", "#", text
    )
    if not with_counts:
        text = re.sub(r"\d+", "#", text)
    # Tables of torch's profiler differ by its version.
    kept = [line for line in text.splitlines() if line.strip() and "aten::" not in line]
    return {" ".join(line.split()) for line in kept}


def differing(path: Path, said: dict[int, str], *, is_whole: bool) -> list[str]:
    """What a run prints and the saved outputs do not: lines, or names of a repr.

    ``said``: by cell. ``is_whole``: whether all lines of the run are to be in the outputs, with
    their counts; else those of cells that print errors.
    """
    found = []
    cells, outputs = code_cells(path), saved(path)
    for at, text in list(said.items())[1:]:  # the first one prints the machine
        if is_whole or "except " in "".join(cells[at]["source"]):
            missing = lines(text, is_whole) - lines(outputs[at], is_whole)
            found += [f"cell {at}: {line}" for line in sorted(missing)]
        names = set(re.findall(r"<([A-Z]\w+) ", text))
        found += [f"cell {at}: <{name} ...>" for name in names if f"{name}(" in outputs[at]]
    return found


def _field_names(match: re.Match[str]) -> str:
    fields = re.findall(r"(?:^|, )(\w+)=", match[2])
    return f"{match[1]}({', '.join(fields)})"
