"""The fuzz itself: cases, reports, and kernels with mistakes that it has to find."""

import os
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fuzz.cases import OF_ROWS, ROW_OF_GROUP, Case, Operand, Stage
from fuzz.drawing import HALVES, Limits, draw
from fuzz.shrinking import smaller
from fuzz.stages import EXPRESSIONS, Bounded, apply
from fuzz.trial import Finding, Trial
from fuzz.workers import OPERATIONS
from support import memory
from support.memory import Form
from support.weights import PACKED

ROOT = Path(__file__).parents[2]
#: As on the CPU.
LIMITS = Limits(2**18, 2**16, any_offsets=False)


def fuzz(*options: object) -> tuple[int, str]:
    """The exit status and the output of a run on the CPU."""
    command = [sys.executable, "-m", "tests.fuzz", *map(str, options)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "timeout": 300}
    result = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, **pipes
    )
    return result.returncode, result.stdout


def test_a_seed_and_json_reproduce_a_case():
    cases = [draw(seed, LIMITS) for seed in range(0, 4800, 16)]
    assert cases == [draw(seed, LIMITS) for seed in range(0, 4800, 16)]
    assert cases == [Case.from_json(case.to_json()) for case in cases]
    assert {case.operation for case in cases} == set(OPERATIONS)
    assert {bool(case.stages) for case in cases} == {bool(case.scales) for case in cases}
    assert len({case.types for case in cases}) > 50


def test_a_case_gets_smaller_until_it_is_the_smallest():
    for seed in range(0, 1600, 16):
        case, steps = draw(seed, LIMITS), 0
        while (candidate := next(smaller(case), None)) is not None:
            assert candidate != case
            case, steps = candidate, steps + 1
            assert steps < 200
        assert (
            max(case.m, case.n) <= 1
            and case.k <= case.k_step
            and not case.stages
            and not case.scales
        )


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("error", [1e-3, 0.5, 3.0])
def test_bounds_hold_for_each_value_within_those_of_the_argument(expression, error):
    value = torch.linspace(-6, 6, 97, dtype=torch.float64)
    x, c = Bounded(value, torch.full_like(value, error)), Bounded.of(torch.tensor(0.75))
    found = apply(expression, x, c, torch.float32)
    for share in torch.linspace(-1, 1, 33, dtype=torch.float64):
        inside = apply(expression, Bounded.of(value + share * error), c, torch.float32)
        outside = (inside.value - found.value).abs() > found.error + 1e-6
        assert not outside.any(), (expression, float(share), value[outside])


def test_integers_stay_integers_without_another_operand():
    x = Bounded(torch.tensor([2**31 - 1, -7]), torch.zeros((), dtype=torch.float64))
    nothing = Bounded.of(torch.tensor(0.0))
    assert apply("round(x)", x, nothing, torch.float32).is_whole
    assert not apply("x + c", x, nothing, torch.float32).is_whole


def test_the_reference_has_no_findings():
    status, output = fuzz("--cases", 320, "--seconds", 200, "--workers", 1, "--first", 1000)
    last = output.splitlines()[-1]
    assert status == 0 and re.match("320 cases .*, seeds 1000 to 1319, 0 findings", last), output


def test_codes_have_all_formats_and_mostly_few_rows():
    cases = [draw(seed, LIMITS, "codes") for seed in range(0, 4800, 16)]
    assert {case.operation for case in cases} == {"codes"}
    assert {case.k % 32 for case in cases} == {0} and all(case.k for case in cases)
    assert any(case.k % 128 for case in cases) and {case.types[0] for case in cases} == set(HALVES)
    assert {(case.codes.format, case.codes.depth) for case in cases} == {
        (name, depth)
        for name, kind in PACKED.items()
        for depth in ([kind.depth] if kind.depth else (32, 64, 128, -1))
    }
    assert sum(1 <= case.m <= 64 for case in cases) > len(cases) / 2
    assert any(case.stages for case in cases) and any(case.codes.is_permuted for case in cases)


@pytest.mark.parametrize("format", PACKED)
def test_wrong_codes_of_a_row_are_found(format, monkeypatch):
    monkeypatch.setattr(memory, "DEVICE", torch.device("cpu"))
    cases = (draw(seed, LIMITS, "codes") for seed in range(0, 4800, 16))
    case = next(
        replace(each, stages=())
        for each in cases
        if each.codes.format == format and each.codes.zeros in ("", "uint8") and each.m and each.n
    )
    Trial(case).check()
    trial = Trial(case)
    values, run = trial.operands.weight.values, trial._run

    def run_with_other_codes(*args):
        values[0] ^= 0x44444444
        run(*args)
        values[0] ^= 0x44444444

    monkeypatch.setattr(trial, "_run", run_with_other_codes)
    with pytest.raises(Finding, match="elements of D are wrong"):
        trial.check()


