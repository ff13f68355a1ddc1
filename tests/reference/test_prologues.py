"""Prologues against float64: on the CPU reference, and on kernels by the emulator."""

import shutil

import cutlass_api
import pytest
import stand_in
import torch
from cutlass_api.arguments import GemmArguments, PrologueArguments
from support import memory, prologues


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setattr(memory, "DEVICE", torch.device("cpu"))


def test_the_reference():
    for trial in prologues.trials():
        (kernel,) = trial.kernels()
        failure = trial.failure(kernel)
        assert failure is None, failure


def test_many_rows_on_the_reference():
    trial = prologues.Trial(prologues.CASES[1], (2,), 70, 40, 136)
    (kernel,) = trial.kernels()
    failure = trial.failure(kernel)
    assert failure is None, failure


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8], ids=str)
def test_quantized_activations_on_the_reference(dtype):
    trial = prologues.Quantized(dtype, 5, 48, 272)
    trial.check(cutlass_api.get_kernels(trial.args)[0])


@pytest.mark.parametrize(
    "dtype, wanted",
    [
        (torch.int8, [-128, 127, 2, 4, 0, 127, 127, 0]),
        (torch.uint8, [0, 255, 2, 4, 0, 128, 200, 0]),
        (torch.float8_e4m3fn, [-448, 448, 2.5, 3.5, -0.5, 128, 192, torch.nan]),
    ],
    ids=str,
)
def test_activations_saturate(dtype, wanted):
    """A row of numbers, and one with a NaN."""
    a = torch.tensor([[-1e4, 449.0, 2.5, 3.5, -0.5, 127.5, 200.0, 0.0], 7 * [1.0] + [torch.nan]])
    accumulator = torch.float32 if dtype.is_floating_point else torch.int32
    out = torch.empty(2, 8, dtype=accumulator)
    prologue = PrologueArguments("def f(A):\n    A = A + 0\n    return A\n", dtype=dtype)
    args = GemmArguments(a.half(), torch.eye(8).to(dtype), out, accumulator, prologue=prologue)
    cutlass_api.get_kernels(args)[0].run(args)
    assert out[0].tolist() == [*wanted[:7], 0]
    torch.testing.assert_close(out[1, 7].float(), torch.tensor(wanted[7]).float(), equal_nan=True)


def test_several_matrices_on_the_reference():
    prologues.check_several()


@pytest.mark.skipif(not shutil.which("cargo"), reason="needs cargo for the emulator")
def test_kernels():
    script = "from support import emulation_prologues\nemulation_prologues.check()"
    assert int(stand_in.run(script, emulated=True)) >= 18
