"""Users' CUDA C++ kernels: the checks before a launch, its parameters, and the compiler's messages.

Launches go to the stand-in driver; test_gpu_cuda_kernel.py tests what kernels compute.
"""

import re
import textwrap
from pathlib import Path
from typing import ClassVar

import cutlass_api
import pytest
import stand_in
import torch
from cutlass_api import cuda_kernel
from cutlass_api.arguments import ElementwiseArguments
from support.helpers import fake, run_python

SUPPORT = Path(__file__).parents[1] / "support"
SQUARE = "__global__ void square(const float* x, float* out, int n) { *out = *x * n; }"


def compiled(source, name, **options):
    return cuda_kernel(source, name, grid=1, **options).compile(cc=90)


# Compiling.


@pytest.mark.parametrize(
    "source, name",
    [
        (SQUARE, "square"),
        ('extern "C" ' + SQUARE, "square"),
        ("namespace mine { " + SQUARE + " }", "mine::square"),
        (
            "template <class T, int N> __global__ void f(const T* x, T* out) { *out = x[N]; }",
            "f<double, 3>",
        ),
        (
            "using scalar = float; __global__ void f(scalar* x) { helper(x); } "
            "void helper(scalar* x) { *x = 1; }",
            None,
        ),
        (
            '#include "common/types.cuh"\n'
            "__global__ void f(f16* x, e4m3* y) { x[1] = convert<f16>(*y); }",
            "f",
        ),
        ("#ifndef TWO\n#error TWO\n#endif\n__global__ void f(float* x) { *x = TWO; }", "f"),
        ("__global__ void f() {}", "f"),
    ],
)
def test_functions_of_every_kind_compile(source, name):
    if name is None:  # used before it is declared
        with pytest.raises(RuntimeError, match='identifier "helper" is undefined'):
            compiled(source, "f")
        return
    program = compiled(source, name, options=["-DTWO=2"])
    assert program.kernel_name == name
    assert program.architecture == "sm_90a"
    assert program.cubin[:4] == b"\x7fELF"


def test_a_file_is_a_source():
    program = cuda_kernel(SUPPORT / "kernels" / "axpby.cu", "axpby", grid=1).compile(cc=80)
    assert program.architecture == "sm_80"


def test_errors_of_the_compiler_name_the_line_of_this_file():
    kernel = cuda_kernel(
        """
        __global__ void broken(float* x) {
          x[0] = y[0];
        }
        """,
        "broken",
        grid=1,
    )
    with pytest.raises(RuntimeError) as error:
        kernel.compile(cc=90)
    said = re.search(
        r"(\S+)\((\d+)\): error: identifier \"y\" is undefined\n\s+x\[0\] = y\[0\];",
        str(error.value),
    )
    assert said, error.value
    assert Path(said[1]) == Path(__file__)
    assert Path(__file__).read_text().splitlines()[int(said[2]) - 1].strip() == "x[0] = y[0];"
    assert "rutlass_signature" not in str(error.value)


def test_errors_of_the_compiler_name_the_line_of_a_cu_file(tmp_path):
    (tmp_path / "mine.cu").write_text("\n\n__global__ void f(float* x) { *x = 1 }\n")
    with pytest.raises(
        RuntimeError, match=re.escape(f'{tmp_path / "mine.cu"}(3): error: expected a ";"')
    ):
        compiled(tmp_path / "mine.cu", "f")


def test_a_source_made_at_run_time_goes_by_the_function_s_name():
    with pytest.raises(RuntimeError, match=r"f\.cu\(2\): error"):
        compiled("\n".join(["__global__ void f(float* x) {", "*x = y;", "}"]), "f")


