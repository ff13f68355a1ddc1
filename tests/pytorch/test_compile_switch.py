"""Switching the integration on and off: caches, threads, other extensions."""

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cutlass_api
import cutlass_api.inductor
import pytest
import torch
import torch.nn.functional as F
from cutlass_api.inductor import _candidates, _integration, _torch
from cutlass_api.inductor._fusion import ProductPass
from support import SUPPORT
from support.helpers import run_python
from support.pretended_gpu import Lowered, lower
from support.torch_compile import W, X, has_ours, is_ours, relu_of_linear, tensors
from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.virtualized import V


class EarlierPass(CustomGraphPass):
    calls = 0

    def __call__(self, graph: torch.fx.Graph) -> None:
        EarlierPass.calls += 1

    def uuid(self) -> str:
        return "earlier"


class EarlierChoices(InductorChoices):
    def uuid(self) -> str:
        return "earlier"

    def triton_kernel_kwargs(self, *args: Any) -> Any:
        return "mine"


def test_disable_restores_what_was_configured() -> None:
    earlier = EarlierPass()
    with config.patch(post_grad_custom_post_pass=earlier, inductor_choices_class=EarlierChoices):
        with cutlass_api.inductor.enabled():
            assert cutlass_api.inductor.is_enabled() == cutlass_api.inductor.Options()
            lower(torch.mm, tensors((32, 32), (32, 32)))
            assert EarlierPass.calls == 1
            assert config.post_grad_custom_post_pass.uuid()[-1] == "earlier"
            assert V.choices.triton_kernel_kwargs(None, None, None, {}) == "mine"
            with cutlass_api.inductor.enabled(candidates=1, fuse=False):
                assert cutlass_api.inductor.is_enabled() == cutlass_api.inductor.Options(1, False)
                assert not config.post_grad_custom_post_pass.cutlass_api_options.fuse
            assert cutlass_api.inductor.is_enabled() == cutlass_api.inductor.Options()
        assert cutlass_api.inductor.is_enabled() is None
        assert config.post_grad_custom_post_pass is earlier
        assert config.inductor_choices_class is EarlierChoices
    cutlass_api.inductor.disable()  # does nothing
    assert "cutlass_api" not in lower(torch.mm, tensors((32, 32), (32, 32))).code


def in_a_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def names_ours() -> bool:
    """Whether the calling thread offers a plain product of ours, or fuses one."""
    product, fused = lower(torch.mm, tensors(X, W[::-1])), lower(relu_of_linear, tensors(X, W))
    offers = any(is_ours(choice) for choices in product.choices for choice in choices)
    assert offers == ("mm_epilogue" in str(fused.graph)), "half of the integration is in force"
    return offers


def test_a_thread_reports_what_is_in_force_in_it(enabled) -> None:
    options = cutlass_api.inductor.Options()

    def report() -> tuple[bool, bool]:
        return cutlass_api.inductor.is_enabled() == options, names_ours()

    def report_with_a_handler() -> tuple[bool, bool]:
        V.set_choices_handler(InductorChoices())  # as in a thread that has compiled before
        return report()

    # Up to PyTorch 2.11, the configuration belongs to the process.
    is_global = torch.__version__.startswith("2.11.")
    assert in_a_thread(report) == (is_global, is_global)
    assert in_a_thread(report_with_a_handler) == (False, False)
    assert report() == (True, True)


def test_a_thread_enables_for_itself() -> None:
    def enable_and_disable() -> list[Any]:
        found = []
        with cutlass_api.inductor.enabled(candidates=2):
            found += [cutlass_api.inductor.is_enabled(), names_ours()]
        return [*found, cutlass_api.inductor.is_enabled(), names_ours()]

    options = cutlass_api.inductor.Options(candidates=2)
    assert in_a_thread(enable_and_disable) == [options, True, None, False]
    assert cutlass_api.inductor.is_enabled() is None and not names_ours()


@pytest.mark.parametrize("missing", ["pass", "handler"])
def test_half_of_the_integration_is_none(missing: str, enabled) -> None:
    """Another extension replaces our pass or our handler after `enable`."""
    if missing == "pass":
        with config.patch(post_grad_custom_post_pass=None):
            assert cutlass_api.inductor.is_enabled() is None and not names_ours()
    else:
        with V.set_choices_handler(InductorChoices()):
            assert cutlass_api.inductor.is_enabled() is None and not names_ours()
    assert cutlass_api.inductor.is_enabled() is not None and names_ours()


