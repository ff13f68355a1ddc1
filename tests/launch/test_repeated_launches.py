"""Promotion of repeated launches to CUDA graphs: when it happens, and what it must not change."""

import textwrap

import pytest
import stand_in
from support.repeated import PREAMBLE, run


def test_a_short_launch_that_is_repeated_becomes_a_graph():
    run(
        """
        for name, call in calls.items():
            # "checked" shares the arguments of "run", and the launch that they keep.
            for _ in range(10 if name != "checked" else 0):
                launched(call, graphs=0)
            settled(call)
            # Driver calls: the capture query, the launch; with checks, the owner query.
            before = device.library.stand_in_calls()
            call()
            assert device.library.stand_in_calls() == before + (3 if name == "checked" else 2), name
        """
    )


def test_a_long_launch_stays_one():
    run(
        """
        x, y, z = (Tensor(at, (2048, 2048)) for at in (A, B, OUT))
        long = GemmArguments(x, y, z, "float32")
        kernel = first(long, "sm90")
        artifact = kernel.compile(long)
        for _ in range(3 * SETTLED):
            launched(lambda: kernel.run(long, artifact, stream=STREAM), graphs=0)
        """
    )


def test_a_driver_that_launches_graphs_kernel_by_kernel_gets_none():
    older = "from stand_in import device\ndevice.library.stand_in_set_driver_version(12050)\n"
    script = """
        for _ in range(3 * SETTLED):
            launched(calls["run"], graphs=0)
        """
    stand_in.run(older + stand_in.GEMM + PREAMBLE + textwrap.dedent(script))


def test_moved_memory_is_followed():
    run(
        """
        for name, call in calls.items():
            settled(call)
            for data in (A + 4096, A):
                a.describe(data, (128, 256))
                settled(call, addresses=(data, B, OUT))
            # New memory at each call: one graph, whose parameters change.
            places = [
                (A + 4096, B, OUT),
                (A, B + 4096, OUT),
                (A, B, OUT + 4096),
                (A, B, OUT),
                (B, A, OUT),
            ]
            for step in range(2 * SETTLED):
                for place in places:
                    (
                        a.describe(place[0], (128, 256)),
                        b.describe(place[1], (256, 64)),
                        out.describe(place[2], (128, 64)),
                    )
                    launched(
                        call,
                        place,
                        graphs=1 if step > SETTLED and name == "new arguments" else None,
                    )
            a.describe(A, (128, 256)), b.describe(B, (256, 64))
            if name == "run":
                a.describe(A, (128, 128))
                with raises(ValueError, "dimension K"):
                    call()
                a.describe(A, (128, 256))
        """
    )


def test_a_graph_whose_parameter_update_fails_is_not_launched():
    run(
        """
        settled(calls["new arguments"])
        a.describe(A + 4096, (128, 256))
        device.fail("cuGraphExecKernelNodeSetParams_v2")
        for _ in range(3):
            launched(calls["new arguments"], (A + 4096, B, OUT), graphs=0)
        device.fail("")
        launched(calls["new arguments"], (A + 4096, B, OUT), graphs=1)
        # Nor after a launch with new parameters that failed.
        a.describe(A, (128, 256))
        device.fail("cuGraphLaunch")
        launched(calls["new arguments"], graphs=0)
        device.fail("")
        launched(calls["new arguments"], graphs=1)
        """
    )


def test_a_cluster_stays_one():
    run(
        """
        kernel = [
            k for k in cutlass_api.get_kernels(args) if "cluster2x1" in k.metadata.kernel_name
        ][0]
        artifact = kernel.compile(args)
        library = device.library
        shape = lambda: (
            library.stand_in_last_cluster(),
            library.stand_in_last_grid(),
            library.stand_in_last_block(),
        )
        launched(calls["new arguments"], graphs=0)
        expected = shape()
        assert expected[0] == 2
        settled(calls["new arguments"])
        assert shape() == expected
        a.describe(A + 4096, (128, 256))
        launched(calls["new arguments"], (A + 4096, B, OUT), graphs=1)
        assert shape() == expected
        """
    )


def test_other_streams_and_captured_ones_get_launches():
    run(
        """
        on = lambda stream: (
            lambda: kernel.run(args, artifact, stream=stream, assume_supported_args=True)
        )
        settled(on(STREAM))
        for _ in range(SETTLED):
            launched(on(STREAM + 16), stream=STREAM + 16, graphs=0)
            launched(on(STREAM), graphs=1)
        device.library.stand_in_capture(1)
        for _ in range(SETTLED):
            launched(on(STREAM), graphs=0)
        device.library.stand_in_capture(0)
        launched(on(STREAM), graphs=1)
        # Creating and freeing a graph must not invalidate another thread's capture.
        other = GemmArguments(a, b, out, "float32")
        graphs = device.library.stand_in_open_graphs()
        call = lambda: kernel.run(other, artifact, stream=STREAM + 32)
        device.library.stand_in_capture(1)
        for _ in range(2 * SETTLED):
            launched(call, stream=STREAM + 32, graphs=0)
        assert device.library.stand_in_open_graphs() == graphs + 2
        del args, launch
        calls.clear()
        assert device.library.stand_in_open_graphs() == graphs
        # Default streams belong to the current context, which is the device's for the launch.
        device.library.stand_in_capture(0)
        args = other
        for stream in (0, 1):
            args = GemmArguments(a, b, out, "float32")
            settled(on(stream), stream=stream)
        # No promotion on the per-thread default stream or a green context's stream.
        for stream in (2, 0x50E0):
            args = GemmArguments(a, b, out, "float32")
            for _ in range(3 * SETTLED):
                launched(on(stream), stream=stream, graphs=0)
        """
    )


