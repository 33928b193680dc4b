"""The exercises of chapter 9 compare with what one process has, and say what a malformed answer is."""

import math

import pytest
import torch

from course_lib.grading.compare import alike
from course_lib.grading.exercise import SentBytes
from course_lib.grading.judges.hybrid_parallel import gradients, layouts
from course_lib.grading.judges.hybrid_parallel.checkpoints import Resharded, SaveInterval
from course_lib.grading.judges.hybrid_parallel.gradients import (
    HEAD,
    MODEL,
    SUMMED,
    GlobalNorm,
    ReducedGradients,
    after_backward,
    after_reduction,
    random_gradients,
)
from course_lib.grading.judges.hybrid_parallel.layouts import (
    CASES,
    LOOKS,
    ORDERS,
    CheapestLayout,
    MovedRank,
    TwoLevels,
    best_of,
    every_layout,
    reason,
    sizes_of,
    step_of,
)
from course_lib.hybrid_parallel import ParallelLayout

LAYOUTS = ["dp2 tp2", "pp2 cp2", "dp2 cp2 ep2", "dp2 cp2 tp2 pp2 ep4", "dp2 tp4 ep2", "pp3 tp2"]
NO_MESSAGES = SentBytes([[0]], True)
CLUSTER = {"small": 0.05, "hidden": 0.4}  # what only looks show


@pytest.mark.parametrize("order", ORDERS)
def test_a_moved_rank_has_the_coordinates_that_it_had(order):
    sizes, asked = sizes_of("dp4 pp2 cp2 tp3"), MovedRank()
    layout, default = ParallelLayout(**sizes, order=order), ParallelLayout(**sizes)
    moved = [asked.solve(rank, sizes, order, ORDERS[0]) for rank in range(layout.world_size)]
    assert sorted(moved) == list(range(layout.world_size))
    assert all(default.coordinates(int(new)) == layout.coordinates(old) for old, new in enumerate(moved))


