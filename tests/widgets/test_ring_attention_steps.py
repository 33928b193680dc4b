"""RingAttentionSteps shows the layouts of the library and the work of its formula."""

from itertools import product

import pytest

from course_lib.costs.context_parallel import LAYOUTS, visible_pairs
from course_lib.pictures.figures import to_png
from course_lib.sequence_parallel import layout_order
from course_lib.widgets import RingAttentionSteps
from course_lib.widgets.base import BadParameter
from course_lib.widgets.ring_attention_steps import PIECES, RANKS, TOKENS, holder, ring, scene_of, shares
from tests.widgets.pictures import size_and_colours


def test_pieces_are_held_by_the_ranks_of_the_librarys_layouts():
    for layout, R in product(LAYOUTS, RANKS):
        of_rank = [set(tokens.tolist()) for tokens in layout_order(PIECES * R, R, layout).chunk(R)]
        for piece in range(PIECES * R):
            assert piece in of_rank[holder(layout, R, piece)], (layout, R, piece)


def test_in_step_i_rank_r_has_the_keys_of_rank_r_minus_i_and_all_visible_pairs_are_computed_once():
    for layout, R in product(LAYOUTS, RANKS):
        shown = ring(layout, R, 0)
        for step, rank in product(range(R), repeat=2):
            assert shown.work[step][rank] == visible_pairs(rank, (rank - step) % R, TOKENS, R, layout)
        assert sum(shown.totals) == TOKENS * (TOKENS + 1) // 2


def test_contiguous_takes_almost_twice_the_time_of_even_work_and_the_others_none_more():
    for R in RANKS:
        assert ring("contiguous", R, 0).lock_step == pytest.approx(2 - 1 / R, rel=0.01)
        assert shares(ring("contiguous", R, 0))[-1] == pytest.approx(2 - 1 / R, rel=0.01)
        assert ring("zigzag", R, 0).lock_step == pytest.approx(1, abs=0.01)
        assert ring("striped", R, 0).lock_step == pytest.approx(1, abs=0.01)


def test_the_headline_is_the_finding():
    assert repr(RingAttentionSteps()) == (
        "RingAttentionSteps, contiguous on 4 ranks, step 1: The busiest rank does 75% more than the mean: 1.75 times "
        "the time of even work; step 1: rank 0 has rank 3's, rank 1 has rank 0's, rank 2 has rank 1's, and so on; "
        "nothing to compute on 1 of 4 ranks")


def test_on_the_way_back_each_step_adds_one_rank_to_the_gradient_that_follows_a_block():
    for R in RANKS:
        strips = [mark for mark in scene_of(ring("zigzag", R, 0)).marks if mark.key.startswith("gradients in step")]
        assert len(strips) == R * (R - 1)
        widths = {mark.key: mark.at[2] for mark in strips}
        whole = widths[f"gradients in step {R - 1} on 0"]
        for step, rank in product(range(1, R), range(R)):
            assert widths[f"gradients in step {step} on {rank}"] == pytest.approx(whole * step / (R - 1), abs=0.02)


def test_every_choice_can_be_shown():
    for layout, R in product(LAYOUTS, RANKS):
        for step in range(R):
            assert scene_of(ring(layout, R, step)).key == f"{layout} R={R} step={step}"


def test_the_picture_has_every_colour():
    (width, height), colours = size_and_colours(to_png(RingAttentionSteps().picture()))
    assert width > 900 and height > 400 and colours > 5


def test_a_step_that_is_not_there_is_refused_and_fewer_ranks_bring_the_last_step():
    widget = RingAttentionSteps(num_ranks=4, step=3)
    with pytest.raises(BadParameter, match="expected a whole number from 0 to 3"):
        widget.step = 4
    with pytest.raises(BadParameter, match="expected one of"):
        widget.token_layout = "random"
    ranks = next(control for control in widget.list_controls(widget.settings()) if control.label == "ranks")
    changes = [choice.change for choice in ranks.choices]
    assert changes[0] == {"num_ranks": 2, "step": 1} and widget.step == 3
