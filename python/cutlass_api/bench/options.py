"""Options that commands share, and their types, which refuse a value before the command runs."""

import argparse
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cutlass_api import _core
from cutlass_api.bench.products import TABLES, Shape, in_type, table
from cutlass_api.bench.types import TYPES


def add_types(command: argparse.ArgumentParser, several: bool = True) -> None:
    """Adds ``--dtype``, a list of names, or one if not ``several``."""
    command.add_argument(
        "--dtype",
        nargs="+" if several else None,
        type=dtype,
        choices=TYPES,
        default=["float16"] if several else "float16",
        metavar="TYPE",
        help=f"{', '.join(TYPES)}: of A, B and the output (float16). Outputs of float8 are in "
        "bfloat16, of 8-bit integers in int32",
    )


def add_shape(command: argparse.ArgumentParser) -> None:
    """Adds ``--shape``, the one product of a command, and ``--layout``."""
    command.add_argument(
        "--shape", type=extents, required=True, metavar="M,N,K", help="extents of the GEMM"
    )
    add_layout(command)


def add_layout(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--layout",
        choices=("tt", "tn", "nt", "nn"),
        help="orders of A and B of --shape: t row-major, n column-major (tt)",
    )


def add_shapes(group: Any) -> None:
    """Adds ``--shape`` and ``--shapes``, of which a command takes one: :func:`chosen_shapes`."""
    group.add_argument("--shape", type=extents, nargs="+", metavar="M,N,K", help="extents of GEMMs")
    group.add_argument(
        "--shapes",
        type=shapes,
        metavar="TABLE",
        help=f"a table of shapes: {', '.join(TABLES)}, or a JSON file",
    )


def own_shape(mnk: tuple[int, int, int], layout: str | None) -> Shape:
    """The product of ``--shape`` and ``--layout``."""
    return Shape("shape", *mnk, layout or "tt")


def chosen_shapes(arguments: argparse.Namespace) -> list[Shape]:
    """The products of ``--shape`` or ``--shapes``, else of the table ``default``. Exits if
    ``--dtype`` leaves none, and if ``--layout`` has no ``--shape``."""
    if arguments.shape:
        return [own_shape(mnk, arguments.layout) for mnk in arguments.shape]
    if arguments.layout:
        raise SystemExit("--layout is of --shape; a table has the layouts of its shapes")
    found: list[Shape] = arguments.shapes or table("default")
    if not any(True for dtype in arguments.dtype for _ in in_type(found, dtype)):
        raise SystemExit(
            "no shape is left: the table has grouped GEMMs alone, which are measured in bfloat16; "
            "pass --dtype bfloat16"
        )
    return found


def add_outputs(benchmark: argparse.ArgumentParser) -> None:
    benchmark.add_argument("--json", type=output, metavar="FILE", help="write the results as JSON")
    benchmark.add_argument(
        "--plot", type=plot, metavar="FILE", help="plot the results (matplotlib)"
    )


def add_counts(
    command: argparse.ArgumentParser, flag: str, what: str, default: Sequence[int] | None = None
) -> None:
    """Adds an option of positive integers. ``what``: they are."""
    about = f"{what}, separated by commas"
    command.add_argument(flag, type=counts, default=default, metavar="COUNTS", help=about)


def dtype(name: str) -> str:
    """The full name of a dtype; other names as they are."""
    try:
        return str(_core.DType(name))
    except TypeError:
        return name


def output(name: str) -> Path:
    path = Path(name)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"the folder {path.parent} does not exist; create it")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(
            f"{path} is not writable; choose a file in a writable folder"
        )
    return path


def plot(name: str) -> Path:
    if find_spec("matplotlib") is None:
        raise argparse.ArgumentTypeError(
            "a plot needs matplotlib: pip install matplotlib (or rutlass[bench])"
        )
    return output(name)


def shapes(source: str) -> list[Shape]:
    try:
        return table(source)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def folder(name: str) -> Path:
    path = Path(name)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path} is not a folder: {error.strerror}") from None
    return path.absolute()


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} must be a positive integer")
    return int(text)


def counts(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]


def extents(text: str) -> tuple[int, int, int]:
    found = counts(text)
    if len(found) != 3:
        raise argparse.ArgumentTypeError(f"{text!r} must be M,N,K")
    return found[0], found[1], found[2]


def matrix(text: str) -> tuple[int, int]:
    found = counts(text)
    if len(found) != 2:
        raise argparse.ArgumentTypeError(f"{text!r} must be N,K")
    return found[0], found[1]


def device() -> str:
    """The name of the GPU. Exits without torch or a GPU."""
    try:
        import torch
    except ImportError:
        raise SystemExit("this benchmark needs torch: pip install torch") from None
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA GPU, but torch finds none")
    return str(torch.cuda.get_device_name())
