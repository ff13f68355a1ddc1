"""The path from `run()` to the driver's launch call, walked against a driver that records and fails on demand."""

import json
import textwrap

import pytest
import stand_in

PRELUDE = textwrap.dedent(
    """
    import json, threading
    import cutlass_api
    from cutlass_api.arguments import EpilogueArguments, GemmArguments
    from stand_in import device
    from stand_in.device import Tensor

    A, B, OUT = 0x10000000, 0x20000000, 0x30000000
    a, b, out = Tensor(A, (128, 256)), Tensor(B, (256, 64)), Tensor(OUT, (128, 64))
    STREAM, OTHER_DEVICE = 0x5010, 0x6010
    args = GemmArguments(a, b, out, "float32")

    def first(args, family):
        return [kernel for kernel in cutlass_api.get_kernels(args) if family in kernel.metadata.kernel_name][0]

    kernel = first(args, "sm80")
    """
)


def run(script, **kwargs):
    return stand_in.run(PRELUDE + textwrap.dedent(script), **kwargs)


def test_a_launch_carries_addresses_strides_and_extents():
    run(
        """
        kernel.run(args, stream=STREAM)
        p = device.last_parameters()
        assert (p.a, p.b, p.out) == (A, B, OUT), p
        assert p.a_stride == (0, 256, 1) and p.b_stride == (0, 64, 1) and p.out_stride == (0, 64, 1), p
        assert p.extents == (128, 64, 256, 1), p
        tile = kernel.metadata.design.tile_shape
        assert device.library.stand_in_last_grid() == -(-128 // tile[0]) * -(-64 // tile[1])
        assert device.library.stand_in_last_stream() == STREAM
        """
    )


def test_a_column_major_output_is_the_transposed_product():
    run(
        """
        class Transposed(Tensor):
            pass
        at, bt = Tensor(A, (256, 128)), Tensor(B, (64, 256))
        import ctypes
        def column_major(tensor, data, rows, columns):
            two = ctypes.c_int64 * 2
            device.library.stand_in_describe(
                ctypes.c_void_p(id(tensor)), ctypes.c_uint64(data), 0, 2, 2, 16, two(rows, columns), two(1, rows)
            )
        column_major(out, OUT, 128, 64)
        args = GemmArguments(a, b, out, "float32")
        kernel = first(args, "sm80")
        kernel.run(args, stream=STREAM)
        p = device.last_parameters()
        assert (p.a, p.b, p.out) == (B, A, OUT), p
        assert p.extents == (64, 128, 256, 1) and p.out_stride == (0, 128, 1), p
        """
    )


def test_moved_memory_is_followed_and_changed_shapes_are_refused():
    run(
        """
        artifact = kernel.compile(args)
        for checked in (False, True):
            a.describe(A + 4096, (128, 256))
            kernel.run(args, artifact, stream=STREAM, assume_supported_args=not checked)
            assert device.last_parameters().a == A + 4096
            a.describe(A, (128, 128))
            before = device.launches()
            try:
                kernel.run(args, artifact, stream=STREAM, assume_supported_args=not checked)
            except ValueError as error:
                assert "dimension K" in str(error), error
            else:
                raise AssertionError("a shrunk A was launched on")
            assert device.launches() == before
            a.describe(A, (128, 256))
        """
    )


def test_memory_that_moved_to_a_worse_alignment_is_refused():
    run(
        """
        artifact = kernel.compile(args)
        a.describe(A + 2, (128, 256))
        try:
            kernel.run(args, artifact, stream=STREAM, assume_supported_args=True)
        except ValueError as error:
            assert "A is aligned to 2 bytes" in str(error), error
        else:
            raise AssertionError("an unaligned A was launched on")
        """
    )


def test_the_operands_device_is_used_and_the_current_one_left_alone():
    run(
        """
        x, y, z = (Tensor(at, (64, 64), device=1) for at in (A, B, OUT))
        there = GemmArguments(x, y, z, "float32")
        kernel = first(there, "sm80")
        device.library.cuCtxPushCurrent_v2(device.ctypes.c_uint64(0xC0))
        open_contexts = device.library.stand_in_open_contexts()
        kernel.run(there, stream=OTHER_DEVICE)
        assert device.library.stand_in_last_context() == 0xC1
        assert device.library.stand_in_open_contexts() == open_contexts
        current = device.ctypes.c_uint64()
        device.library.cuCtxGetCurrent(device.ctypes.byref(current))
        assert current.value == 0xC0
        """
    )


def test_streams():
    run(
        """
        class Torch:
            cuda_stream = 0x5020
        class Cupy:
            ptr = 0x5030
        class Cuda:
            def __cuda_stream__(self):
                return (0, 0x5040)
        class Bindings:
            def __int__(self):
                return 0x5050
        named = [(Torch(), 0x5020), (Cupy(), 0x5030), (Cuda(), 0x5040), (Bindings(), 0x5050)]
        for stream, handle in [*named, (0, 0), (2, 2)]:
            kernel.run(args, stream=stream)
            assert device.library.stand_in_last_stream() == handle, (stream, handle)
        device.library.stand_in_set_current_stream(device.ctypes.c_uint64(0x5060))
        kernel.run(args)
        assert device.library.stand_in_last_stream() == 0x5060
        before = device.launches()
        for stream, expected in ((OTHER_DEVICE, ValueError), (1.5, TypeError), ("x", TypeError), (-1, ValueError)):
            try:
                kernel.run(args, stream=stream)
            except expected as error:
                assert "stream" in str(error), error
            else:
                raise AssertionError(stream)
        assert device.launches() == before
        """
    )


