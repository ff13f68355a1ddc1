#!/usr/bin/env bash
# Expected: the view of a DTensor as another dtype has the metadata of that dtype.
# True: it has the metadata of the first such view of equal DTensors: after `view(float8_e4m3fn)`,
# `view(int8)` has elements of int8, and a spec that says float8_e4m3fn. Sharding rules of custom
# operators then see the wrong dtype.
# Seen with: torch 2.15.0 and 2.11.0 on a CPU, in a group of one process.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet uv
"$folder/venv/bin/uv" pip install --quiet --python "$folder/venv/bin/python" "torch==${TORCH:-2.15.0}"
cat > "$folder/demo.py" <<'EOF'
import torch
import torch.distributed as dist
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
codes = torch.zeros(4, 8, dtype=torch.uint8)
codes = distribute_tensor(codes, init_device_mesh("cpu", (1,)), [Shard(0)])
for dtype in (torch.float8_e4m3fn, torch.int8):
    view = codes.view(dtype)
    print(torch.__version__, dtype, view.dtype, view._spec.tensor_meta.dtype)
    assert view.dtype is dtype
    assert view._spec.tensor_meta.dtype is torch.float8_e4m3fn
dist.destroy_process_group()
EOF
"$folder/venv/bin/python" -W ignore "$folder/demo.py"
