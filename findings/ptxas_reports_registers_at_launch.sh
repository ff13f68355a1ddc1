#!/usr/bin/env bash
# Expected: ptxas reports the most registers that a thread of a kernel uses.
# True: it reports those at the launch, also of a kernel whose warps take more by `setmaxnreg`: 168
# for code that uses 230, without a spill. Without the instruction, the same kernel is reported with
# the same number, and spills.
# Seen with: nvidia-cuda-nvrtc 13.2.86 and nvidia-cuda-nvdisasm 13.5.37, compiled for sm_90a without
# a GPU: "with setmaxnreg: reported 168, used 230, spilled no; without: 168, 166, yes".
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
from pathlib import Path

CUDA = next(Path(sys.prefix).glob("lib/python*/site-packages/nvidia/cu13"))
nvrtc = ctypes.CDLL(CUDA / "lib/libnvrtc.so.13")
# Of 384 threads, 256 hold 200 sums each; the others end. A thread has 168 registers at the launch.
SOURCE = """
extern "C" __global__ void __launch_bounds__(384, 1) demo(float* out, const float* in, int steps) {
  if (threadIdx.x >= 256) { SHRINK return; }
  GROW
  float sums[200];
#pragma unroll
  for (int i = 0; i < 200; ++i) sums[i] = in[i * 256 + threadIdx.x];
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    const float factor = in[step];
#pragma unroll
    for (int i = 0; i < 200; ++i) sums[i] = sums[i] * factor + 1.0f;
  }
#pragma unroll
  for (int i = 0; i < 200; ++i) out[i * 256 + threadIdx.x] = sums[i];
}
"""
SHRINK = 'asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");'
GROW = 'asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");'


def text(program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    assert getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    found = ctypes.create_string_buffer(size.value)
    assert getattr(nvrtc, f"nvrtcGet{what}")(program, found) == 0
    return found.raw


def registers(shrink: str, grow: str) -> tuple[int, int, bool]:
    """What ptxas reports, what the machine code names, and whether it spills."""
    source = SOURCE.replace("SHRINK", shrink).replace("GROW", grow).encode()
    program = ctypes.c_void_p()
    created = nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, b"demo.cu", 0, None, None)
    options = [b"--gpu-architecture=sm_90a", b"--ptxas-options=--verbose"]
    status = nvrtc.nvrtcCompileProgram(program, 2, (ctypes.c_char_p * 2)(*options))
    log = text(program, "ProgramLog").decode()
    assert created == status == 0, log
    path = Path(sys.argv[1]) / "demo.cubin"
    path.write_bytes(text(program, "CUBIN"))
    command = [CUDA / "bin/nvdisasm", "-c", path]
    code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    used = 1 + max(map(int, re.findall(r"\bR(\d+)\b", code)))
    reported = re.search(r"Used (\d+) registers", log)
    assert reported is not None, log
    return int(reported[1]), used, "STL" in code


found = registers(SHRINK, GROW), registers("", "")
print("reported, used, spilled: with setmaxnreg", found[0], "without", found[1])
assert found == ((168, 230, False), (168, 166, True)), found
DEMO
"$folder/venv/bin/python" "$folder/demo.py" "$folder"
