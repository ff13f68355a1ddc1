"""XLA's side of its FFI, from the header that jaxlib installs: the structs, and calls of our
handlers without XLA.
"""

import ctypes
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cutlass_api import _core

INITIALIZE, EXECUTE = 2, 3
NUMBERS = {
    "size_t": ctypes.c_size_t,
    "int64_t": ctypes.c_int64,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int": ctypes.c_int,
    "XLA_FFI_Handler_Traits": ctypes.c_uint32,
}
#: Codes of `XLA_FFI_DataType`, and the type of an error's text.
CODES = {each.name: each.xla_code for each in _core.ELEMENT_TYPES}
STREAM_GETTER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


def header_path() -> Path:
    """In the folder that `jax.ffi.include_dir` returns, without an import of jax."""
    jaxlib = find_spec("jaxlib").submodule_search_locations[0]
    return Path(jaxlib) / "include/xla/ffi/api/c_api.h"


@cache
def structs() -> dict[str, Any]:
    """The structs of the header by name; their `SIZE` is the header's, without later fields."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", header_path().read_text(), flags=re.S)
    kinds: dict[str, Any] = dict(NUMBERS)
    kinds |= dict.fromkeys(re.findall(r"typedef enum \{[^}]*\} (\w+);", text), ctypes.c_int)
    found = {}
    for name, body in re.findall(r"struct (XLA_FFI_\w+) \{(.*?)\}", text, re.S):
        fields = []
        for line in filter(None, map(str.strip, body.split(";"))):
            function = re.fullmatch(
                r"_XLA_FFI_API_STRUCT_FIELD\((\w+)\)|void \(\*(\w+)\)\(.*", line
            )
            if function:
                fields.append((function[1] or function[2], ctypes.c_void_p))
                continue
            kind, field = re.fullmatch(r"(.*?)(\w+)", line, re.S).groups()
            is_pointer = "*" in kind
            fields.append((field, ctypes.c_void_p if is_pointer else kinds[kind.strip()]))
        found[name] = kinds[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
        last = re.search(rf"STRUCT_TRAITS\({name}, (\w+)\)", text)
        end = getattr(found[name], last[1] if last else fields[-1][0])
        found[name].SIZE = end.offset + end.size
    return found


def make(name: str, **values: Any) -> Any:
    """A struct of the header."""
    kind = structs()["XLA_FFI_" + name]
    sizes = {"struct_size": kind.SIZE} if hasattr(kind, "struct_size") else {}
    return kind(**(sizes | values))


def handler(platform: str) -> Any:
    """A handler as a function of a frame's address. Like XLA, it runs without Python's lock."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = pointer(_core.xla_handlers()[platform], b"cutlass_api")
    return ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(address)


def query(platform: str, **values: Any) -> Any:
    """The metadata of a handler, by the query that XLA makes; `values`: fields of the frame."""
    metadata = make("Metadata", api_version=make("Api_Version"), traits=99)
    extension = make("Metadata_Extension", metadata=ctypes.addressof(metadata))
    extension.extension_base = make("Extension_Base", type=1)
    frame = make("CallFrame", extension_start=ctypes.addressof(extension), **values)
    assert handler(platform)(ctypes.addressof(frame)) is None
    return metadata


def call(
    platform: str,
    operands: list[tuple[int, str, tuple[int, ...]]],
    results: list[tuple[int, str, tuple[int, ...]]],
    *,
    stage: int = EXECUTE,
    stream: int = 0,
    device: int = 0,
    api_size: int | None = None,
    frame_size: int | None = None,
    **attributes: bool | str,
) -> SimpleNamespace:
    """Calls a handler; arrays are address, dtype and shape. Returns the error's text, or None, and
    its code."""
    alive: list[Any] = []

    def keep(value: Any) -> int:
        alive.append(value)
        return ctypes.addressof(value)

    def pointers(values: list[Any]) -> int:
        return keep((ctypes.c_void_p * len(values))(*map(keep, values)))

    def kinds(*values: int) -> int:
        return keep((ctypes.c_uint32 * len(values))(*values))

    def buffer(data: int, dtype: str, shape: tuple[int, ...]) -> Any:
        dims = keep((ctypes.c_int64 * len(shape))(*shape))
        return make("Buffer", dtype=CODES[dtype], data=data, rank=len(shape), dims=dims)

    def text(value: str) -> Any:
        data = keep(ctypes.create_string_buffer(value.encode()))
        return make("ByteSpan", ptr=data, len=len(value.encode()))

    def attribute(value: bool | str) -> Any:
        if isinstance(value, str):
            return text(value)
        return make("Scalar", dtype=1, value=keep(ctypes.c_uint8(value)))

    failed = SimpleNamespace(error=None, code=None)

    def create_error(address: int) -> int:
        given = structs()["XLA_FFI_Error_Create_Args"].from_address(address)
        failed.error = ctypes.string_at(given.message).decode()
        failed.code = given.errc
        return 1

    def fill(name: str, field: str, value: int) -> Any:
        def getter(address: int) -> int:
            setattr(structs()[f"XLA_FFI_{name}_Args"].from_address(address), field, value)
            return 0

        return getter

    functions = {
        "Error_Create": create_error,
        "Stream_Get": fill("Stream_Get", "stream", stream),
        "DeviceOrdinal_Get": fill("DeviceOrdinal_Get", "device_ordinal", device),
    }
    api = make("Api")
    for name, function in functions.items():
        pointer = STREAM_GETTER(function)
        alive.append(pointer)
        setattr(api, "XLA_FFI_" + name, ctypes.cast(pointer, ctypes.c_void_p).value)
    api.struct_size = api_size or api.struct_size
    frame = make("CallFrame", api=keep(api), stage=stage)
    for name, values in (("args", operands), ("rets", results)):
        buffers = [buffer(*value) for value in values]
        listed = {name: pointers(buffers), "types": kinds(*[1] * len(buffers))}
        setattr(frame, name, make(name.title(), size=len(buffers), **listed))
    ordered = sorted(attributes.items())
    frame.attrs = make(
        "Attrs",
        size=len(ordered),
        types=kinds(*(4 if isinstance(value, str) else 3 for _, value in ordered)),
        names=pointers([text(name) for name, _ in ordered]),
        attrs=pointers([attribute(value) for _, value in ordered]),
    )
    frame.struct_size = frame_size or frame.struct_size
    returned = handler(platform)(ctypes.addressof(frame))
    assert (returned is None) == (failed.error is None)
    return failed


#: The attributes of a product of row-major matrices.
PLAIN = {
    "a_is_transposed": False,
    "b_is_transposed": False,
    "accumulator_type": "float32",
    "allows_tf32": False,
    "epilogue": "",
}
