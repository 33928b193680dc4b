"""All-to-all in two levels: a token crosses the slow wire once for each node that it needs, not once for each expert.

    n nodes of G ranks, R = n G     N tokens     k experts of a token     D hidden size

    1  to the rank in my place on each node that holds some of the token's experts      slow wire: one row for a node
    2  among the ranks of that node, to the ranks that hold them, and back              fast wires: through_experts
    3  back to where the token came from: one row, in which that node's experts are already added up

What adds up on the node needs the weights there, so they travel with the rows, and their gradients back. Routing with
top_groups bounds how many nodes a token needs. Source: DeepSeek-AI 2024, "DeepSeek-V3", section 3.2.2.
"""

import torch
from torch import Tensor

from course_lib.expert_parallel.dispatch import exchange_counts, exchange_rows
from course_lib.expert_parallel.experts import Experts
from course_lib.expert_parallel.through import through_experts
from course_lib.groups.membership import Group, Member, member
from course_lib.runtime import span

Nodes = tuple[Group, Group]  # (the ranks of my node, the ranks in my place on every node)


def through_nodes(tokens: Tensor, experts: Tensor, weights: Tensor, kept: Tensor | None, num_experts: int,
                  compute: Experts, intra: Member, inter: Member) -> Tensor:
    """The same as through_experts over all R ranks. experts, weights, kept: (N, k); node i holds E/n, in order."""
    E_n = num_experts // inter.n
    if kept is not None:
        experts = experts.where(kept, -1)  # nobody's
    # Once for each node, however many of a token's experts are there: that is what crosses the slow wire.
    is_needed = torch.stack([(experts // E_n == node).any(-1) for node in range(inter.n)])  # (n, N)
    order = is_needed.nonzero()[:, 1]  # (M,): tokens, by the node that they go to
    here = is_needed.sum(1).cpu()
    sent, received = here.tolist(), [count for count, in exchange_counts(here, inter)]
    with span("to the nodes"):
        rows, chosen, scale = (exchange_rows(what.index_select(0, order), sent, received, inter)
                               for what in (tokens, experts, weights))
    # Numbers within this node; what is chosen elsewhere falls outside 0 to E_n and is masked.
    chosen = chosen - inter.r * E_n
    is_mine = (chosen >= 0) & (chosen < E_n)
    # Already added up on this node: one row goes back, however many of its experts a token used.
    added_up = through_experts(rows, chosen.where(is_mine, 0), scale, is_mine, E_n, compute, intra)
    with span("from the nodes"):
        back = exchange_rows(added_up, received, sent, inter)
    return tokens.new_zeros(tokens.shape, dtype=back.dtype).index_add(0, order, back)


def require_nodes(nodes: Nodes | None, num_experts: int, num_chunks: int, me: Member) -> tuple[Member, Member] | None:
    """`nodes` as members. ValueError unless they are the rows and columns of the group, each as it should be."""
    if num_chunks < 1 or nodes is not None and num_chunks > 1:
        raise ValueError(f"num_chunks={num_chunks}{' with nodes' if nodes else ''}: expected 1 or more, and 1 in two "
                         "levels")
    if nodes is None:
        return None
    intra, inter = map(member, nodes)
    if me.n != intra.n * inter.n or me.r != inter.r * intra.n + intra.r:
        raise ValueError(f"nodes: place {intra.r} of {intra.n} on node {inter.r} of {inter.n}, and place {me.r} of "
                         f"{me.n} in the group: expected place {intra.n} x node + place on the node")
    if num_experts % me.n:
        raise ValueError(f"{num_experts} experts on {me.n} ranks in two levels: expected a number that the ranks "
                         "divide")
    return intra, inter
