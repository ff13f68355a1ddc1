#!/usr/bin/env bash
# Expected: in an epilogue of NVIDIA's `cutlass.operators`, the output of `sum(accum, dim=-1)`, a
# sum of each row, must have one element a row.
# True: outputs of one element a column, of one element in all, and of the whole shape are accepted,
# too, and a search finds as many operators as for the right one: only what does not broadcast is
# refused. A mistaken `dim` or shape shows in the results alone.
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
import cutlass.operators as ops
import torch

a, b = (torch.ones(128, 256, dtype=torch.float16) for _ in range(2))
out = torch.empty(128, 64, dtype=torch.float16)
source = "def f(accum):\n    D = accum\n    r = sum(accum, dim=-1)\n    return D, r\n"
found = {}
for shape in [(128, 1), (1, 64), (1,), (128, 64), (7,)]:
    try:
        epilogue = ops.EpilogueArguments(source, D=out, r=torch.zeros(shape))
        args = ops.GemmArguments(a, b[:64].T, out, torch.float32, epilogue=epilogue)
        found[shape] = len(ops.get_operators(args, target_sm="100a"))
    except NotImplementedError as error:
        found[shape] = str(error)
print(found)
assert found[128, 1] > 100
assert found[1, 64] == found[1,] == found[128, 64] == found[128, 1]
assert "Invalid Broadcast" in found[7,]
EOF
"$folder/venv/bin/python" -W ignore "$folder/demo.py"
