"""Process-wide options."""

from typing import Any, ClassVar

from cutlass_api import _core


class GlobalOptions:
    """The options of this process. Every ``GlobalOptions()`` is the same object."""

    _instance: ClassVar["GlobalOptions | None"] = None

    def __new__(cls) -> "GlobalOptions":
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    @property
    def use_tvm_ffi(self) -> bool:
        """How operands are read. Defaults to True.

        True: through DLPack's C exchange table, which is fast. False: through ``__dlpack__`` at
        each call. Results are equal. The name is the original's.
        """
        return _core.get_use_c_exchange()

    @use_tvm_ffi.setter
    def use_tvm_ffi(self, on: bool) -> None:
        _core.set_use_c_exchange(on)

    def save(self, options: dict[str, Any]) -> None:
        """Writes every option into ``options`` by name."""
        options["use_tvm_ffi"] = self.use_tvm_ffi

    def restore(self, options: dict[str, Any]) -> None:
        """Sets every option from what :meth:`save` wrote."""
        self.use_tvm_ffi = options["use_tvm_ffi"]


__all__ = ["GlobalOptions"]
