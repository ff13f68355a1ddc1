"""The autotuner, with a simulated driver whose launches take a time that depends on the grid and on
shared memory; and its store.
"""

import json
import math
import shutil
import textwrap
import time

import pytest
import stand_in
from cutlass_api import tuning
from cutlass_api.tuning import _search


def test_the_winner_ranks_first_from_then_on(tuned):
    script = """
        before = names()
        slow_first = cutlass_api.get_kernels(args)[10:14]
        result = cutlass_api.autotune(args, kernels=slow_first, progress=False)
        after = names()
        assert after[0] == result.winner.metadata.kernel_name != before[0]
        assert after[:4] == [trial.kernel for trial in result.trials]
        assert all(trial.is_finalist for trial in result.trials)
        assert sorted(after) == sorted(before)
        measured = times(slow_first)
        assert [trial.kernel for trial in result.trials] == sorted(measured, key=measured.get)
        for trial in result.trials:
            assert abs(trial.microseconds - 1e6 * measured[trial.kernel]) < 1e-3
        print(after[0])
    """
    winner = tuned(script)
    # Another process, with other tensors of the same kind.
    other = """
        a.describe(A + 4096, (128, 256)); out.describe(OUT + 256, (128, 64))
        print(names(GemmArguments(a, b, out, "float32"))[0])
        # Another alignment, layout or shape has its own ranking.
        a.describe(A + 8, (128, 256))
        assert names(GemmArguments(a, b, out, "float32"))[0] != names()[0]
    """
    assert tuned("print(names()[0])") == winner
    assert tuned(other) == winner
    assert tuned("print(names()[0])", CUTLASS_API_TUNE="off") != winner


def test_an_exhaustive_search_finds_the_fastest(tuned):
    script = """
        kernels = cutlass_api.get_kernels(args)[:36:3]
        result = cutlass_api.autotune(args, kernels=kernels, search="exhaustive", progress=False)
        assert len(result.trials) == 12 and result.untried == 0
        measured = times(kernels)
        assert measured[result.winner.metadata.kernel_name] == min(measured.values())
        del result
        import gc; gc.collect()
        print(handles())
    """
    assert json.loads(tuned(script)) == [0, 0, 0, 0]


def test_a_halving_search_takes_the_first_by_the_model(tuned):
    tuned("""
        before = names()
        result = cutlass_api.autotune(args, progress=False)
        assert {trial.kernel for trial in result.trials} == set(before[:16])
        assert result.untried == len([n for n in before if "simt" not in n]) - 16
        assert sum(trial.is_finalist for trial in result.trials) == 4
        assert names()[:4] == [trial.kernel for trial in result.trials[:4]]
        assert len(tuning.stored_results()) == 4
        result = cutlass_api.autotune(args, budget=3, progress=False)
        assert len(result.trials) == 3
        result = cutlass_api.autotune(args, budget=1e-9, progress=False)
        assert len(result.trials) == 1
    """)


def test_kernels_that_fail_are_reported(tuned):
    tuned("""
        column_major = Tensor(B, (256, 64), strides=(1, 256))
        other = cutlass_api.get_kernels(GemmArguments(a, column_major, out, "float32"))[:1]
        good = cutlass_api.get_kernels(args)[:2]
        result = cutlass_api.autotune(args, kernels=[*other, *good], progress=False)
        failed = result.trials[-1]
        assert failed.kernel == other[0].metadata.kernel_name
        assert "is not column-major" in failed.error
        assert failed.microseconds != failed.microseconds, "NaN"
        assert "is not column-major" in str(result)
        assert json.loads(result.to_json())["trials"][-1]["error"] == failed.error
        assert failed.kernel not in {stored.kernel for stored in tuning.stored_results()}
        device.fail("cuLaunchKernelEx")
        with raises(RuntimeError, "no kernel could be timed", "LAUNCH_FAILED"):
            cutlass_api.autotune(args, kernels=good, progress=False)
        device.fail("")
        assert len(tuning.stored_results()) == 2
    """)