@pytest.mark.parametrize(
    "source, name, message",
    [
        (
            SQUARE,
            "cube",
            r'no __global__ function cube; the source has: square.* identifier "cube" is undefined',
        ),
        # Beside a warning, which shows the source.
        (
            f'__device__ void g() {{ const char* s = "error: 3"; }} {SQUARE}',
            "cube",
            "no __global__ function cube",
        ),
        (
            "template <class T> __global__ void f(T* x) {}",
            "f<half>",
            'identifier "half" is undefined',
        ),
        ("// __global__ void g() {}\n/* __global__ void h() {} */", "g", "the source has none"),
        ("int x;", "cube", "the source has none"),
        ("template <class T> __global__ void f(T* x) {}", "f", "A template needs its arguments"),
        ("__global__ void f(float x, int& y) {}", "f", "parameter 2 is a reference"),
        ("struct S { int x; }; __global__ void f(S x) {}", "f", "parameter 1 is the class S"),
        (
            "struct S { int x; }; __global__ void f(S* x) {}",
            "f",
            "pointer to the class S, .*declare void. and cast",
        ),
        (
            "struct f16 { float x; }; __global__ void f(float* x, const f16* y) {}",
            "f",
            r'2 is a pointer to the source.s own class f16, not f16 of "common/types.cuh", which '
            r"no tensor holds \(declare void\* and cast\)",
        ),
        (
            "typedef struct { int x; } bf16; __global__ void f(bf16* x) {}",
            "f",
            "the source's own class bf16",
        ),
        (
            "struct e4m3 { char x; }; struct e5m2 { e4m3 x; }; __global__ void f(e5m2* x) {}",
            "f",
            "the source's own class e5m2",
        ),
        (
            "namespace mine { struct f16 { float x; }; } __global__ void f(mine::f16* x) {}",
            "f",
            r"a pointer to the class mine::f16, which no tensor holds \(declare void\* and cast\)",
        ),
        (
            "struct TensorMap { void* x; }; __global__ void f(const TensorMap x) {}",
            "f",
            'parameter 1 is the source.s own class TensorMap, not TensorMap of "common/tma.cuh"',
        ),
        ("__global__ void f(float** x) {}", "f", "a pointer to a type that no tensor holds"),
    ],
)
def test_functions_that_cannot_be_launched(source, name, message):
    with pytest.raises(ValueError, match=message):
        compiled(source, name)


@pytest.mark.parametrize("option", ["-dlto", "-rdc=true", "-dc"])
def test_what_is_yet_to_be_linked_is_refused(option):
    with pytest.raises(RuntimeError, match=r"remove the options -dlto, -rdc and -dc"):
        compiled(SQUARE, "square", options=[option])


@pytest.mark.parametrize(
    "source, options",
    [
        (SQUARE, ["--std=c++11"]),
        (f"{SQUARE} template <class T>", []),
        (f"{SQUARE} int rutlass_signature;", []),
    ],
)
def test_what_stands_in_the_way_of_reading_the_parameters_is_named(source, options):
    with pytest.raises(RuntimeError, match=r"use C\+\+14 or later, end the source"):
        compiled(source, "square", options=options)


@pytest.mark.parametrize(
    "geometry, error, message",
    [
        ({"grid": 1, "block": 1025}, ValueError, r"block is \[1025, 1, 1\], 1025 threads"),
        ({"grid": 1, "block": (1, 1, 65)}, ValueError, "at most 64 along z"),
        ({"grid": 1, "block": 0}, ValueError, "0 threads"),
        ({"grid": 1, "cluster": 9}, ValueError, "cluster is .* 9 blocks"),
        ({"grid": (1, 2, 3, 4)}, TypeError, "grid is .* one to three"),
        ({"grid": "1"}, TypeError, "grid is '1'; pass an int"),
        ({"grid": 1.5}, TypeError, "grid is 1.5"),
        ({"grid": -1}, TypeError, "grid is -1"),
        ({"grid": 1, "shared_bytes": -1}, ValueError, "shared_bytes is -1; pass a number of bytes"),
        (
            {"grid": 1, "options": "-DX"},
            TypeError,
            r"options is the string '-DX'; pass a list of options: \['-DX'\]",
        ),
    ],
)
def test_bad_geometry(geometry, error, message):
    with pytest.raises(error, match=message):
        cuda_kernel(SQUARE, "square", **geometry)


