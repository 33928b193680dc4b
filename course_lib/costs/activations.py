"""What the forward pass keeps for the backward pass, counted from a shape.

    b  rows of a micro-batch     s  tokens in a row     h, a, d, f, V, l  as in flops.py

Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", equations 1, 2 and 4.
"""

from course_lib.costs.checks import at_least
from course_lib.facts import Shape

RECOMPUTE = ("none", "attention", "full")


def activation_bytes_per_layer(shape: Shape, batch_size: int, sequence_length: int | None = None, *,
                               recompute: str = "none",
                               bytes_per_number: int = 2, dropout: bool = False) -> int:
    """What one layer keeps for its backward pass. `recompute`: "none"; "attention", the s x s matrices are made again
    or never stored (FlashAttention); "full", only the layer's input is kept.

    For a GPT with dropout in 16 bits this is sbh(34 + 5 as/h), sbh 34 and 2 sbh (Korthikanti et al. 2022).
    """
    if recompute not in RECOMPUTE:
        raise ValueError(f"recompute={recompute!r}: expected one of {', '.join(RECOMPUTE)}")
    b, w = at_least(batch_size, 1, "batch_size"), at_least(bytes_per_number, 1, "bytes_per_number")
    s = shape.sequence_length if sequence_length is None else at_least(sequence_length, 1, "sequence_length")
    h, a, d, kv = shape.hidden_size, shape.num_heads, shape.d, shape.num_kv_heads
    if recompute == "full":
        return w * s * b * h
    norms_and_their_outputs = 4 * h  # two inputs, and what the first matrices of attention and MLP read
    attention = 2 * a * d + 2 * kv * d  # q and the mixed values; k and v
    # gated: the gate, its SiLU, up, and their product; otherwise what is before the GELU and after it
    mlp = (4 if shape.gated else 2) * shape.ffn_size * shape.active_experts
    linear = s * b * (w * (norms_and_their_outputs + attention + mlp) + (2 * h if dropout else 0))  # a mask has 1 byte
    quadratic = a * s * s * b * (2 * w + 1 if dropout else w)  # softmax; and its dropped-out copy and mask
    return linear + (quadratic if recompute == "none" else 0)


def activation_bytes(shape: Shape, batch_size: int, sequence_length: int | None = None, *, recompute: str = "none",
                     bytes_per_number: int = 2, dropout: bool = False) -> int:
    """All layers, plus the read-out: its input and the logits, which the loss keeps in 32 bits."""
    s = shape.sequence_length if sequence_length is None else sequence_length
    layer = activation_bytes_per_layer(shape, batch_size, s, recompute=recompute, bytes_per_number=bytes_per_number,
                                       dropout=dropout)
    ends = s * batch_size * (2 * bytes_per_number * shape.hidden_size + 4 * shape.vocab_size)
    return shape.num_layers * layer + ends
