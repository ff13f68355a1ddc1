"""What `torch.ops.cutlass_api` refuses."""

from contextlib import nullcontext

import cutlass_api.ops
import pytest
import torch
from cutlass_api.ops import OPS
from support import TESTS
from support.helpers import run_python
from support.operator_calls import BIAS_RELU, EVERY, F8, each_call, ends, every, operator_of, randn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

A, B, W = randn(4, 8), randn(8, 6), randn(6, 8)
C64 = torch.complex64
SCALED = torch.ones(1)
REFUSALS = {
    "mm: dimension K differs: it is 8 in A": lambda: OPS.mm(A, A),
    "mm: A, B and out must have the same rank": lambda: OPS.mm(A[None], B),
    "mm: .*no kernel computes complex64 @ complex64.*cast": lambda: OPS.mm(A.to(C64), B.to(C64)),
    "mm: .*no kernel computes int64 @ int64.*cast": lambda: OPS.mm(A.long(), B.long()),
    "mm: .*no kernel computes float8_e4m3fnuz .*; cast A to float16 or": lambda: OPS.mm(
        A.to(torch.float8_e4m3fnuz), B
    ),
    "mm: .*no kernel computes float32 @ float16.*; cast B to float32": lambda: OPS.mm(A, B.half()),
    "bmm: A has shape .*; pass tensors of rank 3": lambda: OPS.bmm(A[None], B.expand(2, 8, 6)),
    "addmm: input with shape .* does not broadcast": lambda: OPS.addmm(A, A, B),
    "linear: input has shape .* and weight": lambda: OPS.linear(A, W[None]),
    "linear: dimension K differs": lambda: OPS.linear(A, W[:, 1:]),
    "mixed_mm: dimension K differs": lambda: OPS.mixed_mm(A.half(), A.to(torch.int8)),
    "mixed_mm: scale has shape": lambda: OPS.mixed_mm(A.half(), B.to(torch.int8), torch.ones(5)),
    "int_mm: dimension K differs": lambda: OPS.int_mm(A.to(torch.int8), A.to(torch.int8)),
    "scaled_mm: dimension K differs": lambda: OPS.scaled_mm(A.to(F8), A.to(F8), SCALED, SCALED),
    "scaled_mm: bias has shape": lambda: OPS.scaled_mm(
        A.to(F8), B.to(F8), SCALED, SCALED, torch.ones(5)
    ),
    "scaled_grouped_mm: offs is torch.float32": lambda: OPS.scaled_grouped_mm(
        A.to(F8), B[None].to(F8), SCALED, SCALED, ends(4).float()
    ),
    "grouped_mm: dimension K differs": lambda: OPS.grouped_mm(A, A[None], ends(4)),
    "grouped_mm_weight_grad: A has shape": lambda: OPS.grouped_mm_weight_grad(A, B, ends(4)),
    "linear_weight_grad: grad has shape": lambda: OPS.linear_weight_grad(A, B),
    "baddbmm: input with shape": lambda: OPS.baddbmm(W, A[None], B[None]),
    r"addmm: input with shape \[1, 4, 6\] does": lambda: OPS.addmm(A[None, :, :6], A, B),
    "baddbmm: input with shape .* does": lambda: OPS.baddbmm(
        A[None, None, :, :6], A[None], B[None]
    ),
    # beta = 0 reads no input, but checks it.
    r"addmm: input with shape \[4, 8\] does": lambda: OPS.addmm(A, A, B, beta=0),
    "addmm: input has dtype int64": lambda: OPS.addmm(A[:, :6].long(), A, B, beta=0),
    r"baddbmm: input with shape \[4, 8\] does": lambda: OPS.baddbmm(A, A[None], B[None], beta=0),
    "mm_epilogue: bias with shape": lambda: OPS.mm_epilogue(A, B, [SCALED.expand(5)], BIAS_RELU),
    "quantize: the input dtype is": lambda: OPS.quantize(A.to(F8), torch.int8, [1, 128]),
    "linear: activation is 'sin'; pass None or one of": lambda: OPS.linear(A, W, None, "sin"),
    "linear: bias with shape": lambda: OPS.linear(A, W, A),
    "grouped_mm: A has rank 2, B rank 2": lambda: OPS.grouped_mm(A, B, ends(4)),
    "grouped_mm: .*offs is missing": lambda: OPS.grouped_mm(A, B[None]),
    "grouped_mm: bias has shape": lambda: OPS.grouped_mm(A, B[None], ends(4), B[0]),
    r"masked_grouped_mm: A has shape \[4, 8\]": lambda: OPS.masked_grouped_mm(A, B[None], ends(4)),
    "masked_grouped_mm: A has shape .* pass A": lambda: OPS.masked_grouped_mm(
        A[None], B.expand(2, 8, 6), ends(4, 4)
    ),
    "masked_grouped_mm: counts has shape": lambda: OPS.masked_grouped_mm(
        A[None], B[None], ends(1, 4)
    ),
    "grouped_mm: offs has shape": lambda: OPS.grouped_mm(A, B[None], ends(1, 4)),
    "grouped_mm: offs is torch.int16": lambda: OPS.grouped_mm(A, B[None], ends(4).short()),
    "grouped_mm: index is torch.int16": lambda: OPS.grouped_mm(
        A, B[None], ends(4), index=ends(0).short()
    ),
    "grouped_mm: index has shape": lambda: OPS.grouped_mm(A, B[None], ends(4), index=ends(0)[None]),
    "int_mm: A is torch.float32": lambda: OPS.int_mm(A, B),
    "mixed_mm: A is torch.float32": lambda: OPS.mixed_mm(A, B),
    "scaled_mm: A is torch.float32": lambda: OPS.scaled_mm(A, B, SCALED, SCALED),
    r"scaled_mm: scale_a has shape \[4, 2\]; pass one factor, .* \[4, 1\]": lambda: OPS.scaled_mm(
        A.to(F8), B.to(F8), torch.ones(4, 2), SCALED
    ),
    "mm_epilogue: the epilogue takes 1 operands": lambda: OPS.mm_epilogue(A, B, [], BIAS_RELU),
    "mm_epilogue: the epilogue returns D, S; .* reduces nothing": lambda: OPS.mm_epilogue(
        A, B, [], "def f(accum):\n    D = accum\n    S = sum(D, -1)\n    return D, S"
    ),
}


