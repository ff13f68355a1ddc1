"""What users see of compiled kernels and of the installation: PTX, SASS, resources, `python -m
cutlass_api env`, `kernels`, `explain` and `--version`.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import cutlass_api
import pytest
import stand_in
import torch
from cutlass_api import __main__, inspection
from cutlass_api._tables import ROWS
from cutlass_api.arguments import GemmArguments
from cutlass_api.bench import products
from cutlass_api.bench.gemm import Gemm
from cutlass_api.bench.limits import float32_precision
from cutlass_api.bench.types import TYPES
from support.helpers import cuobjdump, fake, fake_gemm

ROOT = Path(__file__).parents[2]


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


def cached(folder, name, bytes_, age):
    """A file of the cache that was used so many seconds ago."""
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(bytes(bytes_))
    os.utime(file, (time.time() - age,) * 2)
    return file


def test_the_cache_is_counted(monkeypatch, tmp_path):
    monkeypatch.setenv("CUTLASS_API_CACHE_DIR", str(tmp_path))
    cached(tmp_path, "0a/one.cubin", 3 << 19, 0)
    assert inspection.environment()["compiled programs"] == f"{tmp_path}, 1 files, 1.5 MiB"
    monkeypatch.setattr(inspection._core, "cache_directory", lambda: None)
    assert inspection.environment()["compiled programs"] == "not cached"


def test_the_cache_is_reduced(monkeypatch, capsys, tmp_path):
    """What was used longest ago goes first; files of others stay."""
    monkeypatch.setenv("CUTLASS_API_CACHE_DIR", str(tmp_path))
    files = [cached(tmp_path, f"{at:02x}/{at}.cubin", 1 << 20, 100 - at) for at in range(4)]
    store = cached(tmp_path, "../store", 1 << 20, 1000).rename(tmp_path / "tuning.sqlite3")
    writing = cached(tmp_path, "00/.tmpnew", 10, 10)
    killed = cached(tmp_path, "00/.tmpold", 10, 7200)
    printed = run_main(monkeypatch, capsys, "cache", "--limit", 2, "--json", tmp_path / "json")
    # The file that is being written counts.
    assert [file.exists() for file in files] == [False, False, False, True]
    assert writing.exists() and not killed.exists() and store.exists()
    assert printed.splitlines() == [
        "removed 4 files, 3.0 MiB",
        f"{tmp_path}: 2 files, 1.0 MiB",
        "limit: 1024 MiB (CUTLASS_API_CACHE_LIMIT)",
    ]
    numbers = json.loads((tmp_path / "json").read_text())
    assert numbers["removed"] == 4 and numbers["bytes"] == (1 << 20) + 10
    assert numbers["limit"] == 1 << 30 and numbers["folder"] == str(tmp_path)
    monkeypatch.setenv("CUTLASS_API_CACHE_LIMIT", "7")
    printed = run_main(monkeypatch, capsys, "cache", "--clear")
    assert "0 files, 0.0 MiB\nlimit: 7 MiB" in printed and not writing.exists()
    assert store.exists()


@pytest.mark.parametrize(
    "arguments, limit, message",
    [
        (["--limit", "-1"], "", "--limit is -1; it must be at least 0"),
        ([], "2G", 'CUTLASS_API_CACHE_LIMIT is "2G"; it must be the size of the cache in MiB'),
    ],
)
def test_a_wrong_limit_is_refused(monkeypatch, capsys, arguments, limit, message):
    monkeypatch.setenv("CUTLASS_API_CACHE_LIMIT", limit)
    with pytest.raises(SystemExit, match=message):
        run_main(monkeypatch, capsys, "cache", *arguments)


def test_kernels_are_listed_by_patterns(monkeypatch, capsys, tmp_path):
    options = ["kernels", "sm90", "_f16xf16_f32_f16_", "_128x256x64*_cluster2x1", "--cc", "90"]
    printed = run_main(monkeypatch, capsys, *options, "--json", tmp_path / "kernels.json")
    rows = json.loads((tmp_path / "kernels.json").read_text())
    expected = [
        name
        for name in (each.metadata.kernel_name for each in cutlass_api.get_kernels(cc=90))
        if name.startswith("sm90_") and "_f16xf16_f32_f16_" in name
        if "_128x256x64" in name and "_cluster2x1" in name
    ]
    assert [row["kernel"] for row in rows] == expected != []
    assert printed.startswith(f"{len(expected)} kernels: {len(expected)} Sm90GemmKernel\n")
    assert all(name in printed for name in expected)
    assert {(row["from"], row["tile"], row["cluster"]) for row in rows} == {
        ("9.0", "128x256x64", "2x1x1")
    }
    assert "page" not in printed


def test_a_long_list_of_kernels_has_pages(monkeypatch, capsys):
    every = inspection.matching_kernels(["skinny"])
    names, pages = [], -(-len(every) // ROWS)
    for page in range(1, pages + 1):
        printed = run_main(monkeypatch, capsys, "kernels", "skinny", "--page", page)
        title, _, *lines, last = printed.rstrip("\n").split("\n")
        assert title == f"{len(every)} kernels: {len(every)} SkinnyGemmKernel"
        assert last.startswith(f"page {page} of {pages}: ")
        names += [line.split()[0] for line in lines]
    assert names == [kernel.metadata.kernel_name for kernel in every]
    assert run_main(monkeypatch, capsys, "kernels", "skinny").startswith(title)
    with pytest.raises(SystemExit, match=rf"^--page is 999; {len(every)} kernels have {pages} p"):
        run_main(monkeypatch, capsys, "kernels", "skinny", "--page", 999)
    printed = run_main(monkeypatch, capsys, "kernels").splitlines()
    counts = re.findall(r"(\d+) [A-Z]\w+Kernel", printed[0])
    assert sum(map(int, counts)) == len(cutlass_api.get_kernels()) and len(printed) == ROWS + 3


@pytest.mark.parametrize(
    "options, message",
    [
        (["nosuch"], "no kernel has 'nosuch' in its name; `python -m cutlass_api kernels` lists"),
        (["sm90", "nosuch", "--cc", "90"], "no kernel for --cc 90 has 'nosuch' in its name"),
        (["sm90", "skinny"], "no kernel has 'sm90' and 'skinny' in its name"),
        (["sm90", "--cc", "80"], "no kernel for --cc 80 has 'sm90' in its name"),
        (["--cc", "70"], "no kernel is for --cc 70; pass 80 or more, such as 90 for an H100"),
        (["sm90", "--cc", "70"], "no kernel is for --cc 70; pass 80 or more"),
    ],
)
def test_nothing_that_matches_is_an_error(monkeypatch, capsys, tmp_path, options, message):
    path = tmp_path / "kernels.json"
    with pytest.raises(SystemExit) as ended:
        run_main(monkeypatch, capsys, "kernels", *options, "--json", path)
    # A message as the code is printed to stderr, and the exit status is 1.
    assert str(ended.value.code).startswith(message) and json.loads(path.read_text()) == []
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("dtype", TYPES)
def test_explain_is_a_command_for_every_type(monkeypatch, capsys, dtype):
    """Also without a GPU. Some family serves each type."""
    options = ["--shape", "512,384,256", "--layout", "tn", "--dtype", dtype, "--cc", "90"]
    printed = run_main(monkeypatch, capsys, "explain", *options)
    element = TYPES[dtype]
    a, b, out = (
        fake(*shape, dtype=getattr(torch, name), layout=layout)
        for shape, name, layout in (
            ((512, 256), element.element, "t"),
            ((256, 384), element.element, "n"),
            ((512, 384), element.output, "t"),
        )
    )
    with float32_precision(dtype):
        args = GemmArguments(a, b, out, element.accumulator)
        assert printed == cutlass_api._core.explanation(args, 90) + "\n"
        first = cutlass_api.get_kernels(args, cc=90)[0].metadata.kernel_name
    assert re.search(rf"^ +1 .* {first}$", printed, re.MULTILINE)


def test_explain_is_for_the_gpu_by_default(monkeypatch, capsys):
    options = ["explain", "--shape", "64,64,64"]
    facts = inspection._core.device_facts
    monkeypatch.setattr(inspection._core, "device_facts", lambda at: ("a GPU", 80, 108, 12080))
    assert "the kernel runs on 9.0 only" in run_main(monkeypatch, capsys, *options)
    monkeypatch.setattr(inspection._core, "device_facts", facts)
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit, match=r"^no GPU to explain for .*; pass --cc, 90 for an H"):
            run_main(monkeypatch, capsys, *options)


def commands(parser, name=()):
    """The parsers of all commands, by name."""
    yield " ".join(name), parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for key, sub in action.choices.items():
                yield from commands(sub, (*name, key))


def test_help_names_no_file_of_the_checkout():
    """A wheel has the tables of shapes that `--shapes` names, and no folders of the checkout."""
    helps = {name: parser.format_help() for name, parser in commands(__main__.parser())}
    folders = "|".join(each.name for each in ROOT.iterdir() if each.is_dir())
    for name, text in helps.items():
        assert not re.findall(rf"(?<![\w./])(?:{folders})/\S+", text), name
    for name in ("bench gemm", "tune"):
        listed = re.search(r"a table of shapes: ([\w,\s]+), or a JSON", helps[name])[1]
        assert {"public", "weak"} < set(re.findall(r"\w+", listed)) == set(products.TABLES)
    assert products.FOLDER.is_relative_to(Path(cutlass_api.__file__).parent)


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
    monkeypatch.setattr(Gemm, "run", lambda self, arguments: seen.extend(arguments.dtype))
    monkeypatch.setattr(sys, "argv", ["cutlass_api", "bench", "gemm", "--dtype", "fp16", "tf32"])
    __main__.main()
    assert seen == ["float16", "tf32"]
    for unserved in ("int4", "fp8"):
        monkeypatch.setattr(sys, "argv", ["cutlass_api", "bench", "gemm", "--dtype", unserved])
        with pytest.raises(SystemExit):
            __main__.main()
        assert f"invalid choice: '{unserved}'" in capsys.readouterr().err


def first(part):
    """The first kernel of a float16 product with this part of a name, and its artifact."""
    args = fake_gemm(m=16 if part == "skinny" else 512)
    kernels = cutlass_api.get_kernels(args, cc=90)
    kernel = next(each for each in kernels if part in each.metadata.kernel_name)
    return kernel, kernel.compile(args, 90)


@pytest.mark.skipif(not cuobjdump(), reason="needs cuobjdump of the package nvidia-cuda-cuobjdump")
@pytest.mark.parametrize("part", ["sm90", "skinny", "sm80", "simt"])
def test_an_artifact_shows_its_program(part, tmp_path):
    kernel, artifact = first(part)
    program, resources = artifact.compiled_obj, artifact.resources
    assert kernel.source == program.source and "__global__" in kernel.source
    assert ".target sm_90a" in artifact.ptx and ".entry " in artifact.ptx
    assert f".maxntid {resources.threads}" in artifact.ptx
    (tmp_path / "cubin").write_bytes(program.cubin)
    listing = subprocess.run(
        [cuobjdump(), "--dump-resource-usage", tmp_path / "cubin"],
        capture_output=True,
        text=True,
        check=True,
    )
    pattern = r"REG:(\d+) STACK:(\d+) SHARED:(\d+)"
    (usage,) = re.findall(pattern, listing.stdout)
    reserved = 1024  # of shared memory, which the hardware takes for each CTA
    assert tuple(map(int, usage)) == (
        resources.registers,
        resources.stack_bytes,
        resources.static_shared_bytes + reserved,
    )
    assert resources.spill_store_bytes == resources.spill_load_bytes == 0
    assert resources.shared_bytes == program.shared_bytes
    assert 1 <= resources.ctas_per_sm <= 2048 // resources.threads
    assert f"registers={resources.registers}, " in repr(resources)
    # Resources survive the disk cache and serialization.
    restored = type(artifact).from_bytes(artifact.to_bytes())
    assert restored.resources == resources and restored.ptx == artifact.ptx


def test_a_spilling_kernel_says_so():
    """A user's kernel, whose launches decide its threads."""
    source = """
extern "C" __global__ void spill(float* x, int n) {
  __shared__ float shared[16];
  float values[64];
  for (int i = 0; i < 64; ++i) values[i] = x[i * n];
  shared[threadIdx.x] = values[n];
  __syncthreads();
  for (int i = 0; i < 64; ++i) x[i] = values[(i * n) % 64] + shared[n];
}
"""
    resources = cutlass_api.cuda_kernel(source, "spill", grid=1).compile(cc=90).resources
    assert resources.stack_bytes >= 256 and resources.static_shared_bytes == 64
    assert resources.threads is None and resources.ctas_per_sm is None


