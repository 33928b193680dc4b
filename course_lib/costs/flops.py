"""Counted from a shape: parameters, FLOPs and the time that they take; what forward keeps for backward, term by term.

    N  parameters     D  training tokens     l  layers       h  hidden size     a  heads     d  head size
    f  MLP width      V  vocabulary          s  tokens in a row       B, b  rows in a batch, a micro-batch
    t  ranks of tensor parallelism
    P  FLOP/s that large products reach     W  bytes/s of the device's memory     w  bytes of a number

A multiplication and an addition are two FLOPs. Attention is counted in full, s x s, as papers count it: an
implementation that skips what the causal mask hides does half of that part. MFU counts the FLOPs that the model needs;
HFU also those that were done twice to save memory: with full recomputation it is about 4/3 of MFU.

A product of (m, k) and (k, n) takes its arithmetic and one trip of its three matrices through memory, one after the
other:

    2 mkn / P + w (mk + kn + mn) / W  =  2 mkn / P (1 + w P/(2W) (1/n + 1/m + 1/k))

So a product is slow where one of its sizes is not large against P/W, the intensity of the machine: an H100 wants
hundreds, and a matrix that tensor parallelism has cut into eight has not got them. The roofline would take the larger
of the two instead; real kernels begin with a load and end with a store that nothing hides.

Activations of one layer, in 16 bits with dropout (Korthikanti et al., table 2):

    nothing split                       sbh (34 + 5 as/h)
    tensor parallel                     sbh (10 + 24/t + 5 as/(ht))      10: what all t ranks hold alike
    tensor and sequence parallel        sbh (34/t + 5 as/(ht))           Megatron's: those 10 are split along s
    ... and selective recomputation     sbh 34/t                         the s x s matrices are made again
    full recomputation                  sbh 2                            only the layer's input is kept

Attention that never stores s x s matrices (FlashAttention, ring attention) keeps what selective recomputation keeps.
Context parallelism splits s itself: give it s/R. Left out, as in the paper: what a normalisation keeps of each token (8
bytes), token numbers.

Sources: Kaplan et al. 2020 (6ND); Narayanan et al. 2021, SC'21, equation 3; Chowdhery et al. 2022, appendix B;
Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", equations 1, 2 and 4.
"""

from dataclasses import dataclass

from course_lib.facts import Shape
from course_lib.facts.fact import above_zero, at_least

UTILISATION = 0.4  # of the peak: an assumption, what good training reaches


def attention_matrices(shape: Shape) -> int:
    """Numbers in the four projections of one layer: q and output h x ad each, k and v h x (kv heads) d each. Latent
    attention: h x q_rank x a (nope + rope), h x (kv_rank + rope), kv_rank x a (nope + value), a value x h.
    """
    h, a, latent = shape.hidden_size, shape.num_heads, shape.latent
    if latent is None:
        return 2 * h * shape.d * (a + shape.num_kv_heads)
    q = latent.q_rank * (h + a * shape.qk_width) if latent.q_rank else h * a * shape.qk_width
    kv = h * (latent.kv_rank + latent.rope) + latent.kv_rank * a * (latent.nope + latent.value)
    return q + kv + a * latent.value * h


def attention_flops_per_token(shape: Shape, sequence_length: int) -> float:
    """FLOPs of one layer's scores q k^T and mixing of v, forward: 4 s a d, counted in full (Shape.attended_tokens)."""
    return 2 * shape.attended_tokens(sequence_length) * shape.num_heads * (shape.qk_width + shape.v_width)


def expert_matrices(shape: Shape) -> int:
    """Numbers in the matrices of one MLP: up, down and, where gated, gate."""
    return (3 if shape.gated else 2) * shape.hidden_size * shape.ffn_size


def shared_matrices(shape: Shape) -> int:
    """Numbers in the matrices of the experts that every token uses, in one layer."""
    return (3 if shape.gated else 2) * shape.hidden_size * shape.shared_ffn * shape.shared_experts


def router_matrix(shape: Shape) -> int:
    """Numbers in the router of one layer, h x experts; 0 where there is one MLP and so no choice."""
    return shape.hidden_size * shape.num_experts if shape.num_experts > 1 else 0


