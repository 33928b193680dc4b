"""What real ranks hold is said, and drawn cell by cell where it belongs, before and after."""

from itertools import product

import pytest
import torch
import torch.distributed as dist

from course_lib.collectives import pairwise_all_to_all, ring_all_reduce, ring_reduce_scatter
from course_lib.collectives.holdings import Share
from course_lib.plots.cells import HoldingsSheet
from course_lib.runtime import launch
from course_lib.widgets import Holdings, HoldingsPicture, each_collective, label_chunks, who_holds_what


def buffers(num_ranks):
    return [label_chunks(rank, num_ranks) for rank in range(num_ranks)]


def test_what_cannot_be_drawn_is_refused():
    for words, given in (("2 ranks before and 3 after", (buffers(2), buffers(3))),
                         ("title=''", (buffers(2), buffers(2), ""))):
        with pytest.raises(ValueError, match=words):
            who_holds_what(*given)
    with pytest.raises(ValueError, match="expected the same names on all ranks"):
        each_collective([{"Sum": (None, None)}, {"Max": (None, None)}], "Two")


def some_collectives():
    mine = label_chunks(dist.get_rank(), 3)
    summed = mine.clone()
    ring_all_reduce(summed)
    return mine, summed, ring_reduce_scatter(mine), pairwise_all_to_all(mine)


def test_collectives_on_real_ranks_say_what_they_hold_before_and_after_and_several_are_one_text():
    mine, summed, scattered, transposed = zip(*launch(some_collectives, world_size=3))
    texts = [f"{name}: before, ranks 0 to 2 each: 3 chunks of its own; after, ranks 0 to 2 each: {after}"
             for name, after in (("Sum", "3 chunks, each the sum of 3 ranks"), ("Part", "1 chunk, the sum of 3 ranks"),
                                 ("Swap", "the chunk of its own number from each of 3 ranks"))]
    after = {"Sum": summed, "Part": scattered, "Swap": transposed}
    assert [repr(who_holds_what(mine, held, name)) for name, held in after.items()] == texts
    swapped = who_holds_what(mine, transposed).after
    assert swapped.cells[2] == ((Share(0, 2),), (Share(1, 2),), (Share(2, 2),))
    of_ranks = [{name: (mine[rank], held[rank]) for name, held in after.items()} for rank in range(3)]
    assert repr(each_collective(of_ranks, "Three")) == f"Three. {'. '.join(texts)}"


def test_holdings_can_be_given_instead_of_buffers():
    held = Holdings.of(buffers(2))
    assert who_holds_what(held, buffers(2), "Same") == HoldingsPicture("Same", held, held)


def expected(side, held, left, top, width, height, lanes):
    """Keys, roles and corners counted by hand: a cell has 6 % around it, a share 10 % of its shorter side."""
    for (rank, row), slot in product(enumerate(held.cells), range(held.num_slots)):
        x, y, w, h = left + (slot + 0.06) * width, top + (rank + 0.06) * height, 0.88 * width, 0.88 * height
        yield f"{side} {rank}.{slot}", "spare", (x, y, w, h)
        for share in row[slot]:
            lane, above = (h / lanes, share.rank * h / lanes) if lanes else (h, 0)
            inset = 0.1 * min(w, lane)
            yield (f"{side} {rank}.{slot} of {share.rank}", f"rank {share.rank % 8}",
                   (x + inset, y + above + inset, w - 2 * inset, lane - 2 * inset))


@pytest.mark.parametrize("n, is_sum, width, on_sheet, height", [  # of a slot; 780 units for both sides, 330 on a sheet
    (1, True, 80, 40, 28), (2, True, 80, 40, 28), (5, True, 78, 33, 42.5), (5, False, 78, 33, 42.5),
    (18, True, 780 / 36, 330 / 36, 153)])
def test_every_cell_stands_at_its_rank_and_slot_and_every_share_at_the_height_of_its_rank(n, is_sum, width, on_sheet,
                                                                                         height):
    mine, after = buffers(n), [sum(buffers(n))] + [None] * (n - 1) if is_sum else buffers(n)[::-1]
    one, lanes = who_holds_what(mine, after, "One"), n if is_sum and n > 1 else 0
    two = HoldingsSheet("Two", (one, who_holds_what(mine, after, "Other")))
    for scene, wide, lefts in ((one.scene(), width, {"One": 80}), (two.scene(), on_sheet, {"One": 80, "Other": 530})):
        marks = {mark.key: mark for mark in scene.marks}
        cells = [(key, *rest) for name, left in lefts.items() for side, held, x in (
                     ("before", one.before, left), ("after", one.after, left + n * wide + 40))
                 for key, *rest in expected(f"{name} {side}", held, x, 52, wide, height, lanes)]
        assert len(cells) == sum(mark.kind == "rect" for mark in scene.marks) - n * len(lefts)  # but the ranks' own
        for key, role, at in cells:
            assert marks[key].role == role and marks[key].at == pytest.approx(at, abs=0.006), key
        for rank in range(n):
            assert marks[f"One rank {rank} is"].text == f"rank {rank}"
            assert marks[f"One rank {rank}"].at[1] + 6 == pytest.approx(52 + (rank + 0.5) * height)


def test_what_was_mixed_up_or_counted_twice_is_marked():
    one, two = buffers(2)
    mixed, twice = (who_holds_what([one, two], [held, two]).scene().marks for held in (one.flip(0) + two, one + one))
    assert [mark.role for mark in mixed if mark.key.startswith("Who holds what after 0.")].count("wrong") == 2
    assert [mark.text for mark in twice if "after 0" in mark.key and mark.kind == "text"] == ["2 times"] * 2
    assert repr(Holdings.of([one * 2 + two, two + two.flip(0)])) == (
        "rank 0: 2 chunks, each the sum of 2 ranks, some shares counted more than once; "
        "rank 1: 2 chunks, different ones mixed up")


@pytest.mark.parametrize("wrong, message", [
    (lambda: label_chunks(4, 4), "rank=4: expected 0 to 3"),
    (lambda: label_chunks(0, 19), "num_ranks=19: expected 1 to 18"),
    (lambda: label_chunks(0, 2, 0), "num_chunks=0"),
    (lambda: Holdings.of([torch.ones(2, 2), None]), "float32.* expected whole numbers"),
    (lambda: Holdings.of([torch.tensor(3), None]), "int64.* expected whole numbers"),
    (lambda: Holdings.of([-label_chunks(0, 2), None]), "holds -1 in a column of chunk 0"),
    (lambda: Holdings.of([label_chunks(2, 3), None]), r"expected a sum of 10\*\*rank over the 2 ranks 0 to 1"),
    (lambda: Holdings.of([label_chunks(0, 3)], num_slots=2), "rank 0 has 3 rows: expected at most num_slots=2"),
    (lambda: Holdings.of([]), "no buffers"),
])
def test_labels_and_buffers_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()
