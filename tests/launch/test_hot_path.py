"""The cost of the path from `run()` to the driver's launch call, in instructions and heap
allocations.
"""

import json
import textwrap

import pytest
import stand_in
from stand_in import run_gemm as run

#: Bounds on the instructions from the Python call to the driver's launch call and back, on x86-64
#: with a release build. They include a few hundred of the stand-in, and 1 % for hash tables, whose
#: collisions differ between processes and machines. A change that adds more than 10 % needs a
#: reason.
BOUNDS = {
    "run": 2100,
    # Such a launch is not promoted to a graph.
    "run of a kernel that takes long": 2100,
    "run with checks": 1900,
    "run without an artifact": 1980,
    "run with another artifact": 1980,
    "GemmArguments": 2980,
    "bound launch": 1170,
    "matmul": 6490,
    "arguments and run, sm90": 6020,
}


def check_instructions(script, bounds):
    """Checks that a script's `calls`, in their order, stay within the bounds. The first call does
    nothing.
    """
    loop = """
        for call in calls:
            # CPython specializes a function after some calls, and short launches become graphs
            for _ in range(50):
                device.begin
                call()
        device.begin(), device.end()
        for call in calls:
            device.begin(); call(); device.end()
    """
    counts = run(textwrap.dedent(script) + textwrap.dedent(loop), counted=True)
    _warmup, empty, *measured = [int(line) for line in counts.split()]
    found = {name: count - empty for name, count in zip(bounds, measured, strict=True)}
    print(json.dumps(found))
    assert found == {name: pytest.approx(0, abs=bound) for name, bound in bounds.items()}


def test_instructions_of_the_hot_path():
    check_instructions(
        """
        artifact, other = kernel.compile(args), kernel.compile(args)
        launch = kernel.bind(args, artifact, STREAM)
        alone = GemmArguments(a, b, out, "float32")
        hopper = first(args, "sm90")
        maps = hopper.compile(args)
        x, y, z = (Tensor(at, (4096, 4096)) for at in (A, B, OUT))
        long = GemmArguments(x, y, z, "float32")
        calls = [
            lambda: None,
            lambda: kernel.run(args, artifact, stream=STREAM, assume_supported_args=True),
            lambda: kernel.run(long, artifact, stream=STREAM, assume_supported_args=True),
            lambda: kernel.run(args, artifact, stream=STREAM),
            lambda: kernel.run(alone, stream=STREAM),
            lambda: kernel.run(args, other, stream=STREAM),
            lambda: GemmArguments(a, b, out, "float32"),
            launch,
            lambda: cutlass_api.matmul(a, b, out=out),
            lambda: hopper.run(
                GemmArguments(a, b, out, "float32"), maps, stream=STREAM, assume_supported_args=True
            ),
        ]
        """,
        BOUNDS,
    )


#: The same with torch's tensors, read through torch's C functions. Its exchange table takes 1500
#: instructions for three tensors.
TORCH_BOUNDS = {"run": 2590, "GemmArguments": 3810}


def test_instructions_with_torch_s_tensors():
    check_instructions(
        """
        a, b, out = (device.torch_tensor(at, (128, 128)) for at in (A, B, OUT))
        args = GemmArguments(a, b, out, "float32")
        kernel = first(args, "sm80")
        artifact = kernel.compile(args)
        calls = [
            lambda: None,
            lambda: kernel.run(args, artifact, stream=STREAM, assume_supported_args=True),
            lambda: GemmArguments(a, b, out, "float32"),
        ]
        """,
        TORCH_BOUNDS,
    )


def test_launches_take_nothing_from_the_heap():
    """No allocations, except one object for new arguments."""
    preloaded = stand_in.build() / "allocations.so"
    run(
        f"""
        heap = device.ctypes.CDLL({str(preloaded)!r})
        heap.allocations.restype = device.ctypes.c_long
        """
        + """
        artifact = kernel.compile(args)
        launch = kernel.bind(args, artifact, STREAM)
        hopper = first(args, "sm90")
        maps = hopper.compile(args)
        source = "def scaled(accum, x):\\n    D = accum * x\\n    return D"
        fused = GemmArguments(a, b, out, "float32", EpilogueArguments(source, x=2.0, D=out))
        fusing = first(fused, "sm80")
        program = fusing.compile(fused)
        other = Tensor(A + 4096, (128, 256))
        calls = [
            lambda: kernel.run(args, artifact, stream=STREAM, assume_supported_args=True),
            lambda: kernel.run(args, artifact, stream=STREAM),
            lambda: kernel.run(args, artifact),
            lambda: hopper.run(args, maps, stream=STREAM, assume_supported_args=True),
            lambda: fusing.run(fused, program, stream=STREAM),
            launch,
            lambda: launch(A=other),
            lambda: cutlass_api.matmul(a, b, out=out),
        ]
        make = lambda: GemmArguments(a, b, out, "float32")
        for call, expected in [*((call, 0) for call in calls), (make, 100)]:
            for _ in range(50):
                call()
            before = heap.allocations()
            for _ in range(100):
                call()
            # The interpreter occasionally allocates a block for its small objects.
            assert expected <= heap.allocations() - before < expected + 10, (
                call,
                heap.allocations() - before,
            )
        """,
        LD_PRELOAD=str(preloaded),
    )