def test_compiled_once_for_all_processes(tmp_path):
    code = f"""
        import sys, time
        import cutlass_api
        kernel = cutlass_api.cuda_kernel({SQUARE!r}, "square", grid=1)
        start = time.perf_counter()
        kernel.compile(cc=90)
        print(time.perf_counter() - start)
    """
    cold = float(run_python(code, CUTLASS_API_CACHE_DIR=str(tmp_path)))
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    written = file.stat().st_ino
    warm = float(run_python(code, CUTLASS_API_CACHE_DIR=str(tmp_path)))
    print(f"cold {1e3 * cold:.1f} ms, warm {1e3 * warm:.1f} ms")
    assert file.stat().st_ino == written
    assert cold < 1


def test_a_changed_header_is_seen(tmp_path):
    header = tmp_path / "include" / "number.h"
    header.parent.mkdir()
    source = '#include "outer.h"\n__global__ void f(int* x) { *x = NUMBER; }'
    (tmp_path / "outer.h").write_text("#include <number.h>\n")
    (tmp_path / "mine.cu").write_text(source)
    cubins = []
    for number in (1, 2, 1):
        header.write_text(f"#define NUMBER {number}\n")
        cubins.append(compiled(tmp_path / "mine.cu", "f", options=[f"-I{header.parent}"]).cubin)
    assert cubins[0] == cubins[2] != cubins[1]


@pytest.mark.parametrize(
    "include",
    [
        '/* a\n comment */ #include "number.h" // and another',
        '#/**/include "number.h"',
        '#\\\ninclude "number.h"',
        '%: include "number.h"',
        "#include <.//number.h> // and so on",
        'const char* s = R"x(a " /* b)x";\n#include "number.h"',
        'const char* s = R"(\n/*\n)";\n#include "number.h"',
        'const int c = U\'"\'; /*\n*/ #include "number.h"',
        '#if __has_include("number.h")\n#include "number.h"\n#else\n#define NUMBER 0\n#endif',
    ],
)
def test_a_changed_header_is_seen_however_it_is_included(tmp_path, include):
    (tmp_path / "mine.cu").write_text(f"{include}\n__global__ void f(int* x) {{ *x = NUMBER; }}")
    cubins = []
    for number in (1, 2, None):
        header = tmp_path / "number.h"
        header.unlink(missing_ok=True) if number is None else header.write_text(
            f"#define NUMBER {number}\n"
        )
        if number or "__has_include" in include:
            cubins.append(compiled(tmp_path / "mine.cu", "f", options=[f"-I{tmp_path}"]).cubin)
    assert len(set(cubins)) == len(cubins)


def test_headers_that_include_each_other_are_read_once(tmp_path):
    for folder, others in {"a": "bc", "b": "a", "c": "a"}.items():
        lines = [f'#include "../{other}/{other}.h"' for other in others]
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{folder}.h").write_text("\n".join(["#pragma once", *lines]))
    compiled(f'#include "a/a.h"\n{SQUARE}', "square", options=[f"-I{tmp_path}"])


def test_a_file_that_begins_with_a_mark_of_its_encoding(tmp_path):
    (tmp_path / "mine.cu").write_text(SQUARE, encoding="utf-8-sig")
    compiled(tmp_path / "mine.cu", "square")


@pytest.mark.parametrize("option", ["--pre-include={}", "-include={}"])
def test_a_changed_header_of_an_option_is_seen(tmp_path, option):
    header, cubins = tmp_path / "number.h", []
    for number in (1, 2, 1):
        header.write_text(f"#define NUMBER {number}\n")
        source = "__global__ void f(int* x) { *x = NUMBER; }"
        cubins.append(compiled(source, "f", options=[option.format(header)]).cubin)
    assert cubins[0] == cubins[2] != cubins[1]


