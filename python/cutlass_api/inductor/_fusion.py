"""A post-grad pass: pointwise operations behind a product become one operator with an epilogue,
products for which Inductor's handler offers no choices an operator of ours (`_products`), and
products of one matrix A one operator (`_joint`), as gate and up of experts do before (`_gate`).

The pass proposes operators in a copy of the graph. In a trial of each (`_trials`), Inductor times
our kernels beside the operations that they replace. Only operators that are faster replace
operations of the graph itself. The others are compiled with what stands around them as without us.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from cutlass_api.inductor import Options, _lowering, _packed
from cutlass_api.inductor import _candidates as ours
from cutlass_api.inductor._beside import join_products
from cutlass_api.inductor._epilogue import Epilogue, Region
from cutlass_api.inductor._gate import fuse_gates
from cutlass_api.inductor._joint import JointProposal, joint_proposals
from cutlass_api.inductor._nodes import CAST, copied, is_call, origin_of
from cutlass_api.inductor._options import identity, options_in_force
from cutlass_api.inductor._products import (
    MIXED,
    is_of_mm,
    is_product,
    is_vector_product,
    needs_epilogue,
    replace_mixed,
    replace_unhandled,
    restore_vector_product,
)
from cutlass_api.inductor._quantize import fuse_quantizations, merge_quantizations
from cutlass_api.inductor._regions import (
    fitting,
    grown,
    has_fused_users,
    partly_replaced,
    seconds,
    served,
)
from cutlass_api.inductor._torch import CustomGraphPass, V, autotunes, config
from cutlass_api.inductor._trials import Trial, is_partly


class ProductPass(CustomGraphPass):
    """version: of the package. replaced: the pass or passes that were configured before, which run
    first."""

    def __init__(self, options: Options, version: str, replaced: Any) -> None:
        self.cutlass_api_options = options
        self.version = version
        self.replaced = replaced

    @property
    def earlier(self) -> Sequence[Any]:
        """The passes that run first."""
        if self.replaced is None:
            return ()
        return self.replaced if isinstance(self.replaced, list | tuple) else (self.replaced,)

    def __call__(self, graph: fx.Graph) -> None:
        for earlier in self.earlier:
            earlier(graph)
        options = options_in_force()
        if options is None or not autotunes():
            return
        # Our operators run from Python: ahead-of-time code cannot call them.
        if config.cpp_wrapper or V.aot_compilation is True or torch.version.hip is not None:
            return
        merge_quantizations(graph)
        join_products(graph)
        fuse_quantizations(graph)
        # With emulated casts, Inductor rounds between operations; a fused epilogue does not.
        fuses = options.fuse and not config.emulate_precision_casts
        if fuses:
            fuse_gates(graph)
        proposals = _proposals(copied(graph), fuses)
        for proposal in proposals:
            accepted = proposal.decided()
            if accepted is not None:
                accepted.apply(graph)
        for node in graph.nodes:
            _packed.mark_constant(graph, node)

    def uuid(self) -> Any:
        """Part of Inductor's cache keys; None, which disables the cache, if an earlier pass has
        none. Threads without the handler compile differently; in PyTorch 2.11 only this uuid
        separates them in the key.

        None as well for frozen graphs: a weight that `_packed` converts would be stored with the
        code, while the key does not depend on the values of parameters."""
        if config.freezing:
            return None
        earlier = [getattr(earlier, "uuid", lambda: None)() for earlier in self.earlier]
        options = options_in_force()
        own = identity(options, self.version) if options else ("cutlass_api", "not in force")
        return None if None in earlier else (*own, *earlier)


@dataclass
class Proposal:
    """An operator of ours in a copy of the graph, and what it replaces in the graph itself."""

    trial: Trial
    #: The original of the product.
    product: fx.Node
    #: Of an operator with an epilogue: the region in the copy.
    region: Region | None = None
    #: Of two products: the operator with the epilogue of one of them.
    partly: "Proposal | None" = None
    #: The description of the fastest kernel.
    kernel: str = field(default="", init=False)

    def decided(self) -> "Proposal | None":
        """What is faster than the operations that it replaces: this operator, or that of one
        product. None if nothing is."""
        winner = self.trial.winner()
        if isinstance(winner, ours.Caller):
            self.kernel = winner.description
            return self
        if self.partly is not None and is_partly(winner):
            return self.partly.decided()
        return None

    def apply(self, graph: fx.Graph) -> None:
        """Replaces the operations in the graph."""
        if self.region is None:
            product = self.product
            node = replace_unhandled(graph, product) or _as_proposed(graph, product)
        else:
            epilogue = served(_original(graph, self.region))
            if epilogue is None:
                return
            node = epilogue.replace(graph)
        node.meta[_lowering.CHOSEN] = self.kernel


def _proposals(graph: fx.Graph, fuses: bool) -> list[Proposal | JointProposal]:
    """Replaces operations in a copy of the graph by operators of ours. fuses: whether the pointwise
    operations behind a product are replaced, too."""
    if fuses:
        for node in list(graph.nodes):
            if not node._erased:
                restore_vector_product(graph, node)
    found: list[Proposal | JointProposal] = []
    regions: set[fx.Node] = set()
    for node in list(graph.nodes):
        if node._erased:  # the second product of a region
            continue
        replaced = replace_unhandled(graph, node)
        if replaced is None:
            node = replace_mixed(graph, node)
            # A row that was restored for a factor of 8 bits, but that no kernel serves, stays.
            fits = is_product(node) and not is_vector_product(node)
            proposal = _fused(graph, node, fuses, regions) if fits else None
            if proposal is not None:
                found.append(proposal)
            elif is_call(node, MIXED) and _lowering.REPLACED in node.meta:
                replaced = node
        if replaced is not None:
            origin = origin_of(replaced)
            assert origin is not None
            found.append(Proposal(Trial(replaced), origin))
    # What is left has no epilogue.
    return [*found, *joint_proposals(graph)] if fuses else found


def _fused(
    graph: fx.Graph, product: fx.Node, fuses: bool, regions: set[fx.Node]
) -> Proposal | None:
    """Replaces a product and operations behind it by an operator with an epilogue. regions: the
    original nodes of all regions, to which it adds."""
    if not fuses:
        alone = Region(product, None, [product])
        return _proposed(graph, fitting(alone) if needs_epilogue(product) else None, regions)
    for second in seconds(product):
        epilogue = fitting(grown(product, second))
        if epilogue is not None:
            return _proposed(graph, epilogue, regions)
    return _proposed(graph, fitting(grown(product)), regions)


def _proposed(graph: fx.Graph, epilogue: Epilogue | None, regions: set[fx.Node]) -> Proposal | None:
    if epilogue is None:
        return None
    region = epilogue.region
    origin = origin_of(region.product)
    assert origin is not None
    partly, of_one = None, None
    both = partly_replaced(epilogue)
    if both is not None:
        partly, fused = both
        if fused is not None:
            of_one = Proposal(Trial(fused), origin, _of_first(region))
    inside = _inside(region)
    alone = epilogue.products_alone() if has_fused_users(inside, regions) else None
    regions.update(inside)
    return Proposal(Trial(epilogue.replace(graph, partly), alone), origin, region, of_one)


def _inside(region: Region) -> list[fx.Node]:
    """The nodes of a region in the original graph."""
    inside = {node for node in map(origin_of, region.inside) if node is not None}
    # Of a product that Inductor decomposed, the region begins with the sum.
    inside |= {user for node in inside if is_of_mm(node) for user in node.users if is_of_mm(user)}
    return sorted(inside)


def _of_first(region: Region) -> Region:
    """The part of a region of two products that depends on the first one."""
    inside = [region.product]
    for node in region.inside:
        if any(arg in inside for arg in node.all_input_nodes):
            inside.append(node)
    return Region(region.product, None, inside)


def _original(graph: fx.Graph, region: Region) -> Region:
    """The region of the graph of which this one is a copy. Products that Inductor decomposed, or
    that have a factor of 8 bits, become those that the operator computes."""
    products = {
        product: _as_proposed(graph, origin_of(product))
        for product in (region.product, region.second)
        if product is not None
    }

    def original(node: fx.Node) -> fx.Node | None:
        if node in products:
            return products[node]
        origin = origin_of(node)
        if is_call(node, CAST) and not is_call(origin, CAST):
            # The result of a decomposed product in float32.
            restored = next(at for product, at in products.items() if origin_of(product) is origin)
            return next(user for user in restored.users if is_call(user, CAST))
        return origin

    inside = [original(node) for node in region.inside]
    return Region(inside[0], products.get(region.second), inside)


def _as_proposed(graph: fx.Graph, product: Any) -> fx.Node:
    return replace_mixed(graph, restore_vector_product(graph, product) or product)


__all__ = ["ProductPass"]
