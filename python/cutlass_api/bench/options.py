"""Options that commands share, and their types, which refuse a value before the command runs."""

import argparse
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from cutlass_api import _core
from cutlass_api.bench.products import Shape, table


def add_types(command: argparse.ArgumentParser, several: bool = True) -> None:
    """Adds ``--dtype``, a list of names, or one if not ``several``."""
    command.add_argument(
        "--dtype",
        nargs="+" if several else None,
        type=dtype,
        choices=("float16", "bfloat16", "tf32", "float32", "float64"),
        default=["float16"] if several else "float16",
        help="type of A, B and the output",
    )


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


def shapes(name: str) -> list[Shape]:
    try:
        return table(Path(name))
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