def test_an_include_by_macro_is_not_kept_on_disk(tmp_path):
    (tmp_path / "mine.cu").write_text(
        '#define WHICH "number.h"\n#include WHICH\n__global__ void f(int* x) { *x = N; }'
    )
    code = f"""
        import pathlib
        import cutlass_api
        source = pathlib.Path({str(tmp_path / "mine.cu")!r})
        print(hash(cutlass_api.cuda_kernel(source, "f", grid=1).compile(cc=90).cubin))
    """
    said = []
    for number in (1, 2):
        (tmp_path / "number.h").write_text(f"#define N {number}\n")
        said.append(
            run_python(code, CUTLASS_API_CACHE_DIR=str(tmp_path / "cache"), PYTHONHASHSEED="0")
        )
    assert said[0] != said[1]


# Launching.

PRELUDE = textwrap.dedent(
    """
    import ctypes, struct
    import cutlass_api
    from cutlass_api import cuda_kernel
    from stand_in import device
    from stand_in.device import FLOAT, INT, Tensor

    X, OUT = 0x10000000, 0x30000000
    def f32(data, *shape, device=0):
        return Tensor(data, shape, bits=32, device=device)
    x, out = f32(X, 6, 128), f32(OUT, 6, 128)
    device.library.stand_in_set_current_stream(ctypes.c_uint64(0x5010))
    device.expect_words(1)
    def as_float(word):
        return struct.unpack("<f", struct.pack("<I", word & 0xFFFFFFFF))[0]
    def raises(kind, *words):
        class Check:
            def __enter__(self):
                self.before = device.launches()
            def __exit__(self, given, error, trace):
                assert given is not None, "nothing was raised"
                assert issubclass(given, kind), error
                missing = [word for word in words if word not in str(error)]
                assert not missing, (missing, str(error))
                assert device.launches() == self.before
                return True
        return Check()
    """
)


def run(script):
    return stand_in.run(PRELUDE + textwrap.dedent(script))


def test_a_launch_carries_every_parameter():
    run(
        """
        kernel = cuda_kernel(
            "__global__ void f(const float* x, float* out, int n, long long big, float alpha,"
            " double beta, bool on, unsigned char small, const void* any, float* none) {}",
            "f", grid=lambda x, out, n, *rest: (n, 2, 3), block=(16, 4, 2), shared_bytes=4096)
        device.expect_words(10)
        kernel(x, out, -5 + 12, -(2**40), 0.5, 0.1, True, 255, x, None)
        grid, block, cluster, shared, words = device.last_launch(10)
        assert (grid, block, cluster, shared) == ((7, 2, 3), (16, 4, 2), (1, 1, 1), 4096)
        assert words[:3] == (X, OUT, 7)
        assert words[3] == 2**64 - 2**40
        assert as_float(words[4]) == 0.5 and struct.pack("<Q", words[5]) == struct.pack("<d", 0.1)
        assert words[6:] == (1, 255, X, 0)
        assert device.library.stand_in_last_stream() == 0x5010, "torch's current one"
        kernel(x, out, 1, 0, 1, 2, False, 0, None, None, stream=0x5020)
        assert device.library.stand_in_last_stream() == 0x5020
        assert as_float(device.last_launch(10).words[4]) == 1, "an int is a number, too"
        """
    )


