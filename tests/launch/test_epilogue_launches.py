"""What launches with an epilogue carry: its parameters, reductions and second matrices."""

import textwrap

from stand_in import run_gemm as run

#: K-major weights at two addresses, and the arguments of a dual GEMM.
DUAL = """
def dual(gate, up, k=256, n=64):
    b.describe(gate, (k, n), strides=(1, k))
    second.describe(up, (k, n), strides=(1, k))
    return GemmArguments(a, b, out, "float32", EpilogueArguments(source, D=out, up=second))

device.expect(512)
second = Tensor(0, (256, 64))
source = "def f(accum, up):\\n    D = silu(accum) * product(up)\\n    return D"
"""


def test_a_dual_gemm_has_one_map_of_both_matrices():
    run(
        DUAL
        + textwrap.dedent(
            """
            for gate, up in [(B, B + 4096), (B + 65536, B)]:
                args = dual(gate, up)
                kernels = cutlass_api.get_kernels(args)
                for swapped in (False, True):
                    kernel = next(
                        kernel
                        for kernel in kernels
                        if kernel.metadata.design.swapped == swapped
                        and kernel.metadata.design.cluster_shape == (1, 1, 1)
                    )
                    kernel.run(args, stream=STREAM)
                    p = device.last_sm90_parameters()
                    tile_n = kernel.metadata.design.tile_shape[1]
                    weights = p.a if swapped else p.b
                    # Along K, rows of a block, the matrices, blocks, batch.
                    assert weights.address == B and device.last_is_reversed() == (up < gate)
                    assert weights.extents == (256, 8, 2, 8, 1), weights
                    assert weights.strides[:3] == (512, abs(up - gate), 4096), weights
                    assert weights.box == (64, 8, 2, min(tile_n, 128) // 16, 1), (weights, tile_n)
                    # Extents count the columns of both; the output has those of one.
                    assert p.extents == ((128, 128, 256, 1)), p
                    if not swapped:
                        assert p.out.extents == (64, 128, 1), p
            """
        )
    )


def test_the_map_of_both_matrices_follows_either():
    run(
        DUAL
        + textwrap.dedent(
            """
            args = dual(B, B + 4096)
            kernel = next(
                kernel
                for kernel in cutlass_api.get_kernels(args)
                if not kernel.metadata.design.swapped
            )
            artifact = kernel.compile(args)
            kernel.run(args, artifact, stream=STREAM)
            fresh = device.last_sm90_parameters()
            launch = kernel.bind(args, artifact, STREAM)
            for gate, up in [(B, B + 8192), (B + 8192, B + 4096), (B + 64, B), (B, B + 4096)]:
                moved = dual(gate, up)
                wanted = fresh.b._replace(
                    address=min(gate, up),
                    strides=(512, abs(up - gate), *fresh.b.strides[2:]),
                )
                for call in (lambda: kernel.run(moved, artifact, stream=STREAM), launch):
                    call()
                    p = device.last_sm90_parameters()
                    assert p == fresh._replace(b=wanted), (p, wanted)
                    assert device.last_is_reversed() == (up < gate)
            # A moves alone.
            a.describe(A + 512, (128, 256))
            device.fail("cuTensorMapEncodeTiled")
            kernel.run(dual(B, B + 4096), artifact, stream=STREAM)
            p = device.last_sm90_parameters()
            assert p == fresh._replace(a=fresh.a._replace(address=A + 512)), p
            device.fail("")
            far = dual(B, B + (1 << 40))
            assert not cutlass_api.get_kernels(far)[0].supports(far)
            with raises((ValueError, RuntimeError), "up begins 1099511627776 bytes from B"):
                kernel.run(far, artifact, stream=STREAM)
            """
        )
    )


