"""As emulation.py: products with prologues."""

from itertools import islice

import torch
from cutlass_api import arguments
from stand_in.emulated import operand
from torch import float8_e4m3fn, int8

from support.emulation import finish
from support.prologues import (
    CASES,
    EPSILON,
    Quantized,
    check_several,
    of_rms_norm,
    rms_norm,
    trials,
)
from support.properties import family_of, first_of_families


def check_moved() -> None:
    """Launches of one artifact with other operands and workspace."""
    k, columns = 72, 48
    weight, b = torch.randn(k).bfloat16(), torch.randn(columns, k).bfloat16().T
    sets = []
    for _ in range(3):
        a, out = torch.randn(5, k).bfloat16(), torch.empty(5, columns).bfloat16()
        prologue = arguments.PrologueArguments(rms_norm, weight=weight, eps=EPSILON)
        args = arguments.GemmArguments(a, b, out, torch.float32, prologue=prologue)
        scaled = of_rms_norm(a.double(), weight.double(), EPSILON)["A"].bfloat16().double()
        sets.append((args, out, scaled @ b.double()))
    for kernel in first_of_families(sets[0][0]):
        artifact = kernel.compile(sets[0][0])
        bound = kernel.bind(sets[0][0])
        for args, out, wanted in sets:
            out.fill_(torch.nan)
            bytes_ = operand(torch.empty(kernel.get_workspace_size(args), dtype=torch.uint8))
            kernel.run(args, artifact, workspace=bytes_)
            error = (out.double() - wanted).norm() / wanted.norm()
            assert error < 1e-2, f"{kernel.metadata.kernel_name} is off by {error}"
        # The bound launch reads other activations, too.
        args, out, wanted = sets[0]
        out.fill_(torch.nan)
        bound()
        assert (out.double() - wanted).norm() < 1e-2 * wanted.norm()


def check() -> None:
    """The first kernel of one family for each trial, in turn."""
    failures = []
    for at, trial in enumerate(islice(trials(), len(CASES))):
        kernels = [each for each in first_of_families(trial.args) if family_of(each) != "simt"]
        kernel = kernels[at % len(kernels)]
        try:
            failures.append(trial.failure(kernel))
        except RuntimeError as error:
            failures.append(f"{kernel.metadata.kernel_name}, {trial.said}: {error}")
    for dtype, m in [(float8_e4m3fn, 5), (int8, 40)]:
        trial = Quantized(dtype, m, 48, 272)
        trial.check(first_of_families(trial.args)[0])
    check_several()
    check_moved()
    finish(failures)
