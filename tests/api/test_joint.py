"""Products by a list of matrices B, whose columns lie side by side in the output, without a GPU."""

import cutlass_api
import pytest
import torch
from cutlass_api._core import describe_epilogue, launch_gemm
from cutlass_api.arguments import (
    EpilogueArguments,
    GemmArguments,
    GroupedGemmArguments,
    ScaledTensor,
)
from cutlass_api.library import ScaleMode, ScaleSwizzleMode
from support import memory
from support.epilogues import assert_close
from support.helpers import coarse, fake, run_first
from support.joint import CASES, JointTrial, scaled


@pytest.mark.parametrize("seed", range(len(CASES)))
def test_the_reference(seed, monkeypatch):
    monkeypatch.setattr(memory, "DEVICE", torch.device("cpu"))
    trial = JointTrial(*CASES[seed], seed=seed)
    (kernel,) = trial.kernels()
    trial.check(kernel)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_reference_takes_any_floats_and_columns(dtype):
    a, matrices = coarse(5, 70, dtype=dtype), [coarse(n, 70, dtype=dtype).mT for n in (3, 130, 1)]
    out = torch.zeros(5, 134, dtype=dtype)
    run_first(GemmArguments(a, matrices, out, dtype))
    assert_close(out, torch.cat([a @ b for b in matrices], 1))


def test_the_arguments_hold_the_list():
    a, matrices = coarse(5, 8), [coarse(4, 8).mT, coarse(2, 8).mT]
    args = GemmArguments(a, matrices, torch.zeros(5, 6), torch.float32)
    assert args.B is matrices and args.epilogue is None
    assert "B=float32[8, 4]" in repr(args) and "B_1=float32[8, 2]" in repr(args)


def test_launch_gemm_takes_a_list():
    a, matrices = coarse(5, 8), [coarse(4, 8).mT, coarse(2, 8).mT]
    for first in (matrices, matrices[::-1], tuple(matrices)):
        out = torch.zeros(5, 6)
        launch_gemm(a, first, out=out)
        assert_close(out, torch.cat([a @ b for b in first], 1))
    with pytest.raises(TypeError, match="operands are passed without an epilogue"):
        launch_gemm(a, matrices, 2.0, out=out)


ADD = "def f(accum, bias, s):\n    D = (accum + bias) * s\n    return D\n"


def vectors(*lengths):
    return [coarse(n) for n in lengths]


def test_an_operand_may_be_a_list_of_vectors():
    a, matrices, out = coarse(5, 8), [coarse(4, 8).mT, coarse(2, 8).mT], torch.zeros(5, 6)
    bias, others = vectors(4, 2), vectors(4, 2)

    def wanted(bias):
        return torch.cat([a @ b + c for b, c in zip(matrices, bias, strict=True)], 1) * 2

    launch_gemm(a, matrices, others, 2, out=out, epilogue=ADD)
    assert_close(out, wanted(others))
    epilogue = EpilogueArguments(ADD, bias=bias, s=2, D=out)
    assert epilogue.parameters[0] is bias and "bias=[float32[4], float32[2]]" in repr(epilogue)
    args = GemmArguments(a, matrices, out, torch.float32, epilogue=epilogue)
    launch = cutlass_api.get_kernels(args)[0].bind(args)
    assert "bias_1: float32 for each column of a matrix B" in describe_epilogue(args)
    launch(bias=others[0], bias_1=others[1])
    assert_close(out, wanted(others))
    launch()
    assert_close(out, wanted(bias))
    with pytest.raises(TypeError, match="bias is a list; pass a tensor or a number, or a list"):
        with_vectors(coarse(4), 2.0)
    with pytest.raises(ValueError, match="bias is a vector of a list, but a number was passed"):
        launch_gemm(a, matrices, [2.0, coarse(2)], 2, out=out, epilogue=ADD)


