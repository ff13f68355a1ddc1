"""Artifacts on a GPU: serialization, other processes, other kernels and architectures."""

import pickle

import pytest
from cutlass_api.artifact import CompiledArtifact
from support.gpu_helpers import Gemm
from support.helpers import run_python

pytestmark = pytest.mark.gpu


def through_bytes(artifact: CompiledArtifact) -> CompiledArtifact:
    return CompiledArtifact.from_bytes(artifact.to_bytes())


def through_pickle(artifact: CompiledArtifact) -> CompiledArtifact:
    return pickle.loads(pickle.dumps(artifact))


@pytest.mark.parametrize("carry", [through_bytes, through_pickle])
def test_an_artifact_survives_being_saved(carry) -> None:
    gemm = Gemm()
    restored = carry(gemm.artifact)
    assert restored is not gemm.artifact and restored.kernel_obj is gemm.kernel
    assert restored.compiled_obj.cubin == gemm.artifact.compiled_obj.cubin
    gemm.kernel.run(gemm.args, restored)
    assert gemm.shows(1)


def test_an_artifact_runs_in_another_process(tmp_path) -> None:
    """Ahead-of-time compilation: the other process has an empty cache."""
    gemm = Gemm()
    path = tmp_path / "artifact"
    path.write_bytes(gemm.artifact.to_bytes())
    code = """
    import pathlib, sys, torch
    from cutlass_api.arguments import GemmArguments
    from cutlass_api.artifact import CompiledArtifact

    artifact = CompiledArtifact.from_bytes(pathlib.Path(sys.argv[1]).read_bytes())
    a, b = torch.ones(128, 64, device="cuda").half(), torch.ones(64, 256, device="cuda").half()
    out = torch.full((128, 256), torch.nan, device="cuda", dtype=torch.float16)
    artifact.kernel_obj.run(GemmArguments(a, b, out, accumulator_type=torch.float32), artifact)
    assert (out == 64).all()
    print("done")
    """
    empty = tmp_path / "cache"
    assert run_python(code, path, CUTLASS_API_CACHE_DIR=str(empty)).endswith("done\n")
    assert not empty.exists(), "nothing was compiled"


def test_without_an_artifact_a_kernel_is_compiled_once_and_kept(tmp_path) -> None:
    code = """
    import torch, cutlass_api
    from cutlass_api.arguments import GemmArguments

    a, b = torch.ones(128, 64, device="cuda").half(), torch.ones(64, 256, device="cuda").half()
    out = torch.full((128, 256), torch.nan, device="cuda", dtype=torch.float16)
    args = GemmArguments(a, b, out, accumulator_type=torch.float32)
    kernel = cutlass_api.get_kernels(args)[0]
    kernel.run(args)
    kernel.run(args)
    assert (out == 64).all()
    """
    kept = []
    for _ in range(2):
        run_python(code, CUTLASS_API_CACHE_DIR=str(tmp_path))
        # A use renews the time stamps; a compilation writes a new file.
        kept.append({path: path.stat().st_ino for path in tmp_path.rglob("*.cubin")})
    assert len(kept[0]) == 1
    assert kept[0] == kept[1], "the second process took it from there"
