"""`kernel.run` with operands that changed since the last launch."""

import pytest
from stand_in import run_gemm as run


def test_moved_memory_is_followed_and_changed_shapes_are_refused():
    run(
        """
        artifact = kernel.compile(args)
        for checked in (False, True):
            a.describe(A + 4096, (128, 256))
            kernel.run(args, artifact, stream=STREAM, assume_supported_args=not checked)
            assert device.last_parameters().a == A + 4096
            a.describe(A, (128, 128))
            with raises(ValueError, "dimension K"):
                kernel.run(args, artifact, stream=STREAM, assume_supported_args=not checked)
            a.describe(A, (128, 256))
        """
    )


def test_memory_that_moved_to_a_worse_alignment_is_refused():
    run(
        """
        artifact = kernel.compile(args)
        a.describe(A + 2, (128, 256))
        with raises(ValueError, "A is aligned to 2 bytes"):
            kernel.run(args, artifact, stream=STREAM, assume_supported_args=True)
        """
    )


#: Few rows, for which kernels are compiled, and many, at which they run.
FEW_AND_MANY = """
        def rows(count, at=0):
            shapes = [(count, 4096), (4096, 1024), (count, 1024)]
            operands = (Tensor(p + at, shape) for p, shape in zip((A, B, OUT), shapes))
            return GemmArguments(*operands, "float32")
        few, many = rows(16), rows(4096)
"""


@pytest.mark.parametrize("family", ["skinny", "_split", "_swapped", "sm90", "sm80", "simt"])
def test_a_kernel_compiled_for_few_rows_launches_on_many(family):
    """As code that Inductor generated for one size does at another."""
    run(
        FEW_AND_MANY
        + f"""
        kernel = first(few, "{family}")
        artifact = kernel.compile(few)
        kernel.run(few, artifact, STREAM, assume_supported_args=True)
        before = device.launches()
        kernel.run(many, artifact, STREAM, assume_supported_args=True)
        assert device.launches() == before + 1
        if "{family}" == "skinny":
            grid, design = device.library.stand_in_last_extents(0).contents, kernel.metadata.design
            m, n, _ = design.tile_shape
            assert grid[0] == 4096 // m * (1024 // n) * design.cluster_shape[2], list(grid)
            status = kernel.supports(many)
            assert "M is 4096, and the kernel serves at most 16" in str(status.error), status.error
            with raises(ValueError, "serves at most"):
                kernel.run(many, artifact, STREAM)
        """
    )


def test_a_workspace_for_few_rows_is_replaced_by_one_for_many():
    run(
        FEW_AND_MANY
        + """
        kernel = first(few, "gridsplit")
        artifact, size = kernel.compile(few), kernel.get_workspace_size(few)
        workspace = Tensor(0x40000000, (size // 2,))
        kernel.run(few, artifact, STREAM, workspace=workspace, assume_supported_args=True)
        kernel.run(many, artifact, STREAM, workspace=workspace, assume_supported_args=True)
        needed = kernel.get_workspace_size(many)
        assert needed > size and device.library.stand_in_last_allocation() == needed
        # A caller who does not say that the size is that of other arguments made a mistake.
        small = Tensor(0x40000000, (size // 4,))
        with raises(ValueError, f"and {size} contiguous bytes are needed"):
            kernel.run(few, artifact, STREAM, workspace=small)
        """
    )


@pytest.mark.parametrize("family", ["skinny", "sm90", "sm80"])
def test_operands_that_a_kernel_cannot_read_are_refused_whatever_is_assumed(family):
    run(
        FEW_AND_MANY
        + f"""
        kernel = first(few, "{family}")
        artifact = kernel.compile(few)
        kernel.run(few, artifact, STREAM, assume_supported_args=True)
        # Addresses, and rows, that are not a multiple of 16 bytes.
        narrow = [Tensor(A, (16, 4095)), Tensor(B, (4095, 1024)), Tensor(OUT, (16, 1024))]
        for args in (rows(16, at=2), rows(4096, at=2), GemmArguments(*narrow, "float32")):
            with raises(ValueError, "A is aligned to 2 bytes"):
                kernel.run(args, artifact, STREAM, assume_supported_args=True)
        """
    )


