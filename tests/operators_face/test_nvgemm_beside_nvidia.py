"""NVGEMM over NVIDIA's `cutlass.operators` in processes that never import `cutlass_api`.

`make test-nvidia-operators` runs these tests in an environment with NVIDIA's packages. It runs
tests/pytorch/test_nvgemm_operators*.py there, too: products and fused epilogues.
"""

import pickle

import pytest
import torch
from cutlass_api import operators
from support.helpers import run_python
from support.nvgemm_graphs import lower_by_nvgemm
from support.nvgemm_operators import fuses, is_fused, ops, source_of

if ops is operators:
    pytest.skip(
        "nvidia-cutlass-operators is not installed; `make test-nvidia-operators` runs these tests",
        allow_module_level=True,
    )

#: A process that has imported torch, for which the first GPU is an H100.
START = """
    import pickle, sys
    import torch
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    assert "cutlass_api" not in sys.modules
"""
#: Runs generated code.
RUN = """
    from torch._inductor.async_compile import AsyncCompile
    module = AsyncCompile().nv_universal_gemm(sys.argv[1], open(sys.argv[2]).read())
    for _ in range(2):
        a, b, row = (torch.randn(shape).half() for shape in ((5, 3), (3, 7), (7,)))
        out = torch.empty(5, 7).half()
        module.run(a, b, out, row, stream=0)
        expected = torch.nn.functional.gelu(a.double() @ b.double() + row)
        torch.testing.assert_close(out.double(), expected, rtol=1e-3, atol=1e-5)
    import cutlass.operators
    print(*cutlass.operators.available_providers)
"""
SECONDS = 240


def bias_and_gelu(a, b, row):
    return torch.nn.functional.gelu(torch.addmm(row, a, b))


@pytest.fixture(scope="module")
def lowered():
    inputs = [torch.randn(shape).half() for shape in ((192, 256), (256, 320), (320,))]
    lowered = lower_by_nvgemm(bias_and_gelu, inputs, prefers=fuses)
    assert is_fused(lowered)
    return lowered


@pytest.fixture
def cached(lowered, tmp_path):
    """The name and the file of generated code that runs an operator of this package."""
    name, text = source_of(lowered)
    source = tmp_path / "generated.py"
    source.write_text(text)
    return name, source


@pytest.fixture
def environment(autoload):
    return autoload | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}


@pytest.mark.parametrize("first", ["", "import cutlass.operators\n"])
def test_a_cached_choice_runs(cached, environment, first):
    script = START + f"    {first}" + RUN
    assert run_python(script, *cached, timeout=SECONDS, **environment) == "rutlass cutedsl\n"


def test_a_cached_choice_of_a_provider_that_is_switched_off(cached, environment):
    script = (
        START
        + """
    from torch._inductor.async_compile import AsyncCompile
    module = AsyncCompile().nv_universal_gemm(sys.argv[1], open(sys.argv[2]).read())
    a, b, row = (torch.randn(shape).half() for shape in ((5, 3), (3, 7), (7,)))
    try:
        module.run(a, b, torch.empty(5, 7).half(), row, stream=0)
    except RuntimeError as error:
        print(error)
    """
    )
    off = environment | {"CUTLASS_API_PROVIDER": "0"}
    printed = run_python(script, *cached, timeout=SECONDS, **off)
    assert "the operator sm90_gemm_" in printed and "unset CUTLASS_API_PROVIDER" in printed


def test_the_operators_are_offered(environment):
    script = (
        START
        + """
    from torch._inductor.codegen.nv_universal_gemm import kernel_cache
    import cutlass.operators as nvidia
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        a = torch.empty(512, 512, device="cuda", dtype=torch.half)
    args = nvidia.GemmArguments(a, a, a, torch.float32)
    for efc_only in (False, True):
        found = kernel_cache._args_query_candidates(args, 90, efc_only=efc_only)
        print({type(operator).__module__ for operator in found[:10]})
    """
    )
    module = {"cutlass_api.operators.export.provider"}
    printed = run_python(script, timeout=SECONDS, **environment)
    assert printed == f"{module}\n{module}\n"


def test_a_worker_receives_an_operator(lowered, environment, tmp_path):
    """As pickled metadata."""
    (choices,) = lowered.choices
    operator = next(filter(fuses, choices)).kernel
    file = tmp_path / "metadata"
    file.write_bytes(pickle.dumps(operator.metadata))
    script = (
        START
        + """
    metadata = pickle.load(open(sys.argv[1], "rb"))
    print(metadata.operator_class(metadata))
    """
    )
    printed = run_python(script, file, timeout=SECONDS, **environment)
    assert printed == f"{operator}\n" and "EFC" in printed


def test_a_program_without_nvgemm_is_left_alone(environment):
    script = (
        START
        + """
    import torch._inductor.codegen.nv_universal_gemm
    import cutlass.operators
    assert "cutlass_api" not in sys.modules
    print(*cutlass.operators.available_providers)
    """
    )
    assert run_python(script, timeout=SECONDS, **environment) == "cutedsl\n"
