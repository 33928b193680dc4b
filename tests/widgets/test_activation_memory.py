"""ActivationMemory shows the chapter's arithmetic: bars are its terms, and ways are the rows of the paper's table."""

from itertools import product

import pytest

from course_lib import facts
from course_lib.costs.activations import RECOMPUTE, activation_bytes_per_layer
from course_lib.pictures.figures import to_png
from course_lib.pictures.palette import BLUE
from course_lib.pictures.roles import ROLES
from course_lib.widgets import ActivationMemory
from course_lib.widgets.activation_memory import (
    CORE,
    LEFT,
    LENGTHS,
    MODELS,
    RIGHT,
    SPLIT,
    SPLITS,
    WHOLE,
    bytes_of_layer,
    layer,
    scene_of,
    with_dropout,
)
from course_lib.widgets.base import BadParameter
from tests.widgets.pictures import size_and_colours


def test_the_terms_add_up_to_what_the_formula_keeps():
    for model, split, recompute in product(MODELS, SPLITS, RECOMPUTE):
        t, sequence_parallel = SPLITS[split]
        shown = layer(model, 4096, split, recompute)
        assert shown.total == activation_bytes_per_layer(
            facts.model(model).shape, 1, 4096, recompute=recompute, dropout=with_dropout(model), tensor_parallel=t,
            sequence_parallel=sequence_parallel), (model, split, recompute)


def test_the_ways_are_the_rows_of_table_2_of_korthikanti():
    shape, s, t = facts.model("GPT-3").shape, 2048, 8
    sbh, scores = s * shape.hidden_size, 5 * shape.num_heads * s * s
    by_the_paper = [34 * sbh + scores, 10 * sbh + (24 * sbh + scores) // t, (34 * sbh + scores) // t,
                    10 * sbh + 24 * sbh // t, 34 * sbh // t, 2 * sbh]
    assert [num_bytes for _, num_bytes, _ in layer("GPT-3", s, "nothing split", "none").ways] == by_the_paper


def test_the_bars_are_the_terms_on_one_scale():
    for recompute in RECOMPUTE:
        shown = layer("GPT-3", 2048, "tensor parallel, t = 4", recompute)
        marks = {mark.key: mark for mark in scene_of(shown).marks}
        longest = max(term.num_bytes for term in shown.terms)
        for term in shown.terms:
            for key, num_bytes in ((f"{term.name} kept", term.kept), (f"{term.name} in all", term.num_bytes)):
                assert marks[key].at[2] == pytest.approx((RIGHT - LEFT) * num_bytes / longest, abs=0.01)


def test_selective_recomputation_keeps_no_s_x_s_matrix_and_full_only_the_input():
    assert layer("GPT-3", 2048, "nothing split", "selective").core == 0 < layer("GPT-3", 2048, "nothing split",
                                                                               "none").core
    assert [term.name for term in layer("GPT-3", 2048, "nothing split", "full").terms if term.kept] == [
        "input of attention's norm"]


def test_no_kind_of_term_has_the_colour_of_the_chosen_way_of_parameters_or_of_gradients():
    looks = {ROLES[role].fill for role in (CORE, SPLIT, WHOLE)}
    assert len(looks) == 3 and not looks & {BLUE, ROLES["parameters"].fill, ROLES["gradients"].fill}


def test_the_headline_is_the_finding():
    assert repr(ActivationMemory()) == (
        "ActivationMemory, GPT-3, 2,048 tokens, nothing split, everything kept: 2.9 GB per layer on each rank, 100.0% "
        "of 2.9 GB; 70% of it are s × s matrices; 275 GB in 96 layers, of one row in 16 bits")


@pytest.mark.parametrize("model", MODELS)
def test_every_choice_can_be_shown(model):
    for tokens, split, recompute in product(LENGTHS, SPLITS, RECOMPUTE):
        scene = scene_of(layer(model, tokens, split, recompute))
        assert scene.key == f"{model} s={tokens} {split} {recompute}"
        assert bytes_of_layer(model, tokens, split, recompute) > 0


def test_the_picture_has_every_colour():
    (width, height), colours = size_and_colours(to_png(ActivationMemory(split="tensor parallel, t = 4").picture()))
    assert width > 900 and height > 500 and colours > 5


def test_what_is_unknown_is_refused_and_the_old_value_stays():
    widget = ActivationMemory()
    for name, value, words in (("model", "GPT-5", "expected one of"), ("split", "t = 3", "expected one of"),
                               ("recompute", "some", "expected one of"), ("tokens", 0, "whole number")):
        with pytest.raises(BadParameter, match=words):
            setattr(widget, name, value)
    assert (widget.model, widget.tokens, widget.split, widget.recompute) == ("GPT-3", 2048, "nothing split", "none")
