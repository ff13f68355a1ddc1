"""`CUTLASS_API_CHECK=1`: offsets, counts and indices of groups on a device."""

import json

import pytest
import stand_in

#: Operands of two groups of eight rows, of masked groups, and of groups along K. Offsets, or an
#: index of rows, are set one after the other, and what the launches say is printed.
SCRIPT = """
import json, torch, cutlass_api
from cutlass_api.arguments import GroupedGemmArguments
from stand_in.emulated import operand

def launch(shapes, values, turns=1, ends=None):
    checked = torch.tensor(values[0], dtype=torch.int64)
    a, b, out = (torch.ones(shape, dtype=torch.bfloat16) for shape in shapes)
    offsets = index = operand(checked.view(torch.int32)[::2])
    given = {}
    if ends is not None:
        offsets, given["index"] = operand(torch.tensor(ends, dtype=torch.int32)), index
    args = GroupedGemmArguments(*map(operand, (a, b, out)), "float32", offsets, **given)
    kernels = cutlass_api.get_kernels(args)
    family = "simt" if ends is None else "sm90"
    kernel = next(each for each in kernels if family in each.metadata.kernel_name)
    artifact, said = kernel.compile(args), []
    for each in values:
        checked.copy_(torch.tensor(each))
        for _ in range(turns):
            out.zero_()
            try:
                kernel.run(args, artifact)
                said.append("")
            except ValueError as error:
                said.append(f"{error}, {'written' if out.any() else 'nothing written'}")
    return said

rows = [(8, 16), (2, 16, 8), (8, 8)]
found = {
    "rows": launch(rows, [[3, 8], [5, 3], [3, 9], [-1, 8], [0, 0]]),
    "repeated": launch(rows, [[3, 8], [5, 3]], turns=3),
    "masked": launch([(2, 8, 16), (2, 16, 8), (2, 8, 8)], [[8, 3], [9, 0], [0, -1]]),
    "K": launch([(8, 16), (16, 8), (2, 8, 8)], [[3, 16], [3, 17]]),
    "index": launch(
        [(5, 16), (2, 16, 8), (4, 8)],
        [[4, 4, 0, 1], [4, 5, 0, 1], [0, 0, -1, 0], [0, 0, 0, 9]],
        ends=[1, 3],
    ),
}
print(json.dumps(found))
"""


def launched(**environment: str) -> dict[str, list[str]]:
    return json.loads(stand_in.run(SCRIPT, emulated=True, **environment))


@pytest.fixture(scope="module")
def checked() -> dict[str, list[str]]:
    return launched(CUTLASS_API_CHECK="1")


ORDER = "offsets must not decrease and must lie in 0 to {}, the {} of A, but group {} spans {} {} "
INDEX = "index must lie in 0 to 4, the last row of A, but row {} of group {} has {}"
COUNT = "counts of rows must lie in 0 to 8, the rows of each matrix of A, but group {} has {}"


@pytest.mark.parametrize(
    ("name", "expected"),
    {
        "rows": [
            "",
            ORDER.format(8, "rows", 1, "rows", "5 to 3"),
            ORDER.format(8, "rows", 1, "rows", "3 to 9"),
            ORDER.format(8, "rows", 0, "rows", "0 to -1"),
            "",
        ],
        "repeated": [""] * 3 + [ORDER.format(8, "rows", 1, "rows", "5 to 3")] * 3,
        "masked": ["", COUNT.format(0, 9), COUNT.format(1, -1)],
        "K": ["", ORDER.format(16, "columns", 1, "columns", "3 to 17")],
        # What is behind the last group is not checked.
        "index": ["", INDEX.format(1, 1, 5), INDEX.format(2, 1, -1), ""],
    }.items(),
)
def test_groups_are_checked_before_a_launch(checked, name, expected) -> None:
    wanted = [each and f"{each.strip()}, nothing written" for each in expected]
    assert checked[name] == wanted


def test_nothing_is_read_otherwise() -> None:
    assert {said for each in launched().values() for said in each} == {""}
