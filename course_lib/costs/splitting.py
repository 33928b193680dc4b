"""Layers, tokens or experts dealt out to devices: what they send, how long that takes, and how far it can go.

    t  devices that cut layers      R  ranks that deal out tokens, c = T/R each      B, b  rows      T  tokens in a row
    h  hidden size     H, K  query heads, key heads     d  head size     w  bytes of a number
    P  numbers in a layer's matrices     F  FLOP/s of a device     W  bytes/s that it sends (network.py)
    E  experts, of F numbers' width      k  experts of a token     N  tokens of one of their R ranks, rows of D numbers

Cut layers: a pass of one, forward and backward, is 6 P B T / t FLOPs on each device, without the products of q and k,
and four all-reduces of B T h numbers: behind attention and behind the MLP, and once more for each on the way back. Both
grow with the tokens, so with long messages their ratio does not depend on the batch: only on t, h, and the machine.
Short ones take their latency, and more.

Tokens dealt out: under a causal mask token i reads i + 1 tokens, so who holds which tokens decides who works:

    contiguous  rank r holds tokens r c to r c + c - 1          the last rank does almost twice the mean
    striped     every R-th token, from r on                     even, but for the diagonal
    zigzag      pieces r and 2R-1-r of 2R                       even, to the pair

Experts dealt out: each token's row travels to its k experts and comes back, dispatch and combine. One rank in R is its
own neighbour, so when tokens are spread evenly a rank sends 2 k N D w (R-1)/R bytes forward, and as much again
backward. Otherwise what it sends follows from the counts.

Sources: Shoeybi et al. 2019; Korthikanti et al. 2022 (the halves of an all-reduce); Narayanan et al. 2021, section 3.2;
Liu et al. 2023, "Ring Attention with Blockwise Transformers"; Brandon et al. 2023, "Striped Attention"; Jacobs et al.
2023, "DeepSpeed Ulysses"; Llama team 2024, "The Llama 3 Herd of Models", section 3.3.2, for zigzag; Lepikhin
et al. 2020, "GShard" (dispatch and combine, capacity); Fedus et al. 2021, "Switch Transformers" (capacity factor);
DeepSeek-AI 2024, "DeepSeek-V3", section 3.2.2 (a row crosses between two nodes once).
"""

import math
from collections.abc import Sequence

from course_lib.costs.flops import attention_matrices, count_parameters, expert_matrices
from course_lib.costs.network import Group
from course_lib.facts import Shape
from course_lib.facts.fact import above_zero, at_least


def split_layer_bytes(hidden_size: int, num_tokens: int, t: int, bytes_per_number: int = 2, gather_again: bool = False
                      ) -> float:
    """Sent by each device in a pass of one layer: 4 x 2 (t-1)/t w B T h.

    Sequence parallelism sends the same, each all-reduce in two halves. gather_again: it keeps a t-th of the inputs of
    attention and MLP only, and gathers both once more: half an all-reduce each.

    >>> f"{split_layer_bytes(hidden_size=4096, num_tokens=8192, t=8) / 1e6:.0f} MB"
    '470 MB'
    """
    t, M = at_least(t, 1, "t"), bytes_per_number * hidden_size * at_least(num_tokens, 0, "num_tokens")
    return (5 if gather_again else 4) * 2 * (t - 1) / t * M


def split_layer_seconds(shape: Shape, num_tokens: int, group: Group, flops_per_s: float, bytes_per_number: int = 2
                        ) -> tuple[float, float]:
    """(computing, sending) of a pass of one layer over the t ranks of `group`, each as if nothing slowed it.

    Each all-reduce is counted as its two halves, which is what sequence parallelism sends: no switch adds up for it.
    """
    P = attention_matrices(shape) + expert_matrices(shape)
    computing = 6 * P * num_tokens / group.n / above_zero(flops_per_s, "flops_per_s")
    M = bytes_per_number * shape.hidden_size * at_least(num_tokens, 0, "num_tokens")
    return computing, 4 * (group.seconds("reduce_scatter", M) + group.seconds("all_gather", M))


def hidden_seconds(shape: Shape, num_tokens: int, group: Group, flops_per_s: float, bytes_per_number: int = 2) -> float:
    """Seconds of split_layer_seconds' sending that travel while other products are computed: in backward each of the
    two all-reduces goes beside the gradient of its columns' weights (q | k | v, and up, with gate), as far as this
    takes. Of a dense model.
    """
    computing, sending = split_layer_seconds(shape, num_tokens, group, flops_per_s, bytes_per_number)
    qkv = shape.hidden_size * shape.d * (shape.num_heads + 2 * shape.num_kv_heads)
    up = (2 if shape.gated else 1) * shape.hidden_size * shape.ffn_size
    P = attention_matrices(shape) + expert_matrices(shape)
    return sum(min(sending / 4, computing * 2 * columns / (6 * P)) for columns in (qkv, up))


def largest_t(shape: Shape, flops_per_s: float, bytes_per_s: float, bytes_per_number: int = 2) -> float:
    """The t at which sending takes as long as computing, where every rank sends W bytes/s whatever t is:

        8 (t-1)/t w B T h / W = 6 P B T / (t F)      t = 1 + 3/4 P/h W/(w F)

    With the P = 12 h^2 of a GPT it is 1 + 9 h W/(w F). Nothing is hidden.
    """
    P = attention_matrices(shape) + expert_matrices(shape)
    ratio = above_zero(bytes_per_s, "bytes_per_s") / (bytes_per_number * above_zero(flops_per_s, "flops_per_s"))
    return 1 + 3 / 4 * P / shape.hidden_size * ratio


