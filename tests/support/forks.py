"""Work of processes that fork, as text of scripts."""

#: A product on the CPU, a child that ends by itself, and its exit status.
FORK = """
import os, signal
import numpy as np
import cutlass_api

def multiply():
    a = np.eye(300, dtype=np.float32)
    out = np.full((300, 300), np.nan, np.float32)
    args = cutlass_api.arguments.GemmArguments(a, a * 3, out, accumulator_type="float32")
    cutlass_api.get_kernels(args)[0].run(args)
    assert np.array_equal(out, a * 3)

def fork(work):
    child = os.fork()
    if child:
        return child
    signal.alarm(60)  # ends a child that waits for a lock
    try:
        work()
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)

def ended(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""
