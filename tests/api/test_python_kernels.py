"""Kernels and providers written in Python. A registration lasts for the process, hence
subprocesses.
"""

from unittest import mock

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import GemmArguments
from cutlass_api.artifact import CompiledArtifact
from cutlass_api.metadata import DenseTensorAttributes, GemmOperandsMetadata, KernelMetadata
from support.helpers import fake_gemm, run_python


def describe(cls, name="mine_gemm_f32"):
    dense = DenseTensorAttributes("float32", (0, 0, 1))
    return KernelMetadata(name, cls, 0, GemmOperandsMetadata(dense, dense, dense, "float32"))


class TorchKernel(cutlass_api.Kernel):
    """A GEMM by torch.mm. Records its arguments."""

    def __init__(self, metadata):
        super().__init__(metadata)
        self.calls = []

    def compile(self, args, cc=None):
        self.calls.append(("compile", args, cc))
        return CompiledArtifact(torch.mm, self)

    def _run(self, args, compiled_artifact, stream, workspace=None):
        self.calls.append(("run", args, compiled_artifact, stream, workspace))
        a, b, out = (operand.tensor.runtime_tensor for operand in (args.A, args.B, args.out))
        out.copy_(compiled_artifact.compiled_obj(a, b))

    def _supports(self, args):
        if args.A.shape[0] > 100:
            return cutlass_api.Status.fail(f"M is {args.A.shape[0]}, at most 100 rows are served")
        return cutlass_api.Status.success()


def args_of(m=4, dtype=torch.float32):
    a, b = torch.randn(m, 5).to(dtype), torch.randn(5, 6).to(dtype)
    return GemmArguments(a, b, torch.zeros(m, 6, dtype=dtype), "float32")


@pytest.fixture
def kernel():
    return TorchKernel(describe(TorchKernel))


def right(args):
    a, b, out = (operand.tensor.runtime_tensor for operand in (args.A, args.B, args.out))
    return torch.equal(out, a @ b)


# One kernel.


def test_metadata_is_the_argument_of_init_and_set_once(kernel):
    with pytest.raises(ValueError, match="once"):
        kernel.__init__(kernel.metadata)
    assert isinstance(kernel, cutlass_api.Kernel)
    assert kernel.metadata.kernel_name == "mine_gemm_f32"
    assert "mine_gemm_f32" in repr(kernel)
    with pytest.raises(AttributeError):
        kernel.metadata = None


def test_run_compiles_and_calls_run_of_the_class(kernel):
    args = args_of()
    assert kernel.run(args) is None
    assert right(args)
    (compiled, ran) = kernel.calls
    assert compiled == ("compile", args, None)
    assert ran[1] is args
    assert ran[2].kernel_obj is kernel
    assert cutlass_api.utils.to_cuda_stream(ran[3]) == 0
    assert ran[4] is None


def test_run_passes_its_arguments_on(kernel):
    args, workspace = args_of(), torch.zeros(8)
    artifact = kernel.compile(args, cc=90)
    kernel.run(args, artifact, stream=1234, workspace=workspace, assume_supported_args=True)
    assert kernel.calls[0] == ("compile", args, 90)
    name, _, given, stream, given_workspace = kernel.calls[1]
    assert (name, stream) == ("run", 1234)
    assert given is artifact
    assert given_workspace is workspace
    assert right(args)


@pytest.mark.parametrize("assume", [True, False])
def test_run_hands_any_stream_over_as_it_is(kernel, assume):
    args, stream = args_of(), object()
    kernel.run(args, kernel.compile(args), stream=stream, assume_supported_args=assume)
    assert kernel.calls[-1][3] is stream


def test_supports_checks_the_metadata_and_then_the_class(kernel):
    assert kernel.supports(args_of())
    status = kernel.supports(args_of(101))
    assert not status
    assert str(status.error) == "M is 101, at most 100 rows are served"
    with mock.patch.object(TorchKernel, "_supports", side_effect=AssertionError("not asked")):
        status = kernel.supports(args_of(dtype=torch.float64))
    assert "A has dtype float64" in str(status.error)


def test_unsupported_arguments_are_not_run(kernel):
    message = r"^Kernel does not support the provided arguments: M is 101, at most 100"
    with pytest.raises(ValueError, match=message):
        kernel.run(args_of(101))
    assert kernel.calls == []
    args = args_of(101)
    kernel.run(args, assume_supported_args=True)
    assert right(args)


@pytest.mark.parametrize("method", ["compile", "_run", "_supports"])
def test_errors_of_the_class_reach_the_caller(kernel, method):
    with (
        mock.patch.object(TorchKernel, method, side_effect=KeyError("mine")),
        pytest.raises(KeyError, match="mine"),
    ):
        kernel.run(args_of())


def test_a_run_without_workspace_parameter_is_called_as_documented():
    class Old(TorchKernel):
        def _run(self, args, compiled_artifact, stream, workspace=None):
            assert workspace is None
            super()._run(args, compiled_artifact, stream, workspace=workspace)

    args = args_of()
    Old(describe(Old)).run(args)
    assert right(args)


