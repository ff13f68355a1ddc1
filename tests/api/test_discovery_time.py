"""The time of `get_kernels`, and its instructions."""

import statistics
import time
from pathlib import Path

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import EpilogueArguments, GemmArguments
from stand_in import run_gemm
from support.helpers import fake, fake_gemm, fake_grouped, run_python
from support.pace import slowness


@pytest.mark.timing
def test_all_kernels_by_name_in_a_fresh_process():
    code = """
        import time
        import cutlass_api
        from support.pace import slowness
        before = slowness()
        start = time.perf_counter()
        kernels = {kernel.metadata.kernel_name: kernel for kernel in cutlass_api.get_kernels()}
        seconds = time.perf_counter() - start
        # Use the better of the two paces: a slow moment beside the call must not excuse the call.
        print(seconds, seconds / min(before, slowness()))
    """
    tests = str(Path(__file__).parents[1])
    # The best of several runs: other work on the machine must not fail the test.
    times = [tuple(map(float, run_python(code, PYTHONPATH=tests).split())) for _ in range(15)]
    seconds, best = map(min, zip(*times, strict=True))
    print(
        f"get_kernels() and a dictionary by name: {seconds * 1e3:.1f} ms, "
        f"{best * 1e3:.1f} at the reference's pace"
    )
    assert best < 0.030


def with_an_epilogue():
    out = fake(4096, 4096, dtype=torch.bfloat16)
    epilogue = EpilogueArguments(
        "def f(accum, bias):\n    D = relu(accum + bias)\n    return D", bias=fake(4096), D=out
    )
    a, b = (fake(4096, 4096, dtype=torch.bfloat16) for _ in range(2))
    return GemmArguments(a, b, out, torch.float32, epilogue=epilogue)


#: Few and many supporting kernels.
QUICKLY_FOUND = {
    "128 cubed": lambda: fake_gemm(128, 128, 128),
    "4096 cubed": lambda: fake_gemm(4096, 4096, 4096, dtype=torch.bfloat16, layout="tnt"),
    "300x5000x700": lambda: fake_gemm(300, 5000, 700),
    "float32 sums": lambda: fake_gemm(4096, 4096, 4096, out=torch.float32),
    "float8": lambda: fake_gemm(37, 37, 37, dtype=torch.float8_e4m3fn),
    "int8": lambda: fake_gemm(4096, 4096, 4096, dtype=torch.int8, out=torch.int32),
    "one row": lambda: fake_gemm(1, 4096, 4096, layout="tnt"),
    "grouped": lambda: fake_grouped(8192, 2048, 1024, 12),
    "epilogue": with_an_epilogue,
}


@pytest.mark.timing
@pytest.mark.parametrize("arguments", QUICKLY_FOUND.values(), ids=QUICKLY_FOUND)
def test_kernels_for_arguments(arguments):
    args = arguments()

    def seconds():
        start = time.perf_counter()
        found = cutlass_api.get_kernels(args, cc=90)
        taken = time.perf_counter() - start
        assert found
        return taken

    def median():
        before = slowness()
        taken = statistics.median(seconds() for _ in range(100))
        return taken, taken / min(before, slowness())

    taken, best = map(min, zip(*(median() for _ in range(5)), strict=True))
    print(f"get_kernels(args): {taken * 1e6:.1f} us, {best * 1e6:.1f} at the reference's pace")
    assert best < 100e-6


#: Bounds on the instructions of `get_kernels(args)`, on x86-64 with a release build: a fixed part,
#: and a part per kernel found, to estimate its time, sort it and look up its object. Kernels that
#: do not support the arguments cost next to nothing.
CALL, KERNEL = 12_000, 2_200


def test_discovery_spends_its_time_on_what_it_finds():
    problems = [
        # Each of a million instructions is a stop of the counted process: few problems with many
        # kernels. Kernels of every layout support one element, of float64 fewer than of float16.
        (4096, 4096, 4096, 16),
        (300, 5000, 700, 16),
        (301, 5001, 701, 16),
        (1, 1, 1, 64),
    ]
    # Counts instructions: times vary on a busy machine.
    counts = run_gemm(
        f"""
        for m, n, k, bits in {problems}:
            pairs = (A, (m, k)), (B, (k, n)), (OUT, (m, n))
            a, b, out = (Tensor(*pair, bits=bits) for pair in pairs)
            args = GemmArguments(a, b, out, f"float{{max(bits, 32)}}")
            for _ in range(20):
                cutlass_api.get_kernels(args, cc=90)
                device.begin
            device.begin(); cutlass_api.get_kernels(args, cc=90); device.end()
        """,
        counted=True,
    )
    for (*shape, bits), count in zip(problems, map(int, counts.split()), strict=True):
        args = fake_gemm(*shape, dtype=torch.float16 if bits == 16 else torch.float64)
        found = len(cutlass_api.get_kernels(args, cc=90))
        print(f"{shape}: {count} instructions, {found} kernels")
        assert count < CALL + KERNEL * found
