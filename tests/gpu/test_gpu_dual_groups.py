"""Two products in a GEMM with groups along M on a GPU, every kernel, against torch in float64.

Outputs are filled with NaN: a write behind the last group's end is detected. A write behind another
group's end is detected where the next group's tile is stored earlier.
"""

from itertools import accumulate

import cutlass_api
import pytest
import torch
from support.dual_groups import CASES, WEIGHTS, DualGroups
from support.epilogue_trials import BF16, F16
from support.groups import ENDS_OUT_OF_ORDER

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def on_hopper():
    if cutlass_api.utils.device_cc() // 10 != 9:
        pytest.skip("sm90 is for Hopper")


def check_all(trial):
    kernels = trial.kernels()
    assert len(kernels) >= (3 if trial.index is not None else 5), trial.said
    for kernel in kernels:
        trial.check(kernel, kernel.compile(trial.args))


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("seed", range(len(CASES)))
def test_every_kernel(seed, weights):
    # Each epilogue, and outputs with and without a tensor map.
    for turn in range(6):
        check_all(DualGroups(*CASES[seed], weights, seed + turn))


@pytest.mark.parametrize("seed", range(len(CASES)))
def test_every_kernel_with_an_index(seed):
    for turn in range(3):
        check_all(DualGroups(*CASES[seed], "halves", seed + turn, has_index=True))


@pytest.mark.parametrize("has_index", [False, True], ids=["in order", "by an index"])
@pytest.mark.parametrize("n, k, groups, dtype", [(768, 2048, 128, BF16), (2816, 1024, 8, F16)])
def test_random_routing(n, k, groups, dtype, has_index):
    """Layers of mixtures of experts. All launches of a kernel yield the same bits."""
    generator = torch.Generator().manual_seed(n)
    experts = torch.randint(groups, (4096,), generator=generator)
    sizes = torch.bincount(experts, minlength=groups).tolist()
    trial = DualGroups(sizes, n, k, dtype, "halves", has_index=has_index)
    for kernel in trial.kernels():
        artifact = kernel.compile(trial.args)
        trial.check(kernel, artifact)
        first = trial.outputs["D"].memory.bytes.clone()
        for _ in range(20):
            kernel.run(trial.args, artifact)
        assert torch.equal(trial.outputs["D"].memory.bytes, first), kernel.metadata.kernel_name


def test_offsets_change_between_replays_of_a_graph():
    trial = DualGroups([100, 0, 31, 200, 64], 320, 192, BF16, "halves")
    for kernel in trial.kernels():
        artifact = kernel.compile(trial.args)
        trial.check(kernel, artifact)  # the first launch loads the program
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kernel.run(trial.args, artifact)
        for sizes in ([100, 0, 31, 200, 64], [0, 0, 0, 0, 395], [1, 2, 3, 4, 5], [0] * 5, [79] * 5):
            trial.set_ends(list(accumulate(sizes)))
            trial.poison()
            graph.replay()
            trial.compare(kernel)


@pytest.mark.parametrize("wrong_ends", ENDS_OUT_OF_ORDER, ids=str)
def test_whatever_offsets_say_nothing_outside_the_output_is_written(wrong_ends):
    """Kernels clamp an offset to the range from its predecessor to the number of rows."""
    for seed in (0, 3):  # an output that TMA can address, and one that it cannot
        trial = DualGroups([100, 100, 100], 136, 72, BF16, "interleaved", seed)
        rows = trial.a.shape[0]
        trial.set_ends(wrong_ends, [min(max(0, *wrong_ends[: at + 1]), rows) for at in range(3)])
        for kernel in trial.kernels():
            trial.check(kernel)
