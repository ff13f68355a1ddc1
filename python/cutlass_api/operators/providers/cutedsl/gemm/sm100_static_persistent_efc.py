"""An operator of Blackwell, which PyTorch compares the classes of operators with."""

from cutlass_api.operators._unserved import Unserved


class PersistentDenseGemmEFCOperator(Unserved):
    """A GEMM of Blackwell with any epilogue. The constructor raises NotImplementedError."""

    _nearest = "the EFC operators that get_operators finds"


__all__ = ["PersistentDenseGemmEFCOperator"]
