"""Scripts that repeat a launch on the stand-in driver."""

import textwrap

import stand_in

#: More runs than the promotion of a short launch needs.
SETTLED = 40

#: Runs of a short kernel, one a call, each of which must be one launch on A, B and OUT.
PREAMBLE = f"""
SETTLED = {SETTLED}
kernel = first(args, "sm90")
artifact = kernel.compile(args)
device.expect(496)
launch = kernel.bind(args, artifact, STREAM)
calls = {{
    "run": lambda: kernel.run(args, artifact, stream=STREAM, assume_supported_args=True),
    "checked": lambda: kernel.run(args, artifact, stream=STREAM),
    "new arguments": lambda: kernel.run(
        GemmArguments(a, b, out, "float32"), artifact, stream=STREAM, assume_supported_args=True
    ),
    "bound": launch,
    "matmul": lambda: cutlass_api.matmul(a, b, out=out),
}}
device.library.stand_in_set_current_stream(device.ctypes.c_uint64(STREAM))

def launched(call, addresses=(A, B, OUT), graphs=None, stream=STREAM):
    # Each call launches one kernel on these operands, as a graph or as a kernel.
    before = device.launches(), device.graph_launches()
    call()
    assert device.launches() == before[0] + 1
    if graphs is not None:
        assert device.graph_launches() == before[1] + graphs, (graphs, call)
    block = device.last_sm90_parameters()
    found = {{block.a.address or block.a_pointer, block.b.address, block.out_pointer}}
    assert found == set(addresses), (found, addresses)
    assert device.library.stand_in_last_stream() == stream
    assert device.library.stand_in_open_contexts() == 0 and device.library.stand_in_misused() == 0

def settled(call, **expected):
    for _ in range(SETTLED):
        launched(call, **expected)
    launched(call, **expected, graphs=1)
"""


def run(script):
    return stand_in.run_gemm(PREAMBLE + textwrap.dedent(script))
