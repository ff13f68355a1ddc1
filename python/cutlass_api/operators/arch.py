"""Compilation targets: a compute capability, and which other GPUs run its code."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

from cutlass_api import _core


class ArchPortability(Enum):
    """Which GPUs run code that is compiled for a target."""

    #: The GPU of the target and all later ones, such as "80".
    Portable = 1
    #: The GPU of the target and later ones of the same major version, such as "100f".
    FamilyPortable = 2
    #: The GPU of the target only, such as "90a".
    ArchConditional = 3


_SUFFIXES = {
    ArchPortability.Portable: "",
    ArchPortability.FamilyPortable: "f",
    ArchPortability.ArchConditional: "a",
}
_PORTABILITIES = {suffix: portability for portability, suffix in _SUFFIXES.items()}
#: The first compute capability with each kind of target.
_FIRST_CC = {
    ArchPortability.Portable: 0,
    ArchPortability.FamilyPortable: 100,
    ArchPortability.ArchConditional: 90,
}


@dataclass(init=False)
class TargetSm:
    """A compilation target, from its text or from its parts.

    - ``sm_str``: the compute capability and the suffix, such as ``"80"``, ``"90a"`` or ``"100f"``.
    - ``cc``: the compute capability as 10 * major + minor.
    - ``portability``: None means ``ArchConditional`` from 90 on, else ``Portable``.

    Raises TypeError for objects of other types, and ValueError for other text, for both or neither
    of ``sm_str`` and ``cc``, and for a portability that the compute capability lacks.
    """

    cc: int
    portability: ArchPortability

    def __init__(
        self,
        sm_str: str | None = None,
        *,
        cc: int | None = None,
        portability: ArchPortability | None = None,
    ) -> None:
        if (sm_str is None) == (cc is None) or (sm_str is not None and portability is not None):
            raise ValueError(
                f"sm_str is {sm_str!r}, cc is {cc!r} and portability is {portability!r}; pass "
                "sm_str alone, or cc with an optional portability"
            )
        if sm_str is not None:
            if not isinstance(sm_str, str):
                raise TypeError(f"sm_str is {sm_str!r}; pass a text such as '90a', or cc=90")
            cc, portability = _parse(sm_str)
        if not isinstance(cc, int):
            raise TypeError(f"cc is {cc!r}; pass an integer such as 90")
        if portability is None:
            has_own = cc >= _FIRST_CC[ArchPortability.ArchConditional]
            portability = ArchPortability.ArchConditional if has_own else ArchPortability.Portable
        if cc < _FIRST_CC[portability]:
            raise ValueError(
                f"target {cc}{_SUFFIXES[portability]} does not exist: {portability.name} targets "
                f"start at {_FIRST_CC[portability]}; pass {str(cc)!r}"
            )
        self.cc, self.portability = cc, portability

    @classmethod
    def ensure(cls, value: "TargetSm | str | None") -> "TargetSm | None":
        """The target that a text names. A target, or None, is returned as it is.

        Raises TypeError for other objects, and ValueError as the constructor.
        """
        if value is None or isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls(value)
        raise TypeError(
            f"target_sm is {value!r}; pass a text such as '90a', or a TargetSm of "
            "cutlass_api.operators"
        )

    @staticmethod
    def get_supported_targets(design: Any, operands: Any) -> "list[TargetSm]":
        """The targets of a design's MMA instruction that its tile scheduler, if any, supports too.

        Raises ValueError if the design has no ``mma_instruction_type``.
        """
        instruction = getattr(design, "mma_instruction_type", None)
        if instruction is None:
            raise ValueError(f"design {design!r} has no mma_instruction_type; set the field")
        groups = [instruction.supported_targets(design, operands)]
        scheduler = getattr(design, "tile_scheduler", None)
        if scheduler is not None:
            groups.append(scheduler.supported_targets(design, operands))
        return TargetSm.intersect_supported_targets(groups)

    @staticmethod
    def intersect_supported_targets(
        target_groups: "Sequence[Sequence[TargetSm]]",
    ) -> "list[TargetSm]":
        """The targets for which each group has code, in the order of their first appearance."""
        named = dict.fromkeys(target for group in target_groups for target in group)
        return [
            target
            for target in named
            if all(target.supports_operators_from(group) for group in target_groups)
        ]

    def is_portable_to(self, other: "TargetSm | str") -> bool:
        """Whether code for this target can be compiled for the other one, and runs there."""
        target = TargetSm.ensure(other)
        assert target is not None
        if self.portability is ArchPortability.ArchConditional:
            return self == target
        is_family = self.portability is ArchPortability.FamilyPortable
        return self.cc <= target.cc and (not is_family or self.major == target.major)

    def supports_operators_from(self, operator_targets: "Iterable[TargetSm | str]") -> bool:
        """Whether this target runs operators for any of these targets."""
        return any(
            target.is_portable_to(self)
            for target in map(TargetSm.ensure, operator_targets)
            if target is not None
        )

    @property
    def major(self) -> int:
        """The major version of the compute capability."""
        return self.cc // 10

    @property
    def minor(self) -> int:
        """The minor version of the compute capability."""
        return self.cc % 10

    def __hash__(self) -> int:
        return hash((self.cc, self.portability))

    def __str__(self) -> str:
        return f"{self.cc}{_SUFFIXES[self.portability]}"

    def __repr__(self) -> str:
        return f"TargetSm({str(self)!r})"


@lru_cache(64)
def _parse(text: str) -> tuple[int, ArchPortability]:
    digits = text.rstrip("af")
    try:
        return int(digits), _PORTABILITIES[text[len(digits) :]]
    except (KeyError, ValueError):
        raise ValueError(
            f"sm_str is {text!r}; pass a compute capability with an optional suffix: '80', '90a' "
            "or '100f'"
        ) from None


class UnservedTargetError(NotImplementedError):
    """No kernel of this package runs on a target."""


@lru_cache(64)
def served_cc(target: TargetSm) -> int:
    """The compute capability of a target, for the functions of the core.

    Raises UnservedTargetError if no kernel runs on it.
    """
    if _core.get_kernels(None, None, target.cc):
        return target.cc
    raise UnservedTargetError(
        f"target_sm is {target}, which no operator of this package supports; the nearest targets "
        "are '80' and '90a'"
    )


__all__ = ["ArchPortability", "TargetSm", "UnservedTargetError", "served_cc"]
