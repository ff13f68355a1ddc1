"""``python -m cutlass_api env``: what a bug report needs. ``kernels``: the kernels of this package.
``cache``: the compiled programs. ``bench``: benchmarks. ``profile``: what limits a kernel.
``tune``: the autotuner and its store.
"""

import argparse

from cutlass_api import _core
from cutlass_api._commands import bench, machine, profile, tune


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m cutlass_api", description="Tools of cutlass_api (rutlass)."
    )
    parser.add_argument("--version", action="version", version=f"rutlass {_core.__version__}")
    commands = parser.add_subparsers(required=True, metavar="command")
    machine.add(commands)
    bench.add(commands)
    profile.add(commands)
    tune.add(commands)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
