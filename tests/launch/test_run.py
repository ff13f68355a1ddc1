"""The path from `run()` to the driver's launch call, on a driver that records calls and fails on
demand.
"""

import pytest
from stand_in import run_gemm as run


def test_the_operands_device_is_used_and_the_current_one_left_alone():
    run(
        """
        x, y, z = (Tensor(at, (64, 64), device=1) for at in (A, B, OUT))
        there = GemmArguments(x, y, z, "float32")
        kernel = first(there, "sm80")
        device.library.cuCtxPushCurrent_v2(device.ctypes.c_uint64(0xC0))
        open_contexts = device.library.stand_in_open_contexts()
        artifact = kernel.compile(there)
        # A stream of that device, and default streams, which belong to the current context.
        for stream in (OTHER_DEVICE, 0, 1, 2):
            for call in [lambda: kernel.run(there, artifact, stream)] * 3 + [
                kernel.bind(there, artifact, stream)
            ] * 2:
                launches = device.launches()
                call()
                assert device.launches() == launches + 1
                assert device.library.stand_in_last_context() == 0xC1
                assert device.library.stand_in_open_contexts() == open_contexts
                current = device.ctypes.c_uint64()
                device.library.cuCtxGetCurrent(device.ctypes.byref(current))
                assert current.value == 0xC0
        """
    )


def test_a_launch_that_is_repeated_is_one_call_of_the_driver():
    run(
        """
        artifact = kernel.compile(args)
        launch = kernel.bind(args, artifact, STREAM)
        device.library.cuCtxPushCurrent_v2(device.ctypes.c_uint64(0xC0))
        def calls_of(call):
            call()
            call()
            before = device.library.stand_in_calls()
            call()
            return device.library.stand_in_calls() - before
        assert calls_of(launch) == 1
        assert calls_of(lambda: kernel.run(args, artifact, STREAM, assume_supported_args=True)) == 1
        # A default stream belongs to the current context, which `run` queries.
        assert calls_of(lambda: kernel.run(args, artifact, 0, assume_supported_args=True)) == 2
        """
    )


@pytest.mark.parametrize("current", [0, 0xC1])
def test_a_refused_launch_is_made_again_where_its_context_was_not_current(current):
    run(
        f"""
        artifact = kernel.compile(args)
        launch = kernel.bind(args, artifact, STREAM)
        again = lambda: kernel.run(args, artifact, STREAM, assume_supported_args=True)
        again()
        if {current}:
            device.library.cuCtxPushCurrent_v2(device.ctypes.c_uint64({current}))
        open_contexts = device.library.stand_in_open_contexts()
        device.library.stand_in_launch_in_current_context_alone(1)
        for call in (again, launch, again):
            before = device.launches()
            call()
            assert device.launches() == before + 1
            assert device.library.stand_in_open_contexts() == open_contexts
        for failing, code, name in [
            ("cuCtxPushCurrent_v2", 719, "cuCtxPushCurrent failed with CUDA_ERROR_LAUNCH_FAILED"),
            ("cuLaunchKernelEx", 400, "cuLaunchKernelEx failed with CUDA_ERROR_INVALID_HANDLE"),
            ("cuLaunchKernelEx", 201, "cuLaunchKernelEx failed with CUDA_ERROR_INVALID_CONTEXT"),
        ]:
            device.fail(failing, code)
            for call in (again, launch):
                with raises(RuntimeError, name):
                    call()
                assert device.library.stand_in_open_contexts() == open_contexts
        device.fail("")
        again()
        """
    )


def test_a_thread_without_a_context_launches():
    run(
        """
        import threading
        artifact = kernel.compile(args)
        launch = kernel.bind(args, artifact, STREAM)
        def launch_all():
            again = lambda stream: lambda: kernel.run(args, artifact, stream)
            for call in (*[again(STREAM)] * 3, again(0), launch):
                before = device.launches()
                call()
                assert (device.launches(), device.library.stand_in_last_context()) == (
                    before + 1,
                    0xC0,
                )
            done.append(True)
        done = []
        thread = threading.Thread(target=launch_all)
        thread.start()
        thread.join()
        assert done
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

        class Anything:
            def supports(self, args):
                return cutlass_api.Status()

        class Mine(cutlass_api.Kernel):
            def _run(self, args, compiled_artifact, stream, workspace=None):
                seen.append(stream)

        seen = []
        mine = Mine(cutlass_api.KernelMetadata("mine", Mine, 80, Anything()))
        for stream in (None, 0x5010):
            mine.run(args, "artifact", stream=stream)
        assert seen == [0x5060, 0x5010], seen
        kernel.run(args)
        assert device.library.stand_in_last_stream() == 0x5060
        before = device.launches()
        for stream, expected in (
            (OTHER_DEVICE, ValueError),
            (1.5, TypeError),
            ("x", TypeError),
            (-1, ValueError),
        ):
            with raises(expected, "stream"):
                kernel.run(args, stream=stream)
        assert device.launches() == before
        """
    )


def test_nothing_is_launched_for_an_empty_output():
    run(
        """
        a.describe(A, (0, 256)); out.describe(OUT, (0, 64))
        empty = GemmArguments(a, b, out, "float32")
        for kernel in cutlass_api.get_kernels(empty)[::64]:  # each compiles
            kernel.run(empty, stream=STREAM)
        assert device.launches() == 0
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
        # Another kernel, and on Hopper a kernel that packs A first.
        assert device.launches() > 2 and device.library.stand_in_libraries() > 1
        """
    )


