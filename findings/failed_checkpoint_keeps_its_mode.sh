#!/usr/bin/env bash
# Expected: the dispatch mode of a selective checkpoint ends when the function of the checkpoint
# raises.
# True: it stays active for all later calls of the thread, as long as something holds the exception,
# as a notebook does. The mode then caches the results of unrelated calls, and calls in inference
# mode fail. Torch 2.15.0 ends the mode.
# Seen with: torch 2.11.0: RuntimeError: Inference tensors do not track version counter.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet uv
cat > "$folder/demo.py" <<'EOF'
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts


def fails(x):
    x.sin()
    raise ValueError("a user's error")


def contexts():
    return create_selective_checkpoint_contexts(lambda *_, **__: CheckpointPolicy.MUST_SAVE)


def sine():
    with torch.inference_mode():
        try:
            return torch.ones(2).sin().tolist()
        except RuntimeError as error:
            return str(error)


try:
    checkpoint(fails, torch.ones(3, requires_grad=True), use_reentrant=False, context_fn=contexts)
except ValueError as error:
    held = error
mode = type(_get_current_dispatch_mode()).__name__
print(torch.__version__, mode, sine())
stays = torch.__version__.startswith("2.11.")
assert mode == ("_CachingTorchDispatchMode" if stays else "NoneType")
assert isinstance(sine(), str) == stays
held.__traceback__ = None
assert _get_current_dispatch_mode() is None and len(sine()) == 2
EOF
for version in 2.11.0 2.15.0; do
    "$folder/venv/bin/uv" pip install --quiet --python "$folder/venv/bin/python" "torch==$version" numpy
    "$folder/venv/bin/python" -W ignore "$folder/demo.py"
done
