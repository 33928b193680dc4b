"""What real ranks hold is said, and drawn cell by cell where it belongs, before and after."""

import sys
from itertools import product

import pytest
import torch.distributed as dist
from matplotlib.colors import to_rgb

from course_lib.collectives import pairwise_all_to_all, ring_all_reduce, ring_reduce_scatter
from course_lib.collectives.holdings import Share
from course_lib.pictures.palette import rank_colour
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


def drawn(figure):
    """Of the cells, and of the shares in them: (left, top, width, height, colour) in inches."""
    found = {2: [], 3: []}
    for boxes in figure.axes[0].collections:
        for path, colour in zip(boxes.get_paths(), boxes.get_facecolor()):
            (left, top), (right, bottom) = path.vertices.min(0), path.vertices.max(0)
            found[boxes.get_zorder()].append((left, top, right - left, bottom - top, *colour[:3]))
    return found[2], found[3]


def expected(grids, width, height, lanes):
    """The same counted by hand: a cell has 6 % of its place around it, a share 10 % of its shorter side."""
    cells, shares = [], []
    for left, top, held in grids:
        for (rank, row), place in product(enumerate(held.cells), range(held.num_slots)):
            x, y, w, h = (left + (place + 0.06) * width, top + (rank + 0.06) * height, 0.88 * width, 0.88 * height)
            cells.append((x, y, w, h, *to_rgb("white" if row[place] else "#F4F4F4")))
            for share in row[place]:
                lane, above = (h / lanes, share.rank * h / lanes) if lanes else (h, 0)
                inset = 0.1 * min(w, lane)
                shares.append((x + inset, y + above + inset, w - 2 * inset, lane - 2 * inset,
                               *to_rgb(rank_colour(share.rank))))
    return cells, shares


@pytest.mark.parametrize("n, is_sum, size, on_sheet", [  # of a place; 7.05 inches for both sides, 3.19 on a sheet
    (1, True, (0.9, 0.42), (0.41, 0.26)), (2, True, (0.9, 0.42), (0.41, 0.26)), (5, True, (0.705, 0.5), (0.319, 0.425)),
    (5, False, (0.705, 0.34), (0.319, 0.425)), (18, True, (7.05 / 36, 0.6), (3.19 / 36, 1.53))])
def test_every_cell_stands_at_its_rank_and_place_and_every_share_at_the_height_of_its_rank(n, is_sum, size, on_sheet):
    mine, after = buffers(n), [sum(buffers(n))] + [None] * (n - 1) if is_sum else buffers(n)[::-1]
    picture = who_holds_what(mine, after, "One")
    start, lanes = 0.95 + max(0, 7.05 - 2 * n * size[0]) / 2, n if is_sum and n > 1 else 0
    size = size if lanes else (size[0], 0.34)
    grids = [(start, 0.5, picture.before), (start + n * size[0] + 0.8, 0.5, picture.after)]
    for found, right in zip(drawn(picture.figure()), expected(grids, *size, lanes)):
        assert found == [pytest.approx(each) for each in right]
    names = [text.get_position() for text in picture.figure().axes[0].texts if text.get_text().startswith("rank ")]
    assert names == [pytest.approx((start - 0.1, 0.5 + (rank + 0.5) * size[1])) for rank in range(n)]
    sheet = HoldingsSheet("Two", (picture, who_holds_what(mine, after, "Other")))
    grids = [(left + more, 0.62, held) for left in (0.95, 5.45) for more, held in (
        (0, picture.before), (n * on_sheet[0] + 0.36, picture.after))]
    for found, right in zip(drawn(sheet.figure()), expected(grids, *on_sheet, lanes)):
        assert found == [pytest.approx(each) for each in right]


def widget_libraries_after_labelling():
    label_chunks(0, 1)
    return sorted({"anywidget", "ipywidgets"} & sys.modules.keys())


def test_a_rank_that_labels_its_buffer_does_not_load_the_widget_libraries():
    assert launch(widget_libraries_after_labelling, world_size=1) == [[]]
