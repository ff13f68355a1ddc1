"""The public names outside of kernels, arguments and metadata."""

import enum
import inspect
import pickle

import cutlass
import cutlass_api
import numpy as np
import pytest
import torch
from cutlass_api import library, utils
from cutlass_api.arguments import DenseTensor, EpilogueArguments, GemmArguments
from cutlass_api.library import ScaleMode, ScaleSwizzleMode
from cutlass_api.status import Status
from support.helpers import DTYPES, fake, run_python

# The top level.


TOP_LEVEL = ["get_kernels", "Manifest", "Status", "Kernel", "KernelMetadata", "__version__"]
SUBMODULES = [
    "arguments",
    "artifact",
    "config",
    "fusion",
    "kernel",
    "library",
    "manifest",
    "metadata",
    "providers",
    "providers.provider",
    "status",
]


@pytest.mark.parametrize("name", [*TOP_LEVEL, *SUBMODULES, "typing", "utils"])
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
    assert [(name, id(tensor)) for name, tensor in args.tensors.items()] == [
        ("C", id(c)),
        ("tmp", id(tmp)),
        ("D", id(d)),
    ]

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


# Classes of cutlass.


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.float16, "Float16"),
        (torch.bfloat16, "BFloat16"),
        (torch.float64, "Float64"),
        (torch.float8_e4m3fn, "Float8E4M3FN"),
        (torch.float4_e2m1fn_x2, "Float4E2M1FN"),
        (torch.uint8, "Uint8"),
        (torch.bool, "Boolean"),
    ],
    ids=str,
)
def test_the_class_for_a_torch_dtype(dtype, name):
    assert utils.cutlass_type_from_torch_type(dtype) is getattr(cutlass, name)


def test_a_torch_dtype_without_a_class():
    # NVGEMM of torch 2.12 and 2.13 catches KeyError.
    with pytest.raises(KeyError, match=r"no class for torch\.complex64; it has Boolean, Int8"):
        utils.cutlass_type_from_torch_type(torch.complex64)


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


def test_status_from_its_constructor():
    assert Status()
    assert Status(None)
    assert Status(error=None).error is None
    bad, worse = Status("no"), Status(error=KeyError("k"))
    assert not bad
    assert isinstance(bad.error, ValueError)
    assert str(bad.error) == "no"
    with pytest.raises(KeyError):
        worse.raise_on_error()
    with pytest.raises(TypeError):
        Status(3)


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
    assert {ScaleMode.Blockwise1x32: "found"}[1, 1, 32] == "found"
    assert {mode.name for mode in ScaleSwizzleMode} == {"SwizzleNone", "Swizzle32x4x4"}


def test_scale_modes_behave_like_tuples():
    mode = ScaleMode.Blockwise1x32
    assert len(mode) == 3
    assert (mode[0], mode[-1], mode[1:]) == (1, 32, (1, 32))
    assert list(mode) == [1, 1, 32]
    assert 32 in mode
    batch, rows, columns = mode
    assert (batch, rows, columns) == (1, 1, 32)
    with pytest.raises(IndexError):
        mode[3]
    assert mode == (1, 1, 32)
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
        ((4, 1), (8, 1), (1, 0), (1, 0), 1),
        ((4, 8), (2, 2), (1, 0), (1, 0), None),
        ((5,), (1,), (0,), (0,), 0),
    ],
)
def test_stride_orders(shape, stride, order, rank, leading):
    assert utils.get_stride_order(stride) == order
    assert utils.get_stride_order(stride, reverse=True) == order[::-1]
    assert utils.get_stride_rank(stride) == rank
    tensor = torch.empty_strided(shape, stride)
    assert utils.leading_dim(tensor) == leading
    assert utils.leading_dim(DenseTensor(tensor)) == leading
    if leading is not None:
        assert (
            utils.leading_dim(np.lib.stride_tricks.as_strided(*strided(shape, stride))) == leading
        )


def strided(shape, stride):
    return np.zeros(256, np.float32), shape, [4 * step for step in stride]


@pytest.mark.parametrize(
    "tensor, error",
    [(torch.ones(()), ValueError), (torch.ones(1, 1, 1, 1), ValueError), (3, TypeError)],
)
def test_tensors_without_a_leading_dimension(tensor, error):
    with pytest.raises(error, match=r"^tensor "):
        utils.leading_dim(tensor)


def test_layout_strings():
    assert utils.strides_to_layout_string((8, 1), (1, 8), (64, 1, 8)) == "tnn"
    assert utils.strides_to_layout_string((0, 0, 1), (0, 1, 0)) == "tn"
    assert utils.strides_to_layout_string() == ""
    for wrong in ((4, 2), (1,), [(8, 1), (1, 8)]):
        with pytest.raises(ValueError, match="neither row-major nor column-major; pass"):
            utils.strides_to_layout_string(wrong)


def test_tensor_wrapper():
    tensor = torch.ones(3)
    wrapper = utils.TensorWrapper(tensor)
    assert wrapper.runtime_tensor is tensor
    assert wrapper.compile_time_tensor is tensor
    with pytest.raises(TypeError, match=r"^tensor is a int"):
        utils.TensorWrapper(3)