def test_nothing_is_launched_for_an_empty_output():
    run(
        """
        a.describe(A, (0, 256)); out.describe(OUT, (0, 64))
        empty = GemmArguments(a, b, out, "float32")
        for kernel in cutlass_api.get_kernels(empty):
            kernel.run(empty, stream=STREAM)
        assert device.launches() == 0
        """
    )


def test_prepared_launches():
    run(
        """
        launch = kernel.bind(args, kernel.compile(args), STREAM)
        launch()
        assert device.last_parameters()[:3] == (A, B, OUT)
        launch(A=Tensor(A + 65536, (128, 256)), out=Tensor(OUT + 65536, (128, 64)))
        assert device.last_parameters()[:3] == (A + 65536, B, OUT + 65536)
        launch()
        assert device.last_parameters()[:3] == (A, B, OUT)
        b.describe(B + 4096, (256, 64))
        launch()
        assert device.last_parameters().b == B + 4096
        before = device.launches()
        shape = (128, 256)
        wrong = [Tensor(A, (128, 128)), Tensor(A, shape, bits=32), Tensor(A, shape, device=1), Tensor(A + 2, shape)]
        for tensor in wrong:
            try:
                launch(A=tensor)
            except ValueError as error:
                assert "A is" in str(error), error
            else:
                raise AssertionError("bound to another tensor")
        try:
            launch(out=Tensor(B + 4096, (128, 64)))
        except ValueError as error:
            assert "shares memory with B" in str(error), error
        else:
            raise AssertionError("out over B")
        assert device.launches() == before
        """
    )


def test_a_reduction_is_a_second_launch_behind_a_workspace():
    run(
        """
        import struct
        S, W = 0x40000000, 0x60000000
        s, work = Tensor(S, (128,), bits=32), Tensor(W, (4096, 64))
        source = "def f(accum):\\n    D = accum\\n    S = sum(accum, 1)\\n    return D, S"
        fused = cutlass_api.arguments.EpilogueArguments(source, D=out, S=s)
        args = GemmArguments(a, b, out, "float32", fused)
        kernel = first(args, "sm80")
        artifact = kernel.compile(args)
        # Of each row, a partial sum in float32 from each warp's columns; rows are counted in whole tiles.
        size = kernel.get_workspace_size(args)
        parts, rows = size // 4 // 128, 128
        assert size == 4 * rows * parts and parts > 1, size
        device.library.stand_in_expect(64)
        for workspace in (work, None):
            before = device.launches()
            kernel.run(args, artifact, STREAM, workspace=workspace)
            assert device.launches() == before + 2
            address = W if workspace else 0x70000000  # where the stand-in allocates
            assert workspace or device.library.stand_in_last_allocation() == size
            block = device.ctypes.string_at(device.library.stand_in_last_parameters(), 64)
            assert struct.unpack("<5Qq4i", block) == (address, S, 0, 1, rows, parts, 128, 0, 1, 4), block
        bound = kernel.bind(args, artifact, STREAM)
        before = device.launches()
        other = Tensor(S + 4096, (128,), bits=32)
        bound(S=other)
        assert device.launches() == before + 2
        block = device.ctypes.string_at(device.library.stand_in_last_parameters(), 16)
        assert struct.unpack("<2Q", block)[1] == S + 4096
        """
    )


def test_matmul_remembers_its_choice_and_sees_alignment():
    run(
        """
        cutlass_api.matmul(a, b, out=out)
        cutlass_api.matmul(a, b, out=out)
        assert device.launches() == 2 and device.library.stand_in_libraries() == 1
        a.describe(A + 2, (128, 256))
        cutlass_api.matmul(a, b, out=out)
        # Another kernel, and on Hopper one more that copies A first.
        assert device.launches() > 2 and device.library.stand_in_libraries() > 1
        """
    )


