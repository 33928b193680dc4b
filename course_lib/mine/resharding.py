"""The place of 9.5: each box that a rank wants from a checkpoint, out of all old boxes that overlap it."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import checkpoint
from course_lib.checkpoint import loading
from course_lib.checkpoint.piece import Piece, State
from course_lib.mine.book import Book
from course_lib.mine.replaced import Place, stand_in


def reshard(book: Book) -> Iterator[Place]:
    """The place of 9.5: what a rank reads of a checkpoint that another layout wrote."""
    course = loading.load_and_verify

    def load_and_verify(*arguments: Any) -> checkpoint.Loaded:
        from course_lib.checkpoint import planners  # which takes torch a second to import

        with stand_in([Place(planners, "read_pieces", reading(book, planners))]):
            return course(*arguments)

    yield Place(loading, "load_and_verify", load_and_verify)  # which checkpoint.load calls
    yield Place(checkpoint, "load_and_verify", load_and_verify)


def reading(book: Book, planners: Any) -> Callable:
    """planners.read_pieces, with the reader's 9.5 in it."""
    course = planners.read_pieces

    def read_pieces(folder: Path, state: State, sources: Mapping[str, str], group: dist.ProcessGroup | None) -> None:
        saved, others = planners.saved_tensors(folder), {}
        for name, pieces in state.items():
            old, has_boxes = saved[sources.get(name, name)], pieces and pieces[0].tensor.is_floating_point()
            if not has_boxes or not pieces[0].shape:
                others[name] = pieces  # a number, or the state of a generator: nobody cuts these
                continue
            boxes = OldBoxes(course, folder, sources.get(name, name), old)
            for piece in pieces:
                mine = book.of("9.5")(list(piece.offsets), list(piece.tensor.shape), boxes.saved, boxes.read)
                book.require(mine.shape == piece.tensor.shape, "9.5", f"it returned {list(mine.shape)} of {name}")
                piece.tensor.copy_(mine)
        course(folder, others, sources, group)

    return read_pieces


class OldBoxes:
    """The boxes of one saved tensor, as 9.5 knows them: a name for each, where it lies, and `read` for a part of it."""

    def __init__(self, course: Callable, folder: Path, name: str, old: Any) -> None:
        self.course, self.folder, self.name, self.old = course, folder, name, old
        self.saved = {f"box {i}": (list(chunk.offsets), list(chunk.sizes)) for i, chunk in enumerate(old.chunks)}
        self.boxes: dict[str, Tensor] = {}

    def read(self, box: str, start: list[int], stop: list[int]) -> Tensor:
        """The part from `start` to `stop` of a saved box, in float64; each box is read from disk once."""
        if box not in self.boxes:
            offsets, sizes = self.saved[box]
            whole = torch.empty(sizes, dtype=self.old.properties.dtype)
            self.course(self.folder, {self.name: [Piece(whole, tuple(self.old.size), tuple(offsets))]}, {}, None)
            self.boxes[box] = whole
        return self.boxes[box][tuple(slice(int(a), int(b)) for a, b in zip(start, stop))].double()
