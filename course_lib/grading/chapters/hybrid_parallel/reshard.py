"""Exercise 9.5: a checkpoint was written by one layout and is read by another: which slices of which files?

    offsets, shape  of a piece: where its first number stands in the whole tensor, and how far it goes, dim by dim
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.chapters.split import normal
from course_lib.grading.compare import plain
from course_lib.grading.exercise import Exercise, Traffic, Trial, ranks_of
from course_lib.grading.spent import Spent, amount, most

Inputs = list[dict[str, Any]]
Box = tuple[list[int], list[int]]  # offsets and shape


class Resharded(Exercise):
    number = "9.5"
    function = "my_resharded"
    points = 4
    compared = "returned"
    right = "the pieces are right"
    budget = "no more bytes read than the piece has, on each rank"
    hints = (
        "A file's piece and the one that is wanted are two boxes in the same tensor. Where do they overlap, in one "
        "dim? The same question for every dim answers it for the box.",
        "In each dim the overlap begins at the larger of the two offsets and ends at the smaller of the two ends. "
        "Where it does not end before it begins in any of them, read it. It has three addresses: in the tensor, in the "
        "file (minus the file's offsets), in the new piece (minus the new offsets).",
        "piece = torch.empty(shape, dtype=torch.float64)\n"
        "for file, (file_offsets, file_shape) in saved.items():\n"
        "    start = [max(a, b) for a, b in zip(offsets, file_offsets)]\n"
        "    stop = [min(...) for ...]\n"
        "    if all(a < b for a, b in zip(start, stop)):\n"
        "        place = tuple(slice(a - o, b - o) for a, b, o in zip(start, stop, offsets))\n"
        "        piece[place] = read(file, ..., ...)\n"
        "return piece",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        # old and new: into how many pieces each dim is cut
        cases = (((6, 4), (2, 1), (3, 1)), ((4, 6), (3, 1), (1, 2)), ((7,), (3,), (2,)), ((8, 2), (4, 1), (2, 1)),
                 ((5, 7), (2, 2), (1, 3)), ((4, 3, 5), (2, 1, 2), (1, 3, 1)), ((4, 4), (2, 2), (1, 1)),
                 ((96, 256), (3, 1), (2, 2)))
        made = []
        for shape, old, new in cases:
            whole = normal(generator, *shape)
            boxes = boxes_of(shape, old)
            # named in another order than the pieces lie in
            saved = {f"__{number}_0.distcp": list(box) for number, box in enumerate([*boxes[1:], boxes[0]])}
            contents = {file: cut(whole, *box) for file, box in saved.items()}
            wanted = boxes_of(shape, new)
            made.append(Trial([{"offsets": offsets, "shape": extent, "saved": saved, "contents": contents}
                               for offsets, extent in wanted],
                              f"{ranks_of(len(wanted))}, {words(shape)} cut {words(old)}, wanted {words(new)}"))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        num_bytes: list[int] = []

        def read(file: str, start: Sequence[int], stop: Sequence[int]) -> Tensor:
            found = slice_read(inputs["contents"], file, start, stop)
            num_bytes.append(found.nbytes)
            return found

        saved = {file: (list(offsets), list(shape)) for file, (offsets, shape) in inputs["saved"].items()}
        returned = function(list(inputs["offsets"]), list(inputs["shape"]), saved, read)
        return {"returned": plain(returned), "read": sum(num_bytes)}

    def expected(self, inputs: Inputs) -> list[Tensor]:
        return assembled(inputs)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Tensor]]]:
        right = assembled(inputs)
        yield ("only the first file that overlaps was read: a piece may lie in several",
               assembled(inputs, most_files=1))
        yield ("every part is written at the corner of the new piece, over the one before: its place there is where "
               "it stands in the tensor, minus the new offsets", assembled(inputs, corner=True))
        contents, saved = inputs[0]["contents"], inputs[0]["saved"]
        for dim in range(len(right[0].shape)):
            try:
                joined = torch.cat([contents[file] for file in sorted(saved)], dim)
                given = [cut(joined, rank["offsets"], rank["shape"]) for rank in inputs]
            except (RuntimeError, IndexError):
                continue
            yield ("the files are put together in the order of their names: what a file has is said by its offsets",
                   given)
        yield "every rank has rank 0's piece: `offsets` says which one is wanted", [right[0]] * len(right)

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> Sequence[Spent]:
        read, wanted = [answer["read"] for answer in answers], [tensor.nbytes for tensor in assembled(trial.inputs)]
        rank = most(read, wanted)
        return [Spent("read", read[rank], wanted[rank], rank=rank, claimed=True,
                      why=f"of {amount(total(trial.inputs))} in the files, read the slices that overlap with the "
                          "piece, each once")]


def total(inputs: Inputs) -> int:
    return sum(tensor.nbytes for tensor in inputs[0]["contents"].values())


def words(counts: Sequence[int]) -> str:
    """2 x 3"""
    return " x ".join(map(str, counts))


def boxes_of(shape: Sequence[int], parts: Sequence[int]) -> list[Box]:
    """The pieces of a tensor whose dims are cut into so many, the last dim the fastest; sizes may differ by one."""
    boxes: list[Box] = [([], [])]
    for size, n in zip(shape, parts):
        edges = [size * i // n for i in range(n + 1)]
        boxes = [([*offsets, first], [*extent, last - first]) for offsets, extent in boxes
                 for first, last in zip(edges, edges[1:])]
    return boxes


def cut(tensor: Tensor, offsets: Sequence[int], shape: Sequence[int]) -> Tensor:
    return tensor[tuple(slice(offset, offset + size) for offset, size in zip(offsets, shape))].clone()


def slice_read(contents: dict[str, Tensor], file: str, start: Sequence[int], stop: Sequence[int]) -> Tensor:
    """On a rank: a part of a file. ValueError for what is not in it."""
    if file not in contents:
        raise ValueError(f"read: there is no file {file!r}")
    tensor, start, stop = contents[file], list(start), list(stop)
    if not len(start) == len(stop) == tensor.dim():
        raise ValueError(f"read of {file}: expected a start and a stop for each of its {tensor.dim()} dims, given "
                         f"{start} and {stop}")
    if any(not 0 <= a < b <= size for a, b, size in zip(start, stop, tensor.shape)):
        raise ValueError(f"read of {file} from {start} to {stop}: it has {list(tensor.shape)}. start and stop count "
                         "from the file's own corner, and start lies before stop in every dim")
    return cut(tensor, start, [b - a for a, b in zip(start, stop)])


def assembled(inputs: Inputs, most_files: int | None = None, corner: bool = False) -> list[Tensor]:
    """Each rank's piece; arguments but the first are mistakes."""
    pieces = []
    for rank in inputs:
        offsets, shape = rank["offsets"], rank["shape"]
        piece = torch.zeros(shape, dtype=torch.float64)
        used = 0
        for file, (its_offsets, its_shape) in rank["saved"].items():
            start = [max(a, b) for a, b in zip(offsets, its_offsets)]
            stop = [min(a + n, b + m) for a, n, b, m in zip(offsets, shape, its_offsets, its_shape)]
            if used == most_files or any(a >= b for a, b in zip(start, stop)):
                continue
            used += 1
            found = cut(rank["contents"][file], [a - o for a, o in zip(start, its_offsets)],
                        [b - a for a, b in zip(start, stop)])
            at = [0] * len(start) if corner else [a - o for a, o in zip(start, offsets)]
            piece[tuple(slice(a, a + n) for a, n in zip(at, found.shape))] = found
        pieces.append(piece)
    return pieces