@pytest.mark.parametrize(
    "failing",
    [
        "cuStreamIsCapturing",
        "cuThreadExchangeStreamCaptureMode",
        "cuStreamGetGreenCtx",
        "cuGraphCreate",
        "cuGraphAddKernelNode_v2",
        "cuGraphKernelNodeSetAttribute",
        "cuGraphInstantiateWithFlags",
        "cuGraphLaunch",
    ],
)
def test_where_a_graph_fails_the_launch_is_made(failing):
    # Despite these failures, the graph and its executable are created.
    graphs = 2 * (
        failing in ("cuGraphLaunch", "cuStreamIsCapturing", "cuThreadExchangeStreamCaptureMode")
    )
    run(
        f"""
        kernel = [
            k for k in cutlass_api.get_kernels(args) if "cluster2x1" in k.metadata.kernel_name
        ][0]
        artifact = kernel.compile(args)
        device.fail("{failing}")
        for _ in range(3 * SETTLED):
            launched(calls["run"], graphs=None if "Exchange" in "{failing}" else 0)
        assert device.library.stand_in_open_graphs() == {graphs}
        # The launch itself raises the error.
        device.fail("")
        for _ in range(1000):
            launched(calls["checked"])
        launched(calls["checked"], graphs=1)
        del args, launch
        calls.clear()
        assert device.library.stand_in_open_graphs() == 0
        """
    )


def test_the_error_of_a_launch_that_became_a_graph_is_raised():
    run(
        """
        settled(calls["run"])
        device.fail("cuGraphLaunch cuLaunchKernelEx")
        with raises(RuntimeError, "cuLaunchKernelEx failed with CUDA_ERROR_LAUNCH_FAILED"):
            calls["run"]()
        device.fail("")
        launched(calls["run"], graphs=1)
        """
    )


def test_threads_share_a_graph():
    run(
        """
        settled(calls["run"])
        def many():
            for _ in range(500):
                calls["run"]()
        before = device.launches()
        threads = [threading.Thread(target=many) for _ in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert device.launches() == before + 8 * 500
        # While one thread launches the graph without the GIL, other threads launch kernels.
        device.library.stand_in_block(100)
        before, graphs = device.launches(), device.graph_launches()
        threads = [threading.Thread(target=calls["run"]) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert (device.launches(), device.graph_launches()) == (before + 4, graphs + 1)
        assert device.library.stand_in_misused() == 0
        """
    )


def test_an_epilogue_s_operands_are_followed():
    run(
        """
        source = "def biased(accum, bias, alpha):\\n    D = accum * alpha + bias\\n    return D"
        bias = Tensor(0x40000000, (64,))
        def arguments(alpha):
            return GemmArguments(
                a, b, out, "float32", EpilogueArguments(source, bias=bias, alpha=alpha, D=out)
            )
        fused = arguments(2.0)
        kernel = first(fused, "sm90")
        artifact = kernel.compile(fused)
        device.library.stand_in_expect_more(40)
        def words():
            return device.last_words(5)
        def call(args):
            before = device.launches()
            kernel.run(args, artifact, stream=STREAM)
            assert device.launches() == before + 1
            return words()
        first_words = call(fused)
        for _ in range(2 * SETTLED):
            assert call(fused) == first_words
        assert device.graph_launches() > 0
        bias.describe(0x40001000, (64,))
        moved = call(fused)
        assert moved != first_words and 0x40001000 in moved
        bias.describe(0x40000000, (64,))
        for _ in range(2 * SETTLED):
            assert call(arguments(2.0)) == first_words
        other = call(arguments(3.0))
        assert other != first_words
        for _ in range(2 * SETTLED):
            assert call(arguments(3.0)) == other
        # Driver calls: owner query, capture query, launch. Parameters are not set again.
        before = device.library.stand_in_calls()
        assert call(arguments(3.0)) == other
        assert device.library.stand_in_calls() == before + 3
        assert call(arguments(2.0)) == first_words
        assert device.library.stand_in_misused() == 0
        """
    )


def test_promotion_can_be_switched_off():
    run(
        """
        options = cutlass_api.config.GlobalOptions()
        open_graphs = device.library.stand_in_open_graphs
        options.launch_graphs = False
        for call in calls.values():
            for _ in range(3 * SETTLED):
                launched(call, graphs=0)
        assert open_graphs() == 0
        options.launch_graphs = True
        settled(calls["run"])
        # A promoted launch runs as a kernel while promotion is off, and as a graph afterwards.
        graphs = open_graphs()
        options.launch_graphs = False
        for place in ((A, B, OUT), (A + 4096, B, OUT), (A, B, OUT)):
            a.describe(place[0], (128, 256))
            for _ in range(2 * SETTLED):
                launched(calls["run"], place, graphs=0)
                launched(calls["new arguments"], place, graphs=0)
        assert open_graphs() == graphs
        options.launch_graphs = True
        launched(calls["run"], graphs=1)
        settled(calls["new arguments"])
        """
    )


@pytest.mark.parametrize("value, promotes", [("0", False), ("1", True), ("", True)])
def test_the_environment_switches_promotion_off(value, promotes):
    stand_in.run_gemm(
        PREAMBLE
        + textwrap.dedent(
            f"""
            assert cutlass_api.config.GlobalOptions().launch_graphs is {promotes}
            for _ in range(SETTLED):
                launched(calls["run"])
            launched(calls["run"], graphs={int(promotes)})
            """
        ),
        CUTLASS_API_LAUNCH_GRAPHS=value,
    )