def test_an_epilogue_travels_as_a_second_parameter():
    run(
        """
        import struct
        C, E = 0x40000000, 0x50000000
        c, e = Tensor(C, (1, 64), bits=32), Tensor(E, (128, 64))
        source = "def f(accum, alpha, C):\\n    E = accum * alpha\\n    D = E + C\\n    return D, E"
        def epilogue(alpha):
            return cutlass_api.arguments.EpilogueArguments(source, C=c, E=e, D=out, alpha=alpha)
        args = GemmArguments(a, b, out, "float32", epilogue(1.5))
        kernel = cutlass_api.get_kernels(args)[0]
        artifact = kernel.compile(args)
        words = [C, 0, 0, 1, E, 0, 64, 1]
        device.library.stand_in_expect_more(72)
        def alpha_of(word):
            return struct.unpack("<f", struct.pack("<Q", word)[:4])[0]
        launch = kernel.bind(args, artifact, STREAM)
        runs = [lambda: kernel.run(args, artifact, STREAM), lambda: kernel.run(args, artifact, STREAM), launch]
        for move in (0, 4096):
            c.describe(C + move, (1, 64), bits=32)
            for call in runs:
                call()
                *tensors, alpha = device.last_words(9)
                assert tensors == [C + move, *words[1:]], tensors
                assert alpha_of(alpha) == 1.5
        launch(C=Tensor(C + 65536, (1, 64), bits=32), E=Tensor(E + 65536, (128, 64)), alpha=-3)
        *tensors, alpha = device.last_words(9)
        assert (tensors[0], tensors[4], alpha_of(alpha)) == (C + 65536, E + 65536, -3)
        launch()
        assert (device.last_words(9)[0], alpha_of(device.last_words(9)[8])) == (C + 4096, 1.5)
        before = device.launches(), device.library.stand_in_libraries()
        again = GemmArguments(a, b, out, "float32", epilogue(-2))
        assert cutlass_api.get_kernels(again)[0] is kernel
        kernel.run(again, artifact, STREAM, assume_supported_args=True)
        assert alpha_of(device.last_words(9)[8]) == -2
        assert (device.launches(), device.library.stand_in_libraries()) == (before[0] + 1, before[1])
        plain = GemmArguments(a, b, out, "float32")
        for wrong in (lambda: kernel.run(plain, artifact, STREAM, assume_supported_args=True),
                      lambda: cutlass_api.get_kernels(plain)[0].run(args, None, STREAM, assume_supported_args=True)):
            try:
                wrong()
            except ValueError as error:
                assert "epilogue" in str(error), error
            else:
                raise AssertionError("launched with another epilogue")
        """
    )


def test_the_epilogue_of_a_column_major_output_is_transposed():
    run(
        """
        import ctypes
        def column_major(tensor, data, rows, columns):
            two = ctypes.c_int64 * 2
            device.library.stand_in_describe(
                ctypes.c_void_p(id(tensor)), ctypes.c_uint64(data), 0, 2, 2, 16, two(rows, columns), two(1, rows)
            )
        c = Tensor(0x40000000, (128, 64))
        column_major(out, OUT, 128, 64)
        source = "def f(accum, C):\\n    D = accum + C\\n    return D"
        epilogue = cutlass_api.arguments.EpilogueArguments(source, C=c, D=out)
        args = GemmArguments(a, b, out, "float32", epilogue)
        device.library.stand_in_expect_more(32)
        device.expect(464)
        kernels = cutlass_api.get_kernels(args)
        families = {kernel.metadata.kernel_name.split("_")[0]: kernel for kernel in reversed(kernels)}
        for family, kernel in families.items():
            kernel.run(args, stream=STREAM)
            transposed = family != "simt"
            assert device.last_words(4) == ((0x40000000, 0, 1, 64) if transposed else (0x40000000, 0, 64, 1)), kernel
        """
    )


#: Every driver call between a first `run` without an artifact and its launch.
CALLS = [
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuLibraryLoadData",
    "cuLibraryGetKernel",
    "cuKernelSetAttribute",
    "cuKernelGetFunction",
    "cuStreamGetCtx",
    "cuLaunchKernelEx",
]


#: What an sm90 kernel adds, and one whose operands are copied into workspace.
SM90_CALLS = ["cuTensorMapEncodeTiled", "cuLaunchKernelEx"]
WORKSPACE_CALLS = ["cuMemPoolCreate", "cuMemPoolSetAttribute", "cuMemAllocFromPoolAsync", "cuMemFreeAsync"]

#: That the driver cannot be used at all is found out once; a process does not ask again.
FINAL = ["cuInit", "cuDriverGetVersion"]


@pytest.mark.parametrize(
    "family, call",
    [("sm80", call) for call in CALLS]
    + [("_tt", call) for call in SM90_CALLS]
    + [("_pp", call) for call in [*SM90_CALLS, *WORKSPACE_CALLS]],
)
def test_a_failing_driver_call_raises_with_its_name_and_leaks_nothing(family, call):
    out = stand_in.run(
        textwrap.dedent(
            f"""
            import sys
            from stand_in import device
            from stand_in.device import Tensor
            import cutlass_api
            a, b, out = Tensor(1 << 28, (128, 256)), Tensor(2 << 28, (256, 64)), Tensor(3 << 28, (128, 64))
            args = cutlass_api.arguments.GemmArguments(a, b, out, "float32")
            def first():
                return [k for k in cutlass_api.get_kernels(args) if "{family}" in k.metadata.kernel_name][0]
            references = [sys.getrefcount(tensor) for tensor in (a, b, out)]
            device.fail("{call}")
            try:
                first().run(args, stream=0x5010)
            except RuntimeError as error:
                print(error)
            else:
                raise AssertionError("nothing was raised")
            assert device.library.stand_in_open_contexts() == 0
            assert device.library.stand_in_allocations() == 0 or "{call}" == "cuMemFreeAsync"
            device.library.stand_in_forget_allocations()
            assert references == [sys.getrefcount(tensor) for tensor in (a, b, out)]
            device.fail("", 0)
            if {call not in FINAL}:
                before = device.launches()
                first().run(args, stream=0x5010)
                assert device.launches() - before == {2 if family == "_pp" else 1}
                assert device.library.stand_in_allocations() == 0
            """
        )
    )
    name = call.removesuffix("_v2")
    assert f"{name} failed with CUDA_ERROR_LAUNCH_FAILED: as the test asked" in out


