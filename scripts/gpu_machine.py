"""Tests and benchmarks on a GPU machine without Rust or a network.

    python scripts/gpu_machine.py prepare                       # here: fills .gpu_machine/
    python .gpu_machine/scripts/gpu_machine.py run STEP...      # there, in a copy of that folder

`prepare` builds the wheel and collects it with the tests, benchmarks, notebooks and scripts. The
GPU machine needs Linux on the same architecture, Python 3.10 or later, torch, pytest, pytest-xdist,
hypothesis and, for `sanitize`, compute-sanitizer. Results go to $OUT, else to .gpu_machine/out,
with the full output of each step in STEP.log; the end of it is printed.

Steps:
{steps}
"""

import argparse
import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The checkout here, the prepared folder there.
ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".gpu_machine"
COLLECTED = ("tests", "benchmarks", "notebooks", "scripts", "docs", "pyproject.toml", "*.md")
#: Packages that run the notebooks.
PACKAGES = ["nbclient", "ipykernel"]
#: Compiled programs of all tables of shapes: compiling takes the GPU machine minutes.
PROGRAMS = "programs.tar.xz"
TABLES = ("public", "random", "other")
#: Kernels whose compilation `cold` times: the largest tile, a common one and a small one.
COLD = ("128x192x64_pingpong", "128x256x64_cooperative", "128x64x64")

#: What an interrupted command has to print its results.
GRACE_SECONDS = 15

PYTEST = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
SANITIZE = [sys.executable, "scripts/sanitizers.py"]
PROGRAM = [sys.executable, "-m", "cutlass_api"]
BENCH = [*PROGRAM, "bench"]
REPORT = [sys.executable, "-m", "benchmarks"]
TUNE = [*PROGRAM, "tune"]


@dataclass(frozen=True)
class Step:
    """Commands that run one after another.

    ``seconds``: the time limit of all commands together. ``lines``: how many of the last lines of
    each command's output to print.
    """

    about: str
    commands: list[list[str]]
    seconds: float
    lines: int = 12


def gemm(table: str, *dtypes: str) -> list[str]:
    """The benchmark of a table of shapes."""
    out = f"{{out}}/{table}_{'_'.join(dtypes)}"
    files = ["--shapes", table, "--json", f"{out}.json", "--plot", f"{out}.png"]
    return [*BENCH, "gemm", "--dtype", *dtypes, *files]


def compiled(model: str) -> Step:
    """The benchmark of a compiled model."""
    files = ["--json", f"{{out}}/compile_{model}.json"]
    return Step(
        f"{model} under torch.compile", [[*REPORT, "compile", "--models", model, *files]], 590, 60
    )


def llama(kind: str) -> Step:
    """The benchmark of a kind of 8-bit products."""
    out = f"{{out}}/llama_{kind}"
    files = ["--json", f"{out}.json", "--plot", f"{out}.png"]
    return Step(f"8-bit products: {kind}", [[*BENCH, "llama", "--dtype", kind, *files]], 590, 60)


