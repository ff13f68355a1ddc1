"""Users' CUDA C++ kernels: the checks before a launch, its parameters, and the compiler's messages.

Launches go to the stand-in driver; test_gpu_cuda_kernel.py tests what kernels compute.
"""

import re
from pathlib import Path

import pytest
from cutlass_api import cuda_kernel
from support import SUPPORT
from support.cuda_launches import SQUARE
from support.helpers import run_python


def compiled(source, name, **options):
    return cuda_kernel(source, name, grid=1, **options).compile(cc=90)


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


def assert_follows(header, source, option):
    """A changed number in a header is seen."""
    cubins = []
    for number in (1, 2, 1):
        header.write_text(f"#define NUMBER {number}\n")
        cubins.append(compiled(source, "f", options=[option]).cubin)
    assert cubins[0] == cubins[2] != cubins[1]


def test_a_changed_header_is_seen(tmp_path):
    header = tmp_path / "include" / "number.h"
    header.parent.mkdir()
    source = '#include "outer.h"\n__global__ void f(int* x) { *x = NUMBER; }'
    (tmp_path / "outer.h").write_text("#include <number.h>\n")
    (tmp_path / "mine.cu").write_text(source)
    assert_follows(header, tmp_path / "mine.cu", f"-I{header.parent}")


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
    file, option = tmp_path / "mine.cu", f"-I{tmp_path}"
    file.write_text(f"{include}\n__global__ void f(int* x) {{ *x = NUMBER; }}")
    assert_follows(tmp_path / "number.h", file, option)
    if "__has_include" in include:
        before = compiled(file, "f", options=[option]).cubin
        (tmp_path / "number.h").unlink()
        assert compiled(file, "f", options=[option]).cubin != before


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
    header, source = tmp_path / "number.h", "__global__ void f(int* x) { *x = NUMBER; }"
    assert_follows(header, source, option.format(header))


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
