#!/usr/bin/env bash
# Expected: after `save_pretrained` of transformers into a folder that holds an older model,
# `from_pretrained` reads the newer one.
# True: if the older model is one file and the newer one is written in shards, the folder has
# model.safetensors beside the shards and their index, and `from_pretrained` reads the older model
# without a warning.
# Seen with: transformers 5.24.0, torch 2.15.0 and safetensors 0.8.0 on a CPU: the loaded weight is
# that of the older model.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet uv
"$folder/venv/bin/uv" pip install --quiet --python "$folder/venv/bin/python" \
  "torch==${TORCH:-2.15.0}" transformers==5.24.0 safetensors==0.8.0
cat > "$folder/demo.py" <<'EOF'
import sys
from pathlib import Path

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

folder = Path(sys.argv[1])
sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 64}
config = LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=2)
older, newer = LlamaForCausalLM(config), LlamaForCausalLM(config)
for model, value in ((older, 1.0), (newer, 2.0)):
    with torch.no_grad():
        model.lm_head.weight.fill_(value)

older.save_pretrained(folder)
newer.save_pretrained(folder, max_shard_size="20KB")
files = sorted(file.name for file in folder.glob("model*"))
loaded = LlamaForCausalLM.from_pretrained(folder).lm_head.weight.unique().tolist()
print(transformers.__version__, files, "loaded", loaded)
assert "model.safetensors" in files and "model.safetensors.index.json" in files, files
assert loaded == [1.0], loaded
EOF
"$folder/venv/bin/python" -W ignore "$folder/demo.py" "$folder/model"
