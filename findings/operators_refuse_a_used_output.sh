#!/usr/bin/env bash
# Expected: an epilogue of NVIDIA's `cutlass.operators` may read its output D again, as in D = accum
# * 2 and E = D + 1.
# True: the arguments raise RuntimeError when they are constructed. The same values with a further
# name in front of D, x = accum * 2, D = x + 0 and E = x + 1, are accepted.
# Seen with: nvidia-cutlass-operators 0.3.0, nvidia-cutlass-dsl 4.8.1 and torch 2.15.0, without a
# GPU: "On SM90 or higher, D is expected to be a output node with 0 users".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet uv
"$folder/venv/bin/uv" pip install --quiet --python "$folder/venv/bin/python" \
    nvidia-cutlass-operators==0.3.0 nvidia-cutlass-dsl==4.8.1 cuda-bindings==13.5.0 \
    apache-tvm-ffi==0.1.15.post2 torch==2.15.0 numpy
cat > "$folder/demo.py" <<'EOF'
import cutlass.operators as ops
import torch

a, b, out, other = (torch.ones(64, 64, dtype=torch.float16) for _ in range(4))


def read_again(accum):
    D = accum * 2.0
    E = D + 1.0
    return D, E


def named_before(accum):
    x = accum * 2.0
    D = x + 0.0
    E = x + 1.0
    return D, E


found = {}
for function in (read_again, named_before):
    epilogue = ops.EpilogueArguments(function, D=out, E=other)
    try:
        ops.GemmArguments(a, b, out, torch.float32, epilogue)
        found[function.__name__] = "accepted"
    except RuntimeError as error:
        found[function.__name__] = f"RuntimeError: {error}"
print(found)
assert "D is expected to be a output node with 0 users" in found["read_again"]
assert found["named_before"] == "accepted"
EOF
"$folder/venv/bin/python" -W ignore "$folder/demo.py"
