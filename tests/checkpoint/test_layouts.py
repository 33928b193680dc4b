"""Saved in one layout, loaded in another: the run goes on as if nobody had interrupted it."""

import pytest

from course_lib.runtime import launch
from tests.checkpoint import runs

DATA = ("ddp", "zero1", "zero2", "fsdp")
MATRICES = ("tp", "sp", "pp")
SAVED = {1: ("plain", "zero1"), 2: (*DATA, *MATRICES), 3: ("zero1", "fsdp"), 4: ("tp", "zero2", "fsdp")}
LOADED = {
    1: ("fsdp-2", "tp-2", "zero1-3", "zero2-4", "pp-2"),
    2: ("plain-1", "tp-4", "fsdp-3", "zero2-4", "sp-2"),
    3: ("zero1-2", "tp-4", "pp-2", "fsdp-4"),
    4: ("zero1-3", "tp-2", "pp-2", "plain-1", "fsdp-2"),
}
INTO = {1: ("plain", "zero1"), 2: ("tp", "fsdp", "zero1", "pp", "zero2"), 3: ("fsdp", "zero2", "pp", "tp"),
        4: ("tp", "fsdp", "zero1", "sp", "pp")}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with a checkpoint of each layout, and the losses of the runs that made them, from there on."""
    folder = tmp_path_factory.mktemp("layouts")
    losses = {}
    for n, layouts in SAVED.items():
        for layout, of_one in launch(runs.save_in, layouts, folder, world_size=n)[0].items():
            losses[f"{layout}-{n}"] = of_one
    return folder, losses


@pytest.fixture(scope="module")
def unbroken():
    return runs.Run("plain").train(0, runs.BEFORE + runs.AFTER)[runs.BEFORE:]


def test_saving_changes_nothing(saved, unbroken):
    for layout, losses in saved[1].items():
        assert losses == pytest.approx(unbroken, rel=1e-9), layout


@pytest.mark.parametrize("n", LOADED)
def test_a_run_goes_on_in_another_layout_with_the_losses_of_the_unbroken_one(saved, unbroken, n):
    pairs = tuple((source, INTO[n][i % len(INTO[n])]) for i, source in enumerate(LOADED[n]))
    for found in launch(runs.load_in, pairs, saved[0], world_size=n):
        for pair, (losses, same) in zip(pairs, found):
            assert losses == pytest.approx(unbroken, rel=1e-9) and not same, pair


@pytest.mark.parametrize("n", SAVED)
def test_a_run_goes_on_in_the_same_layout_bit_by_bit(saved, n):
    pairs = tuple((f"{layout}-{n}", layout) for layout in SAVED[n])
    for found in launch(runs.load_in, pairs, saved[0], world_size=n):
        for (source, _), (losses, same) in zip(pairs, found):
            assert losses == saved[1][source] and same, source


def test_32_bit_copies_of_16_bit_parameters_come_along_and_are_what_a_run_in_32_bits_begins_with(tmp_path):
    assert launch(runs.of_16_bits, tmp_path, world_size=3) == [(True, True)] * 3
