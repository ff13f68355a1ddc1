"""Worker processes, each with a watchdog in the parent.

The parent holds cases as JSON and imports neither torch nor the package. A fork server imports
them, so that a worker that was killed is replaced at once.
"""

import multiprocessing
import runpy
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

PASSED, REFUSED, HANG, CRASH = "passed", "refused", "hang", "crash"

#: As in the names of kernels: "grouped_gemm" has groups along M, and "k_grouped_gemm" along K.
#: "masked_gemm": a count of rows for each group. "codes": a product by a weight of 4 bits.
OPERATIONS = ("gemm", "grouped_gemm", "elementwise_add", "codes", "k_grouped_gemm", "masked_gemm")
#: Seeds in a row whose cases mostly share a compiled program.
SEEDS_OF_A_PROGRAM = 16
#: Until a worker has imported torch and found its device.
START_SECONDS = 300
SHRINKING_SECONDS = 60


@dataclass(frozen=True)
class Options:
    """What workers are started with."""

    #: Seconds until a case counts as a hang.
    limit: float
    #: The operation of all cases; any if empty.
    operation: str
    #: A part of the kernels' names.
    kernels: str
    #: A Python file that a worker runs first.
    load: str


@dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    kind: str
    #: The case in JSON with the kernel's name, or a seed whose case was not drawn.
    case: int | str
    message: str = ""
    #: Whether the CUDA context is lost, so that the worker ends.
    is_fatal: bool = False

    @property
    def is_finding(self) -> bool:
        return self.kind not in (PASSED, REFUSED)


class Worker:
    """A process that runs cases one by one. It is replaced after a hang or a crash."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([f"{__package__}.trial"])
        self.process: BaseProcess | None = None
        self.connection: Connection

    def check(self, case: int | str) -> Outcome:
        """Runs the case of a seed, or a case in JSON."""
        known = case
        try:
            self._send("check", case)
            # The worker sends the case when it is drawn, and again with the chosen kernel.
            while self.connection.poll(self.options.limit):
                answer = self.connection.recv()
                if isinstance(answer, Outcome):
                    if answer.is_fatal:
                        self.stop()
                    return answer
                known = answer
        except (EOFError, ConnectionError):
            self.process.join()
            code, self.process = self.process.exitcode, None
            return Outcome(CRASH, known, f"the process ended with exit status {code}")
        self.stop()
        return Outcome(HANG, known, f"no result within {self.options.limit:g} s")

    def shrink(self, outcome: Outcome) -> Outcome:
        """The outcome of the smallest case that greedy search finds to fail in the same way."""
        if isinstance(outcome.case, int):
            return outcome
        end, tried, best = time.monotonic() + SHRINKING_SECONDS, {outcome.case}, outcome
        while True:
            self._send("smaller", best.case)
            for case in self.connection.recv():
                if time.monotonic() > end:
                    return best
                if case in tried:
                    continue
                tried.add(case)
                again = self.check(case)
                if again.kind == outcome.kind:
                    best = again
                    break
            else:
                return best

    def stop(self) -> None:
        """Kills the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None

    def _send(self, what: str, case: int | str) -> None:
        """Sends a request, to a new process if there is none."""
        if self.process is None:
            self.connection, theirs = self.context.Pipe()
            self.process = self.context.Process(
                target=work, args=(theirs, self.options), daemon=True
            )
            self.process.start()
            theirs.close()
            if not self.connection.poll(START_SECONDS):
                self.process.kill()
            self.connection.recv()
        self.connection.send((what, case))


def work(connection: Connection, options: Options) -> None:
    """The loop of a worker process."""
    from .cases import Case
    from .drawing import draw
    from .shrinking import smaller
    from .trial import choose_device

    limits = choose_device()
    if options.load:
        runpy.run_path(options.load)
    connection.send("started")
    while True:
        what, given = connection.recv()
        is_seed = isinstance(given, int)
        case = draw(given, limits, options.operation) if is_seed else Case.from_json(given)
        if what == "smaller":
            connection.send([each.to_json() for each in smaller(case)])
        else:
            _check(case, options, connection)


def _check(case, options: Options, connection: Connection) -> None:
    """Runs a case in this process and sends its outcome."""
    from .trial import Finding, Trial, is_fatal

    text = case.to_json()
    connection.send(text)
    try:
        trial = Trial(case, options.kernels)
        text = trial.case.to_json()
        connection.send(text)
        if trial.kernel is not None:
            trial.check()
        outcome = Outcome(PASSED if trial.kernel is not None else REFUSED, text)
    except Finding as finding:
        outcome = Outcome(finding.kind, text, str(finding))
    except Exception as error:
        outcome = Outcome("error", text, f"{type(error).__name__}: {error}", is_fatal(error))
    connection.send(outcome)
