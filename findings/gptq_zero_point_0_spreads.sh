#!/usr/bin/env bash
# Expected: `QuantLinear.pack` of AutoGPTQ stores the zero point of each column, minus 1 and in 4
# bits, beside those of other columns.
# True: it does not mask the -1 of a zero point of 0: its ones fill the zero points of the other
# columns in the word, without an error. AutoGPTQ reads 15 + 1 as 0, so that a zero point of 16 is
# lost, too.
# Seen with: auto-gptq 0.7.1 (its wheels need CPython 3.11 or older), torch 2.15.0 and transformers
# 5.24.0 on a CPU: "zero point 0 in column 0: stored 0xffffffff, columns 1 to 7 are off by 5; zero
# point 16: column 0 is off by 16".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet uv
install() { "$folder/venv/bin/uv" pip install --quiet --python "$folder/venv/bin/python" "$@"; }
install torch==2.15.0 transformers==5.24.0 numpy
install --no-deps --only-binary :all: auto-gptq==0.7.1
cat > "$folder/demo.py" <<'EOF_DEMO'
import importlib
import importlib.util
import sys
import types

import torch

# The packages without their __init__, which imports names that transformers no longer has.
for name in ("auto_gptq", "auto_gptq.nn_modules", "auto_gptq.nn_modules.qlinear"):
    stub = types.ModuleType(name)
    stub.__path__ = list(importlib.util.find_spec(name).submodule_search_locations)
    sys.modules[name] = stub
module = importlib.import_module("auto_gptq.nn_modules.qlinear.qlinear_cuda_old")


def packed(zero_point):
    """A layer of 32 x 32 with scales of 1 and zero points of 5, but for the first column."""
    torch.manual_seed(0)
    zeros = torch.full((32, 1), 5.0)
    zeros[0] = zero_point
    linear = torch.nn.Linear(32, 32, bias=False)
    linear.weight.data = torch.randint(16, (32, 32)).float() - zeros
    layer = module.QuantLinear(4, 32, 32, 32, False)
    layer.pack(linear, torch.ones(32, 1), zeros.clone(), None)
    off = (layer(torch.eye(32)).t() - linear.weight).abs().amax(1)
    return hex(int(layer.qzeros[0, 0]) & 0xFFFFFFFF), off.int().tolist()


word, off = packed(0)
_, other = packed(16)
print(f"zero point 0 in column 0: stored {word}, columns 1 to 7 are off by {off[1]}; "
      f"zero point 16: column 0 is off by {other[0]}")
assert word == "0xffffffff" and off == [0] + [5] * 7 + [0] * 24, (word, off)
assert other == [16] + [0] * 31, other
EOF_DEMO
"$folder/venv/bin/python" -W ignore "$folder/demo.py"
