"""The cache of compiled programs on disk, used by separate processes."""

import os
import re
import shutil
import statistics
import textwrap
import time
from collections import namedtuple
from pathlib import Path

import cutlass_api
import pytest
from cutlass_api import inspection
from support.helpers import run_python, start_python

#: Compiles one kernel and prints the duration and a hash of the result.
COMPILE = """
    import hashlib, os, sys, time
    import cutlass_api
    name, cc, go = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    kernel = next(k for k in cutlass_api.get_kernels() if k.metadata.kernel_name == name)
    args = cutlass_api.arguments.RuntimeArguments()
    while go != "now" and not os.path.exists(go):
        time.sleep(0.001)
    start = time.perf_counter()
    program = kernel.compile(args, cc=cc).compiled_obj
    seconds = time.perf_counter() - start
    print(
        seconds,
        program.kernel_name,
        program.architecture,
        hashlib.sha256(program.cubin).hexdigest(),
    )
"""
#: The fact about the cache in `inspection.environment`.
PROGRAMS = "compiled programs"

Result = namedtuple("Result", "seconds name architecture digest")

KERNEL, OTHER = (kernel.metadata.kernel_name for kernel in cutlass_api.get_kernels(cc=90)[-2:])


def result(line):
    seconds, *rest = line.split()
    return Result(float(seconds), *rest)


def compile_in_a_process(folder, name=KERNEL, cc=90, **environment):
    return result(
        run_python(COMPILE, name, cc, "now", **{"CUTLASS_API_CACHE_DIR": str(folder)} | environment)
    )


def files_in(folder):
    return [path for path in folder.rglob("*") if not path.is_dir()]


def writings(folder):
    """The inodes of files: compilations show in them, and reading does not."""
    return {path: path.stat().st_ino for path in files_in(folder)}


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache that holds one program, and the output of its compilation."""
    folder = tmp_path_factory.mktemp("filled")
    cold = compile_in_a_process(folder)
    return folder, cold


@pytest.fixture
def cache(filled, tmp_path):
    """A copy of that cache: (folder, the one file in it, the program's digest)."""
    folder = tmp_path / "cache"
    shutil.copytree(filled[0], folder)
    (file,) = files_in(folder)
    return folder, file, filled[1].digest


def test_a_cold_compilation_leaves_one_file(filled):
    folder, cold = filled
    print(f"cold compilation: {cold.seconds * 1e3:.0f} ms")
    (file,) = files_in(folder)
    assert file.stat().st_size > 1000


def test_the_next_process_reads_it_without_compiling(cache):
    folder, _, digest = cache
    before = writings(folder)
    warm = compile_in_a_process(folder)
    assert (warm.name, warm.digest) == (KERNEL, digest)
    assert writings(folder) == before


@pytest.mark.timing
def test_reading_from_disk_takes_milliseconds(filled):
    folder, cold = filled
    median = statistics.median(compile_in_a_process(folder).seconds for _ in range(7))
    print(f"from disk: {median * 1e3:.2f} ms, cold {cold.seconds * 1e3:.0f} ms")
    assert median < 0.005
    assert median < cold.seconds / 5


def test_reading_from_disk_opens_no_compiler(cache):
    folder, _, digest = cache
    script = COMPILE + '    assert "libnvrtc" not in open("/proc/self/maps").read()\n'
    assert (
        result(run_python(script, KERNEL, 90, "now", CUTLASS_API_CACHE_DIR=str(folder))).digest
        == digest
    )


def test_a_compilation_removes_what_was_used_longest_ago(cache):
    """The first program that a process stores makes it look at the size."""
    folder, file, _ = cache
    old = folder / "0a" / "old.cubin"
    old.parent.mkdir(exist_ok=True)
    old.write_bytes(bytes(1 << 20))
    for path, age in ((file, 1000), (old, 500)):
        os.utime(path, (time.time() - age,) * 2)
    limit = {"CUTLASS_API_CACHE_LIMIT": "1"}
    compile_in_a_process(folder, **limit)  # stores nothing
    assert old.exists() and time.time() - file.stat().st_mtime < 100
    compile_in_a_process(folder, cc=80, **limit)
    assert not old.exists() and file.exists() and len(files_in(folder)) == 2


def test_kernels_and_architectures_have_files_of_their_own(cache):
    folder, _, digest = cache
    other, ada = compile_in_a_process(folder, OTHER), compile_in_a_process(folder, cc=89)
    assert (other.name, ada.architecture) == (OTHER, "sm_89")
    assert len({digest, other.digest, ada.digest}) == 3
    assert len(files_in(folder)) == 3


def flip(file, position):
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    "damage",
    {
        "empty": lambda file: file.write_bytes(b""),
        "truncated": lambda file: file.write_bytes(file.read_bytes()[:-1]),
        "half": lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]),
        "bit in the head": lambda file: flip(file, 3),
        "bit in the checksum": lambda file: flip(file, 20),
        "bit in the middle": lambda file: flip(file, file.stat().st_size // 2),
        "last bit": lambda file: flip(file, -1),
        "text": lambda file: file.write_text("not a program"),
        "bare machine code": lambda file: file.write_bytes(b"\x7fELF" + bytes(5000)),
    }.items(),
    ids=lambda item: item[0],
)
def test_damaged_files_are_rebuilt(cache, damage):
    folder, file, digest = cache
    whole = file.read_bytes()
    damage[1](file)
    rebuilt = compile_in_a_process(folder)
    assert (rebuilt.name, rebuilt.digest) == (KERNEL, digest)
    assert file.read_bytes() == whole


