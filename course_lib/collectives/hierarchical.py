"""Two kinds of links: fast ones inside a node, slow ones between nodes. Send only 1/g over the slow ones.

    g  ranks in a node (the group `intra`)      k  nodes (the group `inter`: the ranks with the same place in theirs)

    node 0:  0 1 2 3                intra of rank 5: [4, 5, 6, 7]
    node 1:  4 5 6 7                inter of rank 5: [1, 5]

Bytes that one rank sends: 2 (g-1)/g M inside its node, 2 (k-1)/k M/g between nodes. A ring over all g k ranks would
send nearly 2 M over each link between nodes.
"""

from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp, get_process_group_ranks

from course_lib.collectives.messages import in_place
from course_lib.collectives.reduction import check
from course_lib.collectives.ring import all_gather, reduce_scatter, ring_all_reduce
from course_lib.groups.membership import member


def hierarchical_all_reduce(tensor: Tensor, intra: ProcessGroup, inter: ProcessGroup,
                            op: ReduceOp.RedOpType = ReduceOp.SUM) -> None:
    """All-reduce `tensor` in place over all nodes: reduce-scatter inside, all-reduce between, all-gather inside.

    All nodes have the same number of ranks. ValueError unless this rank is the one that `intra` and `inter` share.
    """
    check(op, tensor)
    node, across = member(intra), member(inter)
    shared = sorted({*get_process_group_ranks(node.group)} & {*get_process_group_ranks(across.group)})
    if len(shared) > 1:
        raise ValueError(f"intra and inter share the ranks {shared}: expected only the calling rank in both")
    with in_place(tensor, node) as flat:  # (N,)
        chunks = flat.tensor_split(node.n)  # g of (N/g,)
        mine = chunks[node.r]
        # AVG becomes a mean of means, which is right: all nodes have as many ranks.
        mine.copy_(reduce_scatter(chunks, op, node))
        # Each of the g ranks of a node takes its own part across, so that the slow wires carry M once and all g cards
        # send.
        ring_all_reduce(mine, op, across.group)
        all_gather(chunks, node)
