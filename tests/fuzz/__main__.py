"""Runs kernels on random problems and compares them with float64.

    python -m tests.fuzz --seconds 60 --workers 4
    python -m tests.fuzz --seed 1234
    python -m tests.fuzz --case '{"seed": 1, "operation": "gemm", ...}'

A failing case is printed with the command that reproduces it, and so is the smallest case found to
fail in the same way. The exit status is 1 if a case fails. The case of a seed depends on the kind
of device: a GPU if there is one, else the CPU.
"""

import argparse
import json
import math
import os
import random
import shlex
import sys
import threading
import time
from collections import Counter

from .workers import OPERATIONS, REFUSED, SEEDS_OF_A_PROGRAM, Options, Outcome, Worker

PARSER = argparse.ArgumentParser(
    "python -m tests.fuzz",
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
)
_add = PARSER.add_argument
_add("--seconds", type=float, default=60, help="the time of the run (60)")
_add("--workers", type=int, default=2, help="the number of processes (2)")
_add("--cases", type=int, help="the number of cases, if the time suffices")
_add("--first", type=int, metavar="SEED", help="the first seed (random)")
_add("--seed", type=int, action="append", help="run the case of this seed, and only such cases")
_add("--case", metavar="JSON", action="append", help="run this case, and only such cases")
_add("--operation", default="", choices=OPERATIONS, help="only cases of this operation")
_add("--kernels", default="", metavar="PART", help="only kernels with this part in their name")
_add("--load", default="", metavar="FILE", help="a Python file that registers more kernels")
_add("--limit", type=float, default=60, help="seconds until a case counts as a hang (60)")
_add("--findings", type=int, default=10, help="the number of failing cases to stop at (10)")
_add("--emulate", action="store_true", help="run kernels for Hopper on the CPU by tests/emulator")


class Fuzz:
    """A run: a thread for each worker takes seeds until the end."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.lock = threading.Lock()
        self.begin = time.monotonic()
        random_seed = random.SystemRandom().getrandbits(31)
        self.first = self.next = random_seed if options.first is None else options.first
        self.end = self.first + (math.inf if options.cases is None else options.cases)
        self.findings = 0
        #: Threads that ended without an exception.
        self.finished = 0
        #: Cases by operation and by the family of the kernel.
        self.counts: Counter[tuple[str, str]] = Counter()

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self.begin

    def is_over(self) -> bool:
        out_of_time = self.seconds > self.options.seconds
        return out_of_time or self.findings >= self.options.findings

    def take(self) -> range:
        """The next seeds, of one program; none at the end of the run."""
        with self.lock:
            if self.is_over():
                return range(0)
            start = self.next
            self.next = min(start - start % SEEDS_OF_A_PROGRAM + SEEDS_OF_A_PROGRAM, self.end)
            return range(start, self.next)

    def work(self) -> None:
        """The loop of a thread."""
        worker = self.start_worker()
        while seeds := self.take():
            for seed in seeds:
                # The next cases of this program are likely to fail in the same way.
                if self.is_over() or self.check(worker, seed).is_finding:
                    break
        worker.stop()
        with self.lock:
            self.finished += 1

    def start_worker(self) -> Worker:
        of = self.options
        return Worker(Options(of.limit, of.operation, of.kernels, of.load))

    def check(self, worker: Worker, case: int | str) -> Outcome:
        """Runs a case and counts it. Prints a finding."""
        outcome = worker.check(case)
        known = json.loads(outcome.case) if isinstance(outcome.case, str) else {}
        family = known.get("kernel", "").split("_")[0]
        with self.lock:
            key = family if outcome.kind != REFUSED else "no kernel"
            self.counts[known.get("operation", "not drawn"), key] += 1
            self.findings += outcome.is_finding
            seed = f", seed {case}" if isinstance(case, int) else ""
            text = [f"finding {self.findings}: {outcome.kind}{seed}", *self.describe(outcome)]
        if outcome.is_finding:
            smaller = worker.shrink(outcome)
            text += ["  smaller:", *self.describe(smaller)] if smaller is not outcome else []
            print("\n".join(text), flush=True)
        return outcome

    def describe(self, outcome: Outcome) -> list[str]:
        """A failure, and the command that reproduces it."""
        command, case = ["python", "-m", "tests.fuzz"], outcome.case
        for name in ("limit", "operation", "kernels", "load"):
            if (value := getattr(self.options, name)) != PARSER.get_default(name):
                command += [f"--{name}", str(value)]
        command += ["--emulate"] if self.options.emulate else []
        command += ["--case", case] if isinstance(case, str) else ["--seed", str(case)]
        kernel = json.loads(case).get("kernel", "") if isinstance(case, str) else ""
        return [f"  {kernel}: {outcome.message}", f"  {shlex.join(command)}"]

    def summary(self) -> str:
        lines = [f"{'operation':16} {'kernels':16} cases"]
        lines += [f"{of:16} {key:16} {n:5}" for (of, key), n in sorted(self.counts.items())]
        total = sum(self.counts.values())
        lines.append(
            f"{total} cases in {self.seconds:.0f} s ({total / self.seconds:.1f} a second), seeds "
            f"{self.first} to {self.next - 1}, {self.findings} findings"
        )
        return "\n".join(lines)


def main() -> int:
    options = PARSER.parse_args()
    if options.emulate:
        import stand_in

        os.environ.update(stand_in.environment(emulated=True))
    fuzz = Fuzz(options)
    if alone := [*(options.seed or ()), *(options.case or ())]:
        worker = fuzz.start_worker()
        for case in alone:
            outcome = fuzz.check(worker, case)
            print(f"{outcome.kind}: {outcome.case}")
        worker.stop()
        return int(fuzz.findings > 0)
    threads = [threading.Thread(target=fuzz.work, daemon=True) for _ in range(options.workers)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        print("interrupted")
        fuzz.finished = len(threads)
    print(fuzz.summary())
    return int(fuzz.findings > 0 or fuzz.finished < len(threads))


if __name__ == "__main__":
    sys.exit(main())
