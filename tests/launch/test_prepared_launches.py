"""Launches that `Kernel.bind` prepares, against a driver that records them."""

from stand_in import run_gemm as run


def test_prepared_launches_refuse_a_stream_of_another_device():
    run(
        """
        def refused(prepare):
            with raises(ValueError, "stream 0x6010 belongs to another device"):
                prepare()
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
            with raises(ValueError, "A is"):
                launch(A=tensor)
        with raises(ValueError, "shares memory with B"):
            launch(out=Tensor(B + 4096, (128, 64)))
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
            with raises(ValueError, "C is a FakeTensor"):
                call()
        launch = bound("B", real)
        with raises(ValueError, "B names an operand of the launch and of the epilogue"):
            launch(B=real)
        assert device.launches() == 0
        launch(alpha=2.0)
        assert device.launches() == 1
        """
    )