@pytest.mark.skipif(not shutil.which("cargo"), reason="needs cargo for the emulator")
def test_kernels_that_differ_from_the_reference_are_reported():
    """In the emulator, which computes what kernels compute."""
    script = """
        import cutlass_api, pytest, torch
        from cutlass_api import tuning
        from cutlass_api.arguments import EpilogueArguments, GemmArguments, GroupedGemmArguments
        from stand_in import device
        from stand_in.emulated import operand

        generator = torch.Generator().manual_seed(1)

        def random(*shape, dtype=torch.float16):
            return torch.randn(shape, generator=generator).to(dtype)

        def tune(args, check=True, kernels=1):
            kernels = cutlass_api.get_kernels(args)[:kernels]
            return cutlass_api.autotune(args, kernels=kernels, check=check, progress=False)

        def errors(result):
            return [trial.error for trial in result.trials]

        tuning.clear()
        a, b, out = random(70, 64), random(64, 48), torch.empty(70, 48, dtype=torch.float16)
        args = GemmArguments(a, b, out, "float32")
        assert errors(tune(args, kernels=2)) == [None, None]
        # A kernel that writes nothing.
        device.library.stand_in_skip_launch(0)
        result = tune(args, kernels=2)
        assert result.winner is cutlass_api.get_kernels(args)[0]
        assert result.trials[0].error is None and len(result.trials) == 2
        unwritten = "out has NaN at [0, 0, 0] where the CPU reference has "
        assert result.trials[1].error.startswith(unwritten), result.trials[1].error
        assert len(tuning.stored_results()) == 1
        # Sums in float32, by a tolerance that only float64 would hold.
        single = GemmArguments(a, b, torch.empty(70, 48), "float32")
        assert errors(tune(single)) == [None]
        with pytest.raises(RuntimeError, match="no kernel could be timed: out has .* at .*0, "):
            tune(single, check=1e-12)
        # Outputs of an epilogue; one that is an input, too; groups; exact integers.
        bias, total = random(48, dtype=torch.float32), torch.empty(70, 1, dtype=torch.float32)

        summed = (
            "def summed(accum, C, bias):\\n"
            "    D = relu(accum + C + bias)\\n"
            "    total = sum(D, dim=-1)\\n"
            "    return D, total\\n"
        )
        epilogue = EpilogueArguments(summed, C=out, bias=bias, D=out, total=total)
        out.copy_(random(70, 48))
        assert errors(tune(GemmArguments(a, b, out, "float32", epilogue=epilogue))) == [None]
        rows, weights = random(40, 32), random(3, 32, 16)
        ends = torch.tensor([10, 10, 37], dtype=torch.int32)
        sums = torch.empty(40, 16, dtype=torch.float16)
        grouped = GroupedGemmArguments(rows, weights, sums, "float32", ends)
        assert errors(tune(grouped)) == [None]
        digits = torch.randint(-128, 127, (70, 64), generator=generator).to(torch.int8)
        integers = torch.empty(70, 70, dtype=torch.int32)
        assert errors(tune(GemmArguments(digits, digits.t(), integers, "int32"))) == [None]

        # A user's kernel is tuned on copies, also where its output is its input.
        @cutlass_api.autotuned(configs=[{"threads": 32}, {"threads": 64}], key=[])
        def double(threads):
            return cutlass_api.cuda_kernel(
                "__global__ void twice(const float* x, float* out, int n) {"
                "  int i = blockIdx.x * blockDim.x + threadIdx.x;"
                "  if (i < n) out[i] = 2 * x[i];"
                "}",
                "twice",
                grid=lambda x, out, n: cutlass_api.utils.ceil_div(n, threads),
                block=threads,
            )

        x = torch.arange(100.0)
        shared, other = operand(x), torch.zeros(100)
        double.tune(shared, operand(other), 100, progress=False)
        double.tune(shared, shared, 100, progress=False)
        assert torch.equal(x, torch.arange(100.0)) and not other.any()
        double(shared, operand(other), 100)
        assert torch.equal(other, 2 * x)
    """
    stand_in.run(textwrap.dedent(script), emulated=True)


