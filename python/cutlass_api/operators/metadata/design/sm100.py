"""The configurations of kernels of Blackwell."""

from cutlass_api.operators._unserved import Unserved
from cutlass_api.operators.metadata.design.base import BLASDesignMetadata


class Sm100DesignMetadata(Unserved, BLASDesignMetadata):
    """The configuration of a kernel of Blackwell. The constructor raises NotImplementedError."""

    _nearest = "BLASDesignMetadata"


__all__ = ["Sm100DesignMetadata"]
