"""tf32: kernels round float32 operands where torch's own products do, except for one row or column,
which float32 kernels multiply as fast.
"""

import cutlass_api
import pytest
import torch
from cutlass_api.arguments import EpilogueArguments, GemmArguments
from support.helpers import fake, fake_gemm
from support.properties import rounds_to_tf32

backends = torch.backends
pytestmark = pytest.mark.usefixtures("restored_precision")


@pytest.fixture
def restored_precision():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)
    for settings in (backends.cuda.matmul, backends.mkldnn.matmul, backends):
        settings.fp32_precision = "none"


def older(precision):
    torch.set_float32_matmul_precision(precision)


def oldest(allowed):
    backends.cuda.matmul.allow_tf32 = allowed


def newer(precision):
    backends.cuda.matmul.fp32_precision = precision


def newest(precision):
    backends.fp32_precision = precision


#: Settings in turn, and whether torch then rounds.
SETTINGS = [
    ([], False),
    ([(older, "high")], True),
    ([(older, "medium")], True),
    ([(oldest, True)], True),
    ([(newer, "tf32")], True),
    ([(newer, "ieee")], False),
    ([(newest, "tf32")], True),
    ([(newest, "ieee")], False),
    ([(newest, "bf16")], False),
    ([(older, "high"), (newer, "ieee")], False),
    ([(older, "high"), (newest, "ieee")], True),  # the setting of CUDA products comes first
    ([(oldest, True), (newer, "ieee")], False),
    ([(newer, "ieee"), (oldest, True)], True),
    ([(newer, "tf32"), (older, "highest")], False),
    ([(newest, "tf32"), (newer, "ieee")], False),
    ([(newest, "tf32"), (newer, "none")], True),
    ([(older, "medium"), (newer, "tf32")], True),
]


def rounds(args):
    """Whether kernels for these arguments round, as the list and `supports` say."""
    found = cutlass_api.get_kernels(args)
    assert found and all(kernel.supports(args) for kernel in found)
    return any(map(rounds_to_tf32, found))


@pytest.mark.parametrize("settings, expected", SETTINGS)
def test_the_setting_that_torch_obeys_is_obeyed(settings, expected):
    for setting, value in settings:
        setting(value)
    assert rounds(fake_gemm(dtype=torch.float32)) == expected
    # Nothing raises, and the CPU rounds never.
    a, b = torch.randn(9, 130), torch.randn(130, 7)
    exact = a.double() @ b.double()
    for multiply in (
        cutlass_api.matmul,
        torch.ops.cutlass_api.mm,
        lambda a, b: cutlass_api.linear(a, b.mT),
        torch.compile(cutlass_api.matmul, backend="aot_eager", fullgraph=True),
    ):
        torch.testing.assert_close(multiply(a, b).double(), exact, rtol=1e-5, atol=1e-5)
    left, right = fake(9, 130, dtype=torch.float32), fake(130, 7, dtype=torch.float32)
    assert torch.ops.cutlass_api.mm(left, right).shape == (9, 7)


ONE = [(1, 256), (256, 1), (1, 1)]


@pytest.mark.parametrize("setting, value", [(older, "high"), (newer, "tf32")])
@pytest.mark.parametrize("layout", ["ttt", "tnt", "ntn"])
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("fuses", [False, True])
def test_one_row_or_column_is_not_rounded(fuses, batch, layout, setting, value):
    setting(value)

    def arguments(m, n, k=512):
        a, b, out = (
            fake(*batch, *shape, dtype=torch.float32, layout=order)
            for shape, order in zip([(m, k), (k, n), (m, n)], layout, strict=True)
        )
        source = "def epilogue(accum, c):\n    D = relu(accum + c)\n    return D\n"
        epilogue = EpilogueArguments(source, D=out, c=out) if fuses else None
        return GemmArguments(a, b, out, "float32", epilogue=epilogue)

    assert rounds(arguments(2, 256)) and rounds(arguments(256, 2))
    rounding = next(
        k for k in cutlass_api.get_kernels(fake_gemm(dtype=torch.float32)) if rounds_to_tf32(k)
    )
    for m, n in ONE:
        assert not rounds(arguments(m, n))
    if not (fuses or batch):
        reason = "float32 kernels multiply one row or column as fast"
        assert reason in str(rounding.supports(fake_gemm(1, dtype=torch.float32)).error)
