"""What the forward pass keeps for the backward pass, counted from a shape: term by term, and added up.

    b  rows of a micro-batch   s  tokens in a row   t  ranks of tensor parallelism   h, a, d, f, V, l  as in flops.py

    of one layer, in 16 bits with dropout (table 2 of the paper)
    nothing split                       sbh (34 + 5 as/h)
    tensor parallel                     sbh (10 + 24/t + 5 as/(ht))      10: what all t ranks hold alike
    tensor and sequence parallel        sbh (34/t + 5 as/(ht))           Megatron's: those 10 are split along s
    ... and selective recomputation     sbh 34/t                         the s x s matrices are made again
    full recomputation                  sbh 2                            only the layer's input is kept

Attention that never stores s x s matrices (FlashAttention, ring attention) keeps what selective recomputation keeps.
Context parallelism splits s itself: give it s/R. Left out, as in the paper: what a normalisation keeps of each token (8
bytes), token numbers.

Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", equations 1, 2 and 4.
"""

from dataclasses import dataclass

from course_lib.costs.numbers import at_least
from course_lib.facts import Shape

RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class ActivationTerm:
    """Something that one layer keeps, `num_bytes` where nothing is split.

    `by_tensor`: tensor parallelism splits it (a part of the heads, or of the MLP's width). What it leaves whole,
    sequence parallelism splits. `core`: one of attention's s x s matrices. `of_dropout`: only dropout makes it.
    """

    name: str
    num_bytes: int
    by_tensor: bool = False
    core: bool = False
    of_dropout: bool = False

    def bytes_on_rank(self, recompute: str = "none", tensor_parallel: int = 1, sequence_parallel: bool = False) -> int:
        """Bytes on each rank. Under full recomputation the layer's input is all, see `activation_terms`."""
        if self.core and recompute == "selective":
            return 0
        return self.num_bytes // (tensor_parallel if self.by_tensor or sequence_parallel else 1)


def activation_terms(shape: Shape, batch_size: int, sequence_length: int | None = None, *, recompute: str = "none",
                     bytes_per_number: int = 2, dropout: bool = False, mask_bytes: int = 1) -> list[ActivationTerm]:
    """What one layer keeps, in the order in which it is made. `mask_bytes`: of a number in a dropout mask; the CPU
    keeps one as wide as the numbers themselves. All layers are of the last of shape.kinds().
    """
    if recompute not in RECOMPUTE:
        raise ValueError(f"recompute={recompute!r}: expected one of {', '.join(RECOMPUTE)}")
    b, w = at_least(batch_size, 1, "batch_size"), at_least(bytes_per_number, 1, "bytes_per_number")
    s = shape.sequence_length if sequence_length is None else at_least(sequence_length, 1, "sequence_length")
    h, a, m, tokens = shape.hidden_size, shape.num_heads, mask_bytes, s * b
    kv = a if shape.latent else shape.num_kv_heads
    f = shape.ffn_size * shape.active_experts + shape.shared_ffn * shape.shared_experts
    if recompute == "full":
        return [ActivationTerm("input of the layer", w * h * tokens)]
    mlp = ("gate", "SiLU of the gate", "up", "their product") if shape.gated else ("input of the GELU", "its output")
    narrow = [ActivationTerm("narrow q", 2 * w * tokens * shape.latent.q_rank),  # of latent attention, with their norms
              ActivationTerm("narrow k and v", 2 * w * tokens * (shape.latent.kv_rank + shape.latent.rope))
              ] if shape.latent else []
    sent = ("rows sent to experts", "rows that come back") if shape.num_experts > 1 else ()
    terms = [
        ActivationTerm("input of attention's norm", w * h * tokens),
        ActivationTerm("input of q, k, v", w * h * tokens),
        *narrow,
        ActivationTerm("q", w * a * shape.qk_width * tokens, by_tensor=True),
        ActivationTerm("k", w * kv * shape.qk_width * tokens, by_tensor=True),
        ActivationTerm("v", w * kv * shape.v_width * tokens, by_tensor=True),
        ActivationTerm("softmax", w * a * s * tokens, by_tensor=True, core=True),
        ActivationTerm("mask of the softmax", m * a * s * tokens, by_tensor=True, core=True, of_dropout=True),
        ActivationTerm("softmax after dropout", w * a * s * tokens, by_tensor=True, core=True, of_dropout=True),
        ActivationTerm("input of the output projection", w * a * shape.v_width * tokens, by_tensor=True),
        ActivationTerm("mask of attention's dropout", m * h * tokens, of_dropout=True),
        ActivationTerm("input of the MLP's norm", w * h * tokens),
        ActivationTerm("input of the MLP", w * h * tokens),
        *(ActivationTerm(name, w * shape.active_experts * h * tokens) for name in sent),
        *(ActivationTerm(name, w * f * tokens, by_tensor=True) for name in mlp),
        ActivationTerm("mask of the MLP's dropout", m * h * tokens, of_dropout=True),
    ]
    return [term for term in terms if dropout or not term.of_dropout]