def test_an_artifact_of_another_kernel_or_architecture_is_refused():
    run(
        """
        other = [k for k in cutlass_api.get_kernels(args) if k is not kernel][0]
        for artifact, words in ((other.compile(args), "another kernel"), (kernel.compile(args, cc=80), "sm_80")):
            try:
                kernel.run(args, artifact, stream=STREAM)
            except ValueError as error:
                assert words in str(error), error
            else:
                raise AssertionError(words)
        try:
            kernel.run(args, "artifact", stream=STREAM)
        except TypeError as error:
            assert "compiled_artifact is a str" in str(error), error
        else:
            raise AssertionError("a string was run")
        assert device.launches() == 0
        """
    )


def test_threads_launch_side_by_side():
    run(
        """
        artifact = kernel.compile(args)
        def many(stream):
            for _ in range(500):
                kernel.run(args, artifact, stream=stream)
        threads = [threading.Thread(target=many, args=(0x5000 + 16 * at,)) for at in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert device.library.stand_in_open_contexts() == 0
        assert device.launches() == 8 * 500
        """
    )


def test_a_launch_that_blocks_lets_other_threads_run():
    run(
        """
        import time
        artifact = kernel.compile(args)
        device.library.stand_in_block(500)
        thread = threading.Thread(target=lambda: kernel.run(args, artifact, stream=STREAM))
        start = time.perf_counter()
        thread.start()
        turns = 0
        while thread.is_alive() and time.perf_counter() - start < 5:
            turns += 1
            time.sleep(0.001)
        assert turns > 50, turns
        assert device.launches() == 1
        """
    )


#: Instructions from the Python call to the driver's launch call and back, the stand-in's own few hundred included, on
#: x86-64 with a release build. What a change may add without a thought is a tenth; more wants a reason.
BOUNDS = {
    "run": 2650,
    "run with checks": 2420,
    "GemmArguments": 3870,
    "bound launch": 1450,
    "matmul": 5230,
    "arguments and run, sm90": 7600,
}


def test_instructions_of_the_hot_path():
    counts = run(
        """
        artifact = kernel.compile(args)
        launch = kernel.bind(args, artifact, STREAM)
        hopper = first(args, "sm90")
        maps = hopper.compile(args)
        calls = [
            lambda: None,
            lambda: kernel.run(args, artifact, stream=STREAM, assume_supported_args=True),
            lambda: kernel.run(args, artifact, stream=STREAM),
            lambda: GemmArguments(a, b, out, "float32"),
            launch,
            lambda: cutlass_api.matmul(a, b, out=out),
            lambda: hopper.run(GemmArguments(a, b, out, "float32"), maps, stream=STREAM, assume_supported_args=True),
        ]
        for call in calls:
            for _ in range(20):  # CPython specializes a function after some calls
                device.begin
                call()
        device.begin(), device.end()
        for call in calls:
            device.begin(); call(); device.end()
        """,
        counted=True,
    )
    _warmup, empty, *measured = [int(line) for line in counts.split()]
    found = {name: count - empty for name, count in zip(BOUNDS, measured, strict=True)}
    print(json.dumps(found))
    assert found == {name: pytest.approx(0, abs=bound) for name, bound in BOUNDS.items()}


# ---- Hopper: tensor maps, clusters, workspace ------------------------------------------------------------------------


def test_an_sm90_launch_carries_tensor_maps():
    run(
        """
        device.expect(464)
        kernel = first(args, "sm90")
        kernel.run(args, stream=STREAM)
        kernel.run(args, stream=STREAM)
        p = device.last_sm90_parameters()
        design = kernel.metadata.design
        assert not any(design.packed), design
        a_map, b_map = (p.b, p.a) if design.swapped else (p.a, p.b)
        # Row-major: along K for A, along N for B; a batch of one.
        assert a_map[:3] == (6, 3, A) and a_map.extents == (256, 128, 1) and a_map.strides[0] == 512, a_map
        assert b_map[:3] == (6, 3, B) and b_map.extents == (64, 256, 1) and b_map.strides[0] == 128, b_map
        assert a_map.box[0] == 64 and b_map.box[0] == 64  # 128 bytes, the swizzle's row
        assert p.out_pointer == OUT and p.out_stride == (0, 64, 1)
        m, n = (64, 128) if design.swapped else (128, 64)
        assert p.extents == (m, n, 256, 1), p
        size = 1
        for ctas in design.cluster_shape:
            size *= ctas
        assert device.library.stand_in_last_cluster() == size
        assert device.library.stand_in_last_grid() % size == 0
        assert device.library.stand_in_last_overlapping() == 1
        assert device.library.stand_in_allocations() == 0 and kernel.get_workspace_size(args) == 0
        """
    )


