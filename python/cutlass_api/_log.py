"""Messages of the core in Python's ``logging``: the logger ``cutlass_api``. The core imports this
module with its first message.

The core drops messages below the level that ``CUTLASS_API_LOG`` sets (``info`` or ``debug``;
without it, warnings). With the variable, the messages go to the standard error stream unless the
program has added handlers to the logger.
"""

import logging
import os

_LOGGER = logging.getLogger("cutlass_api")


def write(level: str, text: str) -> None:
    """Logs a message. ``level``: a name of ``logging``."""
    if os.environ.get("CUTLASS_API_LOG") and not _LOGGER.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("cutlass_api: %(message)s"))
        _LOGGER.addHandler(handler)
        _LOGGER.setLevel(logging.DEBUG)
        _LOGGER.propagate = False
    _LOGGER.log(getattr(logging, level), "%s", text)
