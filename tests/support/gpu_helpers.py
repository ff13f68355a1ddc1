"""Helpers of the GPU tests: operands in every memory layout, outputs that detect missing and stray
writes, and errors relative to torch's.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import GemmArguments

from support import memory
from support.properties import Types, layouts_of, types_of

#: About 0.1 s at 1 to 2 GHz: long enough that a launch on the wrong stream reads the old values.
SLEEP_CYCLES = 200_000_000


class Gemm:
    """Operands with an obvious product: all elements of A are equal, and all elements of B are."""

    def __init__(
        self, m: int = 128, n: int = 256, k: int = 64, dtype: torch.dtype = torch.float16
    ) -> None:
        self.k = k
        self.a = torch.ones(m, k, dtype=dtype, device="cuda")
        self.b = torch.ones(k, n, dtype=dtype, device="cuda")
        self.out = torch.full((m, n), torch.nan, dtype=dtype, device="cuda")
        self.args = GemmArguments(self.a, self.b, self.out, accumulator_type=torch.float32)
        self.kernel = cutlass_api.get_kernels(self.args)[0]
        self.artifact = self.kernel.compile(self.args)
        torch.cuda.synchronize()

    def shows(self, value: float) -> bool:
        """Whether out is the product of an A full of this value."""
        torch.cuda.synchronize()
        return bool((self.out == value * self.k).all())


def say(request: pytest.FixtureRequest, text: str) -> None:
    """Prints past pytest's capture, so that passing tests also print their figures."""
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\n{text}", flush=True)


class Artifacts:
    """Kernels, compiled at the first use in a test: many at once, on all cores."""

    def __init__(self) -> None:
        self._known: dict[str, object] = {}
        self._arguments: dict[Types, GemmArguments] = {}

    def of(self, kernels: list[cutlass_api.Kernel]) -> list[object]:
        """The artifact of each kernel, or the exception that its compilation raised.

        Kernels with row-major outputs come first. A kernel with a column-major output shares its
        program with the transpose among them, and then finds it in the disk cache: half of the
        work.
        """
        missing = [kernel for kernel in kernels if kernel.metadata.kernel_name not in self._known]
        arguments = {types: self._arguments_for(types) for types in set(map(types_of, missing))}

        def compile_one(kernel):
            try:
                return kernel.compile(arguments[types_of(kernel)])
            except Exception as error:
                return error

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for major in "tn":
                wave = [kernel for kernel in missing if layouts_of(kernel)[0][2] == major]
                for kernel, result in zip(wave, pool.map(compile_one, wave), strict=True):
                    self._known[kernel.metadata.kernel_name] = result
        return [self._known[kernel.metadata.kernel_name] for kernel in kernels]

    def _arguments_for(self, types: Types) -> GemmArguments:
        if types not in self._arguments:
            sides = (types.a, types.b, types.out)
            operands = (torch.zeros(16, 16, dtype=dtype, device=memory.DEVICE) for dtype in sides)
            self._arguments[types] = GemmArguments(*operands, accumulator_type=types.accumulator)
        return self._arguments[types]


def fail_with(failures: list[str]) -> None:
    if failures:
        shown = "\n".join(failures[:40])
        more = f"\n... and {len(failures) - 40} more" if len(failures) > 40 else ""
        pytest.fail(f"{len(failures)} failures:\n{shown}{more}", pytrace=False)
