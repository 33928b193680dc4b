"""What widgets compute themselves is what formulas, papers, the library or a count by hand say.

That they draw what the library says: test_marks.py.
"""

from itertools import product

import numpy as np
import pytest
import torch

from course_lib.costs.splitting import dropped_rows
from course_lib.expert_parallel import capacity_mask
from course_lib.facts import model
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.widgets.expert_load import BALANCING, EXPERTS, GAINS, START, STRENGTHS, run
from course_lib.widgets.fits_or_not import amount, outlook, span_of
from course_lib.widgets.matrix_cut import ORDERS, WIDER, product_steps
from course_lib.widgets.mesh_explorer import traffic
from course_lib.widgets.token_dispatch import CAPACITIES, LONGEST, SKEWS, STEPS, capacity, dispatch, home
from course_lib.widgets.zero_memory import need


@pytest.mark.parametrize("gain", GAINS)
def test_near_even_shares_a_difference_grows_by_gain_less_strength_over_the_experts(gain):
    for strength, (balancing, less) in product(STRENGTHS, {"none": 0, "auxiliary loss": 1}.items()):
        shares = run(balancing, strength, gain, (1e-6, -1e-6, *(0.0,) * (EXPERTS - 2))).shares
        before, after = (of_step[0] - of_step[1] for of_step in shares[:2])
        assert after / before - 1 == pytest.approx((gain - less * strength) / EXPERTS, abs=1e-5)


def test_shares_add_up_unbalanced_routers_collapse_a_weak_auxiliary_loss_only_delays_and_a_bias_holds():
    for balancing in BALANCING:
        even = run(balancing, 0.1, 0.2, (0.0,) * EXPERTS).shares[-1]
        assert even == pytest.approx((1 / EXPERTS,) * EXPERTS), "even ones stay even"
        assert all(sum(of_step) == pytest.approx(1) for of_step in run(balancing, 0.1, 0.2).shares)
    collapsed = run("none", 0.1, 0.2)
    assert collapsed.imbalance > 7.9 and collapsed.starved == EXPERTS - 1
    assert max(range(EXPERTS), key=collapsed.shares[-1].__getitem__) == max(range(EXPERTS), key=START.__getitem__)
    for gain, strength in product(GAINS[1:], STRENGTHS):
        assert (run("auxiliary loss", strength, gain).imbalance < 1.15) == (strength >= gain)
        assert run("bias", strength, gain).imbalance < 1.3


def test_more_devices_cost_the_same_and_money_is_a_range_in_short_words():
    few, many = (outlook("GPT-3", "A100", n, "mixed").run for n in (512, 1024))
    assert few.usd == pytest.approx(many.usd) and few.days == pytest.approx(2 * many.days)
    assert span_of(972_332, 2.4e6) == "972 thousand to 2.4 million USD" and span_of(840, 840) == "840 USD"
    assert [amount(v) for v in (840, 972_332, 71.7e6, 2.5e9)] == ["840", "972 thousand", "71.7 million", "2.5 billion"]


def test_what_no_number_of_devices_brings_down_is_what_the_stage_keeps_whole():
    P, found = 6.738e9, [need("Llama 2 7B", 8, stage, "bf16 over fp32 master, Adam") for stage in range(4)]
    assert [stage.least.total for stage in found] == [16 * P, 4 * P, 2 * P, 0]


@pytest.mark.parametrize("t", [1, 2, 4])
@pytest.mark.parametrize("first, second", ORDERS)
def test_the_steps_of_a_product_carried_out_on_numbers_give_it(first, second, t):
    def gelu(x):
        return x / (1 + np.exp(-1.702 * x))

    random = np.random.default_rng(0)
    x, A, B = random.normal(size=(3, 8)), random.normal(size=(8, 8 * WIDER)), random.normal(size=(8 * WIDER, 8))
    weights = {name: np.split(matrix, t, 1 if cut == "columns" else 0)
               for name, matrix, cut in (("A", A, first), ("B", B, second))}
    here, before = {"x": [x] * t}, product_steps(first, second, t)[0].held
    whole = {"x": x, "h": x @ A, "y": gelu(x @ A) @ B}
    joined = {"whole": lambda parts: parts[0], "part": lambda parts: np.concatenate(parts, 1), "summand": sum}
    for step in product_steps(first, second, t)[1:]:
        changed = [name for name in step.held if step.held[name] != before.get(name)]
        if "GeLU of" in step.said and not changed:
            here["h"], whole["h"] = [gelu(one) for one in here["h"]], gelu(x @ A)
        for name in changed:
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
        for name, parts in here.items():
            if name in step.held:
                np.testing.assert_allclose(joined[step.held[name]](parts), whole[name], err_msg=name)
    assert before["y"] == "whole"
    for one in here["y"]:
        np.testing.assert_allclose(one, whole["y"])


