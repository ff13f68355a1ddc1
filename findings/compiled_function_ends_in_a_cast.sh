#!/usr/bin/env bash
# Expected: a cast of a tensor to the dtype that it already has changes nothing, also as the last
# operation of the forward of a `torch.autograd.Function` under `torch.compile`.
# True: the compiled function loses its backward: the gradient is zero, without an error or a
# warning. A cast to another dtype, or no cast, keeps the gradient. Torch 2.15 keeps it in all
# cases.
# Seen with: torch 2.11.0: same dtype 0.0, other dtype 2.0, no cast 2.0; with 2.15.0: 2.0 each.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet uv
cat > "$folder/demo.py" <<'EOF'
import torch


def gradient(finish):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return finish(x * 2)

        @staticmethod
        def backward(ctx, grad):
            return (grad * 2).float()

    torch.compiler.reset()
    x = torch.ones((), requires_grad=True)
    compiled = torch.compile(lambda x: Double.apply(x).float(), backend="eager")
    return torch.autograd.grad(compiled(x), x)[0].item()


found = [
    gradient(lambda y: y.to(torch.float32)),
    gradient(lambda y: y.to(torch.float64)),
    gradient(lambda y: y),
]
print(torch.__version__, "same dtype, other dtype, no cast:", found)
assert found == [0.0 if torch.__version__.startswith("2.11.") else 2.0, 2.0, 2.0]
EOF
for version in 2.11.0 2.15.0; do
    "$folder/venv/bin/uv" pip install --quiet --python "$folder/venv/bin/python" \
        "torch==$version" numpy
    "$folder/venv/bin/python" -W ignore "$folder/demo.py"
done
