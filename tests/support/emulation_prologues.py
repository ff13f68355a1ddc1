"""As emulation.py: products with prologues."""

from itertools import islice

from torch import float8_e4m3fn, int8

from support.emulation import finish
from support.prologues import CASES, Quantized, check_several, trials
from support.properties import family_of, first_of_families


def check() -> None:
    """The first kernel of one family for each trial, in turn."""
    failures = []
    for at, trial in enumerate(islice(trials(), len(CASES))):
        kernels = [each for each in first_of_families(trial.args) if family_of(each) != "simt"]
        kernel = kernels[at % len(kernels)]
        try:
            failures.append(trial.failure(kernel))
        except RuntimeError as error:
            failures.append(f"{kernel.metadata.kernel_name}, {trial.said}: {error}")
    for dtype, m in [(float8_e4m3fn, 5), (int8, 40)]:
        trial = Quantized(dtype, m, 48, 272)
        trial.check(first_of_families(trial.args)[0])
    check_several()
    finish(failures)
