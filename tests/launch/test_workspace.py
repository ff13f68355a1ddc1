"""Workspace: when it is allocated, its size, and refused ones, on a driver that records and fails
on demand.
"""

import pytest
from stand_in import run_gemm as run

#: A kernel with packed operands (two launches), and a kernel with a grid split.
KINDS = {"packed": ("128, 257, 65", "sm90", 2), "gridsplit": ("256, 32768, 512", "gridsplit", 1)}
kinds = pytest.mark.parametrize("kind", KINDS)


def run_kind(kind, script):
    """Runs a script after the setup of such a kernel's arguments."""
    extents, family, launches = KINDS[kind]
    run(
        f"""
        m, k, n = {extents}
        a.describe(A, (m, k)); b.describe(B, (k, n)); out.describe(OUT, (m, n))
        args, launches = GemmArguments(a, b, out, "float32"), {launches}
        kernel = first(args, "{family}")
        assert kernel.get_workspace_size(args) > 0
        """
        + script
    )


@kinds
def test_what_a_capture_forbids_is_done_when_a_kernel_is_compiled(kind):
    run_kind(
        kind,
        """
        artifact = kernel.compile(args)
        device.library.stand_in_capture(1)
        kernel.run(args, artifact, stream=STREAM)
        assert device.launches() == launches
        """,
    )


@kinds
def test_what_a_capture_forbids_is_done_when_a_launch_is_bound(kind):
    """With an artifact from bytes, which is not loaded."""
    run_kind(
        kind,
        """
        data = kernel.compile(args, 90).to_bytes()
        launch = kernel.bind(
            args, cutlass_api.artifact.CompiledArtifact.from_bytes(data), stream=STREAM
        )
        device.library.stand_in_capture(1)
        launch()
        assert device.launches() == launches
        """,
    )


def test_what_a_capture_forbids_is_done_when_matmul_chooses():
    run(
        """
        # Large enough that a kernel with packed operands ranks first.
        a.describe(A, (2048, 2047)); b.describe(B, (2047, 2049)); out.describe(OUT, (2048, 2049))
        cutlass_api.get_kernels(args)  # opens the device, as torch's capture would have
        device.library.stand_in_capture(0)
        cutlass_api.matmul(a, b, out=out)
        device.library.stand_in_capture(1)
        cutlass_api.matmul(a, b, out=out)
        assert device.launches() == 4
        """
    )


@pytest.mark.parametrize("enough", [True, False], ids=["enough then", "not then either"])
def test_torch_empties_its_cache_before_workspace_is_refused(enough):
    run_kind(
        "packed",
        f"""
        import sys, types
        artifact, enough = kernel.compile(args), {enough}
        device.fail("cuMemAllocFromPoolAsync", 2)
        emptied = []
        def empty_cache():
            emptied.append(True)
            if enough:
                device.fail("")
        sys.modules["torch"] = types.SimpleNamespace(
            cuda=types.SimpleNamespace(empty_cache=empty_cache)
        )
        try:
            kernel.run(args, artifact, stream=STREAM)
        except RuntimeError as error:
            assert not enough and "CUDA_ERROR_OUT_OF_MEMORY" in str(error), error
        else:
            assert enough and device.launches() == launches
        assert emptied == [True]
        """,
    )


def test_a_workspace_over_an_epilogue_s_operand_is_refused():
    run(
        """
        sums = Tensor(0x40000000, (128,), bits=32)
        source = "def f(accum):\\n    D = accum\\n    sums = sum(accum, 1)\\n    return D, sums"
        args = GemmArguments(a, b, out, "float32", EpilogueArguments(source, D=out, sums=sums))
        kernel = first(args, "sm80")
        with raises(ValueError, "workspace shares memory with sums"):
            kernel.run(args, stream=STREAM, workspace=Tensor(0x40000000, (4096, 64)))
        assert device.launches() == 0
        """
    )
