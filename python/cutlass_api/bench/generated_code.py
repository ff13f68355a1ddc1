"""Which GEMM kernels the code that Inductor generates calls."""

import re
from collections import Counter

#: Triple-quoted text in generated code: sources of kernels.
_QUOTED = re.compile(r"'''.*?'''|\"\"\".*?\"\"\"", re.DOTALL)
_STRING = re.compile(r"'[^'\n]*'")
_CALL = re.compile(r"[A-Za-z_][\w.]*(?=\()")
_NUMBER = re.compile(r"_\d+$")


def called_kernels(code: str) -> Counter[str]:
    """How often generated code calls each GEMM kernel and each other external kernel.

    Names hold ``cutlass_api`` for our operators, ``nv_universal_gemm`` for NVGEMM's, and begin with
    ``triton_tem`` for Triton's templates and with ``extern_kernels.`` for ATEN's.
    """
    calls: Counter[str] = Counter()
    for name in _CALL.findall(_QUOTED.sub("", code)):
        if name.startswith("extern_kernels.") or "cutlass_api" in name:
            calls[name] += 1
        elif name.endswith(".run") and ("triton_tem" in name or "nv_universal_gemm" in name):
            calls[name.removesuffix(".run")] += 1
    return calls


def launches(code: str) -> Counter[str]:
    """How often the generated code of a call launches each kernel: Triton's, without their numbers,
    and external ones, copies included."""
    found: Counter[str] = Counter()
    for name in _CALL.findall(_STRING.sub("", code)):
        if name.endswith(".run"):
            found[_NUMBER.sub("", name.removesuffix(".run"))] += 1
        elif name.startswith(("extern_kernels.", "torch.ops.", "aten.")) or ".copy_" in name:
            found[name] += 1
    return found
