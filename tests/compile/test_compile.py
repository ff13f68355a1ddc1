"""NVRTC compiles every kernel for every architecture; artifacts are portable. None needs a GPU."""

import dataclasses
import hashlib
import pickle
import re
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cutlass_api
import pytest
import stand_in
import torch
from cutlass_api.arguments import GroupedGemmArguments
from cutlass_api.artifact import CompiledArtifact
from cutlass_api.metadata import (
    ElementwiseOperandsMetadata,
    GroupedGemmOperandsMetadata,
    SimtDesignMetadata,
    Sm90DesignMetadata,
)
from support.epilogues import fake_fused, linear
from support.helpers import (
    DTYPES,
    SELDOM_STORED,
    fake,
    fake_gemm,
    names,
    run_python,
    served,
    spilled_bytes,
)

ARCHITECTURES = {80: "sm_80", 86: "sm_86", 89: "sm_89", 90: "sm_90a", 100: "sm_100", 120: "sm_120"}
PACKAGE = Path(cutlass_api.__file__).parent


def parts(kernel, cc):
    """What a sample must contain at least once: all types, layouts and configurations on Hopper,
    fewer elsewhere. Each configuration of sm90 with some cluster stores row-major and column-major
    outputs, by different code. Elsewhere, each design that sums up 16-bit products in float32 and
    stores them so: it has code of its own there, and the fewest registers to spare.
    """
    operands, family = kernel.metadata.operands, type(kernel)
    types = {name: getattr(operands, name).dtype.name for name in ("A", "B", "out")}
    layout = tuple(getattr(operands, name).stride for name in types)
    operation = type(operands)
    if cc != 90:
        found = {(family, types["A"]), (family, operation, layout)}
        rounds_steps = types["A"] in ("float16", "bfloat16") and types["out"] == "float32"
        if family is cutlass_api._core.Sm80GemmKernel and rounds_steps:
            found.add((operation, kernel.metadata.design))
        return found
    types["accumulator"] = getattr(operands, "accumulator_type", operands.out.dtype).name
    by_place = {(family, place, dtype) for place, dtype in types.items()}
    design = kernel.metadata.design
    # The accumulator type also affects a configuration's register use.
    configuration = (family, operation, types["accumulator"])
    found = {(*configuration, design), (family, types["A"], types["B"]), (family, layout)}
    if isinstance(design, Sm90DesignMetadata):
        with_some_cluster = dataclasses.replace(design, cluster_shape=())
        found.add((*configuration, with_some_cluster, operands.out.stride))
    return by_place | found


def sample(cc):
    """Kernels that together have every part, of few programs: those first that bring many parts.
    Kernels that share a program with an earlier one are last, when that one is in the cache.
    """
    programs = {}
    for kernel in cutlass_api.get_kernels(cc=cc):
        # A fingerprint takes 0.2 ms. Samples for other capabilities are small anyway.
        program = cutlass_api._core.tuning_identity(kernel)[1] if cc == 90 else kernel
        programs.setdefault(program, []).append((kernel, parts(kernel, cc)))
    brings = {program: set().union(*(of for _, of in ks)) for program, ks in programs.items()}
    firsts, others, covered = [], [], set()
    for least in (8, 4, 2, 1):
        for program, kernels in programs.items():
            if len(brings[program] - covered) < least:
                continue
            fresh = []
            for kernel, of_kernel in kernels:
                if of_kernel - covered:
                    fresh.append(kernel)
                    covered |= of_kernel
            firsts.append(fresh[0])
            others += fresh[1:]
    return firsts + others


PLAN = [(cc, kernel) for cc in ARCHITECTURES for kernel in sample(cc)]
planned = pytest.mark.parametrize(
    "cc, kernel", PLAN, ids=[f"{cc}-{k.metadata.kernel_name}" for cc, k in PLAN]
)