def test_too_little_memory_makes_fewer_copies_or_an_error(tuned):
    tuned("""
        library = device.library
        library.stand_in_limit_memory.argtypes = [__import__("ctypes").c_uint64]
        library.stand_in_limit_memory(7)
        cutlass_api.autotune(args, budget=2, progress=False)
        library.stand_in_limit_memory(2)
        with raises(RuntimeError, "OUT_OF_MEMORY"):
            cutlass_api.autotune(args, budget=2, progress=False)
        assert handles() == [0, 0, 0, 0]
    """)


def test_an_epilogue_has_results_of_its_own(tuned):
    tuned("""
        bias = Tensor(0x40000000, (64,), code=2, bits=32)
        source = "def f(accum, bias):\\n    D = relu(accum + bias)\\n    return D"
        fused = GemmArguments(
            a, b, out, "float32", epilogue=EpilogueArguments(source, bias=bias, D=out)
        )
        before = names(), names(fused)
        kernels = cutlass_api.get_kernels(fused)[5:8]
        result = cutlass_api.autotune(fused, kernels=kernels, progress=False)
        assert names() == before[0]
        assert names(fused)[0] == result.winner.metadata.kernel_name != before[1][0]
        assert "epilogue" in result.key
    """)


def test_results_of_a_key_apply_to_its_problems(tuned):
    tuned("""
        kernels = cutlass_api.get_kernels(args)[10:12]
        result = cutlass_api.autotune(args, kernels=kernels, key="pow2", progress=False)
        assert result.key.startswith("pow2 gemm 1x128x64x256 ")
        close = Tensor(A, (104, 200)), Tensor(B, (200, 56)), Tensor(OUT, (104, 56))
        assert names(GemmArguments(*close, "float32"))[0] == result.winner.metadata.kernel_name
        far = Tensor(A, (136, 200)), Tensor(B, (200, 56)), Tensor(OUT, (136, 56))
        assert names(GemmArguments(*far, "float32"))[0] != result.winner.metadata.kernel_name

        tuning.clear()
        def rows_alone(extents):
            batch, m, n, k = extents
            return batch, m, 0, 0
        result = cutlass_api.autotune(args, kernels=kernels, key=rows_alone, progress=False)
        wide = a, Tensor(B, (256, 512)), Tensor(OUT, (128, 512))
        assert names(GemmArguments(*wide, "float32"))[0] == result.winner.metadata.kernel_name
        # It stays in this process.
        file = cutlass_api._core.cache_directory() / "tuning.sqlite3"
        with __import__("sqlite3").connect(file) as connection:
            assert not connection.execute("SELECT key FROM results").fetchall()
        # An exact result comes before.
        exact = cutlass_api.autotune(
            args, kernels=cutlass_api.get_kernels(args)[20:22], progress=False
        )
        assert names()[0] == exact.winner.metadata.kernel_name
    """)


def test_a_later_search_replaces_results(tuned):
    tuned("""
        kernels = cutlass_api.get_kernels(args)
        cutlass_api.autotune(args, kernels=kernels[:3], progress=False)
        result = cutlass_api.autotune(args, kernels=kernels[20:22], progress=False)
        assert {each.kernel for each in tuning.stored_results()} == {
            trial.kernel for trial in result.trials
        }
        assert names()[0] == result.winner.metadata.kernel_name
    """)


def test_ctrl_c_keeps_what_was_measured(tuned):
    script = """
        class Interrupting(_tuner.Timed):
            count = 0

            def turn(self):
                Interrupting.count += 1
                if Interrupting.count > 8:
                    raise KeyboardInterrupt
                return super().turn()

        _tuner.Timed = Interrupting
        kernels = cutlass_api.get_kernels(args)[:6]
        try:
            cutlass_api.autotune(args, kernels=kernels, progress=False)
        except KeyboardInterrupt:
            print(len(tuning.stored_results()))
        import gc, time
        for _ in range(100):  # until the compilations under way are done
            gc.collect()
            if handles()[:3] == [0, 0, 0]:
                break
            time.sleep(0.1)
        assert handles()[:3] == [0, 0, 0]
    """
    assert tuned(script) == "2\n"
    # An interrupted search does not replace results.
    stored = "print(sorted(map(repr, tuning.stored_results())))"
    before = tuned(f"cutlass_api.autotune(args, progress=False); {stored}")
    assert tuned(script) == "4\n"
    assert tuned(stored) == before


