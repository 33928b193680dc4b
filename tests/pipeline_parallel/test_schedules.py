"""Every published schedule is legal and holds what its paper says; everything illegal is refused in words."""

from contextlib import nullcontext
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.pipelining import schedules as torch_schedules

from course_lib.pipeline_parallel import (
    SCHEDULES,
    Action,
    InvalidSchedule,
    Schedule,
    dualpipe_v,
    findings,
    gpipe,
    interleaved_1f1b,
    one_f_one_b,
    validate,
    zb_v,
)

PLAIN = tuple(row.generate for row in SCHEDULES.values() if row.chunks)

shapes = st.tuples(st.integers(1, 5), st.integers(1, 12))
schedules = st.one_of(
    st.builds(lambda generate, shape: generate(*shape), st.sampled_from(PLAIN), shapes),
    st.builds(lambda shape, v: interleaved_1f1b(*shape, v), shapes, st.integers(1, 4)),
)
many_examples = settings(max_examples=80)


@pytest.mark.parametrize("row", SCHEDULES.values(), ids=list(SCHEDULES))
def test_a_row_of_the_registry_says_what_its_schedule_is(row):
    schedule = row(4, 8, 3)
    assert schedule.name == row.name and {len(chunks) for chunks in schedule.stages} == {row.chunks or 3}
    assert row.splits_backward == ("I" in {action.kind for actions in schedule.actions for action in actions})
    assert not row.in_torch or issubclass(getattr(torch_schedules, row.in_torch), torch_schedules._PipelineSchedule)
    counts = {"p": 4, "m": 8} if row.chunks else {"p": 4, "m": 8, "v": 3}
    for name, wrong in product(counts, (0, True, 1.5)):
        with pytest.raises(ValueError, match=f"{name}={wrong}: expected a whole number of 1 or more"):
            row.generate(*(counts | {name: wrong}).values())


def changed(schedule: Schedule, rank: int, actions: list[Action]) -> Schedule:
    lanes = list(schedule.actions)
    lanes[rank] = tuple(actions)
    return replace(schedule, actions=tuple(lanes))


def can_run(schedule: Schedule) -> bool:
    """Whether the dependencies, written down a second time, and the orders of the ranks have no circle."""
    last = schedule.num_stages - 1
    graph: dict[tuple, set[tuple]] = {}
    for rank, actions in enumerate(schedule.actions):
        before = None
        for kind, i, chunk in actions:
            stage = schedule.stages[rank][chunk]
            whole = {"F": ("F", i, stage), "B": ("back", i, stage), "I": ("back", i, stage), "W": ("W", i, stage)}[kind]
            graph[whole] = {before} if before else set()
            if kind == "F" and stage > 0:
                graph[whole].add(("F", i, stage - 1))
            if kind in "BI":
                graph[whole] |= {("F", i, stage)} | ({("back", i, stage + 1)} if stage < last else set())
            if kind == "W":
                graph[whole].add(("back", i, stage))
            before = whole
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return False
    return True


@many_examples
@given(schedules)
def test_every_generated_schedule_is_legal(schedule):
    validate(schedule)
    assert can_run(schedule)


@many_examples
@given(schedules, st.data())
def test_every_schedule_without_one_of_its_actions_is_refused(schedule, data):
    rank = data.draw(st.integers(0, schedule.num_ranks - 1))
    actions = list(schedule.actions[rank])
    gone = actions.pop(data.draw(st.integers(0, len(actions) - 1)))
    with pytest.raises(ValueError, match=rf"rank {rank}: .*{gone}"):
        validate(changed(schedule, rank, actions))


@many_examples
@given(schedules, st.data())
def test_a_swap_of_two_actions_is_refused_exactly_where_it_breaks_a_dependency(schedule, data):
    rank = data.draw(st.integers(0, schedule.num_ranks - 1))
    actions = list(schedule.actions[rank])
    places = st.integers(0, len(actions) - 1)
    one, two = data.draw(places), data.draw(places)
    actions[one], actions[two] = actions[two], actions[one]
    swapped = changed(schedule, rank, actions)
    if can_run(swapped):
        validate(swapped)
    else:
        with pytest.raises(ValueError, match="needs its|deadlock"):
            validate(swapped)


def test_orders_and_places_are_those_of_the_papers():
    for p, m in [(2, 2), (3, 6), (4, 8), (4, 9)]:
        for actions in gpipe(p, m).actions:
            assert [action.kind for action in actions] == ["F"] * m + ["B"] * m
    told = [" ".join(map(str, actions)) for actions in one_f_one_b(4, 8).actions]
    assert told == ["F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7",
                    "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
                    "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7",
                    "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"]
    assert interleaved_1f1b(4, 8, 1).actions == one_f_one_b(4, 8).actions
    assert interleaved_1f1b(2, 4, 3).stages == ((0, 2, 4), (1, 3, 5))
    assert zb_v(3, 6).stages == dualpipe_v(3, 6).stages == ((0, 5), (1, 4), (2, 3)) and zb_v(3, 6).where(5) == (0, 1)
    few, many = interleaved_1f1b(4, 6, 2), interleaved_1f1b(4, 8, 2)  # fewer than the paper asks for: the same order
    assert few.actions == tuple(tuple(action for action in lane if action.microbatch < 6) for lane in many.actions)


