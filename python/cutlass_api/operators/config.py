"""Process-wide options."""

from typing import Any, ClassVar

from cutlass_api import config


class GlobalOptions(config.GlobalOptions):
    """The options of :class:`cutlass_api.config.GlobalOptions`, the same for both interfaces."""

    _instance: ClassVar["config.GlobalOptions | None"] = None

    def save(  # type: ignore[override]
        self, options: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Every option by name, stored in ``options`` or in a new dictionary."""
        options = {} if options is None else options
        super().save(options)
        return options


__all__ = ["GlobalOptions"]
