"""How much of the messages is hidden behind the arithmetic: a step's all-reduces simulated, and bounds in tokens.

Backward makes gradients, the last layer's first. They are collected into buckets; a bucket is ready when its last
gradient is, and the all-reduces follow one another on one stream. What is still on its way when backward has ended is
exposed: everybody waits for it.

    n  ranks      M  bytes of a bucket      one all-reduce: 2(n-1) alpha + 2(n-1)/n beta M (links, network)
    backward: 4 FLOPs for each parameter and token (Kaplan et al. 2020), without the attention scores

From how many tokens on each device on do messages hide?

    T  tokens of a device and step      F  FLOP/s of a device      N  parameters
    w, g  bytes of a weight and of a gradient     W  bytes/s that each rank of the group sends (Group.bytes_per_s)

Forward computes 2 N T, backward 4 N T. What data parallelism sends grows with N as well, so N cancels. With two bytes a
number and many ranks T = F/W, for the all-reduce of data parallelism as for stage 3 of ZeRO (Austin et al. 2025).
Latencies are left out: these are bounds for long messages. Each group knows its (n-1)/n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from course_lib import facts
from course_lib.costs.flops import UTILISATION
from course_lib.costs.links import Link
from course_lib.costs.network import Group, Network, all_reduce_s, network_of
from course_lib.costs.sharding import cut_buckets
from course_lib.facts.fact import above_zero


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


ALONE, TOGETHER = 0, 10_000  # MiB: every gradient alone; more than any model here has
CAPS = (ALONE, 1, 2, 5, 10, 25, 50, 100, 250, 500, TOGETHER)
GRADIENT_BYTES = 4  # float32


@dataclass(frozen=True)
class BackwardPiece:
    """What backward does in one go: `backward_s` seconds, then a gradient of `gradient_bytes` is there (0: none)."""

    name: str
    block: str
    gradient_bytes: int
    backward_s: float


@dataclass(frozen=True)
class TimedBucket:
    """One all-reduce of a step: which pieces it carries, when it was ready, when it ran."""

    pieces: tuple[int, ...]
    num_bytes: int
    ready_s: float
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Overlap:
    """What happens in one step, in seconds from the begin of backward."""

    blocks: tuple[tuple[str, float, float], ...]  # name, start, end
    buckets: tuple[TimedBucket, ...]
    backward_s: float

    @property
    def end_s(self) -> float:
        """When both backward and the last all-reduce are done, in seconds from backward's begin."""
        return max(self.backward_s, self.buckets[-1].end_s if self.buckets else 0.0)

    @property
    def communication_s(self) -> float:
        """Seconds in which some all-reduce is under way, hidden or not."""
        return sum(bucket.end_s - bucket.start_s for bucket in self.buckets)

    @property
    def exposed_s(self) -> float:
        """Seconds of communication after backward has ended: all buckets are ready then, so there are no gaps."""
        return self.end_s - self.backward_s

    @property
    def hidden(self) -> float:
        """The share of the communication that runs beside backward."""
        return 1 - self.exposed_s / self.communication_s if self.communication_s else 1.0


def simulate_overlap(pieces: Sequence[BackwardPiece], cap_bytes: float, num_ranks: int, wires: Link | Network
                     ) -> Overlap:
    """`pieces` in the order of backward; buckets of at most `cap_bytes`, as cut_buckets cuts them."""
    ready, blocks, now = [], [], 0.0
    for piece in pieces:
        start, now = now, now + piece.backward_s
        ready.append(now)
        if blocks and blocks[-1][0] == piece.block:
            start = blocks.pop()[1]
        blocks.append((piece.block, start, now))
    buckets, free = [], 0.0
    with_gradient = [index for index, piece in enumerate(pieces) if piece.gradient_bytes]
    for bucket in cut_buckets([pieces[index].gradient_bytes for index in with_gradient], cap_bytes):
        indices = [with_gradient[place] for place in bucket]
        num_bytes = sum(pieces[index].gradient_bytes for index in indices)
        # One stream: a bucket that is ready waits for the all-reduce before it.
        start = max(ready[indices[-1]], free)
        free = start + all_reduce_s(wires, num_bytes, num_ranks)
        buckets.append(TimedBucket(tuple(indices), num_bytes, ready[indices[-1]], start, free))
    return Overlap(tuple(blocks), tuple(buckets), now)


