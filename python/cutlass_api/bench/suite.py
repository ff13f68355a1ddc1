"""``bench all``: every benchmark of one GPU, each in a process of its own.

A section that fails or exceeds its time limit costs only its own results. Benchmarks write their
JSON after each row, so that the rows before a time limit are kept.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from cutlass_api.bench import compile as compile_bench
from cutlass_api.bench import llama

PROGRAM = [sys.executable, "-m", "cutlass_api"]
#: What an interrupted benchmark has to end.
GRACE_SECONDS = 10


@dataclass(frozen=True)
class Section:
    """One process, and one section of the page.

    - ``arguments``: of `python -m cutlass_api bench`. ``{tables}`` is the folder of tables of
      shapes.
    - ``quick``: the arguments with ``--quick``; None leaves the section out.
    """

    name: str
    title: str
    arguments: tuple[str, ...]
    quick: tuple[str, ...] | None

    @property
    def bench(self) -> str:
        return self.arguments[0]


def _gemm(name: str, title: str, table: str, dtypes: Sequence[str], is_quick: bool) -> Section:
    shapes = ("--shapes", f"{{tables}}/{table}_shapes.json")
    quick = ("gemm", "--dtype", *dtypes) if is_quick else None
    return Section(f"gemm_{name}", title, ("gemm", *shapes, "--dtype", *dtypes), quick)


def _llama(kind: str) -> Section:
    arguments = ("llama", "--dtype", kind)
    quick = (*arguments, "--rows", "16,1024", "--no-triton")
    return Section(f"llama_{kind}", f"Weights of a Llama, {kind}", arguments, quick)


def _compile(model: str) -> Section:
    arguments = ("compile", "--models", model)
    quick = (*arguments, "--quick", "--tokens", "16") if model in ("mlp", "epilogue") else None
    return Section(f"compile_{model}", f"torch.compile, {model}", arguments, quick)


SECTIONS = (
    Section("limits", "Limits of the GPU", ("limits",), ("limits",)),
    Section("latency", "Host time of a launch", ("latency",), ("latency",)),
    _gemm("float16", "GEMM, float16", "public", ["float16"], True),
    _gemm("bfloat16", "GEMM, bfloat16", "public", ["bfloat16"], True),
    _gemm("weak", "GEMM, weak shapes", "weak", ["bfloat16"], False),
    _gemm("exact", "GEMM, float32 and float64", "exact", ["float32", "float64"], False),
    Section("ladder", "The ladder, float16", ("ladder",), ("ladder",)),
    *map(_llama, llama.KINDS),
    Section("quantize", "Quantization", ("quantize",), ("quantize",)),
    # NVGEMM is a backend of torch, which takes a version that has it.
    *(_compile(model) for model in compile_bench.MODELS if model != "nvgemm"),
)
NAMES = tuple(
    dict.fromkeys([*(each.bench for each in SECTIONS), *(each.name for each in SECTIONS)])
)


def chosen(names: Iterable[str], is_quick: bool) -> list[Section]:
    """The sections of these names; a benchmark's name stands for all its sections. Raises
    ValueError for another name.
    """
    wanted = list(names)
    for name in wanted:
        if name not in NAMES:
            raise ValueError(f"there is no section {name!r}; choose from {', '.join(NAMES)}")
    return [
        each
        for each in SECTIONS
        if (not wanted or each.name in wanted or each.bench in wanted)
        and not (is_quick and each.quick is None)
    ]


def arguments(section: Section, tables: Path, is_quick: bool) -> list[str]:
    """The arguments of a section's process behind `bench`. Raises ValueError if its table of shapes
    does not exist.
    """
    parts = (section.quick or ()) if is_quick else section.arguments
    found = [part.format(tables=tables) for part in parts]
    for before, name in pairwise(found):
        if before == "--shapes" and not Path(name).is_file():
            raise ValueError(
                f"{name} does not exist; run in a checkout of Rutlass, or pass its folder as "
                "--tables"
            )
    return found


def environment() -> dict[str, str]:
    """The facts of `python -m cutlass_api env`, from a process of its own."""
    results, failure = _run(["env"], 120, quiet=True)
    if results is None:
        raise ValueError(f"`python -m cutlass_api env` failed: {failure}")
    return dict(results)


def measure(
    commands: dict[str, list[str]],
    limit: float,
    seconds: float,
    show: Callable[[str, dict[str, Any]], None],
) -> None:
    """Runs the sections, by name with their arguments behind `bench`. Calls ``show`` with the name
    and the result of each.

    ``limit``: seconds of one section. ``seconds``: of all.
    """
    end = time.monotonic() + seconds
    for name, parts in commands.items():
        begin = time.monotonic()
        left = min(limit, end - begin)
        results, failure = None, "not started: no time left"
        if left > 0:
            results, failure = _run(["bench", *parts], left)
        command = shlex.join(["python", "-m", "cutlass_api", "bench", *parts])
        show(
            name,
            {
                "command": command,
                "seconds": round(time.monotonic() - begin),
                "failure": failure,
                "results": results,
            },
        )


def _run(parts: list[str], seconds: float, quiet: bool = False) -> tuple[Any, str]:
    """The JSON that a command writes, None without, and why it failed, else an empty string."""
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/errors", "w+b") as errors:
        path = Path(folder, "results.json")
        process = subprocess.Popen(
            [*PROGRAM, *parts, "--json", str(path)],
            stdout=subprocess.DEVNULL if quiet else None,
            stderr=errors,
            start_new_session=True,
        )
        failure = ""
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            failure = f"stopped after {seconds:.0f} s"
        finally:
            # Also the workers of a process that ended, and on Ctrl-C.
            _stop(process)
        errors.seek(0)
        printed = errors.read().decode(errors="replace")
        if not failure and status:
            lines = printed.strip().splitlines() or ["no message"]
            failure = f"exit status {status}: {lines[-1].strip()}"
        if failure:
            sys.stderr.write(printed)
        try:
            return json.loads(path.read_text("utf-8")), failure
        except (OSError, ValueError):  # not written, or stopped while it was written
            return None, failure or "it wrote no results"


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """Ends a process and its workers, which must not run beside the next section."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def titles() -> dict[str, str]:
    """The title of each section."""
    return {section.name: section.title for section in SECTIONS}


