"""``all``: every benchmark of one GPU, each in a process of its own.

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
from pathlib import Path
from typing import Any

from cutlass_api.bench import llama, results
from cutlass_api.bench.architectures import ARCHITECTURES
from cutlass_api.bench.base import Bench

from benchmarks.cases import MODELS
from benchmarks.compile import Compile
from benchmarks.tensor_parallel import TensorParallel

#: The commands of `python -m benchmarks`.
OWN: tuple[Bench[Any], ...] = (Compile(), TensorParallel())
BENCHES = (*results.BENCHES, *OWN)
#: What an interrupted benchmark has to end.
GRACE_SECONDS = 10


@dataclass(frozen=True)
class Section:
    """One process, and one section of the page.

    - ``command``: a benchmark's name and its arguments.
    - ``quick``: the command with ``--quick``; None leaves the section out.
    """

    name: str
    title: str
    command: str
    quick: str | None = None

    @property
    def bench(self) -> str:
        return self.command.partition(" ")[0]


def _gemm(name: str, title: str, table: str, dtypes: str, is_quick: bool = False) -> Section:
    command = f"gemm --shapes {table} --dtype {dtypes}"
    return Section(f"gemm_{name}", title, command, f"gemm --dtype {dtypes}" if is_quick else None)


def _llama(kind: str) -> Section:
    command = f"llama --dtype {kind}"
    quick = f"{command} --rows 16,1024 --no-triton"
    return Section(f"llama_{kind}", f"Weights of a Llama, {kind}", command, quick)


def _compile(model: str) -> Section:
    command = f"compile --models {model}"
    quick = f"{command} --quick --tokens 16" if model in ("mlp", "epilogue") else None
    return Section(f"compile_{model}", f"torch.compile, {model}", command, quick)


def _model(name: str) -> Section:
    command = f"model {name}"
    quick = f"{command} --tokens 1 --layers 2 --scheme" if name == "qwen3-0.6b" else None
    return Section(f"model_{name}", f"Layers of {name}", command, quick)


SECTIONS = (
    Section("limits", "Limits of the GPU", "limits", "limits"),
    Section("latency", "Host time of a launch", "latency", "latency"),
    _gemm("float16", "GEMM, float16", "public", "float16", is_quick=True),
    _gemm("bfloat16", "GEMM, bfloat16", "public", "bfloat16", is_quick=True),
    _gemm("weak", "GEMM, weak shapes", "weak", "bfloat16"),
    _gemm("exact", "GEMM, float32 and float64", "exact", "float32 float64"),
    Section("ladder", "The ladder, float16", "ladder", "ladder"),
    *map(_llama, (*llama.KINDS, *llama.FORMATS)),
    Section(
        *("experts", "Mixtures of experts", "experts"),
        quick="experts --mixtures qwen3-30b-a3b --tokens 32,1024",
    ),
    Section("quantize", "Quantization", "quantize", "quantize"),
    *map(_model, ARCHITECTURES),
    # NVGEMM is a backend of torch, which takes a version that has it.
    *(_compile(model) for model in MODELS if model != "nvgemm"),
)
TITLES = {section.name: section.title for section in SECTIONS}
NAMES = tuple(dict.fromkeys([*(each.bench for each in SECTIONS), *TITLES]))


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


def command(section: Section, is_quick: bool) -> list[str]:
    """The arguments of Python for a section."""
    found = ((section.quick or "") if is_quick else section.command).split()
    is_own = section.bench in [bench.name for bench in OWN]
    return ["-m", "benchmarks", *found] if is_own else ["-m", "cutlass_api", "bench", *found]


def environment() -> dict[str, str]:
    """The facts of `python -m cutlass_api env`, from a process of its own."""
    results, failure = _run(["-m", "cutlass_api", "env"], 120, quiet=True)
    if results is None:
        raise ValueError(f"`python -m cutlass_api env` failed: {failure}")
    return dict(results)


def measure(
    commands: dict[str, list[str]],
    limit: float,
    seconds: float,
    show: Callable[[str, dict[str, Any]], None],
) -> None:
    """Runs the sections, by name with the arguments of Python. Calls ``show`` with the name and the
    result of each.

    ``limit``: seconds of one section. ``seconds``: of all.
    """
    end = time.monotonic() + seconds
    for name, parts in commands.items():
        begin = time.monotonic()
        left = min(limit, end - begin)
        results, failure = None, "not started: no time left"
        if left > 0:
            results, failure = _run(parts, left)
        spent = round(time.monotonic() - begin)
        line = shlex.join(["python", *parts])
        show(name, {"command": line, "seconds": spent, "failure": failure, "results": results})


def _run(parts: list[str], seconds: float, quiet: bool = False) -> tuple[Any, str]:
    """The JSON that a command writes, None without, and why it failed, else an empty string."""
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/errors", "w+b") as errors:
        path = Path(folder, "results.json")
        process = subprocess.Popen(
            [sys.executable, *parts, "--json", str(path)],
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
    known = [name for name in TITLES if name in sections]
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


def parsed(document: Any) -> dict[str, results.Results]:
    """The results of each section that has rows; of a benchmark's own document, by its name.
    Raises ValueError for another document."""
    if not is_suite(document):
        found = results.parse(document, BENCHES)
        return {found.bench.name: found}
    return {
        name: results.parse(section["results"], BENCHES)
        for name, section in document["sections"].items()
        if section["results"] and section["results"].get("rows")
    }
