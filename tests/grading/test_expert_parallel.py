"""The exercises of chapter 8 compare with one process that has all tokens and experts, and tell mistakes apart."""

import math
import random

import pytest
import torch

from course_lib.costs.experts import smallest_ffn_size, split_expert_bytes
from course_lib.expert_parallel import capacity_mask, load_balancing_loss, permute, place_experts, route, unpermute
from course_lib.grading.chapters.expert_parallel.balance import BalanceLoss
from course_lib.grading.chapters.expert_parallel.capacity import Kept
from course_lib.grading.chapters.expert_parallel.dispatch import Dispatch, used
from course_lib.grading.chapters.expert_parallel.gating import Gate
from course_lib.grading.chapters.expert_parallel.gradients import ExpertGradients, toy_losses
from course_lib.grading.chapters.expert_parallel.limits import H100, NDR, SmallestExpert
from course_lib.grading.chapters.expert_parallel.placement import PAR, Placed, planted, score
from course_lib.grading.chapters.expert_parallel.rows import BlockRows, padded_counts
from course_lib.grading.chapters.models import ROUNDING
from course_lib.grading.compare import alike
from course_lib.grading.exercise import Traffic


@pytest.mark.parametrize("asked", [Gate(), BlockRows(), Dispatch(), BalanceLoss(), Kept(), ExpertGradients()],
                         ids=lambda each: each.number)
def test_no_mistake_looks_right_and_no_two_look_the_same(asked):
    inputs = asked.trials(seed=2)[0].inputs
    answers = [("right", asked.expected(inputs)), *asked.mistakes(inputs)]
    for number, (cause, given) in enumerate(answers):
        assert not any(alike(given, other, asked.tolerance) for _, other in answers[:number]), cause