def test_the_defaults_of_the_base_class():
    class Bare(cutlass_api.Kernel):
        pass

    bare = Bare(describe(Bare))
    assert bare.supports(args_of())
    assert bare._supports(args=args_of())
    assert bare.get_workspace_size(args_of()) == 0
    assert bare.initialize_workspace(args_of(), None) is None
    assert list(Bare.generate_kernels(metadata_filter=None, epilogue_args=None, cc=90)) == []
    with pytest.raises(NotImplementedError, match="Bare must define compile"):
        bare.compile(args_of())
    with pytest.raises(NotImplementedError, match="Bare must define _run"):
        bare._run(args=args_of(), compiled_artifact=None, stream=None, workspace=None)


def test_a_kernel_without_metadata():
    class Forgetful(cutlass_api.Kernel):
        def __init__(self):
            pass

    with pytest.raises(ValueError, match="super"):
        Forgetful().metadata  # noqa: B018
    with pytest.raises(TypeError, match="metadata"):
        cutlass_api.Kernel()


def test_metadata_of_built_in_kernels_is_not_replaced():
    code = """
        import cutlass_api, pytest
        unread, read = cutlass_api.get_kernels()[:2]
        before = read.metadata
        for kernel in (unread, read):
            with pytest.raises(ValueError, match="once"):
                kernel.__init__("other")
        assert unread.metadata.kernel_class is type(unread) and read.metadata is before
    """
    run_python(code)


@pytest.mark.parametrize("args", [args_of(), fake_gemm(4, 4, 4, torch.float32)])
def test_a_run_without_a_stream_receives_the_current_one(args):
    class Streams(TorchKernel):
        def _run(self, args, compiled_artifact, stream, workspace=None):
            self.calls.append(stream)

    kernel = Streams(describe(Streams))
    kernel.run(args, stream=None)
    assert cutlass_api.utils.to_cuda_stream(kernel.calls[-1]) == 0
    kernel.run(args, stream=77)
    assert kernel.calls[-1] == 77


class OwnArguments(cutlass_api.arguments.RuntimeArguments):
    def __init__(self, x=None):
        self.x = x


class TakesOwnArguments:
    def supports(self, args):
        return cutlass_api.Status()


def test_arguments_of_ones_own():
    class Doubles(TorchKernel):
        _supports = cutlass_api.Kernel._supports

        def _run(self, args, compiled_artifact, stream, workspace=None):
            args.x.mul_(2)

    args = OwnArguments(torch.ones(3))
    Doubles(KernelMetadata("doubles", Doubles, 0, TakesOwnArguments())).run(args)
    assert torch.equal(args.x, torch.full((3,), 2.0))


@pytest.mark.parametrize("initialized, handle", [(False, 0), (True, 4321)])
def test_own_arguments_run_on_the_current_stream_of_torch(initialized, handle):
    kernel = TorchKernel(KernelMetadata("mine", TorchKernel, 0, TakesOwnArguments()))
    current = mock.Mock(cuda_stream=4321)
    with (
        mock.patch.object(TorchKernel, "_run") as ran,
        mock.patch.object(torch.cuda, "is_initialized", return_value=initialized),
        mock.patch.object(torch.cuda, "current_stream", return_value=current),
    ):
        kernel.run(OwnArguments(), assume_supported_args=True)
    assert ran.call_args.args[2] == handle


def test_own_arguments_run_without_torch():
    code = """
        import cutlass_api
        from cutlass_api.metadata import KernelMetadata

        class Anything:
            def supports(self, args):
                return cutlass_api.Status()

        class Mine(cutlass_api.Kernel):
            def compile(self, args, cc=None):
                return None
            def _run(self, args, compiled_artifact, stream, workspace=None):
                print(stream)

        Mine(KernelMetadata("mine", Mine, 0, Anything())).run(
            cutlass_api.arguments.RuntimeArguments()
        )
    """
    assert run_python(code) == "0\n"


# Patching.


def test_get_workspace_size_can_be_patched_on_the_class(kernel):
    args = args_of()
    built_in = cutlass_api.get_kernels(args)[0]
    with mock.patch.object(cutlass_api.Kernel, "get_workspace_size", return_value=123) as patched:
        assert built_in.get_workspace_size(args) == 123
        assert kernel.get_workspace_size(args) == 123
        assert cutlass_api.get_kernels()[0].get_workspace_size(args) == 123
        assert patched.call_count == 3
    assert built_in.get_workspace_size(args) == 0


@pytest.mark.parametrize(
    "method", ["get_workspace_size", "initialize_workspace", "compile", "supports", "run"]
)
def test_methods_patched_on_a_class_are_called_on_it(method):
    built_in, args = cutlass_api.get_kernels(providers=["reference"])[0], args_of()
    arguments = (args, None) if method == "initialize_workspace" else (args,)
    before = getattr(type(built_in), method)
    with mock.patch.object(type(built_in), method, return_value="patched") as patched:
        assert getattr(built_in, method)(*arguments) == "patched"
    patched.assert_called_once_with(*arguments)
    assert getattr(type(built_in), method) == before


def test_run_calls_the_compile_of_a_patched_class(kernel):
    args = args_of()
    with mock.patch.object(
        TorchKernel, "compile", return_value=CompiledArtifact(torch.mm, kernel)
    ) as patched:
        kernel.run(args)
    assert patched.called
    assert right(args)
