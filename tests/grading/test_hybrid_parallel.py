"""The exercises of chapter 9 compare with what one process has, and tell mistakes apart."""

import inspect
import math

import pytest
import torch

from course_lib.grading.chapters.hybrid_parallel.cheapest import (
    CASES,
    LOOKS,
    CheapestLayout,
    best_of,
    every_layout,
    fault_of,
    reason,
    step_of,
)
from course_lib.grading.chapters.hybrid_parallel.mesh import ORDERS, MovedRank, TwoLevels, groups_of, named
from course_lib.grading.chapters.hybrid_parallel.norms import GlobalNorm, pieces_of, whole_gradient
from course_lib.grading.chapters.hybrid_parallel.pieces import (
    KINDS,
    held_by,
    places,
    rank_gradients,
    shares,
    slice_of,
    token_gradients,
    whole_gradients,
)
from course_lib.grading.chapters.hybrid_parallel.reductions import AXES, ReducedGradients, group_of, played
from course_lib.grading.chapters.hybrid_parallel.reshard import Resharded
from course_lib.grading.chapters.hybrid_parallel.saving import SaveInterval
from course_lib.grading.compare import alike
from course_lib.grading.exercise import Traffic
from course_lib.hybrid_parallel import ParallelLayout
from tests.grading.telling_apart import told_and_apart

SIZES = [{**named(dp=2, tp=2), "ep": 1}, {**named(cp=2, pp=2), "ep": 1}, {**named(dp=2, cp=2), "ep": 2},
         {**named(dp=2, cp=2, tp=2, pp=2), "ep": 4}, {**named(pp=3, tp=2), "ep": 1}]


@pytest.mark.parametrize("asked", [MovedRank(), TwoLevels(), ReducedGradients(), GlobalNorm(), Resharded(),
                                   SaveInterval()], ids=lambda each: each.number)
def test_every_mistake_differs_from_the_answer_and_from_all_others_in_some_trial(asked):
    told, apart = told_and_apart(asked)
    assert told == apart


@pytest.mark.parametrize("order", ORDERS)
def test_places_and_groups_are_those_of_the_chapters_layout(order):
    sizes = named(dp=4, pp=2, cp=2, tp=3)
    layout, asked = ParallelLayout(**sizes, order=order), MovedRank()
    for axes in (("tp",), ("dp", "cp"), ("pp", "tp"), ("dp", "cp", "tp")):
        assert groups_of(axes, sizes, order) == layout.groups(*axes)
    moved = [asked.expected(rank, sizes, order, ORDERS[0]) for rank in range(layout.world_size)]
    assert sorted(moved) == list(range(layout.world_size))
    default = ParallelLayout(**sizes)
    assert all(default.coordinates(int(new)) == layout.coordinates(old) for old, new in enumerate(moved))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_experts_lie_where_the_chapters_layout_has_them(sizes):
    layout = ParallelLayout(**sizes)
    for axes in (("ep",), ("edp",), ("tp", "edp"), ("dp", "cp"), ("pp",)):
        for rank in range(layout.world_size):
            assert group_of(rank, axes, sizes) == layout.group_of(rank, *axes)


