"""Launches that `Kernel.bind` prepares, against a driver that records them."""

from stand_in import run_gemm as run


def test_prepared_launches_refuse_a_stream_of_another_device():
    run(
        """
        def refused(prepare):
            try:
                prepare()
            except ValueError as error:
                assert "stream 0x6010 belongs to another device" in str(error), error
            else:
                raise AssertionError("launched on a stream of another device")
        artifact = kernel.compile(args)
        refused(lambda: kernel.bind(args, artifact, OTHER_DEVICE))
        launch = kernel.bind(args, artifact, STREAM)
        refused(lambda: launch(stream=OTHER_DEVICE))
        refused(lambda: launch(A=Tensor(A + 4096, (128, 256)), stream=OTHER_DEVICE))
        assert device.launches() == 0
        launch(stream=STREAM + 16)
        assert device.library.stand_in_last_stream() == STREAM + 16
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
        wrong = [
            Tensor(A, (128, 128)),
            Tensor(A, shape, bits=32),
            Tensor(A, shape, device=1),
            Tensor(A + 2, shape),
        ]
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
            assert "B names an operand of the launch and of the epilogue" in str(error), error
        else:
            raise AssertionError("one of two was guessed")
        assert device.launches() == 0
        launch(alpha=2.0)
        assert device.launches() == 1
        """
    )
