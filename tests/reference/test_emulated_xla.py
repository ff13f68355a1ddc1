"""What a call of XLA on a GPU computes, by the emulator."""

import textwrap

import pytest
import stand_in

pytest.importorskip("jaxlib")


def test_a_call_with_a_transposed_operand_and_two_outputs():
    """A batch of one matrix B."""
    script = """
        import torch
        from stand_in.emulated import operand
        from support.xla_calls import PLAIN, call

        a, b = (torch.randint(-4, 5, shape).half() for shape in ((3, 64, 16), (64, 32)))
        bias = torch.randint(-9, 9, (32,)).half()
        out, gate = (torch.full((3, 16, 32), torch.nan).half() for _ in range(2))
        allowed = [operand(x) for x in (a, b, bias, out, gate)]
        def of(x, *shape):
            return x.data_ptr(), "float16", shape or tuple(x.shape)
        source = "def epilogue(accum, bias): gate = accum + bias; D = relu(gate); return D, gate"
        # The memory of A holds (K, M) of each example.
        failed = call(
            "CUDA", [of(a, 3, 16, 64), of(b), of(bias)], [of(out), of(gate), (0, "uint8", (0,))],
            **(PLAIN | {"a_is_transposed": True, "epilogue": source}),
        )
        assert failed.error is None, failed.error
        expected = a.mT.double() @ b.double() + bias
        assert (gate == expected).all() and (out == expected.clamp(min=0)).all()
        """
    stand_in.run(textwrap.dedent(script), emulated=True)
