"""What each rank of this course's trainer (chapter 9) sends and holds in a step of a GPT under any layout.

Sent, axis by axis and to the byte:

    t, c, p, n  ranks along tp, cp, pp, and along dp and cp together      m  micro-batches of b rows
    T, D, V     tokens in a row, hidden size, vocabulary                  w  bytes of a number
    M = b T/c D w     what one micro-batch's activations are on a rank    P  numbers that a rank holds

    tp      4 all-reduces of M a block, 1 for the embedding, 1 for the read-out, 3 of a number a token for the loss
            a block with experts has 2, for attention, and the 2 halves of one (none under sequence parallelism), as
            each rank sends T/t tokens of a row to experts
    cp      keys and values around a ring, forward once, backward twice
    ep      a row of D numbers to each of a token's k experts and back, its gradient too: 4 k M/t (e-1)/e on e ranks
            when tokens are spread evenly; expert_bytes has it for the tokens that went where
    etp     these rows to the e ranks that have parts of an expert, sums back, gradients too: 4 k M/t (e-1) when even
    pp      M to the next rank, and a gradient of M back; a tied matrix once to the other rank that has it
    dp, cp  gradients: an all-reduce of P numbers; what ZeRO makes of it is in sharding.py
    world   one number, for the norm

Each is multiplied by m but the last two, ep by the expert layers too. All-reduces count 2 (t-1)/t of their message,
gathers and scatters half of it.

Held: parameters, gradients and optimiser state exactly, and the activations of the micro-batches in flight; what is
there for a moment is not counted, so it is within 1 %. A layout comes as plain numbers: the sizes of its axes.

Sources: chapters 3 to 7; Narayanan et al. 2021, section 3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from course_lib.costs.flops import activation_bytes_per_layer
from course_lib.costs.scaling import peak_1f1b
from course_lib.costs.sharding import fill_buckets, shard_size
from course_lib.costs.splitting import Counts, combine_bytes, count_bytes, dispatch_bytes, ring_attention_bytes
from course_lib.facts import Shape

Bytes = dict[str, int | Fraction]
BUCKET_CAP = 25 << 20  # bytes of gradients in a message, as the trainer cuts them


@dataclass(frozen=True)
class StageWork:
    """One rank's part of a step. layers: "embedding", "blocks.0" and so on, "norm", "head", in the order of the model.

    forward_dealt_out, backward_dealt_out: whether what is sent is T/t tokens. tied_elsewhere: the embedding
    and the head are one matrix on two ranks. passes_loss_on: it is not the last in the ring in which the loss goes to
    all ranks of pp. num_experts: of each block, 0 where it has an MLP.
    """

    layers: Sequence[str]
    rows: int
    num_microbatches: int
    sends_forward: int = 0  # boundaries over which this rank sends activations
    sends_backward: int = 0
    forward_dealt_out: bool = True  # under sequence parallelism: as all is behind the input of blocks.0
    backward_dealt_out: bool = True
    tied_elsewhere: bool = False
    passes_loss_on: bool = False
    num_experts: int = 0


def parameters_of(layer: str, shape: Shape, t: int) -> list[int]:
    """Numbers in each parameter of a layer that a rank of tp holds, in the order of the model."""
    D, F, V = shape.hidden_size, shape.ffn_size, shape.vocab_size
    if layer == "embedding":
        return [V // t * D, shape.sequence_length * D]
    if layer == "head":
        return [V // t * D]
    if layer == "norm":
        return [D, D]
    return [D, D, 3 * D * D // t, 3 * D // t, D * D // t, D, D, D, F * D // t, F // t, F * D // t, D]


def tensor_bytes(work: StageWork, shape: Shape, t: int, c: int, sequence_parallel: bool = False, w: int = 4
                 ) -> Fraction:
    """Along tp, of all micro-batches. The loss is computed in 4 bytes."""
    tokens, D = work.rows * shape.sequence_length // c, shape.hidden_size
    M, numbers = tokens * D * w, Fraction(0)
    for layer in work.layers:
        if layer.startswith("blocks"):
            if work.num_experts:
                router = D * work.num_experts * w
                numbers += 2 * M + router + (5 * D * w if sequence_parallel else M)
            else:
                numbers += 4 * M + (6 * D * w if sequence_parallel else 0)  # and the sums of norms and row biases
            if sequence_parallel and layer == "blocks.0":
                numbers += Fraction(M, 2)  # its input's gradient is gathered
        elif layer == "norm":
            numbers += 2 * D * w if sequence_parallel else 0
        else:
            numbers += M + (3 * tokens * 4 if layer == "head" else 0)
    return work.num_microbatches * Fraction(2 * (t - 1), t) * numbers


def expert_bytes(counts: Sequence[Counts], place: int, hidden_size: int, w: int = 4) -> int:
    """Along ep, by the rank at `place` of its group: rows to the experts and back, then gradients on the same ways.

    counts: one [place][expert] for each expert layer of its stage and each micro-batch, rows that go there; how many
    will come is told in 8 bytes an expert.
    """
    return sum(2 * (dispatch_bytes(each, hidden_size, w)[place] + combine_bytes(each, hidden_size, w)[place])
               + count_bytes(len(each[0]), len(each), place) for each in counts)


def expert_width_bytes(counts: Sequence[Counts], place: int, hidden_size: int, w: int = 4) -> int:
    """Along etp, by the rank at `place` of its group: rows to all ranks, sums back, then gradients on the same ways.

    counts: one [place][expert here] for each expert layer of its stage and each micro-batch: rows that had come there.
    """
    total = 0
    for each in counts:
        rows, others = [sum(of_rank) for of_rank in each], len(each) - 1
        total += 2 * (others * rows[place] + sum(rows) - rows[place]) * hidden_size * w + 8 * others * len(each[place])
    return total


def pipeline_bytes(work: StageWork, shape: Shape, t: int, c: int, p: int, sequence_parallel: bool = False, w: int = 4
                   ) -> int:
    """Along pp: activations and gradients, a tied matrix, and what all ranks tell each other of batch and loss."""
    if p == 1:
        return 0
    M = work.rows * shape.sequence_length // c * shape.hidden_size * w
    forward = M // t if sequence_parallel and work.forward_dealt_out else M
    backward = M // t if sequence_parallel and work.backward_dealt_out else M
    tied = shape.vocab_size // t * shape.hidden_size * w if work.tied_elsewhere else 0
    agreement, loss = (p - 1) * 4 * 8, 16 * work.passes_loss_on
    return work.num_microbatches * (work.sends_forward * forward + work.sends_backward * backward) + tied + agreement \
        + loss


def replica_bytes(work: StageWork, shape: Shape, t: int, n: int, zero_stage: int = 0, w: int = 4) -> Fraction:
    """Along dp and cp: gradients, ZeRO's parameters, and the mean loss.

    A matrix that lies on two ranks of pp keeps to stage 1 under 2, and is not sharded under 3.
    """
    sizes = [size for layer in work.layers for size in parameters_of(layer, shape, t)]
    tied = []
    if "head" in work.layers and ("embedding" in work.layers or work.tied_elsewhere):
        sizes.pop()  # once, where both are here
        tied = [parameters_of("head", shape, t)[0]] if work.tied_elsewhere else []
    elif work.tied_elsewhere:
        tied = [sizes.pop(0)]
    all_reduce, loss = Fraction(2 * (n - 1), n), Fraction(2 * (n - 1), n) * 4
    if zero_stage == 0:
        return all_reduce * w * sum(sizes + tied) + loss
    m = work.num_microbatches
    if zero_stage == 3:
        return loss + m * (n - 1) * 3 * w * sum(shard_size(size, n) for size in sizes) + m * all_reduce * w * sum(tied)
    blocks, tied_blocks = (sum(shard_size(sum(bucket), n) for bucket in fill_buckets(some, BUCKET_CAP, w))
                           for some in (sizes, tied))
    return loss + (n - 1) * w * ((m if zero_stage == 2 else 1) * blocks + blocks + 2 * tied_blocks)


def step_bytes(work: StageWork, shape: Shape, sizes: Mapping[str, int], zero_stage: int = 0,
               sequence_parallel: bool = False, w: int = 4) -> Bytes:
    """What one rank sends in a step after the first, by axis: "tp", "cp", "pp", "dp" and "world".

    sizes: of dp, pp, cp and tp. Where groups of two axes are the same ranks, the bytes go to the first of them; "dp+cp"
    is for both together.
    """
    dp, p, c, t = (sizes.get(axis, 1) for axis in ("dp", "pp", "cp", "tp"))
    world = dp * p * c * t
    sequence_parallel = sequence_parallel and t > 1
    replicas = "dp" if c == 1 else "cp" if dp == 1 else "dp+cp"
    alone = next((axis for axis, size in (("tp", t), ("cp", c), ("pp", p), ("dp", dp)) if size == world), "world")
    all_ranks = "dp+cp" if alone == "world" and dp * c == world else alone
    blocks = sum(layer.startswith("blocks") for layer in work.layers)  # each with its ring of attention
    rings = work.num_microbatches * blocks * sum(ring_attention_bytes(
        work.rows, shape.num_kv_heads // t, shape.sequence_length, shape.d, c, w))
    found = [("tp", tensor_bytes(work, shape, t, c, sequence_parallel, w)), ("cp", rings),
             ("pp", pipeline_bytes(work, shape, t, c, p, sequence_parallel, w)),
             (replicas, replica_bytes(work, shape, t, dp * c, zero_stage, w)),
             (all_ranks, Fraction(2 * (world - 1), world) * 8)]
    totals: dict[str, Fraction] = {}
    for axis, sent in found:
        if sent:
            totals[axis] = totals.get(axis, Fraction(0)) + sent
    return {axis: int(sent) if sent == int(sent) else sent for axis, sent in totals.items()}


def cut_stages(layers: Sequence[Sequence[str]], rows: int, num_microbatches: int) -> list[StageWork]:
    """What a rank of each stage of a plain pipeline does, given the layers of each stage; rows: of a micro-batch."""
    p, found = len(layers), []
    for place, names in enumerate(layers):
        found.append(StageWork(
            names, rows, num_microbatches, sends_forward=place < p - 1, sends_backward=place > 0,
            forward_dealt_out=names[-1].startswith("blocks") or names[-1] == "norm",
            backward_dealt_out=names[0] != "blocks.0", passes_loss_on=place != p - 2,
            tied_elsewhere=p > 1 and ("embedding" in names or "head" in names)))
    return found


def stage_memory(work: StageWork, shape: Shape, sizes: Mapping[str, int], zero_stage: int = 0, place: int = 0,
                 w: int = 4) -> dict[str, int]:
    """Bytes by kind that a rank on stage `place` of 1F1B holds at most. sizes: as in step_bytes.

    ValueError for ZeRO-3, which gathers layers besides (sharding.step_peak).
    """
    if zero_stage == 3:
        raise ValueError("zero_stage=3: expected 0 to 2, the most that stage 3 holds is in costs.sharding")
    dp, p, c, t = (sizes.get(axis, 1) for axis in ("dp", "pp", "cp", "tp"))
    numbers = [size for layer in work.layers for size in parameters_of(layer, shape, t)]
    if "head" in work.layers and "embedding" in work.layers:
        numbers.pop()  # one matrix
    whole, tied = sum(numbers), parameters_of("head", shape, t)[0] if work.tied_elsewhere else 0
    blocks = sum(shard_size(sum(bucket), dp * c) for bucket in fill_buckets(numbers, BUCKET_CAP, w))
    # Buckets, or room for the other rank's part of the tied matrix.
    gradients = (whole + (whole - tied if dp * c > 1 else tied), whole, blocks)[zero_stage]
    tokens, kept = shape.sequence_length // c, 0
    for layer in work.layers:
        if layer.startswith("blocks"):  # a ring of cp stores no scores
            kept += activation_bytes_per_layer(shape, work.rows, tokens, recompute="selective" if c > 1 else "none",
                                               bytes_per_number=w, tensor_parallel=t)
        elif layer == "head":
            kept += (2 * w * shape.hidden_size + 4 * shape.vocab_size // t) * tokens * work.rows
    return {"parameters": w * whole, "gradients": w * gradients,
            "optimizer_state": 2 * w * (blocks if zero_stage else whole),
            "activations": peak_1f1b(p, work.num_microbatches, place) * kept}