def cache_key() -> bytes:
    """What Inductor's cache keys contain of the handler of choices."""
    register = getattr(_torch.choices, "inductor_choices_cache_key", None)
    if register is not None:
        return pickle.dumps(register(config.inductor_choices_class))
    return pickle.dumps(config.inductor_choices_class)


def test_version_and_options_are_part_of_the_cache_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [cache_key()]
    with cutlass_api.inductor.enabled():
        keys.append(cache_key())
        first = config.post_grad_custom_post_pass.uuid()
    with cutlass_api.inductor.enabled(candidates=2):
        keys.append(cache_key())
    monkeypatch.setattr(_integration, "__version__", "99.0")
    with cutlass_api.inductor.enabled():
        keys.append(cache_key())
    assert len(set(keys)) == 4
    assert cutlass_api.__version__ in first
    # A thread with the pass alone offers nothing, and must not share a graph.
    with cutlass_api.inductor.enabled(), V.set_choices_handler(InductorChoices()):
        assert config.post_grad_custom_post_pass.uuid() != first


def test_the_autotuning_cache_knows_kernels_and_versions(enabled, monkeypatch) -> None:
    (choices,) = lower(torch.mm, tensors((64, 64), (64, 64))).choices
    ours = [choice for choice in choices if is_ours(choice)]
    keys = {choice.hash_key() for choice in ours}
    monkeypatch.setattr(_candidates._core, "__version__", "99.0")
    assert len(keys | {choice.hash_key() for choice in ours}) == 2 * len(ours)


def test_a_warm_cache_serves_the_same_version_only(tmp_path: Path) -> None:
    """The second process imports only torch, and the package after its first compilation."""
    found = []
    script = (SUPPORT / "warm_cache.py").read_text()
    for settings in (["enabled", "enabled"], ["torch", "enabled", "other"]):
        variables = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
        out = run_python(script, *settings, timeout=300, is_warm=True, **variables)
        found += out.split()
    assert found == ["False", "True", "False", "True", "False"]


def test_code_of_before_is_replaced_after_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[torch.fx.Graph] = []
    monkeypatch.setattr(ProductPass, "__call__", lambda self, graph: graphs.append(graph))
    inputs = tensors((8, 16), (16, 8), dtype=torch.float32)
    compiled = torch.compile(lambda a, b: a @ b)
    with config.patch(force_disable_caches=True):
        compiled(*inputs)
        with cutlass_api.inductor.enabled():
            compiled(*inputs)
            assert not graphs, "the code of before serves"
            torch.compiler.reset()
            compiled(*inputs)
            assert len(graphs) == 1


def test_importing_the_package_does_not_import_inductor() -> None:
    run_python("""
        import torch, sys, cutlass_api
        assert not {"torch._inductor.select_algorithm", "torch._dynamo"} & set(sys.modules)
    """)


def test_a_compiled_function_on_the_cpu_is_unchanged(enabled) -> None:
    """`torch.compile` before `enable`, and graphs without a CUDA tensor."""
    compiled = torch.compile(lambda x, w: torch.relu(F.linear(x, w)), mode="max-autotune")
    x, w = tensors((16, 32), (24, 32), dtype=torch.float32)
    torch.testing.assert_close(compiled(x, w), torch.relu(F.linear(x, w)))


def test_programmatic_dependent_launch_of_inductor_leaves_us_out(enabled) -> None:
    """Its kernels would not wait for those in front of ours."""
    inputs = tensors((64, 64), (64, 64))
    assert not has_ours(lower(torch.mm, inputs, **{"triton.enable_pdl": True}))
    assert has_ours(lower(torch.mm, inputs))


def test_lowered_is_what_it_says() -> None:
    """Without the integration, the same harness sees none of our kernels."""
    lowered: Lowered = lower(torch.mm, tensors((64, 64), (64, 64)))
    assert "extern_kernels.mm(" in lowered.code


def test_inductor_s_autotuning_process_finds_our_functions(enabled, tmp_path) -> None:
    """With `autotune_in_subproc`, a process that imported nothing of ours unpickles the request."""
    (choices,) = lower(torch.mm, tensors((64, 64), (64, 64))).choices
    first = next(choice for choice in choices if is_ours(choice))
    (tmp_path / "request").write_bytes(pickle.dumps(first.bmreq))
    code = """
        import pickle, sys, torch
        request = pickle.loads(open(sys.argv[1], "rb").read())
        a, b, out = (torch.ones(64, 64, dtype=torch.bfloat16) for _ in range(3))
        request.make_run_fn(a, b, out=out)()
        assert (out == 64).all()
    """
    run_python(code, tmp_path / "request", timeout=300, is_warm=True)
