"""Pieces on disk: torch.distributed.checkpoint writes and reads the files, and this tells it where our pieces lie.

    write   every rank writes its share of the boxes into a file of its own; rank 0 writes `.metadata`, their list
    read    for each box that a rank wants: the old boxes that overlap it, and of them the part that does

torch calls the one who knows what has to be written a planner. Its own knows DTensors; ours knows pieces. The files
are torch's: any program with torch reads them, without this package.

Source: torch.distributed.checkpoint; Wan et al. 2024, "ByteCheckpoint", describes the same way to reshard.
"""

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import (
    CheckpointException,
    ChunkStorageMetadata,
    DefaultLoadPlanner,
    DefaultSavePlanner,
    FileSystemReader,
    FileSystemWriter,
    LoadPlan,
    Metadata,
    SavePlan,
    TensorStorageMetadata,
    WriteItem,
    load,
    save,
)
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from course_lib.checkpoint.piece import Piece, State


def chunk_of(piece: Piece) -> ChunkStorageMetadata:
    """A box, as torch's files describe it."""
    return ChunkStorageMetadata(torch.Size(piece.offsets), piece.tensor.shape)


def by_box(state: State) -> dict[MetadataIndex, Tensor]:
    """Each piece of a state under the index that DCP (torch.distributed.checkpoint) gives it: name and offsets."""
    return {MetadataIndex(name, piece.offsets): piece.tensor for name, pieces in state.items() for piece in pieces}


class SavePieces(DefaultSavePlanner):
    """What this rank writes: what it holds alone, and its share of what others hold as well. Of the ranks that hold a
    box, DCP lets the one write it that has least so far.
    """

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> SavePlan:
        """All pieces that this rank holds, as a plan for DCP, the largest first: the small ones then even it out."""
        self.tensors, held = by_box(self.state_dict), pieces_to_write(self.state_dict)
        self.plan = SavePlan([write_item(*each) for each in sorted(held, key=lambda each: -each[1].tensor.nbytes)])
        return self.plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """All ranks' plans, checked together, and the metadata. ValueError where pieces do not make up a whole tensor.
        """
        plans, metadata = super().create_global_plan(all_plans)
        metadata.planner_data = None  # it maps nested names, and ours are flat
        require_whole(metadata)
        return plans, metadata

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        """The tensor behind an index of the plan, when DCP comes to write it."""
        return self.tensors[index]


def pieces_to_write(state: State) -> Iterator[tuple[str, Piece]]:
    """Every piece that this rank may have to write. An empty one only where the whole tensor is empty."""
    for name, pieces in state.items():
        yield from ((name, p) for p in pieces if p.tensor.numel() or not math.prod(p.shape))


def write_item(name: str, piece: Piece) -> WriteItem:
    """One piece as DCP's order to write it: its name, its box in the whole tensor, its dtype."""
    data = TensorWriteData(chunk_of(piece), TensorProperties(dtype=piece.tensor.dtype), torch.Size(piece.shape))
    return WriteItem(MetadataIndex(name, piece.offsets), WriteItemType.SHARD, tensor_data=data)


def require_whole(metadata: Metadata) -> None:
    """ValueError where a tensor is not wholly in the pieces. torch asks the same, but not of a single rank."""
    for name, of_one in metadata.state_dict_metadata.items():
        held, all_of_it = sum(math.prod(chunk.sizes) for chunk in of_one.chunks), math.prod(of_one.size)
        if held != all_of_it:
            raise ValueError(f"the ranks' pieces of {name} have {held} numbers: expected {all_of_it}, those of a "
                             f"tensor of shape {list(of_one.size)}")


class LoadPieces(DefaultLoadPlanner):
    """What this rank reads: for each of its pieces all old boxes that overlap it. Pieces are filled in place."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.sources = sources

    def set_up_planner(self, state_dict: State, metadata: Metadata | None = None, is_coordinator: bool = False) -> None:
        """Called by DCP before it plans: remembers the pieces to fill, and the metadata of what was saved."""
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator
        self.tensors = by_box(state_dict)

    def create_local_plan(self) -> LoadPlan:
        """Which parts of which saved boxes this rank reads, into which of its pieces; empty pieces read nothing."""
        saved = self.metadata.state_dict_metadata
        items = []
        for name, pieces in self.state_dict.items():
            source = self.sources.get(name, name)
            wanted = [chunk_of(piece) for piece in pieces if piece.tensor.numel()]
            for item in create_read_items_for_chunk_list(name, saved[source], wanted):
                items.append(replace(item, storage_index=replace(item.storage_index, fqn=source)))
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """The tensor behind an index of the local plan, when DCP comes to fill it."""
        return self.tensors[index]


def write_pieces(folder: Path, state: State, group: dist.ProcessGroup | None) -> None:
    """Write the ranks' `state` into `folder`, and wait until it is on the disk. Collective; None is one process alone.

    RuntimeError, on every rank, for what one rank could not write.
    """
    writer = FileSystemWriter(folder, single_file_per_rank=True, sync_files=True)
    with torchs_troubles("written"):
        save(state, storage_writer=writer, planner=SavePieces(), process_group=group, no_dist=group is None)


def read_pieces(folder: Path, state: State, sources: Mapping[str, str], group: dist.ProcessGroup | None) -> None:
    """Fill the pieces of `state` from the files in `folder`. Collective; None is one process alone.

    sources: names that are read from another name. Names and shapes have been looked at: see loading.py.
    """
    with torchs_troubles("read"):
        load(dict(state), storage_reader=FileSystemReader(folder), planner=LoadPieces(sources), process_group=group,
             no_dist=group is None)


@contextmanager
def torchs_troubles(done: str) -> Iterator[None]:
    """torch's exception is a BaseException and says everything once a rank; its warnings are of what we mean to do."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is (disabled|unavailable)")  # one process is fine
            warnings.filterwarnings("ignore", "Detected mismatched keys")  # stages hold different layers
            yield
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items(), key=lambda item: item[0])
        raise RuntimeError(f"the checkpoint could not be {done}. Rank {rank} said: {type(cause).__name__}: {cause}"
                           ) from error


def saved_tensors(folder: Path) -> dict[str, TensorStorageMetadata]:
    """Name -> size, dtype and boxes of every tensor in `folder`."""
    return dict(FileSystemReader(folder).read_metadata().state_dict_metadata)
