"""Runs a case in this process."""

import hashlib
import re
from dataclasses import replace

import cutlass_api
import torch
from support import memory, problems
from support.memory import GUARD_BYTES, Output
from support.properties import float32_precision

from .cases import ALONG_K, GROUPED, MASKED, Case
from .drawing import Limits
from .operands import IS_EMULATED, Operands, on_device
from .stages import differing
from .values import Expected


class Finding(Exception):
    """A failure of a kernel, and its kind."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def choose_device() -> Limits:
    """Chooses the device of operands: a GPU if there is one. Returns the limits of a case that it
    computes in milliseconds.
    """
    if not IS_EMULATED and torch.cuda.is_available():
        return Limits(2**29, 2**22)
    memory.DEVICE = torch.device("cpu")
    torch.set_num_threads(1)
    return Limits(2**14, 2**14) if IS_EMULATED else Limits(2**18, 2**16, any_offsets=False)


def choose_kernel(case: Case, kernels: list[cutlass_api.Kernel]) -> cutlass_api.Kernel | None:
    """The case's kernel, or one chosen at random: the same for all problems it is offered for."""
    by_name = {name_of(kernel): kernel for kernel in kernels}
    if case.kernel or not by_name:
        return by_name.get(case.kernel)

    def rank(name: str) -> bytes:
        return hashlib.sha256(f"{case.choice} {name}".encode()).digest()

    return by_name[min(by_name, key=rank)]


def name_of(kernel: cutlass_api.Kernel) -> str:
    """A kernel's name, without that of its epilogue."""
    return re.sub("_epilogue_[0-9a-f]+$", "", kernel.metadata.kernel_name)


class Trial:
    """A case, its operands, and the kernel that computes it."""

    def __init__(self, case: Case, part: str = "") -> None:
        """`part`: a part of the kernel's name."""
        with float32_precision("high" if case.tf32 else "highest"):
            self.operands = Operands(case)
            self.args = self.operands.make_arguments()
            kernels = cutlass_api.get_kernels(self.args)
        self.kernel = choose_kernel(case, [kernel for kernel in kernels if part in name_of(kernel)])
        self.case = replace(case, kernel=name_of(self.kernel)) if self.kernel else case

    def check(self) -> None:
        """Runs the kernel twice. Raises Finding."""
        with float32_precision("high" if self.case.tf32 else "highest"):
            self._check()

    def _check(self) -> None:
        operands, kernel = self.operands, self.kernel
        if not (status := kernel.supports(self.args)):
            raise Finding("offered but not supported", str(status.error))
        candidates = [Expected(operands, kernel, b) for b in operands.candidates]
        if self.case.operation == GROUPED:
            for output in operands.outputs.values():
                _elements(output, output.memory.around)[candidates[0].rows :] = True
        if self.case.operation == MASKED:
            for output in operands.outputs.values():
                _elements(output, output.memory.around)[~candidates[0].exists] = True
        # An epilogue may read the output that it overwrites.
        initial = {name: out.memory.bytes.clone() for name, out in operands.outputs.items()}
        inputs = {name: _memory(tensor).clone() for name, tensor in operands.inputs.items()}
        artifact = kernel.compile(self.args)
        results = []
        for turn in range(2):
            for name, output in operands.outputs.items():
                output.memory.bytes.copy_(initial[name])
            self._run(artifact, turn == 1)
            for name, before in inputs.items():
                if not torch.equal(_memory(operands.inputs[name]), before):
                    raise Finding("changed input", f"{name} was written to")
            for name, output in operands.outputs.items():
                around = output.memory.around
                if not torch.equal(output.memory.bytes[around], initial[name][around]):
                    raise Finding("stray write", f"memory around {name} was written to")
            if turn == 0:
                findings = [self._difference(expected) for expected in candidates]
                if all(findings):
                    raise findings[-1]
            results.append({n: out.memory.bytes.clone() for n, out in operands.outputs.items()})
        for name, first in results[0].items():
            if count := int((first != results[1][name]).any(-1).sum()):
                raise Finding("other bits", f"{count} elements of {name} differ between two runs")

    def _run(self, artifact: object, own_workspace: bool) -> None:
        """One launch. Workspace may hold anything, here NaN."""
        size = self.kernel.get_workspace_size(self.args) if own_workspace else 0
        filled = torch.full(
            (size + 2 * GUARD_BYTES,), 0xFF, dtype=torch.uint8, device=memory.DEVICE
        )
        workspace = on_device(filled[GUARD_BYTES : GUARD_BYTES + size]) if size else None
        self.kernel.run(self.args, artifact, workspace=workspace)
        if memory.DEVICE.type == "cuda":
            torch.cuda.synchronize()
        filled[GUARD_BYTES : GUARD_BYTES + size] = 0xFF
        if not (filled == 0xFF).all():
            raise Finding("stray write", "memory around the workspace was written to")

    def _difference(self, expected: Expected) -> Finding | None:
        """Of an output from float64."""
        for name, wanted in expected.outputs.items():
            tensor = self.operands.outputs[name].tensor
            stored = tensor[: expected.rows] if self.case.operation == GROUPED else tensor
            wrong = differing(stored, wanted)
            if self.case.operation == MASKED:
                wrong &= expected.exists[:, :, None]
            if count := int(wrong.sum()):
                place = tuple(wrong.nonzero()[0].tolist())
                value, error = wanted.value[place], wanted.error.expand(wanted.value.shape)[place]
                return Finding(
                    "wrong values",
                    f"{count} of {stored.numel()} elements of {name} are wrong; {name}{list(place)}"
                    f" is {stored[place]:g}, expected {value:g} with an error up to {error:g}",
                )
        if self.case.stages or self.operands.types.integer:
            return None
        out = self.operands.outputs["D"].tensor
        parts = [out[..., start:end, :] for start, end in expected.spans]
        if self.case.operation == ALONG_K:
            parts = list(out)
        if self.case.operation == MASKED:
            parts = [matrix[:end] for matrix, (_, end) in zip(out, expected.spans, strict=True)]
        for at, (problem, part) in enumerate(zip(expected.problems, parts, strict=False)):
            # The norm of values that overflow is infinite.
            is_comparable = part.numel() and part.double().isfinite().all()
            if is_comparable and (what := problem.inaccuracy(part)):
                return Finding("inaccurate", f"product {at}: {what}")
        return None


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of a tensor's storage."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _elements(output: Output, values: torch.Tensor) -> torch.Tensor:
    """The values of an output's elements, of one value for each element of the memory."""
    tensor = output.tensor
    return values.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def is_fatal(error: Exception) -> bool:
    """Whether the CUDA context is lost."""
    words = () if IS_EMULATED else problems.FATAL
    return isinstance(error, torch.AcceleratorError) or any(word in str(error) for word in words)
