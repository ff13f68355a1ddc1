#!/usr/bin/env bash
# Expected: PTX's `mma.sync` of float8 is an instruction of the tensor cores on every chip that it
# compiles for, and faster than the same product of float16 operands.
# True: on 8.9 and 12.x it is one instruction, QMMA. On 9.0, 10.x and 11.0 it is conversions to
# float16 and two HMMA, whose sums additions join: more work than the product of float16 operands.
# The compiler does not say so.
# Seen with: nvidia-cuda-nvrtc 13.2.86 and nvidia-cuda-nvdisasm 13.5.37, without a GPU: one
# instruction of QMMA for 8.9, 12.0 and 12.1; two of HMMA, four FADD and conversions (F2FP) for 9.0,
# 10.0, 10.3 and 11.0; the log of the compiler is empty.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "nvidia-cuda-nvrtc==${NVRTC:-13.2.86}" \
  nvidia-cuda-nvdisasm==13.5.37
cat > "$folder/demo.py" <<'DEMO'
import ctypes
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

CUDA = next(Path(sys.prefix).glob("lib/python*/site-packages/nvidia/cu13"))
nvrtc = ctypes.CDLL(CUDA / "lib/libnvrtc.so.13")
# Fragments of a lane: four words of A, two of B, four sums.
SOURCE = b"""
extern "C" __global__ void demo(float* sums, const unsigned* a, const unsigned* b) {
  const int lane = threadIdx.x;
  float d[4];
  for (int i = 0; i < 4; ++i) d[i] = sums[4 * lane + i];
  asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[4 * lane]), "r"(a[4 * lane + 1]), "r"(a[4 * lane + 2]),
                 "r"(a[4 * lane + 3]), "r"(b[2 * lane]), "r"(b[2 * lane + 1]));
  for (int i = 0; i < 4; ++i) sums[4 * lane + i] = d[i];
}
"""


def text(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    assert getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    found = ctypes.create_string_buffer(size.value)
    assert getattr(nvrtc, f"nvrtcGet{what}")(program, found) == 0
    return found.raw


def counts(chip: int) -> tuple[int, int, int, bool]:
    """The instructions QMMA, HMMA and FADD of a chip's code, and whether it converts."""
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), SOURCE, b"demo.cu", 0, None, None) == 0
    options = (ctypes.c_char_p * 1)(b"--gpu-architecture=sm_%d" % chip)
    status = nvrtc.nvrtcCompileProgram(program, 1, options)
    log = text(program, "ProgramLog").rstrip(b"\0").decode()
    assert status == 0 and log == "", log
    file = Path(f"demo{chip}.cubin")
    file.write_bytes(text(program, "CUBIN"))
    command = [next(CUDA.glob("bin/nvdisasm")), file]
    code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = Counter(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+ )?(\w+)", code, re.M))
    return names["QMMA"], names["HMMA"], names["FADD"], names["F2FP"] > 0


for chip in (89, 120, 121):
    found = counts(chip)
    print(chip, found)
    assert found == (1, 0, 0, False)
for chip in (90, 100, 103, 110):
    found = counts(chip)
    print(chip, found)
    assert found == (0, 2, 4, True)
DEMO
cd "$folder" && venv/bin/python demo.py