STEPS = {
    "tests": Step(
        "all GPU tests except those of times",
        [[*PYTEST, "-m", "gpu and not timing", "-n", "14", "--dist", "worksteal"]],
        560,
        40,
    ),
    "timing": Step("GPU tests of times", [[*PYTEST, "-m", "gpu and timing"]], 120, 20),
    "devices": Step("tests that need two GPUs", [[*PYTEST, "-m", "multi_gpu"]], 240),
    "tensor_parallel": Step(
        "an MLP split between two GPUs",
        [[*REPORT, "tensor_parallel", "--json", "{out}/tensor_parallel.json"]],
        240,
        30,
    ),
    "fuzz": Step(
        "kernels on random problems, which differ in each run",
        [[sys.executable, "-m", "tests.fuzz", "--seconds", "500", "--workers", "14"]],
        590,
        40,
    ),
    "sanitize": Step("all kernels by all tools of compute-sanitizer", [SANITIZE], 590, 60),
    "ladder": Step(
        "the ladder: tests, all tools of compute-sanitizer, times",
        [
            [*PYTEST, "-m", "gpu", "tests/tools/test_ladder.py"],
            [*SANITIZE, "--only", "ladder"],
            [*BENCH, "ladder", "--json", "{out}/ladder.json", "--plot", "{out}/ladder.png"],
        ],
        240,
        20,
    ),
    "profile": Step(
        "counters of a kernel, and what profilers show",
        [
            [*PYTEST, "-m", "gpu", "tests/tools/test_counters.py", "tests/tools/test_profilers.py"],
            [*PROGRAM, "profile", "--shape", "4096,4096,4096", "--json", "{out}/counters.json"],
        ],
        120,
        15,
    ),
    "table": Step("the public table in float16", [gemm("public", "float16")], 300, 60),
    "types": Step(
        "the public table in bfloat16 and tf32", [gemm("public", "bfloat16", "tf32")], 500, 100
    ),
    "random": Step("random shapes in float16", [gemm("random", "float16")], 240, 80),
    "other": Step("other shapes in float16", [gemm("other", "float16")], 120, 50),
    "weak": Step("weak shapes in bfloat16", [gemm("weak", "bfloat16")], 300, 60),
    "exact": Step(
        "float32 without rounding, and float64", [gemm("exact", "float32", "float64")], 240, 40
    ),
    "latency": Step(
        "host time of a launch",
        [[*BENCH, "latency", "--json", "{out}/latency.json", "--plot", "{out}/latency.png"]],
        60,
        30,
    ),
    **{
        f"compile_{model}": compiled(model)
        for model in ("mlp", "gelu_mlp", "llama", "epilogue", "nvgemm")
    },
    **{
        f"llama_{kind}": llama(kind)
        for kind in ("int8", "mixed", "fp8", "fp8-row", "fp8-fast", "fp8-block")
    },
    "quantize": Step(
        "bandwidth of quantization",
        [[*BENCH, "quantize", "--json", "{out}/quantize.json"]],
        200,
        70,
    ),
    "tune": Step(
        "the public table tuned, then timed with the stored results",
        [
            [*TUNE, "--shapes", "public", "--json", "{out}/tuned.json"],
            gemm("public", "float16"),
        ],
        500,
        150,
    ),
    "cold": Step(
        "compilation of single kernels",
        [[sys.executable, "scripts/gpu_machine.py", "cold"]] * 3,
        60,
    ),
}