def test_a_typedef_may_have_the_name_of_an_element_type():
    run(
        """
        half = Tensor(X, (6, 128))
        mine = cuda_kernel("using f16 = float; __global__ void f(f16* x) {}", "f", grid=1)
        mine(x)
        with raises(TypeError, "x of f points to float32, and the tensor has dtype float16"):
            mine(half)
        source = '#include "common/types.cuh"\\n__global__ void f(f16* x) {}'
        own = cuda_kernel(source, "f", grid=1)
        own(half)
        with raises(TypeError, "x of f points to f16, and the tensor has dtype float32"):
            own(x)
        # A struct that is cast to takes a tensor of any element type.
        source = "struct f16 { float x; }; __global__ void f(void* x) { ((f16*)x)->x = 1; }"
        cuda_kernel(source, "f", grid=1)(x)
        """
    )


def test_clusters():
    run(
        """
        kernel = cuda_kernel("__global__ void f(float* x) {}", "f", grid=(8, 4), cluster=(2, 2))
        kernel(x)
        assert device.last_launch(1).cluster == (2, 2, 1)
        with raises(ValueError, "grid [3, 1, 1] is not a multiple of cluster [2, 1, 1]"):
            cuda_kernel("__global__ void f(float* x) {}", "f", grid=3, cluster=2)(x)
        """
    )


def test_clusters_need_hopper():
    run(
        """
        device.library.stand_in_set_capability(80)
        with raises(ValueError, "cluster is [2, 1, 1]", "8.0"):
            cuda_kernel("__global__ void f(float* x) {}", "f", grid=4, cluster=2)(x)
        """
    )


MAP = """
    MAP = '#include "common/tma.cuh"\\n__global__ void f(const __grid_constant__ TensorMap map) {}'
    def described(map):
        # Type, swizzle, address, extents, strides and box of the map that the launch passes.
        device.expect_words(0)
        device.library.stand_in_expect(128)
        cuda_kernel(MAP, "f", grid=1)(map)
        raw = ctypes.string_at(device.library.stand_in_last_parameters(), 108)
        kind, swizzle, address, *more = struct.unpack("<2iQ5Q4Q5I", raw)
        return kind, swizzle, address, more[:5], more[5:9], more[9:]
"""


def run_with_map(script):
    return run(textwrap.dedent(MAP) + textwrap.dedent(script))


def test_a_tensor_map_describes_its_tensor():
    run_with_map(
        """
        from cutlass_api import TensorMap
        half = Tensor(X, (6, 128))
        assert repr(TensorMap(half, (4, 64))) == (
            "<TensorMap float16[6, 128], box=[4, 64], swizzle=0, on cuda:0>"
        )
        # CUDA's float16 is type 6, and its swizzle of 128 bytes is 3.
        assert described(TensorMap(half, [4, 64], swizzle=128)) == (
            6, 3, X, [128, 6, 1, 1, 1], [256, 0, 0, 0], [64, 4, 1, 1, 1])
        batch = Tensor(X + 16, (5, 6, 128), strides=(2048, 256, 1))
        assert described(TensorMap(batch, (1, 4, 16), swizzle=32)) == (
            6, 1, X + 16, [128, 6, 5, 1, 1], [512, 4096, 0, 0], [16, 4, 1, 1, 1])
        # The stride of an extent of 1 is never used.
        row = Tensor(X, (1, 20), strides=(3, 1))
        assert described(TensorMap(row, (1, 8)))[3:5] == ([20, 1, 1, 1, 1], [48, 0, 0, 0])
        assert described(TensorMap(f32(X, 7), (4,))) == (
            7, 0, X, [7, 1, 1, 1, 1], [0] * 4, [4, 1, 1, 1, 1])
        args = cutlass_api.arguments.ElementwiseArguments(half, half, Tensor(OUT, (6, 128)))
        assert described(TensorMap(args.A, (1, 8)))[2] == X
        """
    )


def test_a_tensor_map_follows_its_tensor():
    run_with_map(
        """
        half = Tensor(X, (6, 128))
        map = cutlass_api.TensorMap(half, (4, 64))
        half.describe(OUT, (6, 128))
        assert described(map)[2] == OUT
        half.describe(OUT, (6, 120))
        with raises(ValueError, "the tensor of map of f has another shape", "a new TensorMap"):
            described(map)
        """
    )


