"""What a pipeline schedule is made of: actions, in an order for each rank.

A schedule is data. The generators of `schedules` write it, a reader's hand may write it, `validate` judges it,
`simulate` gives it times, and `PipelineParallel` runs it on ranks: the same object every time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

KINDS = ("F", "B", "I", "W")  # forward, whole backward, backward for the input, backward for the weights


class Action(NamedTuple):
    """One piece of work of a rank: `kind` of KINDS, for one micro-batch, on one of the rank's chunks of layers."""

    kind: str
    microbatch: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"{self.kind}{self.microbatch}" + (f".{self.chunk}" if self.chunk else "")


@dataclass(frozen=True)
class Schedule:
    """What every rank does, in order.

    `actions[rank]` is that rank's list. `stages[rank][chunk]` is the stage, counted along the model from 0, that the
    rank holds as that chunk: rank 0 of a plain pipeline has (0,), of an interleaved one on 4 ranks (0, 4), of one in
    the shape of a V (0, 7). Nothing is checked here: `validate(schedule)` says what is wrong with it.
    """

    name: str
    num_microbatches: int
    stages: tuple[tuple[int, ...], ...]
    actions: tuple[tuple[Action, ...], ...]

    @property
    def num_ranks(self) -> int:
        """p, the ranks of the pipeline."""
        return len(self.actions)

    @property
    def num_stages(self) -> int:
        """Stages of the model on all ranks: p times the chunks that each holds."""
        return sum(len(chunks) for chunks in self.stages)

    def where(self, stage: int) -> tuple[int, int]:
        """The (rank, chunk) that holds this stage of the model."""
        for rank, chunks in enumerate(self.stages):
            if stage in chunks:
                return rank, chunks.index(stage)
        raise ValueError(f"stage {stage} is on no rank; the schedule places stages {sorted(sum(self.stages, ()))}")

    def positions(self) -> Iterator[tuple[int, int, Action]]:
        """(rank, position in its list, action) of all actions."""
        for rank, actions in enumerate(self.actions):
            for position, action in enumerate(actions):
                yield rank, position, action
