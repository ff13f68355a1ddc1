#!/usr/bin/env bash
# Expected: `torch.compile(fullgraph=True)` of a `torch.autograd.Function` with `setup_context`
# takes a forward with variable arguments (`*others`) as it takes named ones.
# True: it raises if no argument requires a gradient, because forward receives the context as one
# more argument. With a gradient, and with named arguments, it compiles. Torch 2.15 compiles all.
# Seen with: torch 2.11.0: named 2.0, variable an error; with 2.15.0: 2.0 each.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet uv
cat > "$folder/demo.py" <<'EOF'
import torch


class Function(torch.autograd.Function):
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx, grad):
        return grad * 2, None, None


class Named(Function):
    @staticmethod
    def forward(x, a, b):
        return x * 2


class Variable(Function):
    @staticmethod
    def forward(x, *others):
        return x * len(others)


def outcome(function):
    torch.compiler.reset()
    compiled = torch.compile(lambda *x: function.apply(*x), backend="eager", fullgraph=True)
    try:
        return compiled(*(torch.ones(()) for _ in range(3))).item()
    except Exception:
        return "error"


found = [outcome(Named), outcome(Variable)]
print(torch.__version__, "named, variable:", found)
assert found == [2.0, "error" if torch.__version__.startswith("2.11.") else 2.0]
EOF
for version in 2.11.0 2.15.0; do
    "$folder/venv/bin/uv" pip install --quiet --python "$folder/venv/bin/python" \
        "torch==$version" numpy
    "$folder/venv/bin/python" -W ignore "$folder/demo.py"
done
