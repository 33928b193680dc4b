"""Parameters and FLOPs, counted from a shape, which share of a device's peak they reach, and how long that takes.

    N  parameters     D  training tokens     l  layers       h  hidden size     a  heads     d  head size
    f  MLP width      V  vocabulary          s  tokens in a row       B  rows in a batch
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

Sources: Kaplan et al. 2020 (6ND); Narayanan et al. 2021, SC'21, equation 3; Chowdhery et al. 2022, appendix B.
"""

from course_lib.costs.numbers import above_zero, at_least
from course_lib.facts import Shape

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
