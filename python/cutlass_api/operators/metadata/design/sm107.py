"""The configurations of kernels of Rubin."""

from cutlass_api.operators.metadata.design.sm100 import Sm100DesignMetadata


class Sm107DesignMetadata(Sm100DesignMetadata):
    """The configuration of a kernel of Rubin. The constructor raises NotImplementedError."""


__all__ = ["Sm107DesignMetadata"]
