"""Scripts that tune kernels."""

import textwrap

import pytest
import stand_in
from stand_in import GEMM
from support.tuned import CAUGHT, HELPERS


@pytest.fixture
def tuned(tmp_path):
    """Runs a script about a GEMM in a process with the test's store."""

    def run(script, counted=False, **variables):
        known = {"CUTLASS_API_CACHE_DIR": str(tmp_path), "CUTLASS_API_TUNE": "use"}
        script = CAUGHT + GEMM + textwrap.dedent(HELPERS) + textwrap.dedent(script)
        if "caught" not in script.removeprefix(CAUGHT):
            script += "\nassert not caught, caught\n"
        return stand_in.run(script, counted=counted, **{**known, **variables})

    return run