@pytest.mark.parametrize("operation", OF_ROWS)
@pytest.mark.parametrize(("row", "kind"), [(2, "wrong values"), (3, "stray write")])
def test_wrong_rows_of_groups_are_found(operation, row, kind, monkeypatch):
    monkeypatch.setattr(memory, "DEVICE", torch.device("cpu"))
    stages = (Stage("x + c", Operand(ROW_OF_GROUP, "float32")),)
    case = Case(1, operation, ("float32",) * 4, 5, 7, 9, ends=(0, 3), stages=stages)
    Trial(case).check()
    trial = Trial(case)
    run = trial._run

    def run_with_another_row(*args):
        run(*args)
        trial.operands.outputs["D"].tensor.view(-1, 5, 7)[-1, row] = 0

    monkeypatch.setattr(trial, "_run", run_with_another_row)
    with pytest.raises(Finding) as found:
        trial.check()
    assert found.value.kind == kind


def test_groups_have_stacks_of_weights_and_rows_of_operands():
    for operation in OF_ROWS:
        cases = [draw(seed, LIMITS, operation) for seed in range(0, 4800, 16)]
        assert {case.codes.format for case in cases if case.codes} == set(PACKED)
        kinds = {each.operand.kind for case in cases for each in case.stages if each.operand}
        assert ROW_OF_GROUP in kinds


#: Kernels by name: the kind of the finding, and the mistake behind a product.
MISTAKES = {
    "values": ("wrong values", "if out.shape[-2] > 4: out[..., 4, 0] += 1"),
    "stray": ("stray write", "out.as_strided((1,), (1,), out.storage_offset() - 1).zero_()"),
    "input": ("changed input", "a[..., 0, 0] = 0"),
    "bits": ("other bits", "turns.append(out[..., 0, 0].mul_(1 + len(turns) % 2 * 1e-6))"),
    "error": ("error", "raise RuntimeError('no result')"),
    "crash": ("crash", "os.kill(os.getpid(), signal.SIGSEGV)"),
    # Once, so that no time limit passes while the case is made smaller.
    "hang": ("hang", "HUNG.exists() or (HUNG.touch(), time.sleep(1000))"),
}
PLANTED = """
import os, signal, time
from pathlib import Path

import cutlass_api
from cutlass_api.artifact import CompiledArtifact
from cutlass_api.metadata import DenseTensorAttributes, GemmOperandsMetadata, KernelMetadata
from cutlass_api.providers import ProviderBase, register_provider

HUNG = Path(__file__).with_name("hung")
turns = []

@register_provider("planted")
class Provider(ProviderBase):
    pass

@Provider.register
class Planted(cutlass_api.Kernel):
    def compile(self, args, cc=None):
        return CompiledArtifact(None, self)

    def _run(self, args, compiled_artifact, stream, workspace=None):
        a, b, out = (operand.tensor.runtime_tensor for operand in (args.A, args.B, args.out))
        out.copy_(a.double() @ b.double())
        exec(MISTAKES[self.metadata.kernel_name][1], globals() | locals())

    @staticmethod
    def generate_kernels(metadata_filter, epilogue_args=None, cc=None):
        dense = DenseTensorAttributes("float32")
        operands = GemmOperandsMetadata(dense, dense, dense, "float32")
        return [Planted(KernelMetadata(name, Planted, 0, operands)) for name in MISTAKES]
"""


def test_mistakes_are_found_and_made_smaller(tmp_path):
    path = tmp_path / "kernels.py"
    path.write_text(f"MISTAKES = {MISTAKES}\n{PLANTED}")
    case = Case(
        *(1, "gemm", ("float32",) * 4, 37, 29, 40, 2),
        a=Form("n", pad=3),
        b=Form(offset=2),
        out=Form(multiple=8, pad=5, offset=1),
    )
    cases = {name: replace(case, kernel=name).to_json() for name in MISTAKES}
    alone = ("--seed", 7, *(part for text in cases.values() for part in ("--case", text)))
    status, output = fuzz("--load", path, "--limit", 10, *alone)
    assert status == 1, output
    of_seed = Case.from_json(re.match("passed: (.*)", output)[1])
    assert of_seed.kernel and replace(of_seed, kernel="") == draw(7, LIMITS)
    reports = re.split(r"^finding \d+: ", output, flags=re.MULTILINE)[1:]
    smallest = {}
    for report, (name, text) in zip(reports, cases.items(), strict=True):
        kind, failure, *commands = report.splitlines()
        assert kind == MISTAKES[name][0] and failure.startswith(f"  {name}: "), report
        assert shlex.split(commands[0])[-2:] == ["--case", text], report
        smallest[name] = Case.from_json(shlex.split(commands[-2])[-1]) if commands[3:] else None
    plain = replace(case, n=1, k=1, batch=None, a=Form("n"), b=Form(), out=Form())
    for name, found in smallest.items():
        m = 5 if name == "values" else 1
        assert found == (None if name == "hang" else replace(plain, m=m, kernel=name)), output
