"""Joint GEMMs in a process without a GPU, whose launches the emulator executes."""

from collections.abc import Iterator

import cutlass_api
import torch
from cutlass_api import Kernel, arguments

from support.emulation import dual_parts, few, finish
from support.joint import CASES, JointTrial
from support.properties import family_of

BIAS = "def f(accum, bias):\n    D = accum + bias\n    return D\n"


def joint_parts(kernel: Kernel) -> Iterator[object]:
    """What a sample of joint GEMMs has at least once."""
    design = kernel.metadata.design
    if family_of(kernel) == "sm90":
        yield from dual_parts(kernel)
        yield design.over_grid, design.swapped
    else:
        yield design.tile_shape[:2], design.load_bytes
        yield design.cluster_shape


def joint() -> None:
    """Every design for two to four matrices B, with and without an epilogue."""
    failures = []
    for seed, case in enumerate(CASES):
        trial = JointTrial(*case, seed=seed)
        kernels = trial.kernels()
        assert kernels, trial.said
        kernels.sort(key=lambda kernel: repr(kernel.metadata.design))
        chosen = few(kernels, joint_parts)
        for kernel in chosen[seed % 2 :: 2] if seed < 2 else chosen[:: max(1, len(chosen) // 4)]:
            try:
                trial.check(kernel)
            except (AssertionError, RuntimeError) as error:
                failures.append(f"{kernel.metadata.kernel_name}, {trial.said}: {error}")
    finish(failures)


def moved() -> None:
    """Launches of other matrices behind the last launch of a program, and of matrices with other
    columns of the same sum.
    """
    generator, failures, artifacts = torch.Generator().manual_seed(0), [], {}
    for columns in ((128, 64, 64), (128, 64, 64), (64, 128, 64), (64, 64, 128)):
        a = torch.randn(8, 256, generator=generator).half()
        matrices = [torch.randn(n, 256, generator=generator).half().mT for n in columns]
        out = torch.full((8, 256), torch.nan).half()
        bias = [torch.randn(n, generator=generator).half() for n in columns]
        epilogue = arguments.EpilogueArguments(BIAS, bias=bias, D=out)
        args = arguments.GemmArguments(a, matrices, out, torch.float32, epilogue=epilogue)
        kernels = {type(kernel): kernel for kernel in reversed(cutlass_api.get_kernels(args))}
        artifacts = artifacts or {of: (each, each.compile(args)) for of, each in kernels.items()}
        assert len(artifacts) == 2
        for kernel, artifact in artifacts.values():
            kernel.run(args, artifact)
            sums = torch.cat([a.double() @ b.double() for b in matrices], 1) + torch.cat(bias)
            if not torch.allclose(out.double(), sums, atol=0.05, rtol=1e-2):
                failures.append(f"{kernel.metadata.kernel_name} of {columns}")
            out.fill_(torch.nan)
    finish(failures)
