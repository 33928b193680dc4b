"""When is it communication-bound? From how many tokens on each device on its messages hide behind its arithmetic.

    T  tokens of a device and step      F  FLOP/s of a device      N  parameters
    w, g  bytes of a weight and of a gradient     W  bytes/s that each rank of the group sends (Group.bytes_per_s)

Forward computes 2 N T, backward 4 N T. What data parallelism sends grows with N as well, so N cancels. With two bytes a
number and many ranks T = F/W, for the all-reduce of data parallelism as for stage 3 of ZeRO (Austin et al. 2025).
Latencies are left out: these are bounds for long messages. Each group knows its (n-1)/n.
"""

from course_lib.costs.checks import above_zero
from course_lib.costs.network import Group


def data_parallel_tokens(group: Group, flops_per_s: float, gradient_bytes: float = 2) -> float:
    """T with which backward takes as long as an all-reduce of the gradients in rings: 4 N T / F = 2 (n-1)/n g N / W.

    A switch that adds up is left out: what libraries reduce with it is at most a third faster (facts: 8 H200).

    >>> from course_lib.costs.network import network_of
    >>> round(data_parallel_tokens(network_of("H100").group(64), flops_per_s=400e12))
    984
    """
    halves = group.seconds_per_byte("reduce_scatter") + group.seconds_per_byte("all_gather")
    return above_zero(flops_per_s, "flops_per_s") * gradient_bytes * halves / 4


def fully_sharded_tokens(group: Group, flops_per_s: float, weight_bytes: float = 2, gradient_bytes: float = 2
                         ) -> tuple[float, float]:
    """T of stage 3 of ZeRO, (forward, backward): weights are gathered in both, gradients leave in backward.

    2 N T / F = w N / W and 4 N T / F = (w + g) N / W, times (n-1)/n. What one pass sends cannot hide in the other.
    """
    gather, scatter = group.seconds_per_byte("all_gather"), group.seconds_per_byte("reduce_scatter")
    F = above_zero(flops_per_s, "flops_per_s")
    return F * weight_bytes * gather / 2, F * (weight_bytes * gather + gradient_bytes * scatter) / 4


def ring_attention_tokens(group: Group, flops_per_s: float, num_heads: int, num_kv_heads: int, number_bytes: float = 2
                          ) -> tuple[float, float]:
    """Tokens of a rank with which a block takes as long to compute as the next one to arrive, (forward, backward).

    A block of c tokens: 2 w c K d bytes of k and v, and 2 c^2 H d FLOPs, half of the pairs being hidden. Backward sends
    them again with their gradients in 32 bits, behind five products in place of two (the scores are made again):

        forward   c = w K/H F/W       backward   c = 2/5 (w + 4) K/H F/W
    """
    F, each = above_zero(flops_per_s, "flops_per_s"), group.seconds_per_byte("ring")
    forward = F * num_kv_heads / num_heads * number_bytes * each
    return forward, 2 / 5 * (number_bytes + max(number_bytes, 4)) / number_bytes * forward


def smallest_ffn_size(group: Group, flops_per_s: float, gated: bool = True, number_bytes: float = 2
                      ) -> tuple[float, float]:
    """Width of an expert with which computing takes as long as two all-to-alls, (forward, backward).

    A token's row of D numbers goes to k experts and comes back: 2 k D w bytes, of which a share stays where it is.
    There it finds 2 x 3 k D F FLOPs (2 x 2 where experts are not gated), and twice as many in backward, for the same
    bytes. k, D and the tokens cancel: each row that travels brings its own work.
    """
    sending = 2 * number_bytes * group.seconds_per_byte("all_to_all")
    forward = sending * above_zero(flops_per_s, "flops_per_s") / (2 * (3 if gated else 2))
    return forward, forward / 2
