"""Attention over tokens that are dealt out to ranks: who has how much to do, and what is sent.

    T  tokens in a row     R  ranks     c = T/R  tokens on each      b  rows     H, K  query heads, key heads
    d  head size           w  bytes of a number

Under a causal mask token i reads i + 1 tokens, so who holds which tokens decides who works:

    contiguous  rank r holds tokens r c to r c + c - 1          the last rank does almost twice the mean
    striped     every R-th token, from r on                     even, but for the diagonal
    zigzag      pieces r and 2R-1-r of 2R                       even, to the pair

Sources: Liu et al. 2023, "Ring Attention with Blockwise Transformers"; Brandon et al. 2023, "Striped Attention"; Jacobs
et al. 2023, "DeepSpeed Ulysses"; Llama team 2024, "The Llama 3 Herd of Models", section 3.3.2, for zigzag.
"""

from course_lib.costs.checks import at_least

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
