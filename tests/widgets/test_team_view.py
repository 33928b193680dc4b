"""TeamView shows what ranks hold, finds the elements that differ, and follows a team from cell to cell."""

import gc
from copy import deepcopy
from types import SimpleNamespace

import pytest

from course_lib.widgets import TeamView, team_view
from course_lib.widgets.base import BadParameter


class StoodInTeam:
    """A team of ranks that nobody has started."""

    is_busy, alive = False, [0, 1]

    def __init__(self):
        self.held = {int(rank): held for rank, held in team_view.made_up_snapshot()["ranks"].items()}

    def snapshot(self):
        return deepcopy(self.held)


def test_elements_that_differ_are_those_of_which_not_all_ranks_have_the_same():
    snapshot = team_view.made_up_snapshot()
    first, second = (snapshot["ranks"][rank]["names"][1] for rank in "01")
    assert team_view.differing_elements(snapshot, "x") == set()
    assert len(team_view.differing_elements(snapshot, "weight")) == 16
    second["values"][0][2] = 7.0
    assert team_view.differing_elements(snapshot, "x") == {(0, 2)}
    second["values"] = [[1.0, 2.0]]
    assert team_view.differing_elements(snapshot, "x") == {(0, 2), (0, 3)}, "which rank 1 does not have"
    first["values"] = second["values"] = [[float("nan")]]
    assert team_view.differing_elements(snapshot, "x") == set()


def test_a_view_follows_its_team_from_cell_to_cell_and_forgets_a_name_that_is_gone():
    team, callbacks = StoodInTeam(), []
    events = SimpleNamespace(register=lambda event, callback: callbacks.append((event, callback)),
                             unregister=lambda event, callback: callbacks.remove((event, callback)))

    def run_cell():
        for event, callback in list(callbacks):
            assert event == "post_run_cell"
            callback(None)

    view = TeamView(snapshot=team_view.made_up_snapshot(), name="weight")
    team_view.follow(view, team, SimpleNamespace(events=events))
    team.held[0]["names"][0]["name"] = team.held[1]["names"][0]["name"] = "cut"
    run_cell()
    assert view.name == team_view.ALL_NAMES and team_view.names_in(view.snapshot) == ["cut", "x", "loss"]
    assert "cut" in view.current_scene().alternative
    for team.is_busy, team.alive in ((True, [0, 1]), (False, [])):  # at work it stays as it was, and closed
        team.held = {}
        run_cell()
        assert len(view.snapshot["ranks"]) == 2
    del team
    gc.collect()
    run_cell()
    assert callbacks == []


def test_a_view_of_a_team_opens_at_the_tensor_that_is_named_and_refuses_one_that_no_rank_has():
    team = StoodInTeam()
    assert TeamView.of(team).name == team_view.ALL_NAMES
    assert TeamView.of(team, "weight").current_scene().headline == "In weight 16 of 16 elements differ between ranks"
    with pytest.raises(BadParameter, match="name='bias': expected one of"):
        TeamView.of(team, "bias")


def test_a_team_without_ranks_and_one_with_many_have_a_picture():
    assert TeamView(snapshot={"ranks": {}}).current_scene().headline == "no rank is alive"
    held = team_view.made_up_snapshot()["ranks"]["0"]
    held["names"][0]["values"] = [[0.5] * team_view.COLUMNS for _ in range(team_view.ROWS)]
    view = TeamView("weight", {"ranks": {str(rank): held for rank in range(12)}})
    assert view.current_scene().detail.endswith("the first 8 of 12 are shown") and view.picture() is not None
