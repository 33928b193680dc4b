"""The exercises of chapter 3 compare with one process, and do not fall for odd answers."""

import random

import pytest
import torch

from course_lib.costs.links import Link, collective_time
from course_lib.data_parallel import ShardedSampler
from course_lib.facts import measured_collectives
from course_lib.grading.compare import alike
from course_lib.grading.exercise import SentBytes
from course_lib.grading.judges.calls import sent_by
from course_lib.grading.judges.data_parallel.gradients import (
    AccumulatedBackward,
    AverageGradients,
    BucketedAverage,
    OverlappedStep,
    TopKAverage,
    bucket_bytes,
    hidden_bytes,
    why_left,
)
from course_lib.grading.judges.data_parallel.plans import (
    Buckets,
    MostDataParallelDevices,
    Shard,
    SmallestBatch,
    faults,
    fill,
    step_share,
)
from course_lib.grading.judges.models import ROUNDING, gradient_bytes, own_gradients, weighted_sum
from course_lib.grading.on_rank.data_parallel import EPOCHS, flat_gradients, leave_out_calling


@pytest.mark.parametrize("asked", [AverageGradients(), BucketedAverage(), AccumulatedBackward(), OverlappedStep()],
                         ids=lambda each: each.number)
def test_expected_gradients_are_those_of_each_batch_weighed_by_its_rows(asked):
    for trial in asked.trials(seed=1):
        batches = [(rank, i) for rank in trial.inputs for i in range(len(rank["batches"]))]
        rows = [len(rank["batches"][i][0]) for rank, i in batches]
        each = [{name: rank["given"].get(name) for name in rank["weights"]} if "given" in rank else
                own_gradients(rank, [i]) for rank, i in batches]  # of the example only the gradients are given
        mean = weighted_sum(each, 1 / sum(rows), rows)
        assert alike([mean] * trial.world_size, asked.solve(trial.inputs), ROUNDING)


def test_of_top_k_what_was_sent_and_what_is_owed_are_all_gradients():
    asked = TopKAverage()
    for trial in asked.trials(seed=3)[1:]:  # the example has a gradient of 0, which nobody owes
        n, k = trial.world_size, trial.inputs[0]["k"]
        gradients = [flat_gradients(rank) for rank in trial.inputs]
        answers = asked.solve(trial.inputs)
        for step in range(len(gradients[0])):
            so_far = sum(sum(own[:step + 1]) for own in gradients)
            sent = sum(n * answers[0][f"the result of step {i}"] for i in range(step + 1))
            owed = [answer[f"the residual after step {step}"] for answer in answers]
            assert torch.allclose(sent + sum(owed), so_far)
            assert all((residual == 0).sum() == k for residual in owed)
            for own, answer, residual in zip(gradients, answers, owed):
                total = own[step] + answer.get(f"the residual after step {step - 1}", 0)
                assert total[residual == 0].abs().min() >= residual.abs().max()


def test_a_rank_that_keeps_silent_about_its_calls_is_counted_by_the_operating_system():
    silent = [{"calls": []}, {"calls": [["all_reduce", 1 << 20, float(1 << 20)]]}]
    own = SentBytes([[0, 0], [0, 0]], exact=True)
    assert [sent_by(rank, silent, own) for rank in range(2)] == [0, 1 << 20]
    outside = SentBytes([[0, 1 << 20], [(1 << 20) + 999, 0]], exact=False)
    assert [sent_by(rank, silent, outside) for rank in range(2)] == [1 << 20, 1 << 20]  # 999 bytes are headers
    few = SentBytes([[0, 4096], [0, 0]], exact=False)
    assert sent_by(0, silent, few) == 0  # and so are a few thousand of several small calls
    assert sent_by(0, silent, outside, beforehand=1 << 20) == 0


@pytest.mark.parametrize("sizes, cap, buckets", [
    ([], 10, []), ([3], 2, [[0]]), ([4, 6], 10, [[1, 0]]), ([4, 7], 10, [[1], [0]]),
    ([1, 20, 1, 1], 10, [[3, 2], [1], [0]]),
])
def test_buckets_hold_what_fits_from_the_last_to_the_first(sizes, cap, buckets):
    assert fill(sizes, cap) == buckets


@pytest.mark.parametrize("given", [
    "nothing (None)", "a Tensor", [], [[]], [[0]], [[99]], [[0, 0]], [[0, 1, 2, 3, 4, 5], [0]],
    [[5], [4], [3], [2], [1], [0], []],
])
def test_plans_of_any_form_are_refused_with_words(given):
    asked = Buckets()
    assert asked.judge(asked.trials(seed=5)[0], [given], SentBytes([[0]], exact=True)).cause


def test_shards_are_refused_for_what_is_wrong_with_them():
    for shards, words in (([[0], [1]], "1 of 3 samples are on no rank"), ([[0, 1], [2, 0]], "1 come twice: the parts"),
                          ([[0, 1], [0, 1]], "the same samples"), ([[0, 1, 2], []], "differ by one at most"),
                          ([[0, 3], [1]], "there are indices from 0 to 3"), ([[0, 1], [1]], "different orders")):
        assert words in next(faults([shards], 3))
    straight, other = [[0, 2, 4, 6], [1, 3, 5, 7]], [[7, 2, 4, 6], [1, 3, 5, 0]]
    assert "nothing is shuffled" in next(faults([straight, straight], 8))
    assert "same order" in next(faults([other, other], 8))
    for good, N in (([[[0, 2], [1]]], 3), ([[[], [1], [0]]], 2), ([straight, other], 8)):
        assert list(faults(good, N)) == []


