"""Imports of torch and cutlass_api."""

from support.helpers import run_python


def test_torch_is_imported_when_it_is_used():
    script = """
        import sys, cutlass_api
        assert "torch" not in sys.modules
        cutlass_api.quantize.per_row
        assert "torch" in sys.modules
        import torch
        a = torch.ones(2, 2)
        print(torch.ops.cutlass_api.mm(a, a).sum().item(), cutlass_api.linear(a, a).sum().item())
        slow = ("torch._dynamo", "torch._inductor", "torch.distributed.tensor", "triton")
        print([name for name in slow if name in sys.modules])
        from torch.utils.flop_counter import FlopCounterMode
        with FlopCounterMode(display=False) as counter:
            cutlass_api.matmul(a, a)
        print(counter.get_total_flops())
        print(torch.compile(cutlass_api.matmul, fullgraph=True, backend="eager")(a, a).sum().item())
    """
    assert run_python(script).splitlines() == ["8.0 8.0", "[]", "16", "8.0"]


def test_operators_imported_before_torch():
    script = """
        import sys, warnings
        warnings.simplefilter("error")
        import cutlass_api
        linear = cutlass_api.linear
        assert "torch" in sys.modules
        from cutlass_api.ops import OPS
        print(OPS.mm.default, linear is cutlass_api.ops.linear)
    """
    assert run_python(script) == "cutlass_api.mm.default True\n"


def test_linear_without_torch():
    script = """
        import sys
        sys.modules["torch"] = None
        import cutlass_api
        try:
            cutlass_api.linear
        except ImportError as error:
            print(error.name, hasattr(cutlass_api, "ops2"))
    """
    assert run_python(script) == "torch False\n"


def test_a_torch_without_the_dispatcher_does_not_break_the_import(tmp_path):
    (tmp_path / "torch.py").write_text("")
    script = """
        import sys, warnings
        sys.path[:0] = sys.argv[1:]
        with warnings.catch_warnings(record=True) as caught:
            import cutlass_api, torch
        print(len(caught), caught[0].message)
    """
    found = run_python(script, tmp_path)
    assert found.startswith("1 cutlass_api serves torch in part: cutlass_api._import_ops raised")
