"""Quantized models: a linear layer for each format of :mod:`cutlass_api.weights`, and
:func:`convert`, which replaces the linear layers of a model by it, and its mixtures of experts by
:class:`Experts`::

    cutlass_api.nn.convert(model, "int4")

Importing this module imports torch.
"""

# ``_schemes.py`` has a record for each scheme, ``_activations.py`` one for each way to quantize
# activations at run time, ``_layers.py`` finds what a scheme can replace.

from cutlass_api.nn._beside import place_side_by_side
from cutlass_api.nn._convert import convert
from cutlass_api.nn._linear import Linear
from cutlass_api.nn._load import load
from cutlass_api.nn._mixture import Experts
from cutlass_api.nn._report import Conversion, Loading
from cutlass_api.nn._save import save

__all__ = [
    "Conversion",
    "Experts",
    "Linear",
    "Loading",
    "convert",
    "load",
    "place_side_by_side",
    "save",
]
