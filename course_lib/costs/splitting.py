"""A layer cut over t devices: what they send, how long that takes beside the computing, and how far t can go.

    t  devices      B T  tokens     h  hidden size     w  bytes of a number     P  numbers in a layer's matrices
    F  FLOP/s of a device           W  bytes/s that it sends: what its group gets of the wires (network.py)

A pass of one layer, forward and backward, is 6 P B T / t FLOPs on each device, without the products of q and k, and
four all-reduces of B T h numbers: behind attention and behind the MLP, and once more for each on the way back.
Both grow with the tokens, so with long messages their ratio does not depend on the batch: only on t, h, and the
machine. Short ones take their latency, and more.

Sources: Shoeybi et al. 2019; Korthikanti et al. 2022 (the halves of an all-reduce); Narayanan et al. 2021, section 3.2.
"""

from course_lib.costs.checks import above_zero, at_least
from course_lib.costs.flops import attention_matrices, count_parameters, expert_matrices
from course_lib.costs.network import Group
from course_lib.facts import Shape


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
