#!/usr/bin/env bash
# Expected: collectives that only move data (`broadcast`, `all_gather`) take every dtype in the gloo
# backend of `torch.distributed`, which moves uint8, int32 and bfloat16.
# True: they refuse float8_e4m3fn, float8_e8m0fnu, int16, uint16 and uint32. Scales of NVFP4 and
# MXFP4 weights must be viewed as uint8.
# Seen with: torch 2.15.0 on a CPU: each of those raises "Invalid scalar type".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet uv
"$folder/venv/bin/uv" pip install --quiet --python "$folder/venv/bin/python" "torch==${TORCH:-2.15.0}"
cat > "$folder/demo.py" <<'EOF'
import sys

import torch
import torch.distributed as dist

store = dist.FileStore(sys.argv[1], 1)
dist.init_process_group("gloo", store=store, rank=0, world_size=1)


def outcome(collective, dtype):
    values = torch.zeros(4, dtype=dtype)
    try:
        if collective == "broadcast":
            dist.broadcast(values, 0)
        else:
            dist.all_gather([torch.empty_like(values)], values)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return "works"


refused = ["float8_e4m3fn", "float8_e8m0fnu", "int16", "uint16", "uint32"]
names = [*refused, "uint8", "int32", "bfloat16"]
for collective in ("broadcast", "all_gather"):
    found = {name: outcome(collective, getattr(torch, name)) for name in names}
    print(torch.__version__, collective, found)
    assert [name for name in names if found[name] != "works"] == refused, found
    assert all(found[name] == "Invalid scalar type" for name in refused), found
dist.destroy_process_group()
EOF
"$folder/venv/bin/python" -W ignore "$folder/demo.py" "$folder/store"
