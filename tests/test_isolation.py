"""One process and others: distributions beside this one, forks, subinterpreters, the end of the
process, threads on several devices, and a device that other code resets. Each in a process of its
own.
"""

import sys
import textwrap
import time
from pathlib import Path

import cutlass_api
import pytest
import stand_in
from cutlass_api import _checks
from helpers import run_python
from pace import slowness

PACKAGES = Path(cutlass_api.__file__).parents[1]

# Other distributions.


def site_packages(folder: Path, records: dict[str, str]) -> Path:
    """A folder of installed packages: this package, and a RECORD for each distribution."""
    for package in ("cutlass_api", "rutlass_stand_in"):
        (folder / package).symlink_to(PACKAGES / package)
    for name, record in records.items():
        (folder / f"{name}.dist-info").mkdir()
        (folder / f"{name}.dist-info" / "RECORD").write_text(record)
    return folder


OWN = {"rutlass-0.1.0": "cutlass_api/__init__.py,sha256=x,1\n"}
UNRELATED = {"other-1.0": "a.py,,\n" * 20000 + "other/cutlass_api/a.py,,\ncutlass_api_2/a.py,,\n"}


def warnings_of_an_import(folder: Path) -> list[str]:
    code = """
        import importlib, warnings
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import cutlass_api
            importlib.import_module("cutlass_api.library")
        assert cutlass_api.__file__.startswith(__import__("sys").argv[1])
        for warning in caught:
            print(warning.category.__name__, warning.message)
    """
    return run_python(code, folder, PYTHONPATH=str(folder)).splitlines()


def test_another_owner_of_the_files_is_named(tmp_path: Path) -> None:
    theirs = {
        "nvidia_cutlass_dsl-4.4.0": "cutlass_api/__init__.py,sha256=x,1\n",
        # Beyond the block that is read first.
        "some_api-1": "a.py,,\n" * 20000 + "cutlass_api/kernel.py,sha256=x,1\n",
    }
    (warning,) = warnings_of_an_import(site_packages(tmp_path, OWN | UNRELATED | theirs))
    assert warning.startswith("UserWarning nvidia-cutlass-dsl some-api also owns files in ")
    assert "`pip uninstall nvidia-cutlass-dsl some-api`" in warning
    assert "`pip install --force-reinstall --no-deps rutlass`" in warning


def test_unrelated_distributions_are_not_named(tmp_path: Path) -> None:
    (tmp_path / "broken-1.0.dist-info").mkdir()  # without a RECORD
    assert warnings_of_an_import(site_packages(tmp_path, OWN | UNRELATED)) == []


@pytest.mark.timing
def test_a_hundred_distributions_take_3_ms(tmp_path: Path) -> None:
    record = "".join(f"package/module_{number}.py,sha256=x,1\n" for number in range(1000))
    site_packages(tmp_path, {f"package_{number}-1.0": record for number in range(100)})
    times = []
    for _ in range(20):
        pace = slowness()
        start = time.process_time()
        assert _checks.other_owners(str(tmp_path)) == []
        times.append((time.process_time() - start) / pace)
    print(f"{min(times) * 1e3:.2f} ms")
    assert min(times) < 3e-3


# Subinterpreters.


@pytest.mark.parametrize("first", ["main", "sub"])
def test_a_subinterpreter_is_refused(first: str) -> None:
    """Whichever interpreter imports first."""
    code = f"""
        import sys
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        run = getattr(interpreters, "exec", None) or interpreters.run_string
        code = '''
        import os, sys
        sys.path[:] = {sys.path!r}
        try:
            import cutlass_api
        except ImportError as error:
            os.write(1, f"{{error.name}}: {{error}}".encode())
        '''
        if {first!r} == "main":
            import cutlass_api
        run(interpreters.create(), __import__("textwrap").dedent(code))
        import cutlass_api
    """
    message = run_python(code)
    assert message.startswith(
        "cutlass_api: cutlass_api (the distribution rutlass) does not support"
    )
    assert "import it in the main interpreter" in message