def args_of(kernel):
    """Arguments with the operands that a kernel's metadata requires."""
    operands = kernel.metadata.operands
    if isinstance(operands, ElementwiseOperandsMetadata):
        dtypes = (DTYPES[getattr(operands, name).dtype.name] for name in ("A", "B", "out"))
        return cutlass_api.arguments.ElementwiseArguments(
            *(fake(33, 64, dtype=dtype) for dtype in dtypes)
        )
    layout = "".join(
        "n" if getattr(operands, name).stride == (0, 1, 0) else "t" for name in ("A", "B", "out")
    )
    permits_fast_sums = getattr(kernel.metadata.design, "fast_sums", False)
    controls = cutlass_api.arguments.PerformanceControls(permits_fast_sums)
    if isinstance(operands, GroupedGemmOperandsMetadata):
        sides = [getattr(operands, name) for name in ("A", "B", "out")]
        return fake_grouped_gemm(sides, layout, operands, controls)
    args = fake_gemm(*served(kernel, 256, 256, 256), layout=layout)
    a, b, out = (getattr(operands, name).dtype.name for name in ("A", "B", "out"))
    tensors = [
        getattr(args, name).tensor.compile_time_tensor.to(DTYPES[dtype])
        for name, dtype in zip(("A", "B", "out"), (a, b, out), strict=True)
    ]
    return cutlass_api.arguments.GemmArguments(
        *(*tensors, operands.accumulator_type), performance=controls
    )


@pytest.mark.parametrize(
    "types", SELDOM_STORED, ids=lambda types: "_".join(str(dtype)[6:] for dtype in types)
)
def test_outputs_that_are_seldom_stored_compile(types):
    a, b, accumulator, out = types
    args = cutlass_api.arguments.GemmArguments(
        fake(65, 33, dtype=a), fake(33, 17, dtype=b), fake(65, 17, dtype=out), accumulator
    )
    (kernel,) = cutlass_api.get_kernels(args, cc=90)
    assert kernel.compile(args, cc=90).compiled_obj.cubin


def fake_grouped_gemm(sides, layout, operands, controls):
    a, b, out = (DTYPES[side.dtype.name] for side in sides)
    return GroupedGemmArguments(
        fake(256, 256, dtype=a, layout=layout[0]),
        fake(3, 256, 256, dtype=b, layout=layout[1]),
        fake(256, 256, dtype=out, layout=layout[2]),
        operands.accumulator_type,
        fake(3, dtype=torch.int32),
        performance=controls,
    )


@pytest.fixture(scope="module")
def compiled(cache_directory):
    """Compiles the plan on all cores, ahead of the tests that look at the results one by one."""
    with ThreadPoolExecutor() as pool:
        futures = {
            (cc, id(kernel)): pool.submit(kernel.compile, args_of(kernel), cc)
            for cc, kernel in PLAN
        }
        yield lambda cc, kernel: futures[cc, id(kernel)].result()
        pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def artifact(cache_directory):
    kernel = cutlass_api.get_kernels(fake_gemm(3, 3, 3))[0]
    return kernel.compile(fake_gemm(3, 3, 3), cc=90)


@planned
@pytest.mark.usefixtures("tf32_allowed")
def test_every_family_compiles(cc, kernel, compiled):
    assert kernel.supports(args_of(kernel)), kernel.supports(args_of(kernel)).error
    artifact = compiled(cc, kernel)
    program = artifact.compiled_obj
    assert artifact.kernel_obj is kernel
    assert program.kernel_name == kernel.metadata.kernel_name
    assert program.architecture == ARCHITECTURES[cc]
    assert program.cubin[:4] == b"\x7fELF"
    assert program.log == "", "NVRTC has nothing to warn of"


@planned
def test_no_register_spills(cc, kernel, compiled):
    assert spilled_bytes(compiled(cc, kernel).compiled_obj) == 0


