"""Measures main on a GPU machine that is lent by the half hour, and from which nothing can be fetched.

    python scripts/lent_gpu.py prepare            # here: fills .lent/, which git ignores and the machine is sent
    python scripts/lent_gpu.py there STEP...      # there, from the checkout's root with .lent/ in it
    python scripts/lent_gpu.py cold               # in a process of its own: seconds that single kernels take to compile

Steps, with the seconds that they took on an H100's machine, in the order in which they are worth having:
{steps}
What a step prints is kept to its last lines; JSON and plots go to $OUT, or where $OUT is not set to .lent/out.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LENT = ROOT / ".lent"
#: Programs compiled beforehand, by the NVRTC that torch brings to both machines: there, a minute for each list.
PROGRAMS = LENT / "programs.tar.xz"
SHAPES = {
    "table": ROOT.parent / "shared/anchors/shapes.json",
    "unseen": ROOT / "docs/benchmarks/unseen_shapes.json",
    "other": ROOT / "docs/benchmarks/other_shapes.json",
}
#: What notebooks run with, and the machine lacks.
CARRIED = ["nbclient", "ipykernel"]
#: The largest tile, the most frequent one and a small one, by the end of their kernels' names up to the cluster.
COLD = ("128x192x64_pingpong", "128x256x64_cooperative", "128x64x64")

PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
SANITIZE = [sys.executable, "scripts/sanitize.py", "--only", "sm90"]
BENCH = [sys.executable, "-m", "cutlass_api", "bench"]


@dataclass(frozen=True)
class Step:
    """Commands, one after another, with a limit on the seconds that all take."""

    about: str
    commands: list[list[str]]
    limit: float
    #: Lines of what is printed that are shown.
    lines: int = 12


def sanitizer(tool: str) -> list[str]:
    return ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", *SANITIZE]


def list_of(name: str, *dtypes: str) -> list[str]:
    """The benchmark of a list of shapes."""
    out = f"{{out}}/{name}_{'_'.join(dtypes) or 'float16'}"
    types = ["--dtype", *dtypes] if dtypes else []
    files = ["--shapes", f"{{shapes}}/{name}.json", "--json", f"{out}.json", "--plot", f"{out}.png"]
    return [*BENCH, "gemm", *types, *files]


STEPS = {
    "tests": Step(
        "all GPU tests, 400 s",
        [[*PYTEST, "-m", "gpu and not timing", "-n", "14", "--dist", "worksteal"]],
        560,
        40,
    ),
    "timing": Step("tests of times, 46 s", [[*PYTEST, "-m", "gpu and timing"]], 120, 20),
    "sanitize": Step(
        "memcheck and racecheck of sm90, 75 s",
        [SANITIZE, sanitizer("memcheck"), sanitizer("racecheck")],
        240,
    ),
    "unseen": Step("shapes that nothing was chosen by, 92 s", [list_of("unseen")], 240, 80),
    "table": Step("the table, 133 s", [list_of("table")], 300, 60),
    "other": Step("more shapes made by chance, 43 s", [list_of("other")], 120, 50),
    "types": Step(
        "the table in bfloat16 and tf32, not timed yet",
        [list_of("table", "bfloat16", "tf32")],
        500,
        100,
    ),
    "latency": Step(
        "the host's side of a launch, 20 s",
        [[*BENCH, "latency", "--json", "{out}/latency.json"]],
        60,
        30,
    ),
    "cold": Step("cold compilations, 10 s", [[sys.executable, __file__, "cold"]] * 3, 60),
    "devices": Step(
        "tests of two GPUs, 11 s on two H200s", [[*PYTEST, "tests/test_gpu_devices.py"]], 90
    ),
}


def prepare() -> None:
    """Puts all that a lent machine lacks into .lent/."""
    shutil.rmtree(LENT, ignore_errors=True)
    (LENT / "shared").mkdir(parents=True)
    for part in ("seeds", "anchors", "API.md"):
        source, target = ROOT.parent / "shared" / part, LENT / "shared" / part
        if source.is_dir():
            shutil.copytree(source, target)
        elif source.exists():
            shutil.copy(source, target)
    subprocess.run(["make", "wheel"], cwd=ROOT, check=True)
    wheels = sorted((ROOT / "dist").glob("rutlass-*.whl"), key=lambda wheel: wheel.stat().st_mtime)
    shutil.copy(wheels[-1], LENT)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--only-binary=:all:",
        "--python-version",
        "3.12",
    ]
    subprocess.run([*pip, "--dest", str(LENT), *CARRIED], check=True)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CUTLASS_API_CACHE_DIR"] = folder
        compile_lists()
        with tarfile.open(PROGRAMS, "w:xz") as archive:
            archive.add(folder, "programs")
    size = sum(file.stat().st_size for file in LENT.rglob("*") if file.is_file())
    print(f"{LENT}: {size / 2**20:.0f} MiB")


def compile_lists() -> None:
    """Compiles every kernel that the lists of shapes find, for compute capability 9.0."""
    import cutlass_api
    from cutlass_api.bench.gemm import table
    from rich.progress import track
    from time_products import arguments

    programs: dict[str, Any] = {}
    for path in SHAPES.values():
        for shape in table(path) if path.exists() else []:
            if not shape.groups:
                args = arguments(shape, "float16")
                programs |= {
                    kernel.metadata.kernel_name: (kernel, args)
                    for kernel in cutlass_api.get_kernels(args)
                }
    with ThreadPoolExecutor() as pool:
        compiled = pool.map(lambda pair: pair[0].compile(pair[1], 90), programs.values())
        for _ in track(compiled, "compile", len(programs)):
            pass


def there(names: list[str]) -> None:
    """Runs steps on the lent machine."""
    site, programs = Path("/tmp/lent/site"), Path("/tmp/lent/programs")
    shapes = site.parent / "shapes"
    if not shapes.exists():  # which comes last
        install = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-index",
            "--no-deps",
            "--target",
            str(site),
        ]
        subprocess.run([*install, *map(str, LENT.glob("*.whl"))], check=True)
        with tarfile.open(PROGRAMS) as archive:
            archive.extractall(programs.parent, filter="data")
        shutil.copytree(LENT / "shared", ROOT.parent / "shared", dirs_exist_ok=True)
        shapes.mkdir()
        for name, path in SHAPES.items():
            shutil.copy(path, shapes / f"{name}.json")
    out = Path(os.environ.get("OUT", LENT / "out"))
    out.mkdir(exist_ok=True)
    paths = {"out": str(out), "shapes": str(shapes)}
    # The checkout's own package has no extension module there.
    environment = os.environ | {"PYTHONPATH": str(site), "CUTLASS_API_CACHE_DIR": str(programs)}
    for name in names:
        begin, step = time.monotonic(), STEPS[name]
        for command in step.commands:
            left = step.limit - (time.monotonic() - begin)
            code, printed = run([part.format(**paths) for part in command], environment, left)
            print(f"== {name}: {' '.join(command[1:4])}: {code}, {time.monotonic() - begin:.0f} s")
            print("\n".join(printed.splitlines()[-step.lines :]), flush=True)


def run(command: list[str], environment: dict[str, str], seconds: float) -> tuple[str, str]:
    """How a command ended, and what it printed until then."""
    with tempfile.TemporaryFile("w+") as printed:
        pipes: dict[str, Any] = {"stdout": printed, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, start_new_session=True, **pipes
        )
        try:
            code = f"exit status {process.wait(max(seconds, 1))}"
        except subprocess.TimeoutExpired:
            # Its workers, too, which the next step would be timed beside.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            code = "cut off"
        printed.seek(0)
        return code, printed.read()


def cold() -> None:
    """Compiles single kernels in this process, the largest first, and tells the host's pace beside it."""
    os.environ["CUDA_CACHE_DISABLE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CUTLASS_API_CACHE_DIR"] = folder
        import cutlass_api
        from cutlass_api.bench.gemm import Shape
        from time_products import arguments

        args = arguments(Shape("", 4096, 4096, 4096), "float16")
        kernels = {kernel.metadata.kernel_name: kernel for kernel in cutlass_api.get_kernels(args)}
        for part in COLD:
            name = next(name for name in kernels if part in name and "packed" not in name)
            begin = time.perf_counter()
            kernels[name].compile(args, 90)
            seconds = time.perf_counter() - begin
            begin = time.perf_counter()
            sum(number * number for number in range(1_000_000))
            print(
                json.dumps(
                    {
                        name: round(seconds, 3),
                        "a million additions": round(time.perf_counter() - begin, 3),
                    }
                )
            )


def main() -> None:
    steps = "\n".join(f"  {name:9} {step.about}" for name, step in STEPS.items())
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").format(steps=steps),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="command")
    commands.add_parser("prepare", help="fill .lent/").set_defaults(run=lambda _: prepare())
    commands.add_parser("cold", help="compile single kernels").set_defaults(run=lambda _: cold())
    on_gpu = commands.add_parser("there", help="run steps")
    on_gpu.add_argument("steps", nargs="+", choices=STEPS, metavar="STEP")
    on_gpu.set_defaults(run=lambda options: there(options.steps))
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
