#!/usr/bin/env bash
# Expected: arguments of NVIDIA's `cutlass.operators`, which can be copied, can be copied deeply and
# pickled, and `dataclasses.replace` replaces a field of them.
# True: `copy.deepcopy` raises RecursionError, for the arguments and for one operand. So does
# `pickle.loads` of what `pickle.dumps` has accepted. The reason: an operand without attributes, as
# both make it first, looks up its tensor to find one. `dataclasses.replace` raises TypeError:
# `performance` is a field, but no parameter of the constructor.
# Seen with: nvidia-cutlass-operators 0.3.0, nvidia-cutlass-dsl 4.8.1 and torch 2.15.0, without a
# GPU.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet uv
"$folder/venv/bin/uv" pip install --quiet --python "$folder/venv/bin/python" \
    nvidia-cutlass-operators==0.3.0 nvidia-cutlass-dsl==4.8.1 cuda-bindings==13.5.0 \
    apache-tvm-ffi==0.1.15.post2 torch==2.15.0 numpy
cat > "$folder/demo.py" <<'EOF'
import copy
import dataclasses
import pickle

import cutlass.operators as ops
import torch

a, b, out = (torch.ones(64, 64, dtype=torch.float16) for _ in range(3))
args = ops.GemmArguments(a, b, out, torch.float32)
calls = {
    "copy": lambda: copy.copy(args),
    "dumps": lambda: pickle.dumps(args),
    "loads": lambda: pickle.loads(pickle.dumps(args)),
    "deep copy": lambda: copy.deepcopy(args),
    "deep copy of A": lambda: copy.deepcopy(args.A),
    "replace": lambda: dataclasses.replace(args, accumulator_type=torch.float16),
}
found = {}
for name, call in calls.items():
    try:
        call()
        found[name] = "works"
    except (RecursionError, TypeError) as error:
        found[name] = f"{type(error).__name__}: {error}"
print(found)
assert found["copy"] == found["dumps"] == "works"
for name in ("loads", "deep copy", "deep copy of A"):
    assert found[name].startswith("RecursionError")
assert "unexpected keyword argument 'performance'" in found["replace"]
EOF
"$folder/venv/bin/python" -W ignore "$folder/demo.py"
