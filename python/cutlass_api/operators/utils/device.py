"""Helpers for devices and streams."""

import os
from collections.abc import Iterable

from cutlass_api import _core
from cutlass_api._core import Status
from cutlass_api.operators.arch import TargetSm
from cutlass_api.utils import check_cuda_errors, device_cc, to_cuda_stream


def device_or_env_target_sm(device: int = 0, env_var: str = "CUTE_DSL_ARCH") -> TargetSm:
    """The target that an environment variable names, such as ``sm_90a``, else that of a device.

    Raises ValueError if the variable names no target, and RuntimeError without the device.
    """
    text = os.environ.get(env_var)
    if not text:
        return TargetSm(cc=device_cc(device))
    try:
        return TargetSm(text.removeprefix("sm_"))
    except ValueError as error:
        raise ValueError(f"the environment variable {env_var} is {text!r}: {error}") from None


def device_or_env_supports(
    requested_targets: TargetSm | str | Iterable[TargetSm | str],
) -> Status:
    """Whether :func:`device_or_env_target_sm` runs operators of these targets, as a Status.

    The Status fails, with the reason, without a device.
    """
    if isinstance(requested_targets, (TargetSm, str)):
        requested_targets = (requested_targets,)
    targets = list(requested_targets)
    try:
        own = device_or_env_target_sm()
        if own.supports_operators_from(targets):
            return Status.success()
    except (RuntimeError, ValueError) as error:
        return Status.fail(error)
    return Status.fail(f"target {own} runs no operator of {', '.join(map(str, targets))}")


def device_l2_cache_size(device: int | None = None) -> int:
    """The bytes of a GPU's L2 cache; None: of GPU 0. Raises RuntimeError without the device."""
    return int(_core.chip_rates(device or 0)["l2_bytes"])


def get_cuda_version() -> tuple[int, int] | None:
    """The major and minor version of CUDA's compiler NVRTC; None without it."""
    try:
        return _core.nvrtc_info()[1]
    except RuntimeError:
        return None


__all__ = [
    "check_cuda_errors",
    "device_cc",
    "device_l2_cache_size",
    "device_or_env_supports",
    "device_or_env_target_sm",
    "get_cuda_version",
    "to_cuda_stream",
]
