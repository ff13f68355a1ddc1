"""The tuner of users' kernels."""

import textwrap

import pytest

#: A kernel and its tensors. More threads make fewer CTAs, and in the stand-in faster launches. The
#: last config has too many threads.
SQUARE = """
    from cutlass_api import cuda_kernel

    device.expect_words(3)
    made = []

    def square(threads):
        made.append(threads)
        return cuda_kernel(
            "__global__ void square(const float* x, float* out, int n) {"
            "  int i = blockIdx.x * THREADS + threadIdx.x;"
            "  if (i < n) out[i] = x[i] * x[i];"
            "}",
            "square",
            grid=lambda x, out, n: cutlass_api.utils.ceil_div(n, threads),
            block=threads,
            options=[f"-DTHREADS={threads}"],
        )

    configs = [{"threads": threads} for threads in (64, 512, 128, 2048)]
    x, out = Tensor(A, (64, 64), bits=32), Tensor(OUT, (64, 64), bits=32)

    def threads_of_launch():
        assert device.last_launch(3).words[:2] == (A, OUT)
        return device.last_launch(3).block[0]
"""


@pytest.fixture
def tuned_square(tuned):
    def run(script, **variables):
        return tuned(textwrap.dedent(SQUARE) + textwrap.dedent(script), **variables)

    return run


def test_a_users_kernel_is_tuned_at_its_first_launch(tuned_square):
    script = """
        kernel = cutlass_api.autotuned(configs=configs, key=["n"])(square)
        assert kernel.__name__ == "square"
        kernel(x, out, 4096)
        assert threads_of_launch() == 512
        first = device.launches()
        kernel(x, out, 4096, stream=0x5020)
        assert (device.launches(), device.library.stand_in_last_stream()) == (first + 1, 0x5020)
        assert kernel.fastest(x, out, 4096) == {"threads": 512}
        print(made, len(tuning.stored_results()))
        # Another n has results of its own.
        kernel(x, out, 256)
        assert threads_of_launch() == 512
        print(made, len(tuning.stored_results()))
        import gc
        gc.collect()
        assert handles() == [0, 0, 0, 0]
    """
    # Each config is made once; the one that cannot be made is tried for each search.
    assert tuned_square(script) == ("[64, 512, 128, 2048] 3\n[64, 512, 128, 2048, 2048] 6\n")
    # A later process takes the store's results and makes only the fastest, and the first for its
    # parameters.
    later = tuned_square("""
        kernel = cutlass_api.autotuned(configs=configs, key=["n"])(square)
        kernel(x, out, 4096)
        assert threads_of_launch() == 512
        print(made, device.launches())
    """)
    assert later == "[64, 512] 1\n"


def test_the_result_of_a_users_kernel(tuned_square):
    tuned_square("""
        kernel = cutlass_api.autotuned(configs=configs)(square)
        result = kernel.tune(x, out, 4096, progress=False)
        assert result.winner == {"threads": 512} and "AutotunedKernel square of 4" in repr(kernel)
        assert [trial.kernel for trial in result.trials] == [
            f"threads={threads}" for threads in (512, 128, 64, 2048)
        ]
        assert "2048 threads; CUDA allows 1 to 1024" in result.trials[-1].error
        assert "threads=512" in str(result)
        assert json.loads(result.to_json())["winner"] == "threads=512"
        assert result.key == (
            "own __main__.square float32[4096] float32[4096] 4096 configs " + result.key[-16:]
        )
    """)


def test_benchmarks_print_what_they_time(tuned_square):
    tuned_square("""
        own = cutlass_api._core.CudaBenchmark(square(512), (x, out, 4096))
        assert repr(own) == f"<CudaBenchmark on {own.device}>"
        assert repr(own.record(square(512))).startswith("<TimedLaunches of ")
        benchmark = cutlass_api._core.TuningBenchmark(args)
        problem = repr(args).removeprefix("<GemmArguments ")
        assert repr(benchmark) == f"<TuningBenchmark on {own.device}: {problem}"
    """)


