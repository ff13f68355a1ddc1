"""Runs checks in the ranks of a process group: a script that `test_distributed.py` starts.

    PYTHONPATH=tests python -m support.distributed MODULE BACKEND RESULTS SIZE...

starts SIZE ranks for each SIZE. Each rank calls each function of MODULE whose name begins with
`check_`, and writes the tracebacks to RESULTS, a folder. The ranks of gloo are forks of a process
that has imported torch; CUDA does not survive a fork, so those of NCCL import it themselves.
"""

import importlib
import json
import multiprocessing
import os
import sys
import traceback
from pathlib import Path

import cutlass_api  # noqa: F401
import torch
import torch.distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard  # noqa: F401, imported before the fork
from torch.distributed.tensor import DTensor  # noqa: F401
from torch.distributed.tensor.parallel import parallelize_module  # noqa: F401

#: What a check returns to end its process without closing the process group.
EXIT = "exit"


class World:
    """What a check gets: this rank, a mesh of all ranks, and the device of its tensors."""

    def __init__(self, rank, size, backend):
        self.rank, self.size = rank, size
        self.kind = "cuda" if backend == "nccl" else "cpu"
        self.device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
        self.mesh = init_device_mesh(self.kind, (size,))

    def mesh_2d(self):
        return init_device_mesh(self.kind, (2, self.size // 2), mesh_dim_names=("data", "tensor"))


def run_rank(name, backend, results, size, rank):
    module = importlib.import_module(name)
    torch.set_num_threads(1)
    if backend == "nccl":
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")  # no NVLink multicast
        torch.cuda.set_device(rank)
    store = torch.distributed.FileStore(str(results / f"store_{size}"), size)
    torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=size)
    world = World(rank, size, backend)
    found = {}
    for check in names_of_checks(module):
        ends = None
        try:
            ends = getattr(module, check)(world)
            found[check] = ""
        except BaseException:
            found[check] = traceback.format_exc()
        # After each check: the other ranks may hang in the next one.
        (results / f"{size}_{rank}.json").write_text(json.dumps(found))
        if ends == EXIT:
            os._exit(1)
    torch.distributed.destroy_process_group()


def names_of_checks(module):
    return [name for name in vars(module) if name.startswith("check_")]


def main():
    name, backend, results, *sizes = sys.argv[1:]
    importlib.import_module(name)
    processes = multiprocessing.get_context("spawn" if backend == "nccl" else "fork")
    for size in map(int, sizes):
        each = [(name, backend, Path(results), size, rank) for rank in range(size)]
        ranks = [processes.Process(target=run_rank, args=arguments) for arguments in each]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()


if __name__ == "__main__":
    main()
