"""Accidents that nobody reports: a number that is wrong on one rank, and a rank that is slow.

    find_corruption   memory: ranks that hold the same box of the same tensor compare checksums: who is alone is wrong
    find_outliers     computing: one rank's gradient, before it is averaged, is far longer or shorter than the others'
    repeat_elsewhere  computing: a neighbour computes a rank's gradient again, and the bits are compared
    find_stragglers   who computes longer than the others, in most steps

Replicas of data parallelism take the same step from the same averaged gradient, so that they stay equal to the bit. A
bit that flips in the memory of one makes it differ from then on. A gradient that was computed wrongly does not: the
average takes it to all replicas alike, so that it has to be looked for before the reduction.

Under dp1, and under ZeRO-3, which deals out what dp has in common, there is one copy of each number: nothing to compare
a checksum with. What is left is to repeat a step on other chips.

Sources: Dixit et al. 2021, "Silent Data Corruptions at Scale"; Llama team 2024, section 3.3.4, 6 of 419 interruptions.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from course_lib.checkpoint.piece import State
from course_lib.checkpoint.ranks import all_ranks
from course_lib.groups.exchange import agree
from course_lib.groups.membership import Group, member

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Corruption:
    """`name`: the tensor, of which the box at `offsets` differs. `ranks`: those that are in the minority; all that have
    it, where there is no majority, as of two.
    """

    name: str
    offsets: tuple[int, ...]
    ranks: tuple[int, ...]
    certain: bool

    def __str__(self) -> str:
        who = f"rank{'s' * (len(self.ranks) > 1)} {', '.join(map(str, self.ranks))}"
        return f"{self.name} is wrong on {who}" if self.certain else f"{self.name} differs between {who}"


@torch.no_grad()
def checksum(tensor: Tensor) -> int:
    """64 bits of the numbers' bits, each weighted by an odd number of its own place, so that no single bit, and no two
    numbers that change places, leave it as it was. Computed where the tensor is.
    """
    words = tensor.detach().contiguous().reshape(-1).view(WORDS[tensor.element_size()]).long()
    places = torch.arange(len(words), device=words.device) * 2654435761 * 2 + 1  # an odd multiplier loses no bit
    return int((words * places).sum())  # modulo 2^64


def find_corruption(state: State) -> list[Corruption]:
    """What the ranks that hold the same boxes do not agree on, the same list on all ranks. Collective: 8 bytes a box
    and the names. `state`: checkpoint.models.pieces(model, optimizer), say.
    """
    mine = {(name, piece.offsets, tuple(piece.tensor.shape)): checksum(piece.tensor)
            for name, pieces in state.items() for piece in pieces}
    holders: dict[tuple, dict[int, list[int]]] = {}
    for rank, sums in enumerate(all_ranks().everyones(mine)):
        for box, of_one in sums.items():
            holders.setdefault(box, {}).setdefault(of_one, []).append(rank)
    found = []
    for (name, offsets, _), by_sum in sorted(holders.items()):
        if len(by_sum) > 1:
            *minorities, most = sorted(by_sum.values(), key=len)
            # Of two that differ nobody can say which one is wrong.
            certain = len(most) > max(map(len, minorities))
            wrong = sorted(sum(minorities if certain else by_sum.values(), []))
            found.append(Corruption(name, offsets, tuple(wrong), certain))
    return found


@torch.no_grad()
def flip_bit(tensor: Tensor, place: int, bit: int) -> None:
    """What a cosmic ray does: one bit of number `place` (flattened) of `tensor`, in place."""
    words = tensor.detach().view(-1).view(WORDS[tensor.element_size()])
    size = 8 * tensor.element_size()
    if not (0 <= place < len(words) and 0 <= bit < size):
        raise ValueError(f"place={place}, bit={bit}: expected a place below {len(words)} and a bit below {size}")
    # The highest bit of a signed word is its sign: 1 << bit would not fit into it.
    signed = 1 << bit if bit < size - 1 or words.dtype == torch.uint8 else -(1 << bit)
    words[place] ^= signed


@torch.no_grad()
def local_norm(parameters: Iterable[nn.Parameter]) -> float:
    """The length of what this rank has of the gradient. Before the reduction it is of this rank's own rows."""
    return float(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))


def find_outliers(norms: Sequence[float], factor: float = 3.0) -> list[int]:
    """Places whose norm is more than `factor` times the others' median, or less than 1 / factor of it, or no number.

    norms[place]: of gradients of the same parameters, computed from equally many rows. Of two places that differ
    nobody knows which one is wrong: both are found.
    """
    if len(norms) < 2 or not factor > 1:
        raise ValueError(f"{len(norms)} norms, factor={factor!r}: expected those of 2 places or more, and a factor "
                         "above 1")
    found = []
    for place, norm in enumerate(norms):
        others = [other for at, other in enumerate(norms) if at != place and math.isfinite(other)]
        usual = statistics.median(others or [norm])
        if not usual / factor <= norm <= factor * usual:  # so, and not by >: nan is found, too
            found.append(place)
    return found


def repeat_elsewhere(gradients_of: Callable[[int], Sequence[Tensor]], group: Group = None) -> list[tuple[int, int]]:
    """Each rank computes its own gradients and its left neighbour's: the pairs (place, right neighbour) whose bits
    differ. Collective over `group`; a place that is in two pairs is the wrong one, where there are more than two.

    gradients_of(place): computed here, from the rows of that place and from parameters that all have. It has to give
    the same bits each time: the same kind of chip, a seed of its own where numbers are dropped.
    """
    me = member(group)
    own, left = (list(map(checksum, gradients_of(place % me.n))) for place in (me.r, me.r - 1))
    sums = agree(None, (own, left), group)
    pairs = [(place, (place + 1) % me.n) for place in range(me.n)] if me.n > 1 else []
    return [(place, right) for place, right in pairs if sums[place][0] != sums[right][1]]


def find_stragglers(seconds: Sequence[Sequence[float]], factor: float = 1.25) -> list[int]:
    """Ranks whose steps usually take more than `factor` times what the ranks' usually take.

    seconds[rank][step]: of computing alone. In whole steps all ranks are equally slow, since all wait for the slowest.
    Medians, so that one late step of a rank, and one slow rank of many, say nothing about the others.
    """
    if not seconds or not all(seconds) or not factor > 1:
        raise ValueError(f"seconds of {len(seconds)} ranks, factor={factor!r}: expected steps of each, and a factor "
                         "above 1")
    usual = [statistics.median(of_rank) for of_rank in seconds]
    middle = statistics.median_low(usual)  # of two ranks: the faster one
    return [rank for rank, of_rank in enumerate(usual) if of_rank > factor * middle]


def gather_numbers(mine: Sequence[float], group: Group = None) -> list[list[float]]:
    """Each place's times or norms, for find_stragglers and find_outliers. Collective over `group`."""
    return agree(None, list(mine), group)
