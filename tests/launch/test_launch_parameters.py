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
        class Transposed(Tensor):
            pass
        at, bt = Tensor(A, (256, 128)), Tensor(B, (64, 256))
        import ctypes
        def column_major(tensor, data, rows, columns):
            two = ctypes.c_int64 * 2
            device.library.stand_in_describe(
                ctypes.c_void_p(id(tensor)),
                ctypes.c_uint64(data),
                0,
                2,
                2,
                16,
                two(rows, columns),
                two(1, rows)
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


#: K-major weights at two addresses, and the arguments of a dual GEMM.
DUAL = """
import ctypes

def k_major(tensor, data, k, n):
    two = ctypes.c_int64 * 2
    device.library.stand_in_describe(
        ctypes.c_void_p(id(tensor)), ctypes.c_uint64(data), 0, 2, 2, 16, two(k, n), two(1, k)
    )

def dual(gate, up, k=256, n=64):
    k_major(b, gate, k, n)
    k_major(second, up, k, n)
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
            try:
                kernel.run(far, artifact, stream=STREAM)
            except (ValueError, RuntimeError) as error:
                assert "up begins 1099511627776 bytes from B" in str(error), error
            else:
                raise AssertionError("no error")
            """
        )
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
                ctypes.c_void_p(id(tensor)),
                ctypes.c_uint64(data),
                0,
                2,
                2,
                16,
                two(rows, columns),
                two(1, rows)
            )
        c = Tensor(0x40000000, (128, 64))
        column_major(out, OUT, 128, 64)
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