def test_tensor_maps_and_other_arguments_are_not_exchanged():
    run_with_map(
        """
        half = Tensor(X, (6, 128))
        map, f = cutlass_api.TensorMap(half, (4, 64)), cuda_kernel(MAP, "f", grid=1)
        for wrong, what in [(half, "a tensor"), (None, "None"), (3, "3")]:
            with raises((TypeError, ValueError), *(
                ["no tensor among the arguments"] if what != "a tensor" else
                ["map of f is a tensor map, and the argument is a tensor; pass "
                 "cutlass_api.TensorMap(tensor, box)"])):
                f(wrong)
        square = cuda_kernel("__global__ void g(const float* x, int n) {}", "g", grid=1)
        with raises(TypeError, "x of g is a pointer, and the argument is a TensorMap"):
            square(map, 1)
        with raises(TypeError, "n of g is a number (int32), and the argument is a TensorMap"):
            square(x, map)
        two = cuda_kernel(MAP.replace("map)", "map, const float* x)"), "f", grid=1)
        with raises(ValueError, "map of f is on cuda:0, and x of f on cuda:1"):
            two(map, f32(X, 4, device=1))
        """
    )


@pytest.mark.parametrize(
    "shape, box, options, message",
    [
        ((6, 128), (4,), {}, r"box \[4\] has 1 extents, and the tensor has rank 2"),
        ((), (), {}, "the tensor has rank 0"),
        ((6, 128), (4, 257), {}, r"box is \[4, 257\]; its extents are 1 to 256"),
        ((6, 128), (0, 64), {}, r"box is \[0, 64\]"),
        ((0, 128), (4, 64), {}, r"the tensor has shape \[0, 128\]; extents are 1 to 2\^32"),
        ((6, 128), (4, 4), {}, "a row of the box has 8 bytes; pass a multiple of 16"),
        ((6, 128), (4, 128), {"swizzle": 128}, "swizzle is 128, and a row of the box has 256"),
        ((6, 128), (4, 8), {"swizzle": 16}, "swizzle is 16"),
        ((6, 100), (4, 8), {}, "a stride of 200 bytes; TMA needs positive multiples of 16"),
    ],
)
def test_tensors_and_boxes_that_tma_cannot_address(shape, box, options, message):
    tensor = torch.zeros(shape, dtype=torch.float16)
    with pytest.raises(ValueError, match=message):
        cutlass_api.TensorMap(tensor, box, **options)


def test_layouts_and_types_that_tma_cannot_address():
    matrix = torch.zeros(64, 64, dtype=torch.float16)
    with pytest.raises(ValueError, match="last dimension has stride 64, and TMA needs 1"):
        cutlass_api.TensorMap(matrix.T, (8, 8))
    with pytest.raises(ValueError, match=r"begins at 0x.*, and TMA needs a multiple of 16 bytes"):
        cutlass_api.TensorMap(matrix[:, 4:], (8, 8))
    with pytest.raises(ValueError, match="dtype int64, which TMA does not copy"):
        cutlass_api.TensorMap(matrix.long(), (8, 8))
    with pytest.raises(TypeError, match="box is 8; pass a tuple of ints"):
        cutlass_api.TensorMap(matrix, 8)
    with pytest.raises(TypeError, match="tensor"):
        cutlass_api.TensorMap("a tensor", (8, 8))


def test_a_tensor_map_of_a_fake_tensor_compiles():
    map = cutlass_api.TensorMap(fake(64, 64), (8, 64))
    source = '#include "common/tma.cuh"\n__global__ void f(const __grid_constant__ TensorMap m) {}'
    kernel = cuda_kernel(source, "f", grid=1)
    assert kernel.compile(map, cc=90).architecture == "sm_90a"


