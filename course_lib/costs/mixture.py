"""Experts dealt out over ranks: who holds which, how much is sent to them, what is dropped, and when it is too much.

    R  ranks     E  experts     k  experts of a token     N  tokens of a rank, B T of a batch
    D  hidden size     F  width of an expert     w  bytes of a number

Each token's row (D numbers) travels to its k experts and comes back: dispatch and combine. One rank in R is its own
neighbour, so when tokens are spread evenly a rank sends 2 k N D w (R-1)/R bytes forward, and as much again backward.
Otherwise what it sends follows from the counts.

Sources: Lepikhin et al. 2020, "GShard" (dispatch and combine, capacity); Fedus et al. 2021, "Switch Transformers"
(capacity factor); DeepSeek-AI 2024, "DeepSeek-V3", section 3.2.2 (a row crosses between two nodes once).
"""

import math
from collections.abc import Sequence

from course_lib.costs.numbers import above_zero, at_least

Counts = Sequence[Sequence[int]]  # [rank that has the tokens][expert]: rows that go there


def first_expert(num_experts: int, world_size: int, rank: int) -> int:
    """Rank r holds the experts from r E / R on, rounded down. Where R divides E that is E/R each."""
    return rank * at_least(num_experts, 1, "num_experts") // at_least(world_size, 1, "world_size")


def experts_per_rank(num_experts: int, world_size: int) -> list[int]:
    """How many experts each rank holds.

    >>> experts_per_rank(num_experts=10, world_size=4)
    [2, 3, 2, 3]
    """
    bounds = [first_expert(num_experts, world_size, rank) for rank in range(world_size + 1)]
    return [end - start for start, end in zip(bounds, bounds[1:])]


def expert_layer_parameters(hidden_size: int, ffn_size: int, num_experts: int, world_size: int = 1, rank: int = 0,
                            gated: bool = False, biases: bool = True, num_shared: int = 0) -> int:
    """Numbers that a rank holds: the router D E, its experts, and shared ones, which are one of num_shared F."""
    D = hidden_size

    def of_expert(F: int) -> int:
        wide = 2 * F if gated else F
        return D * wide + F * D + (wide + D if biases else 0)

    shared = of_expert(num_shared * ffn_size) if num_shared else 0
    return D * num_experts + experts_per_rank(num_experts, world_size)[rank] * of_expert(ffn_size) + shared


def expert_capacity(capacity_factor: float, k: int, num_tokens: int, num_experts: int) -> int:
    """ceil(factor k N / E): rows that one rank's N tokens may send to one expert. Factor 1 is the even share.

    >>> expert_capacity(1.25, k=2, num_tokens=1024, num_experts=8)
    320
    """
    return math.ceil(above_zero(capacity_factor, "capacity_factor") * k * num_tokens / num_experts)


def dropped_rows(tokens_per_expert: Sequence[int], capacity: int) -> int:
    """Rows above the capacity, over all experts: sum of max(0, n_e - C).

    >>> dropped_rows([400, 100, 330, 10], capacity=320)
    90
    """
    return sum(max(0, count - capacity) for count in tokens_per_expert)


def count_sent_rows(counts: Counts) -> list[list[int]]:
    """[from][to]: rows between each two ranks, of `counts` [rank][expert].

    >>> count_sent_rows([[5, 1, 0, 2], [3, 3, 1, 1]])  # two ranks; rank 0 has experts 0 and 1, rank 1 has 2 and 3
    [[6, 2], [6, 2]]
    """
    R, E = len(counts), len(counts[0])
    bounds = [first_expert(E, R, rank) for rank in range(R + 1)]
    return [[sum(of_rank[start:end]) for start, end in zip(bounds, bounds[1:])] for of_rank in counts]


def dispatch_bytes(counts: Counts, hidden_size: int, bytes_per_number: int = 2) -> list[int]:
    """What each rank sends to other ranks' experts, for these counts: exactly.

    >>> dispatch_bytes([[5, 1, 0, 2], [3, 3, 1, 1]], hidden_size=1024)  # 2 rows and 6 rows of 2048 bytes
    [4096, 12288]
    """
    return [(sum(row) - row[rank]) * hidden_size * bytes_per_number for rank, row in enumerate(count_sent_rows(counts))]


def combine_bytes(counts: Counts, hidden_size: int, bytes_per_number: int = 2) -> list[int]:
    """What each rank sends back to those whose tokens came. The sum over the ranks is dispatch's; a rank's need not be.
    """
    columns = zip(*count_sent_rows(counts))
    return [(sum(column) - column[rank]) * hidden_size * bytes_per_number for rank, column in enumerate(columns)]


def count_bytes(num_experts: int, world_size: int, rank: int) -> int:
    """What a rank sends to say how many rows will come: one 64-bit count for each expert of the others."""
    return 8 * (num_experts - experts_per_rank(num_experts, world_size)[rank])


def balanced_expert_bytes(num_tokens: int, k: int, hidden_size: int, world_size: int, bytes_per_number: int = 2
                          ) -> float:
    """Dispatch and combine of one rank's N tokens when they are spread evenly: 2 k N D w (R-1)/R. Backward: again."""
    R = at_least(world_size, 1, "world_size")
    return 2 * k * num_tokens * hidden_size * bytes_per_number * (R - 1) / R


def split_expert_bytes(num_tokens: int, hidden_size: int, world_size: int, bytes_per_number: int = 2) -> float:
    """The same tokens, N on each of R ranks, where every expert is cut over the R ranks instead (TP): 2 (R-1) N D w.

    All tokens are gathered on all ranks, and the summands of the result are reduce-scattered: the two halves of an
    all-reduce of R N D numbers. Against balanced_expert_bytes that is R/k times as much: EP sends less where k < R.
    """
    return 2 * (at_least(world_size, 1, "world_size") - 1) * num_tokens * hidden_size * bytes_per_number


def nodes_of_a_token(num_experts: int, num_nodes: int, k: int) -> float:
    """How many nodes k different experts, drawn evenly, lie on: n (1 - C(E - E/n, k) / C(E, k)), with n nodes.

    >>> round(nodes_of_a_token(num_experts=256, num_nodes=8, k=8), 1)
    5.3
    """
    n, E = at_least(num_nodes, 1, "num_nodes"), num_experts
    if E % n:
        raise ValueError(f"{E} experts on {n} nodes: expected a number that the nodes divide")
    return n * (1 - math.comb(E - E // n, k) / math.comb(E, k))


def slow_rows(node_sets: Sequence[Sequence[int]], node: int) -> tuple[int, int]:
    """(one level, two levels): rows that tokens of `node` send over the slow wire between the nodes.

    node_sets: for each token the nodes of its k experts. In one level a row travels for each expert elsewhere, in two
    levels once for each node elsewhere, whoever needs it there.
    """
    one = sum(other != node for nodes in node_sets for other in nodes)
    return one, sum(len(set(nodes) - {node}) for nodes in node_sets)


def two_level_bytes(num_rows: int, k: int, hidden_size: int, bytes_per_number: int = 2, weight_bytes: int = 4
                    ) -> tuple[int, int]:
    """(dispatch, combine) over the slow wire of rows that cross: each brings its k experts, 8 bytes each, and weights.
    """
    return num_rows * (hidden_size * bytes_per_number + k * (8 + weight_bytes)), \
        num_rows * hidden_size * bytes_per_number
