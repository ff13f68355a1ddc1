"""What the real driver answers in forks, behind a reset of the device, and at the end of the
process. Each in a process of its own; `test_isolation.py` has more cases by the stand-in driver.
"""

import pytest
from support.helpers import run_python

pytestmark = pytest.mark.gpu

#: Calls of one product. Enough of each before the event that some become graphs.
CALLS = """
import ctypes, os, threading
import torch
import cutlass_api
from cutlass_api.arguments import GemmArguments

a, b = (torch.randn(512, 512, device="cuda", dtype=torch.float16) for _ in range(2))
out = torch.empty_like(a)
args = GemmArguments(a, b, out, accumulator_type=torch.float32)
kernel = cutlass_api.get_kernels(args)[0]
artifact = kernel.compile(args)
stream = torch.cuda.Stream().cuda_stream
calls = [
    lambda: kernel.run(args, artifact, stream),
    lambda: kernel.run(args, artifact),
    kernel.bind(args, artifact, stream),
    lambda: cutlass_api.matmul(a, b, out=out),
]
for _ in range(100):
    [call() for call in calls]

def messages():
    found = []
    for call in (*calls, *calls):
        try:
            call()
        except RuntimeError as error:
            found.append(str(error))
        else:
            found.append("nothing was raised")
    return found
"""


def test_a_launch_in_a_fork_says_that_cuda_does_not_survive_it() -> None:
    code = """
        import sys
        exec(sys.argv[1])
        torch.cuda.synchronize()
        child = os.fork()
        if not child:
            try:
                os.write(1, "\\n".join(messages()).encode())
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        out.fill_(torch.nan)
        calls[0]()
        torch.cuda.synchronize()
        torch.testing.assert_close(out, a @ b, rtol=2e-2, atol=2e-1)
    """
    found = run_python(code, CALLS, timeout=180).splitlines()
    assert len(found) == 8, found
    for message in found:
        assert "CUDA does not survive a fork" in message, found


def test_a_launch_behind_a_reset_names_it() -> None:
    code = """
        import sys
        exec(sys.argv[1])
        torch.cuda.synchronize()
        driver = ctypes.CDLL("libcuda.so.1")
        assert driver.cuDevicePrimaryCtxReset_v2(0) == 0
        # Not on the created stream, which is gone: driver 580.159 crashes there.
        calls = calls[1::2]
        print("\\n".join(messages()), flush=True)
        os._exit(0)  # torch's destructors use the lost context
    """
    found = run_python(code, CALLS, timeout=180).splitlines()
    assert len(found) == 4, found
    for message in found:
        assert "the CUDA context is lost" in message, found


@pytest.mark.parametrize("daemon", [True, False])
def test_the_process_ends_while_threads_launch(daemon: bool) -> None:
    code = f"""
        import sys
        exec(sys.argv[1])
        begun = threading.Barrier(len(calls) + 1)

        def many(call):
            begun.wait()
            for _ in range({1_000_000 if daemon else 2000}):
                call()

        for call in calls:
            threading.Thread(target=many, args=(call,), daemon={daemon}).start()
        begun.wait()
    """
    for _ in range(3):
        run_python(code, CALLS, timeout=180)
