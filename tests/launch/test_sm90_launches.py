"""What launches of sm90 carry: tensor maps, copies of operands, workspace of splits."""

from stand_in import run_gemm as run


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
        gaps = Tensor(0x60000000, (bytes, 1), strides=(2, 1), **bytewise)
        wrong += [gaps, Tensor(B, (bytes,), **bytewise)]
        for workspace in wrong:
            with raises(ValueError, "workspace"):
                kernel.run(args, stream=STREAM, workspace=workspace)
        launch = kernel.bind(args, None, STREAM)
        launch()
        assert device.launches() == 6
        """
    )
