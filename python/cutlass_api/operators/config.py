"""Process-wide options."""

import os
from typing import Any, ClassVar

from cutlass_api import config

#: The environment variables that set ``use_tvm_ffi``: of NVIDIA's operators, and of its DSL.
_SWITCH, _SWITCH_OF_DSL = "CUTLASS_OPERATORS_USE_TVM_FFI", "CUTE_DSL_ENABLE_TVM_FFI"
_VALUES = dict.fromkeys(("1", "true", "yes", "on"), True)
_VALUES |= dict.fromkeys(("0", "false", "no", "off"), False)


class GlobalOptions(config.GlobalOptions):
    """The options of :class:`cutlass_api.config.GlobalOptions`, the same for both interfaces.

    The environment variable ``CUTLASS_OPERATORS_USE_TVM_FFI`` (1 or 0, true or false, yes or no, on
    or off) sets ``use_tvm_ffi`` when ``cutlass.operators`` is imported. TVM FFI need not be
    installed. Raises ValueError for another value, and if ``CUTE_DSL_ENABLE_TVM_FFI`` contradicts.
    """

    __slots__ = ()
    _instance: ClassVar["config.GlobalOptions | None"] = None

    def __new__(cls) -> "GlobalOptions":
        if cls._instance is None and (is_on := _switch(_SWITCH)) is not None:
            of_dsl = _switch(_SWITCH_OF_DSL)
            if of_dsl not in (None, is_on):
                raise ValueError(
                    f"the environment variables {_SWITCH} and {_SWITCH_OF_DSL} contradict each "
                    "other; unset one of them"
                )
            config.GlobalOptions().use_tvm_ffi = is_on
        made = super().__new__(cls)
        assert isinstance(made, GlobalOptions)
        return made

    def save(  # type: ignore[override]
        self, options: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Every option by name, stored in ``options`` or in a new dictionary."""
        options = {} if options is None else options
        super().save(options)
        return options


def _switch(name: str) -> bool | None:
    """The value of an environment variable; None if it is unset."""
    text = os.environ.get(name)
    if text is None:
        return None
    try:
        return _VALUES[text.strip().lower()]
    except KeyError:
        raise ValueError(
            f"the environment variable {name} is {text!r}; set one of {', '.join(_VALUES)}"
        ) from None


# Tensors are read without an instance, so the environment takes effect here.
GlobalOptions()

__all__ = ["GlobalOptions"]