@pytest.mark.parametrize(
    "name, cc", [(OTHER, 90), (KERNEL, 89)], ids=["another kernel", "another architecture"]
)
def test_a_whole_file_of_something_else_is_not_loaded(cache, tmp_path, name, cc):
    folder, file, digest = cache
    compile_in_a_process(tmp_path / "elsewhere", name, cc)
    (foreign,) = files_in(tmp_path / "elsewhere")
    shutil.copy(foreign, file)
    rebuilt = compile_in_a_process(folder)
    assert (rebuilt.name, rebuilt.architecture, rebuilt.digest) == (KERNEL, "sm_90a", digest)


def test_a_folder_in_the_files_place(cache):
    folder, file, digest = cache
    file.unlink()
    (file / "inside").mkdir(parents=True)
    assert compile_in_a_process(folder).digest == digest
    assert [path for path in files_in(folder)] == [], "nothing half-written is left behind"


@pytest.mark.parametrize(
    "folder", ["/proc/no/such/folder", "/dev/null/cache", "{file}"], ids=["proc", "null", "file"]
)
def test_a_cache_that_cannot_be_written(filled, tmp_path, folder):
    (tmp_path / "file").write_text("a file")
    assert compile_in_a_process(folder.format(file=tmp_path / "file")).digest == filled[1].digest
    assert (tmp_path / "file").read_text() == "a file"


def test_a_cache_that_may_only_be_read(cache):
    folder, file, digest = cache
    for path in (file, file.parent, folder):
        path.chmod(0o444 if path is file else 0o555)
    try:
        warm = compile_in_a_process(folder)
    finally:
        for path in (folder, file.parent):
            path.chmod(0o755)
    assert warm.digest == digest
    assert files_in(folder) == [file]


@pytest.mark.parametrize("value", [None, ""], ids=["unset", "empty"])
def test_the_users_cache_directory(tmp_path, value):
    compile_in_a_process(tmp_path, CUTLASS_API_CACHE_DIR=value, XDG_CACHE_HOME=str(tmp_path))
    (file,) = files_in(tmp_path)
    assert file.is_relative_to(tmp_path / "rutlass")


def mode(path):
    return path.stat().st_mode & 0o7777


def logged(folder):
    """The messages of a process that compiles a kernel."""
    settings = {"CUTLASS_API_CACHE_DIR": str(folder), "CUTLASS_API_LOG": "info"}
    process = start_python(COMPILE, KERNEL, 90, "now", **settings)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return err.splitlines()


def test_folders_and_files_are_for_the_user_alone(tmp_path):
    folder = tmp_path / "new" / "cache"
    script = f"import os; os.umask(0)\n{textwrap.dedent(COMPILE)}"
    run_python(script, KERNEL, 90, "now", CUTLASS_API_CACHE_DIR=str(folder))
    (file,) = files_in(folder)
    assert [mode(path) for path in (folder, file.parent, file)] == [0o700, 0o700, 0o600]


def test_a_cache_that_others_may_read_or_write_is_tightened(cache):
    """Others may have left files in it: a file that they may write is compiled again."""
    folder, file, digest = cache
    (folder / "tuning.sqlite3").touch()
    before = writings(folder)
    for path in (folder, file.parent):
        path.chmod(0o777)
    assert compile_in_a_process(folder).digest == digest
    assert mode(folder) == 0o700 and writings(folder) == before
    file.chmod(0o666)
    assert compile_in_a_process(folder).digest == digest
    assert [mode(path) for path in (file.parent, file)] == [0o700, 0o600]
    assert writings(folder) != before