def activation_bytes_per_layer(shape: Shape, batch_size: int, sequence_length: int | None = None, *,
                               recompute: str = "none", bytes_per_number: int = 2, dropout: bool = False,
                               mask_bytes: int = 1, tensor_parallel: int = 1, sequence_parallel: bool = False) -> int:
    """What one layer keeps for its backward pass, on each rank. `recompute`: "none"; "selective", the s x s matrices
    are made again or never stored (FlashAttention); "full", only the layer's input is kept.

    >>> from course_lib.facts import model
    >>> shape = model("Llama 3 8B").shape
    >>> [f"{activation_bytes_per_layer(shape, 1, recompute=how) / 1e9:.2f} GB" for how in RECOMPUTE]
    ['5.67 GB', '1.38 GB', '0.07 GB']
    """
    t = at_least(tensor_parallel, 1, "tensor_parallel")
    if shape.num_heads % t or shape.ffn_size % t:
        raise ValueError(f"tensor_parallel={t}: expected a number that divides the {shape.num_heads} heads and the "
                         f"MLP's width of {shape.ffn_size}")
    if sequence_parallel and t == 1:
        raise ValueError("sequence_parallel=True with tensor_parallel=1: expected at least 2, Megatron's sequence "
                         "parallelism splits what tensor parallelism leaves whole")
    terms = activation_terms(shape, batch_size, sequence_length, recompute=recompute, dropout=dropout,
                             bytes_per_number=bytes_per_number, mask_bytes=mask_bytes)
    return sum(term.bytes_on_rank(recompute, t, sequence_parallel) for term in terms)


def activation_bytes(shape: Shape, batch_size: int, sequence_length: int | None = None, *, recompute: str = "none",
                     bytes_per_number: int = 2, dropout: bool = False, mask_bytes: int = 1, tensor_parallel: int = 1,
                     sequence_parallel: bool = False) -> int:
    """What all layers keep, and both ends: the mask of the embedding's dropout; the inputs of the last norm and of the
    read-out; the logits, which the loss keeps in 32 bits, split by the vocabulary. Bytes on each rank.
    """
    s = shape.sequence_length if sequence_length is None else sequence_length
    layers = sum(count * activation_bytes_per_layer(
        kind, batch_size, s, recompute=recompute, bytes_per_number=bytes_per_number, dropout=dropout,
        mask_bytes=mask_bytes, tensor_parallel=tensor_parallel, sequence_parallel=sequence_parallel)
        for count, kind in shape.kinds())
    whole = (2 * bytes_per_number + (mask_bytes if dropout else 0)) * shape.hidden_size * s * batch_size
    logits = 4 * shape.vocab_size * s * batch_size // tensor_parallel
    return layers + whole // (tensor_parallel if sequence_parallel else 1) + logits
