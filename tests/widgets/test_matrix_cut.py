"""MatrixCut shows what happens: its plans, carried out with numbers, give the product, and send what they say."""

from fractions import Fraction

import numpy as np
import pytest

from course_lib.pictures.figures import to_png
from course_lib.widgets import MatrixCut
from course_lib.widgets.base import BadParameter
from course_lib.widgets.matrix_cut import ORDERS, PART, RANKS, SUMMAND, WHOLE, WIDER, product_steps, sent_in_all
from tests.widgets.pictures import size_and_colours

every_order = pytest.mark.parametrize("first, second", ORDERS)


def gelu(x):
    return x / (1 + np.exp(-1.702 * x))


def sent_by_hand(first, second, t):
    """All-reduce 2(t-1)/t, all-gather (t-1)/t of what it makes whole: y is as large as x, h four times."""
    to_y = {"columns": 1, "rows": 2}[second]
    to_h = {("columns", "rows"): 0, ("columns", "columns"): 1}.get((first, second), 2)
    return Fraction(t - 1, t) * (to_y + 4 * to_h)


@every_order
@pytest.mark.parametrize("t", RANKS)
def test_what_is_sent_is_the_closed_form(first, second, t):
    assert sent_in_all(first, second, t) == sent_by_hand(first, second, t)


def test_columns_then_rows_send_least():
    sent = {order: sent_in_all(*order, 4) for order in ORDERS}
    assert min(sent, key=sent.get) == ("columns", "rows") and sent["columns", "rows"] == Fraction(3, 2)
    assert sorted(sent.values()) == [Fraction(3, 2), Fraction(15, 4), Fraction(27, 4), Fraction(15, 2)]


@every_order
@pytest.mark.parametrize("t", RANKS)
def test_the_steps_carried_out_on_numbers_give_the_product(first, second, t):
    random = np.random.default_rng(0)
    x, A, B = random.normal(size=(3, 8)), random.normal(size=(8, 8 * WIDER)), random.normal(size=(8 * WIDER, 8))
    weights = {name: np.split(matrix, t, 1 if cut == "columns" else 0)
               for name, matrix, cut in (("A", A, first), ("B", B, second))}
    here = {"x": [x] * t}
    before = product_steps(first, second, t)[0].held
    for step in product_steps(first, second, t)[1:]:
        changed = [name for name in step.held if step.held[name] != before.get(name)]
        if "GeLU of" in step.said and not changed:
            here["h"] = [gelu(one) for one in here["h"]]
        for name in changed:
            assert name in "xhy"
            if step.op == "all-reduce":
                here[name] = [sum(here[name])] * t
            elif step.op == "all-gather":
                here[name] = [np.concatenate(here[name], 1)] * t
            elif name in here:  # each takes its features
                here[name] = [np.split(one, t, 1)[rank] for rank, one in enumerate(here[name])]
            else:
                left, by = ("x", "A") if name == "h" else ("h", "B")
                here[name] = [one @ weight for one, weight in zip(here[left], weights[by])]
        before = step.held
    assert before["y"] == WHOLE
    for one in here["y"]:
        np.testing.assert_allclose(one, gelu(x @ A) @ B)


@every_order
def test_gelu_never_meets_a_summand(first, second):
    for step in product_steps(first, second, 4):
        if step.said.startswith("GeLU of") and not step.op:
            assert step.held["h"] in (WHOLE, PART) and step.held["h"] != SUMMAND


def test_the_headline_is_the_finding():
    assert repr(MatrixCut(step=4)) == (
        "MatrixCut, y = GeLU(x A) B on 4 ranks, A by columns, B by rows: Columns, then rows: 1 collective forward, "
        "each rank sends 1.5 times x; step 4 of 4: all-reduce y; sent so far: 1.5 times x")


@pytest.mark.parametrize("t", RANKS)
def test_parts_lie_inside_their_matrix_and_cover_it_together(t):
    for first, second in ORDERS:
        marks = {mark.key: mark.at for mark in MatrixCut.scene({"first": first, "second": second, "t": t}).marks}
        for name in "AB":
            areas = [marks[f"rank {rank} {name} held"][2] * marks[f"rank {rank} {name} held"][3] for rank in range(t)]
            whole = marks[f"rank 0 {name}"]
            assert sum(areas) == pytest.approx(whole[2] * whole[3], rel=1e-3)


def test_the_picture_has_every_colour():
    (width, height), colours = size_and_colours(to_png(MatrixCut(step=3).picture()))
    assert width > 900 and height > 300 and colours > 6


def test_what_cannot_be_is_refused_and_the_old_value_stays():
    widget = MatrixCut("rows", "rows", 2, 7)
    for name, value, words in (("first", "blocks", "expected one of"), ("t", 3, "expected one of"),
                               ("step", 8, "from 0 to 7"), ("first", "columns", "step=7: expected")):
        with pytest.raises(BadParameter, match=words):
            setattr(widget, name, value)
    assert (widget.first, widget.second, widget.t, widget.step) == ("rows", "rows", 2, 7)
