"""The launches of each family: parameters, tensor maps, grid, workspace."""

import textwrap

from stand_in import run_gemm as run


def test_a_launch_carries_addresses_strides_and_extents():
    run(
        """
        kernel.run(args, stream=STREAM)
        p = device.last_parameters()
        assert (p.a, p.b, p.out) == (A, B, OUT), p
        assert p.a_stride == (0, 256, 1), p
        assert p.b_stride == (0, 64, 1), p
        assert p.out_stride == (0, 64, 1), p
        assert p.extents == (128, 64, 256, 1), p
        tile = kernel.metadata.design.tile_shape
        assert device.library.stand_in_last_grid() == -(-128 // tile[0]) * -(-64 // tile[1])
        assert device.library.stand_in_last_stream() == STREAM
        """
    )


def test_a_column_major_output_is_the_transposed_product():
    run(
        """
        out.describe(OUT, (128, 64), strides=(1, 128))
        args = GemmArguments(a, b, out, "float32")
        kernel = first(args, "sm80")
        kernel.run(args, stream=STREAM)
        p = device.last_parameters()
        assert (p.a, p.b, p.out) == (B, A, OUT), p
        assert p.extents == (64, 128, 256, 1) and p.out_stride == (0, 128, 1), p
        """
    )


def test_a_launch_bound_on_fakes_carries_what_stands_in_for_them():
    run(
        """
        class FakeTensor:
            dtype = "torch.float16"
            class device:
                type, index = "cuda", 0
            def __init__(self, *shape):
                self.shape = shape
            def stride(self):
                return self.shape[1], 1
        fakes = FakeTensor(128, 256), FakeTensor(256, 64), FakeTensor(128, 64)
        described = GemmArguments(*fakes, "float32")
        device.library.stand_in_expect(64)
        for family in ("simt", "sm80", "sm90"):
            launch = first(described, family).bind(described, None, STREAM)
            before = device.launches()
            launch(A=a, B=b, out=out)
            assert device.launches() > before
            for given in ({"A": a, "B": b}, {}, {"A": a, "B": b, "out": fakes[2]}):
                try:
                    launch(**given)
                except ValueError as error:
                    name = "out" if given else "A"
                    assert str(error).startswith(f"{name} is a FakeTensor without memory"), error
                else:
                    raise AssertionError("launched")
        """
    )


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
        assert fields[12:16] == (200_000, 200_000, 100_000, 12_500), fields
        assert fields[18:] == (1, 1, 1), fields
        assert grid == -(-12_500 // 1024)
        z.describe(OUT + 2, (100, 1000))
        grid, fields = launched(kernel, x, y, z)
        assert fields[15] == 12_501 and fields[20] == 2, "chunks begin where the output is aligned"
        """
    )


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
            assert p.a_stride == (0, 256, 1), p
            assert p.b_stride == (256 * 64, 64, 1), p
            assert p.out_stride == (0, 64, 1), p
            assert p.extents == (128, 64, 256, 3), p
            rows, columns, _ = kernel.metadata.design.tile_shape
            # Each group may end a row into a strip.
            assert device.library.stand_in_last_grid() == (128 + 3 * (rows - 1)) // rows * -(
                -64 // columns
            )
        device.expect(508)
        kernel = first(args, "sm90")
        kernel.run(args, stream=STREAM)
        p = device.last_sm90_parameters()
        assert p.a.address == A and p.a.extents == (256, 128, 1), p
        assert p.b.address == B, p
        assert p.b.extents == (64, 256, 3), p
        assert p.b.strides == (128, 256 * 128), p
        assert p.out.address == OUT, p
        assert p.out.extents == (64, 128, 1), p
        assert p.out_by_tma == 1, p
        assert p.extents == (128, 64, 256, 3), p
        assert p.batched == (0, 1), p
        assert p.offsets == (OFFSETS, 1), p
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
        for shape, bits, words in [
            ((2,), 32, "offsets has 2 entries for 3 groups"),
            ((3,), 64, "int32"),
        ]:
            offsets.describe(OFFSETS, shape, code=device.INT, bits=bits)
            for run in (
                launch,
                lambda: kernel.run(args, artifact, stream=STREAM, assume_supported_args=True),
            ):
                with raises(ValueError, words):
                    run()
        assert device.launches() == launches
        """
    )


def test_kernels_of_one_operation_refuse_the_other():
    run_grouped(
        """
        plain = GemmArguments(a, Tensor(B, (256, 64)), out, "float32")
        for kernel, wrong in ((first(plain, "sm80"), args), (first(args, "sm80"), plain)):
            with raises(ValueError, "it computes "):
                kernel.run(wrong, stream=STREAM, assume_supported_args=True)
        assert device.launches() == 0
        """
    )