def test_sass_is_printed_or_the_remedy(monkeypatch, tmp_path):
    artifact = first("sm90")[1]
    if inspection.nvdisasm():
        assert "HGMMA" in artifact.sass
    monkeypatch.setattr(inspection, "nvdisasm", lambda: None)
    with pytest.raises(RuntimeError, match="pip install nvidia-cuda-nvdisasm"):
        _ = artifact.sass
    tool = tmp_path / "nvdisasm"
    tool.write_text("#!/bin/sh\necho wrong format >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setattr(inspection, "nvdisasm", lambda: str(tool))
    with pytest.raises(RuntimeError, match="nvdisasm failed: wrong format"):
        _ = artifact.sass


def test_nvdisasm_is_found_where_it_is_installed(monkeypatch, tmp_path):
    for place in ("packages/nvidia/cu13/bin", "packages/triton/backends/nvidia/bin", "cuda/bin"):
        (tmp_path / place).mkdir(parents=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    paths = {"purelib": str(tmp_path / "packages")}
    monkeypatch.setattr(inspection.sysconfig, "get_paths", lambda: paths)
    assert inspection.nvdisasm() is None
    order = ("packages/triton/backends/nvidia/bin", "packages/nvidia/cu13/bin", "cuda/bin", ".")
    for place in order:
        tool = tmp_path / place / "nvdisasm"
        tool.touch(0o755)
        assert inspection.nvdisasm() == str(tool)


def test_the_reference_has_no_program():
    args = GemmArguments(*(torch.ones(4, 4) for _ in range(3)), "float32")
    kernel = cutlass_api.get_kernels(args)[0]
    artifact = kernel.compile(args)
    assert kernel.source is None
    for name in ("ptx", "sass", "resources"):
        with pytest.raises(ValueError, match="holds no compiled program"):
            getattr(artifact, name)
