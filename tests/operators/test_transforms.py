"""Each operator under each transform of PyTorch, compared with torch's operator.

By default, cheap transforms run a third of the samples of one dtype, others fewer, and operators
take turns in transforms that take long. With TEST_OPERATORS=all (`make test-operators`), all
samples run; in transforms that take long, those of one dtype and two of each other.
"""

import pytest
import torch
import torch.distributed as dist
from support.eight_bits import devices

from operators import dense
from operators.calls import RUNS_ALL
from operators.case import WORKS, expected, samples
from operators.cases import CASES
from operators.mutants import mutants
from operators.outcome import chosen, described, outcome, outcomes
from operators.table import PAGE, page
from operators.transforms import PAIRS, TRANSFORMS

#: Transforms that check operands.
CHECKED = ("eager", "out=", "FakeTensor", "meta")
#: The place of each transform, by which samples and operators take turns.
TURNS = {transform: turn for turn, transform in enumerate([*TRANSFORMS, *PAIRS])}


def planned(transforms, share):
    """The names of operators, each with the transforms that it passes through: all, or one of
    ``share`` in turn.
    """
    return [
        (name, transform)
        for at, (name, case) in enumerate(CASES.items())
        for transform in transforms
        if transform.name not in case.skips
        if RUNS_ALL or not transform.is_slow or (at + TURNS[transform]) % share == 0
    ]


def check(case, transform, device):
    turn = None if RUNS_ALL else TURNS[transform]
    arguments = chosen(case, transform, device, turn, is_whole=transform.is_cheap)
    found = outcomes(case, transform, arguments)
    assert found == {expected(case, transform)} - {None}, transform.name


@pytest.fixture(scope="module", autouse=True)
def process_group():
    """One for all tests: gloo's threads outlive a group."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def of_plan(plan):
    ids = [f"{name}, {transform.name}" for name, transform in plan]
    return pytest.mark.parametrize("name, transform", plan, ids=ids)


@devices
@pytest.mark.filterwarnings("ignore")
@of_plan(planned(TRANSFORMS, 12))
def test_transforms(name, transform, device):
    check(CASES[name], transform, device)


@devices
@pytest.mark.filterwarnings("ignore")
@of_plan(planned(PAIRS, 18))
def test_nested_transforms(name, transform, device):
    check(CASES[name], transform, device)


@devices
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "transform", [x for x in TRANSFORMS if x.name in CHECKED], ids=lambda x: x.name
)
@pytest.mark.parametrize("name", dense.OPERATORS)
def test_errors(name, transform, device):
    """What torch refuses raises, and what it computes is the same or is refused by name."""
    case = CASES[name]
    for sample in chosen(case, transform, device, 0, is_whole=RUNS_ALL):
        for kind, mutant in mutants(sample):
            if kind in case.extends:
                continue
            try:
                outcome(case, transform, [mutant])
            except AssertionError as error:
                raise AssertionError(f"{kind}: {described(sample)}: {error}") from error


def test_distributed_products_without_elements():
    """DTensor does not return from some reshapes of tensors without elements."""
    case, distributed = CASES["matmul"], next(x for x in TRANSFORMS if x.name == "DTensor")
    found = samples(case, torch.float32, "cpu")
    empty = [x for x in found if not all(y.numel() for y in x.args)]
    assert outcomes(case, distributed, empty) == {WORKS}


def test_the_guide_has_the_table():
    assert PAGE.read_text() == page(), "run `python -m operators.table` in tests/"
