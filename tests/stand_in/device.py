"""The stand-in driver, seen from its process: tensors on its devices, its records, and its
failures.
"""

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

library = ctypes.CDLL(os.environ["STAND_IN"], mode=ctypes.RTLD_GLOBAL)
for _name in (
    "launches",
    "calls",
    "open_contexts",
    "libraries",
    "last_stream",
    "last_context",
    "allocations",
    "last_allocation",
    "open_graphs",
    "misused",
    "graph_launches",
    "open_streams",
    "open_events",
    "open_memory",
    "open_pools",
    "retained_contexts",
    "end_fault",
):
    getattr(library, f"stand_in_{_name}").restype = ctypes.c_uint64
library.stand_in_exchange_table.restype = ctypes.c_void_p
library.stand_in_last_parameters.restype = ctypes.c_void_p
library.stand_in_last_more.restype = ctypes.c_void_p
library.stand_in_last_extents.restype = ctypes.POINTER(ctypes.c_uint * 3)

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_CAPSULE_NAME = b"dlpack_exchange_api"  # the capsule keeps the pointer, so the bytes have to live
_LEGACY_NAME = b"dltensor"

#: DLPack's type codes of the dtypes that tests use.
FLOAT, INT, BFLOAT = 2, 0, 4


class Tensor:
    """A matrix or batch on a simulated CUDA device, read through the exchange table like torch's
    tensors.
    """

    requires_grad = False
    __dlpack_c_exchange_api__ = _new_capsule(library.stand_in_exchange_table(), _CAPSULE_NAME, None)

    def __init__(
        self,
        data: int,
        shape: tuple[int, ...],
        **properties: Any,
    ):
        self.describe(data, shape, **properties)

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("the exchange table should have been used")

    def describe(
        self,
        data: int,
        shape: tuple[int, ...],
        *,
        strides: tuple[int, ...] | None = None,
        device: int = 0,
        code: int = FLOAT,
        bits: int = 16,
    ) -> None:
        """Changes the tensor's properties, like torch's ``resize_`` and ``.data =``. ``strides``:
        in elements; None if it is contiguous.
        """
        if strides is None:
            contiguous = [1]
            for extent in reversed(shape[1:]):
                contiguous.insert(0, contiguous[0] * extent)
            strides = tuple(contiguous)
        numbers = ctypes.c_int64 * len(shape)
        library.stand_in_describe(
            ctypes.c_void_p(id(self)),
            ctypes.c_uint64(data),
            device,
            len(shape),
            code,
            bits,
            numbers(*shape),
            numbers(*strides),
        )


