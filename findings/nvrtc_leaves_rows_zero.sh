#!/usr/bin/env bash
# Expected: default member initializers of a class initialize every element of a local
# two-dimensional array of it, as ISO C++ says.
# True: NVRTC 13.2 initializes the first row alone: the elements of the other rows are 0, in PTX,
# without a warning. A one-dimensional array, an array that is itself a member, and a class with a
# constructor are right.
# Seen with: nvidia-cuda-nvrtc 13.2.86, compiled without a GPU: `7` for element `[0][0]`, `0` for
# `[1][0]`, where the initializer is 7.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "nvidia-cuda-nvrtc==${NVRTC:-13.2.86}"
cat > "$folder/demo.py" <<'DEMO'
import ctypes
import re
import sysconfig
from pathlib import Path

SOURCE = b"""
struct Number { unsigned value = 7; };
struct Constructed { unsigned value; __device__ Constructed() : value(7) {} };
#define KERNEL(NAME, TYPE) extern "C" __global__ void NAME(unsigned* out)
KERNEL(rows, Number) { Number a[2][1]; out[0] = a[0][0].value; out[1] = a[1][0].value; }
KERNEL(line, Number) { Number a[2]; out[0] = a[0].value; out[1] = a[1].value; }
KERNEL(made, Constructed) {
  Constructed a[2][1];
  out[0] = a[0][0].value; out[1] = a[1][0].value;
}
"""
[path] = Path(sysconfig.get_paths()["purelib"], "nvidia").rglob("libnvrtc.so.13")
nvrtc = ctypes.CDLL(str(path))
program, size = ctypes.c_void_p(), ctypes.c_size_t()
options = (ctypes.c_char_p * 1)(b"--gpu-architecture=compute_90")
assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), SOURCE, b"demo.cu", 0, None, None) == 0
assert nvrtc.nvrtcCompileProgram(program, 1, options) == 0
nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
ptx = ctypes.create_string_buffer(size.value)
nvrtc.nvrtcGetPTX(program, ptx)

found = {}
for name, body in re.findall(r"\.entry (\w+)\((.*?)\n}", ptx.value.decode(), re.S):
    numbers = dict(re.findall(r"mov\.[ub]32\s+(%r\d+), (\d+);", body))
    found[name] = [numbers.get(x, x) for x in re.findall(r"st\.global\.u32\s+\[.*?\], (\S+);", body)]
print(found)
assert found == {"rows": ["7", "0"], "line": ["7", "7"], "made": ["7", "7"]}, found
DEMO
"$folder/venv/bin/python" "$folder/demo.py"
