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
from support.forks import FORK
from support.helpers import run_python
from support.pace import slowness

PACKAGES = Path(cutlass_api.__file__).parents[1]

# Other distributions.


def site_packages(folder: Path, records: dict[str, str]) -> Path:
    """A folder of installed packages: this package, and a RECORD for each distribution."""
    for package in ("cutlass_api", "nvidia_cutlass_stub"):
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


# Forks.

#: A compilation of another text for each number, and :data:`FORK`.
WORK = (
    FORK
    + """
import sys, threading, time

def compile(number):
    source = f'extern "C" __global__ void f(float* x) {{ *x = {number}; }}'
    return cutlass_api.cuda_kernel(source, "f", grid=1).compile(cc=90)
"""
)


def test_a_fork_waits_for_a_compilation(tmp_path: Path) -> None:
    """NVRTC has locks, which a child would find locked."""
    variables = stand_in.build_locked_nvrtc(tmp_path)
    script = """
        import ctypes, sys
        nvrtc = ctypes.CDLL("libnvrtc.so.13")
        exec(sys.argv[1])
        compile(0)
        assert ended(fork(lambda: compile(1))) == 0  # after a compilation
        other = threading.Thread(target=compile, args=(2,))
        other.start()
        while nvrtc.compilations() < 2:
            time.sleep(0.001)
        assert ended(fork(lambda: (compile(3), multiply()))) == 0
        other.join()
        compile(4)  # the parent goes on
        print(nvrtc.compilations())
    """
    variables["CUTLASS_API_CACHE_DIR"] = str(tmp_path / "cache")
    assert run_python(script, WORK, timeout=180, **variables) == "3\n"


def test_forks_beside_busy_threads() -> None:
    """Each lock is free in the child: of the programs in memory, of the thread pool."""
    script = """
        import sys
        exec(sys.argv[1])
        compile(0)
        done = threading.Event()

        def again(work):
            while not done.is_set():
                work()

        busy = [threading.Thread(target=again, args=(of,)) for of in (lambda: compile(0), multiply)]
        [thread.start() for thread in busy]
        statuses = {ended(fork(lambda: (compile(0), multiply()))) for _ in range(20)}
        done.set()
        [thread.join() for thread in busy]
        print(statuses)
    """
    assert run_python(script, WORK, timeout=180) == "{0}\n"


#: The prefix of scripts about a GEMM, without the look for a kernel, which opens the device.
UNOPENED, OPENING = stand_in.GEMM.rstrip().rsplit("\n", 1)


def test_a_launch_in_a_fork_says_that_cuda_does_not_survive_it() -> None:
    script = """
        device.library.stand_in_end_in_forks()
        # Before the parent uses CUDA, a child may.
        assert ended(fork(lambda: first(args, "sm80").run(args, stream=STREAM))) == 0

        kernel = first(args, "sm80")
        artifact = kernel.compile(args)
        calls = [
            lambda: kernel.run(args, artifact, STREAM),
            lambda: kernel.run(args, artifact),
            kernel.bind(args, artifact, STREAM),
            lambda: cutlass_api.matmul(a, b, out=out),
        ]
        for _ in range(30):  # some become graphs
            [call() for call in calls]

        def child():
            compile(0)
            multiply()
            first(args, "skinny").compile(args, cc=90)
            for call in (*calls, *calls, lambda: first(args, "simt").run(args)):
                spawn = 'multiprocessing.set_start_method("spawn")'
                with raises(RuntimeError, "CUDA does not survive a fork", spawn):
                    call()

        assert ended(fork(child)) == 0
        before = device.launches()
        [call() for call in calls]
        assert device.launches() == before + len(calls)
    """
    assert OPENING.startswith("kernel = ")
    stand_in.run(UNOPENED + WORK + textwrap.dedent(script))


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


# The end of the process.


@pytest.mark.parametrize("daemon", [True, False])
def test_the_process_ends_while_threads_launch(daemon: bool) -> None:
    stand_in.run_gemm(
        f"""
        import time
        artifact = kernel.compile(args)
        launch = kernel.bind(args, artifact, STREAM)
        device.library.stand_in_block(5)

        def many(call):
            for _ in range({1000 if daemon else 20}):
                call()

        calls = [
            lambda: kernel.run(args, artifact, STREAM),
            lambda: cutlass_api.matmul(a, b, out=out),
            launch,
        ]
        for call in calls:
            threading.Thread(target=many, args=(call,), daemon={daemon}).start()
        while device.launches() < 5:
            time.sleep(0.001)
        """
    )