@dataclass(frozen=True)
class WiredDevices:
    """Devices and what connects them. `max_ranks`: as far as the widget goes."""

    flops_per_s: float  # that a step really gets
    wires: Link | Network
    max_ranks: int

    def bytes_per_s(self, num_ranks: int) -> float:
        """What each of so many ranks sends around a ring."""
        if isinstance(self.wires, Link):
            return self.wires.bytes_per_s
        return self.wires.group(num_ranks).bytes_per_s("all_gather")


@dataclass(frozen=True)
class GPTStep:
    """A GPT with one embedding for both ends, and the tokens that one rank has in a step."""

    num_layers: int
    hidden_size: int
    vocab_size: int
    sequence_length: int
    num_sequences: int

    @property
    def num_tokens(self) -> int:
        """Tokens of a step on one device."""
        return self.sequence_length * self.num_sequences

    def parameters(self) -> list[tuple[str, str, int]]:
        """(name, block, elements) in the order of backward, without the embeddings."""
        h = self.hidden_size
        block = [("norm 1", 2 * h), ("qkv", 3 * h * h), ("qkv bias", 3 * h), ("projection", h * h),
                 ("projection bias", h), ("norm 2", 2 * h), ("mlp in", 4 * h * h), ("mlp in bias", 4 * h),
                 ("mlp out", 4 * h * h), ("mlp out bias", h)]
        return [("norm", "head", 2 * h), *((f"{name} {layer}", str(layer), elements)
                for layer in reversed(range(self.num_layers)) for name, elements in reversed(block))]

    def pieces(self, flops_per_s: float) -> list[BackwardPiece]:
        """The pieces of backward, in their order. The embedding's gradient is made at the head and completed at the
        very end.
        """
        per_element_s = 4 * self.num_tokens / flops_per_s
        embedding, positions = self.vocab_size * self.hidden_size, self.sequence_length * self.hidden_size
        inside = [BackwardPiece(name, block, GRADIENT_BYTES * elements, per_element_s * elements)
                  for name, block, elements in self.parameters()]
        return [BackwardPiece("head", "head", 0, per_element_s * embedding), *inside,
                BackwardPiece("positions", "embedding", GRADIENT_BYTES * positions, 0.0),
                BackwardPiece("embedding", "embedding", GRADIENT_BYTES * embedding, 0.0)]


def machine(device: facts.Accelerator, devices_per_node: int = 8, between: str = "") -> WiredDevices:
    """`device` and the network between its nodes, by its name in facts."""
    return WiredDevices(UTILISATION * device.peak_flops_per_s(device.half_precision),
                        network_of(device.name, devices_per_node, between), 1024)


def gpt_step(shape: facts.Shape) -> GPTStep:
    """A step of a model of this shape, with eight sequences on each rank."""
    return GPTStep(shape.num_layers, shape.hidden_size, shape.vocab_size, shape.sequence_length, 8)


MACHINES = {
    **{f"{device.name}, 8 in a node, {device.links[1].removeprefix('InfiniBand ')}": machine(device)
       for device in facts.ACCELERATORS if device.in_switched_eights},
    # The same device without a wire of its own to others, as many clouds rent it.
    "A100, 1 in a node, HDR": machine(facts.accelerator("A100"), 1),
    "A100, 1 in a node, Ethernet 10G": machine(facts.accelerator("A100"), 1, "Ethernet 10G"),
    # Round numbers, of the order that chapter 2 measures: gloo between processes of one laptop.
    "laptop, gloo": WiredDevices(50e9, Link(100e-6, 1e-9), 16),
}
MODELS = {
    "GPT of this course, 11M": GPTStep(6, 384, 256, 128, 16),
    "GPT-2, 124M": GPTStep(12, 768, 50257, 1024, 8),
    # Those built as GPT-2, of which a whole copy fits on one device.
    **{f"{model.name}, {model.parameters.value / 1e9:.1f}B": gpt_step(model.shape) for model in facts.MODELS
       if model.shape and model.shape.learned_positions and model.parameters.value < 2e9},
}
