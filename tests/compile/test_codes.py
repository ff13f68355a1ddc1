"""Kernels for weights of 4 bits compile without spills. None needs a GPU."""

from concurrent.futures import ThreadPoolExecutor

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import GemmArguments
from support.codes import CASES
from support.helpers import fake, spilled_bytes
from torch._subclasses.fake_tensor import FakeTensorMode

#: A case with the most scales, and one whose factors are float32 numbers. Capabilities, and which
#: kernels of each: on Hopper each kernel with one of the cases.
DEMANDING = ("nvfp4", "uint4, added zero points")
STEPS = {80: 3, 90: 2, 120: 3}


def fake_args(name):
    """Arguments of FakeTensors on a GPU."""
    case = CASES[name]
    weight = case.make(96, 352).repack()
    with FakeTensorMode() as mode:
        fields = {key: mode.from_tensor(x).to("cuda") for key, x in weight.tensors().items()}
        weight = type(weight)(**fields)
        x, out = fake(5, 352, dtype=case.wide), fake(5, 96, dtype=case.out)
        return GemmArguments(x, weight, out, torch.float32)


@pytest.mark.parametrize("cc", STEPS)
@pytest.mark.parametrize("name", DEMANDING)
def test_no_register_spills(name, cc, cache_directory):
    args = fake_args(name)
    first = DEMANDING.index(name) if cc == 90 else 0
    found = cutlass_api.get_kernels(args, cc=cc)
    kernels = [*found[first :: STEPS[cc]], found[-1]]  # `simt` ranks last
    assert {kernel.metadata.kernel_name.split("_")[0] for kernel in kernels} > {"skinny"}
    with ThreadPoolExecutor() as pool:
        artifacts = list(pool.map(lambda kernel: kernel.compile(args, cc), kernels))
    spilling = [
        artifact.compiled_obj.kernel_name
        for artifact in artifacts
        if spilled_bytes(artifact.compiled_obj) or artifact.compiled_obj.log
    ]
    assert not spilling
