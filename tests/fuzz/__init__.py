"""Any kernel on random problems: ``python -m tests.fuzz --seconds 60 --workers 4``.

A case is drawn from an integer seed (drawing.py) as a plain value (cases.py): operation, dtypes,
layouts, extents, scales, epilogue, and which of the kernels that ``get_kernels`` offers. A worker
process allocates the operands and runs the kernel twice (trial.py). It compares values with
float64, the bytes around outputs, inputs, and the bits of both runs. The parent (workers.py) has a
watchdog for each worker and reduces cases that fail (shrinking.py).
"""

import os
import sys
from pathlib import Path

# The helpers of the tests.
if (tests := str(Path(__file__).parents[1])) not in sys.path:
    sys.path.append(tests)
# Workers of --emulate; must be the first import, see stand_in/emulated.py.
if "EMULATOR" in os.environ:
    import stand_in.emulated  # noqa: F401
