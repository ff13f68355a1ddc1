"""Our side of XLA's FFI, called without XLA: structs, metadata, refusals, and on the stand-in
driver what a GPU's calls launch.
"""

import re
import shutil
import subprocess
import textwrap
from threading import Thread

import numpy as np
import pytest
import stand_in
from cutlass_api import _core

pytest.importorskip("jax")
from support import xla_calls
from support.xla_calls import PLAIN, call, query

OURS = {name: (size, fields) for name, size, fields in _core.xla_structs()}


def test_structs_have_the_headers_sizes_and_offsets():
    assert len(OURS) > 10 and {"XLA_FFI_CallFrame", "XLA_FFI_Api"} <= OURS.keys()
    for name, (size, fields) in OURS.items():
        theirs = xla_calls.structs()[name]
        assert size == theirs.SIZE, name
        # Without what follows the header's size.
        declared = [field for field, _ in theirs._fields_]
        assert [field.removeprefix("r#") for field, _ in fields] == declared[: len(fields)]
        for field, offset in fields:
            assert offset == getattr(theirs, field.removeprefix("r#")).offset, (name, field)


def test_a_compiler_agrees(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    pairs = [(name, field.removeprefix("r#")) for name in OURS for field, _ in OURS[name][1]]
    lines = [f'  printf("%zu\\n", offsetof({name}, {field}));' for name, field in pairs]
    includes = ["#include <stdio.h>", f'#include "{xla_calls.header_path()}"']
    source = "\n".join([*includes, "int main(void) {", *lines, "}"])
    (tmp_path / "offsets.c").write_text(source)
    command = [compiler, "offsets.c", "-o", "offsets"]
    subprocess.run(command, cwd=tmp_path, check=True)
    found = subprocess.run([tmp_path / "offsets"], capture_output=True, text=True, check=True)
    ours = [offset for name in OURS for _, offset in OURS[name][1]]
    assert [*map(int, found.stdout.split())] == ours


def test_the_version_is_the_headers():
    text = xla_calls.header_path().read_text()
    version = query("cpu").api_version
    theirs = [int(re.search(rf"XLA_FFI_API_{part} (\d+)", text)[1]) for part in ("MAJOR", "MINOR")]
    assert [version.major_version, version.minor_version] == theirs
    assert version.struct_size == xla_calls.structs()["XLA_FFI_Api_Version"].SIZE


@pytest.mark.parametrize("platform, traits", [("cpu", 0), ("CUDA", 1)])
@pytest.mark.parametrize("stage", [0, 1, 2, 3, 99])
def test_metadata_is_answered_before_anything_else_is_read(platform, traits, stage):
    """The query has no API, context or arguments; only GPUs have command buffers."""
    assert query(platform, stage=stage, struct_size=0).traits == traits


def product_of(a, b, **attributes):
    out = np.full((a.shape[0], b.shape[1]), np.nan, np.float32)
    arrays = [(x.ctypes.data, x.dtype.name, x.shape) for x in (a, b, out)]
    failed = call("cpu", arrays[:2], [arrays[2], (0, "uint8", (0,))], **(PLAIN | attributes))
    assert failed.error is None
    return out


def test_a_handler_computes():
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((3, 4), np.float32)
    assert (product_of(a, b) == a @ b).all()


def test_calls_of_several_threads():
    a = np.random.default_rng(0).integers(-4, 4, (8, 40, 40)).astype(np.float32)
    found = [None] * 8

    def compute(at):
        for _ in range(20):
            found[at] = product_of(a[at], a[at])

    threads = [Thread(target=compute, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((found[at] == a[at] @ a[at]).all() for at in range(8))


@pytest.mark.parametrize(
    "change, code, error",
    [
        ({"stage": 0}, 13, "stage 0"),
        ({"frame_size": 160}, 13, "XLA_FFI_CallFrame of 160 bytes, and 168 are needed: jaxlib is"),
        ({"api_size": 100}, 13, "XLA_FFI_Api of 100 bytes"),
        ({"allows_tf32": "yes"}, 3, "allows_tf32 is no bool"),
        ({"epilogue": True}, 3, "epilogue is no text"),
        ({"accumulator_type": "complex64"}, 3, "accumulator_type is complex64"),
        ({"epilogue": "def epilogue(accum, x): D = accum + x; return D"}, 3, "2 operands and 1"),
        ({"operands": [(0, "float32", (2, 3))]}, 3, "1 operands and 1 outputs are passed"),
        ({"operands": [(0, "float32", (2, 3))] * 2}, 3, "K"),
        ({"operands": [(0, "float32", (1, 1, 1, 1))] * 2}, 3, "rank 4"),
        ({"operands": [(0, "int4", (2, 2))] * 2}, 3, "XLA's type 21"),
    ],
)
def test_refusals(change, code, error):
    arguments = {"operands": [(64, "float32", (2, 2))] * 2, "results": [(64, "float32", (2, 2))]}
    arguments["results"].append((0, "uint8", (0,)))
    arguments = arguments | PLAIN | change
    failed = call("cpu", arguments.pop("operands"), arguments.pop("results"), **arguments)
    assert failed.code == code and failed.error.startswith("cutlass_api: "), failed
    assert error in failed.error


def test_a_missing_attribute():
    arrays = [(64, "float32", (2, 2))]
    failed = call("cpu", arrays * 2, arrays * 2)
    assert "attribute a_is_transposed is missing" in failed.error


# ---- calls of a GPU ------------------------------------------------------------------------------


PRELUDE = textwrap.dedent(
    """
    from cutlass_api import _core
    from stand_in import device
    from support.xla_calls import INITIALIZE, PLAIN, call

    A, B, OUT, BIAS, WORKSPACE, STREAM = 0x10000000, 0x20000000, 0x30000000, 0x50000000, 1 << 32, 77
    def product(a, b, *others, workspace=0, **options):
        operands = [(A, "float16", a), (B, "float16", b), *others]
        results = [(OUT, "float16", (a[-2], b[-1])), (WORKSPACE, "uint8", (workspace,))]
        options = {"stream": STREAM} | PLAIN | options
        return call("CUDA", operands, results, **options).error
    def workspace(a, b, *others, **options):
        options = PLAIN | options
        return _core.xla_workspace(
            [("float16", a), ("float16", b), *others], [("float16", (a[-2], b[-1]))],
            (options["a_is_transposed"], options["b_is_transposed"]), "float32",
            options["epilogue"], False, True,
        )
    """
)


def run(script):
    return stand_in.run(PRELUDE + textwrap.dedent(script))


def test_a_call_launches_on_the_stream_of_xla():
    run(
        """
        assert product((128, 256), (256, 64)) is None
        assert device.launches() == 1 and device.library.stand_in_last_stream() == STREAM
        """
    )


def test_the_stage_initialize_compiles_so_that_the_next_stage_can_be_captured():
    run(
        """
        assert product((128, 256), (256, 64), stage=INITIALIZE) is None
        assert device.launches() == 0 and device.library.stand_in_libraries() == 1
        device.library.stand_in_capture(1)
        assert product((128, 256), (256, 64)) is None
        assert device.launches() == 1 and device.library.stand_in_libraries() == 1
        """
    )


def test_a_transposed_operand_is_read_in_place():
    run(
        """
        sizes = [workspace((16, 256), (256, 64), b_is_transposed=is_) for is_ in (False, True)]
        seen = set()
        for is_ in (False, True):
            error = product((16, 256), (256, 64), workspace=sizes[is_], b_is_transposed=is_)
            assert error is None, error
            p = device.last_parameters()
            seen.add((p.a_stride, p.b_stride))
        assert len(seen) == 2 and device.launches() == 2
        """
    )


def test_workspace_is_the_last_result_and_nothing_is_allocated():
    """Memory that a call allocates would be XLA's or the driver's again when a command buffer is
    replayed. A program that brings too little gets a kernel that needs no more."""
    run(
        """
        shapes = (256, 32768), (32768, 512)
        needed = workspace(*shapes)
        assert needed > 0
        for given in (needed, 0, needed - 1):
            error = product(*shapes, workspace=given, stage=INITIALIZE)
            device.library.stand_in_capture(1)
            error = error or product(*shapes, workspace=given)
            device.library.stand_in_capture(0)
            assert error is None, error
            assert device.library.stand_in_allocations() == 0
        assert workspace((128, 128), (128, 128)) == 0
        """
    )


def test_an_epilogue_on_a_gpu():
    run(
        """
        source = "def epilogue(accum, bias): D = relu(accum + bias); return D"
        for _ in range(2):
            error = product((64, 64), (64, 64), (BIAS, "float16", (64,)), epilogue=source)
            assert error is None, error
        assert device.launches() == 2
        """
    )