def test_two_levels_join_the_ranks_of_the_whole_group_and_keep_nodes_apart():
    asked = TwoLevels()
    for trial in asked.trials(seed=1):
        axes, sizes, order, node = trial.inputs[0]
        (inside, across), = asked.solve(trial.inputs)
        for group in ParallelLayout(**sizes, order=order).groups(*axes):
            parts = [part for part in inside if set(part) <= set(group)]
            assert sorted(rank for part in parts for rank in part) == group
            assert [len({rank // node for rank in part}) for part in parts] == [1] * len(parts)
            lines = [line for line in across if set(line) <= set(group)]
            assert all([rank in part for rank in line].count(True) == 1 for line in lines for part in parts)
            assert sorted(rank for line in lines for rank in line) == group


@pytest.mark.parametrize("answer", [None, "a list", 3, [], [[0], [1]], [[[0.5]], [[0]]], torch.zeros(2)], ids=str)
def test_what_is_no_pair_of_lists_of_groups_is_told_so(answer):
    asked = TwoLevels()
    judged = asked.judge(asked.trials(seed=1)[0], [answer], NO_MESSAGES)
    assert "expected two lists of groups, each a list of ranks" in judged.cause


@pytest.mark.parametrize("change, says", [
    (lambda groups: groups + groups[:1], "inside nodes: a group is there twice"),
    (lambda groups: groups[1:], "inside nodes: [0, 1, 2, 3] is one"),
    (lambda groups: [[0, 1], *groups[1:]], "inside nodes: [0, 1] is no such group, and [0, 1, 2, 3] is one"),
])
def test_the_first_group_that_is_wrong_is_named(change, says):
    asked, trial = TwoLevels(), TwoLevels().trials(seed=1)[1]
    (inside, across), = asked.solve(trial.inputs)
    assert says in asked.judge(trial, [[change(inside), across]], NO_MESSAGES).cause


def test_two_levels_send_as_much_over_the_slow_wire_as_one_ring_of_the_nodes():
    asked = TwoLevels()
    for trial in asked.trials(seed=1):
        axes, sizes, order, node = trial.inputs[0]
        spent, = asked.usage(trial, asked.solve(trial.inputs), NO_MESSAGES)
        group = ParallelLayout(**sizes, order=order).groups(*axes)[0]
        num_nodes = len({rank // node for rank in group})
        assert math.isclose(spent.measured, 2 * (num_nodes - 1) / len(group))


@pytest.mark.parametrize("text", LAYOUTS)
def test_gradients_added_up_by_the_table_are_those_of_one_process(text):
    layout = ParallelLayout.from_string(text)
    dealt = torch.arange(7 * layout.dp * layout.cp).split([4, 10] * (layout.dp * layout.cp // 2) or [7])
    num_tokens = sum(map(len, dealt))
    each = random_gradients(torch.Generator().manual_seed(0), layout, 4, num_tokens)
    ranks = after_backward(layout, each, dealt)
    means = {name: gradient.sum(0) / num_tokens for name, gradient in each.items()}
    means["embedding"] *= 1 + HEAD
    whole = after_reduction(layout, means, zero=False)
    for own, right in zip(ReducedGradients().solve(ranks), whole):
        assert alike(own, right["gradients"], (1e-9, 1e-12))
    assert {name for rank in ranks for name in rank["kinds"]} == MODEL.keys()


def test_every_kind_and_every_axis_matters_in_some_trial(monkeypatch):
    asked = ReducedGradients()
    trials = asked.trials(seed=1)
    right = [asked.solve(trial.inputs) for trial in trials]
    for kind, axes in SUMMED.items():
        for axis in axes:
            monkeypatch.setitem(gradients.SUMMED, kind, tuple(other for other in axes if other != axis))
            assert any(not alike(asked.solve(trial.inputs), its, asked.tolerance)
                       for trial, its in zip(trials, right)), (kind, axis)
        monkeypatch.undo()


def test_gradients_that_nobody_added_up_are_no_answer_however_right():
    asked = ReducedGradients()
    for trial in asked.trials(seed=1)[:2]:
        own = [{"gradients": gradients, "sent": 0} for gradients in asked.solve(trial.inputs)]
        judged = asked.judge(trial, own, NO_MESSAGES)
        assert not judged.right and "the ranks sent 0 B together" in judged.cause


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("text", LAYOUTS)
def test_the_norm_is_torchs_of_the_whole_gradient(text, zero):
    layout = ParallelLayout.from_string(text)
    whole = random_gradients(torch.Generator().manual_seed(3), layout, 3)
    ranks = after_reduction(layout, whole, zero)
    for norm_type in (1.0, 2.0, math.inf):
        right = torch.nn.utils.get_total_norm(whole.values(), norm_type).item()
        given = GlobalNorm().solve([{**rank, "norm_type": norm_type, "zero": zero} for rank in ranks])
        assert alike(given, [right] * len(ranks), (1e-9, 0.0))


def test_under_zero_some_ranks_have_nothing_of_a_gradient():
    empty = [not gradient.numel() for trial in GlobalNorm().trials(seed=0) for rank in trial.inputs
             for gradient in rank["gradients"].values()]
    assert any(empty) and not all(empty)


def test_the_new_pieces_are_cut_from_the_tensor_that_the_files_make():
    asked = Resharded()
    for trial in asked.trials(seed=4):
        saved, contents = trial.inputs[0]["saved"], trial.inputs[0]["contents"]
        shape = [max(offsets[dim] + extent[dim] for offsets, extent in saved.values())
                 for dim in range(len(trial.inputs[0]["shape"]))]
        whole = torch.full(shape, math.nan, dtype=torch.float64)
        for file, (offsets, extent) in saved.items():
            whole[tuple(slice(a, a + n) for a, n in zip(offsets, extent))] = contents[file]
        for rank, piece in zip(trial.inputs, asked.solve(trial.inputs)):
            place = tuple(slice(a, a + n) for a, n in zip(rank["offsets"], rank["shape"]))
            assert torch.equal(piece, whole[place])


def test_at_youngs_interval_the_least_time_is_lost():
    asked = SaveInterval()
    for _, (N, hours, parameters, copy, storage, asynchronous) in asked.cases:
        between, write = 3600 * hours / N, 12 * parameters / storage
        pause = 12 * parameters / N / copy if asynchronous else write

        def loss_share(tau, pause=pause, between=between, write=write, asynchronous=asynchronous):
            return math.inf if asynchronous and tau < write * 0.999 else pause / tau + (tau / 2 + write) / between

        best = asked.solve(N, hours, parameters, copy, storage, asynchronous)
        assert all(loss_share(best) <= loss_share(best * factor) for factor in (0.5, 0.9, 1.1, 2.0))


@pytest.mark.parametrize("asked", [asked for _, asked in CASES], ids=[label for label, _ in CASES])
def test_few_layouts_reach_par_and_every_other_one_is_told_why(asked):
    every = list(every_layout(*asked))
    shortest, best = best_of(CLUSTER, asked)
    assert len(every) > 5 * LOOKS
    fitting = [
        step_of(layout, CLUSTER, *asked)[0] for layout in every if step_of(layout, CLUSTER, *asked)[1] <= asked[2]
    ]
    assert shortest == min(fitting) and sum(seconds <= 1.01 * shortest for seconds in fitting) < len(fitting) / 10
    slow = [layout for layout in every if step_of(layout, CLUSTER, *asked)[0] > 1.01 * shortest]
    assert all(reason(layout, best, CLUSTER, asked) for layout in slow[::7])


def test_the_cases_have_different_best_layouts():
    best = [best_of(CLUSTER, asked)[1] for _, asked in CASES]
    assert len({tuple(layout.values()) for layout in best}) == len(CASES)
    for is_so in (lambda its: its["recompute"], lambda its: its["zero"] == 3, lambda its: its["pp"] > 1):
        assert {bool(is_so(layout)) for layout in best} == {False, True}


def test_every_layout_is_looked_at_where_devices_and_rows_are_powers_of_two():
    devices, layers, batch_rows = 16, 32, 128
    asked = (devices, 1, 24e9, 60e12, 16e9, 1.25e9, 7e9, layers, 4096, 2048, batch_rows)
    divisors = [n for n in range(1, 129) if 128 % n == 0]
    expected = [(dp, pp, tp, rows) for dp in divisors for pp in divisors for tp in divisors for rows in divisors
                if dp * pp * tp == devices and pp <= layers and batch_rows % (dp * rows) == 0]
    found = [tuple(layout.values()) for layout in every_layout(*asked)]
    assert sorted({each[:4] for each in found}) == sorted(expected) and len(found) == 6 * len(expected)
    assert all(number & (number - 1) == 0 for trial in CheapestLayout().trials(seed=0)
               for number in (trial.inputs[0][0], trial.inputs[0][10]))


@pytest.mark.parametrize("answer", [None, "a list", {"layout": None, "asked": 1}, {"layout": {"dp": 1}, "asked": 1},
                                    {"layout": {**dict.fromkeys(layouts.KEYS, 1), "zero": 2}, "asked": 1},
                                    {"layout": dict.fromkeys(layouts.KEYS, "1"), "asked": 1}], ids=str)
def test_what_is_no_layout_is_no_answer(answer):
    asked = CheapestLayout()
    judged = asked.judge(asked.trials(seed=0)[0], [answer], NO_MESSAGES)
    assert "it returned" in judged.cause and not judged.right


@pytest.mark.parametrize("place, right, says", [(1, False, "holds"), (3, True, "takes")])
def test_a_layout_that_does_not_fit_is_no_answer_and_a_slow_one_is_half(place, right, says):
    asked = CheapestLayout()
    trial = asked.trials(seed=0)[place]
    layout = {"dp": 32, "pp": 1, "tp": 4, "rows": 1, "zero": 0, "recompute": 0} if place == 1 else {
        "dp": 2, "pp": 64, "tp": 8, "rows": 1, "zero": 1, "recompute": 0}
    judged = asked.judge(trial, [{"layout": layout, "asked": 0}], NO_MESSAGES)
    assert judged.over.what == says and judged.right is right


@pytest.mark.parametrize("dp, tp, gb_per_s", [(16, 1, 400), (8, 2, 200), (4, 4, 100), (2, 8, 50), (4, 2, 450)])
def test_gradients_have_a_card_for_each_rank_of_their_ring_in_a_node(dp, tp, gb_per_s):
    its, asked = {"dp": dp, "pp": 1, "tp": tp, "rows": 1, "zero": 0, "recompute": 0}, (
        dp * tp, 8, 80e9, *layouts.H100, 1e9, 16, 2048, 1024, 16)
    shown, hidden = (step_of(its, {"small": 0.0, "hidden": share}, *asked)[0] for share in (0.0, 1.0))
    assert shown - hidden == pytest.approx(2 * 2 * 1e9 / tp * (dp - 1) / dp / (gb_per_s * 1e9))


@pytest.mark.parametrize("seed", range(10))
def test_of_two_clusters_that_only_looks_tell_apart_each_has_a_best_layout_that_is_no_good_on_the_other(seed):
    one, other = CheapestLayout().trials(seed)[1:3]
    assert one.inputs == other.inputs
    for here, there in ((one, other), (other, one)):
        (shortest, _), (_, best_there) = (best_of(each.hidden, here.inputs[0]) for each in (here, there))
        assert step_of(best_there, here.hidden, *here.inputs[0])[0] > 1.1 * shortest


@pytest.mark.parametrize("question", [None, "dp4", {"dp": 1}, {**dict.fromkeys(layouts.KEYS, 1), "zero": 2}], ids=str)
def test_a_look_at_what_is_no_layout_is_an_error(question):
    asked = CheapestLayout()
    with pytest.raises(ValueError, match="expected a dict with dp, pp, tp"):
        asked.reply(asked.trials(0)[0], question)
