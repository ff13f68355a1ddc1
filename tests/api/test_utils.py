"""`cutlass_api.utils`: strides, wrappers, types of NVIDIA's cutlass, streams and errors."""

import enum

import cutlass
import cutlass_api
import numpy as np
import pytest
import torch
from cutlass_api import utils
from cutlass_api.arguments import DenseTensor, GemmArguments
from cutlass_api.status import Status
from support.helpers import DTYPES, fake, run_python

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
    steps = [4 * step for step in stride]
    array = np.lib.stride_tricks.as_strided(np.zeros(256, np.float32), shape, steps)
    assert leading is None or utils.leading_dim(array) == leading


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
    args = GemmArguments(fake(4, 8), fake(8, 4), fake(4, 4), "float32")
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