@pytest.mark.parametrize(
    "wrap", [lambda tensor: tensor, DenseTensor, utils.TensorWrapper, lambda x: np.asarray(x)]
)
def test_a_tensor_wrapper_describes_its_tensor(wrap):
    tensor = torch.ones(4, 8)[:, 1:7].mT
    wrapper = utils.TensorWrapper(wrap(tensor))
    assert (wrapper.shape, wrapper.stride) == ((6, 4), (1, 8))
    assert (wrapper.element_type, wrapper.data_ptr) == (torch.float32, tensor.data_ptr())
    assert wrapper.numel() == 24
    assert wrapper.alignment_bytes == 4
    assert isinstance(wrapper.stride, tuple)


def test_the_alignment_of_a_tensor_wrapper():
    aligned = utils.TensorWrapper(torch.ones(8), alignment_bytes=16)
    assert aligned.alignment_bytes == 16
    assert utils.TensorWrapper(torch.ones(8)[1:], 4).alignment_bytes == 4
    with pytest.raises(ValueError, match=r"tensor begins at address .* alignment_bytes = 16; pass"):
        utils.TensorWrapper(torch.ones(8)[1:], 16)
    with pytest.raises(ValueError, match="alignment_bytes is 0"):
        utils.TensorWrapper(torch.ones(8), 0)
    assert utils.TensorWrapper(fake(8), alignment_bytes=16).alignment_bytes == 16


def test_a_wrapped_fake_tensor_has_no_runtime_tensor():
    tensor = fake(4, 8)
    wrapper = utils.TensorWrapper(tensor)
    assert wrapper.compile_time_tensor is tensor
    assert (wrapper.shape, wrapper.data_ptr, wrapper.numel()) == ((4, 8), 0, 32)
    args = GemmArguments(fake(4, 8), fake(8, 4), fake(4, 4), accumulator_type="float32")
    for fakes, name in ((wrapper, "tensor"), (args.B.tensor, "B")):
        with pytest.raises(ValueError, match=f"^{name} is a FakeTensor without memory"):
            fakes.runtime_tensor  # noqa: B018


def test_available_packages():
    assert utils.is_torch_available() is True
    assert utils.is_numpy_available() is True
    code = """
        import sys
        import cutlass_api
        assert "torch" not in sys.modules and "numpy" not in sys.modules
        found = cutlass_api.utils.is_torch_available(), cutlass_api.utils.is_numpy_available()
        assert "torch" not in sys.modules and "numpy" not in sys.modules
        sys.path[:] = [path for path in sys.path if "site-packages" not in path]
        print(found, cutlass_api.utils.is_torch_available(), cutlass_api.utils.is_numpy_available())
    """
    assert run_python(code) == "(True, True) False False\n"


# Types of NVIDIA's cutlass.


@pytest.mark.parametrize("name", DTYPES)
def test_cutlass_types(name):
    cls = utils.to_cutlass_type(name)
    assert cls.__name__.lower() == name.replace("_", "")
    assert cls is getattr(cutlass, cls.__name__)
    assert cutlass_api.DType(cls) == name
    for other in (DTYPES[name], cutlass_api.DType(name), cls):
        assert utils.to_cutlass_type(other) is cls
    assert utils.cutlass_type_from_torch_type(DTYPES[name]) is cls


@pytest.mark.parametrize("wrong", ["nonsense", torch.int64, None, 3], ids=repr)
def test_what_has_no_cutlass_type(wrong):
    with pytest.raises(TypeError, match="does not name a supported element type"):
        utils.to_cutlass_type(wrong)


@pytest.mark.parametrize("wrong", ["float32", np.float32, cutlass_api.DType("int8")], ids=repr)
def test_what_is_no_torch_type(wrong):
    with pytest.raises(TypeError, match=r"pass a torch\.dtype, or call to_cutlass_type"):
        utils.cutlass_type_from_torch_type(wrong)


def test_a_cutlass_without_a_type(tmp_path):
    (tmp_path / "cutlass.py").write_text("class Float32: pass\n")
    code = """
        import sys
        sys.path.insert(0, sys.argv[1])
        import cutlass, cutlass_api
        known, missing = map(cutlass_api.utils.to_cutlass_type, ("float32", "int8"))
        print(known is cutlass.Float32, missing == "int8", type(missing).__name__)
    """
    assert run_python(code, tmp_path) == "True True DType\n"


# Results of cuda.bindings.


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1


def test_cuda_errors():
    fine = CUresult.CUDA_SUCCESS
    assert utils.check_cuda_errors((fine,)) is None
    assert utils.check_cuda_errors((fine, 3)) == 3
    assert utils.check_cuda_errors((fine, 3, "x")) == (3, "x")
    assert utils.check_cuda_errors((0, 3)) == 3
    with pytest.raises(RuntimeError, match=r"CUDA_ERROR_INVALID_VALUE \(1\)"):
        utils.check_cuda_errors((CUresult.CUDA_ERROR_INVALID_VALUE, None))
    with pytest.raises(RuntimeError, match=r"\(719\)"):
        utils.check_cuda_errors((719,))


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
    assert utils.to_cuda_stream(stream, skip_if_ffi=False) == handle
    assert utils.to_cuda_stream(stream, skip_if_ffi=True) is stream
    options = cutlass_api.config.GlobalOptions()
    options.use_tvm_ffi = False
    try:
        assert utils.to_cuda_stream(stream, skip_if_ffi=True) == handle
    finally:
        options.use_tvm_ffi = True


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