def test_arguments_that_do_not_fit_are_refused_by_name():
    run(
        """
        square = cuda_kernel(
            "__global__ void square(const float* x, float* out, int n) {}", "square", grid=1
        )
        half = Tensor(X, (6, 128))
        with raises(
            TypeError, "x of square points to float32", "dtype float16", "pass one of float32"
        ):
            square(half, out, 1)
        with raises(TypeError, "square takes 3 arguments (x, out, n), and 2 were passed"):
            square(x, out)
        computed = cuda_kernel("__global__ void f(float* x, int n) {}", "f", grid=lambda x, n: n)
        with raises(TypeError, "f takes 2 arguments (x, n), and 1 were passed"):
            computed(x)
        with raises(TypeError, "n of square is int32, and the argument is 1.5; pass an int"):
            square(x, out, 1.5)
        with raises(TypeError, "n of square is int32, and the argument is 'three'"):
            square(x, out, "three")
        with raises(OverflowError, "n of square is int32, which does not hold 2147483648"):
            square(x, out, 2**31)
        with raises(OverflowError, "n of square is int32"):
            square(x, out, 2**80)
        with raises(TypeError, "n of square is a number (int32), and the argument is a tensor"):
            square(x, out, x)
        with raises(TypeError, "n of square is a number (int32), and the argument is None"):
            square(x, out, None)
        with raises(TypeError, "x of square is a pointer, and the argument is 3; pass a tensor"):
            square(3, out, 1)
        with raises(ValueError, "x of square is on cuda:0, and out of square on cuda:1"):
            square(x, f32(OUT, 6, 128, device=1), 1)
        with raises(ValueError, "no tensor among the arguments"):
            square(None, None, 1)
        """
    )


def test_numbers_that_their_type_does_not_hold():
    run(
        """
        f = cuda_kernel(
            "__global__ void f(float* x, float a, unsigned b, signed char c, bool d) {}",
            "f",
            grid=1,
        )
        device.expect_words(5)
        f(x, float("inf"), 2**32 - 1, -128, True)
        assert device.last_launch(5).words[2] == 2**32 - 1
        with raises(ValueError, "cc is -1; pass ten times major plus minor"):
            f.compile(cc=-1)
        with raises(OverflowError, "a of f is float32, which does not hold 1e+300"):
            f(x, 1e300, 0, 0, True)
        with raises(OverflowError, "b of f is uint32, which does not hold -1"):
            f(x, 0, -1, 0, True)
        with raises(OverflowError, "c of f is int8, which does not hold 128"):
            f(x, 0, 0, 128, True)
        with raises(TypeError, "d of f is bool, and the argument is 1; pass True or False"):
            f(x, 0, 0, 0, 1)
        """
    )


def test_numpy_numbers_and_tensors_of_any_rank():
    run(
        """
        import numpy
        f = cuda_kernel("__global__ void f(float* x, int n, float a) {}", "f", grid=1)
        device.expect_words(3)
        f(f32(X, 2, 3, 4), numpy.int64(7), numpy.float32(0.25))
        words = device.last_launch(3).words
        assert words[1] & 0xFFFFFFFF == 7 and as_float(words[2]) == 0.25
        """
    )


def test_memory_that_a_pointer_alone_does_not_describe():
    run(
        """
        source = "__global__ void f(const float4* x) {}"
        f = cuda_kernel(source, "f", grid=1)
        f(x)
        with raises(
            ValueError,
            "x of f points to float4, which the kernel reads at multiples of 16 bytes",
            hex(X + 4),
        ):
            f(f32(X + 4, 8))
        two = ctypes.c_int64 * 2
        device.library.stand_in_describe(
            ctypes.c_void_p(id(x)), ctypes.c_uint64(X), 0, 2, 2, 32, two(128, 6), two(1, 128))
        with raises(ValueError, "x of f is not contiguous", "contiguous=False"):
            f(x)
        cuda_kernel(source, "f", grid=1, contiguous=False)(x)
        """
    )


