"""Processes that start with imports already made: forks of a server that has made them.

An import of torch takes seconds of a process. A fork has its own memory, environment, arguments and
output, and ends as a process does that has run the script. What dynamic linking reads from the
environment is that of the server.
"""

import atexit
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import types
from pathlib import Path
from typing import Any


class Server:
    """A process that forks for each script, one after the other."""

    def __init__(self, imports: str, environment: dict[str, str]) -> None:
        code = f"import {imports}\nfrom support import warm\nwarm.serve()\n"
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        atexit.register(self._process.kill)

    def run(
        self, script: str, *arguments: object, environment: dict[str, str], timeout: float
    ) -> "subprocess.CompletedProcess[str]":
        """The outcome of a script. Raises TimeoutExpired as `subprocess.run` does."""
        with self._lock, tempfile.TemporaryDirectory() as folder:
            files = [str(Path(folder, name)) for name in ("stdout", "stderr")]
            arguments = tuple(map(str, arguments))
            self._send([script, arguments, environment, os.getcwd(), *files])
            child = self._receive()
            timer = threading.Timer(timeout, os.kill, (child, signal.SIGKILL))
            timer.start()
            code = self._receive()
            if not timer.is_alive():
                raise subprocess.TimeoutExpired(script, timeout)
            timer.cancel()
            out, err = (Path(file).read_text() for file in files)
        return subprocess.CompletedProcess(script, code, out, err)

    def _send(self, message: list[Any]) -> None:
        print(json.dumps(message), file=self._process.stdin, flush=True)

    def _receive(self) -> int:
        line = self._process.stdout.readline()
        assert line, f"the server of imports ended with {self._process.wait()}"
        return int(line)


_servers: dict[str, Server] = {}


def server(imports: str, environment: dict[str, str]) -> Server:
    """The server of these imports: one for each process of the tests, which starts in the
    environment of the first call.
    """
    if imports not in _servers:
        _servers[imports] = Server(imports, environment)
    return _servers[imports]


def serve() -> None:
    """Forks for each line of stdin, and prints the process and its exit status. Returns in forks,
    after their scripts.
    """
    # Forks share what the imports made, and their collectors do not look at it.
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        script, arguments, environment, cwd, *files = json.loads(line)
        child = os.fork()
        if not child:
            _become(arguments, environment, cwd, files)
            exec(compile(script, "<string>", "exec"), sys.modules["__main__"].__dict__)
            return
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _become(arguments: list[str], environment: dict[str, str], cwd: str, files: list[str]) -> None:
    """Makes a fork a process of its own."""
    for place, file in enumerate([os.devnull, *files]):
        opened = os.open(file, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, place)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = ["-c", *arguments]
    sys.modules["__main__"] = types.ModuleType("__main__")