def prepare(python: str, with_programs: bool) -> None:
    """Fills .gpu_machine/ for a machine with this version of Python."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    (FOLDER / "wheels").mkdir(parents=True)
    for path in (path for pattern in COLLECTED for path in ROOT.glob(pattern)):
        if path.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", ".*")
            shutil.copytree(path, FOLDER / path.name, ignore=ignored)
        else:
            shutil.copy(path, FOLDER)
    subprocess.run(["make", "wheel"], cwd=ROOT, check=True)
    wheels = sorted((ROOT / "dist").glob("rutlass-*.whl"), key=lambda wheel: wheel.stat().st_mtime)
    shutil.copy(wheels[-1], FOLDER / "wheels")
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    download += ["--python-version", python, "--dest", str(FOLDER / "wheels")]
    subprocess.run([*download, *PACKAGES], check=True)
    if with_programs:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["CUTLASS_API_CACHE_DIR"] = folder
            compile_tables()
            with tarfile.open(FOLDER / PROGRAMS, "w:xz") as archive:
                archive.add(folder, "programs")
    size = sum(file.stat().st_size for file in FOLDER.rglob("*") if file.is_file())
    print(f"{FOLDER}: {size / 2**20:.0f} MiB")


def compile_tables() -> None:
    """Compiles every kernel that serves a shape of the tables, for compute capability 9.0."""
    import cutlass_api
    from cutlass_api.bench.products import fake_arguments, table

    programs: dict[str, Any] = {}
    for name in TABLES:
        for shape in table(name):
            if not shape.groups:
                args = fake_arguments(shape, "float16")
                for kernel in cutlass_api.get_kernels(args, cc=90):
                    programs[kernel.metadata.kernel_name] = (kernel, args)
    print(f"compiling {len(programs)} kernels", flush=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda pair: pair[0].compile(pair[1], 90), programs.values()))


def run(names: list[str], seconds: float) -> None:
    """Runs steps on the GPU machine, in that many seconds in all."""
    end = time.monotonic() + seconds
    # One folder for each wheel: a machine may see several.
    (wheel,) = ROOT.glob("wheels/rutlass-*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    installed = Path(tempfile.gettempdir()) / f"rutlass-{digest[:12]}"
    site, programs = installed / "site", installed / "programs"
    if not site.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
        wheels = [str(each) for each in ROOT.glob("wheels/*.whl")]
        subprocess.run([*pip, "--target", str(site), *wheels], check=True)
        if (ROOT / PROGRAMS).exists():
            with tarfile.open(ROOT / PROGRAMS) as archive:
                archive.extractall(installed, filter="data")
    out = Path(os.environ.get("OUT", ROOT / "out"))
    out.mkdir(exist_ok=True)
    environment = os.environ | {"PYTHONPATH": str(site), "CUTLASS_API_CACHE_DIR": str(programs)}
    for name in names:
        begin, step = time.monotonic(), STEPS[name]
        log = out / f"{name}.log"
        if begin < end:
            log.unlink(missing_ok=True)
        for command in step.commands:
            left = min(begin + step.seconds, end) - time.monotonic() - GRACE_SECONDS
            if left <= 0:
                print(f"== {name}: no time left", flush=True)
                break
            arguments = [part.replace("{out}", str(out)) for part in command]
            outcome, printed = execute(arguments, environment, left, log)
            title = " ".join(command[1:4])
            print(f"== {name}: {title}: {outcome}, {time.monotonic() - begin:.0f} s")
            print("\n".join(printed.splitlines()[-step.lines :]), flush=True)


def execute(
    command: list[str], environment: dict[str, str], seconds: float, log: Path
) -> tuple[str, str]:
    """Runs a command. Returns how it ended and its output, which is appended to ``log``, also if
    this process is stopped before the command ends.
    """
    with log.open("a+", errors="replace") as output:
        output.write(f"== {' '.join(command)}\n")
        output.flush()
        begin = output.tell()
        pipes: dict[str, Any] = {"stdout": output, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, start_new_session=True, **pipes
        )
        try:
            outcome = f"exit status {process.wait(seconds)}"
        except subprocess.TimeoutExpired:
            outcome = "time limit"
            stop(process)
        output.seek(begin)
        return outcome, output.read()


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a command and its workers, which must not run beside the next command. pytest prints its
    failures when it is interrupted.
    """
    process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def cold() -> None:
    """Times the compilation of single kernels, beside the speed of this machine's Python."""
    os.environ["CUDA_CACHE_DISABLE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CUTLASS_API_CACHE_DIR"] = folder
        import cutlass_api
        from cutlass_api.bench.products import Shape, fake_arguments

        args = fake_arguments(Shape("", 4096, 4096, 4096), "float16")
        kernels = {k.metadata.kernel_name: k for k in cutlass_api.get_kernels(args, cc=90)}
        for part in COLD:
            name = next(name for name in kernels if part in name and "packed" not in name)
            begin = time.perf_counter()
            kernels[name].compile(args, 90)
            seconds = time.perf_counter() - begin
            begin = time.perf_counter()
            sum(number * number for number in range(1_000_000))
            pace = time.perf_counter() - begin
            print(json.dumps({name: round(seconds, 3), "a million additions": round(pace, 3)}))


def main() -> None:
    steps = "\n".join(f"  {name:16} {step.about}" for name, step in STEPS.items())
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").format(steps=steps),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    preparing = commands.add_parser("prepare", help="fill .gpu_machine/")
    preparing.add_argument(
        "--without-programs", action="store_true", help="do not compile the tables' kernels here"
    )
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    preparing.add_argument(
        "--python", default=here, metavar="VERSION", help=f"Python of the GPU machine ({here})"
    )
    preparing.set_defaults(
        run=lambda options: prepare(options.python, not options.without_programs)
    )
    running = commands.add_parser("run", help="run steps on the GPU machine")
    running.add_argument("steps", nargs="+", choices=STEPS, metavar="STEP")
    running.add_argument(
        "--seconds", type=float, default=math.inf, help="the time limit of all steps together"
    )
    running.set_defaults(run=lambda options: run(options.steps, options.seconds))
    commands.add_parser("cold", help="time compilations").set_defaults(run=lambda _: cold())
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