def test_which_launches_share_a_result(tuned_square):
    tuned_square("""
        def searches(key, *launches):
            kernel = cutlass_api.autotuned(configs=configs, key=key)(square)
            tuning.clear()
            for launch in launches:
                kernel(*launch)
            return len({result.key for result in tuning.stored_results()})

        small = Tensor(A, (32,), bits=32)
        there = [Tensor(A, (64, 64), bits=32, device=1), Tensor(OUT, (64, 64), bits=32, device=1)]
        launches = (x, out, 4096), (x, out, 2048), (small, out, 2048)
        assert searches(None, *launches) == 3
        assert searches(["n"], *launches) == 2
        assert searches([], *launches) == 1
        assert searches(lambda x, out, n: n > 1, *launches) == 1
        assert searches(["n"], (x, out, 4096), (*there, 4096)) == 1, "one key, on two devices"
        assert {result.device for result in tuning.stored_results()} == {"stand-in 0", "stand-in 1"}
    """)


def test_other_sources_and_configs_are_tuned_anew(tuned_square):
    tuned_square("""
        cutlass_api.autotuned(configs=configs, key=["n"])(square)(x, out, 4096)
        cutlass_api.autotuned(configs=configs[:2], key=["n"])(square)(x, out, 4096)
        assert len({result.key for result in tuning.stored_results()}) == 2
        before = device.launches()
        def other(threads):
            return cuda_kernel(
                "__global__ void square(const float* x, float* out, int n) { out[n] = x[n]; }",
                "square", grid=lambda x, out, n: threads, block=threads)
        other.__qualname__ = "square"
        cutlass_api.autotuned(configs=configs, key=["n"])(other)(x, out, 4096)
        assert device.launches() > before + 1
        assert threads_of_launch() == 64, "the fewest CTAs"
        assert len({result.key for result in tuning.stored_results()}) == 2
    """)


def test_without_the_tuner_the_first_config_is_launched(tuned_square):
    script = """
        kernel = cutlass_api.autotuned(configs=configs)(square)
        kernel(x, out, 4096)
        assert (threads_of_launch(), device.launches(), made) == (64, 1, [64])
    """
    tuned_square(script, CUTLASS_API_TUNE="off")


def test_a_users_kernel_is_not_tuned_during_a_capture(tuned_square):
    tuned_square("""
        kernel = cutlass_api.autotuned(configs=configs, key=["n"])(square)
        device.library.stand_in_capture(1)
        with raises(RuntimeError, "square cannot be tuned during a stream capture; call it once"):
            kernel(x, out, 4096)
        device.library.stand_in_capture(0)
        kernel(x, out, 4096)
        device.library.stand_in_capture(1)
        kernel(x, out, 4096)
        assert device.library.stand_in_misused() == 0
    """)


@pytest.mark.parametrize(
    "script, message",
    [
        ("autotuned(configs=[])(square)", "configs is empty or has equal configs"),
        ("autotuned(configs=[{'threads': 64}] * 2)(square)", "has equal configs"),
        ("autotuned(configs=configs, key='n')(square)", "pass a list of parameter names: ['n']"),
        (
            "autotuned(configs=configs, key=['m'])(square)(x, out, 1)",
            "key has 'm', and the parameters of square are ['x', 'out', 'n']",
        ),
        ("autotuned(configs=configs[3:])(square)(x, out, 1)", "2048 threads"),
        (
            "autotuned(configs=configs)(lambda threads: None)(x, out, 1)",
            "returned None; return a cutlass_api.cuda_kernel",
        ),
        ("autotuned(configs=configs)(square)(x, out)", "square takes 3 arguments (x, out, n)"),
        (
            "autotuned(configs=configs)(square)(x, None, 0)",
            "grid is [0, 1, 1], so the launch would compute nothing",
        ),
    ],
)
def test_mistakes_of_a_users_kernel(script, message, tuned_square):
    out = tuned_square(f"""
        try:
            cutlass_api.{script}
        except (ValueError, TypeError, RuntimeError) as error:
            print(error)
    """)
    assert message in out
