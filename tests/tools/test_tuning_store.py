"""Results of the tuner, and the files that keep them."""

import json
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time

import pytest
from stand_in import environment

# Results.


def test_results_print_as_text_html_and_json(tuned):
    out = tuned("""
        result = cutlass_api.autotune(args, budget=3, progress=False)
        print(result)
        print(result._repr_html_())
        print(json.dumps(json.loads(result.to_json())))
        figure = result.plot()
        assert len(figure.axes[0].patches) == 3
    """)
    assert "on stand-in 0" in out and out.count("1.000") == 2 and "<table>" in out
    document = json.loads(out.splitlines()[-1])
    assert document["winner"] == document["trials"][0]["kernel"] and len(document["trials"]) == 3


# The store.


def rows_of(path):
    with sqlite3.connect(path) as connection:
        return connection.execute("SELECT key, kernel, seconds FROM results").fetchall()


def test_damaged_foreign_and_later_stores_are_set_aside(tuned, tmp_path):
    store = tmp_path / "tuning.sqlite3"
    script = """
        names()
        cutlass_api.autotune(args, budget=2, progress=False)
        print(caught)
    """

    def damaged():
        store.write_bytes(b"no database " * 500)

    def foreign():
        with sqlite3.connect(store) as connection:
            connection.execute("CREATE TABLE other (a)")

    def later():
        with sqlite3.connect(store) as connection:
            connection.execute("PRAGMA user_version = 99")

    def torn():
        content = store.read_bytes()
        store.write_bytes(content[:4096] + b"\0" * 100 + content[4196:6000])

    reasons = {damaged: "not a database", foreign: "not a store", later: "version 99", torn: ""}
    for count, (make, reason) in enumerate(reasons.items(), start=1):
        store.unlink(missing_ok=True)
        if make in (later, torn):
            assert tuned(script) == "[]\n"
        make()
        out = tuned(script)
        assert "set aside" in out and reason in out, (make, out)
        assert (tmp_path / f"tuning.aside-{count}.sqlite3").exists()
        assert len(rows_of(store)) == 2
        assert tuned(script) == "[]\n"


@pytest.mark.parametrize(
    "folder, reason", [("file/folder", "Not a directory"), ("shared", "other users may write")]
)
def test_an_unusable_store_keeps_results_in_memory(tuned, tmp_path, folder, reason):
    (tmp_path / "file").touch()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    out = tuned(
        """
        for _ in range(2):
            result = cutlass_api.autotune(
                args, kernels=cutlass_api.get_kernels(args)[10:12], progress=False
            )
        assert names()[0] == result.winner.metadata.kernel_name
        print(len(caught), caught[0])
        """,
        CUTLASS_API_CACHE_DIR=str(tmp_path / folder),
    )
    assert out.startswith("1 ") and "stay in memory" in out and reason in out


ADD = """
    import sys
    from cutlass_api import _core
    for at in range(int(sys.argv[2])):
        key = f"{sys.argv[1]} {at}"
        _core.add_tuning_results([("a device", 13, key, "a kernel", "a program", 1e-6)])
"""


def adding(tmp_path, name, count):
    """A process that adds results, each by a write of its own."""
    command = [sys.executable, "-c", textwrap.dedent(ADD), name, str(count)]
    return subprocess.Popen(command, env={**environment(), "CUTLASS_API_CACHE_DIR": str(tmp_path)})


def test_processes_write_at_once(tmp_path):
    processes = [adding(tmp_path, str(name), 25) for name in range(4)]
    assert [process.wait(120) for process in processes] == [0] * 4
    assert len(rows_of(tmp_path / "tuning.sqlite3")) == 100
    assert not list(tmp_path.glob("*aside*"))


def test_a_process_that_dies_leaves_a_whole_store(tmp_path):
    store = tmp_path / "tuning.sqlite3"
    for at in range(5):
        process = adding(tmp_path, str(at), 1_000_000)
        before = len(rows_of(store)) if store.exists() and at else 0
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            time.sleep(0.05)
            try:
                if len(rows_of(store)) > before + 3:
                    break
            except sqlite3.OperationalError:
                continue  # no table yet, or locked
        process.send_signal(signal.SIGKILL)
        process.wait()
    with sqlite3.connect(store) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert adding(tmp_path, "last", 1).wait(60) == 0
    assert len(rows_of(store)) > 15


# Export and import, in this process and from the command line.


def command(tmp_path, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "cutlass_api", "tune", *map(str, arguments)],
        env={**environment(), "CUTLASS_API_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_fleet_ships_one_file(tmp_path):
    one, other, file = tmp_path / "one", tmp_path / "other", tmp_path / "results.json"
    assert adding(one, "a", 3).wait(60) == 0
    assert adding(other, "b", 2).wait(60) == 0
    assert command(one, "--export", file) == (0, f"3 results written to {file}\n")
    assert command(other, "--import", file) == (0, "3 results added\n")
    assert len(rows_of(other / "tuning.sqlite3")) == 5
    code, out = command(other, "--import", file)
    assert (code, out) == (
        0,
        "0 results added\n3 skipped: they are not faster than those in the store\n",
    )
    code, out = command(other, "--list")
    assert code == 0 and "a device" in out and "b 1" in out and "a kernel" in out
    document = json.loads(file.read_text())
    document["results"][0] |= {"seconds": 5e-7}
    document["results"][1] |= {"seconds": "fast"}
    del document["results"][2]["device"]
    file.write_text(json.dumps(document))
    code, out = command(other, "--import", file)
    assert code == 0 and out.startswith("1 results added\n2 skipped: they lack a field")
    assert command(other, "--clear") == (0, "5 results removed\n")
    empty = "no results are stored; `tune --shape M,N,K` on a GPU stores some\n"
    assert command(other, "--list") == (0, empty)
    assert command(other, "--clear") == (0, "0 results removed\n")
    assert rows_of(other / "tuning.sqlite3") == []


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "is no JSON file"),
        ("[]", "holds no tuning results"),
        ('{"format": "rutlass tuning results", "version": 9}', "has version 9"),
        (None, "No such file"),
    ],
)
def test_other_files_are_not_imported(content, message, tmp_path):
    file = tmp_path / "results.json"
    if content is not None:
        file.write_text(content)
    code, out = command(tmp_path, "--import", file)
    assert code == 1 and message in out
