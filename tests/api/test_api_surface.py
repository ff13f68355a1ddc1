"""The public names outside of kernels, arguments and metadata."""

import inspect
import pickle

import cutlass
import cutlass_api
import numpy as np
import pytest
import torch
from cutlass_api import library, utils
from cutlass_api.arguments import EpilogueArguments, GemmArguments
from cutlass_api.library import ScaleMode, ScaleSwizzleMode
from cutlass_api.status import Status
from support.helpers import fake, run_python

# The top level.


TOP_LEVEL = ["get_kernels", "Manifest", "Status", "Kernel", "KernelMetadata", "__version__"]
SUBMODULES = ["arguments", "artifact", "config", "fusion", "kernel", "library", "manifest"]
SUBMODULES += ["metadata", "providers", "providers.provider", "status", "typing", "utils"]


@pytest.mark.parametrize("name", [*TOP_LEVEL, *SUBMODULES])
def test_names_reachable_after_one_import(name):
    assert run_python(f"import cutlass_api; cutlass_api.{name}") == ""


def test_kernel_and_provider_modules():
    from cutlass_api import providers
    from cutlass_api.kernel import Kernel
    from cutlass_api.providers import provider

    assert Kernel is cutlass_api.Kernel
    for name in ("ProviderBase", "available_providers", "register_provider"):
        assert getattr(provider, name) is getattr(providers, name)


def test_signatures():
    def parameters(function):
        return list(inspect.signature(function).parameters)

    found = ["args", "metadata_filter", "cc", "providers"]
    assert parameters(cutlass_api.get_kernels) == found
    assert parameters(cutlass_api.Manifest.get_kernels) == found
    assert parameters(cutlass_api.Manifest().add_kernels) == found
    kernel = cutlass_api.get_kernels()[0]
    run = ["args", "compiled_artifact", "stream", "workspace", "assume_supported_args"]
    assert parameters(kernel.run) == run
    assert parameters(kernel.compile) == ["args", "cc"]
    assert parameters(kernel.supports) == parameters(kernel.get_workspace_size) == ["args"]
    assert parameters(kernel.initialize_workspace) == ["args", "workspace"]
    assert parameters(kernel._run) == ["args", "compiled_artifact", "stream", "workspace"]
    assert parameters(kernel._supports) == ["args"]
    generate = ["metadata_filter", "epilogue_args", "cc"]
    assert parameters(cutlass_api.Kernel.generate_kernels) == generate
    arguments = cutlass_api.arguments
    gemm = ["A", "B", "out", "accumulator_type", "epilogue"]
    assert parameters(arguments.GemmArguments)[:5] == gemm
    grouped = ["A", "B", "out", "accumulator_type", "offsets", "epilogue"]
    assert parameters(arguments.GroupedGemmArguments)[:6] == grouped
    assert parameters(arguments.ElementwiseArguments)[:3] == ["A", "B", "out"]
    assert parameters(cutlass_api.artifact.CompiledArtifact) == ["compiled_obj", "kernel_obj"]


def test_the_package_needs_nothing_beside_itself():
    code = """
        import sys
        import cutlass_api
        print([name for name in ("torch", "numpy", "jax", "cupy") if name in sys.modules])
    """
    assert run_python(code) == "[]\n"


def test_artifacts_are_made_of_any_two_objects():
    kernel = cutlass_api.get_kernels()[0]
    made = cutlass_api.artifact.CompiledArtifact("anything", kernel)
    assert made.compiled_obj == "anything"
    assert made.kernel_obj is kernel
    with pytest.raises(ValueError, match="no compiled program"):
        made.to_bytes()


# Epilogues.

PLAIN = "def f(accum, C, alpha):\n    tmp = accum * alpha\n    D = tmp + C\n    return tmp, D"


