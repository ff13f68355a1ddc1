"""Runs a Python script whose launches the CPU executes: ``python -m stand_in SCRIPT``."""

import os
import sys

import stand_in

if len(sys.argv) < 2:
    sys.exit(__doc__)
CODE = "import stand_in.emulated, runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
os.execve(
    sys.executable,
    [sys.executable, "-c", CODE, *sys.argv[1:]],
    stand_in.environment(emulated=True),
)
