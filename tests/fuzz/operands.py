"""The operands of a case in memory, and the arguments of its operation."""

import os
from dataclasses import replace

import torch
from cutlass_api import arguments
from cutlass_api.library import ScaleSwizzleMode
from cutlass_api.weights import Weight
from support import codes, memory
from support.eight_bits import blocks, swizzled
from support.epilogues import shape_of
from support.helpers import DTYPES, FLOAT8, INTEGERS
from support.memory import Form, Memory, Output, random_operand
from support.properties import Types
from support.weights import E8M0, PACKED

from .cases import (
    ALONG_K,
    CODES,
    ELEMENTWISE,
    GEMM,
    LIKE_B,
    NUMBER_OF_GROUP,
    OF_ROWS,
    OUT,
    ROW_OF_GROUP,
    Case,
    Codes,
    Operand,
    Scales,
)
from .stages import results_of, source

IS_EMULATED = "EMULATOR" in os.environ


def on_device(value: object) -> object:
    """A tensor as kernels take it: for the emulator, one of the simulated device."""
    if not IS_EMULATED:
        return value
    from stand_in.emulated import operand

    return operand(value)


class Operands:
    """Random values, with NaN or a sentinel around each tensor and between its rows."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.types = Types(*(DTYPES[name] for name in case.types))
        self.generator = torch.Generator(memory.DEVICE).manual_seed(case.seed)
        #: The tensors that a kernel must not change.
        self.inputs: dict[str, torch.Tensor] = {}
        self.outputs: dict[str, Output] = {}
        #: The arguments of the epilogue function, except its outputs.
        self.parameters: dict[str, object] = {}
        #: Scales and zero points of "a" and "b", one for each block.
        self.scales: dict[str, torch.Tensor] = {}
        self.zeros: dict[str, torch.Tensor] = {}
        batch = () if case.operation == ALONG_K else case.shape[:-2]
        of_b = (len(case.ends),) if case.operation in OF_ROWS else batch
        a_shape, b_shape = (*batch, case.m, case.k), (*of_b, case.k, case.n)
        if case.operation == ELEMENTWISE:
            a_shape = b_shape = case.shape
        self.a = self._factor("A", a_shape, self.types.a, case.a)
        #: B, or what may stand for it: a kernel may round the elements of a weight.
        self.candidates: list[torch.Tensor] = []
        if case.codes is None:
            self.b = self._factor("B", b_shape, self.types.b, case.b)
            self.candidates.append(self.b)
        else:
            self.weight = self._weight(case.codes)
            matrices = codes.matrices(self.weight, self.types.a)
            self.candidates += [matrix.mT for matrix in matrices]
        self.outputs["D"] = Output(case.shape, self.types.out, case.out)
        for factor, scales in self.case.scales.items():
            self._scale(factor, scales)
        for at, stage in enumerate(case.stages):
            if stage.operand is not None:
                self.parameters[f"c{at}"] = self._parameter(f"c{at}", stage.operand)
            for name, result in results_of(case, at):
                folded = {dim % len(case.shape) for dim in result.dims}
                shape = [1 if dim in folded else x for dim, x in enumerate(case.shape)]
                self.outputs[name] = Output(shape, DTYPES[result.dtype], result.form)

    def _factor(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, form: Form
    ) -> torch.Tensor:
        # Sums of 8-bit integers can exceed float16's range, and sums of any type that of float8.
        narrow = {torch.float16, *FLOAT8} if dtype in INTEGERS else FLOAT8
        small = bool(self.case.stages) or self.types.out in narrow
        self.inputs[name] = random_operand(shape, dtype, form, self.generator, small)
        return self.inputs[name]

    def _weight(self, about: Codes) -> Weight:
        """Random words in the order of kernels. Fields are contiguous, with NaN around them. Those
        of a stack have a dimension for its weights.
        """
        n, k, draw = (
            self.case.n,
            self.case.k,
            {"generator": self.generator, "device": memory.DEVICE},
        )
        stack = (len(self.case.ends),) if self.case.operation in OF_ROWS else ()
        shape = *stack, n, -(-k // (k if about.depth == -1 else about.depth))
        words = *stack, n, k // 32, 4
        fields = {"values": torch.randint(-(2**31), 2**31, words, **draw).int()}
        kind = PACKED[about.format]
        if kind.scales is E8M0:
            powers = torch.randint(122, 132, shape, dtype=torch.uint8, **draw)
            fields["scales"] = powers.view(E8M0)
        else:
            fields["scales"] = (torch.rand(shape, **draw) + 0.5).to(DTYPES[about.dtype])
        if about.zeros == "uint8":
            fields["zeros"] = torch.randint(0, 17, shape, dtype=torch.uint8, **draw)
        elif about.zeros:
            fields["zeros"] = torch.randn(shape, **draw).to(DTYPES[about.zeros])
        if kind.has_factor:
            rows = n if about.factor_of_rows else 1
            fields["factor"] = torch.rand((*stack, rows, 1), **draw) + 0.5
        placed = {name: self._placed(name, values) for name, values in fields.items()}
        if kind.has_factor and not about.factor_of_rows:
            placed["factor"] = placed["factor"].view(stack)
        if about.is_permuted:
            order = torch.randperm(k, **draw)
            placed["permutation"] = order.int()
        return kind.cls(**placed)

    def _placed(self, name: str, values: torch.Tensor) -> torch.Tensor:
        """An input with NaN before and after it."""
        place = Memory(values.shape, values.dtype, Form())
        place.bytes.fill_(0xFF)
        place.tensor.copy_(values)
        self.inputs[name] = place.tensor
        return place.tensor

    def _parameter(self, name: str, operand: Operand) -> object:
        """The operand of a stage."""
        if operand.kind == OUT:
            out = self.outputs["D"].tensor
            out.copy_(random_operand(out.shape, out.dtype, Form(), self.generator, small=True))
            return out
        if operand.kind == LIKE_B:
            return self._factor(name, tuple(self.b.shape), self.types.b, self.case.b)
        groups, n = len(self.case.ends), self.case.n
        of_groups = {ROW_OF_GROUP: (groups, 1, n), NUMBER_OF_GROUP: (groups, 1, 1)}
        shape = of_groups.get(operand.kind) or shape_of(operand.kind, self.case.shape)
        if not shape:
            return (-0.5, 0.25, 1.5, 2.0)[self.case.seed % 4]
        matrix = (1, *shape) if len(shape) == 1 else shape
        dtype = DTYPES[operand.dtype]
        tensor = random_operand(matrix, dtype, operand.form, self.generator, small=True)
        self.inputs[name] = tensor
        return tensor.view(shape) if len(shape) == 1 else tensor

    def _scale(self, factor: str, scales: Scales) -> None:
        """Scales and zero points of "a" or "b"."""
        tensor = {"a": self.a, "b": self.b}[factor]
        # One scale along K for all of K, also without elements.
        k = max(self.case.k, 1) if scales.depth == -1 else self.case.k
        extents = (tensor.shape[-2], k) if factor == "a" else (k, tensor.shape[-1])
        shape = (*tensor.shape[:-2], *blocks(extents, self.block_of(factor)))
        draw = {"generator": self.generator, "device": memory.DEVICE}
        if scales.dtype == "float8_e8m0fnu":
            values = torch.randint(125, 130, shape, dtype=torch.uint8, **draw).view(E8M0)
        else:
            values = (torch.rand(shape, **draw) + 0.5).to(DTYPES[scales.dtype])
        self.scales[factor] = values
        # Swizzled scales are contiguous; an empty tensor of any shape is.
        self.parameters[f"{factor}_scale"] = values.flatten() if scales.swizzled else values
        if scales.swizzled and values.numel():
            matrices = [values] if values.dim() == 2 else values
            flat = [swizzled(matrix if factor == "a" else matrix.mT) for matrix in matrices]
            self.parameters[f"{factor}_scale"] = torch.cat(flat)
        if scales.zeros:
            dtype = DTYPES[scales.zeros]
            low = 0 if torch.uint8 in (tensor.dtype, dtype) else -4
            self.zeros[factor] = torch.randint(low, 9, shape, **draw).to(dtype)
            self.parameters[f"{factor}_zero"] = self.zeros[factor]
        names = [name for name in self.parameters if name.startswith(f"{factor}_")]
        self.inputs |= {name: self.parameters[name] for name in names}

    def block_of(self, factor: str) -> tuple[int, int]:
        """The extents of a block of "a" or "b", in the order of its dimensions."""
        scales = self.case.scales[factor]
        depth = max(self.case.k, 1) if scales.depth == -1 else scales.depth
        return replace(scales, depth=depth).block(factor)

    def make_arguments(self) -> arguments.RuntimeArguments:
        """The arguments that kernels are offered for."""
        case, accumulator = self.case, self.types.accumulator
        a, out = self.a, self.outputs["D"].tensor
        b: object = self.b if case.codes is None else self.weight
        if case.codes is not None and case.codes.is_permuted:
            a = a[:, self.weight.permutation]
            fields = self.weight.tensors()
            del fields["permutation"]
            b = type(self.weight).from_tensors(fields)
        index = None
        if case.by_index:
            a, index = self._shuffled()
        if case.leading_one:
            a, out = a[None], out[None]
        parameters = dict(self.parameters)
        if case.scaled_tensors:
            a, b = (self._scaled(*pair, parameters) for pair in (("a", a), ("b", b)))
        epilogue = self._epilogue(out, parameters)
        if case.operation == ELEMENTWISE:
            return arguments.ElementwiseArguments(a, b, out, epilogue)
        controls = arguments.PerformanceControls(fast_sums=case.fast_sums)
        if case.operation in (GEMM, CODES):
            return arguments.GemmArguments(a, b, out, accumulator, epilogue, controls)
        offsets = torch.tensor(case.ends, dtype=torch.int32, device=memory.DEVICE)
        self.inputs["offsets"] = offsets
        return arguments.GroupedGemmArguments(
            a, b, out, accumulator, offsets, epilogue, controls, index
        )

    def _shuffled(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of A in another order, and the index that restores it. Behind the last group, it
        may name no row."""
        order = torch.randperm(self.case.m, generator=self.generator, device=memory.DEVICE)
        self.inputs["shuffled"] = table = random_operand(
            self.a.shape, self.a.dtype, self.case.a, self.generator, True
        )
        table[order] = self.a
        order[min(max(0, *self.case.ends, 0), self.case.m) :: 2] = -1
        self.inputs["index"] = order.int()
        return table, self.inputs["index"]

    def _scaled(
        self, factor: str, tensor: torch.Tensor, parameters: dict[str, object]
    ) -> torch.Tensor | arguments.ScaledTensor:
        """ "a" or "b" with its scales, if it has some."""
        if factor not in self.case.scales:
            return tensor
        is_swizzled = self.case.scales[factor].swizzled
        swizzle = ScaleSwizzleMode.Swizzle32x4x4 if is_swizzled else ScaleSwizzleMode.SwizzleNone
        scale, block = parameters.pop(f"{factor}_scale"), self.block_of(factor)
        mode = block if factor == "a" else block[::-1]
        return arguments.ScaledTensor(on_device(tensor), on_device(scale), mode, swizzle)

    def _epilogue(
        self, out: torch.Tensor, parameters: dict[str, object]
    ) -> "arguments.EpilogueArguments | None":
        case = self.case
        results: dict[str, torch.Tensor] = {"D": out}
        for at in range(len(case.stages)):
            for name, result in results_of(case, at):
                tensor = self.outputs[name].tensor
                is_kept = result.kept or not result.fold
                results[name] = tensor if is_kept else tensor.squeeze(result.dims)
                if case.leading_one:
                    results[name] = tensor[None]
        calls = []
        for factor, scales in case.scales.items():
            if f"{factor}_scale" in parameters:
                calls.append(f"{factor}={factor}_scale, {factor}_block={scales.block(factor)}")
                calls += [f"{factor}_zero={factor}_zero"] if scales.zeros else []
                calls += [f'{factor}_swizzle="32x4x4"'] if scales.swizzled else []
        if not calls and not case.stages:
            return None
        first = f"scale_blocks(accum, {', '.join(calls)})" if calls else "accum"
        return arguments.EpilogueArguments(source(case, parameters, first), **parameters, **results)