@pytest.mark.usefixtures("tf32_allowed", "cache_directory")
@pytest.mark.parametrize("layout", ["ttt", "nnt"])
@pytest.mark.parametrize("function", [None, linear], ids=["plain", "linear"])
def test_operands_from_registers_spill_none(function, layout):
    """float32 operands of which one is not K-major; the output transposed or not; with and without
    an epilogue.
    """
    if function:
        args = fake_fused(function, dtype=torch.float32, layout=layout)
    else:
        args = fake_gemm(dtype=torch.float32, layout=layout)
    from_registers = [
        kernel
        for kernel in cutlass_api.get_kernels(args, cc=90)
        if isinstance(kernel.metadata.design, Sm90DesignMetadata)
        and not any(kernel.metadata.design.packed)
    ]
    assert len(from_registers) >= 9
    with ThreadPoolExecutor() as pool:
        artifacts = list(pool.map(lambda kernel: kernel.compile(args, cc=90), from_registers))
    for kernel, artifact in zip(from_registers, artifacts, strict=True):
        assert artifact.compiled_obj.log == "", kernel
        assert spilled_bytes(artifact.compiled_obj) == 0, kernel


@pytest.mark.usefixtures("cache_directory")
@pytest.mark.parametrize("function", [None, linear], ids=["plain", "linear"])
def test_float32_kernels_spill_none(function):
    """Both operands pass through registers, which needs the most; with and without an epilogue."""
    if function:
        args = fake_fused(function, dtype=torch.float32, layout="tnt")
    else:
        args = fake_gemm(dtype=torch.float32, layout="tnt")
    kernels = [
        kernel
        for kernel in cutlass_api.get_kernels(args, cc=90)
        if isinstance(kernel.metadata.design, SimtDesignMetadata)
        and kernel.metadata.design.load_bytes == 16
    ]
    assert len(kernels) == 6
    check_code(kernels, args)


def test_the_sample_covers_all():
    everything = cutlass_api.get_kernels(cc=90)
    taken = [kernel for cc, kernel in PLAN if cc == 90]
    for wanted in (
        lambda k: (type(k.metadata.operands), k.metadata.design),
        lambda k: (type(k), k.metadata.operands.A.dtype),
    ):
        assert set(map(wanted, everything)) == set(map(wanted, taken))
    for cc in ARCHITECTURES:
        assert {type(kernel) for at, kernel in PLAN if at == cc} == set(
            map(type, cutlass_api.get_kernels(cc=cc))
        )


# The properties of a program.


def test_a_program(artifact):
    program = artifact.compiled_obj
    assert "rutlass_sm80_gemm_f16xf16_f32_f16_" in program.source
    assert "#include" in program.source
    assert program.shared_bytes >= 0
    assert program.nvrtc_version >= (12, 0)
    assert program.kernel_name in repr(program)
    assert "sm_90a" in repr(artifact)


def test_the_source_differs_from_kernel_to_kernel(compiled):
    texts = {}
    for cc, kernel in PLAN:
        if cc == 90:
            texts.setdefault(compiled(cc, kernel).compiled_obj.source, []).append(kernel)

    # A column-major output is the row-major output of the transposed product, and a packed operand
    # is read like a K-major one. Only such kernels share a program.
    def shared(kernel):
        design = kernel.metadata.design
        if isinstance(design, Sm90DesignMetadata):
            shape = (sorted(design.tile_shape[:2]), sorted(design.cluster_shape[:2]))
            design = dataclasses.replace(design, packed=(), tile_shape=(), cluster_shape=())
            return repr((shape, design, kernel.metadata.operands.out.dtype))
        return None

    for kernels in texts.values():
        assert len(kernels) <= 2 or len({shared(kernel) for kernel in kernels} | {None}) == 2, (
            names(kernels)
        )


def test_a_compiled_kernel_is_kept_in_memory(artifact):
    args = fake_gemm(3, 3, 3)

    def seconds():
        start = time.perf_counter()
        artifact.kernel_obj.compile(args, cc=90)
        return time.perf_counter() - start

    assert min(seconds() for _ in range(20)) < 100e-6


# Compilation errors.


@pytest.mark.parametrize("cc", [0, 70, 75, 79, 95, 130, 900])
def test_an_unknown_capability(cc, artifact):
    with pytest.raises(ValueError, match=rf"compute capability {cc}\b.*80"):
        artifact.kernel_obj.compile(fake_gemm(3, 3, 3), cc=cc)