def test_a_bound_launch_takes_other_matrices():
    a, matrices, out = coarse(5, 8), [coarse(4, 8).mT, coarse(2, 8).mT], torch.zeros(5, 6)
    args = GemmArguments(a, matrices, out, torch.float32)
    launch = cutlass_api.get_kernels(args)[0].bind(args)
    others = [coarse(4, 8).mT + 1, coarse(2, 8).mT - 1]
    launch(B=others[0], B_1=others[1])
    assert_close(out, torch.cat([a @ b for b in others], 1))
    with pytest.raises(ValueError, match=r"B_1 is float32 .* but the launch was bound for"):
        launch(B_1=others[0])
    launch()
    assert_close(out, torch.cat([a @ b for b in matrices], 1))


def arguments(a=(5, 8), matrices=((4, 8), (2, 8)), out=(5, 6), **others):
    """Arguments of matrices of these shapes, transposed."""
    made = [coarse(*shape).mT for shape in matrices]
    return GemmArguments(coarse(*a), made, torch.zeros(*out), torch.float32, **others)


def with_other(other):
    a, out = coarse(5, 8), torch.zeros(5, 6)
    return GemmArguments(a, [coarse(4, 8).mT, other], out, torch.float32)


REDUCING = "def f(accum):\n    D = accum\n    S = sum(accum, dim=-1)\n    return D, S\n"


def with_vectors(*bias, matrices=((4, 8), (2, 8)), out=(5, 6)):
    epilogue = EpilogueArguments(ADD, bias=list(bias), s=2, D=torch.zeros(*out))
    return arguments(matrices=matrices, out=out, epilogue=epilogue)