def test_an_artifact_of_another_kernel_or_architecture_is_refused():
    run(
        """
        other = [k for k in cutlass_api.get_kernels(args) if k is not kernel][0]
        for artifact, words in (
            (other.compile(args), "pass one of"),
            (kernel.compile(args, cc=80), "sm_80"),
        ):
            before = device.library.stand_in_libraries()
            for take in (kernel.run, kernel.bind):
                with raises(ValueError, words):
                    take(args, artifact, stream=STREAM)
            assert device.library.stand_in_libraries() == before, "it was loaded"
        with raises(TypeError, "compiled_artifact is a str"):
            kernel.run(args, "artifact", stream=STREAM)
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
        new = GemmArguments(a, b, out, "float32")
        # The first run, a repeated run, and a run of new arguments like in generated code.
        for args, before in ((args, 0), (args, 3), (new, 0)):
            for _ in range(before):
                kernel.run(args, artifact, stream=STREAM)
            device.library.stand_in_block(300)
            launched = device.launches()
            thread = threading.Thread(
                target=lambda: kernel.run(args, artifact, stream=STREAM, assume_supported_args=True)
            )
            start = time.perf_counter()
            thread.start()
            turns = 0
            while thread.is_alive() and time.perf_counter() - start < 5:
                turns += 1
                time.sleep(0.001)
            assert turns > 50, turns
            assert device.launches() == launched + 1
            device.library.stand_in_block(0)
        """
    )


def test_an_artifact_is_of_its_kernel():
    run(
        """
        from cutlass_api.artifact import CompiledArtifact
        other = first(args, "sm90")
        with raises(ValueError, kernel.metadata.kernel_name, other.metadata.kernel_name):
            CompiledArtifact(kernel.compile(args).compiled_obj, other)
        """
    )


def test_run_takes_its_arguments_in_every_form():
    run(
        """
        artifact = kernel.compile(args)
        # names not interned
        built = lambda **given: {"".join(list(name)): value for name, value in given.items()}
        for positional, named in [
            ((args, artifact, STREAM, None, True), {}),
            ((args, artifact, STREAM), {}),
            ((args,), dict(stream=STREAM)),
            ((args,), dict(stream=STREAM, assume_supported_args=True, compiled_artifact=artifact)),
            ((args, artifact), dict(workspace=None, stream=STREAM, assume_supported_args=False)),
            ((), dict(args=args, stream=STREAM)),
            ((args, None), built(stream=STREAM, assume_supported_args=True)),
            ((), built(compiled_artifact=artifact, args=args, stream=STREAM)),
        ]:
            before = device.launches()
            for launch in (kernel.run, lambda *a, **k: type(kernel).run(kernel, *a, **k)):
                assert launch(*positional, **named) is None
            assert device.launches() == before + 2
            assert device.library.stand_in_last_stream() == STREAM
        before = device.launches()
        for positional, named, said in [
            ((), {}, "Kernel.run() missing 1 required positional argument: 'args'"),
            (
                (),
                dict(stream=STREAM),
                "Kernel.run() missing 1 required positional argument: 'args'",
            ),
            (
                (args, artifact),
                dict(args=args),
                "Kernel.run() got multiple values for argument 'args'",
            ),
            (
                (args, None),
                dict(compiled_artifact=artifact),
                "got multiple values for argument 'compiled_artifact'",
            ),
            (
                (args,),
                dict(streams=STREAM),
                "Kernel.run() got an unexpected keyword argument 'streams'",
            ),
            (
                (args, artifact, STREAM, None, True, 1),
                {},
                "takes from 1 to 5 positional arguments but 6 were given",
            ),
            ((args,), dict(assume_supported_args=1), "'int' object is not an instance of 'bool'"),
            ((None,), {}, "args is a NoneType"),
        ]:
            with raises(TypeError, said):
                kernel.run(*positional, **named)
        assert device.launches() == before
        """
    )


def test_the_current_stream_of_cupy_is_used():
    run(
        """
        import ctypes, sys, types
        current = types.SimpleNamespace(ptr=STREAM)
        cuda = types.SimpleNamespace(get_current_stream=lambda: current)
        sys.modules["cupy"] = types.SimpleNamespace(cuda=cuda)

        class Array:
            __module__ = "cupy"
            def __init__(self, at, shape):
                self.extents, self.strides = (
                    (ctypes.c_int64 * 2)(*shape),
                    (ctypes.c_int64 * 2)(shape[1], 1),
                )
                self.at, self.asked = at, []
            def __dlpack_device__(self):
                return 2, 0
            def __dlpack__(self, **given):
                self.asked.append(given.get("stream"))
                shape, strides = map(ctypes.addressof, (self.extents, self.strides))
                self.tensor = device._DLManagedTensor(self.at, 2, 0, 2, 2, 16, 1, shape, strides)
                return device._new_capsule(ctypes.addressof(self.tensor), device._LEGACY_NAME, None)

        a, b, out = Array(A, (128, 256)), Array(B, (256, 64)), Array(OUT, (128, 64))
        args = GemmArguments(a, b, out, "float32")
        artifact = kernel.compile(args)
        kernel.run(args, artifact)
        kernel.bind(args, artifact)()
        cutlass_api.matmul(a, b, out=out)
        assert set(a.asked) == {STREAM} and device.library.stand_in_last_stream() == STREAM
        a.asked.clear()
        kernel.run(args, artifact, stream=0x5030)
        assert a.asked == [0x5030] and device.library.stand_in_last_stream() == 0x5030
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
        assert not status, status
        assert "compute capability 10.0, the kernel runs on 9.0" in str(status.error), status
        with raises(ValueError, "compute capability 10.0"):
            kernel.run(there, stream=OTHER_DEVICE)
        """
    )