@pytest.mark.parametrize("cc", [-1, 2**32, 2**70])
def test_what_is_no_capability(cc, artifact):
    for ask in (
        lambda: artifact.kernel_obj.compile(fake_gemm(3, 3, 3), cc=cc),
        lambda: cutlass_api.get_kernels(cc=cc),
        lambda: cutlass_api.cuda_kernel("__global__ void f(float* x) {}", "f", grid=1).compile(
            cc=cc
        ),
    ):
        with pytest.raises(ValueError, match=f"cc is {cc}; pass ten times major plus minor"):
            ask()


def test_cpu_operands_need_a_capability(artifact):
    a = torch.ones(8, 8, dtype=torch.float16)
    args = cutlass_api.arguments.GemmArguments(
        a, a, torch.ones_like(a), accumulator_type=torch.float32
    )
    kernel = cutlass_api.get_kernels(args, cc=90)[0]
    with pytest.raises(ValueError, match=r"on the CPU.*cc=90"):
        kernel.compile(args)
    assert kernel.compile(args, cc=90).compiled_obj.architecture == "sm_90a"
    for assumed in (False, True):
        with pytest.raises(ValueError, match="out is on cpu"):
            kernel.run(args, kernel.compile(args, cc=90), assume_supported_args=assumed)


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks what is said where there is no GPU")
def test_fake_tensors_without_a_gpu_need_a_capability(artifact):
    with pytest.raises(RuntimeError) as error:
        artifact.kernel_obj.compile(fake_gemm(3, 3, 3))
    assert len(str(error.value)) > 20, "the reason in words"


# Artifacts in other processes.


def without_packages(tmp_path):
    """The environment and the flags of a process that sees no other distribution."""
    for package in (PACKAGE, PACKAGE.with_name("rutlass_stand_in")):
        (tmp_path / package.name).symlink_to(package)
    return {
        "flags": ("-S",),
        "PYTHONPATH": str(tmp_path),
        "LD_LIBRARY_PATH": None,
        "CUDA_HOME": None,
        "CUDA_PATH": None,
    }


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


# Without NVRTC.


def test_one_clear_error_where_nvrtc_is_missing(tmp_path):
    code = """
        import cutlass_api
        kernel = cutlass_api.get_kernels(cc=90)[0]
        try:
            kernel.compile(cutlass_api.arguments.RuntimeArguments(), cc=90)
        except RuntimeError as error:
            print(error)
        else:
            print("FOUND", cutlass_api._core.nvrtc_info()[0])
    """
    said = run_python(
        code, CUTLASS_API_CACHE_DIR=str(tmp_path / "cache"), **without_packages(tmp_path)
    )
    if said.startswith("FOUND /usr"):
        pytest.skip(f"this system has NVRTC of its own: {said}")
    # The error lists the libraries, the searched places and the package to install.
    for word in ("NVRTC", "libnvrtc.so.13", "sys.path", "nvidia", "torch/lib", "CUDA_HOME"):
        assert word in said
    assert "pip install" in said
    assert "nvidia-cuda-nvrtc" in said
    assert "Traceback" not in said


def test_nvrtc_installed_meanwhile_is_found(tmp_path):
    code = """
        import sys
        import cutlass_api
        kernel, args = cutlass_api.get_kernels(cc=90)[0], cutlass_api.arguments.RuntimeArguments()
        try:
            kernel.compile(args, cc=90)
        except RuntimeError:
            pass
        sys.path.append(sys.argv[1])
        print(kernel.compile(args, cc=90).compiled_obj.architecture)
    """
    assert (
        run_python(code, sysconfig.get_paths()["purelib"], **without_packages(tmp_path))
        == "sm_90a\n"
    )