def test_the_process_ends_while_threads_compile(tmp_path: Path) -> None:
    """`exit` destroys NVRTC's state."""
    code = """
        import atexit, sys

        def late():  # Python calls it after the function that this package registers
            try:
                compile(-1)
            except RuntimeError as error:
                print(error)

        atexit.register(late)
        exec(sys.argv[1])

        def many(first):
            for number in range(first, first + 1000):
                compile(number)
                compiled.append(number)

        compiled = []
        for first in (0, 1000):
            threading.Thread(target=many, args=(first,), daemon=True).start()
        while not compiled:
            time.sleep(0.001)
    """
    for _ in range(3):  # one run in two crashes if the process does not wait
        out = run_python(code, WORK, CUTLASS_API_CACHE_DIR=str(tmp_path / "cache"))
        assert out.startswith("NVRTC could not compile kernel f for sm_90a:")
        assert "the interpreter is shutting down" in out


# Threads, streams and devices.


def test_threads_on_streams_of_several_devices() -> None:
    """The CPU executes the launches. Each thread has operands of its own, and shares kernels. The
    stand-in has room for all of the tensors, two for each operand.
    """
    script = """
        import threading
        import torch
        from cutlass_api import _core, get_kernels
        from stand_in import device, emulated

        def on(ordinal, tensor):
            operand = device.Tensor(tensor.data_ptr(), tuple(tensor.shape), device=ordinal)
            operand.memory = emulated.operand(tensor)  # lets kernels use it
            return operand

        def arguments(ordinal, seed):
            generator = torch.Generator().manual_seed(seed)
            a, b = (torch.randint(-4, 5, of, generator=generator).half() for of in SHAPES)
            out = torch.full((32, 24), torch.nan).half()
            tensors = (a, b, out)
            args = _core.GemmArguments(*(on(ordinal, tensor) for tensor in tensors), "float32")
            return tensors, args

        SHAPES = ((32, 40), (40, 24))
        tensors, args = arguments(0, 0)
        families = ("simt", "sm80", "sm90")
        kernels = [
            next(of for of in get_kernels(args) if family in of.metadata.kernel_name)
            for family in families
        ]
        artifacts = [kernel.compile(args) for kernel in kernels]
        begin, wrong, done = threading.Barrier(8), [], []

        def work(number):
            ordinal = number % 2
            stream = (0x5010, 0x6010)[ordinal] + 16 * (number // 4)
            (a, b, out), args = arguments(ordinal, 1 + number)
            begin.wait()
            for kernel, artifact in zip(kernels, artifacts, strict=True):
                for turn in range(2):
                    out.fill_(torch.nan)
                    kernel.run(args, artifact, stream)
                    if not torch.equal(out, (a.float() @ b.float()).half()):
                        wrong.append((number, turn, kernel))
                    done.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not wrong, wrong
        assert len(done) == 8 * 3 * 2, done
        assert device.library.stand_in_retained_contexts() == 2
        assert device.library.stand_in_open_contexts() == 0
    """
    stand_in.run(textwrap.dedent(script), emulated=True)


# A device that other code resets.


def test_the_reset_of_a_device_is_named() -> None:
    stand_in.run_gemm(
        """
        artifact = kernel.compile(args)
        calls = [
            kernel.bind(args, artifact, STREAM),
            kernel.bind(args, artifact, 0),
            lambda: kernel.run(args, artifact, STREAM),
            lambda: cutlass_api.matmul(a, b, out=out),
            lambda: first(args, "simt").run(args),
        ]
        for _ in range(30):  # some become graphs
            [call() for call in calls]
        x, y, z = (Tensor(at, (64, 64), device=1) for at in (A, B, OUT))
        there = GemmArguments(x, y, z, "float32")
        on_other = kernel.bind(there, artifact, OTHER_DEVICE)
        device.library.stand_in_reset(0)
        for call in (*calls, *calls):
            said = "the CUDA context is lost: other code", "has reset the device"
            with raises(RuntimeError, "CUDA_ERROR_CONTEXT_IS_DESTROYED", *said):
                call()
        assert device.library.stand_in_open_contexts() == 0
        before = device.launches()
        on_other()
        assert device.launches() == before + 1
        """
    )
