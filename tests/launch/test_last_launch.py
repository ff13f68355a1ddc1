"""A launch derived from its program's last launch: what changes, and which checks remain."""

from stand_in import run_gemm as run


def test_a_launch_made_from_the_last_one_is_the_launch_made_anew():
    """For arguments that differ from the last ones only in addresses, only addresses of the plan
    change.
    """
    run(
        """
        from cutlass_api.artifact import CompiledArtifact

        def block(kernel, args, artifact):
            name = kernel.metadata.kernel_name
            size = 640 if "sm90" in name else 152 if "elementwise" in name else 128
            device.expect(size)
            kernel.run(args, artifact, stream=STREAM, assume_supported_args=True)
            block = device.ctypes.string_at(device.library.stand_in_last_parameters(), size)
            return block, device.library.stand_in_last_grid()

        seen = set()
        for row_major, (m, n, k) in [
            (True, (128, 64, 256)),
            (False, (128, 64, 256)),
            (True, (8, 512, 1024)),
        ]:
            def arguments(at_a, at_b, at_out, m=m, n=n, k=k):
                a.describe(at_a, (m, k)), b.describe(at_b, (k, n))
                if row_major:
                    out.describe(at_out, (m, n))
                else:
                    out.describe(at_out, (m, n), strides=(1, m))
                return GemmArguments(a, b, out, "float32")

            kernels = {}
            for kernel in cutlass_api.get_kernels(arguments(A, B, OUT)):
                design = kernel.metadata.design
                swapped = getattr(design, "swapped", None)
                # A's rows, in slices for CTAs that share them: unequal ones have two tensor maps.
                if swapped and row_major and design.tile_shape[0] % (8 * design.cluster_shape[1]):
                    swapped = "unequal slices"
                key = (kernel.metadata.kernel_name.split("_")[0], swapped, row_major)
                kernels.setdefault(key, kernel)
            for key, kernel in kernels.items():
                artifact = kernel.compile(arguments(A, B, OUT))
                block(kernel, arguments(A, B, OUT), artifact)
                places = [
                    (A, B, OUT),
                    (A + 4096, B, OUT),
                    (B, A, OUT + 512),
                    (A, A, OUT),
                    (A + 64, B + 64, OUT + 64),
                ]
                for place in places:
                    fresh = CompiledArtifact(artifact.compiled_obj, kernel)
                    assert block(kernel, arguments(*place), artifact) == block(
                        kernel, arguments(*place), fresh
                    ), key
                # Another shape with the same artifact, and back.
                for other in ({"k": k // 2}, {}):
                    fresh = CompiledArtifact(artifact.compiled_obj, kernel)
                    there = arguments(A, B, OUT, **other)
                    assert block(kernel, there, artifact) == block(kernel, there, fresh), key
                seen.add(key)
        families = {
            ("simt", None, True),
            ("sm80", None, False),
            ("skinny", None, True),
            ("sm90", True, False),
        }
        families.add(("sm90", "unequal slices", True))
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
                    assert block(kernel, arguments(at), artifact) == block(
                        kernel, arguments(at), fresh
                    ), kernel
                    assert (block(kernel, arguments(at), artifact) == before) == (at == 0), kernel
        """
    )


def test_an_epilogue_s_operands_follow_through_the_last_launch():
    run(
        """
        import struct
        source = "def f(accum, C, alpha):\\n    D = accum * alpha + C\\n    return D"
        C = 0x40000000

        def arguments(at, alpha, shape=(1, 64)):
            a.describe(A + at, (128, 256))
            fused = EpilogueArguments(source, D=out, C=Tensor(C + at, shape, bits=32), alpha=alpha)
            return GemmArguments(a, b, out, "float32", fused)

        device.library.stand_in_expect_more(40)
        for family in ("sm80", "sm90", "simt"):
            kernel = first(arguments(0, 1.0), family)
            artifact = kernel.compile(arguments(0, 1.0))
            for at, alpha in ((0, 1.0), (64, 2.0), (0, 3.0)):
                kernel.run(
                    arguments(at, alpha), artifact, stream=STREAM, assume_supported_args=True
                )
                words = device.last_words(5)
                assert words[0] == C + at, words
                assert struct.unpack("<f", struct.pack("<I", words[4]))[0] == alpha, words
            launch = kernel.bind(arguments(0, 1.0), artifact)
            for other, said in (
                (GemmArguments(a, b, out, "float32"), "carry none"),
                (
                    arguments(0, 1.0, (128, 64)),
                    "carry D = ((accum * alpha) + C) (C: float32, alpha",
                ),
                (
                    arguments(0, 1.0, (128, 1)),
                    "carry D = ((accum * alpha) + C) (C: float32 for each row, alpha",
                ),
            ):
                with raises(ValueError, said):
                    kernel.run(other, artifact, stream=STREAM, assume_supported_args=True)
            with raises(ValueError, "the launch was bound for"):
                launch(C=Tensor(C, (128, 64), bits=32))
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
            with raises(ValueError, "A is aligned to 2 bytes"):
                launch()
        assert device.launches() == 1
        """
    )


def test_a_launch_with_workspace_follows_operands_and_workspace():
    """Grid split: the first launch encodes the tensor maps, later ones only move them."""
    run(
        """
        device.expect(508)
        a.describe(A, (256, 32768)); b.describe(B, (32768, 512)); out.describe(OUT, (256, 512))
        args = GemmArguments(a, b, out, "float32")
        kernel = first(args, "sm90")
        assert kernel.metadata.design.over_grid
        artifact, bytes = kernel.compile(args), kernel.get_workspace_size(args)
        memory = [Tensor(0x60000000 + (i << 24), (bytes,), code=1, bits=8) for i in range(2)]
        kernel.run(args, artifact, stream=STREAM, workspace=memory[0])
        fresh = device.last_sm90_parameters()
        assert fresh.parts == (0x60000000, 7), fresh
        # Later launches encode no tensor maps.
        device.fail("cuTensorMapEncodeTiled")
        kernel.run(args, artifact, stream=STREAM, workspace=memory[1], assume_supported_args=True)
        assert device.last_sm90_parameters() == fresh._replace(parts=(0x61000000, 7))
        kernel.run(args, artifact, stream=STREAM)
        assert device.last_sm90_parameters().parts == (0x70000000, 7)
        elsewhere = Tensor(A + (1 << 25), (256, 32768))
        kernel.run(
            GemmArguments(elsewhere, b, out, "float32"),
            artifact,
            stream=STREAM,
            workspace=memory[0],
        )
        p = device.last_sm90_parameters()
        assert p.a.address == A + (1 << 25), p
        assert p == fresh._replace(a=fresh.a._replace(address=A + (1 << 25))), p
        # A bound launch has its own last launch.
        device.fail("")
        launch = kernel.bind(args, artifact, STREAM)
        launch()
        device.fail("cuTensorMapEncodeTiled")
        launch()
        assert device.last_sm90_parameters().parts == (0x70000000, 7)
        assert device.library.stand_in_allocations() == 0
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
        with raises(RuntimeError, "cuTensorMapReplaceAddress", "CUDA_ERROR_LAUNCH_FAILED"):
            kernel.run(moved, artifact, stream=STREAM)
        assert device.launches() == 1
        # Packed anew from now on.
        device.expect(508)
        kernel.run(moved, artifact, stream=STREAM)
        p = device.last_sm90_parameters()
        assert A + 512 in (p.a.address, p.b.address) and device.launches() == 2
        """
    )