@pytest.mark.parametrize(
    "place",
    [
        "loaded",
        "nvidia/cu13/lib",
        "nvidia/cuda_nvrtc/lib",
        "torch/lib",
        "CUDA_HOME",
        "CUDA_PATH",
        "LD_LIBRARY_PATH",
    ],
)
def test_nvrtc_is_found_wherever_it_lies(tmp_path, place):
    real = Path(cutlass_api._core.nvrtc_info()[0]).resolve()
    environment = without_packages(tmp_path) | {"CUTLASS_API_CACHE_DIR": str(tmp_path / "cache")}
    folder, found = tmp_path / place, tmp_path / place / real.name
    if place in ("CUDA_HOME", "CUDA_PATH"):
        environment[place], folder, found = (
            str(folder),
            folder / "lib64",
            folder / "lib64" / real.name,
        )
    elif place == "LD_LIBRARY_PATH":
        environment[place], found = str(folder), Path(real.name)
    elif place == "loaded":
        found = real
    if place != "loaded":
        folder.mkdir(parents=True)
        for library in real.parent.glob("libnvrtc*.so*"):
            if ".alt" not in library.name:
                (folder / library.name).symlink_to(library)
    code = """
        import ctypes, sys
        loaded = sys.argv[2:] and ctypes.CDLL(sys.argv[2])
        import cutlass_api
        kernel = cutlass_api.get_kernels(cc=90)[0]
        assert (
            kernel.compile(cutlass_api.arguments.RuntimeArguments(), cc=90).compiled_obj.cubin[:4]
            == b"\\x7fELF"
        )
        print(cutlass_api._core.nvrtc_info()[0])
    """
    assert (
        run_python(code, "", *([real] if place == "loaded" else []), **environment) == f"{found}\n"
    )


@pytest.mark.parametrize(
    "versions, found",
    [
        ({"cuda_nvrtc": "12.4", "cu13": "13.0"}, "cu13"),
        ({"cuda_nvrtc": "11.8", "cu13": "12.9"}, "cu13"),
    ],
)
def test_of_several_packages_the_newest_is_taken(tmp_path, versions, found):
    environment = without_packages(tmp_path)
    for folder, version in versions.items():
        lib = tmp_path / "nvidia" / folder / "lib"
        lib.mkdir(parents=True)
        (lib / f"libnvrtc.so.{version.split('.')[0]}").touch()
        (lib / f"libnvrtc-builtins.so.{version}").touch()
    said = run_python("import cutlass_api; print(*cutlass_api._core.nvrtc_info())", **environment)
    assert (
        f"nvidia/{found}/lib/libnvrtc.so" in said
        and str(tuple(map(int, versions[found].split(".")))) in said
    )


def test_what_the_loader_says_is_passed_on(tmp_path):
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libnvrtc.so.13").write_text("no library")
    code = (
        "import cutlass_api\ntry: print(cutlass_api._core.nvrtc_info())\n"
        "except RuntimeError as error: print(error)"
    )
    said = run_python(code, **without_packages(tmp_path) | {"CUDA_HOME": str(tmp_path)})
    if "libnvrtc.so.13: " not in said:
        pytest.skip(f"this system has NVRTC of its own: {said}")
    assert "lib64/libnvrtc.so.13: file too short" in said or "invalid ELF header" in said


def test_nvrtc_with_the_builtins_of_another_is_refused(tmp_path):
    real = Path(cutlass_api._core.nvrtc_info()[0]).resolve()
    folder = tmp_path / "lib64"
    folder.mkdir()
    (folder / real.name).symlink_to(real)
    (folder / "libnvrtc-builtins.so.99.7").touch()
    code = """
        import cutlass_api
        kernel = cutlass_api.get_kernels(cc=90)[0]
        try:
            kernel.compile(cutlass_api.arguments.RuntimeArguments(), cc=90)
        except RuntimeError as error:
            print(error)
    """
    environment = without_packages(tmp_path) | {"CUDA_HOME": str(tmp_path)}
    said = run_python(code, CUTLASS_API_CACHE_DIR=str(tmp_path / "cache"), **environment)
    assert (
        f"{folder / real.name} is NVRTC" in said
        and "builtins beside it are 99.7; reinstall NVRTC" in said
    )


