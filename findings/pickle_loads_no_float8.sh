#!/usr/bin/env bash
# Expected: pickle loads a tensor of float8_e4m3fn that it has saved, as `copy.deepcopy`,
# `torch.save` and `torch.load` do.
# True: it saves tensors of float8_e4m3fn and other dtypes without a typed storage, and cannot load
# them.
# Seen with: torch 2.15.0 and 2.11.0: AttributeError: type object 'torch.storage.UntypedStorage' has
# no attribute 'dtype'.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet uv
"$folder/venv/bin/uv" pip install --quiet --python "$folder/venv/bin/python" "torch==${TORCH:-2.15.0}"
cat > "$folder/demo.py" <<'EOF'
import pickle

import torch


def outcome(dtype):
    saved = pickle.dumps(torch.zeros(4, dtype=dtype))
    try:
        pickle.loads(saved)
    except AttributeError as error:
        return str(error)
    return "works"


refused = ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"]
found = {name: outcome(getattr(torch, name)) for name in [*refused, "uint8", "bfloat16"]}
print(torch.__version__, found)
assert [name for name, text in found.items() if text != "works"] == refused
EOF
"$folder/venv/bin/python" -W ignore "$folder/demo.py"
