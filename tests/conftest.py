"""Rules for every test: it leaves the user's cache alone, and without a GPU the GPU tests are
skipped.
"""

import gc
import os
from pathlib import Path

import cutlass_api
import pytest
import torch


def pytest_collection_modifyitems(items):
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    try:
        cutlass_api.utils.device_cc()
    except RuntimeError as error:
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"needs a CUDA GPU: {error}"))


def pytest_collection_finish():
    """The collector need not look at what the imports made: millions of objects."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    gc.unfreeze()


@pytest.fixture(scope="session", autouse=True)
def cache_directory(tmp_path_factory):
    """Compiled programs go to a folder of this test run, which its processes share."""
    base = tmp_path_factory.getbasetemp()
    # A worker of pytest-xdist has a folder in that of the run.
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "programs"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUTLASS_API_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture(params=[True, False], ids=["c_exchange", "dlpack_protocol"])
def exchange_mode(request):
    """Runs a test once for each interface that reads operands."""
    options = cutlass_api.config.GlobalOptions()
    before = options.use_tvm_ffi
    options.use_tvm_ffi = request.param
    yield request.param
    options.use_tvm_ffi = before


@pytest.fixture
def tf32_allowed():
    """torch allows what rounds float32 operands to tf32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def autoload(tmp_path: Path) -> dict[str, str]:
    """An environment in which torch finds the entry points of pyproject.toml."""
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["torch.backends"]
    metadata = tmp_path / "rutlass_of_this_test-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Name: rutlass-of-this-test\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(
        "\n".join(["[torch.backends]", *(f"{name} = {value}" for name, value in points.items())])
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path}
