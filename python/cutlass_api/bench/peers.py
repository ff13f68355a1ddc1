"""Products by weights of 4 and 8 bits of other packages, which benchmarks time where installed.

Each peer is a function of a weight of ``cutlass_api.weights`` that returns its product, a function
of the rows. It raises :class:`NotServed` for a format that the package lacks.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from cutlass_api.bench.timing import Timed, capture

if TYPE_CHECKING:
    from cutlass_api.weights import Weight

Product = Callable[[Any], Any]
#: The most relative error of a peer, which may quantize anew. Others compute something else.
MOST_ERROR = 0.2


class NotServed(Exception):
    """A package has no such format."""


def marlin(weight: "Weight") -> Product:
    import torch
    import vllm._custom_ops as ops
    from vllm.model_executor.layers.quantization.utils import (
        marlin_utils,
        marlin_utils_fp4,
        marlin_utils_fp8,
    )
    from vllm.scalar_type import scalar_types

    name = type(weight).__name__
    if name == "UInt4":
        raise NotServed
    n, k = weight.shape
    group = weight.group if weight.group < k else -1
    scales = weight.scales.to(torch.bfloat16).t().contiguous()
    scales = marlin_utils.marlin_permute_scales(scales, k, n, group)
    factor, bits = None, 8 // weight.format.packing
    if name == "MXFP4":
        scales = marlin_utils_fp4.mxfp4_marlin_process_scales(scales)
    elif name == "NVFP4":
        # Later releases return a power of two, too.
        found = marlin_utils_fp4.nvfp4_marlin_process_scales(scales)
        scales, power = found if isinstance(found, tuple) else (found, 1)
        factor = weight.tensors()["factor"].to(torch.bfloat16)
        factor = marlin_utils_fp4.nvfp4_marlin_process_global_scale(factor) / power
    elif name == "Float8":
        scales = marlin_utils_fp8.fp8_fused_exponent_bias_into_scales(scales)
    kinds = {"Int4": scalar_types.uint4b8, "Float8": scalar_types.float8_e4m3fn}
    kind = kinds.get(name, scalar_types.float4_e2m1f)
    order = torch.empty(0, dtype=torch.int32, device=weight.device)
    words = ops.gptq_marlin_repack(_words(weight), order, k, n, bits)
    workspace = marlin_utils.marlin_make_workspace_new(weight.device)
    extents = {"size_n": n, "size_k": k, "use_fp32_reduce": True}
    others = (None, None, None, workspace, kind)

    def product(x: Any) -> Any:
        operands = (x, None, words, None, scales, None, factor, *others)
        return ops.marlin_gemm(*operands, size_m=x.shape[0], **extents)

    return product


def machete(weight: "Weight") -> Product:
    import torch
    import vllm._custom_ops as ops
    from vllm.scalar_type import scalar_types

    if type(weight).__name__ != "Int4":
        raise NotServed
    kind, half = scalar_types.uint4b8, torch.bfloat16
    words = ops.machete_prepack_B(_words(weight).t().contiguous().t(), half, kind, half)
    scales, group = weight.scales.to(half).t().contiguous(), weight.group
    return lambda x: ops.machete_mm(x, words, kind, half, scales, None, group)


def gemlite(weight: "Weight") -> Product:
    import torch
    from gemlite.core import DType, GemLiteLinearTriton

    from cutlass_api.weights._packing import nibbles

    if type(weight).__name__ != "Int4":
        raise NotServed
    n, k = weight.shape
    dtypes = {"input_dtype": DType.BF16, "output_dtype": DType.BF16}
    layer = GemLiteLinearTriton(4, weight.group, in_features=k, out_features=n, **dtypes)
    scales = weight.scales.to(torch.bfloat16).reshape(-1, 1)
    layer.pack(nibbles(weight.values), scales, torch.full_like(scales, 8), None)
    return layer.forward  # type: ignore[no-any-return]


def humming(weight: "Weight") -> Product:
    import torch
    from humming.layer import HummingLayer

    n, k = weight.shape
    names = {
        "Int4": ("uint4", "bfloat16"),
        "MXFP4": ("float4e2m1", "float8e8m0"),
        "NVFP4": ("float4e2m1", "float8e4m3"),
        "Float8": ("float8e4m3", "bfloat16"),
    }
    if type(weight).__name__ not in names:
        raise NotServed
    dtype, scale = names[type(weight).__name__]
    group = weight.group if weight.group < k else 0
    layer = HummingLayer(
        shape_n=n,
        shape_k=k,
        weight_config={"dtype": dtype, "group_size": group, "scale_dtype": scale},
        input_config={"dtype": "bfloat16"},
        torch_dtype=torch.bfloat16,
    ).to(weight.device)
    layer.load_from_unquantized(weight.dequantize(torch.bfloat16))
    layer.transform()
    return lambda x: layer(inputs=x)


#: By the name of a row's field: the function, the package, and the color of bars.
PEERS: dict[str, tuple[Callable[["Weight"], Product], str, str]] = {
    "marlin": (marlin, "vllm", "#ee6677"),
    "machete": (machete, "vllm", "#aa3377"),
    "humming": (humming, "humming", "#228833"),
    "gemlite": (gemlite, "gemlite", "#009988"),
}


def _words(weight: "Weight") -> Any:
    """The elements as int32 words (K / 8, N) or (K / 4, N), as GPTQ stores them."""
    import torch

    return weight.values.view(torch.int32).t().contiguous()


def installed() -> list[str]:
    """The peers whose packages are installed. Prints one line for each other one."""
    found = [name for name, (_, package, _) in PEERS.items() if find_spec(package) is not None]
    for name in PEERS.keys() - set(found):
        print(f"{name}: skipped: the package {PEERS[name][1]} is not installed", flush=True)
    return found


def captured(
    product: str, names: Sequence[str], sets: Sequence[tuple[Any, "Weight"]], stream: Any
) -> Iterator[tuple[str, Timed]]:
    """The launches of each peer, one for each set of rows and a weight. Prints one line for a peer
    that fails, or whose results are others.
    """
    x, first = sets[0]
    expected = x.float() @ first.dequantize().float().t()
    for name in names:
        try:
            launches = [partial(PEERS[name][0](weight), rows) for rows, weight in sets]
            error = float((launches[0]().float() - expected).norm() / expected.norm())
            if not error < MOST_ERROR:
                raise ValueError(f"its error is {error:.2g}")
            yield name, capture(stream, launches)
        except NotServed:
            continue
        # A failure of another package must not end the benchmark.
        except Exception as failure:
            reason = str(failure).partition("\n")[0]
            print(f"{product}: {name} fails: {type(failure).__name__}: {reason}", flush=True)
