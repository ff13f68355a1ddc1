"""``python -m cutlass_api env``: what a bug report needs. ``kernels``: the kernels of this package.
``explain``: which of them serve a product. ``cache``: the compiled programs. ``bench``: benchmarks.
``profile``: what limits a kernel. ``tune``: the autotuner and its store.
"""

import argparse

from cutlass_api import _core
from cutlass_api._commands import bench, kernels, machine, profile, tune


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="python -m cutlass_api", description="Tools of cutlass_api (rutlass)."
    )
    parser.add_argument("--version", action="version", version=f"rutlass {_core.__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    machine.add(commands)
    kernels.add(commands)
    bench.add(commands)
    profile.add(commands)
    tune.add(commands)
    return parser


def main() -> None:
    arguments = parser().parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
