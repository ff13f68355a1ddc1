"""The public names outside of kernels, arguments and metadata."""

import inspect

import cutlass
import cutlass_api
import numpy as np
import pytest
import torch
from cutlass_api import library, utils
from cutlass_api.arguments import EpilogueArguments, GemmArguments
from cutlass_api.library import ScaleMode, ScaleSwizzleMode
from cutlass_api.status import Status
from helpers import fake, run_python

# The top level.


TOP_LEVEL = ["get_kernels", "Manifest", "Status", "Kernel", "KernelMetadata", "__version__"]
SUBMODULES = [
    "arguments",
    "artifact",
    "config",
    "fusion",
    "library",
    "manifest",
    "metadata",
    "providers",
    "status",
]


@pytest.mark.parametrize("name", [*TOP_LEVEL, *SUBMODULES, "typing", "utils"])
def test_names_reachable_after_one_import(name):
    assert run_python(f"import cutlass_api; cutlass_api.{name}") == ""


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
    assert parameters(cutlass_api.Kernel.generate_kernels) == [
        "metadata_filter",
        "epilogue_args",
        "cc",
    ]
    arguments = cutlass_api.arguments
    assert parameters(arguments.GemmArguments)[:5] == [
        "A",
        "B",
        "out",
        "accumulator_type",
        "epilogue",
    ]
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
    assert [id(tensor) for tensor in args.tensors] == [id(c), id(tmp), id(d)]

    def function(accum, C):
        D = accum + C
        return D

    assert EpilogueArguments(function, C=c, D=d).parameter_names == ["C", "D"]


@pytest.mark.parametrize(
    "source, kwargs, message",
    [
        (
            "def f(x):\n    D = x\n    return D",
            {"D": 0, "x": 0},
            "accum must be an input to the epilogue function",
        ),
        (
            "def f(accum):\n    E = accum\n    return E",
            {"E": 0},
            "Output node D is not found in the epilogue function",
        ),
        (
            "def f(accum):\n    tmp = accum\n    tmp = tmp + tmp\n    D = tmp\n    return D",
            {"D": 0},
            "Variable 'tmp' cannot be defined twice.",
        ),
        (
            PLAIN,
            {"C": 0, "alpha": 0, "tmp": 0},
            "Argument D is not provided in the kwargs of the EpilogueArguments",
        ),
        (PLAIN, {"D": 0, "alpha": 0, "tmp": 0}, "Argument C is not provided"),
        (PLAIN, {"D": 0, "alpha": 0, "tmp": 0, "C": 0, "E": 0}, "Argument E "),
    ],
)
def test_epilogue_errors(source, kwargs, message):
    with pytest.raises(ValueError) as error:
        EpilogueArguments(source, **kwargs)
    assert message in str(error.value)


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


# The stand-in for NVIDIA's cutlass.


def test_the_stand_in_is_found_as_torch_looks_for_it():
    code = """
        import importlib.util
        assert importlib.util.find_spec("cutlass_api") is not None
        import cutlass_api
        spec = importlib.util.find_spec("cutlass")
        import cutlass
        print(spec.name, cutlass.Float32.__name__, cutlass.Float32.__module__)
    """
    assert run_python(code) == "cutlass Float32 cutlass\n"


def test_classes_that_torch_names_are_there():
    pytest.importorskip("torch._inductor.codegen.nv_universal_gemm")
    for name in (
        "Float32",
        "Float16",
        "BFloat16",
        "Int8",
        "Int32",
        "Float8E4M3FN",
        "Float8E5M2",
        "Float64",
    ):
        assert isinstance(getattr(cutlass, name), type)


@pytest.mark.parametrize("first", ["cutlass", "cutlass_api"])
def test_a_real_cutlass_is_not_shadowed(tmp_path, first):
    package = tmp_path / "cutlass"
    package.mkdir()
    (package / "__init__.py").write_text("real = True\nclass Float32: pass\n")
    code = f"""
        import sys
        sys.path.insert(0, sys.argv[1])
        import {first}
        import cutlass, cutlass_api
        print(cutlass.real, cutlass_api.DType(cutlass.Float32).name)
    """
    assert run_python(code, tmp_path) == "True float32\n"


# Status.


def test_status():
    fine, bad, worse = Status.success(), Status.fail("no"), Status.fail(KeyError("k"))
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
        Status.fail(3)


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
    assert ScaleMode.Blockwise1x32 == (1, 32) == ScaleMode.Blockwise1x32
    assert ScaleMode.Blockwise1x32 == (1, 1, 1, 32)
    assert ScaleMode.Blockwise1x32 != (1, 16)
    assert ScaleMode.Blockwise1x32 != (32, 1)
    assert ScaleMode.Blockwise1x16 != ScaleMode.Blockwise1x32
    assert hash(ScaleMode.Blockwise1x32) == hash(ScaleMode((1, 1, 32)))
    assert {mode.name for mode in ScaleSwizzleMode} == {"SwizzleNone", "Swizzle32x4x4"}


