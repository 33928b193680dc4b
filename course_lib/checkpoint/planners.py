"""Pieces on disk: torch.distributed.checkpoint writes the files, and this tells it where our pieces lie.

Every rank writes its share of the boxes into a file of its own, rank 0 `.metadata`, their list. torch calls the one
who knows what has to be written a planner. Its own knows DTensors; ours knows pieces. The files are torch's: any
program with torch reads them, without this package. We read them by ourselves: see reading.py.

Source: torch.distributed.checkpoint; Wan et al. 2024, "ByteCheckpoint", describes the same way to reshard.
"""

import math
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import (
    CheckpointException,
    ChunkStorageMetadata,
    DefaultSavePlanner,
    FileSystemWriter,
    Metadata,
    SavePlan,
    WriteItem,
    save,
)
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItemType

from course_lib.checkpoint.piece import Piece, State


class SavePieces(DefaultSavePlanner):
    """What this rank writes: what it holds alone, and its share of what others hold as well. Of the ranks that hold a
    box, DCP lets the one write it that has least so far. borrowed: names of tensors that are another stage's, too.
    """

    def __init__(self, borrowed: set[str]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.borrowed = borrowed

    def create_local_plan(self) -> SavePlan:
        """All pieces that this rank holds, as a plan for DCP, the largest first: the small ones then even it out."""
        self.tensors = {MetadataIndex(name, piece.offsets): piece.tensor
                        for name, pieces in self.state_dict.items() for piece in pieces}
        held = pieces_to_write(self.state_dict)
        items = [write_item(*each) for each in sorted(held, key=lambda each: -each[1].tensor.nbytes)]
        self.plan = SavePlan(items, planner_data=self.borrowed)
        return self.plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """All ranks' plans, checked together, and the metadata. ValueError where pieces do not make up a whole tensor.
        """
        plans, metadata = super().create_global_plan(cut_once(all_plans))
        metadata.planner_data = None  # it maps nested names, and ours are flat
        require_whole(metadata)
        return plans, metadata

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        """The tensor behind an index of the plan, when DCP comes to write it."""
        return self.tensors[index]


def cut_once(all_plans: list[SavePlan]) -> list[SavePlan]:
    """The plans, without what is borrowed where boxes would overlap: ZeRO cuts the state of a tied tensor in one place
    on one stage's ranks and in another on the other's. The stage then writes it that calls it by its own name.
    """
    boxes = {(item.index, item.tensor_data.chunk.sizes): item.tensor_data.size
             for plan in all_plans for item in plan.items}
    held: Counter[str] = Counter()
    for index, sizes in boxes:
        held[index.fqn] += math.prod(sizes)
    twice = {index.fqn for (index, _), size in boxes.items() if held[index.fqn] > math.prod(size)}
    return [replace(plan, items=[item for item in plan.items if item.index.fqn not in twice & plan.planner_data])
            for plan in all_plans]


def pieces_to_write(state: State) -> Iterator[tuple[str, Piece]]:
    """Every piece that this rank may have to write. An empty one only where the whole tensor is empty."""
    for name, pieces in state.items():
        yield from ((name, p) for p in pieces if p.tensor.numel() or not math.prod(p.shape))


def write_item(name: str, piece: Piece) -> WriteItem:
    """One piece as DCP's order to write it: its name, its box in the whole tensor, its dtype."""
    chunk = ChunkStorageMetadata(torch.Size(piece.offsets), piece.tensor.shape)
    data = TensorWriteData(chunk, TensorProperties(dtype=piece.tensor.dtype), torch.Size(piece.shape))
    return WriteItem(MetadataIndex(name, piece.offsets), WriteItemType.SHARD, tensor_data=data)


def require_whole(metadata: Metadata) -> None:
    """ValueError where a tensor is not wholly in the pieces. torch asks the same, but not of a single rank."""
    for name, of_one in metadata.state_dict_metadata.items():
        held, all_of_it = sum(math.prod(chunk.sizes) for chunk in of_one.chunks), math.prod(of_one.size)
        if held != all_of_it:
            raise ValueError(f"the ranks' pieces of {name} have {held} numbers: expected {all_of_it}, those of a "
                             f"tensor of shape {list(of_one.size)}")


def write_pieces(folder: Path, state: State, borrowed: set[str], group: dist.ProcessGroup | None) -> None:
    """Write the ranks' `state` into `folder`, and wait until it is on the disk. Collective; None is one process alone.

    OSError or RuntimeError, on every rank, for what one rank could not write.
    """
    writer = FileSystemWriter(folder, single_file_per_rank=True, sync_files=True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is (disabled|unavailable)")  # one process is fine
            save(state, storage_writer=writer, planner=SavePieces(borrowed), process_group=group, no_dist=group is None)
    except CheckpointException as error:  # it is a BaseException, and says everything once a rank
        rank, (cause, _) = min(error.failures.items(), key=lambda item: item[0])
        kind = OSError if isinstance(cause, OSError) else RuntimeError
        raise kind(f"the checkpoint could not be written. Rank {rank} said: {type(cause).__name__}: {cause}") from error
