#!/usr/bin/env bash
# Expected: `torch.func.jvp` and `jacfwd` refuse a custom operator of PyTorch that has
# `register_autograd` and no rule for forward mode.
# True: they return 0 in place of the derivative 12. `torch.func.grad` raises.
# Seen with: torch 2.15.0 and 2.11.0 on a CPU: "autograd 12.0, jvp 0.0, jacfwd 0.0, grad
# RuntimeError".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet uv
"$folder/venv/bin/uv" pip install --quiet --python "$folder/venv/bin/python" "torch==${TORCH:-2.15.0}"
cat > "$folder/demo.py" <<'EOF'
import torch


@torch.library.custom_op("demo::cube", mutates_args=())
def cube(x: torch.Tensor) -> torch.Tensor:
    return x * x * x


cube.register_autograd(
    lambda ctx, grad: grad * 3 * ctx.saved_tensors[0] ** 2,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
x = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
found = {"autograd": torch.autograd.grad(cube(x), x)[0].item()}
x = x.detach()
found["jvp"] = torch.func.jvp(cube, (x,), (torch.ones_like(x),))[1].item()
found["jacfwd"] = torch.func.jacfwd(cube)(x).item()
try:
    found["grad"] = torch.func.grad(cube)(x).item()
except RuntimeError as error:
    found["grad"] = type(error).__name__
print(torch.__version__, ", ".join(f"{name} {value}" for name, value in found.items()))
assert found == {"autograd": 12.0, "jvp": 0.0, "jacfwd": 0.0, "grad": "RuntimeError"}, found
EOF
"$folder/venv/bin/python" -W ignore "$folder/demo.py"