def test_a_launch_made_from_the_last_one_is_the_launch_made_anew():
    """Arguments that differ from the last ones in addresses alone have only these changed in the packed launch."""
    run(
        """
        from cutlass_api.artifact import CompiledArtifact

        def block(kernel, args, artifact):
            name = kernel.metadata.kernel_name
            size = 464 if "sm90" in name else 152 if "elementwise" in name else 128
            device.expect(size)
            kernel.run(args, artifact, stream=STREAM, assume_supported_args=True)
            block = device.ctypes.string_at(device.library.stand_in_last_parameters(), size)
            return block, device.library.stand_in_last_grid()

        def column_major(tensor, data, rows, columns):
            two, at = device.ctypes.c_int64 * 2, device.ctypes.c_uint64(data)
            device.library.stand_in_describe(
                device.ctypes.c_void_p(id(tensor)), at, 0, 2, 2, 16, two(rows, columns), two(1, rows)
            )

        seen = set()
        for row_major, (m, n, k) in [(True, (128, 64, 256)), (False, (128, 64, 256)), (True, (8, 512, 1024))]:
            def arguments(at_a, at_b, at_out, m=m, n=n, k=k):
                a.describe(at_a, (m, k)), b.describe(at_b, (k, n))
                if row_major:
                    out.describe(at_out, (m, n))
                else:
                    column_major(out, at_out, m, n)
                return GemmArguments(a, b, out, "float32")

            kernels = {}
            for kernel in cutlass_api.get_kernels(arguments(A, B, OUT)):
                design = kernel.metadata.design
                key = (kernel.metadata.kernel_name.split("_")[0], getattr(design, "swapped", None), row_major)
                kernels.setdefault(key, kernel)
            for key, kernel in kernels.items():
                artifact = kernel.compile(arguments(A, B, OUT))
                block(kernel, arguments(A, B, OUT), artifact)
                places = [(A, B, OUT), (A + 4096, B, OUT), (B, A, OUT + 512), (A, A, OUT), (A + 64, B + 64, OUT + 64)]
                for place in places:
                    fresh = CompiledArtifact(artifact.compiled_obj, kernel)
                    assert block(kernel, arguments(*place), artifact) == block(kernel, arguments(*place), fresh), key
                # Another shape with the same artifact, and back.
                for other in ({"k": k // 2}, {}):
                    fresh = CompiledArtifact(artifact.compiled_obj, kernel)
                    there = arguments(A, B, OUT, **other)
                    assert block(kernel, there, artifact) == block(kernel, there, fresh), key
                seen.add(key)
        families = {("simt", None, True), ("sm80", None, False), ("skinny", None, True), ("sm90", True, False)}
        assert families <= seen, seen

        from cutlass_api.arguments import ElementwiseArguments, GroupedGemmArguments
        c = Tensor(OUT, (128, 256))
        many, out = Tensor(B, (3, 256, 64)), Tensor(OUT, (128, 64))
        offsets = Tensor(0x40000000, (3,), code=device.INT, bits=32)

        def grouped(at):
            a.describe(A + at, (128, 256)), many.describe(B + 2 * at, (3, 256, 64))
            out.describe(OUT + 3 * at, (128, 64))
            offsets.describe(0x40000000 + 4 * at, (3,), code=device.INT, bits=32)
            return GroupedGemmArguments(a, many, out, "float32", offsets)

        def elementwise(at):
            a.describe(A + at, (128, 256)), b.describe(B + 2 * at, (128, 256))
            c.describe(OUT + 3 * at, (128, 256))
            return ElementwiseArguments(a, b, c)

        for arguments, places in ((grouped, (16, 4096, 0)), (elementwise, (16, 2, 18, 4096, 0))):
            for kernel in cutlass_api.get_kernels(arguments(0)):
                artifact = kernel.compile(arguments(0))
                before = block(kernel, arguments(0), artifact)
                for at in places:
                    fresh = CompiledArtifact(artifact.compiled_obj, kernel)
                    assert block(kernel, arguments(at), artifact) == block(kernel, arguments(at), fresh), kernel
                    assert (block(kernel, arguments(at), artifact) == before) == (at == 0), kernel
        """
    )


def test_an_epilogue_s_operands_follow_through_the_last_launch():
    run(
        """
        import struct
        source = "def f(accum, C, alpha):\\n    D = accum * alpha + C\\n    return D"
        C = 0x40000000

        def arguments(at, alpha):
            a.describe(A + at, (128, 256))
            fused = EpilogueArguments(source, D=out, C=Tensor(C + at, (1, 64), bits=32), alpha=alpha)
            return GemmArguments(a, b, out, "float32", fused)

        device.library.stand_in_expect_more(40)
        for family in ("sm80", "sm90", "simt"):
            kernel = first(arguments(0, 1.0), family)
            artifact = kernel.compile(arguments(0, 1.0))
            for at, alpha in ((0, 1.0), (64, 2.0), (0, 3.0)):
                kernel.run(arguments(at, alpha), artifact, stream=STREAM, assume_supported_args=True)
                words = device.last_words(5)
                assert words[0] == C + at and struct.unpack("<f", struct.pack("<I", words[4]))[0] == alpha, words
            try:
                kernel.run(GemmArguments(a, b, out, "float32"), artifact, stream=STREAM, assume_supported_args=True)
            except ValueError as error:
                assert "epilogue" in str(error), error
            else:
                raise AssertionError("launched without the epilogue that it fuses")
        """
    )