def test_grids_of_nothing():
    run(
        """
        kernel = cuda_kernel(
            "__global__ void f(float* x, int n) {}", "f", grid=lambda x, n: n // 256
        )
        with raises(ValueError, "grid is [0, 1, 1], so the launch would compute nothing; round up"):
            kernel(x, 100)
        before = device.launches()
        kernel(f32(X, 0, 5), 0)
        assert device.launches() == before, "an empty tensor: nothing to do, and no error"
        with raises(ValueError, "grid is [1, 65536, 1]", "65535"):
            cuda_kernel("__global__ void f(float* x) {}", "f", grid=(1, 65536))(x)
        with raises(ZeroDivisionError):
            cuda_kernel("__global__ void f(float* x) {}", "f", grid=lambda x: 1 // 0)(x)
        """
    )


def test_the_tensors_device_is_used():
    run(
        """
        kernel = cuda_kernel("__global__ void f(float* x) {}", "f", grid=1)
        kernel(f32(X, 8, device=1), stream=0x6010)
        assert device.library.stand_in_last_context() == 0xC1
        assert device.library.stand_in_open_contexts() == 0
        with raises(ValueError, "stream 0x5010 belongs to another device"):
            kernel(f32(X, 8, device=1), stream=0x5010)
        """
    )


def test_a_failing_launch_has_cuda_s_name():
    run(
        """
        kernel = cuda_kernel("__global__ void f(float* x) {}", "f", grid=1)
        kernel.compile(x)
        device.fail("cuLaunchKernelEx")
        with raises(RuntimeError, "CUDA_ERROR_LAUNCH_FAILED"):
            kernel(x)
        """
    )


def test_another_function_s_program_is_refused():
    run(
        """
        one, other = (
            cuda_kernel(
                "__global__ void f(const float* x, float* out) { *out = *x + %d; }" % add,
                "f",
                grid=1,
            )
            for add in (1, 2)
        )
        try:
            one.launch((x, out), 1, None, other.compile())
        except ValueError as error:
            assert "pass the one that compile() of f returned" in str(error), error
        else:
            raise AssertionError("another program was launched")
        one.launch((x, out), 1, None, one.compile())
        assert device.launches() == 1
        """
    )


def test_after_compile_a_call_loads_nothing():
    run(
        """
        kernel = cuda_kernel("__global__ void f(float* x) {}", "f", grid=1)
        assert kernel.compile().architecture == "sm_90a"
        loaded = device.library.stand_in_libraries()
        kernel(x)
        assert device.library.stand_in_libraries() == loaded
        """
    )


def test_tensors_on_the_cpu_and_fake_ones():
    kernel = cuda_kernel(SQUARE, "square", grid=1)
    with pytest.raises(ValueError, match="on the CPU, and square runs on a CUDA device"):
        kernel(torch.ones(3), torch.ones(3), 3)
    described = fake(4, 4, dtype=torch.float32)
    assert kernel.compile(described, described, 3, cc=90).architecture == "sm_90a"


# A kernel with metadata.


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
        def found(*tensors, **more):
            args = ElementwiseArguments(*tensors)
            return [
                k
                for k in cutlass_api.get_kernels(args, **more)
                if k.metadata.kernel_name == "axpby_f32"
            ]
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
        try:
            kernel.run(args, artifact)
        except (ValueError, RuntimeError) as error:
            assert "FakeTensor" in str(error) or "CUDA" in str(error), error
        else:
            raise AssertionError("ran without memory")
        try:
            artifact.to_bytes()
        except ValueError as error:
            assert "the kernel of this artifact is written in Python" in str(error), error
    """
    run_python(code, PYTHONPATH=f"{Path(cutlass_api.__file__).parent.parent}:{SUPPORT.parent}")


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
        with raises(ValueError, "compiled_artifact is of another kernel", "axpby_f32", "other"):
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
