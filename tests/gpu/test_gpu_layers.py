"""Models in one line on a GPU: the weights, the products and the files are those of the CPU."""

import contextlib
import copy
import io

import pytest
import torch
from cutlass_api import nn
from support.weights import PACKED
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = pytest.mark.gpu

SCHEMES = ["fp8", "int8", "fp8-block", "fp8-weight", "int8-weight", *PACKED]
N, K = 384, 640


class Nothing(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), options=None):
        return operator(*args, **(options or {}))


def converted(model, scheme):
    with contextlib.redirect_stdout(io.StringIO()):
        nn.convert(model, scheme)
    return model


def relative_error(found, expected):
    found, expected = found.double().cpu(), expected.double().cpu()
    return ((found - expected).norm() / expected.norm()).item()


@torch.no_grad()
@pytest.mark.parametrize("scheme", SCHEMES)
def test_layers_compute_as_on_the_cpu(scheme, tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(K, N), torch.nn.Linear(N, K, bias=False))
    model = model.bfloat16()
    on_cpu = converted(copy.deepcopy(model), scheme)
    on_gpu = converted(model.cuda(), scheme)
    for key, value in on_cpu.state_dict().items():
        found = on_gpu.state_dict()[key].cpu()
        same = found.flatten().view(torch.uint8) == value.flatten().view(torch.uint8)
        # A GPU may round a quotient at a tie to the other neighbour.
        assert same.float().mean() > 0.999, key
    for shape in ((1, 1, K), (3, K), (2, 40, K)):
        x = torch.randn(shape).bfloat16()
        found = on_gpu(x.cuda())
        with Nothing():
            assert torch.equal(on_gpu(x.cuda()), found)
        assert relative_error(found, on_cpu(x)) < 0.02
        graph = torch.cuda.CUDAGraph()
        static = x.cuda()
        with torch.cuda.graph(graph):
            out = on_gpu(static)
        graph.replay()
        assert torch.equal(out, found)
    with contextlib.redirect_stdout(io.StringIO()):
        nn.save(on_gpu, tmp_path)
        with torch.device("meta"):
            again = torch.nn.Sequential(torch.nn.Linear(K, N), torch.nn.Linear(N, K, bias=False))
        nn.load(again.bfloat16(), tmp_path, device="cuda")
    assert torch.equal(again(x.cuda()), on_gpu(x.cuda()))