def test_an_epilogue_that_nvrtc_refuses(tmp_path):
    folder = tmp_path / "lib64"
    folder.mkdir()
    stand_in.build_nvrtc(Path(cutlass_api._core.nvrtc_info()[0]).resolve(), folder)
    code = """
        import sys
        import cutlass_api, numpy
        from cutlass_api.arguments import EpilogueArguments, GemmArguments
        a = numpy.ones((64, 64), numpy.float16)
        plain = GemmArguments(a, a, a.copy(), "float32")
        out = a.copy()
        epilogue = EpilogueArguments("def f(accum):\\n    D = accum * 2\\n    return D", D=out)
        args = GemmArguments(a, a, out, "float32", epilogue)
        kernel = cutlass_api.get_kernels(args, cc=90)[0]
        sys.path.clear()  # and with it the installed NVRTC
        for _ in range(2):
            try:
                kernel.compile(args, cc=90)
            except RuntimeError as error:
                print(kernel.metadata.kernel_name)
                print(error)
        assert cutlass_api.get_kernels(plain, cc=90)[0].compile(plain, cc=90).compiled_obj.log == ""
    """
    environment = {"CUDA_HOME": str(tmp_path), "CUTLASS_API_CACHE_DIR": str(tmp_path / "cache")}
    said = run_python(code, **environment)
    name, first, *log = said.splitlines()
    assert first == f"NVRTC could not compile kernel {name} for sm_90a:"
    assert re.match(r'rutlass.cu\(\d+\): error: identifier "undeclared_type" is undefined', log[0])
    assert said.count(first) == 2, "what failed is not kept"


def test_where_nvrtc_was_found():
    path, version = cutlass_api._core.nvrtc_info()
    assert Path(path).name.startswith("libnvrtc.so")
    assert version >= (12, 0)