def test_a_gate_of_one_group_is_the_chapters_own_and_all_groups_of_others_get_equally_many_rows():
    for trial in Gate().trials(seed=1):
        inputs, = trial.inputs
        k, G, scale = inputs["numbers"]
        weights = Gate().expected(trial.inputs)[0]["weights"]
        assert torch.allclose(weights.sum(1), torch.tensor(scale, dtype=torch.float64))
        assert (weights.unflatten(1, (G, -1)).ne(0).sum(-1) == k // G).all()
        if G == 1:
            own = route(inputs["logits"], k, "sigmoid", bias=inputs["bias"])
            dense = torch.zeros_like(weights).scatter(1, own.experts, scale * own.weights)
            assert torch.allclose(weights, dense)


def test_rows_in_blocks_are_those_of_permute_and_come_back_as_unpermute_brings_them():
    for trial in BlockRows().trials(seed=1):
        inputs, = trial.inputs
        E, block = inputs["numbers"]
        tokens, weights = (tensor.clone().requires_grad_() for tensor in inputs["given"].values())
        rows, order = permute(tokens, inputs["experts"])
        expert = inputs["experts"].flatten()[order]
        combined = unpermute(torch.tanh(rows) * (expert.unsqueeze(1) + 1) + 1, order, weights)
        combined.backward(inputs["dy"])
        answer, = BlockRows().expected(trial.inputs)
        assert alike([answer[name] for name in ("combined", "tokens", "weights")],
                     [combined.detach(), tokens.grad, weights.grad], ROUNDING)
        counts = inputs["experts"].flatten().bincount(minlength=E).tolist()
        assert all(padded % block == 0 and 0 <= padded - count < block
                   for padded, count in zip(padded_counts(inputs), counts))
        parts = answer["rows"].split(padded_counts(inputs))
        assert torch.equal(torch.cat([part[:count] for part, count in zip(parts, counts)]), rows)
        assert not torch.cat([part[count:] for part, count in zip(parts, counts)]).any()


def test_tokens_come_home_as_if_all_experts_were_here_and_fewer_bytes_do_not_carry_them():
    for trial in Dispatch().trials(seed=1):
        answers, R = Dispatch().expected(trial.inputs), trial.world_size
        of_rank = trial.inputs[0]["choices"].shape[1] // R
        for answer, rank in zip(answers, trial.inputs):
            by_rank = [used(rank["tokens"], own) for own in rank["choices"].split(of_rank, 1)]
            assert alike(answer["home"], sum(by_rank), ROUNDING)
        pairs = sum(len(answer["received"]) for answer in answers)
        assert pairs == sum(int(rank["choices"].view(len(rank["choices"]), R, -1).any(-1).sum())
                            for rank in trial.inputs)
        row = trial.inputs[0]["tokens"][0].nbytes
        at_home = sum(int(rank["choices"].view(-1, R, of_rank)[:, r].any(-1).sum())
                      for r, rank in enumerate(trial.inputs))
        assert sum(Dispatch().sent(trial)) == (pairs - at_home) * (2 * row + of_rank) + R * 8 * (R - 1)


def test_a_rank_that_receives_nothing_is_among_the_trials():
    assert any(len(answer["received"]) == 0 for trial in Dispatch().trials(seed=1)
               for answer in Dispatch().expected(trial.inputs))


def test_the_mean_of_the_ranks_losses_and_gradients_is_that_of_one_process_with_all_tokens():
    for trial in BalanceLoss().trials(seed=1):
        R, k, c = trial.world_size, trial.inputs[0]["k"], trial.inputs[0]["c"]
        logits = torch.cat([rank["logits"] for rank in trial.inputs]).requires_grad_()
        of_rank = logits.shape[1] // R
        by_rank = logits.softmax(-1).unflatten(1, (R, -1)).sum(-1)
        loss = load_balancing_loss(by_rank, logits.topk(k).indices // of_rank)
        (c * loss).backward()
        answers = BalanceLoss().expected(trial.inputs)
        assert math.isclose(sum(answer["loss"].item() for answer in answers) / R, loss.item(), rel_tol=1e-9)
        assert alike(torch.cat([answer["logits"] for answer in answers]) / R, logits.grad, ROUNDING)


def test_what_is_kept_of_unprotected_tokens_is_the_chapters_mask_by_weight_of_ranks_for_experts():
    for trial in Kept().trials(seed=1):
        inputs, = trial.inputs
        E, R, C = inputs["numbers"]
        owner, bare = inputs["experts"] // (E // R), inputs | {"protected": torch.zeros_like(inputs["protected"])}
        assert torch.equal(Kept().expected([bare])[0], capacity_mask(owner, R, C, inputs["weights"]))
        kept, = Kept().expected([inputs])
        assert kept[inputs["protected"]].all()
        for r in range(R):
            safe = int((owner == r)[inputs["protected"]].sum())
            assert int((kept & (owner == r)).sum()) == min(int((owner == r).sum()), max(C, safe))


def test_planted_loads_can_be_placed_evenly_and_no_placement_scores_less_than_one():
    for seed in range(20):
        loads = planted(random.Random(seed), 6, 3, 2, 4, 0)
        scores = [score(loads, [[0, b], [c, d], [e, f]]) for b in range(1, 6) for c in range(1, 6) for d in range(1, 6)
                  for e in range(1, 6) for f in range(1, 6) if len({b, c, d, e, f}) == 5]
        assert math.isclose(min(scores), 1.0)


@pytest.mark.parametrize("seed", [0, 2, 3])  # with 1, two replicas lie on one rank
def test_a_placement_by_the_sums_over_all_batches_is_over_par_on_the_first_trial_and_told_why(seed):
    trial = Placed().trials(seed)[0]
    R, S = trial.inputs[0]["slots"]
    placed = place_experts([sum(rows) for rows in zip(*trial.inputs[0]["loads"])], R, R * S)
    judged = Placed().judge(trial, [placed], Traffic([[0]], exact=True))
    assert score(trial.inputs[0]["loads"], placed) > PAR
    assert "hot in the same batch" in judged.cause and "par 115.0 %" in judged.figures()


@pytest.mark.parametrize("given, words", [
    ([[0, 1], [2, 3]], "expected for each of the 3 ranks"), ([[0, 1], [2, 3], [4, 5, 0]], "has 3 experts, and 2 slots"),
    ([[0, 1], [2, 3], [4, 6]], "holds expert 6"), ([[0, 1], [2, 3], [4, 4]], "holds an expert twice"),
    ([[0, 1], [2, 3], [4, 0]], "expert 5 is on no rank"), ("nothing (None)", "it returned nothing")])
def test_what_is_no_placement_is_told_what_is_missing(given, words):
    trial = Placed().trials(0)[1]
    assert words in Placed().judge(trial, [given], Traffic([[0]], exact=True)).cause


def test_gradients_of_experts_and_router_are_those_of_the_mean_over_everybodys_tokens():
    for trial in ExpertGradients().trials(seed=1):
        ranks = trial.inputs
        tokens, choices = (torch.cat([rank[name] for rank in ranks]) for name in ("tokens", "choices"))
        weights, router = (ranks[0][name].clone().requires_grad_() for name in ("all_experts", "router"))
        toy_losses(tokens, choices, weights, router).mean().backward()
        for answer, rank in zip(ExpertGradients().expected(ranks), ranks):
            first = rank["same"][0] * len(rank["experts"])
            assert alike(answer["experts"], list(weights.grad[first:first + len(rank["experts"])]), ROUNDING)
            assert alike(answer["router"], router.grad, ROUNDING)
    assert any(not all(rank["came"]) for trial in ExpertGradients().trials(seed=1) for rank in trial.inputs)


def test_the_smallest_expert_is_the_chapters_own_where_every_row_travels_by_itself_both_ways_alike():
    for k, G in ((1, 2), (2, 8), (8, 64)):
        assert math.isclose(SmallestExpert().expected(k, 0, k, G, 2, 2, H100, NDR),
                            smallest_ffn_size(G, H100, NDR), rel_tol=1e-9)


def test_deepseek_v3_sends_a_seventh_longer_than_it_computes_and_tensor_parallelism_would_send_more():
    smallest = SmallestExpert().expected(8, 1, 4, 8, 1, 2, H100, NDR)
    assert math.isclose(smallest / 2048, 1.14, abs_tol=0.005)
    sent = 4 * 7 / 8 * 3 * 7168
    assert sent == 10.5 * 7168 and split_expert_bytes(1, 7168, 8) == 28 * 7168
    assert split_expert_bytes(1, 7168, 64) == 252 * 7168
