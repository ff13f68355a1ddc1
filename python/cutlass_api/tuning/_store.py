"""The store's results in Python: listed, removed, exported and imported."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from cutlass_api import _core
from cutlass_api._tables import Listing


@dataclass(frozen=True)
class StoredResult:
    """A result in the store: the time of one kernel for one problem on one device.

    - ``device``, ``driver``: the device's name, and the driver's major version as CUDA counts.
    - ``key``: the problem: rounding, operation, batch x M x N x K, then for A, B and out the dtype,
      the order (t row-major, n column-major, s other) and the alignment in bytes.
    - ``kernel``, ``program``: the kernel's name, and a hash of its program.
    - ``seconds``: the median time of one launch.
    """

    device: str
    driver: int
    key: str
    kernel: str
    program: str
    seconds: float


class StoredResults(Listing[StoredResult]):
    """A list of results, which notebooks show as a table."""

    def _titles(self) -> Sequence[str]:
        return "us", "kernel", "problem", "device"

    def _cells(self, element: StoredResult) -> Sequence[str]:
        return f"{1e6 * element.seconds:.2f}", element.kernel, element.key, element.device


def stored_results() -> list[StoredResult]:
    """All results in the store, of all devices, the fastest of each problem first. Notebooks show
    the list as a table."""
    return StoredResults(StoredResult(*row) for row in _core.tuning_results())


def clear() -> None:
    """Removes all results from the store."""
    _core.clear_tuning_results()


#: The format of exported files.
FORMAT, VERSION = "rutlass tuning results", 1


def export_results(path: "str | os.PathLike[str]") -> int:
    """Writes all results into a JSON file, for :func:`import_results` on other machines. Returns
    their number. Raises OSError if the file cannot be written."""
    results = stored_results()
    document = {
        "format": FORMAT,
        "version": VERSION,
        "results": [asdict(result) for result in results],
    }
    Path(path).write_text(json.dumps(document, indent=1) + "\n")
    return len(results)


@dataclass(frozen=True)
class ImportReport:
    """What :func:`import_results` did.

    - ``added``: new results, and results that replaced slower ones.
    - ``skipped``: a line for each reason and the number of results that it applied to.
    """

    added: int
    skipped: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"{self.added} results added", *self.skipped])


def import_results(path: "str | os.PathLike[str]") -> ImportReport:
    """Merges the results of a file from :func:`export_results` into the store.

    A result of the store stays if it is at least as fast. Results of other devices are kept for
    other machines that share the store, and not used on this one.

    Raises ValueError if the file has another format, OSError if it cannot be read.
    """
    try:
        document = json.loads(Path(path).read_text())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON file: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"{path} holds no tuning results; pass a file that export_results wrote")
    if document.get("version") != VERSION:
        raise ValueError(
            f"{path} has version {document.get('version')!r}, and this package reads {VERSION}; "
            "export the results with this version"
        )
    entries = document.get("results")
    if not isinstance(entries, list):
        raise ValueError(f"{path} has no list of results; export them again")
    fastest = {_place(result): result for result in stored_results()}
    added: dict[tuple[Any, ...], StoredResult] = {}
    damaged, slower = 0, 0
    for entry in entries:
        result = _parsed(entry)
        if result is None:
            damaged += 1
            continue
        place = _place(result)
        own = fastest.get(place)
        if own and own.program == result.program and own.seconds <= result.seconds:
            slower += 1
            continue
        fastest[place] = added[place] = result
    if added:
        _core.add_tuning_results([astuple(result) for result in added.values()])
    reasons = [
        (damaged, "lack a field, or have one of the wrong type"),
        (slower, "are not faster than those in the store"),
    ]
    return ImportReport(
        len(added), tuple(f"{count} skipped: they {why}" for count, why in reasons if count)
    )


def _place(result: StoredResult) -> tuple[Any, ...]:
    return result.device, result.driver, result.key, result.kernel


def _parsed(entry: Any) -> StoredResult | None:
    """An entry of a file as a result; None if a field is missing or of the wrong type."""
    types: dict[str, type] = dict.fromkeys(("device", "key", "kernel", "program"), str)
    types |= {"driver": int, "seconds": float}
    if not isinstance(entry, dict) or any(
        type(entry.get(name)) is not expected for name, expected in types.items()
    ):
        return None
    result = StoredResult(**{name: entry[name] for name in types})
    fits = 0 <= result.driver < 2**31 and 0 < result.seconds < math.inf
    return result if fits else None


__all__ = [
    "ImportReport",
    "StoredResult",
    "clear",
    "export_results",
    "import_results",
    "stored_results",
]
