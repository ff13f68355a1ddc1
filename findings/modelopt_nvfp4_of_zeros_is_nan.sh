#!/usr/bin/env bash
# Expected: ModelOpt quantizes a weight of zeros to NVFP4 that dequantizes to zeros.
# True: it dequantizes to NaN, without an error: the factor of the tensor is 0, and the scale of a
# block is 0 / 0.
# Seen with: nvidia-modelopt 0.47.0 and torch 2.15.0 on a CPU: "factor 0.0, scales nan, dequantized
# nan".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet uv
"$folder/venv/bin/uv" pip install --quiet --python "$folder/venv/bin/python" \
    torch==2.15.0 nvidia-modelopt==0.47.0 requests huggingface_hub
cat > "$folder/demo.py" <<'EOF_DEMO'
import torch
from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

tensor, scales, factor = NVFP4QTensor.quantize(torch.zeros(2, 32), 16)
sizes = {"scale": scales, "double_scale": factor, "block_sizes": {-1: 16}}
weight = tensor.dequantize(torch.float32, **sizes)
found = factor.item(), scales.float()[0, 0].item(), weight[0, 0].item()
print("factor {}, scales {}, dequantized {}".format(*found))
assert factor == 0 and scales.float().isnan().all() and weight.isnan().all(), found
EOF_DEMO
"$folder/venv/bin/python" -W ignore "$folder/demo.py"
