"""Users' kernels with metadata, which `get_kernels` finds."""

from typing import ClassVar

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import ElementwiseArguments
from support import SUPPORT
from support.cuda_launches import SQUARE, run
from support.helpers import fake, run_python


def test_the_example_is_short():
    lines = [
        line
        for name in ("own_kernel.py", "kernels/axpby.cu")
        for line in (SUPPORT / name).read_text().splitlines()
        if line.strip()
    ]
    assert len(lines) < 40


def test_a_kernel_is_found_by_its_metadata():
    # In a separate process: a registration cannot be undone.
    code = """
        import cutlass_api, torch
        from support import own_kernel
        from cutlass_api.arguments import ElementwiseArguments
        from support.helpers import fake
        import pytest
        def found(*tensors, **more):
            kernels = cutlass_api.get_kernels(ElementwiseArguments(*tensors), **more)
            return [k for k in kernels if k.metadata.kernel_name == "axpby_f32"]
        tensors = [fake(5, 7, dtype=torch.float32) for _ in range(3)]
        (kernel,) = found(*tensors)
        assert (kernel,) == tuple(found(*tensors, cc=90)), "one object"
        assert not found(*tensors, cc=70) and not found(*tensors, providers=["reference"])
        assert not found(*(tensor.double() for tensor in tensors))
        assert not found(*(torch.ones(3, 3) for _ in range(3))), "on the CPU"
        assert found(*(tensor.T for tensor in tensors)), "its parameters tell the strides"
        on_cpu = kernel._supports(ElementwiseArguments(*(torch.ones(3, 3) for _ in range(3))))
        assert "on the CPU, and axpby runs on a CUDA device" in str(on_cpu.error)
        own_kernel.Axpby._kernels.clear()
        own_kernel.Axpby.contiguous = True
        assert found(*tensors) and not found(*(tensor.T for tensor in tensors))
        own_kernel.Axpby._kernels.clear()
        own_kernel.Axpby.contiguous = False
        (kernel,) = found(*tensors)
        assert kernel in cutlass_api.get_kernels()
        assert kernel in cutlass_api.get_kernels(providers=["nvrtc"])
        args = ElementwiseArguments(*tensors)
        artifact = kernel.compile(args, cc=90)
        assert artifact.compiled_obj.architecture == "sm_90a"
        with pytest.raises((ValueError, RuntimeError), match="FakeTensor|CUDA"):
            kernel.run(args, artifact)
        with pytest.raises(ValueError, match="the kernel of this artifact is written in Python"):
            artifact.to_bytes()
    """
    run_python(code, is_warm=True)


def test_a_kernel_runs_with_its_parameters():
    run(
        """
        from support import own_kernel
        from cutlass_api.arguments import ElementwiseArguments
        a, b = f32(X, 100, 40), f32(X + 65536, 100, 40)
        c = f32(OUT, 100, 40)
        args = ElementwiseArguments(a, b, c)
        (kernel,) = [k for k in cutlass_api.get_kernels(args) if isinstance(k, own_kernel.Axpby)]
        artifact = kernel.compile(args)
        device.expect_words(13)
        kernel.run(args, artifact, stream=0x5020)
        launch = device.last_launch(13)
        assert launch.grid == (2, 13, 1) and launch.block == (32, 8, 1)
        assert launch.words[:3] == (X, X + 65536, OUT)
        assert launch.words[4:11] == (40, 40, 1, 40, 1, 40, 1)
        assert launch.words[3] & 0xFFFFFFFF == 100 and as_float(launch.words[12]) == 1
        assert device.library.stand_in_last_stream() == 0x5020
        a.describe(X + 4096, (100, 40), bits=32)
        kernel.run(args)
        assert device.last_launch(13).words[0] == X + 4096, "memory that moved is followed"
        a.describe(X, (50, 40), bits=32)
        with raises(ValueError, "a of axpby has 2000 elements now, and had 4000"):
            kernel.run(args)
        a.describe(X, (100, 40), bits=32)
        other = own_kernel.Axpby(
            cutlass_api.KernelMetadata("other", own_kernel.Axpby, 80, own_kernel.Axpby.operands)
        )
        with raises(ValueError, "compiled_artifact is of axpby_f32; pass one of other"):
            other.run(args, artifact)
        for wrong in (3, artifact.compiled_obj):
            with raises(
                TypeError, "compiled_artifact is a", "pass the result of compile(), or None"
            ):
                kernel.run(args, wrong)
        with raises(ValueError, "cc is -1; pass ten times major plus minor"):
            kernel.compile(args, cc=-1)
        device.library.stand_in_set_capability(90)
        with raises(ValueError, "compiled_artifact is for sm_80, which does not run on cuda:0"):
            kernel.run(args, kernel.compile(args, cc=80))
        """
    )


