"""The instructions with which kernels multiply."""

from typing import Any

from cutlass_api._core import DType
from cutlass_api.operators._unserved import refuse
from cutlass_api.operators.arch import TargetSm


class MmaInstruction:
    """The base of instructions. A subclass has its targets, and the width of one step along K."""

    _targets: tuple[str, ...] = ()
    #: Bytes of A along K that one instruction multiplies.
    _step_bytes = 0

    @classmethod
    def supported_targets(cls, design: Any = None, operands: Any = None) -> list[TargetSm]:
        """The targets with this instruction, for an optional design and operands' metadata.

        Raises NotImplementedError for a class without targets.
        """
        if not cls._targets:
            refuse(cls.__name__, "HopperWgmma or AmpereMma")
        return list(map(TargetSm, cls._targets))

    @classmethod
    def shape_k(cls, operands: Any) -> int:
        """The elements along K that one instruction multiplies.

        ``operands``: metadata of operands with a field ``A``. Raises NotImplementedError for a
        class without targets.
        """
        if not cls._targets:
            refuse(cls.__name__, "HopperWgmma or AmpereMma")
        return 8 * cls._step_bytes // DType(operands.A.dtype).width


class AmpereMma(MmaInstruction):
    """``mma.sync`` of warps, from compute capability 8.0 on."""

    _targets = ("80",)
    _step_bytes = 32


class HopperWgmma(MmaInstruction):
    """``wgmma`` of warpgroups, of compute capability 9.0."""

    _targets = ("90a",)
    _step_bytes = 32


class BlackwellTcgen05Mma(MmaInstruction):
    """``tcgen05.mma``: no kernel of this package uses it, and the methods raise."""


class BlackwellTcgen05MmaSparse(MmaInstruction):
    """``tcgen05.mma.sp``: no kernel of this package uses it, and the methods raise."""


class RubinTcgen05Mma(MmaInstruction):
    """``tcgen05.mma`` of Rubin: no kernel of this package uses it, and the methods raise."""


__all__ = [
    "AmpereMma",
    "BlackwellTcgen05Mma",
    "BlackwellTcgen05MmaSparse",
    "HopperWgmma",
    "MmaInstruction",
    "RubinTcgen05Mma",
]
