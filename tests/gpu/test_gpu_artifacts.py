"""Artifacts on a GPU, in other processes."""

import pytest
from support.gpu_helpers import Gemm
from support.helpers import run_python

pytestmark = pytest.mark.gpu


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