def test_two_levels_send_as_much_over_the_slow_wire_as_one_ring_of_the_nodes():
    asked = TwoLevels()
    for trial in asked.trials(seed=1):
        axes, sizes, order, node = trial.inputs[0]
        spent, = asked.spent(trial, [asked.expected(*trial.inputs[0])], Traffic([[0]], True))
        group = groups_of(axes, sizes, order)[0]
        num_nodes = len({rank // node for rank in group})
        assert math.isclose(spent.measured, 2 * (num_nodes - 1) / len(group))


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_gradients_added_up_by_the_table_are_those_of_one_process(sizes):
    dealt = shares(sizes)
    num_tokens = sum(map(len, dealt))
    each = token_gradients(torch.Generator().manual_seed(0), num_tokens, sizes["ep"], 4, 6)
    whole = whole_gradients(each, dealt)
    ranks = [{"gradients": rank_gradients(each, dealt, where, sizes), "kinds": held_by(where, sizes),
              "num_tokens": len(dealt[where["dp"] * sizes["cp"] + where["cp"]]), "sizes": sizes}
             for where in places(sizes)]
    for where, own in zip(places(sizes), played(ranks)):
        assert alike(own, {name: slice_of(name, whole[name], where, sizes) for name in own}, (1e-9, 1e-12))
    assert {name for rank in ranks for name in rank["kinds"]} == KINDS.keys()


def test_every_kind_and_every_axis_matters_in_some_trial():
    asked = ReducedGradients()
    for kind, axes in AXES.items():
        for axis in axes:
            without = {**AXES, kind: tuple(other for other in axes if other != axis)}
            assert any(not alike(played(trial.inputs, without), asked.expected(trial.inputs), asked.tolerance)
                       for trial in asked.trials(seed=1)), (kind, axis)


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_norm_is_torchs_of_the_whole_gradient(sizes, zero):
    whole = whole_gradient(torch.Generator().manual_seed(3), sizes["ep"])
    ranks = pieces_of(whole, sizes, zero)
    for norm_type in (1.0, 2.0, math.inf):
        right = torch.nn.utils.get_total_norm(whole.values(), norm_type).item()
        given = GlobalNorm().expected([{**rank, "norm_type": norm_type, "zero": zero} for rank in ranks])
        assert alike(given, [right] * len(ranks), (1e-9, 0.0))


def test_the_new_pieces_are_cut_from_the_tensor_that_the_files_make():
    asked = Resharded()
    for trial in asked.trials(seed=4):
        saved, contents = trial.inputs[0]["saved"], trial.inputs[0]["contents"]
        shape = [max(offsets[dim] + extent[dim] for offsets, extent in saved.values())
                 for dim in range(len(trial.inputs[0]["shape"]))]
        whole = torch.full(shape, math.nan, dtype=torch.float64)
        for file, (offsets, extent) in saved.items():
            whole[tuple(slice(a, a + n) for a, n in zip(offsets, extent))] = contents[file]
        for rank, piece in zip(trial.inputs, asked.expected(trial.inputs)):
            place = tuple(slice(a, a + n) for a, n in zip(rank["offsets"], rank["shape"]))
            assert torch.equal(piece, whole[place])


def test_at_youngs_interval_the_least_time_is_lost():
    asked = SaveInterval()
    for _, (N, hours, parameters, copy, storage, asynchronous) in asked.cases:
        between, write = 3600 * hours / N, 12 * parameters / storage
        pause = 12 * parameters / N / copy if asynchronous else write

        def lost(tau, pause=pause, between=between, write=write, asynchronous=asynchronous):
            return math.inf if asynchronous and tau < write * 0.999 else pause / tau + (tau / 2 + write) / between

        best = asked.expected(N, hours, parameters, copy, storage, asynchronous)
        assert all(lost(best) <= lost(best * factor) for factor in (0.5, 0.9, 1.1, 2.0))


@pytest.mark.parametrize("asked", [asked for _, asked in CASES], ids=[label for label, _ in CASES])
def test_few_layouts_reach_par_and_every_other_one_is_told_why(asked):
    every = list(every_layout(*asked))
    shortest, best = best_of(asked)
    assert len(every) > 5 * LOOKS and all(fault_of(layout, *asked) is None for layout in every)
    fitting = [step_of(layout, *asked)[0] for layout in every if step_of(layout, *asked)[1] <= asked[2]]
    assert shortest == min(fitting) and sum(seconds <= 1.01 * shortest for seconds in fitting) < len(fitting) / 10
    slow = [layout for layout in every if step_of(layout, *asked)[0] > 1.01 * shortest]
    assert all(reason(layout, best, asked) for layout in slow[::7])


def test_the_cases_have_different_best_layouts():
    best = [best_of(asked)[1] for _, asked in CASES]
    assert len({tuple(layout.values()) for layout in best}) == len(CASES)
    for is_so in (lambda its: its["recompute"], lambda its: its["zero"] == 3, lambda its: its["pp"] > 1):
        assert {bool(is_so(layout)) for layout in best} == {False, True}


def test_the_cost_that_is_printed_fits_on_a_screen():
    assert len(inspect.getsource(step_of).splitlines()) <= 25
    assert CheapestLayout().trials(0)[0].world_size == 1