def test_tensor_like():
    from cutlass_api.typing import NumericLike, TensorLike

    assert isinstance(torch.ones(3), TensorLike)
    assert isinstance(np.ones(3), TensorLike)
    assert not isinstance([1.0], TensorLike)
    assert NumericLike is not None


# utils.


def test_arithmetic():
    assert [utils.ceil_div(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert [utils.round_up(n, 4) for n in (0, 1, 4, 5)] == [0, 4, 4, 8]
    assert utils.tuple_to_string((128, 256, 64)) == "128x256x64"


def test_kinds_of_tensors():
    kinds = (utils.is_torch_tensor, utils.is_torch_fake_tensor, utils.is_numpy_tensor)
    assert [kind(torch.ones(3)) for kind in kinds] == [True, False, False]
    assert [kind(torch.nn.Parameter(torch.ones(3))) for kind in kinds] == [True, False, False]
    assert [kind(fake(3)) for kind in kinds] == [True, True, False]
    assert [kind(np.ones(3)) for kind in kinds] == [False, False, True]
    assert [kind([1.0]) for kind in kinds] == [False, False, False]


@pytest.mark.parametrize(
    "shape, stride, order, rank, leading",
    [
        ((4, 8), (8, 1), (1, 0), (1, 0), 1),
        ((4, 8), (1, 4), (0, 1), (0, 1), 0),
        ((2, 4, 8), (32, 8, 1), (2, 1, 0), (2, 1, 0), 2),
        ((2, 4, 8), (32, 1, 4), (1, 2, 0), (2, 0, 1), 1),
        ((4, 8), (16, 2), (1, 0), (1, 0), None),
        ((5,), (1,), (0,), (0,), 0),
    ],
)
def test_stride_orders(shape, stride, order, rank, leading):
    assert utils.get_stride_order(shape, stride) == order
    assert utils.get_stride_rank(shape, stride) == rank
    assert utils.leading_dim(shape, stride) == leading


def test_strides_of_another_length():
    for function in (utils.get_stride_order, utils.get_stride_rank, utils.leading_dim):
        with pytest.raises(ValueError, match=r"\[4, 8\].*\[1\]"):
            function((4, 8), (1,))


def test_layout_strings():
    assert utils.strides_to_layout_string([(8, 1), (1, 8), (64, 1, 8)]) == "tnn"
    with pytest.raises(ValueError, match=r"\[4, 2\]"):
        utils.strides_to_layout_string([(4, 2)])


def test_tensor_wrapper():
    tensor = torch.ones(3)
    wrapper = utils.TensorWrapper(tensor)
    assert wrapper.runtime_tensor is tensor
    assert wrapper.compile_time_tensor is tensor


class Stream:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class CoreStream:
    def __cuda_stream__(self):
        return (0, 456)


class CUstream:
    def __int__(self):
        return 789


@pytest.mark.parametrize(
    "stream, handle",
    [
        pytest.param(0, 0, id="null"),
        pytest.param(1 << 47, 1 << 47, id="integer"),
        pytest.param(Stream(cuda_stream=123), 123, id="torch"),
        pytest.param(Stream(ptr=321), 321, id="cupy"),
        pytest.param(CoreStream(), 456, id="cuda.core"),
        pytest.param(CUstream(), 789, id="cuda.bindings"),
    ],
)
def test_stream_handles(stream, handle):
    assert utils.to_cuda_stream(stream) == handle


@pytest.mark.parametrize("stream", [1.5, "0", object()], ids=lambda value: type(value).__name__)
def test_what_is_no_stream(stream):
    with pytest.raises(TypeError, match=rf"stream is a {type(stream).__name__}"):
        utils.to_cuda_stream(stream)


def test_no_stream_has_no_handle():
    with pytest.raises(TypeError, match=r"^stream is None, .*; pass a stream, such as"):
        utils.to_cuda_stream(None)


def test_a_negative_stream():
    with pytest.raises(ValueError, match="-3"):
        utils.to_cuda_stream(-3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks what is said where there is no GPU")
def test_capabilities_without_a_gpu():
    with pytest.raises(RuntimeError):
        utils.device_cc()
    status = utils.is_device_cc_supported({80, 90})
    assert isinstance(status, Status)
    assert not status
    assert str(status.error)


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