def test_torch_s_tensors_are_followed_and_changed_ones_refused():
    run(
        """
        import torch
        from torch.utils import swap_tensors
        tensor = device.torch_tensor
        class Subclass(torch.Tensor):
            pass
        kinds = [lambda t: t, torch.nn.Parameter, lambda t: t.as_subclass(Subclass)]
        for kind in kinds:
            a, b, out = kind(tensor(A, (128, 128))), tensor(B, (128, 128)), tensor(OUT, (128, 128))
            args = GemmArguments(a, b, out, "float32")
            kernel = first(args, "sm80")
            artifact = kernel.compile(args)
            launch = kernel.bind(args, artifact, STREAM)
            runs = [
                lambda: kernel.run(args, artifact, stream=STREAM, assume_supported_args=True),
                lambda: kernel.run(args, artifact, stream=STREAM),
                launch,
            ]

            def launched(data):
                for run in (*runs, *runs):
                    run()
                    assert device.last_parameters()[:3] == (data, B, OUT), device.last_parameters()

            def refused(words):
                for run in runs:
                    with raises((ValueError, BufferError), words):
                        run()

            launched(A)
            with torch.no_grad():
                a.data = tensor(A + 4096, (128, 128))
                launched(A + 4096)
                swap_tensors(a, kind(tensor(A + 8192, (128, 128))))
                launched(A + 8192)
                a.data = tensor(A, (128, 64))
                refused("dimension K")
                a.data = tensor(A, (128, 64), (128, 1))
                refused("dimension K")
                a.data = tensor(A, (1, 128, 128))
                refused("rank")
                a.data = tensor(A, (1, 1, 1, 128, 128))
                refused("rank 5")
                a.data = tensor(A, (128, 128), device=1)
                refused("A is on cuda:1")
                a.data = tensor(A, (128, 128), code=device.BFLOAT)
                refused("bfloat16")
                if not a.requires_grad:
                    a.data = tensor(A, (128, 128), code=device.INT)
                    refused("int16")
                a.data = tensor(OUT, (128, 128))
                refused("shares memory")
                swap_tensors(a, kind(torch.zeros(128, 128, dtype=torch.float16, device="meta")))
                refused("A ")
                swap_tensors(a, kind(tensor(A + 16, (128, 128))))
                launched(A + 16)
                a.data = tensor(A, (128, 128), (1, 128))
                refused("A ")
                assert a._use_count() == 1, "its handle was asked for, and given back"
        """
    )


def test_what_is_kept_of_a_run_is_for_the_same_again_only():
    run(
        """
        artifact = kernel.compile(args)
        def again(kernel=kernel, args=args, artifact=artifact, stream=STREAM, **more):
            before = device.launches()
            kernel.run(args, artifact, stream=stream, **more)
            assert device.launches() == before + 1
        def refused(kinds, words, **other):
            for assume in (True, False):
                with raises(kinds, words):
                    again(assume_supported_args=assume, **other)
        class Derived(GemmArguments):
            pass
        hopper = first(args, "sm90")
        maps = hopper.compile(args)
        for made in (GemmArguments, Derived):
            args = made(a, b, out, "float32")
            for _ in range(3):
                again(args=args)
                again(args=args, assume_supported_args=True)
                again(args=args, artifact=None)
                again(args=args, artifact=kernel.compile(args))
            again(args=args, stream=STREAM + 16)
            assert device.library.stand_in_last_stream() == STREAM + 16
            refused(ValueError, "compiled_artifact is of", args=args, artifact=maps)
            refused(ValueError, "compiled_artifact is of", args=args, kernel=hopper)
            refused(TypeError, f"compiled_artifact is a {made.__name__}", args=args, artifact=args)
            refused((TypeError, ValueError), "stream", args=args, stream="x")
            refused(ValueError, "stream", args=args, stream=1 << 64)
            device.expect(520)
            for _ in range(3):
                again(hopper, args, maps)
            parameters = device.last_sm90_parameters()
            assert {parameters.a.address or parameters.a_pointer, parameters.b.address} == {A, B}, (
                parameters
            )
            device.expect(128)
            again(args=args, artifact=kernel.compile(args))
            assert device.last_parameters().a == A
            device.fail("cuLaunchKernelEx")
            refused(RuntimeError, "cuLaunchKernelEx failed", args=args)
            refused(
                RuntimeError, "cuLaunchKernelEx failed", args=GemmArguments(a, b, out, "float32")
            )
            device.fail("")
            again(args=args)
        """
    )


def test_new_arguments_run_like_the_last_ones_of_their_program():
    run(
        """
        artifact = kernel.compile(args)
        kernel.run(args, artifact, stream=STREAM, assume_supported_args=True)
        for at, shape in [
            (A + 4096, (128, 256)),
            (A, (256, 256)),
            (A + 16, (128, 256)),
            (A, (128, 256)),
        ]:
            x, y = Tensor(at, shape), Tensor(OUT + 65536, (shape[0], 64))
            new = GemmArguments(x, b, y, "float32")
            for _ in range(4):
                kernel.run(new, artifact, stream=STREAM, assume_supported_args=True)
                found = device.last_parameters()
                assert found[:3] == (at, B, OUT + 65536) and found.extents[0] == shape[0], found
            x.describe(at + 65536, shape)
            kernel.run(new, artifact, stream=STREAM, assume_supported_args=True)
            assert device.last_parameters().a == at + 65536
        moved = GemmArguments(a, b, out, "float32")
        a.describe(A + 2, (128, 256))  # between the arguments and their run
        for refused in (moved, GemmArguments(a, b, out, "float32")):
            with raises(ValueError, "A is aligned to 2 bytes"):
                kernel.run(refused, artifact, stream=STREAM, assume_supported_args=True)
        """
    )