def test_epilogue_arguments():
    c, d, tmp = torch.ones(3), torch.ones(3), torch.ones(3)
    args = EpilogueArguments(PLAIN, D=d, C=c, alpha=2.0, tmp=tmp)
    assert args.parameter_names == ["C", "alpha", "tmp", "D"]
    assert args.parameters == [c, 2.0, tmp, d]
    held = [(name, id(tensor)) for name, tensor in args.tensors.items()]
    assert held == [("C", id(c)), ("tmp", id(tmp)), ("D", id(d))]

    def function(accum, C):
        D = accum + C
        return D

    assert EpilogueArguments(function, C=c, D=d).parameter_names == ["C", "D"]


def test_the_tensors_of_an_epilogue_as_wrappers():
    c, d, tmp = torch.ones(4, 1), torch.ones(4, 3), torch.ones(4, 3)
    wrappers = EpilogueArguments(PLAIN, D=d, C=c, alpha=2.0, tmp=tmp).to_tensor_wrappers()
    assert list(wrappers) == ["C", "tmp", "D"]
    assert all(isinstance(wrapper, utils.TensorWrapper) for wrapper in wrappers.values())
    assert wrappers["C"].runtime_tensor is c
    assert (wrappers["D"].shape, wrappers["D"].element_type) == ((4, 3), torch.float32)
    faked = EpilogueArguments("def f(accum):\n    D = accum\n    return D", D=fake(4, 3))
    with pytest.raises(ValueError, match=r"^D is a FakeTensor"):
        faked.to_tensor_wrappers()["D"].runtime_tensor  # noqa: B018


@pytest.mark.parametrize("shape", [(3,), (4, 3), (2, 4, 3)])
def test_an_epilogue_is_traced_against_a_shape(shape):
    d, tmp = torch.ones(shape), torch.ones(shape)
    args = EpilogueArguments(PLAIN, D=d, C=torch.ones(3), alpha=2.0, tmp=tmp)
    for arguments in ((), (shape,), (shape, torch.float32), (None, "int32")):
        assert args.trace(*arguments) is args.traced_epilogue
    with pytest.raises(ValueError, match=r"D has shape .*\[7, 3\]"):
        args.trace((7, 3))
    with pytest.raises(TypeError, match=r"^accumulator_type: 'nonsense'"):
        args.trace(accumulator_type="nonsense")
    wrong = EpilogueArguments(PLAIN, D=d, C=torch.ones(5), alpha=2.0, tmp=tmp)
    assert wrong.trace() is wrong.traced_epilogue
    with pytest.raises(ValueError, match=r"C with shape .5. does not broadcast"):
        wrong.trace(shape)
    number = EpilogueArguments(PLAIN, D=1.0, C=1.0, alpha=2.0, tmp=tmp)
    with pytest.raises(ValueError, match="D is the main output"):
        number.trace(shape)


def test_errors_of_tracing_reach_the_caller():
    """test_trace.py and test_epilogue_operands.py have each error."""
    with pytest.raises(ValueError, match="Output node D is not found in the epilogue function"):
        EpilogueArguments("def f(accum):\n    E = accum\n    return E", E=0)


def test_kernels_of_an_epilogue_are_others_than_those_without():
    epilogue = EpilogueArguments("def f(accum):\n    D = accum\n    return D", D=torch.ones(3, 3))
    a = torch.ones(3, 3)
    plain, fused = (GemmArguments(a, a, torch.ones(3, 3), "float32", e) for e in (None, epilogue))
    (kernel,), (fusing,) = cutlass_api.get_kernels(plain), cutlass_api.get_kernels(fused)
    assert fusing is not kernel
    assert isinstance(fusing.metadata.epilogue, cutlass_api.metadata.EpilogueMetadata)
    for one, args in ((kernel, fused), (fusing, plain)):
        with pytest.raises(ValueError, match="epilogue"):
            one.run(args)


# Classes of cutlass.


def test_classes_for_torch_dtypes_that_kernels_do_not_serve():
    assert utils.cutlass_type_from_torch_type(torch.float4_e2m1fn_x2) is cutlass.Float4E2M1FN
    assert utils.cutlass_type_from_torch_type(torch.bool) is cutlass.Boolean


