#!/usr/bin/env bash
# Expected: safetensors' `save_model`, which is made for models whose tensors share memory, writes
# two buffers that are disjoint parts of one storage, as the halves of `torch.Tensor.split` are.
# True: it refuses them: "no suitable name to keep". `save_file`, which refuses tensors that
# overlap, writes the same state_dict, and `load_file` returns both parts.
# Seen with: safetensors 0.8.0 and torch 2.15.0: `save_file` writes, `save_model` raises
# RuntimeError.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet uv
"$folder/venv/bin/uv" pip install --quiet --python "$folder/venv/bin/python" \
    safetensors==0.8.0 torch==2.15.0 numpy
cat > "$folder/demo.py" <<'EOF'
import sys
from pathlib import Path

import safetensors
import torch
from safetensors.torch import load_file, save_file, save_model


class Pair(torch.nn.Module):
    def __init__(self):
        super().__init__()
        first, second = torch.arange(12.0).view(6, 2).split((4, 2))
        self.register_buffer("first", first)
        self.register_buffer("second", second)


pair, folder = Pair(), Path(sys.argv[1])
save_file(pair.state_dict(), folder / "by_save_file")
loaded = load_file(folder / "by_save_file")
assert all(torch.equal(loaded[name], value) for name, value in pair.state_dict().items())
try:
    save_model(pair, folder / "by_save_model")
except RuntimeError as error:
    print(safetensors.__version__, error)
else:
    raise SystemExit("save_model writes the parts")
EOF
"$folder/venv/bin/python" -W ignore "$folder/demo.py" "$folder"
