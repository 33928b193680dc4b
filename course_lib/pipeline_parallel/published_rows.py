"""A published bubble rate beside the predicted one, and the two costs that were fitted for it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RelativeCosts:
    """Times in units of F = I, a rank's layers forward, or backward for the input, for one micro-batch."""

    backward_weight: float
    p2p: float


@dataclass(frozen=True)
class Row:
    """One published rate beside the predicted one; `fitted`: at the m on which the costs were fitted."""

    model: str
    m: int
    schedule: str
    published: float
    predicted: float
    fitted: bool
