"""The costs of `cutlass_api.operators`: imports, searches, arguments and runs."""

import json
import os
import statistics
import time
from pathlib import Path

import pytest
from cutlass_api import operators as ops
from operators_face.face import fake_arguments
from stand_in import run_gemm
from support.helpers import run_python
from support.pace import slowness

#: Where processes find the package, and the pace of the machine.
PATHS = os.pathsep.join(
    [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
)


def best_of_processes(code, count=7):
    """The least number that processes print."""
    return min(float(run_python(code, PYTHONPATH=PATHS)) for _ in range(count))


@pytest.mark.timing
def test_the_import():
    code = """
        import time
        from support.pace import slowness
        before = slowness()
        start = time.perf_counter()
        import cutlass_api.operators
        seconds = time.perf_counter() - start
        print(seconds / min(before, slowness()))
    """
    seconds = best_of_processes(code)
    print(f"import of cutlass_api.operators: {1e3 * seconds:.0f} ms at the reference's pace")
    assert seconds < 0.150


@pytest.mark.timing
def test_the_hook_of_torch():
    """What torch's import of the entry point adds: beyond modules that torch imports itself."""
    code = """
        import sys, time
        import torch
        from support.pace import slowness
        for name in [name for name in sys.modules if name.startswith("nvidia_cutlass_stub")]:
            del sys.modules[name]
        sys.meta_path[:] = [each for each in sys.meta_path if "hooks" not in type(each).__module__]
        before = slowness()
        start = time.perf_counter()
        import nvidia_cutlass_stub
        nvidia_cutlass_stub.install()
        seconds = time.perf_counter() - start
        print(seconds / min(before, slowness()))
    """
    seconds = best_of_processes(code, 3)
    print(f"torch's entry point: {1e3 * seconds:.1f} ms at the reference's pace")
    assert seconds < 0.010


def test_the_hook_imports_no_module_that_takes_long():
    code = """
        import sys
        before = set(sys.modules)
        import nvidia_cutlass_stub
        nvidia_cutlass_stub.install()
        print(sorted(name for name in set(sys.modules) - before if "tempfile" in name or
            "importlib.abc" in name or "importlib.resources" in name))
    """
    assert run_python(code) == "[]\n"


@pytest.mark.timing
def test_operators_for_arguments():
    args = fake_arguments()

    def seconds():
        start = time.perf_counter()
        assert ops.get_operators(args, target_sm="90a")
        return time.perf_counter() - start

    def median():
        before = slowness()
        taken = statistics.median(seconds() for _ in range(200))
        return taken / min(before, slowness())

    best = min(median() for _ in range(7))
    print(f"get_operators(args): {1e6 * best:.1f} us at the reference's pace")
    assert best < 60e-6


#: The highest ratio of instructions to those of the same calls of `cutlass_api`.
RATIO = 1.45


def test_arguments_and_run_as_generated_code_calls_them():
    counts = run_gemm(
        """
        from cutlass_api import operators as ops
        from cutlass_api.operators.arguments import GemmArguments as Arguments

        described = Arguments(a, b, out, "float32")
        def both(family):
            operator = next(
                each for each in ops.get_operators(described)
                if each.metadata.operator_name.startswith(family)
            )
            kernel, artifact = operator.kernel, operator.compile(described)
            native = artifact.compiled_obj
            return [
                lambda: kernel.run(
                    GemmArguments(a, b, out, accumulator_type="float32"), native, stream=STREAM,
                    workspace=None, assume_supported_args=True
                ),
                lambda: operator.run(
                    Arguments(a, b, out, accumulator_type="float32"), artifact, stream=STREAM,
                    workspace=None, assume_supported_args=True
                ),
            ]

        calls = [lambda: None, *both("sm80"), *both("sm90")]
        for call in calls:
            # CPython specializes a function after some calls, and short launches become graphs
            for _ in range(50):
                call()
        device.begin(), device.end()
        for call in calls:
            device.begin(); call(); device.end()
        """,
        counted=True,
    )
    _warmup, empty, *measured = map(int, counts.split())
    of_core, own = ([count - empty for count in measured[place::2]] for place in (0, 1))
    ratios = [mine / theirs for mine, theirs in zip(own, of_core, strict=True)]
    print(json.dumps({"core": of_core, "operators": own, "ratios": ratios}))
    assert max(ratios) < RATIO
