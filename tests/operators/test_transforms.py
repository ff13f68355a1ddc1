"""Each operator under each transform of PyTorch, compared with torch's operator.

Some samples of each pair run by default, and all with TEST_OPERATORS=all (`make test-operators`).
"""

import pytest
from support.eight_bits import devices

from operators import dense
from operators.calls import RUNS_ALL
from operators.case import expected
from operators.cases import CASES
from operators.mutants import mutants
from operators.outcome import chosen, described, outcome, outcomes
from operators.table import PAGE, page
from operators.transforms import PAIRS, TRANSFORMS

#: Transforms that check operands.
CHECKED = ("eager", "out=", "FakeTensor", "meta")
names = pytest.mark.parametrize("name", CASES)


def check(case, transforms, device):
    for transform in transforms:
        if transform.name in case.skips:
            continue
        turn = None if RUNS_ALL else [*TRANSFORMS, *PAIRS].index(transform)
        found = outcomes(case, transform, chosen(case, transform, device, turn))
        assert found == {expected(case, transform)} - {None}, transform.name


@devices
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda x: x.name)
@names
def test_transforms(name, transform, device):
    check(CASES[name], [transform], device)


@devices
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("outer", dict.fromkeys(pair.outer for pair in PAIRS))
@names
def test_nested_transforms(name, outer, device):
    check(CASES[name], [pair for pair in PAIRS if pair.outer == outer], device)


@devices
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "transform", [x for x in TRANSFORMS if x.name in CHECKED], ids=lambda x: x.name
)
@pytest.mark.parametrize("name", dense.OPERATORS)
def test_errors(name, transform, device):
    """What torch refuses raises, and what it computes is the same or is refused by name."""
    case = CASES[name]
    for sample in chosen(case, transform, device, None if RUNS_ALL else 0):
        for kind, mutant in mutants(sample):
            if kind in case.extends:
                continue
            try:
                outcome(case, transform, [mutant])
            except AssertionError as error:
                raise AssertionError(f"{kind}: {described(sample)}: {error}") from error


def test_the_guide_has_the_table():
    assert PAGE.read_text() == page(), "run `python -m operators.table` in tests/"