def broken(*lanes: str, m: int = 2, stages: tuple = ((0,), (1,))) -> Schedule:
    """Two ranks that do what the strings say: "F0 B0"."""
    return Schedule("by hand", m, stages, tuple(
        tuple(Action(each[0], int(each[1]), int(each[3:] or 0)) for each in lane.split()) for lane in lanes))


GOOD = "F0 B0 F1 B1"
ILLEGAL = {  # schedule, how many things are wrong with it, arguments of validate
    "an action twice": (broken(GOOD, "F0 F0 B0 F1 B1"), 1, {}),
    "backward before its forward": (broken(GOOD, "F0 B0 I1 F1 W1"), 1, {}),
    "W before its I": (broken(GOOD, "F0 B0 F1 W1 I1"), 1, {}),
    "backward whole and split": (broken(GOOD, "F0 B0 F1 I1 B1 W1"), 1, {}),
    "half of a backward": (broken(GOOD, "F0 B0 F1 I1"), 1, {}),
    "no backward": (broken(GOOD, "F0 B0 F1"), 1, {}),
    "no such micro-batch": (broken(GOOD, "F0 B0 F1 B1 F2"), 1, {}),
    "no such chunk": (broken(GOOD, "F0 B0 F1 B1 F1.1"), 1, {}),
    "no such kind": (broken(GOOD, "F0 B0 F1 B1 X1"), 1, {}),
    "a stage on no rank": (broken(GOOD, GOOD, stages=((0,), (2,))), 2, {}),
    "a stage on two ranks": (broken(GOOD, GOOD, stages=((0, 1), (1,))), 2, {}),
    "a rank without stages": (broken(GOOD, GOOD, stages=((0,), ())), 1, {}),
    "a rank without actions": (broken(GOOD, stages=((0,), (1,))), 1, {}),
    "no micro-batches": (broken("F0 B0", "F0 B0", m=0), 1, {}),
    "no ranks": (Schedule("none", 2, (), ()), 1, {}),
    "no Action": (replace(broken("F0 B0", "F0 B0", m=1), actions=((("F", 0, 0),), ())), 1, {}),
    "down the V before the way up": (broken("F0 B0.1 F0.1 B0", m=1, stages=((0, 1),)), 1, {}),
    "a circle of actions that wait": (broken(GOOD, "F1 F0 B0 B1"), 1, {}),
    "more findings than are shown": (replace(gpipe(2, 8), actions=((), ())), 2 * 8 * 2, {}),
    "too many in flight": (gpipe(4, 8), 4, {"max_in_flight": 4}),
    "two ranks that both send first": (one_f_one_b(2, 4), 1, {"buffered": False})}


@pytest.mark.parametrize("what", ILLEGAL)
def test_what_is_illegal_is_said_in_words(what, snapshot):
    schedule, number, how = ILLEGAL[what]
    with pytest.raises(InvalidSchedule) as caught:
        validate(schedule, **how)
    assert len(caught.value.findings) == number and str(caught.value) == snapshot


def test_as_many_in_flight_as_are_allowed_are_legal_and_what_is_no_schedule_and_no_limit_is_refused():
    for limit in (4, [4, 3, 2, 1]):
        validate(one_f_one_b(4, 8), max_in_flight=limit)
    with pytest.raises(ValueError, match="max_in_flight has 2 numbers: expected one, or one for each of 4 ranks"):
        validate(gpipe(4, 8), max_in_flight=[4, 4])
    with pytest.raises(ValueError, match="'GPipe' is no schedule: expected a Schedule, such as gpipe"):
        validate("GPipe")


@pytest.mark.parametrize("p", [2, 3, 5])
def test_only_gpipe_and_the_naive_pipeline_could_do_with_sends_that_block(p):
    for schedule in (*(generate(p, 2 * p) for generate in PLAIN), interleaved_1f1b(p, 2 * p, 2)):
        legal = schedule.name in ("naive", "GPipe")
        with nullcontext() if legal else pytest.raises(ValueError, match="deadlock if sends block: rank .* sends"):
            validate(schedule, buffered=False)


@pytest.mark.parametrize("lanes, said", [
    (("F0", ""), None), (("F0 F1 B0", "F0"), None),  # B0 of rank 1 may still come
    (("F0", "B0"), "B0 stands before F0"),  # F0 of rank 1 would come too late
    (("F0 B0 F1", "F1 F0"), "deadlock: rank 0 cannot start B0 before rank 1 has done B0; rank 1 cannot start F1")])
def test_in_a_schedule_still_being_written_nothing_is_missing_yet(lanes, said):
    found = findings(broken(*lanes), finished=False)
    assert [said in each.text for each in found] == ([] if said is None else [True])
    assert said != "B0 stands before F0" or (found[0].rank, found[0].position) == (1, 0)