def test_a_rounded_result_serves_where_the_exact_one_is_void(tuned):
    tuned("""
        kernels = cutlass_api.get_kernels(args)[10:12]
        rounded = cutlass_api.autotune(args, kernels=kernels, key="pow2", progress=False)
        cutlass_api.autotune(args, kernels=kernels[::-1], progress=False)
        rows = [(*row[:4], "0" * 64, row[5]) for row in cutlass_api._core.tuning_results()
                if row[2].startswith("exact")]
        cutlass_api._core.add_tuning_results(rows)
        assert names()[0] == rounded.winner.metadata.kernel_name
    """)


def test_a_repeated_operand_does_not_void_results(tuned):
    """TMA kernels do not serve rows of stride 0, whose problem has the same key."""
    tuned("""
        kernels = [k for k in cutlass_api.get_kernels(args) if "sm90" in k.metadata.kernel_name]
        result = cutlass_api.autotune(args, kernels=kernels[4:6], progress=False)
        repeated = Tensor(A, (128, 256), strides=(0, 1))
        assert result.winner.metadata.kernel_name not in names(
            GemmArguments(repeated, b, out, "float32")
        )
        assert names()[0] == result.winner.metadata.kernel_name
    """)


def test_results_follow_the_permitted_precision(tuned):
    tuned("""
        import torch
        single = [Tensor(at, shape, bits=32) for at, shape in
                  ((A, (128, 256)), (B, (256, 64)), (OUT, (128, 64)))]
        single = GemmArguments(*single, "float32")
        exact = cutlass_api.autotune(single, budget=2, progress=False)
        torch.set_float32_matmul_precision("high")
        rounded = cutlass_api.autotune(single, budget=2, progress=False)
        assert rounded.key == exact.key + " tf32"
        assert names(single)[0] == rounded.winner.metadata.kernel_name
        torch.set_float32_matmul_precision("highest")
        assert names(single)[0] == exact.winner.metadata.kernel_name
        assert exact.winner is not rounded.winner
    """)


def test_a_result_of_another_program_does_not_count(tuned):
    tuned("""
        before = names()
        kernels = cutlass_api.get_kernels(args)[10:12]
        cutlass_api.autotune(args, kernels=kernels, progress=False)
        rows = cutlass_api._core.tuning_results()
        assert names()[0] != before[0]
        cutlass_api._core.add_tuning_results([(*row[:4], "0" * 64, row[5]) for row in rows])
        assert names() == before
    """)


def test_matmul_follows_new_results(tuned):
    tuned("""
        cutlass_api.matmul(a, b, out)
        shared = lambda: device.library.stand_in_last_shared_bytes()
        before = shared()
        kernels = [k for k in cutlass_api.get_kernels(args) if "sm80" in k.metadata.kernel_name]
        result = cutlass_api.autotune(args, kernels=kernels[:2], progress=False)
        cutlass_api.matmul(a, b, out)
        program = result.winner.compile(args).compiled_obj
        assert shared() == program.shared_bytes != before
    """)


def test_record_tunes_new_products_once(tuned):
    script = """
        device.library.stand_in_capture(1)
        cutlass_api.matmul(a, b, out)
        assert not tuning.stored_results(), "a capture prohibits allocations"
        device.library.stand_in_capture(0)
        c = Tensor(0x40000000, (128, 128)), Tensor(0x50000000, (128, 64)), Tensor(OUT, (128, 64))
        cutlass_api.matmul(*c)
        stored = tuning.stored_results()
        assert stored and handles()[:3] == [0, 0, 0]
        calls = device.launches()
        cutlass_api.matmul(*c)
        assert device.launches() == calls + 1 and tuning.stored_results() == stored
        print(cutlass_api._core.tuning_mode())
    """
    assert tuned(script, CUTLASS_API_TUNE="record") == "record\n"
    failing = """
        device.fail("cuMemAlloc_v2", 2)
        cutlass_api.matmul(a, b, out)
        assert "was not tuned: " in caught[0] and "CUDA_ERROR_OUT_OF_MEMORY" in caught[0]
        print(len(caught), device.launches())
    """
    assert tuned(failing, CUTLASS_API_TUNE="record") == "1 1\n"
    # A later process finds the results.
    later = """
        c = Tensor(0x40000000, (128, 128)), Tensor(0x50000000, (128, 64)), Tensor(OUT, (128, 64))
        cutlass_api.matmul(*c)
        print(device.launches())
    """
    assert tuned(later, CUTLASS_API_TUNE="record") == "1\n"