def test_an_artifact_is_of_its_kernel():
    run(
        """
        from cutlass_api.artifact import CompiledArtifact
        other = first(args, "sm90")
        try:
            CompiledArtifact(kernel.compile(args).compiled_obj, other)
        except ValueError as error:
            assert kernel.metadata.kernel_name in str(error) and other.metadata.kernel_name in str(error), error
        else:
            raise AssertionError("another kernel's program was taken")
        """
    )


def test_a_workspace_over_an_epilogue_s_operand_is_refused():
    run(
        """
        sums = Tensor(0x40000000, (128,), bits=32)
        source = "def f(accum):\\n    D = accum\\n    sums = sum(accum, 1)\\n    return D, sums"
        args = GemmArguments(a, b, out, "float32", EpilogueArguments(source, D=out, sums=sums))
        kernel = first(args, "sm80")
        try:
            kernel.run(args, stream=STREAM, workspace=Tensor(0x40000000, (4096, 64)))
        except ValueError as error:
            assert "workspace shares memory with sums" in str(error), error
        else:
            raise AssertionError("partial results over what they are summed to")
        assert device.launches() == 0
        """
    )


def test_a_bound_launch_takes_no_fake_and_no_ambiguous_operand():
    run(
        """
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode
        with FakeTensorMode():
            fake = torch.empty(64, device="cuda", dtype=torch.float32)
        source = "def f(accum, {0}, alpha):\\n    D = accum * alpha + {0}\\n    return D"
        real = Tensor(0x40000000, (1, 64), bits=32)

        def bound(name, tensor):
            fused = EpilogueArguments(source.format(name), D=out, alpha=1.5, **{name: tensor})
            args = GemmArguments(a, b, out, "float32", fused)
            return first(args, "sm80").bind(args, None, STREAM)

        launch = bound("C", fake)
        for call in (launch, lambda: launch(alpha=2.0), lambda: launch(A=a, alpha=3)):
            try:
                call()
            except ValueError as error:
                assert "C is a FakeTensor" in str(error), error
            else:
                raise AssertionError("a tensor without memory was launched")
        launch = bound("B", real)
        try:
            launch(B=real)
        except ValueError as error:
            assert "B may mean the launch's or the epilogue's" in str(error), error
        else:
            raise AssertionError("one of two was guessed")
        assert device.launches() == 0
        launch(alpha=2.0)
        assert device.launches() == 1
        """
    )


def test_a_last_launch_hides_no_misaligned_operand():
    run(
        """
        kernel = first(args, "sm90")
        artifact = kernel.compile(args)
        kernel.run(args, artifact, stream=STREAM)
        a.describe(A + 2, (128, 256))
        moved = GemmArguments(a, b, out, "float32")
        for launch in (
            lambda: kernel.run(moved, artifact, stream=STREAM, assume_supported_args=True),
            lambda: kernel.run(args, artifact, stream=STREAM, assume_supported_args=True),
        ):
            try:
                launch()
            except ValueError as error:
                assert "A is aligned to 2 bytes" in str(error), error
            else:
                raise AssertionError("an operand that the copy engine cannot address was launched")
        assert device.launches() == 1
        """
    )


def test_a_map_that_cannot_be_changed_is_an_error_and_is_not_launched():
    run(
        """
        kernel = first(args, "sm90")
        artifact = kernel.compile(args)
        kernel.run(args, artifact, stream=STREAM)
        moved = GemmArguments(Tensor(A + 512, (128, 256)), b, out, "float32")
        device.fail("cuTensorMapReplaceAddress")
        try:
            kernel.run(moved, artifact, stream=STREAM)
        except RuntimeError as error:
            assert "cuTensorMapReplaceAddress" in str(error) and "CUDA_ERROR_LAUNCH_FAILED" in str(error), error
        else:
            raise AssertionError("no error")
        assert device.launches() == 1
        # Packed anew from now on.
        device.expect(464)
        kernel.run(moved, artifact, stream=STREAM)
        p = device.last_sm90_parameters()
        assert A + 512 in (p.a.address, p.b.address) and device.launches() == 2
        """
    )


