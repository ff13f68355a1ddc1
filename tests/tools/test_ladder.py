"""The ladder: its kernels compile without spills and compute products, and its benchmark reports.

The emulator executes the kernels; on a GPU, `-m gpu` does.
"""

import json
import shutil

import cutlass_api
import pytest
import stand_in
import torch
from cutlass_api.bench import ladder, limits
from support.benches import Clock, replace_graphs, run, use_the_cpu

STEPS = pytest.mark.parametrize("step", ladder.STEPS, ids=lambda step: step.name)


@STEPS
def test_kernels_compile_without_spills(step):
    for cc in (80, 86, 90):
        if step.runs_on(cc):
            program = step.kernel.compile(cc=cc)
            assert program.resources.spill_store_bytes == 0
            assert not program.log, "a warning"
            assert program.resources.registers * step.threads <= 65536


@STEPS
def test_a_file_is_read_in_one_sitting(step):
    lines = step.source.splitlines()
    assert len(lines) <= 150
    head = "\n".join(lines[: lines.index("#pragma once")])
    for label in (f"Step {ladder.STEPS.index(step) + 1}", "Adds", "Relieves", "Limit"):
        assert f"// {label} " in head


@pytest.mark.skipif(not shutil.which("cargo"), reason="needs cargo for the emulator")
def test_products_by_the_emulator():
    script = "from support import emulation\nemulation.ladder()"
    assert int(stand_in.run(script, emulated=True)) == 18


@pytest.mark.gpu
@STEPS
def test_products_on_a_gpu(step):
    if not step.runs_on(cutlass_api.utils.device_cc()):
        pytest.skip("needs compute capability 9.0")
    generator = torch.Generator("cuda").manual_seed(0)
    # One vector; partial tiles; whole tiles; one, few and many blocks of K; many tiles for a CTA,
    # also in an odd number of tile rows.
    shapes = [(1, 8, 8), (72, 136, 104), (256, 512, 64), (1000, 1000, 1000), (128, 256, 8192)]
    shapes += [(4096, 4096, 512), (8 * 1024 + 72, 4104, 328)]
    for m, n, k in shapes:
        half = {"device": "cuda", "dtype": torch.float16}
        a, b = (torch.randn(x, k, **half, generator=generator) for x in (m, n))
        memory = torch.full((m + 1, n), torch.nan, **half)
        launch = step.bind(a, b, memory[:m], (m, n, k))
        expected = a.double() @ b.double().T
        for _ in range(3):  # a race shows in some launches
            memory.fill_(torch.nan)
            launch()
            error = float((memory[:m].double() - expected).norm() / expected.norm())
            assert error < 4e-4, (m, n, k)
            assert memory[m].isnan().all(), "a write behind the output"


def test_only_aligned_extents_are_taken():
    with pytest.raises(ValueError, match="n is 12 and k is 8; the ladder takes multiples of 8"):
        ladder.STEPS[0].bind(None, None, None, (8, 12, 8))


def test_intensities_and_grids(monkeypatch):
    monkeypatch.setattr(ladder, "multiprocessors", lambda: 132)
    assert [round(step.intensity) for step in ladder.STEPS] == [32, 64, 64, 64, 64, 85, 85, 128]
    first, *_, specialized, clusters = ladder.STEPS
    assert first.grid(65, 128) == (2, 2)
    assert specialized.grid(4096, 4096) == clusters.grid(4096, 4096) == (132,)
    assert specialized.grid(129, 257) == (4,) and clusters.grid(129, 257) == (4,)
    # Three rows of tiles are two pairs, of which the second has a tile without outputs.
    assert specialized.grid(300, 200) == (3,) and clusters.grid(300, 200) == (4,)


# The report.

TIMES = {step.name: 1000.0 / 2**at for at, step in enumerate(ladder.STEPS)}
TIMES |= {"torch": 6.25, "the library": 5.0}


def run_ladder(monkeypatch, cc, *arguments):
    """`bench ladder` on the CPU: no step is launched, and times are :data:`TIMES`."""
    use_the_cpu(monkeypatch)
    rates = limits.peak_rates(90)
    monkeypatch.setattr(limits, "peak_rates", lambda: rates)
    monkeypatch.setattr(ladder.Step, "bind", lambda *_: lambda: None)
    monkeypatch.setattr(ladder, "_check", lambda *_: None)
    monkeypatch.setattr(cutlass_api.utils, "device_cc", lambda: cc)
    names = [step.name for step in ladder.STEPS if step.runs_on(cc)]
    times = iter([TIMES[name] for name in [*names, "torch", "the library"]])
    replace_graphs(monkeypatch, lambda launches: Clock(next(times)))
    run(monkeypatch, "bench", "ladder", "--shape", "64,128,256", *arguments)
    return names


def test_the_report(monkeypatch, capsys, tmp_path):
    path = tmp_path / "rows.json"
    run_ladder(monkeypatch, 90, "--json", path)
    title, _, *lines = capsys.readouterr().out.splitlines()
    assert title.strip() == "The ladder: a float16 GEMM in eight steps, 64x128x256 (a GPU)"
    assert len(lines) == 10 and not any("\x1b" in line for line in lines)
    for line, name in zip(lines, TIMES, strict=True):
        assert line.strip().startswith(name)
    # 2 x 64 x 128 x 256 FLOP in 62.5 us.
    assert lines[4].split()[2:7] == ["62.5", "0.1", "10.0", "%", "16.0"]
    assert "tensor cores, ldmatrix" in lines[2] and "_gemm_" in lines[9]
    read = json.loads(path.read_text())
    assert read["device"] == "a GPU" and read["mnk"] == [64, 128, 256]
    assert read["rates"]["multiprocessors"] == 132
    assert {row["name"]: row["microseconds"] for row in read["rows"]} == TIMES
    (last,) = [row for row in read["rows"] if row["name"] == "the library"]
    assert (last["share_of_torch"], last["speed_up"]) == (1.25, 200)
    assert last["tflops"] == pytest.approx(2 * 64 * 128 * 256 / 5e6)


def test_steps_for_other_chips_are_named(monkeypatch, capsys):
    assert len(run_ladder(monkeypatch, 86)) == 5
    last = capsys.readouterr().out.splitlines()[-1]
    later = "wgmma with TMA, warp specialization, clusters"
    assert last == f"not timed: {later}, which need compute capability 9.0"


@pytest.mark.parametrize("shape", ["64,128", "64,100,128", "64,128,100", "0,8,8"])
def test_other_shapes_are_refused(monkeypatch, capsys, shape):
    with pytest.raises(SystemExit):
        run(monkeypatch, "bench", "ladder", "--shape", shape)
    assert "argument --shape: " in capsys.readouterr().err


def test_a_wrong_output_ends_the_benchmark():
    out, reference = torch.zeros(2, 2), torch.ones(2, 2)
    with pytest.raises(RuntimeError, match=r"the output of 1_basic_tiling.cuh differs .* by"):
        ladder._check(ladder.STEPS[0], lambda: None, out, reference)
    ladder._check(ladder.STEPS[0], lambda: out.copy_(reference), out, reference)