def test_the_map_of_both_matrices_in_groups_follows_each_operand():
    """The matrices of a group are halves of one tensor or alternate rows, or lie apart."""
    run(
        """
        from cutlass_api.arguments import GroupedGemmArguments
        ENDS, (g, k, n) = 0x40000000, (3, 256, 64)
        many, second = Tensor(B, (g, k, n)), Tensor(B, (g, k, n))
        ends = Tensor(ENDS, (g,), code=device.INT, bits=32)
        source = "def f(accum, up):\\n    D = silu(accum) * product(up)\\n    return D"

        def arguments(gate, up, rows, at=0):
            strides = (2 * n * k, 1, rows * k)
            a.describe(A + at, (128, k)), out.describe(OUT + 3 * at, (128, n))
            many.describe(B + gate, (g, k, n), strides=strides)
            second.describe(B + up, (g, k, n), strides=strides)
            ends.describe(ENDS + 4 * at, (g,), code=device.INT, bits=32)
            fused = EpilogueArguments(source, D=out, up=second)
            return GroupedGemmArguments(a, many, out, "float32", ends, fused)

        device.expect(512)
        row, half = 2 * k, 2 * n * k
        for rows, moves in (
            (1, [(0, half), (half, 0), (0, 8 * half), (half, 0)]),
            (2, [(0, row), (row, 0), (64 * row, 65 * row)]),
        ):
            first = arguments(*moves[0], rows)
            kernel = cutlass_api.get_kernels(first)[0]
            artifact = kernel.compile(first)
            launch = kernel.bind(first, artifact, STREAM)
            for at, (gate, up) in enumerate(moves):
                args = arguments(gate, up, rows, 16 * at)
                for call in (lambda: kernel.run(args, artifact, stream=STREAM), launch):
                    call()
                    p = device.last_sm90_parameters()
                    assert device.last_is_reversed() == (up < gate)
                    # Along K, rows of a block, the matrices, blocks, groups.
                    assert p.b.address == B + min(gate, up), p
                    assert p.b.extents == (k, 8, 2, n // 8, g), p
                    assert p.b.strides == (rows * row, abs(up - gate), 8 * rows * row, 2 * half), p
                    assert (p.a.address, p.out.address) == (A + 16 * at, OUT + 48 * at), p
                    assert p.offsets == (ENDS + 64 * at, 1) and p.batched == (0, 1), p
                    # N counts the columns of both; the output has those of one.
                    assert p.extents == (128, 2 * n, k, g) and p.out.extents == (n, 128, 1), p
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
        runs = [
            lambda: kernel.run(args, artifact, STREAM),
            lambda: kernel.run(args, artifact, STREAM),
            launch,
        ]
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
        assert (device.launches(), device.library.stand_in_libraries()) == (
            before[0] + 1,
            before[1],
        )
        plain = GemmArguments(a, b, out, "float32")
        other = cutlass_api.get_kernels(plain)[0]
        for wrong in (
            lambda: kernel.run(plain, artifact, STREAM, assume_supported_args=True),
            lambda: other.run(args, None, STREAM, assume_supported_args=True),
        ):
            with raises(ValueError, "epilogue"):
                wrong()
        """
    )


def test_the_epilogue_of_a_column_major_output_is_transposed():
    run(
        """
        c = Tensor(0x40000000, (128, 64))
        out.describe(OUT, (128, 64), strides=(1, 128))
        source = "def f(accum, C):\\n    D = accum + C\\n    return D"
        epilogue = cutlass_api.arguments.EpilogueArguments(source, C=c, D=out)
        args = GemmArguments(a, b, out, "float32", epilogue)
        device.library.stand_in_expect_more(32)
        device.expect(508)
        kernels = cutlass_api.get_kernels(args)
        families = {
            kernel.metadata.kernel_name.split("_")[0]: kernel for kernel in reversed(kernels)
        }
        for family, kernel in families.items():
            kernel.run(args, stream=STREAM)
            transposed = family != "simt"
            assert device.last_words(4) == (
                (0x40000000, 0, 1, 64) if transposed else (0x40000000, 0, 64, 1)
            ), kernel
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
        # For each row, a float32 partial for the columns of each warp; rows are padded to whole
        # tiles.
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
            assert struct.unpack("<5Qq4i", block) == (
                address,
                S,
                0,
                1,
                rows,
                parts,
                128,
                0,
                1,
                4,
            ), block
        bound = kernel.bind(args, artifact, STREAM)
        before = device.launches()
        other = Tensor(S + 4096, (128,), bits=32)
        bound(S=other)
        assert device.launches() == before + 2
        block = device.ctypes.string_at(device.library.stand_in_last_parameters(), 16)
        assert struct.unpack("<2Q", block)[1] == S + 4096
        """
    )