def test_look_ups_are_cheap(tuned):
    """Instructions of a ranking with a result beyond those of the same ranking without one."""
    # Each instruction is a stop of the counted process. Few kernels support float64.
    float64 = """
        operands = [(A, (128, 256)), (B, (256, 64)), (OUT, (128, 64))]
        args = GemmArguments(*(Tensor(*each, bits=64) for each in operands), "float64")
    """
    script = f"""{float64}
        for _ in range(20):
            names(args)
        device.begin(); cutlass_api.get_kernels(args); device.end()
    """
    without = int(tuned(script, counted=True))
    tuned(f"{float64}\n        cutlass_api.autotune(args, budget=4, progress=False)")
    with_result = int(tuned(script, counted=True))
    print(f"{with_result - without} instructions")
    assert with_result - without < 6_000


def test_bad_arguments_are_refused(tuned):
    tuned("""
        add = cutlass_api.arguments.ElementwiseArguments(a, a, a)
        for given, message in (
            ({"search": "all"}, "search is 'all'; pass"),
            ({"budget": 0}, "budget is 0; pass a positive number"),
            ({"budget": True}, "budget is True"),
            ({"key": "round"}, "key is 'round'; pass"),
            ({"kernels": []}, "kernels is empty"),
            ({"check": 0.0}, "check is 0.0; pass True, False or a positive tolerance"),
            ({"check": float("nan")}, "check is nan"),
            ({"devices": "both"}, "devices is 'both'; pass \\"all\\""),
            ({"devices": []}, "devices is empty"),
            ({"devices": [0, 7]}, "devices has 7"),
            ({"args": None}, "args"),
            ({"args": add}, "an elementwise sum has nothing to tune"),
        ):
            with raises((ValueError, TypeError), message):
                cutlass_api.autotune(**{"args": args} | given)
    """)


def test_an_unknown_mode_is_refused(tuned):
    with pytest.raises(AssertionError, match='CUTLASS_API_TUNE is "always"; set it to off, use'):
        tuned("names()", CUTLASS_API_TUNE="always")


def test_operands_on_the_cpu_are_refused():
    import torch
    from cutlass_api.arguments import GemmArguments

    a = torch.ones(8, 8)
    with pytest.raises(ValueError, match="operands are on the CPU"):
        tuning.autotune(GemmArguments(a, a, torch.empty(8, 8), "float32"))


def test_a_search_stops_at_its_deadline():
    class Clock:
        def __init__(self, microseconds):
            self.microseconds, self.times = microseconds, []

        def turn(self):
            self.times.append(self.microseconds)
            return self.microseconds

        def warm_up(self, seconds=0.0):
            self.times.clear()

        @property
        def median(self):
            return self.times[-1] if self.times else math.nan

    def slow():
        for at in range(20):
            time.sleep(0.02)
            yield str(at), Clock(20 - at)

    rough, left = _search.sift(slow(), 2, _search.Deadline(0.1))
    assert 1 <= len(rough) < 20 and len(left) <= 2
    assert next(iter(left)) == list(rough)[-1]


def test_a_block_tunes_what_it_calls(tuned):
    """Of a problem, too, whose kernel was chosen before."""
    script = """
        cutlass_api.matmul(a, b, out)
        assert not tuning.stored_results()
        with tuning.enabled(), tuning.enabled():
            cutlass_api.matmul(a, b, out)
            stored = tuning.stored_results()
            assert stored
        assert cutlass_api._core.tuning_mode() == "use"
        calls = device.launches()
        cutlass_api.matmul(a, b, out)
        print(device.launches() - calls, tuning.stored_results() == stored)
    """
    assert tuned(script) == "1 True\n"
