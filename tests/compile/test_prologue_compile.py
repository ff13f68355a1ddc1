"""Row kernels, compiled without a GPU."""

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import GemmArguments, PrologueArguments
from support.helpers import fake
from support.prologues import CASES, FULL, shape_of

BF16 = torch.bfloat16


def arguments(case, m=8, n=512, k=4096, dtype=BF16):
    def operands(kinds):
        return {name: fake(*shape_of(kind, (), m, k), dtype=dtype) for name, kind in kinds.items()}

    outputs = operands(dict.fromkeys(case.outputs, FULL))
    prologue = PrologueArguments(case.function, **operands(case.tensors), **case.numbers, **outputs)
    a, b, out = (
        fake(m, k, dtype=dtype),
        fake(k, n, dtype=dtype, layout="n"),
        fake(m, n, dtype=dtype),
    )
    return GemmArguments(a, b, out, torch.float32, prologue=prologue)


@pytest.mark.parametrize(
    "case, cc",
    [(CASES[1], 90), (CASES[2], 80), (CASES[4], 90)],
    ids=lambda value: getattr(value, "name", value),
)
def test_nothing_spills(case, cc):
    """The residual and its sum take the most registers, two passes the most code."""
    args = arguments(case)
    kernel = cutlass_api.get_kernels(args, cc=cc)[0]
    program = kernel.compile(args, cc=cc).compiled_obj
    rows = program.prologue
    assert rows.log == ""
    assert rows.resources.spill_store_bytes == 0 and rows.resources.registers <= 128


def test_the_product_keeps_its_program():
    args = arguments(CASES[0])
    plain = GemmArguments(args.A, args.B, args.out, torch.float32)
    programs = [
        cutlass_api.get_kernels(each, cc=90)[0].compile(each, cc=90).compiled_obj
        for each in (args, plain)
    ]
    assert programs[0].source == programs[1].source


def test_artifacts_contain_the_prologue():
    args = arguments(CASES[1], 4, 64, 512)
    kernel = cutlass_api.get_kernels(args, cc=90)[0]
    artifact = kernel.compile(args, cc=90)
    restored = cutlass_api.artifact.CompiledArtifact.from_bytes(artifact.to_bytes())
    assert restored.kernel_obj is kernel and restored.compiled_obj.prologue