def test_an_order_that_is_counted_through_is_not_shuffled():
    N = 2001
    for step in (1, 7, 1000):
        order = [step * index % N for index in range(1, N + 1)]
        epochs = [[order[:1000], order[1000:]], [order[9:1009], order[1009:] + order[:9]]]
        assert any("equally far apart" in fault for fault in faults(epochs, N))
    for seed in range(200):
        order = torch.randperm(N, generator=torch.Generator().manual_seed(seed)).tolist()
        assert max(step_share(order[:1001], N), step_share(order[1::2], N)) < 0.01  # where 0.05 is allowed


def test_the_chapters_own_sampler_would_pass():
    asked = Shard()
    for trial in asked.trials(seed=0):
        answers = []
        for inputs in trial.inputs:
            own = ShardedSampler(inputs["num_samples"], inputs["rank"], inputs["world_size"], equal_lengths=False)
            shards = []
            for epoch in EPOCHS:
                own.set_epoch(epoch)
                shards.append(list(own))
            answers.append({"shards": shards, "again": shards, "moved": []})
        assert asked.judge(trial, answers, SentBytes([], exact=True)).cause is None
        for moved, whose in ((["Python", "torch"], "Python and torch"), (["numpy"], "numpy"), (True, "some")):
            refused = asked.wrong(trial, [{**answer, "moved": moved} for answer in answers])
            assert f"generator of {whose} has moved" in refused
        assert "int" in asked.wrong(trial, [{**answer, "shards": [[0.5]] * len(EPOCHS)} for answer in answers])


GRADIENT, WAIT, BEGIN = ["gradient", 0], ["wait", 0], ["begin", 100]


@pytest.mark.parametrize("order, hidden", [
    ([GRADIENT, BEGIN, GRADIENT, BEGIN, WAIT, WAIT], 100),  # the second one begins when nothing is left to compute
    ([GRADIENT, BEGIN, WAIT, GRADIENT, BEGIN, WAIT], 0),
    ([GRADIENT, GRADIENT, BEGIN, BEGIN, WAIT, WAIT], 0),
    ([GRADIENT, BEGIN, BEGIN, GRADIENT, WAIT, WAIT], 200),
    ([GRADIENT, BEGIN, GRADIENT, WAIT, BEGIN, GRADIENT], 0),  # under way meanwhile, but then a hook waits for it
    ([], 0),
])
def test_a_message_is_hidden_if_a_gradient_comes_before_anybody_waits(order, hidden):
    assert hidden_bytes(order) == hidden


def test_making_a_call_is_not_waiting_for_it():
    order = leave_out_calling([GRADIENT, BEGIN, WAIT, GRADIENT, BEGIN, WAIT, WAIT])
    assert order == [GRADIENT, BEGIN, GRADIENT, BEGIN, WAIT]


@pytest.mark.parametrize("order, words", [
    ([GRADIENT, GRADIENT, BEGIN, WAIT], "from a hook"), ([], "from a hook"),
    ([GRADIENT, BEGIN, WAIT, GRADIENT, BEGIN, WAIT], "computes nothing"),
    ([GRADIENT, GRADIENT, BEGIN, GRADIENT, BEGIN, WAIT], "can leave as soon as"),
])
def test_the_order_says_why_less_is_hidden_than_could_be(order, words):
    assert words in why_left(order)


def test_par_is_what_one_bucket_cannot_hide():
    example, *trials = OverlappedStep().trials(seed=3)
    assert len(bucket_bytes(example)) == 1  # one weight: nothing can be hidden
    for trial in trials:
        sizes = bucket_bytes(trial)
        assert len(sizes) > 1 and sum(sizes) == gradient_bytes(trial.inputs[0])
        assert 0 < sizes[-1] < sum(sizes) / 2


def test_the_smallest_batch_takes_as_long_as_the_buckets_of_a_ring():
    asked, source = SmallestBatch(), random.Random(4)
    for N, B, n, flops_per_s, alpha_s, beta, length in [each for _, each in (*asked.cases, asked.draw(source))]:
        messages_s = B * collective_time("all_reduce", "ring", 4 * N / B, n, Link(alpha_s, beta))
        fewest = asked.solve(N, B, n, flops_per_s, alpha_s, beta, length)
        backward_s, less_s = (4 * N * sequences * length / flops_per_s for sequences in (fewest, fewest - 1))
        assert backward_s >= messages_s > less_s


def test_at_the_most_devices_backward_and_an_all_reduce_over_all_cards_take_equally_long():
    asked, N, four_cards = MostDataParallelDevices(), 1.3e9, 4 * 25e9
    assert len(asked.trials(seed=1)) == 1  # one question, one answer
    n = asked.solve()
    assert n == pytest.approx(1283, rel=1e-3)
    backward_s = 4 * N * 3.2e6 / n / (0.4 * 312e12)
    assert backward_s == pytest.approx(2 * (n - 1) / n * 4 * N / four_cards)
    measured = measured_collectives("all_reduce", "A100", 2)[-1]  # in nodes of eight
    assert all(alike(n * fact.value / 200, n, asked.tolerance) for fact in measured.bus_bandwidth.values())


def test_of_the_smallest_batch_a_ring_has_one_kind_of_wire():
    asked = SmallestBatch()
    for label, arguments in (*asked.cases[1:-1], *(asked.draw(random.Random(seed)) for seed in range(50))):
        assert ("one node" in label) == ("NVLink" in label) == ("one GPU in a node" not in label)
        assert "NVLink" not in label or arguments[2] <= 8