REFUSED = {
    "bias is a list of 1 vectors, but B is a list of 2": lambda: with_vectors(*vectors(6)),
    r"bias_1 is float32 with shape \[3\] .* must be float32 with shape \[2\]": lambda: with_vectors(
        *vectors(4, 3)
    ),
    "bias_1 is float16 with shape .* must be float32": lambda: with_vectors(
        coarse(4), coarse(2).half()
    ),
    "bias is float32 .*, and contiguous": lambda: with_vectors(coarse(8)[::2], coarse(2)),
    "bias is a list of vectors, but B is one matrix": lambda: GemmArguments(
        *(coarse(5, 8), coarse(8, 6), torch.zeros(5, 6), torch.float32),
        epilogue=EpilogueArguments(ADD, bias=vectors(4, 2), s=2, D=torch.zeros(5, 6)),
    ),
    "B is a list of 1 matrices; kernels take from 2 to 4": lambda: arguments(matrices=[(6, 8)]),
    "B is a list of 5 matrices; kernels take from 2 to 4": lambda: arguments(
        matrices=[(1, 8)] * 5, out=(5, 5)
    ),
    r"out has shape \[5, 7\], but the matrices in the list B have 6 columns": lambda: arguments(
        out=(5, 7)
    ),
    r"B_1 is float32 with shape \[9, 2\] .* with 8 rows": lambda: with_other(coarse(2, 9).mT),
    r"B_1 is float16 .* must be float32 of rank 2": lambda: with_other(coarse(2, 8).half().mT),
    r"B_1 .* strides \[2, 1\], .* and stride 1 along K": lambda: with_other(coarse(8, 2)),
    "B_1 is on cuda:0, but out is on cpu": lambda: with_other(fake(8, 2, layout="n")),
    "B_1 is a matrix of the list B, but a number": lambda: with_other(2.0),
    "A has shape .*; pass operands of rank 2, without a batch": lambda: GemmArguments(
        coarse(3, 5, 8), [coarse(3, 4, 8).mT] * 2, torch.zeros(3, 5, 8), torch.float32
    ),
    r"no epilogue with a reduction takes": lambda: arguments(
        epilogue=EpilogueArguments(REDUCING, D=torch.zeros(5, 6), S=torch.zeros(5))
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_lists_that_do_not_fit(message):
    with pytest.raises(ValueError, match=message):
        REFUSED[message]()


def test_the_output_overlaps_no_matrix():
    memory, a = torch.zeros(100), coarse(5, 8)
    out, second = memory[:30].view(5, 6), memory[20:36].view(2, 8).mT
    with pytest.raises(ValueError, match="shares memory with B_1"):
        GemmArguments(a, [coarse(4, 8).mT, second], out, torch.float32)


def test_groups_and_scales_take_one_matrix():
    a, matrices, out = coarse(5, 8), [coarse(4, 8).mT, coarse(2, 8).mT], torch.zeros(5, 6)
    offsets = torch.tensor([5], dtype=torch.int32)
    with pytest.raises(ValueError, match="only a GEMM without groups takes"):
        GroupedGemmArguments(a, matrices, out, torch.float32, offsets)
    narrow = coarse(5, 32).to(torch.float8_e4m3fn)
    with_scales = ScaledTensor(
        narrow, torch.ones(5, 1), ScaleMode.Blockwise1x32, ScaleSwizzleMode.SwizzleNone
    )
    matrices = [coarse(n, 32).to(torch.float8_e4m3fn).mT for n in (4, 2)]
    with pytest.raises(ValueError, match="an operand has scales; pass one matrix B"):
        GemmArguments(with_scales, matrices, out, torch.float32)


def on_gpu(m=8, k=4096, columns=(4096, 1024, 1024), dtype=torch.bfloat16, epilogue=None):
    a, out = fake(m, k, dtype=dtype), fake(m, sum(columns), dtype=dtype)
    matrices = [fake(k, n, dtype=dtype, layout="n") for n in columns]
    if epilogue:
        bias, C = fake(sum(columns), dtype=dtype), fake(m, sum(columns), dtype=dtype)
        epilogue = EpilogueArguments(epilogue, bias=bias, C=C, D=out)
    return GemmArguments(a, matrices, out, torch.float32, epilogue=epilogue)


def families(args):
    return {kernel.metadata.kernel_name.split("_")[0] for kernel in offered(args)}


def offered(args):
    return cutlass_api.get_kernels(args, cc=90)


def columns_of_tiles(args):
    return {kernel.metadata.design.tile_shape[1] for kernel in offered(args)}


def test_kernels_whose_tiles_lie_in_one_matrix():
    assert families(on_gpu()) == {"sm90", "skinny"} == families(on_gpu(epilogue=scaled))
    assert families(on_gpu(m=512)) == {"sm90"}
    assert columns_of_tiles(on_gpu(m=512)) == {32, 64, 128, 256}
    assert columns_of_tiles(on_gpu(columns=(48, 7))) == {16}
    assert not offered(on_gpu(columns=(40, 40)))
    assert not offered(on_gpu(dtype=torch.float32))
    with pytest.raises(IndexError, match="multiples of 16, and are of 40"):
        offered(on_gpu(columns=(40, 40)))[0]


def test_a_joint_gemm_costs_what_one_matrix_of_all_columns_does():
    args = on_gpu()
    one = GemmArguments(
        fake(8, 4096, dtype=torch.bfloat16),
        fake(4096, 6144, dtype=torch.bfloat16, layout="n"),
        fake(8, 6144, dtype=torch.bfloat16),
        torch.float32,
    )
    plain = {each.metadata.kernel_name: each for each in offered(one)}
    for kernel in offered(args):
        name = kernel.metadata.kernel_name.partition("_epilogue_")[0]
        assert kernel.estimate(args).total_seconds == plain[name].estimate(one).total_seconds
        assert kernel.supports(args) and not kernel.supports(one)


def test_matrices_of_other_columns_need_a_kernel_that_divides_them():
    args = on_gpu(columns=(256, 512))
    kernel = next(each for each in offered(args) if each.metadata.design.tile_shape[1] == 64)
    assert kernel.supports(on_gpu(columns=(512, 64)))
    assert "multiples" in str(kernel.supports(on_gpu(columns=(96, 512))).error)
