"""CUDA code contains no text of the user, whatever names, comments and numbers a function has."""

import re
import unicodedata

import cutlass_api
import pytest
from cutlass_api import fusion
from support.epilogues import fake_fused
from support.helpers import fake


def programs(source, **operands):
    """The CUDA text of one kernel of each class, for an H100."""
    kernels = cutlass_api.get_kernels(fake_fused(source, **operands), cc=90)
    return [kernel.source for kernel in {type(kernel): kernel for kernel in kernels}.values()]


#: The function, a tensor, a number, a local value and an output have the names that follow.
NAMED = """def {0}(accum, {1}, {2}):
    {3} = accum * {2} + {1}
    {4} = relu({3})
    D = {4} - 1
    return D, {4}
"""


def named(names):
    # Python's parser reads identifiers in this form.
    _, tensor, number, _, output = (unicodedata.normalize("NFKC", name) for name in names)
    operands = {tensor: fake(256, 256), number: 2.0, output: fake(256, 256)}
    return programs(NAMED.format(*names), **operands)


@pytest.mark.parametrize(
    "names",
    {
        "keywords": ["asm", "__device__", "__launch_bounds__", "template", "__asm__"],
        "macros": ["NULL", "__CUDA_ARCH__", "__FILE__", "_Pragma", "defined"],
        "functions": ["__trap", "printf", "malloc", "__nanosleep", "_exit"],
        "generated": ["Epilogue", "v0", "input0", "values", "output1"],
        "types": ["f16", "float", "EpilogueParams", "operands", "params"],
        "unicode": ["größe", "변수", "переменная", "变量", "π"],
        "compatible": ["\uff46x", "\ufb01eld", "\u00ba", "\U0001d431", "\u212b"],
        "long": [letter * 100_000 for letter in "abcde"],
    }.items(),
    ids=lambda item: item[0],
)
def test_names_do_not_reach_the_program(names):
    """The program is that of other names."""
    plain = named(["function", "tensor", "number", "local", "output"])
    assert len(plain) > 2 and named(names[1]) == plain


@pytest.mark.parametrize(
    "source",
    {
        "docstring": 'def f(accum, x):\n    """*/ trap(); /*"""\n    D = accum * x\n    return D',
        "comment": "def f(accum, x):\n    D = accum * x  # */ trap(); \\\n    return D",
        "line": "# */ trap();\ndef f(accum, x):\n    D = accum * x  # ??/\n#\n    return D",
        "annotations": "def f(accum, x: 'trap') -> trap:\n    D: 'trap' = accum * x\n    return D",
        "statements": "import trap\ntrap()\ndef f(accum, x):\n    D = accum * x\n    return D",
        "carriage return": "def f(accum, x):\r    D = accum * x  # trap();\r    return D",
    }.items(),
    ids=lambda item: item[0],
)
def test_text_beside_expressions_does_not_reach_the_program(source):
    plain = "def f(accum, x):\n    D = accum * x\n    return D"
    assert programs(source[1], x=fake(256, 256)) == programs(plain, x=fake(256, 256))


#: The value of D, and the literal in the program.
LITERALS = {
    "accum * 1e400": "__uint_as_float(0x7f800000u)",
    "accum * -1e400": "__uint_as_float(0xff800000u)",
    "accum * math.inf": "__uint_as_float(0x7f800000u)",
    "accum * (1e400 - 1e400)": "__uint_as_float(0x[7f]fc00000u)",
    "accum * 1e39": "__uint_as_float(0x7f800000u)",
    "accum * 1e-400": "0.0f",
    "accum * -0.0": "-0.0f",
    "accum * 5e-324": "0.0f",
    "accum * 9223372036854775807": "9.223372e18f",
    "accum * 0x7f_ff": "32767",
    "accum * True": "1",
}


@pytest.mark.parametrize("expression", LITERALS)
def test_numbers_become_literals_of_their_values(expression):
    source = f"def f(accum):\n    D = {expression}\n    return D"
    literal = LITERALS[expression].replace("(", r"\(").replace(")", r"\)").replace(".", r"\.")
    for program in programs(source):
        assert re.search(rf"const [fs]32 v\d+ = {literal};\n", program)


TRAPS = [
    "accum.to('float32(0)); trap(); (')",
    "accum.to(trap)",
    "accum.to(torch.trap)",
    "gelu(accum, approximate='none\"); trap();')",
    "trap(accum)",
    "torch.trap(accum)",
    "torch.ops.trap.trap(accum)",
    "accum.trap()",
    "accum.trap",
    "accum.__class__.trap",
    "math.trap * accum",
    "accum + 'trap();'",
    "accum + b'trap();'",
    "accum + f'{trap}'",
    "accum + float('trap')",
    "accum + nan",
    "relu(accum, trap=1)",
    "sum(accum, dim='trap')",
    "scale_blocks(accum, a=x, a_block=(1, 128), a_swizzle='trap')",
    "scale_blocks(accum, a=x, a_block=('trap', 128))",
    "scale_blocks(accum, a=x, a_block=(1, 10**18))",
]


@pytest.mark.parametrize("expression", TRAPS)
def test_other_text_is_refused_with_its_line(expression):
    with pytest.raises(ValueError, match=r"\(line 2: `D = "):
        fusion.trace(f"def f(accum, x):\n    D = {expression}\n    return D")


def test_defaults_and_null_bytes_are_refused():
    with pytest.raises(ValueError, match="cannot have defaults"):
        fusion.trace("def f(accum, x='trap();'):\n    D = accum * x\n    return D")
    with pytest.raises((SyntaxError, ValueError), match="null bytes"):
        fusion.trace("def f(accum):\n    D = accum\0\n    return D")


def test_a_hostile_epilogue_compiles():
    source = (
        "def asm(accum, __launch_bounds__, größe):\n    D = accum * 1e400 - 1e-400 + größe\n"
        "    D2 = D + __launch_bounds__ + 1234567890123456789\n    return D, D2"
    )
    names = ("__launch_bounds__", "größe", "D2")
    args = fake_fused(source, **{name: fake(256, 256) for name in names})
    program = cutlass_api.get_kernels(args, cc=90)[0].compile(args, cc=90).compiled_obj
    assert program.source.isascii() and program.log == ""
