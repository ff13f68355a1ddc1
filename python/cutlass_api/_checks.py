"""Checks of the interpreter and of the installation, when ``cutlass_api`` is imported."""

import os
import sys
import warnings
from importlib import import_module

#: The distribution that this package belongs to.
_DISTRIBUTION = "rutlass"
#: What is read of a RECORD at once.
_BLOCK_BYTES = 1 << 16


def refuse_subinterpreters() -> None:
    """Raises ImportError in a subinterpreter.

    The Rust core has one copy of its state, with objects of the first interpreter.
    """
    name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    try:
        interpreters = import_module(name)
    except ImportError:  # an interpreter that has no others
        return
    if interpreters.get_current() != interpreters.get_main():
        raise ImportError(
            "cutlass_api (the distribution rutlass) does not support subinterpreters: import it in "
            "the main interpreter, and use threads, or processes of multiprocessing",
            name="cutlass_api",
        )


def other_owners(folder: str) -> list[str]:
    """The distributions installed in a folder, other than this package's own, that own files of
    ``cutlass_api``.

    ``importlib.metadata.packages_distributions`` is too slow for an import: it parses each RECORD,
    of all folders of ``sys.path``.
    """
    owners = []
    for name in os.listdir(folder):
        distribution = name.partition("-")[0].replace("_", "-")
        if name.endswith(".dist-info") and distribution != _DISTRIBUTION:
            try:
                if _is_owner(f"{folder}/{name}/RECORD"):
                    owners.append(distribution)
            except OSError:  # Some installers write no RECORD.
                pass
    return sorted(owners)


def _is_owner(record: str) -> bool:
    """Whether a RECORD lists files of ``cutlass_api``."""
    wanted, before = b"\ncutlass_api/", b"\n"
    with open(record, "rb", buffering=0) as file:
        while True:
            block = file.read(_BLOCK_BYTES)
            if wanted in before + block:
                return True
            if len(block) < _BLOCK_BYTES:
                return False
            before = block[-len(wanted) :]


def warn_of_other_owners() -> None:
    """Warns if another distribution has installed files among those of this package."""
    package = os.path.dirname(os.path.abspath(__file__))
    try:
        owners = other_owners(os.path.dirname(package))
    except OSError:  # an archive
        return
    if owners:
        names = " ".join(owners)
        warnings.warn(
            f"{names} also owns files in {package}: each installation overwrites files of the "
            f"other. Run `pip uninstall {names}`, then "
            f"`pip install --force-reinstall --no-deps {_DISTRIBUTION}`",
            stacklevel=3,
        )


# The import of the core follows, which a subinterpreter refuses without naming the package.
refuse_subinterpreters()
