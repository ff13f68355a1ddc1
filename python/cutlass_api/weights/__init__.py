"""Formats of weights: how a quantized matrix is stored, scaled, computed, decoded and checked.

``_scales.py`` has a record for each way to share scales, ``_formats.py`` one for each format, which
combines an element type with scales. ``_kernels.py`` enqueues ``kernels/quantize.cuh``. The
operators of :mod:`cutlass_api.ops` and the functions of :mod:`cutlass_api.quantize` read these
records. Private until a format has a public class.
"""

__all__: list[str] = []