def test_operands_that_the_copy_engine_cannot_address_are_copied_into_workspace():
    run(
        """
        device.expect(464)
        # Rows of 257 halves: no stride is a multiple of 16 bytes.
        a.describe(A, (128, 257)); b.describe(B, (257, 65)); out.describe(OUT, (128, 65))
        args = GemmArguments(a, b, out, "float32")
        kernel = first(args, "sm90")
        assert kernel.metadata.design.packed == (True, True)
        bytes = kernel.get_workspace_size(args)
        assert bytes == (128 + 65) * 640, bytes  # 257 halves, rounded up to 128 bytes
        kernel.run(args, stream=STREAM)
        assert device.launches() == 2 and device.library.stand_in_allocations() == 0
        assert device.library.stand_in_last_allocation() == bytes
        p = device.last_sm90_parameters()
        first_map, second_map = (p.b, p.a) if kernel.metadata.design.swapped else (p.a, p.b)
        assert {p.a.address, p.b.address} & {0x70000000} and p.a.extents[0] == p.b.extents[0] == 257
        assert p.a.strides[0] == p.b.strides[0] == 640 and p.out_by_copy_engine == 0

        # The user's own workspace is used, if it is large enough and where the operands are.
        device.library.stand_in_forget_allocations()
        mine = Tensor(0x60000000, (bytes,), code=1, bits=8)
        kernel.run(args, stream=STREAM, workspace=mine)
        p = device.last_sm90_parameters()
        assert 0x60000000 in (p.a.address, p.b.address) and device.launches() == 4
        bytewise = dict(code=1, bits=8)
        wrong = [Tensor(0x60000000, (bytes - 1,), **bytewise), Tensor(0x60000008, (bytes,), **bytewise),
                 Tensor(0x60000000, (bytes,), device=1, **bytewise)]
        gaps = Tensor(0x60000000, (bytes, 1), **bytewise)
        two = device.ctypes.c_int64 * 2
        device.library.stand_in_describe(
            device.ctypes.c_void_p(id(gaps)), device.ctypes.c_uint64(0x60000000), 0, 2, 1, 8, two(bytes, 1), two(2, 1)
        )
        wrong += [gaps, Tensor(B, (bytes,), **bytewise)]
        for workspace in wrong:
            try:
                kernel.run(args, stream=STREAM, workspace=workspace)
            except ValueError as error:
                assert "workspace" in str(error), error
            else:
                raise AssertionError("a bad workspace was used")
        launch = kernel.bind(args, None, STREAM)
        launch()
        assert device.launches() == 6
        """
    )


def test_what_a_capture_forbids_is_done_when_a_kernel_is_compiled():
    run(
        """
        a.describe(A, (128, 257)); b.describe(B, (257, 65)); out.describe(OUT, (128, 65))
        args = GemmArguments(a, b, out, "float32")
        kernel = first(args, "sm90")
        assert kernel.get_workspace_size(args) > 0
        artifact = kernel.compile(args)
        device.library.stand_in_capture(1)
        kernel.run(args, artifact, stream=STREAM)
        assert device.launches() == 2
        """
    )
    run(
        """
        # So large that a kernel which copies its operands is the best.
        a.describe(A, (2048, 2047)); b.describe(B, (2047, 2049)); out.describe(OUT, (2048, 2049))
        cutlass_api.get_kernels(args)  # opens the device, as torch's capture would have
        device.library.stand_in_capture(0)
        cutlass_api.matmul(a, b, out=out)
        device.library.stand_in_capture(1)
        cutlass_api.matmul(a, b, out=out)
        assert device.launches() == 4
        """
    )


def test_a_forked_child_compiles_what_copies_its_operands():
    run(
        """
        import os, signal
        a.describe(A, (128, 257)); b.describe(B, (257, 65)); out.describe(OUT, (128, 65))
        args = GemmArguments(a, b, out, "float32")
        first(args, "sm90").compile(args)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            packed = [k for k in cutlass_api.get_kernels(args) if "sm90" in k.metadata.kernel_name]
            packed[-1].compile(args)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """
    )


def test_no_hopper_kernel_is_found_or_supported_on_another_chip():
    run(
        """
        device.library.stand_in_set_capability(100)
        x, y, z = (Tensor(at, (64, 64), device=1) for at in (A, B, OUT))
        there = GemmArguments(x, y, z, "float32")
        assert not [k for k in cutlass_api.get_kernels(there) if "sm90" in k.metadata.kernel_name]
        kernel = first(args, "sm90")  # of cuda:0, which was asked before and is an H100
        status = kernel.supports(there)
        assert not status and "compute capability 10.0, the kernel runs on 9.0" in str(status.error), status
        try:
            kernel.run(there, stream=OTHER_DEVICE)
        except ValueError as error:
            assert "compute capability 10.0" in str(error), error
        else:
            raise AssertionError("Hopper's code was run elsewhere")
        """
    )


# ---- skinny: few rows or columns -------------------------------------------------------------------------------------


def test_a_skinny_launch_has_its_few_on_m():
    run(
        """
        def skinny(m, n, k):
            a.describe(A, (m, k)); b.describe(B, (k, n)); out.describe(OUT, (m, n))
            args = GemmArguments(a, b, out, "float32")
            for kernel in cutlass_api.get_kernels(args):
                if "skinny" in kernel.metadata.kernel_name:
                    kernel.run(args, stream=STREAM)
                    assert kernel.get_workspace_size(args) == 0
                    yield kernel.metadata.design, device.last_parameters()

        overlapping = set()
        for m, n, k in [(8, 4096, 4096), (8, 65536, 256), (4096, 8, 512)]:
            seen = 0
            for design, p in skinny(m, n, k):
                few, wide = (m, n) if m < n else (n, m)
                tile = design.tile_shape[1 if m < n else 0]
                split = design.cluster_shape[2]
                assert p.extents == (few, wide, k, 1), p
                assert (p.a, p.b, p.out) == ((A, B, OUT) if m < n else (B, A, OUT)), p
                assert p.a_stride == ((0, k, 1) if m < n else (0, 1, n)), p
                assert p.b_stride == ((0, n, 1) if m < n else (0, 1, k)), p
                assert p.out_stride == ((0, n, 1) if m < n else (0, 1, n)), p
                assert device.library.stand_in_last_grid() == -(-wide // tile) * split
                assert device.library.stand_in_last_cluster() == split
                overlapping.add(device.library.stand_in_last_overlapping())
                seen += 1
            assert seen > 3
        assert overlapping == {0, 1}
        """
    )