def vectors_of_layer(shape: Shape) -> int:
    """Numbers in the biases and the two normalisations of one layer."""
    if not shape.biases:
        return 2 * shape.hidden_size
    attention = shape.d * (shape.num_heads + 2 * shape.num_kv_heads) + shape.hidden_size
    return 4 * shape.hidden_size + attention + shape.num_experts * expert_biases(shape)


def expert_biases(shape: Shape) -> int:
    """Numbers in the biases of one MLP."""
    return (2 if shape.gated else 1) * shape.ffn_size + shape.hidden_size if shape.biases else 0


def count_parameters(shape: Shape, include_embeddings: bool = True) -> int:
    """N, exactly. Without embeddings it is the N of Kaplan et al. (12 l h^2 and little more, for a GPT).

    >>> from course_lib.facts import model
    >>> count_parameters(model("Llama 3 8B").shape)
    8030261248
    """
    final_norm = (2 if shape.biases else 1) * shape.hidden_size
    total = final_norm
    for count, kind in shape.kinds():
        total += count * (attention_matrices(kind) + kind.num_experts * expert_matrices(kind) + shared_matrices(kind)
                          + router_matrix(kind) + vectors_of_layer(kind))
    if include_embeddings:
        total += (1 if shape.tied else 2) * shape.vocab_size * shape.hidden_size
        total += shape.sequence_length * shape.hidden_size if shape.learned_positions else 0
    return total


def count_active_parameters(shape: Shape) -> int:
    """Parameters that one token passes through, both embeddings among them: all but the experts that it is not sent to.

    >>> from course_lib.facts import model
    >>> f"{count_active_parameters(model('Mixtral 8x7B').shape) / 1e9:.1f} of 46.7 billion"
    '12.9 of 46.7 billion'
    """
    return count_parameters(shape) - sum(
        count * (kind.num_experts - kind.active_experts) * (expert_matrices(kind) + expert_biases(kind))
        for count, kind in shape.kinds())


def layer_flops_per_token(shape: Shape, sequence_length: int) -> float:
    """Forward FLOPs of one layer, for a shape whose layers are all of a kind."""
    matrices = (attention_matrices(shape) + shape.active_experts * expert_matrices(shape) + shared_matrices(shape)
                + router_matrix(shape))
    return 2 * matrices + attention_flops_per_token(shape, sequence_length)


def forward_flops_per_token(shape: Shape, sequence_length: int | None = None) -> int:
    """FLOPs of the matrix products of one forward pass, for one token in a row of `sequence_length` (s).

    Two for each number in a matrix that the token meets, and 4 s a d for each layer's scores q k^T and mixing of v. A
    layer for multi-token prediction is one of the last kind, a matrix that joins two vectors, and a read-out.
    """
    s = shape.sequence_length if sequence_length is None else at_least(sequence_length, 1, "sequence_length")
    kinds, h = shape.kinds(), shape.hidden_size
    layers = sum(count * layer_flops_per_token(kind, s) for count, kind in kinds)
    read_out = 2 * h * shape.vocab_size
    more = shape.mtp_layers * (layer_flops_per_token(kinds[-1][1], s) + 4 * h * h + read_out)
    return round(layers + read_out + more)


def step_flops(shape: Shape, batch_size: int, sequence_length: int | None = None, recompute: bool = False) -> int:
    """FLOPs of one training step on `batch_size` rows: forward once, backward twice as much.

    `recompute`: the layers (not the read-out) are run forward once more, to save memory. Without it this is the
    numerator of MFU, with it that of HFU.

    >>> from course_lib.facts import model
    >>> shape = model("Llama 3 8B").shape  # a row is 8,192 tokens
    >>> f"{step_flops(shape, batch_size=1) / 1e12:.0f} TFLOP"
    '474 TFLOP'
    >>> f"{step_flops(shape, 1, recompute=True) / step_flops(shape, 1):.2f} times as many"
    '1.32 times as many'
    """
    s = shape.sequence_length if sequence_length is None else sequence_length
    tokens = at_least(batch_size, 1, "batch_size") * s
    forward = forward_flops_per_token(shape, s)
    again = forward - 2 * shape.hidden_size * shape.vocab_size if recompute else 0
    return tokens * (3 * forward + again)


