"""Operands in every memory layout, and outputs that detect missing and stray writes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from support.helpers import INTEGERS

#: The device of operands. A variable, so that the harness itself can run on the CPU.
DEVICE = torch.device("cuda")

#: Bytes on either side of every operand. A multiple of 16, so that it leaves the operand aligned.
GUARD_BYTES = 256


# ---- operands ------------------------------------------------------------------------------------


def synchronize() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


@dataclass(frozen=True)
class Form:
    """The memory layout of a matrix or of a batch, in elements."""

    order: str = "t"
    #: The row stride (column stride if column-major) is a multiple of this, plus `pad`.
    multiple: int = 1
    pad: int = 0
    #: Elements before the first element.
    offset: int = 0
    #: The step within a row: 1 is contiguous.
    step: int = 1
    #: Dimensions that all read the same elements.
    broadcast: tuple[int, ...] = ()
    #: "apart"; "same": all matrices of the batch share memory; "overlapping": each begins one row
    #: after the previous one.
    batches: str = "apart"

    def strides(self, shape: Sequence[int]) -> list[int]:
        *batch, rows, columns = shape
        minor, major = (columns, rows) if self.order == "t" else (rows, columns)
        pitch = -(-max(minor * self.step, 1) // self.multiple) * self.multiple + self.pad
        steps = [pitch, self.step] if self.order == "t" else [self.step, pitch]
        between = {"apart": pitch * max(major, 1), "same": 0, "overlapping": pitch}[self.batches]
        strides = [between] * len(batch) + steps
        for dimension in self.broadcast:
            strides[dimension] = 0
        return strides


class Memory:
    """A tensor in its own memory, with the elements around it and between its rows."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, form: Form) -> None:
        strides = form.strides(shape)
        item = dtype.itemsize
        start = GUARD_BYTES // item + form.offset
        index = torch.full([1] * len(shape), start, device=DEVICE)
        for dimension, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
            steps = torch.arange(extent, device=DEVICE) * stride
            index = index + steps.view([-1 if at == dimension else 1 for at in range(len(shape))])
        # The index of the last element, computed on the host. An empty tensor has none.
        last = start + sum(
            max(extent - 1, 0) * stride for extent, stride in zip(shape, strides, strict=True)
        )
        size = last + 1 + GUARD_BYTES // item
        self.dtype = dtype
        self.bytes = torch.empty(size, item, dtype=torch.uint8, device=DEVICE)
        self.around = torch.ones(size, dtype=torch.bool, device=DEVICE)
        self.around[index.flatten()] = False
        self.tensor = (
            self.bytes.view(dtype).flatten().as_strided(tuple(shape), tuple(strides), start)
        )


def random_values(
    count: int, dtype: torch.dtype, generator: torch.Generator, small: bool
) -> torch.Tensor:
    if dtype in INTEGERS:
        low, high = (torch.iinfo(dtype).min, torch.iinfo(dtype).max + 1)
        if small:
            low, high = max(low, -9), 10
        return torch.randint(low, high, (count,), generator=generator, device=DEVICE).to(dtype)
    values = torch.randn(count, generator=generator, device=DEVICE, dtype=torch.float64)
    if dtype == torch.float64:
        # A grid that lets `Reference` split numbers into two halves, whose products are exact.
        values = torch.round(values * 2.0**33) * 2.0**-33
        return values
    if small:
        values = values / 2
    return values.float().to(dtype)


def random_operand(
    shape: Sequence[int],
    dtype: torch.dtype,
    form: Form,
    generator: torch.Generator,
    small: bool = False,
) -> torch.Tensor:
    """Random values, with NaN (in integers, 255 or -1) wherever a kernel must not read."""
    memory = Memory(shape, dtype, form)
    flat = random_values(memory.bytes.shape[0], dtype, generator, small)
    memory.bytes.copy_(flat.view(torch.uint8).view(memory.bytes.shape))
    memory.bytes[memory.around] = 0xFF
    return memory.tensor


class Output:
    """An output filled with NaN (in integers, a sentinel) that detects writes around it."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, form: Form) -> None:
        self.memory = Memory(shape, dtype, form)
        # All bits set is a NaN in every float type here.
        self.poison = 0x5A if dtype in INTEGERS else 0xFF
        self.memory.bytes.fill_(self.poison)

    @property
    def tensor(self) -> torch.Tensor:
        return self.memory.tensor

    def intact_around(self, rows: int | None = None) -> bool:
        """Whether nothing is written around the output, nor behind this number of its rows."""
        around = [self.memory.bytes[self.memory.around]]
        if rows is not None:
            around.append(self.tensor[rows:].contiguous().flatten().view(torch.uint8))
        return all(bool((each == self.poison).all()) for each in around)


def generator_for(*seed: object) -> torch.Generator:
    """Random numbers that are the same in every run, and different from case to case."""
    number = 0
    for character in repr(seed):
        number = (number * 31 + ord(character)) % 2**31
    return torch.Generator(DEVICE).manual_seed(number)


def just_aligned(order: str, dtype: torch.dtype, load_bytes: int) -> Form:
    """A layout aligned to a kernel's load size and, where possible, not further."""
    elements = max(load_bytes // dtype.itemsize, 1)
    wider = 2 * elements if load_bytes < 16 else elements
    # An odd multiple of `elements`, at which nothing wider than a load can be used by mistake.
    return Form(order, multiple=wider, pad=elements if load_bytes < 16 else 0, offset=elements)
