"""Runs `scripts/sanitize.py` by each tool of compute-sanitizer, and prints a table.

    python scripts/sanitizers.py
    python scripts/sanitizers.py --tools racecheck --only ladder

First without a tool, which compiles the kernels and compares their results; then by each tool, in
several processes, which share the GPU. Prints the number of results by family, and the errors,
warnings included. The exit status is 1 if a tool reports any, or if a result is wrong.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
SCRIPT = Path(__file__).with_name("sanitize.py")
#: The last line of a tool's report. Racecheck counts hazards, of errors and warnings.
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+) (?:errors?$|hazards? displayed)", re.M)
RESULTS = re.compile(r"^\d+ results in .* s: (\{.*\})$", re.MULTILINE)
#: Lines of a report to print.
FINDINGS = re.compile(r"^=========\s+(?:Error|Warning|Invalid|Uninit|Barrier|Program hit|\s*at ).*")


@dataclass
class Run:
    """What all processes of one tool found."""

    tool: str
    families: Counter[str] = field(default_factory=Counter)
    errors: int = 0
    #: Processes without a summary, or with a wrong result.
    failures: int = 0
    findings: Counter[str] = field(default_factory=Counter)
    seconds: float = 0

    def read(self, output: str, status: int) -> None:
        """Adds the output of a process."""
        results = RESULTS.search(output)
        summary = SUMMARY.findall(output)
        self.families.update(json.loads(results[1]) if results else {})
        self.errors += sum(map(int, summary))
        complete = results and (summary or not self.tool)
        self.failures += not complete or (status != 0 and not sum(map(int, summary)))
        wrong = [line for line in output.splitlines() if line.startswith("WRONG")]
        lines = [line[9:].strip() for line in output.splitlines() if FINDINGS.match(line)]
        self.findings.update(wrong + lines)
        if not complete:
            self.findings.update(output.splitlines()[-5:])


def run(tool: str, workers: int, options: list[str], limit: float) -> Run:
    """Runs the script in so many processes, each with a share of the kernels."""
    found, begin = Run(tool), time.monotonic()
    check = ["compute-sanitizer", "--error-exitcode", "9", "--tool", tool] if tool else []
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / str(share) for share in range(workers)]
        processes = []
        for share, log in enumerate(logs):
            script = [sys.executable, str(SCRIPT), "--share", f"{share}/{workers}", *options]
            with log.open("w") as output:
                pipes = {"stdout": output, "stderr": subprocess.STDOUT}
                started = subprocess.Popen([*check, *script], start_new_session=True, **pipes)
                processes.append(started)
        for process, log in zip(processes, logs, strict=True):
            try:
                status = process.wait(max(begin + limit - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                status = process.wait()
            found.read(log.read_text(errors="replace"), status)
    found.seconds = time.monotonic() - begin
    return found


def table(runs: list[Run]) -> str:
    """Results by family, one column a tool."""
    families = sorted({family for each in runs for family in each.families})
    rows = [["", *(each.tool or "no tool" for each in runs)]]
    rows += [[of, *(str(each.families[of]) for each in runs)] for of in families]
    rows += [
        ["errors", *(str(each.errors) for each in runs)],
        ["failed processes", *(str(each.failures) for each in runs)],
        ["seconds", *(f"{each.seconds:.0f}" for each in runs)],
    ]
    return "\n".join(f"{row[0]:18}" + "".join(f"{cell:>12}" for cell in row[1:]) for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS)
    parser.add_argument("--workers", type=int, default=8, help="processes at a time (8)")
    parser.add_argument("--limit", type=float, default=1800, help="seconds of each tool (1800)")
    arguments, options = parser.parse_known_args()
    runs: list[Run] = []
    for tool in ("", *arguments.tools):
        runs.append(run(tool, arguments.workers, options, arguments.limit))
        print(f"{tool or 'no tool'}: {runs[-1].seconds:.0f} s", flush=True)
        for line, count in runs[-1].findings.most_common(20):
            print(f"  {count} x {line}", flush=True)
    print(table(runs))
    return int(any(each.errors or each.failures for each in runs))


if __name__ == "__main__":
    sys.exit(main())
