"""ZeroMemory shows the chapter's arithmetic: bars are its bytes, and the counts of devices are the first that fit."""

from itertools import product

import pytest

from course_lib import facts
from course_lib.pictures.figures import to_png
from course_lib.pictures.roles import ROLES
from course_lib.pictures.scene import width_of
from course_lib.widgets import ZeroMemory
from course_lib.widgets.base import BadParameter
from course_lib.widgets.zero_memory import COUNTS, LEFT, MODELS, RECIPES, RIGHT, USABLE, memory, need, scene_of
from course_lib.zero import PAPER_TABLE_1, device_memory
from tests.widgets.pictures import size_and_colours

MIXED, OFFLOADED = list(RECIPES)[:2]


def test_the_bars_are_the_bytes_of_the_formula():
    for stage in range(4):
        shown = need("Llama 2 7B", 8, stage, MIXED)
        assert shown.needed == device_memory(6.738e9, 8, stage, "mixed", "adam")
        widths = [mark.at[2] for mark in scene_of(shown).marks if mark.key.startswith("device: ")]
        share = sum(widths) / (RIGHT - LEFT)
        assert share == pytest.approx(min(1, shown.needed.total / shown.scale), abs=1e-4)


def test_a_model_of_the_papers_first_size_would_need_what_its_table_says():
    by_hand = tuple(device_memory(7.5e9, 64, stage).total / 1e9 for stage in (1, 2, 3))
    assert by_hand == pytest.approx(PAPER_TABLE_1["7.5B", 64], rel=0.003)


@pytest.mark.parametrize("model", ["Llama 2 7B", "GPT-3"])
@pytest.mark.parametrize("stage", range(4))
def test_a_gpu_fits_from_the_first_number_of_devices_that_leaves_a_tenth_free(model, stage):
    for recipe in RECIPES:
        totals = [memory(model, n, stage, recipe).total for n in range(1, 200)]
        for room in need(model, 8, stage, recipe).rooms:
            fits = [total <= USABLE * room.there for total in totals]
            assert room.fits == fits[7]
            first = room.fits_from or len(totals) + 1  # None: at no number
            assert first == fits.index(True) + 1 if True in fits else first > len(totals)


def test_what_no_number_of_devices_brings_down_is_what_the_stage_keeps_whole():
    P = 6.738e9
    assert [need("Llama 2 7B", 8, stage, MIXED).least.total for stage in range(4)] == [16 * P, 4 * P, 2 * P, 0]
    assert need("Llama 2 7B", 10_000, 2, MIXED).needed.total == pytest.approx(2 * P, rel=1e-3)


def test_offload_moves_the_state_to_the_host_and_without_zero_every_host_holds_all_of_it():
    shown = need("Llama 2 7B", 8, 2, OFFLOADED)
    assert shown.needed.optimizer_state == 0 and shown.needed.host > 0
    assert memory("Llama 2 7B", 8, 0, OFFLOADED) == memory("Llama 2 7B", 1, 1, OFFLOADED)
    hosts = [[mark.text for mark in scene_of(each).marks if mark.key == "host in all"]
             for each in (shown, need("Llama 2 7B", 8, 2, MIXED))]
    assert hosts == [["11.8 GB"], []]


def test_the_line_of_what_is_held_runs_through_no_verdict():
    crossed, cut = [], 0
    for num_devices in COUNTS:
        marks = scene_of(need("Llama 3 70B", num_devices, 2, MIXED)).marks
        lines = [mark.at for mark in marks if mark.role == "limit" and mark.kind == "line"]
        cut += len(lines) > 1
        for x, top, _, bottom in lines:
            crossed += [mark.text for mark in marks if mark.key.endswith(" verdict") and top < mark.at[1] < bottom
                        and mark.at[0] < x < mark.at[0] + width_of(mark.text, ROLES[mark.role].size)]
    assert not crossed and cut


def test_the_headline_is_the_finding():
    assert repr(ZeroMemory("Llama 3 70B", 64, 2)) == (
        "ZeroMemory, Llama 3 70B, ZeRO-2 on 64 devices, bf16 over fp32 master, Adam: 157 GB on each device; B200 has "
        "room for it; parameters 141 GB whole, gradients 2.21 GB, optimizer state 13.2 GB; never below 141 GB")
    assert "no GPU here has room" in repr(ZeroMemory("GPT-3", 1024, 1))


@pytest.mark.parametrize("model", MODELS)
def test_every_choice_can_be_shown(model):
    for stage, recipe in product(range(4), RECIPES):
        assert scene_of(need(model, 64, stage, recipe)).key == f"{model} n=64 stage={stage} {recipe}"


def test_every_gpu_of_facts_is_shown_once_the_smallest_first():
    names = [gpu.name for gpu in facts.ACCELERATORS if gpu.kind == "GPU"]
    rooms = need("GPT-3", 64, 3, MIXED).rooms
    assert [name for room in rooms for name in room.names] == sorted(
        names, key=lambda name: facts.accelerator(name).memory_bytes)


@pytest.mark.parametrize("parameters", [{}, {"recipe": OFFLOADED}, {"model": "GPT-3", "stage": 0}])
def test_the_picture_has_every_colour(parameters):
    (width, height), colours = size_and_colours(to_png(ZeroMemory(**parameters).picture()))
    assert width > 900 and height > 300 and colours > 6


def test_what_is_unknown_is_refused_and_the_old_value_stays():
    widget = ZeroMemory()
    for name, value, words in (("model", "GPT-5", "expected one of"), ("recipe", "fp64", "expected one of"),
                               ("stage", 4, "whole number"), ("num_devices", 0, "whole number")):
        with pytest.raises(BadParameter, match=words):
            setattr(widget, name, value)
    assert (widget.model, widget.num_devices, widget.stage, widget.recipe) == ("Llama 2 7B", 8, 2, MIXED)


def test_a_change_makes_new_frames_and_a_new_sentence():
    widget = ZeroMemory()
    before, sentence = widget.frames, repr(widget)
    widget.stage = 3
    assert widget.frames != before and repr(widget) != sentence
    assert widget.frames["key"] == f"Llama 2 7B n=8 stage=3 {MIXED}"