def test_a_kernel_of_a_newer_chip_is_not_found_on_an_older_one():
    run(
        """
        device.library.stand_in_set_capability(80)
        from support import own_kernel
        from cutlass_api.arguments import ElementwiseArguments
        args = ElementwiseArguments(x, f32(X + 65536, 6, 128), out)
        mine = lambda: [k for k in cutlass_api.get_kernels(args) if isinstance(k, own_kernel.Axpby)]
        assert len(mine()) == 1
        own_kernel.Axpby.min_cc = 90
        own_kernel.Axpby._kernels.clear()
        assert mine() == []
        """
    )


def test_what_a_class_must_define():
    matrix = cutlass_api.metadata.DenseTensorAttributes("float32")

    class Bare(cutlass_api.CudaKernel):
        source = SQUARE
        function = "square"
        operands = cutlass_api.metadata.ElementwiseOperandsMetadata(matrix, matrix, matrix)

    (kernel,) = Bare.generate_kernels()
    assert kernel.metadata.kernel_name == "Bare"
    assert list(Bare.generate_kernels(lambda metadata: False)) == []
    args = ElementwiseArguments(*(fake(4, 4, dtype=torch.float32) for _ in range(3)))
    with pytest.raises(NotImplementedError, match="Bare must define parameters"):
        kernel.compile(args, cc=90)
    with pytest.raises(NotImplementedError, match="Bare must define grid"):
        kernel.grid(args)


def test_a_family_of_kernels():
    metadata = cutlass_api.metadata

    class Scale(cutlass_api.CudaKernel):
        source = (
            "template <class T> __global__ void copy(const T* x, T* out) "
            "{ out[threadIdx.x] = x[threadIdx.x]; }"
        )
        types: ClassVar = {"float32": "float", "float64": "double", "int32": "int"}

        @property
        def function(self):
            return f"copy<{self.types[self.metadata.operands.A.dtype]}>"

        def grid(self, args):
            return 1

        def parameters(self, args):
            return args.A, args.out

        @classmethod
        def generate_kernels(cls, metadata_filter=None, epilogue_args=None, cc=None):
            for dtype in cls.types:
                tensor = metadata.DenseTensorAttributes(dtype)
                operands = metadata.ElementwiseOperandsMetadata(tensor, tensor, tensor)
                yield cls(cutlass_api.KernelMetadata(f"copy_{dtype}", cls, 80, operands))

    programs = set()
    for kernel in Scale.generate_kernels():
        dtype = kernel.metadata.operands.A.dtype
        args = ElementwiseArguments(*(fake(4, 4, dtype=getattr(torch, dtype)) for _ in range(3)))
        assert kernel.supports(args)
        programs.add(kernel.compile(args, cc=90).compiled_obj.kernel_name)
    assert programs == {"copy<float>", "copy<double>", "copy<int>"}


def test_a_kernel_is_compiled_for_a_chip_by_arguments_on_the_cpu():
    function = cutlass_api.cuda_kernel(SQUARE, "square", grid=1)
    x = torch.zeros(3)
    assert function.compile(x, x, 3, cc=90).architecture == "sm_90a"
    with pytest.raises(ValueError, match="the tensors are on the CPU"):
        function.compile(x, x, 3)
