"""Artifacts: as bytes, pickled, and in other processes."""

import hashlib
import pickle

import pytest
from cutlass_api.artifact import CompiledArtifact
from support.compiling import without_packages
from support.helpers import run_python


@pytest.mark.parametrize("form", ["to_bytes", "pickle"])
def test_artifacts_are_restored_in_another_process(artifact, tmp_path, form):
    file = tmp_path / "artifact"
    file.write_bytes(artifact.to_bytes() if form == "to_bytes" else pickle.dumps(artifact))
    code = f"""
        import hashlib, pickle, sys
        from cutlass_api.artifact import CompiledArtifact
        data = open(sys.argv[1], "rb").read()
        artifact = CompiledArtifact.from_bytes(data) if {form == "to_bytes"} else pickle.loads(data)
        program = artifact.compiled_obj
        assert artifact.kernel_obj.metadata.kernel_name == program.kernel_name
        assert artifact.to_bytes() == data or {form != "to_bytes"}
        digest = hashlib.sha256(program.cubin).hexdigest()
        print(program.kernel_name, program.architecture, program.shared_bytes, digest)
    """
    program = artifact.compiled_obj
    digest = hashlib.sha256(program.cubin).hexdigest()
    # Ahead-of-time use: the other machine has no compiler, nor any other package.
    out = run_python(code, file, **without_packages(tmp_path))
    assert out.split() == [program.kernel_name, "sm_90a", str(program.shared_bytes), digest]


def test_a_restored_artifact_is_of_the_same_kernel(artifact):
    restored = CompiledArtifact.from_bytes(artifact.to_bytes())
    assert restored.kernel_obj is artifact.kernel_obj
    assert restored.to_bytes() == artifact.to_bytes()
    assert restored.compiled_obj.source == artifact.compiled_obj.source


def flipped(data, position):
    return data[:position] + bytes([data[position] ^ 0x10]) + data[position + 1 :]


@pytest.mark.parametrize(
    "damage",
    {
        "empty": lambda data: b"",
        "text": lambda data: b"hello",
        "magic only": lambda data: data[:8],
        "half of the checksum": lambda data: data[:20],
        "torn": lambda data: data[: len(data) // 2],
        "one byte short": lambda data: data[:-1],
        "one byte more": lambda data: data + b"\0",
        "magic": lambda data: flipped(data, 0),
        "version": lambda data: flipped(data, 7),
        "checksum": lambda data: flipped(data, 12),
        "name": lambda data: flipped(data, 45),
        "machine code": lambda data: flipped(data, len(data) - 100),
        "ELF": lambda data: b"\x7fELF" + data,
        "twice": lambda data: data + data,
    }.items(),
    ids=lambda item: item[0],
)
def test_torn_and_foreign_bytes_are_refused(artifact, damage):
    with pytest.raises(ValueError, match="not a compiled artifact"):
        CompiledArtifact.from_bytes(damage[1](artifact.to_bytes()))


def test_bytes_only():
    with pytest.raises(TypeError):
        CompiledArtifact.from_bytes("text")