def with_other_files(folder):
    folder.mkdir()
    (folder / "letter.txt").touch()
    folder.chmod(0o777)
    return folder


def shared(folder):
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def of_another_user(folder):
    """Only root can create one. Other users find those of root."""
    if os.geteuid():
        return Path("/usr")
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    return folder


def linked_to_another_user(folder):
    folder.symlink_to(of_another_user(folder.with_name("target")))
    return folder


def linked_by_another_user(folder):
    if os.geteuid():
        pytest.skip("only root can create a link of another user")
    folder.symlink_to(folder.parent)
    os.chown(folder, 12345, 12345, follow_symlinks=False)
    return folder


@pytest.mark.parametrize(
    "make, reason",
    [
        (with_other_files, r"other users may write to the folder \(mode 0777\).* chmod go-w "),
        (shared, r"other users may write to the folder \(mode 1777\).* chmod go-w "),
        (of_another_user, r"the folder belongs to user \d+, .* chown -R \d+ "),
        (linked_to_another_user, r"the folder belongs to user \d+, "),
        (linked_by_another_user, r"the symbolic link belongs to user 12345, "),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_folder_of_others_is_refused(monkeypatch, tmp_path, make, reason):
    folder = make(tmp_path / "cache")
    entries, rights = sorted(folder.iterdir()), mode(folder)
    monkeypatch.setenv("CUTLASS_API_CACHE_DIR", str(folder))
    assert re.match(reason, cutlass_api._core.cache_refusal())
    assert cutlass_api._core.trim_cache(0) == (0, 0)
    assert re.match(f"not cached in {folder}: {reason}", inspection.environment()[PROGRAMS])
    assert (sorted(folder.iterdir()), mode(folder)) == (entries, rights)


def test_a_home_folder_keeps_its_rights(cache, monkeypatch):
    folder, file, _ = cache
    (folder / "letter.txt").touch()
    for path in (folder, file.parent):
        path.chmod(0o755)
    monkeypatch.setenv("CUTLASS_API_CACHE_DIR", str(folder))
    assert cutlass_api._core.cache_refusal() is None
    assert mode(folder) == 0o755


def test_a_refused_folder_is_logged_once(tmp_path):
    folder = shared(tmp_path / "cache")
    compiled, warning = sorted(logged(folder), key=lambda line: "cannot be cached" in line)
    assert "compiled by NVRTC" in compiled
    assert re.search(f"cached in {folder}: other users .* Set CUTLASS_API_CACHE_DIR", warning)
    assert list(folder.iterdir()) == []


def test_a_damaged_file_is_logged(cache):
    folder, file, _ = cache
    flip(file, -1)
    damaged, compiled = logged(folder)
    assert f"{file} is not loaded: the checksum does not match" in damaged
    assert "compiled by NVRTC" in compiled


def test_only_files_of_the_cache_are_removed(cache, monkeypatch, tmp_path):
    folder, file, _ = cache
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    kept = [file.with_name("letter.txt"), elsewhere / "old.cubin"]
    for path in kept:
        path.touch()
        os.utime(path, (0, 0))
    link = "0b" if file.parent.name == "0a" else "0a"
    (folder / link).symlink_to(elsewhere)
    monkeypatch.setenv("CUTLASS_API_CACHE_DIR", str(folder))
    assert cutlass_api._core.trim_cache(0)[0] == 1
    assert not file.exists() and all(path.exists() for path in kept)


def test_the_cache_directory_is_readable(tmp_path):
    code = "import cutlass_api; print(cutlass_api._core.cache_directory())"
    assert run_python(code, CUTLASS_API_CACHE_DIR=str(tmp_path)) == f"{tmp_path}\n"


def test_processes_that_compile_at_once(filled, tmp_path):
    folder, go = tmp_path / "cache", tmp_path / "go"
    processes = [
        start_python(COMPILE, KERNEL, 90, go, CUTLASS_API_CACHE_DIR=str(folder)) for _ in range(4)
    ]
    go.touch()
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        made = result(out)
        assert (made.name, made.digest) == (KERNEL, filled[1].digest)
    assert len(files_in(folder)) == 1
