"""Process-wide options."""

from typing import TYPE_CHECKING, Any, ClassVar

from cutlass_api import _core


class GlobalOptions:
    """The options of this process. Every ``GlobalOptions()`` is the same object.

    Setting a name that is no option raises AttributeError.
    """

    __slots__ = ()
    _instance: ClassVar["GlobalOptions | None"] = None

    def __new__(cls) -> "GlobalOptions":
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    @property
    def use_tvm_ffi(self) -> bool:
        """Whether C functions read the operands (True by default).

        True: DLPack's C exchange table, which is fast. False: ``__dlpack__`` at each call. Results
        are equal. The name comes from NVIDIA's ``cutlass_api``.
        """
        return _core.get_use_c_exchange()

    @use_tvm_ffi.setter
    def use_tvm_ffi(self, on: bool) -> None:
        _core.set_use_c_exchange(on)

    @property
    def launch_graphs(self) -> bool:
        """Whether short launches that repeat are promoted to CUDA graphs (True by default).

        A launch that is estimated at 2 us or less and that repeats on one stream is promoted to a
        CUDA graph of one kernel node, which costs the host less than a kernel launch. Profilers
        show graph launches; operands, results and the order on the stream are the same. While this
        is False, no launch is promoted, and promoted launches run as kernels. The environment
        variable ``CUTLASS_API_LAUNCH_GRAPHS=0`` sets it to False at import.
        """
        return _core.get_launch_promotion()

    @launch_graphs.setter
    def launch_graphs(self, on: bool) -> None:
        _core.set_launch_promotion(on)

    def save(self, options: dict[str, Any]) -> None:
        """Stores every option in ``options`` by name."""
        options["use_tvm_ffi"] = self.use_tvm_ffi
        options["launch_graphs"] = self.launch_graphs

    def restore(self, options: dict[str, Any]) -> None:
        """Sets the options from the values that :meth:`save` stored. Others stay as they are."""
        self.use_tvm_ffi = options.get("use_tvm_ffi", self.use_tvm_ffi)
        self.launch_graphs = options.get("launch_graphs", self.launch_graphs)

    # A type checker reports names that are no option.
    if not TYPE_CHECKING:

        def __setattr__(self, name, value):
            options = {}
            self.save(options)
            if name not in options:
                raise AttributeError(
                    f"GlobalOptions has no option {name}; its options are {', '.join(options)}"
                )
            super().__setattr__(name, value)

    def __repr__(self) -> str:
        options: dict[str, Any] = {}
        self.save(options)
        return f"GlobalOptions({', '.join(f'{name}={on}' for name, on in options.items())})"


__all__ = ["GlobalOptions"]
