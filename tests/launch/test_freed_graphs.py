"""Graphs of repeated launches are freed while other threads run, before a fork, and at the end."""

import pytest
from support.repeated import run


def test_graphs_are_freed_with_what_they_launch_and_are_not_many():
    run(
        """
        open_graphs = device.library.stand_in_open_graphs
        many = [GemmArguments(a, b, out, "float32") for _ in range(300)]
        for args in many:
            for _ in range(SETTLED):
                kernel.run(args, artifact, stream=STREAM, assume_supported_args=True)
        # The launch that the artifact keeps has become one, too. Each has what it was made from.
        assert open_graphs() == 2 * 256
        before = device.graph_launches()
        for args in many:
            launched(calls["run"])
        assert 250 < device.graph_launches() - before < 300
        del args, many
        assert open_graphs() <= 2
        args = GemmArguments(a, b, out, "float32")
        settled(calls["run"])
        """
    )


#: Tensors and arguments of another problem, whose launch replaces the last one of an artifact.
LONGER = """
import time
import cutlass_api.tuning
longer = GemmArguments(Tensor(A, (256, 256)), b, Tensor(OUT, (256, 64)), "float32")
"""


@pytest.mark.parametrize(
    "owner, free",
    [
        ("run", "del args, launch"),
        ("bound", "del launch"),
        ("new arguments", "del artifact"),
        ("new arguments", "kernel.run(longer, artifact, stream=STREAM)"),
        ("matmul", "cutlass_api.tuning.clear()"),
    ],
)
def test_other_threads_run_while_a_graph_is_freed(owner, free):
    run(
        LONGER
        + f"""
settled(calls["{owner}"])
calls.clear()
graphs = device.library.stand_in_open_graphs()

def release():
    while not device.library.stand_in_is_holding() and not has_freed:
        time.sleep(0.001)
    device.library.stand_in_release_destruction()

# The driver frees the graph after another thread has released it.
has_freed = False
device.library.stand_in_hold_destruction()
thread = threading.Thread(target=release)
thread.start()
{free}
has_freed = True
thread.join()
assert device.library.stand_in_open_graphs() == graphs - 2
assert device.library.stand_in_misused() == 0
"""
    )


#: A daemon thread that stays in the driver, where it frees the last launch of an artifact.
FREEING = (
    LONGER
    + """
settled(calls["new arguments"])
device.library.stand_in_hold_destruction()
free = lambda: kernel.run(longer, artifact, stream=STREAM)
threading.Thread(target=free, daemon=True).start()
while not device.library.stand_in_is_holding():
    assert device.library.stand_in_misused() == 0, "the thread held the GIL until its wait ended"
    time.sleep(0.001)
"""
)


def test_a_process_forks_while_a_graph_is_freed():
    run(
        "device.library.stand_in_end_in_forks()\n"
        + FREEING
        + """
import os

child = os.fork()
if child == 0:
    try:
        calls["new arguments"]()
    except RuntimeError as error:
        del args, launch, artifact
        calls.clear()
        os._exit(0 if "CUDA does not survive a fork" in str(error) else 1)
    os._exit(2)
assert os.waitpid(child, 0)[1] == 0
device.library.stand_in_release_destruction()
"""
    )


#: Leaves a graph to the interpreter's end, where a daemon thread wants the GIL.
LEAVING = """
import sys, time
settled(calls["run"])
sys._left = args  # cleared before `sys.last`
del args, launch
calls.clear()

def spin():
    while True:
        pass

threading.Thread(target=spin, daemon=True).start()
"""


@pytest.mark.parametrize("script", [FREEING, LEAVING], ids=["daemon thread", "main thread"])
def test_graphs_are_freed_at_the_end_of_the_interpreter(script):
    out = run(
        script
        + """
import os, sys

class Last:
    # Does without global names, which the interpreter has cleared.
    release, open_graphs, sleep, write = (
        device.library.stand_in_release_destruction,
        device.library.stand_in_open_graphs,
        time.sleep,
        os.write,
    )

    def __del__(self):
        self.release()
        self.sleep(0.2)  # without the GIL
        self.write(1, str(self.open_graphs()).encode())

sys.last = Last()
"""
    )
    assert out == "0"