def split_parameters(shape: Shape, t: int) -> int:
    """Numbers that each device holds: a t-th of matrices, of the columns' biases and of the vocabulary, all the rest.

    Of a dense model. Whole are norms, the rows' biases and learned positions.
    """
    columns = shape.d * (shape.num_heads + 2 * shape.num_kv_heads) + (2 if shape.gated else 1) * shape.ffn_size
    cut = shape.num_layers * (attention_matrices(shape) + expert_matrices(shape) + (columns if shape.biases else 0))
    cut += (1 if shape.tied else 2) * shape.vocab_size * shape.hidden_size
    return cut // at_least(t, 1, "t") + count_parameters(shape) - cut


LAYOUTS = ("contiguous", "striped", "zigzag")


def tokens_per_rank(num_tokens: int, world_size: int, layout: str) -> int:
    """c = T/R. ValueError for a layout that there is not, and for tokens that it cannot deal out evenly.

    >>> tokens_per_rank(8192, world_size=8, layout="zigzag")
    1024
    >>> tokens_per_rank(100, world_size=8, layout="zigzag")
    Traceback (most recent call last):
    ValueError: num_tokens=100 in a zigzag layout on 8 ranks: expected a multiple of 16; pad the rows to 112
    """
    if layout not in LAYOUTS:
        raise ValueError(f"layout={layout!r}: expected one of {', '.join(LAYOUTS)}")
    T, R = at_least(num_tokens, 1, "num_tokens"), at_least(world_size, 1, "world_size")
    pieces = 2 * R if layout == "zigzag" else R
    if T % pieces:
        raise ValueError(f"num_tokens={T} in a {layout} layout on {R} ranks: expected a multiple of {pieces}; pad the "
                         f"rows to {-(-T // pieces) * pieces}")
    return T // R


def visible_pairs(query_rank: int, key_rank: int, num_tokens: int, world_size: int, layout: str,
                  causal: bool = True) -> int:
    """Pairs of a token of one rank, and one of another (or the same) that it reads, under the mask."""
    c = tokens_per_rank(num_tokens, world_size, layout)
    if not causal:
        return c * c
    triangle = c * (c + 1) // 2  # each token reads itself and those before it
    if layout == "contiguous":
        return c * c if key_rank < query_rank else triangle if key_rank == query_rank else 0
    if layout == "striped":
        return triangle if key_rank <= query_rank else triangle - c
    return triangle if key_rank == query_rank else c * c // 2  # half of the queries, or half of the keys


def ring_work(num_tokens: int, world_size: int, layout: str, causal: bool = True) -> list[list[int]]:
    """For each step of ring attention the pairs that each rank computes: in step i rank r has the keys of rank r - i.

    >>> ring_work(16, world_size=4, layout="contiguous")
    [[10, 10, 10, 10], [0, 16, 16, 16], [0, 0, 16, 16], [0, 0, 0, 16]]
    """
    R = at_least(world_size, 1, "world_size")
    return [[visible_pairs(rank, (rank - step) % R, num_tokens, R, layout, causal) for rank in range(R)]
            for step in range(R)]


def imbalance(work: list[list[int]]) -> float:
    """How much more the busiest rank does than the mean, over all steps: 0 where it is even. `work[step][rank]`.

    >>> [round(imbalance(ring_work(16, 4, layout)), 2) for layout in LAYOUTS]
    [0.71, 0.18, 0.0]
    """
    totals = [sum(of_rank) for of_rank in zip(*work)]
    return max(totals) * len(totals) / sum(totals) - 1


def ring_attention_bytes(batch_size: int, num_kv_heads: int, num_tokens: int, head_dim: int, world_size: int,
                         bytes_per_number: int = 2) -> tuple[int, int]:
    """What each rank sends, (forward, backward): its keys and values go around, R-1 times M = 2 b K T/R d numbers.

    Backward they go around again, and R-1 times their gradients, in 32 bits at least.
    """
    hops, numbers = world_size - 1, 2 * batch_size * num_kv_heads * (num_tokens // world_size) * head_dim
    w, w_gradient = bytes_per_number, max(bytes_per_number, 4)
    return hops * numbers * w, hops * numbers * (w + w_gradient)


def ulysses_key_heads(num_heads: int, num_kv_heads: int, world_size: int) -> int:
    """Key heads that are sent: each is repeated where ranks need the same one. ValueError where R does not divide H.

    >>> ulysses_key_heads(num_heads=32, num_kv_heads=8, world_size=16)  # each of the 8 is sent to two ranks
    16
    """
    H, K, R = num_heads, num_kv_heads, world_size
    if H % R:
        raise ValueError(f"{H} query heads on {R} ranks: expected a number of heads that the ranks of the group divide")
    repeats = range(1, H // K + 1)
    return K * next(f for f in repeats if (H // K) % f == 0 and (K * f) % R == 0)


def ulysses_attention_bytes(batch_size: int, num_heads: int, num_kv_heads: int, num_tokens: int, head_dim: int,
                            world_size: int, bytes_per_number: int = 2) -> tuple[int, int]:
    """What each rank sends, (forward, backward): q, k, v and the result, all but the R-th part that it keeps."""
    heads = 2 * num_heads + 2 * ulysses_key_heads(num_heads, num_kv_heads, world_size)
    numbers = heads * batch_size * (num_tokens // world_size) * head_dim
    return (numbers * bytes_per_number * (world_size - 1) // world_size,) * 2


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
