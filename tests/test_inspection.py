"""`python -m cutlass_api env`, `kernels` and `--version`."""

import json
import sys

import cutlass_api
import pytest
import stand_in
from cutlass_api import __main__, inspection


def run_main(monkeypatch, capsys, *arguments):
    """What the command prints."""
    monkeypatch.setattr(sys, "argv", ["cutlass_api", *map(str, arguments)])
    __main__.main()
    return capsys.readouterr().out


def test_the_environment_without_a_driver(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("CUTLASS_API_TUNE", "off")
    monkeypatch.setattr(
        inspection._core, "device_count", lambda: (_ for _ in ()).throw(RuntimeError("no driver"))
    )
    printed = run_main(monkeypatch, capsys, "env", "--json", tmp_path / "env.json")
    facts = json.loads((tmp_path / "env.json").read_text())
    assert printed.splitlines() == [f"{name}: {fact}" for name, fact in facts.items()]
    assert facts["rutlass"] == cutlass_api.__version__
    assert facts["GPU"] == "none: no driver"
    assert facts["NVRTC"].startswith(".".join(map(str, cutlass_api._core.nvrtc_info()[1])))
    assert facts["CUTLASS_API_TUNE"] == "off"
    assert "HOME" not in facts


def test_the_environment_with_gpus():
    """Each GPU of the stand-in driver, and the driver's version. torch is not imported."""
    script = """
import json, sys
from cutlass_api import inspection
facts = inspection.environment()
assert "torch" not in sys.modules
print(json.dumps(facts))
"""
    facts = json.loads(stand_in.run(script))
    assert facts["GPU 0"] == "stand-in 0, compute capability 9.0, 132 multiprocessors"
    assert facts["GPU 1"].startswith("stand-in 1, ")
    major, minor = map(int, facts["CUDA driver"].split("."))
    assert (major, minor) >= (12, 6)


def test_a_gpu_that_cannot_be_opened_is_named(monkeypatch):
    def facts_of(ordinal):
        if ordinal == 0:
            raise RuntimeError("it fell off the bus")
        return "a GPU", 80, 108, 12080

    monkeypatch.setattr(inspection._core, "device_count", lambda: 2)
    monkeypatch.setattr(inspection._core, "device_facts", facts_of)
    facts = inspection.environment()
    assert facts["GPU 0"] == "unusable: it fell off the bus"
    assert facts["GPU 1"] == "a GPU, compute capability 8.0, 108 multiprocessors"
    assert facts["CUDA driver"] == "12.8"


def test_an_invalid_setting_is_named(monkeypatch):
    def mode():
        raise ValueError("CUTLASS_API_TUNE is bogus")

    monkeypatch.setattr(inspection._core, "tuning_mode", mode)
    assert inspection.environment()["tuning"] == "none: CUTLASS_API_TUNE is bogus"


def test_the_cache_is_counted(monkeypatch, tmp_path):
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs/one").write_bytes(bytes(3 << 19))
    monkeypatch.setattr(inspection._core, "cache_directory", lambda: tmp_path)
    assert inspection.environment()["compiled programs"] == f"{tmp_path}, 1 files, 1.5 MiB"
    monkeypatch.setattr(inspection._core, "cache_directory", lambda: None)
    assert inspection.environment()["compiled programs"] == "not cached"


def test_kernels_are_listed_by_patterns(monkeypatch, capsys, tmp_path):
    options = ["kernels", "sm90", "f16xf16", "_128x256x64*_cluster2x1", "--cc", "90"]
    printed = run_main(monkeypatch, capsys, *options, "--json", tmp_path / "kernels.json")
    rows = json.loads((tmp_path / "kernels.json").read_text())
    expected = [
        name
        for name in (each.metadata.kernel_name for each in cutlass_api.get_kernels(cc=90))
        if name.startswith("sm90_") and "f16xf16" in name
        if "_128x256x64" in name and "_cluster2x1" in name
    ]
    assert [row["kernel"] for row in rows] == expected != []
    assert printed.startswith(f"{len(expected)} kernels")
    assert all(name in printed for name in expected)
    assert {(row["from"], row["tile"], row["cluster"]) for row in rows} == {
        ("9.0", "128x256x64", "2x1x1")
    }
    assert run_main(monkeypatch, capsys, "kernels", "no such").startswith("0 kernels")


def test_the_version(monkeypatch, capsys):
    with pytest.raises(SystemExit) as ended:
        run_main(monkeypatch, capsys, "--version")
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"rutlass {cutlass_api.__version__}\n"


@pytest.mark.parametrize(
    "short, name",
    {"fp16": "float16", "bf16": "bfloat16", "f32": "float32", "fp8_e4m3": "float8_e4m3fn"}.items(),
)
def test_short_names_of_dtypes(short, name):
    assert cutlass_api.DType(short) == cutlass_api.DType(name)


def test_short_names_of_dtypes_on_the_command_line(monkeypatch, capsys):
    seen = []
    monkeypatch.setattr(__main__, "_gemm", lambda arguments: seen.extend(arguments.dtype))
    monkeypatch.setattr(sys, "argv", ["cutlass_api", "bench", "gemm", "--dtype", "fp16", "tf32"])
    __main__.main()
    assert seen == ["float16", "tf32"]
    for unserved in ("int8", "fp8"):
        monkeypatch.setattr(sys, "argv", ["cutlass_api", "bench", "gemm", "--dtype", unserved])
        with pytest.raises(SystemExit):
            __main__.main()
        assert f"invalid choice: '{unserved}'" in capsys.readouterr().err
