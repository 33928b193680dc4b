"""Chapter 2: every collective of torch.distributed, written from send and receive alone.

A collective is a plan of messages: who sends what to whom, in which step. Each file here holds one family of plans:

    direct.py            through one rank, simple, and that rank is the bottleneck; and a different piece for everyone
    ring.py              around a circle: each rank talks to its two neighbours only; over nodes, and in segments
    tree.py              few steps: trees, halving-doubling, recursive doubling; any number of ranks, by folding
    differentiable.py    for models to compute with: torch's own collectives and their gradients, and the same without
                         gradients, begun now and finished later
    steps.py             the messages of every algorithm as data
    plan.py              such a list walked through: what everybody holds in between, who sends how much
    holdings.py          who holds which chunk with whose contributions, also read from real tensors

What each of them costs, T = alpha + beta M added up, is in course_lib.costs.links.

They take the arguments of their counterparts in torch.distributed, `group=None` being the world and `src` and `dst`
global ranks, and give the same results. Where torch demands a length that n divides, any length will do here: it is cut
as torch.tensor_split cuts it, the first ranks getting one row more. All of them but the differentiable ones wait until
they are done, and autograd does not see them.

What runs on ranks loads on first use: plans as data need no torch.

Sources: Thakur, Rabenseifner and Gropp 2005, "Optimization of Collective Communication Operations in MPICH";
Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations".
"""

from course_lib.costs.links import Link, collective_time, fit_link, hardware_link
from course_lib.lazy import load_on_use

load_on_use(__name__, {
    "differentiable": ("all_gather_along", "all_to_all_along", "copy_to_group", "gather_from_group",
                       "reduce_from_group", "reduce_scatter_along", "scatter_to_group"),
    "direct": ("gather", "naive_all_reduce", "pairwise_all_to_all", "scatter"),
    "ring": ("hierarchical_all_reduce", "ring_all_gather", "ring_all_reduce", "ring_reduce_scatter"),
    "tree": ("halving_doubling_all_reduce", "recursive_doubling_all_reduce", "tree_all_reduce", "tree_broadcast",
             "tree_reduce"),
})