#: Facts of the environment that the documents of one page share.
SHARED_FACTS = ("GPU 0", "CUDA driver", "NVRTC", "rutlass", "torch", "triton")


def merged(documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The sections of several files of `bench all`; of a section in two, the later one. Raises
    ValueError if they are of two machines or versions, or only one of them is quick.
    """
    first = documents[0]
    for each in documents[1:]:
        for name in SHARED_FACTS:
            facts = [one["environment"].get(name) for one in (first, each)]
            if facts[0] != facts[1]:
                raise ValueError(f"the files differ in {name}: {facts[0]} and {facts[1]}")
        if each["quick"] != first["quick"]:
            raise ValueError("only one of the files is of --quick")
    sections: dict[str, Any] = {}
    for each in documents:
        sections |= each["sections"]
    known = [name for name in titles() if name in sections]
    order = known + [name for name in sections if name not in known]
    commands = dict.fromkeys(command for each in documents for command in each["commands"])
    return {
        **first,
        "commands": list(commands),
        "sections": {name: sections[name] for name in order},
    }


def is_suite(document: Any) -> bool:
    """Whether a JSON document is one of `bench all`."""
    keys = {"commands", "quick", "environment", "sections"}
    return isinstance(document, dict) and keys <= set(document)


__all__ = [
    "NAMES",
    "SECTIONS",
    "Section",
    "arguments",
    "chosen",
    "environment",
    "is_suite",
    "measure",
    "merged",
    "titles",
]
