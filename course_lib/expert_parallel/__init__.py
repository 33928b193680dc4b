"""Chapter 8: expert parallelism. A token is computed by k of E experts, which lie on different ranks.

    routing.py     which experts see a token, and what is kept where an expert has a capacity
    dispatch.py    the trip of the rows: sorted by expert, to the ranks that hold them, and back; in one piece, in
                   chunks that overlap, or over nodes, a row crossing the slow wire once
    experts.py     several experts on one rank, without padding
    layer.py       MoELayer: all of it
    gradients.py   averages: experts and all else, each over its own ranks; norm and state as if all were in one place
    model.py       a GPT whose MLPs are experts, the loss that keeps them busy, and the bias that does so without one
    placement.py   which rank holds which experts, busy ones several times

What is sent, dropped and computed is counted in course_lib/costs/splitting.py, and what hides in overlap.py.
`group=None` is the world.
"""

from course_lib.costs.overlap import smallest_ffn_size
from course_lib.costs.splitting import (
    balanced_expert_bytes,
    combine_bytes,
    count_bytes,
    count_sent_rows,
    dispatch_bytes,
    dropped_rows,
    expert_capacity,
    expert_layer_parameters,
    experts_per_rank,
    first_expert,
    nodes_of_a_token,
    slow_rows,
    split_expert_bytes,
    two_level_bytes,
)
from course_lib.expert_parallel.dispatch import dispatch_splits, exchange_rows, permute, unpermute
from course_lib.expert_parallel.experts import Experts
from course_lib.expert_parallel.gradients import (
    average_expert_gradients,
    average_gradients,
    average_replicated_gradients,
    clip_grad_norm_,
    expert_parameters,
    full_state_dict,
    make_groups,
    replicated_parameters,
)
from course_lib.expert_parallel.layer import MoELayer, moe_layers
from course_lib.expert_parallel.model import (
    BiasBalancer,
    MoEGPT,
    auxiliary_loss,
    load_balancing_loss,
    moe_gpt,
    router_z_loss,
    sum_over_group,
    update_bias,
)
from course_lib.expert_parallel.placement import place_experts, rank_loads
from course_lib.expert_parallel.routing import Routing, TopKRouter, capacity_mask, route, tokens_per_expert
from course_lib.groups.membership import SINGLE
from course_lib.lazy import load_on_use

load_on_use(__name__)
