"""Products of 8-bit operands of any rank: rows of one matrix where B is one, as ``matmul``
flattens A, else one batch.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from cutlass_api._batches import over_batches
from cutlass_api._dtypes import INT8
from cutlass_api.ops._library import rows_of
from cutlass_api.weights._scales import Scales, find

#: Whether a tensor of two dimensions or less belongs to all rows: (tensor, rows) -> bool.
Fits = Callable[[Tensor, int], bool]


def of_any_rank(
    product: Callable[..., Tensor], a: Tensor, b: Tensor, *operands: tuple[Tensor | None, Fits]
) -> Tensor:
    """``product(a, b, *operands)``, a function of matrices and of batches of one dimension, for
    ``a`` (*, K) and ``b`` (K, N), or for batches that broadcast.

    Each operand comes with what its shape fits. Operands that do not fit the rows of all matrices
    of ``a``, as those of a batch, keep the batch.
    """
    tensors = [tensor for tensor, _ in operands]
    # The ranks of a proxy of torch.fx are unknown.
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.dim() == b.dim() == 2:
        return product(a, b, *tensors)
    if b.dim() == 2 and a.dim() > 0:
        rows = rows_of(a)
        flat = [flattened(tensor, a, rows.shape[0], fits) for tensor, fits in operands]
        if all((old is None) == (new is None) for old, new in zip(tensors, flat, strict=True)):
            return product(rows, b, *flat).reshape(*a.shape[:-1], b.shape[-1])
    if {a.dim(), b.dim()} <= {2, 3} or min(a.dim(), b.dim()) < 2:
        return product(a, b, *tensors)
    result: Tensor = over_batches(product, a, b, *tensors)
    return result


def flattened(tensor: Tensor | None, a: Tensor, rows: int, fits: Fits) -> Tensor | None:
    """An operand for the rows of ``a``; None if it does not fit them."""
    if tensor is None or tensor.numel() == 1 or (tensor.dim() <= 2 and fits(tensor, rows)):
        return tensor
    has_rows = tensor.dim() == a.dim() and tensor.shape[:-1] == a.shape[:-1]
    return rows_of(tensor) if has_rows else None


def of_columns(tensor: Tensor, rows: int) -> bool:
    """Scales of B and biases belong to any rows."""
    return True


def of_rows(served: Sequence[Scales], a: Tensor) -> Fits:
    """Scales of the rows of ``a`` that are served."""
    return lambda tensor, rows: find(served, tensor, None, rows, a.shape[-1], True) is not None


def of_integers(a: Tensor, b: Tensor) -> Fits:
    """Scales and zero points of ``mixed_mm``: of the columns of ``b``, or of groups along K."""

    def fits(tensor: Tensor, rows: int) -> bool:
        if a.dtype not in INT8 or tensor.dim() == 1 or tensor.shape[0] == 1:
            return bool(tensor.shape[-1] == b.shape[-1])
        return bool(tensor.shape[0] == rows)

    return fits