def along(mesh, axis, order="tp,cp,dp,pp"):
    return next(each for each in traffic(ParallelLayout.from_string(mesh, order)) if each.axis == axis)


def test_bytes_along_an_axis_of_a_mesh_are_those_of_the_closed_forms():
    D, layers = model("Llama 3 8B").shape.hidden_size, model("Llama 3 8B").shape.num_layers
    tp, pp, dp = (along("dp4,pp4,tp4", axis).sent for axis in ("tp", "pp", "dp"))
    assert tp == 8 * layers / 4 * 4 * 2 * 3 / 4 * 2 * 8192 * D  # m layers, four all-reduces of B T D 16-bit numbers
    assert pp == 2 * 8 * 2 * 8192 * D
    assert dp == pytest.approx(2 * 3 / 4 * 2 * 8.03e9 / 16, rel=0.001)
    experts = model("Mixtral 8x7B").shape.active_experts
    assert along("dp8,pp8,ep8", "ep").sent == 8 * 4 * 4 * experts * 8192 * D * 2 * 7 / 8


@pytest.mark.parametrize("mesh, axis, order, gb_per_s", [
    ("dp4,pp4,tp4", "tp", "tp,cp,dp,pp", 450),  # inside a node
    ("dp4,pp4,tp4", "dp", "tp,cp,dp,pp", 100),  # two in each of two nodes: two cards
    ("dp4,pp4,tp4", "pp", "tp,cp,dp,pp", 50),  # a message: one card
    ("dp8,tp8", "dp", "tp,cp,dp,pp", 50),  # eight strided groups at once: one card each
    ("dp2,pp2,cp2,tp8", "dp", "tp,cp,pp,dp", 50),  # dp and cp together, with pp between them
    ("dp8,pp8,ep8", "ep", "pp,cp,dp,tp", 50),  # each on its own card
])
def test_each_axis_of_a_mesh_has_the_cards_that_its_groups_use(mesh, axis, order, gb_per_s):
    found = along(mesh, axis, order)
    assert found.bytes_per_s == pytest.approx(gb_per_s * 1e9)
    assert found.seconds > found.sent / found.bytes_per_s  # and the latency of its messages


def test_the_library_keeps_and_drops_the_same_tokens_and_what_stays_on_its_rank_is_not_sent():
    for skew, k, factor, steps in product(SKEWS, (1, 2), CAPACITIES, (0, STEPS[-1])):
        shown, limit = dispatch(skew, k, factor, steps), capacity(k, factor)
        assert shown.choices == dispatch(skew, k, None, steps).choices
        dropped = 0
        for of_rank, kept in zip(shown.choices, shown.kept, strict=True):
            assert all(len(set(experts)) == k for experts in of_rank)
            if limit is not None:
                experts = torch.tensor(of_rank)
                assert capacity_mask(experts, EXPERTS, limit).tolist() == [list(of_token) for of_token in kept]
                dropped += dropped_rows(experts.flatten().bincount(minlength=EXPERTS).tolist(), limit)
        assert shown.dropped == dropped and sum(shown.load) == sum(shown.work) == shown.asked_for - dropped
        assert shown.rows_sent == sum(home(expert) != rank for expert, rank, *_ in shown.rows)
        assert max(shown.load) <= 2 * LONGEST  # a queue has room in the picture
    for k in (1, 2):  # skew makes a rank busy, and balancing makes it even, whatever the skew
        unbalanced = [dispatch(skew, k, None, 0).slowest for skew in SKEWS]
        assert unbalanced == sorted(unbalanced) and unbalanced[-1] > 2
        assert all(dispatch(skew, k, None, STEPS[-1]).slowest < 1.2 for skew in SKEWS)