def test_a_torch_dtype_without_a_class():
    # NVGEMM of torch 2.12 and 2.13 catches KeyError.
    with pytest.raises(KeyError, match=r"no class for torch\.complex64; it has Boolean, Int8"):
        utils.cutlass_type_from_torch_type(torch.complex64)


# Status.


@pytest.mark.parametrize("success, fail", [(Status.success, Status.fail), (Status, Status)])
def test_status(success, fail):
    fine, bad, worse = success(), fail("no"), fail(KeyError("k"))
    assert Status(None)
    assert Status(error=None).error is None
    assert fine
    assert fine.error is None
    assert fine.raise_on_error() is None
    assert not bad
    assert isinstance(bad.error, ValueError)
    assert str(bad.error) == "no"
    with pytest.raises(ValueError, match=r"^no$"):
        bad.raise_on_error()
    assert isinstance(worse.error, KeyError)
    with pytest.raises(KeyError):
        worse.raise_on_error()
    assert "no" in repr(bad)
    assert "success" in repr(fine)
    assert cutlass_api.Status is Status
    with pytest.raises(TypeError):
        fail(3)


# config.


@pytest.mark.parametrize("name", ["use_tvm_ffi", "launch_graphs"])
def test_global_options(name):
    options = cutlass_api.config.GlobalOptions()
    assert cutlass_api.config.GlobalOptions() is options
    before = getattr(options, name)
    assert before is True, "the fast path is the default"
    saved = {}
    try:
        setattr(options, name, False)
        assert getattr(options, name) is False
        options.save(saved)
        assert saved == {"use_tvm_ffi": True, "launch_graphs": True, name: False}
        setattr(options, name, True)
        options.restore(saved)
        assert getattr(options, name) is False
    finally:
        setattr(options, name, before)


# library and typing.


def test_scale_modes():
    assert library.ScaleMode.Blockwise1x16.value == (1, 1, 16)
    assert library.ScaleMode.Blockwise1x32.value == (1, 1, 32)
    mode = ScaleMode.Blockwise1x32
    for equal in ((1, 32), (1, 1, 32), (1, 1, 1, 32)):
        assert mode == equal == mode
    for other in ((1, 16), (32, 1), ScaleMode.Blockwise1x16):
        assert mode != other
    assert hash(mode) == hash(ScaleMode((1, 1, 32)))
    assert {mode: "found"}[1, 1, 32] == "found"
    assert {mode.name for mode in ScaleSwizzleMode} == {"SwizzleNone", "Swizzle32x4x4"}


def test_scale_modes_behave_like_tuples():
    mode = ScaleMode.Blockwise1x32
    assert len(mode) == 3
    assert (mode[0], mode[-1], mode[1:]) == (1, 32, (1, 32))
    assert [*mode] == [1, 1, 32] and 32 in mode
    with pytest.raises(IndexError):
        mode[3]
    assert ScaleMode.Blockwise1x16 < mode <= (1, 32) < (2, 1, 1)
    assert mode > (1, 1, 1, 16)
    assert mode != [1, 1, 32]
    with pytest.raises(TypeError):
        mode < 3  # noqa: B015
    assert pickle.loads(pickle.dumps(mode)) is mode is ScaleMode((1, 1, 32))


def test_tensor_like():
    from cutlass_api.typing import NumericLike, TensorLike

    assert isinstance(torch.ones(3), TensorLike)
    assert isinstance(np.ones(3), TensorLike)
    assert not isinstance([1.0], TensorLike)
    assert NumericLike is not None


def test_the_package_can_be_imported_again():
    code = """
    import sys
    from unittest import mock
    with mock.patch.dict(sys.modules):
        import cutlass_api
    import cutlass_api, numpy as np
    a = np.ones((2, 2), np.float32)
    args = cutlass_api.arguments.GemmArguments(a, a, out := np.zeros_like(a), np.float32)
    cutlass_api.get_kernels(args)[0].run(args=args, assume_supported_args=True)
    print(out.sum())
    """
    assert run_python(code).split() == ["8.0"]
