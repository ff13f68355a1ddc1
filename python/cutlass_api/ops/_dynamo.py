"""What torch.compile traces in place of ``cutlass_api.matmul``, a function in Rust."""

import torch

from cutlass_api import _core
from cutlass_api.ops import _activation, _evaluate, _python

torch.compiler.substitute_in_graph(_core.matmul)(_python.matmul)
for function in (_python.epilogue_source, _activation.function_name, _evaluate.traced):
    torch.compiler.assume_constant_result(function)