class OnMeta(TorchDispatchMode):
    """Calls the operators with meta tensors."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace != "cutlass_api":
            return function(*args, **kwargs or {})

        def moved(x):
            return x.to("meta") if isinstance(x, torch.Tensor) else x

        args, kwargs = torch.utils._pytree.tree_map(moved, (args, kwargs or {}))
        return function(*args, **kwargs)


@pytest.mark.parametrize("message", REFUSALS)
def test_refusals_are_the_same_when_traced(message):
    call = REFUSALS[message]
    errors = []
    for mode in (nullcontext(), FakeTensorMode(allow_non_fake_inputs=True), OnMeta()):
        with (
            mode,
            pytest.raises((ValueError, TypeError), match=f"^cutlass_api::{message}") as error,
        ):
            call()
        errors.append(str(error.value))
    assert errors[0] == errors[1] == errors[2]
    with pytest.raises(Exception, match=f"cutlass_api::{message}"):
        torch.compile(call, fullgraph=True, backend="aot_eager")()


def test_refusal_of_symbolic_sizes():
    compiled = torch.compile(
        lambda a, b: OPS.mm(a, b), fullgraph=True, dynamic=True, backend="eager"
    )
    with pytest.raises(Exception, match="cutlass_api::mm: dimension K differs: it is 8 in A"):
        compiled(A, A)


def sparse(tensor):
    where = torch.zeros(tensor.dim(), 1, dtype=torch.int64)
    return torch.sparse_coo_tensor(where, tensor.flatten()[:1], tensor.shape, check_invariants=True)


def nested(tensor):
    return torch.nested.nested_tensor_from_jagged(
        tensor[None, None].flatten(0, 1), ends(0, 1).long()
    )


KINDS = {"layout torch.sparse_coo": sparse, "nested tensors": nested}


@every
@pytest.mark.parametrize("kind", KINDS)
def test_every_operator_refuses_other_kinds_by_name(name, kind):
    for overload, call in each_call(name, KINDS[kind]):
        message = f"^cutlass_api::{overload} does not serve {kind}"
        with pytest.raises(NotImplementedError, match=message):
            call()


@every
def test_every_operator_refuses_complex_operands(name):
    for overload, call in each_call(name, lambda tensor: tensor.to(C64)):
        named = "linear" if name == "linear_forward" else overload.removesuffix(".out")
        with pytest.raises(ValueError, match=f"^cutlass_api::{named}: .*complex64"):
            call()


@every
@pytest.mark.usefixtures("dynamo")
@pytest.mark.parametrize("device", ["xpu", "mps"])
def test_every_operator_refuses_other_devices(name, device, monkeypatch):
    # torch 2.11 allocates on the device of a FakeTensor if the machine has any GPU.
    monkeypatch.setattr("torch._subclasses.fake_tensor.init_gpu_context", lambda device: None)
    operator, args = operator_of(name), EVERY[name](randn)
    message = f"cutlass_api::{name} does not serve device {device}:0; pass dense tensors on the CPU"

    def described(value):
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty(value.shape, dtype=value.dtype, device=device)

    with FakeTensorMode():
        args = torch.utils._pytree.tree_map(described, args)
        with pytest.raises(NotImplementedError, match=f"^{message}"):
            operator(*args)
        with pytest.raises(Exception, match=message):
            torch.compile(operator, fullgraph=True, backend="eager")(*args)


def test_tensors_of_other_kinds_are_refused():
    nested = torch.nested.nested_tensor([A, A], layout=torch.jagged)
    kinds = {
        "layout torch.sparse_coo": A.to_sparse(),
        "layout torch.sparse_csr": A.to_sparse_csr(),
        "nested tensors": nested,
        "quantized": torch.quantize_per_tensor(A, 1.0, 0, torch.quint8),
    }
    for message, tensor in kinds.items():
        for call in (OPS.mm, cutlass_api.matmul):
            with pytest.raises(
                NotImplementedError, match=f"^cutlass_api::mm does not serve {message}"
            ):
                call(tensor, B)
    with pytest.raises(NotImplementedError, match=r"^cutlass_api::linear does not serve nested"):
        cutlass_api.linear(nested, W)


def test_distributed_tensors_beside_others_are_refused():
    """`test_distributed.py` computes with DTensors alone."""
    script = """
        import sys, torch, cutlass_api
        from torch.distributed import HashStore, init_process_group
        from torch.distributed.tensor import DTensor, Replicate, init_device_mesh
        init_process_group("gloo", rank=0, world_size=1, store=HashStore())
        mesh = init_device_mesh("cpu", (1,))
        def distributed(tensor):
            return DTensor.from_local(tensor, mesh, [Replicate()])
        ones = torch.ones(4, 4)
        for call in (cutlass_api.matmul, cutlass_api.linear):
            try:
                call(distributed(ones), ones)
            except TypeError as error:
                print(error)
        try:
            cutlass_api.matmul(distributed(ones), distributed(ones[:3]))
        except ValueError as error:
            assert error.__cause__ is None, "the chain of causes has no end"
        sys.path[:0] = sys.argv[1:]
        from support.operator_calls import (EVERY, each_call)
        for name in EVERY:
            if len(cutlass_api.ops.OPERATORS[name].tensors) == 1:
                continue
            for overload, call in each_call(name, distributed):
                is_out = overload.endswith(".out")
                reason = " does not serve DTensor" if is_out else ": some operands are DTensors"
                try:
                    call()
                except NotImplementedError if is_out else TypeError as error:
                    is_named = f"cutlass_api::{overload}{reason}" in str(error)
                    print("refused" if is_named else error)
                else:
                    print(overload, "computes")
    """
    first, second, *lines = run_python(script, TESTS, is_warm=True).splitlines()
    reason = "some operands are DTensors and others are not; distribute the others, too"
    assert first.startswith(f"cutlass_api::mm: {reason}")
    assert second.startswith(f"cutlass_api::linear: {reason}")
    assert len(lines) > 60 and set(lines) == {"refused"}


def test_out_has_no_gradient():
    with pytest.raises(RuntimeError, match=r"cutlass_api::mm.out does not support autograd"):
        OPS.mm.out(A.clone().requires_grad_(), B, out=torch.empty(4, 6))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int8])
def test_integers_for_products_of_floats_are_refused(dtype):
    a, b = torch.randn(4, 8), torch.randn(8, 4)
    out = torch.zeros(4, 4, dtype=dtype)
    calls = [
        lambda: OPS.mm.out(a, b, out=out),
        lambda: OPS.addmm.out(out, a, b, out=out),
        lambda: OPS.linear.out(a, b.t(), out=out),
        lambda: OPS.bmm.out(a[None], b[None], out=out[None]),
        lambda: OPS.mm(a, b, out_dtype=dtype),
        lambda: OPS.mixed_mm(a.half(), b.to(torch.int8), out_dtype=dtype),
    ]
    for call in calls:
        with pytest.raises((ValueError, RuntimeError), match=f"{dtype}, which holds no fractions"):
            call()
    # An epilogue of the user rounds where it likes.
    source = "def rounded(accum):\n    D = round(accum)\n    return D"
    floored = OPS.mm_epilogue(a, b, [], source, out_dtype=torch.int32)
    assert floored.dtype is torch.int32


@pytest.mark.parametrize("end", [2**32 + 4, -(2**32) + 4, 2**31])
def test_int64_offsets_that_int32_does_not_hold_are_refused(end):
    # Its low word may be an offset.
    wide = torch.tensor([end])
    calls = {
        "grouped_mm: offs": lambda: OPS.grouped_mm(A, B[None], wide),
        "grouped_mm_weight_grad: offs": lambda: OPS.grouped_mm_weight_grad(A, A, wide),
        "masked_grouped_mm: counts": lambda: OPS.masked_grouped_mm(A[None], B[None], wide),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=f"{name} holds {end}, past the range of int32"):
            call()