def test_an_sm90_launch_carries_tensor_maps():
    run(
        """
        device.expect(508)
        kernel = first(args, "sm90")
        kernel.run(args, stream=STREAM)
        kernel.run(args, stream=STREAM)
        p = device.last_sm90_parameters()
        design = kernel.metadata.design
        assert not any(design.packed), design
        a_map, b_map = (p.b, p.a) if design.swapped else (p.a, p.b)
        # Row-major: along K for A, along N for B; a batch of one.
        assert a_map[:3] == (6, 3, A), a_map
        assert a_map.extents == (256, 128, 1), a_map
        assert a_map.strides[0] == 512, a_map
        assert b_map[:3] == (6, 3, B), b_map
        assert b_map.extents == (64, 256, 1), b_map
        assert b_map.strides[0] == 128, b_map
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


def test_an_operand_that_threads_load_has_an_address_in_place_of_a_map():
    run(
        """
        from cutlass_api.artifact import CompiledArtifact

        device.expect(508)
        def launched(kernel, artifact, at_a, at_b, at_out):
            tensors = (
                a.describe(at_a, a_shape),
                b.describe(at_b, b_shape),
                out.describe(at_out, (128, 64)),
            )
            kernel.run(GemmArguments(a, b, out, "float32"), artifact, stream=STREAM)
            return device.last_sm90_parameters()

        seen = set()
        # Rows of 252 halves are multiples of 8 bytes, of 254 of 4.
        for k, align in [(252, 8), (254, 4)]:
            a_shape, b_shape = (128, k), (k, 64)
            a.describe(A, a_shape); b.describe(B, b_shape); out.describe(OUT, (128, 64))
            args = GemmArguments(a, b, out, "float32")
            kernels = [
                each
                for each in cutlass_api.get_kernels(args)
                if "sm90" in each.metadata.kernel_name
            ]
            assert kernels[0].metadata.design.load_bytes == align
            loading = [each for each in kernels if each.metadata.design.load_bytes < 16]
            assert loading
            assert {each.metadata.operands.A.ptr_alignment_bytes for each in loading} <= {8, 4}
            for kernel in loading:
                assert kernel.get_workspace_size(args) == 0
                artifact = kernel.compile(args)
                p = launched(kernel, artifact, A, B, OUT)
                assert (p.a_pointer, p.a_stride) == (A, (0, k)) and p.a.address == 0, p
                assert p.b.address == B, p
                assert p.b.extents == (64, k, 1), p
                assert p.extents == (128, 64, k, 1), p
                # Derived from the last launch, and encoded anew.
                for place in (A + 4096, B, OUT), (A, B + 512, OUT + 64):
                    p = launched(kernel, artifact, *place)
                    assert (p.a_pointer, p.b.address, p.out_pointer) == place, p
                    assert p == launched(
                        kernel, CompiledArtifact(artifact.compiled_obj, kernel), *place
                    )
                seen.add(kernel.metadata.design.load_bytes)
                # An address with another alignment raises.
                a.describe(A + 2, a_shape)
                assert not kernel.supports(GemmArguments(a, b, out, "float32"))
        assert seen == {8, 4}
        """
    )


def test_boxes_of_k_major_operands_leave_little_outside():
    run(
        """
        device.expect(508)
        for rows, tile, box in [
            (128, 128, 128),
            (384, 128, 128),
            (384, 256, 128),
            (192, 128, 64),
            (224, 128, 32),
            (200, 128, 32),
            (100, 128, 100), (7, 64, 7), (1000, 128, 128), (96, 64, 32), (80, 64, 32),
            (992, 128, 128), (321, 128, 128),  # parts would save a thirty-second, and a twelfth
        ]:
            a.describe(A, (rows, 128)); b.describe(B, (128, 512)); out.describe(OUT, (rows, 512))
            args = GemmArguments(a, b, out, "float32")
            kernel = next(
                each for each in cutlass_api.get_kernels(args)
                if "sm90" in each.metadata.kernel_name
                and f"_ttt_{tile}x" in each.metadata.kernel_name
                and "cluster1x1" in each.metadata.kernel_name
                and "split" not in each.metadata.kernel_name
                and "swapped" not in each.metadata.kernel_name
                and "align" not in each.metadata.kernel_name
            )
            kernel.run(args, stream=STREAM)
            p = device.last_sm90_parameters()
            assert p.boxes[0] == p.a.box[1] == box, (rows, tile, p)
        """
    )


def test_two_lines_are_fetched_only_of_rows_along_k_that_begin_with_one():
    run(
        """
        device.expect(508)
        one_line, two_lines = 2, 3  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B, _256B
        for k, n, of_a in [
            (128, 512, two_lines),
            (192, 512, two_lines),
            (136, 512, one_line),
            (128, 520, two_lines),
        ]:
            a.describe(A, (256, k)); b.describe(B, (k, n)); out.describe(OUT, (256, n))
            args = GemmArguments(a, b, out, "float32")
            kernel = first(args, "sm90")
            kernel.run(args, stream=STREAM)
            p, design = device.last_sm90_parameters(), kernel.metadata.design
            a_map, b_map = (p.b, p.a) if design.swapped else (p.a, p.b)
            # B is contiguous along N: the rest of its rows belongs to other tiles.
            assert (a_map.l2_promotion, b_map.l2_promotion) == (of_a, one_line), (k, n, p)
        """
    )


def test_parts_of_k_over_the_grid_meet_in_workspace():
    run(
        """
        device.expect(508)
        a.describe(A, (256, 32768)); b.describe(B, (32768, 512)); out.describe(OUT, (256, 512))
        args = GemmArguments(a, b, out, "float32")
        kernel = first(args, "sm90")
        design, artifact = kernel.metadata.design, kernel.compile(args)
        assert design.over_grid and design.split == 4 and design.cluster_shape == (2, 4, 1), design
        # 2 by 8 tiles of 128 by 64 in clusters of 8; 15 clusters run at once, which makes 7 splits.
        # The workspace holds a word for each, and float32 sums.
        bytes = 16 * 256 + 7 * 256 * 512 * 4
        assert kernel.get_workspace_size(args) == bytes, kernel.get_workspace_size(args)
        kernel.run(args, artifact, STREAM)
        assert device.library.stand_in_last_allocation() == bytes
        assert device.library.stand_in_allocations() == 0
        assert device.launches() == 1 and device.library.stand_in_last_grid() == 16 * 7
        p = device.last_sm90_parameters()
        assert p.parts == (0x70000000, 7), p
        mine = Tensor(0x60000000, (bytes,), code=1, bits=8)
        kernel.run(args, artifact, STREAM, workspace=mine)
        assert device.last_sm90_parameters().parts == (0x60000000, 7)
        # A cluster split needs no workspace.
        a.describe(A, (120, 7200)); b.describe(B, (7200, 80)); out.describe(OUT, (120, 80))
        args = GemmArguments(a, b, out, "float32")
        kernel = first(args, "sm90")
        assert kernel.metadata.design.split == 8 and not kernel.metadata.design.over_grid
        assert kernel.get_workspace_size(args) == 0
        kernel.run(args, stream=STREAM)
        assert device.last_sm90_parameters().parts == (0, 8)
        """
    )


def test_operands_that_the_copy_engine_cannot_address_are_copied_into_workspace():
    run(
        """
        device.expect(508)
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
        assert p.a.strides[0] == p.b.strides[0] == 640 and p.out_by_tma == 0

        # The user's workspace must be large enough and on the operands' device.
        device.library.stand_in_forget_allocations()
        mine = Tensor(0x60000000, (bytes,), code=1, bits=8)
        kernel.run(args, stream=STREAM, workspace=mine)
        p = device.last_sm90_parameters()
        assert 0x60000000 in (p.a.address, p.b.address) and device.launches() == 4
        bytewise = dict(code=1, bits=8)
        wrong = [
            Tensor(0x60000000, (bytes - 1,), **bytewise),
            Tensor(0x60000008, (bytes,), **bytewise),
            Tensor(0x60000000, (bytes,), device=1, **bytewise),
        ]
        gaps = Tensor(0x60000000, (bytes, 1), **bytewise)
        two = device.ctypes.c_int64 * 2
        device.library.stand_in_describe(
            device.ctypes.c_void_p(id(gaps)),
            device.ctypes.c_uint64(0x60000000),
            0,
            2,
            1,
            8,
            two(bytes, 1),
            two(2, 1)
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
                assert "it computes " in str(error), error
            else:
                raise AssertionError(kernel)
        assert device.launches() == 0
        """
    )