def recomputed_flops(shape: Shape, batch_size: int, sequence_length: int | None = None, policy: str = "full",
                     dropout: bool = False) -> int:
    """FLOPs of matrix products that recomputation adds to a step, where it stops as soon as it has all that backward
    wants. step_flops(recompute=True) counts, as papers do, every layer to its end.

    policy "full": all of a layer but its last product, whose result nothing but a dropout mask comes after.
    "selective": the scores q k^T alone, since their mixing with v keeps nothing new.
    """
    if policy not in ("full", "selective"):
        raise ValueError(f"policy={policy!r}: expected full or selective")
    s = shape.sequence_length if sequence_length is None else sequence_length
    per_token = 0.0
    for count, kind in shape.kinds():
        last = 0 if dropout else 2 * kind.hidden_size * kind.ffn_size * kind.active_experts
        scores = 2 * kind.attended_tokens(s) * kind.num_heads * kind.qk_width
        per_token += count * (scores if policy == "selective" else layer_flops_per_token(kind, s) - last)
    return round(at_least(batch_size, 1, "batch_size") * s * per_token)


def sc21_step_flops(B: float, s: float, layers: float, h: float, V: float) -> float:
    """Equation 3 of the Megatron paper (SC'21): a step of a GPT with full recomputation. Ours gives the same."""
    return 96 * B * s * layers * h**2 * (1 + s / (6 * h) + V / (16 * layers * h))


def training_flops(num_parameters: float, num_tokens: float) -> float:
    """C = 6ND: each token meets each parameter in one multiplication and one addition, forward once and backward twice.

    It leaves out attention (small while s is much less than 6h) and counts embeddings that are only looked up. For a
    mixture of experts N is what a token passes through, not what is stored.

    >>> f"{training_flops(num_parameters=8e9, num_tokens=15e12):.1e}"
    '7.2e+23'
    """
    return 6 * above_zero(num_parameters, "num_parameters") * above_zero(num_tokens, "num_tokens")


def utilisation(step_flops: float, step_s: float, num_devices: int, peak_flops_per_s: float) -> float:
    """MFU when `step_flops` are what the model needs, HFU when recomputed FLOPs are among them.

    >>> round(utilisation(step_flops=4e18, step_s=10, num_devices=1000, peak_flops_per_s=1e15), 3)
    0.4
    """
    possible = above_zero(step_s, "step_s") * at_least(num_devices, 1, "num_devices") * above_zero(
        peak_flops_per_s, "peak_flops_per_s")
    return above_zero(step_flops, "step_flops") / possible


def roofline(flops_per_byte: float, peak_flops_per_s: float, bytes_per_s: float) -> float:
    """FLOP/s that a kernel can reach: min(P, intensity x bandwidth) (Williams, Waterman and Patterson 2009).

    >>> [roofline(intensity, 989e12, 3.35e12) / 1e12 for intensity in (100, 1000)]  # of an H100, in TFLOP/s
    [335.0, 989.0]
    """
    intensity = above_zero(flops_per_byte, "flops_per_byte")
    return min(above_zero(peak_flops_per_s, "peak_flops_per_s"), intensity * above_zero(bytes_per_s, "bytes_per_s"))


def matmul_intensity(m: int, k: int, n: int, bytes_per_number: int = 2) -> float:
    """FLOPs a byte of (m, k) @ (k, n), when each matrix crosses the memory bus once.

    >>> f"{matmul_intensity(4096, 4096, 4096):.0f}"  # of two square matrices in 16 bits
    '1365'
    >>> f"{matmul_intensity(1, 4096, 4096):.1f}"  # of a single row
    '1.0'
    """
    m, k, n = (at_least(value, 1, name) for value, name in ((m, "m"), (k, "k"), (n, "n")))
    return 2 * m * k * n / (at_least(bytes_per_number, 1, "bytes_per_number") * (m * k + k * n + m * n))


def matmul_seconds(m: float, k: float, n: float, flops_per_s: float, bytes_per_s: float, bytes_per_number: float = 2,
                   count: float = 1) -> float:
    """Seconds of `count` products (m, k) @ (k, n), one after the other. 0 where a size is 0."""
    P, W = above_zero(flops_per_s, "flops_per_s"), above_zero(bytes_per_s, "bytes_per_s")
    return count * (2 * m * k * n / P + bytes_per_number * (m * k + k * n + m * n) / W)


def pass_seconds(num_bytes: float, bytes_per_s: float, passes: float = 1) -> float:
    """Seconds of reading or writing `num_bytes` of memory `passes` times."""
    return passes * num_bytes / above_zero(bytes_per_s, "bytes_per_s")


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