def test_a_launch_of_a_sum_carries_its_rows():
    run(
        """
        from cutlass_api.arguments import ElementwiseArguments
        import ctypes, struct
        device.expect(152)
        def launched(kernel, *tensors):
            kernel.run(ElementwiseArguments(*tensors), stream=STREAM)
            block = ctypes.string_at(device.library.stand_in_last_parameters(), 152)
            return device.library.stand_in_last_grid(), struct.unpack("<3Q9q5q4i", block)
        x, y, z = (Tensor(at, (100, 1000)) for at in (A, B, OUT))
        (kernel,) = cutlass_api.get_kernels(ElementwiseArguments(x, y, z))
        grid, fields = launched(kernel, x, y, z)
        assert fields[:3] == (A, B, OUT) and fields[3:12] == (0, 0, 1) * 3, "a single row"
        assert fields[12:16] == (200_000, 200_000, 100_000, 12_500) and fields[18:] == (1, 1, 1), fields
        assert grid == -(-12_500 // 1024)
        z.describe(OUT + 2, (100, 1000))
        grid, fields = launched(kernel, x, y, z)
        assert fields[15] == 12_501 and fields[20] == 2, "chunks begin where the output is aligned"
        """
    )


# ---- groups ----------------------------------------------------------------------------------------------------------

GROUPED = """
    from cutlass_api.arguments import GroupedGemmArguments
    OFFSETS = 0x40000000
    b = Tensor(B, (3, 256, 64))
    offsets = Tensor(OFFSETS, (3,), code=device.INT, bits=32)
    args = GroupedGemmArguments(a, b, out, "float32", offsets)
    """


def run_grouped(script):
    return run(textwrap.dedent(GROUPED) + textwrap.dedent(script))


def test_a_grouped_launch_carries_the_offsets_and_all_matrices():
    run_grouped(
        """
        for family in ("sm80", "simt"):
            kernel = first(args, family)
            kernel.run(args, stream=STREAM)
            p = device.last_parameters()
            assert (p.a, p.b, p.out, p.offsets) == (A, B, OUT, (OFFSETS, 1)), p
            assert p.a_stride == (0, 256, 1) and p.b_stride == (256 * 64, 64, 1) and p.out_stride == (0, 64, 1), p
            assert p.extents == (128, 64, 256, 3), p
            rows, columns, _ = kernel.metadata.design.tile_shape
            # Each group may end a row into a strip.
            assert device.library.stand_in_last_grid() == (128 + 3 * (rows - 1)) // rows * -(-64 // columns)
        device.expect(464)
        kernel = first(args, "sm90")
        kernel.run(args, stream=STREAM)
        p = device.last_sm90_parameters()
        assert p.a.address == A and p.a.extents == (256, 128, 1), p
        assert p.b.address == B and p.b.extents == (64, 256, 3) and p.b.strides == (128, 256 * 128), p
        assert p.out.address == OUT and p.out.extents == (64, 128, 1) and p.out_by_copy_engine == 1, p
        assert p.extents == (128, 64, 256, 3) and p.batched == (0, 1) and p.offsets == (OFFSETS, 1), p
        assert device.launches() == 3 and device.library.stand_in_allocations() == 0
        """
    )


def test_grouped_launches_follow_their_operands():
    run_grouped(
        """
        kernel = first(args, "sm80")
        artifact = kernel.compile(args)
        launch = kernel.bind(args, artifact, STREAM)
        for run in (launch, lambda: kernel.run(args, artifact, stream=STREAM)):
            run()
            assert device.last_parameters().offsets == (OFFSETS, 1)
            offsets.describe(OFFSETS + 64, (3,), code=device.INT, bits=32)
            run()
            assert device.last_parameters().offsets == (OFFSETS + 64, 1)
            offsets.describe(OFFSETS, (3,), code=device.INT, bits=32)
        launches = device.launches()
        for shape, bits, words in [((2,), 32, "offsets has 2 entries for 3 groups"), ((3,), 64, "int32")]:
            offsets.describe(OFFSETS, shape, code=device.INT, bits=bits)
            for run in (launch, lambda: kernel.run(args, artifact, stream=STREAM, assume_supported_args=True)):
                try:
                    run()
                except ValueError as error:
                    assert words in str(error), error
                else:
                    raise AssertionError(words)
        assert device.launches() == launches
        """
    )


def test_kernels_of_one_operation_refuse_the_other():
    run_grouped(
        """
        plain = GemmArguments(a, Tensor(B, (256, 64)), out, "float32")
        for kernel, wrong in ((first(plain, "sm80"), args), (first(args, "sm80"), plain)):
            try:
                kernel.run(wrong, stream=STREAM, assume_supported_args=True)
            except ValueError as error:
                assert "it computes a " in str(error), error
            else:
                raise AssertionError(kernel)
        assert device.launches() == 0
        """
    )