class _DLManagedTensor(ctypes.Structure):
    """DLPack's ``DLManagedTensor``, with its tensor's fields in a row."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("device_type", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_described: list[Any] = []  # torch reads the descriptions, and names, for as long as it likes


def torch_tensor(
    data: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None = None,
    *,
    device: int = 0,
    code: int = FLOAT,
) -> Any:
    """A 16-bit torch tensor that claims to be on a CUDA device. It cannot be computed with."""
    import torch

    torch.cuda._initialized = True  # or torch would start CUDA to make it
    extents = (ctypes.c_int64 * len(shape))(*shape)
    steps = (ctypes.c_int64 * len(strides))(*strides) if strides else None
    arrays = (ctypes.addressof(extents), ctypes.addressof(steps) if steps else None)
    tensor = _DLManagedTensor(data, 2, device, len(shape), code, 16, 1, *arrays)
    _described.append((tensor, extents, steps))
    return torch.utils.dlpack.from_dlpack(
        _new_capsule(ctypes.addressof(tensor), _LEGACY_NAME, None)
    )


class Parameters(NamedTuple):
    """The GemmParams of the last launch."""

    a: int
    b: int
    out: int
    a_stride: tuple[int, ...]
    b_stride: tuple[int, ...]
    out_stride: tuple[int, ...]
    extents: tuple[int, ...]
    #: The address of a grouped GEMM's offsets, and the step from one to the next.
    offsets: tuple[int, ...]


def last_parameters() -> Parameters:
    """The parameter block of the last launch."""
    fields = struct.unpack("<3Q9q4iQq", ctypes.string_at(library.stand_in_last_parameters(), 128))
    return Parameters(
        *fields[:3], fields[3:6], fields[6:9], fields[9:12], fields[12:16], fields[16:]
    )


def last_words(count: int) -> tuple[int, ...]:
    """The second parameter of the last launch, in 8-byte words; `stand_in_expect_more` sets their
    number.
    """
    return struct.unpack(f"<{count}Q", ctypes.string_at(library.stand_in_last_more(), 8 * count))


class TensorMap(NamedTuple):
    """A tensor map as the stand-in encodes it."""

    data_type: int
    swizzle: int
    address: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    l2_promotion: int


class Sm90Parameters(NamedTuple):
    """The Sm90Params of the last launch. Call ``expect(508)`` before the launch."""

    a: TensorMap
    b: TensorMap
    out: TensorMap
    out_pointer: int
    out_stride: tuple[int, ...]
    #: M, N, K and L, as the program counts them.
    extents: tuple[int, ...]
    batched: tuple[int, ...]
    out_by_tma: int
    #: Rows of the boxes of K-major operands.
    boxes: tuple[int, ...]
    offsets: tuple[int, ...]
    #: Fields of an A that threads load, which has no tensor map.
    a_pointer: int
    a_stride: tuple[int, ...]
    #: Grid split: the workspace and the number of splits.
    parts: tuple[int, ...]


def last_sm90_parameters() -> Sm90Parameters:
    """The parameter block of the last launch of an sm90 kernel."""
    block = ctypes.string_at(library.stand_in_last_parameters(), 508)

    def tensor_map(at: int) -> TensorMap:
        kind, swizzle, address, *fields, promotion, rank = struct.unpack_from(
            "<2i10Q5IiI", block, 128 * at
        )
        extents, strides, box = fields[:rank], fields[5 : 4 + rank], fields[9 : 9 + rank]
        return TensorMap(
            kind, swizzle, address, tuple(extents), tuple(strides), tuple(box), promotion
        )

    fields = struct.unpack_from("<4Q4i2iii2iQqQ2qQi", block, 384)
    maps = (tensor_map(0), tensor_map(1), tensor_map(2))
    return Sm90Parameters(
        *maps,
        fields[0],
        fields[1:4],
        fields[4:8],
        fields[8:10],
        fields[10],
        fields[12:14],
        fields[14:16],
        fields[16],
        fields[17:19],
        fields[19:],
    )


def last_is_reversed() -> bool:
    """Whether the second matrix B of the last launch, of a dual GEMM, comes first. Call
    ``expect(512)`` before the launch.
    """
    block = ctypes.string_at(library.stand_in_last_parameters(), 512)
    return bool(struct.unpack_from("<i", block, 508)[0])


class Launch(NamedTuple):
    """The last launch of a user's kernel. Call ``expect_words(count)`` before the launch."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    cluster: tuple[int, ...]
    shared_bytes: int
    #: For each parameter, the 8 bytes that begin with it.
    words: tuple[int, ...]


def last_launch(count: int) -> Launch:
    """The last launch, of a kernel with this number of parameters."""
    extents = (tuple(library.stand_in_last_extents(of).contents) for of in range(3))
    words = struct.unpack(
        f"<{count}Q", ctypes.string_at(library.stand_in_last_parameters(), 8 * count)
    )
    return Launch(*extents, library.stand_in_last_shared_bytes(), words)


expect = library.stand_in_expect
expect_words = library.stand_in_expect_words


def fail(call: str, code: int = 719) -> None:
    """Makes further calls of these names fail, by default with CUDA_ERROR_LAUNCH_FAILED."""
    library.stand_in_fail(call.encode(), code)


def fault(call: int, code: int, *, lasts: bool = False) -> None:
    """Numbers the calls of the driver from now on, beginning with 1. The one of this number fails,
    and if the fault lasts, so does every later one. 0: no call fails.
    """
    library.stand_in_fault(ctypes.c_uint64(call), code, lasts)


def end_fault() -> list[str]:
    """Ends the fault. Returns the names of the calls since."""
    count = library.stand_in_end_fault()
    library.stand_in_numbered.restype = ctypes.c_char_p
    return [library.stand_in_numbered(ctypes.c_uint64(at)).decode() for at in range(1, count + 1)]


def handles() -> dict[str, int]:
    """How many handles of each kind exist."""
    kinds = {
        "libraries": "libraries",
        "pools": "open_pools",
        "primary contexts": "retained_contexts",
        "current contexts": "open_contexts",
        "blocks of the pool": "allocations",
        "blocks": "open_memory",
        "streams": "open_streams",
        "events": "open_events",
        "graphs": "open_graphs",
    }
    return {kind: getattr(library, f"stand_in_{name}")() for kind, name in kinds.items()}


launches = library.stand_in_launches
graph_launches = library.stand_in_graph_launches
begin = library.stand_in_begin
end = library.stand_in_end


@contextmanager
def raises(kind: type[BaseException], *words: str) -> Iterator[None]:
    """Fails unless its block raises an exception with these words, and launches nothing."""
    before = launches()
    try:
        yield
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, (missing, str(error))
        assert launches() == before
    else:
        raise AssertionError("nothing was raised")