def scaled_arguments(kind):
    """Arguments of a float8 product with scales of a kind."""
    m, n, k = 1024, 1024, 1024
    a, b = (
        fake(m, k, dtype=torch.float8_e4m3fn),
        fake(k, n, dtype=torch.float8_e4m3fn, layout="n"),
    )
    out = fake(m, n, dtype=torch.bfloat16)
    plain = "accum * scale_a * scale_b"
    source, *shapes = {
        "tensor": (plain, (1,), (1,)),
        "rows": (plain, (m, 1), (1, n)),
        "fast": (plain, (m, 1), (1, n)),
        "blocks": (
            "scale_blocks(accum, scale_a, scale_b, (1, 128), (128, 128))",
            (m, k // 128),
            (k // 128, n // 128),
        ),
        "columns": (
            "scale_blocks(accum, scale_a, scale_b, (1, 128), (128, 1))",
            (m, k // 128),
            (k // 128, n),
        ),
        "mx": (
            "scale_blocks(accum, scale_a, scale_b, (1, 32), (32, 1))",
            (m, k // 32),
            (k // 32, n),
        ),
    }[kind]
    dtype = torch.float8_e8m0fnu if kind == "mx" else torch.float32
    scale_a, scale_b = (fake(*shape, dtype=dtype) for shape in shapes)
    epilogue = cutlass_api.arguments.EpilogueArguments(
        f"def epilogue(accum, scale_a, scale_b):\n    D = {source}\n    return D\n",
        scale_a=scale_a,
        scale_b=scale_b,
        D=out,
    )
    return cutlass_api.arguments.GemmArguments(
        *(a, b, out, "float32", epilogue),
        performance=cutlass_api.arguments.PerformanceControls(fast_sums=kind == "fast"),
    )


def sm90_kernels(args):
    """Those that pack no operand: packing changes the launch, not the program's main loop."""
    return [
        kernel
        for kernel in cutlass_api.get_kernels(args, cc=90)
        if "sm90" in kernel.metadata.kernel_name and not any(kernel.metadata.design.packed)
    ]


def check_code(kernels, args):
    """Asserts that the kernels compile without a warning and spill no register."""
    with ThreadPoolExecutor() as pool:
        artifacts = list(pool.map(lambda kernel: kernel.compile(args, 90), kernels))
    for kernel, artifact in zip(kernels, artifacts, strict=True):
        program = artifact.compiled_obj
        assert program.log == "", kernel.metadata.kernel_name
        assert spilled_bytes(program) == 0, kernel.metadata.kernel_name


@pytest.mark.parametrize("kind", ["tensor", "rows", "fast", "blocks", "columns", "mx"])
def test_scaled_float8_kernels_neither_spill_nor_serialize(kind, cache_directory):
    """ptxas warns of wgmma that it serializes."""
    args = scaled_arguments(kind)
    kernels = sm90_kernels(args)
    if kind == "fast":
        kernels = [kernel for kernel in kernels if kernel.metadata.design.fast_sums]
    assert kernels
    check_code(kernels, args)


def test_scaled_grouped_kernels_neither_spill_nor_serialize(cache_directory):
    """Scales of groups and columns behind the main loop, then an epilogue."""
    m, n, k, groups = 1024, 1024, 512, 4
    a = fake(m, k, dtype=torch.float8_e4m3fn)
    b = fake(groups, k, n, dtype=torch.float8_e4m3fn, layout="n")
    out = fake(m, n, dtype=torch.float32)
    epilogue = cutlass_api.arguments.EpilogueArguments(
        "def epilogue(accum, s, x, bias, c):\n"
        "    D = relu(scale_blocks(accum, b=s, b_block=(-1, 1)) * x + bias) + c\n    return D\n",
        s=fake(groups, 1, n, dtype=torch.float32),
        x=fake(m, 1, dtype=torch.float32),
        bias=fake(n, dtype=torch.bfloat16),
        c=fake(m, n, dtype=torch.bfloat16),
        D=out,
    )
    args = GroupedGemmArguments(
        *(a, b, out, "float32", fake(groups, dtype=torch.int32), epilogue),
        performance=cutlass_api.arguments.PerformanceControls(fast_sums=True),
    )
    kernels = sm90_kernels(args)
    assert sum(kernel.metadata.design.fast_sums for kernel in kernels) == 3
    check_code(kernels, args)


#: Types of A and B, of scales and of zero points, and the elements of K that share a scale.
SCALED_INTEGERS = [
    (torch.float16, torch.int8, torch.float32, torch.int8, 32),
    (torch.uint8, torch.float16, torch.float16, torch.float16, 96),
    (torch.int8, torch.bfloat16, torch.bfloat16, torch.int32, 128),
    (torch.bfloat16, torch.uint8, torch.float32, torch.float32, 16),
]


@pytest.mark.parametrize("a_type, b_type, scales, zeros, depth", SCALED_INTEGERS, ids=str)
def test_scaled_mixed_kernels_neither_spill_nor_serialize(
    a_type, b_type, scales, zeros, depth, cache_directory
):
    """With zero points, a bias and a residual."""
    m, n, k = 1024, 1024, 768
    side, shape, block = "b", (k // depth, n), (depth, 1)
    if not a_type.is_floating_point:
        side, shape, block = "a", (m, k // depth), (1, depth)
    dtype = a_type if a_type.is_floating_point else b_type
    out = fake(m, n, dtype=dtype)
    epilogue = cutlass_api.arguments.EpilogueArguments(
        f"def epilogue(accum, s, z, bias, c):\n"
        f"    sums = scale_blocks(accum, {side}=s, {side}_block={block}, {side}_zero=z)\n"
        f"    D = relu(sums + bias) + c\n    return D\n",
        s=fake(*shape, dtype=scales),
        z=fake(*shape, dtype=zeros),
        bias=fake(n, dtype=dtype),
        c=fake(m, n, dtype=dtype),
        D=out,
    )
    a, b = fake(m, k, dtype=a_type), fake(k, n, dtype=b_type, layout="n")
    args = cutlass_api.arguments.GemmArguments(a, b, out, "float32", epilogue)
    kernels = sm90_kernels(args)
    assert len(kernels) >= 12
    check_code(kernels, args)
