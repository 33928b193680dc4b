"""What experts add to a layer: their products, the router, and the way of the rows to them and back.

    n  tokens of the micro-batch, which t ranks of tensor parallelism share      E, k  experts, and those of a token
    e, x  ranks that share all experts (ep), and one expert's width (etp); e x of the plane's ranks hold each once

A rank sends the rows of n/t tokens to e ranks, x apart. Then x of them have parts of the same experts and gather each
other's rows. So every rank works on n k x/t rows, on E/e experts of width f/x: n k f/t numbers, whatever e and x are.
Source: Liu et al. 2025, "MoE Parallel Folding"; hybrid_parallel.layout.
"""

from __future__ import annotations

from course_lib.costs.kernels import matmul_seconds
from course_lib.planner.rates import Rates
from course_lib.planner.work import Work

ROUTER_BYTES, ROUTER_PASSES = 4, 6  # 32 bits; product, scores, the best k, their weights, and a loss that balances
LAUNCHED_BY_EXPERTS = 1.0  # of an ordinary layer's operations, besides


def expert_seconds(work: Work, rates: Rates) -> tuple[float, float]:
    """(all products of a rank's experts, forward; the last of them). All wait for the rank with the most rows."""
    shape, e, x = work.shape, work.ep, work.etp
    experts, h, f = shape.num_experts / e, shape.hidden_size, shape.ffn_size / x
    rows = work.imbalance * work.n * shape.active_experts * x / work.t / experts
    how = {"count": experts, "flops_per_s": rates.flops_per_s * rates.expert_share}
    last = rates.product_s(rows, f, h, **how)
    return last + rates.product_s(rows, h, (2 if shape.gated else 1) * f, **how), last


def router_seconds(work: Work, rates: Rates) -> tuple[float, float]:
    """(product, passes) of the router, forward."""
    tokens, experts = work.n / work.t, work.shape.num_experts
    product = matmul_seconds(tokens, work.shape.hidden_size, experts, rates.head_flops_per_s,
                             rates.operand_bytes_per_s, ROUTER_BYTES)
    return product, rates.pass_s(ROUTER_BYTES * (tokens * experts), ROUTER_PASSES)


def dispatch_seconds(work: Work, rates: Rates) -> float:
    """There and back. Where rows are sent once, a row goes once to each node, or in one node to each rank, that has
    experts for it.
    """
    ep, etp, k = work.ep, work.etp, work.shape.active_experts
    row = rates.number_bytes * work.imbalance * work.n / work.t * work.shape.hidden_size
    group = rates.network.group(ep, etp)
    if work.software.sends_rows_once:  # by one kernel, which does not wait for one neighbour after the other
        places = group.nodes if group.nodes > 1 else ep
        apart = group.latency_s("send") + group.seconds_per_byte("all_to_all") * row * distinct(places, k)
    else:
        apart = group.seconds("all_to_all", row * k) + rates.gathering_s(ep)
    parts = rates.network.group(etp)
    gathered = parts.seconds("all_gather", row * etp * (k if ep > 1 else 1)) + rates.gathering_s(etp)
    return 2 * (apart + gathered)


def distinct(places: int, k: int) -> float:
    """How many of `places` a token's k experts stand in, on average."""
    return places * (1 - (1 - 1 / places) ** k)


def is_row(name: str) -> bool:
    """Whether a term of costs.activations is a row that travels to experts: each rank has those of n x/t tokens, so it
    is not cut as the others are.
    """
    return name in ("rows sent to experts", "rows that come back")
