"""What real ranks hold is drawn, before and after."""

import sys

import pytest
import torch.distributed as dist

from course_lib.collectives import pairwise_all_to_all, ring_all_reduce, ring_reduce_scatter
from course_lib.collectives.holdings import Share
from course_lib.runtime import launch
from course_lib.widgets import Holdings, HoldingsPicture, each_collective, label_chunks, who_holds_what
from tests.widgets.pictures import size_and_colours


def buffers(num_ranks):
    return [label_chunks(rank, num_ranks) for rank in range(num_ranks)]


def test_different_ranks_before_and_after_and_an_empty_title_are_refused():
    with pytest.raises(ValueError, match="2 ranks before and 3 after"):
        who_holds_what(buffers(2), buffers(3))
    with pytest.raises(ValueError, match="title=''"):
        who_holds_what(buffers(2), buffers(2), "")


def some_collectives():
    mine = label_chunks(dist.get_rank(), 3)
    summed = mine.clone()
    ring_all_reduce(summed)
    return mine, summed, ring_reduce_scatter(mine), pairwise_all_to_all(mine)


def test_collectives_on_real_ranks_draw_themselves_before_and_after():
    mine, summed, scattered, transposed = zip(*launch(some_collectives, world_size=3))
    before = "before, ranks 0 to 2 each: 3 chunks of its own; after, ranks 0 to 2 each: "
    assert repr(who_holds_what(mine, summed, "Sum")) == f"Sum: {before}3 chunks, each the sum of 3 ranks"
    assert repr(who_holds_what(mine, scattered, "Sum")) == f"Sum: {before}1 chunk, the sum of 3 ranks"
    assert repr(who_holds_what(mine, transposed, "Swap")) == (
        f"Swap: {before}the chunk of its own number from each of 3 ranks")
    swapped = who_holds_what(mine, transposed).after
    assert swapped.cells[2] == ((Share(0, 2),), (Share(1, 2),), (Share(2, 2),))


@pytest.mark.parametrize("num_ranks", [1, 2, 8, 18])
def test_the_picture_shows_every_rank_in_its_colour(num_ranks):
    picture = who_holds_what(buffers(num_ranks), [sum(buffers(num_ranks))] + [None] * (num_ranks - 1))
    (_, height), colours = size_and_colours(picture._repr_mimebundle_()["image/png"])
    assert height > 100 and colours >= min(num_ranks, 8) + 1


def test_holdings_can_be_given_instead_of_buffers():
    held = Holdings.of(buffers(2))
    assert who_holds_what(held, buffers(2), "Same") == HoldingsPicture("Same", held, held)


@pytest.mark.parametrize("num_ranks", [1, 2, 4, 8])
def test_several_collectives_are_one_picture_and_one_text(num_ranks):
    mine, total = buffers(num_ranks), sum(buffers(num_ranks))
    sheet = each_collective([{"Sum": (each, total), "Nothing": (each, None)} for each in mine], "Two")
    alone = [who_holds_what(mine, after, name) for name, after in (("Sum", [total] * num_ranks),
                                                                   ("Nothing", [None] * num_ranks))]
    assert repr(sheet) == f"Two. {alone[0]!r}. {alone[1]!r}"
    (_, height), colours = size_and_colours(sheet._repr_mimebundle_()["image/png"])
    assert height > 100 and colours >= num_ranks + 1


def test_ranks_that_name_different_collectives_are_refused():
    with pytest.raises(ValueError, match="expected the same names on all ranks"):
        each_collective([{"Sum": (None, None)}, {"Max": (None, None)}], "Two")


def widget_libraries_after_labelling():
    label_chunks(0, 1)
    return sorted({"anywidget", "ipywidgets"} & sys.modules.keys())


def test_a_rank_that_labels_its_buffer_does_not_load_the_widget_libraries():
    assert launch(widget_libraries_after_labelling, world_size=1) == [[]]
