#!/usr/bin/env bash
# Expected: a compiled function that calls a custom operator twice with the same tensor runs it
# once, as the operator is declared to mutate nothing.
# True: it runs twice under `torch.no_grad()`: layers that quantize one input each, as q, k and v of
# attention, do so three times. The graph of a training step runs it once in torch 2.11, where
# AOTAutograd merges equal operations when it separates forward and backward, and twice in 2.15.
# Seen with: torch 2.11.0: training 1, inference 2; with 2.15.0: training 2, inference 2.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet uv
cat > "$folder/demo.py" <<'EOF'
import torch

calls = 0


@torch.library.custom_op("demo::largest", mutates_args=())
def largest(x: torch.Tensor) -> torch.Tensor:
    global calls
    calls += 1
    return x.abs().amax(1, keepdim=True)


@largest.register_fake
def _(x):
    return x.new_empty(x.shape[0], 1)


def function(x, q, k):
    return (x / largest(x)) @ q + (x / largest(x)) @ k


def calls_of(trains):
    global calls
    torch.compiler.reset()
    compiled = torch.compile(function, backend="aot_eager_decomp_partition")
    x, q, k = torch.ones(4, 8), torch.ones(8, 2), torch.ones(8, 2, requires_grad=trains)
    with torch.set_grad_enabled(trains):
        compiled(x, q, k)
        calls = 0
        compiled(x, q, k)
    return calls


print(torch.__version__, "training", calls_of(True), "inference", calls_of(False))
assert calls_of(True) == (1 if torch.__version__.startswith("2.11.") else 2)
assert calls_of(False) == 2
EOF
for version in 2.11.0 2.15.0; do
    "$folder/venv/bin/uv" pip install --quiet --python "$folder/venv/bin/python" \
        "torch==$version" numpy
    "$folder/venv/bin/python" -W ignore "$folder/demo.py"
done
