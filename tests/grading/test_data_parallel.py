"""The exercises of chapter 3 compare with one process, tell mistakes apart, and do not fall for odd answers."""

import pytest
import torch

from course_lib.costs.links import Link, collective_time
from course_lib.grading.calls import sent_by
from course_lib.grading.chapters.data_parallel import EXERCISES, compression
from course_lib.grading.chapters.data_parallel.averages import GradientExercise
from course_lib.grading.chapters.data_parallel.buckets import Buckets, filled
from course_lib.grading.chapters.data_parallel.limits import MostDevices, SmallestBatch
from course_lib.grading.chapters.data_parallel.overlap import OverlappedStep, calls_apart, hidden_bytes
from course_lib.grading.chapters.data_parallel.sampling import not_a_partition, not_shuffled
from course_lib.grading.chapters.models import ROUNDING, batch_loss, gradients_of, model_of
from course_lib.grading.compare import alike
from course_lib.grading.exercise import Traffic

GRADIENT_EXERCISES = [kind() for kind in EXERCISES if issubclass(kind, GradientExercise)]
BY_NUMBER = pytest.mark.parametrize("asked", GRADIENT_EXERCISES, ids=lambda each: each.number)


@BY_NUMBER
def test_expected_gradients_are_those_of_one_process_with_all_rows(asked):
    for trial in asked.trials(seed=1):
        batches = [batch for rank in trial.inputs for batch in rank["batches"]]
        model = model_of(trial.inputs[0])
        batch_loss(model, [torch.cat(column) for column in zip(*batches)]).backward()
        assert alike([gradients_of(model)] * trial.world_size, asked.expected(trial.inputs), ROUNDING)


@BY_NUMBER
def test_no_two_mistakes_of_the_first_trial_look_the_same_and_none_looks_right(asked):
    inputs = asked.trials(seed=2)[0].inputs
    answers = [("right", asked.expected(inputs)), *asked.mistakes(inputs)]
    answers = [(cause, given) for cause, given in answers if given[0]]
    for number, (cause, given) in enumerate(answers):
        assert not any(alike(given, other, ROUNDING) for told, other in answers[:number] if told != cause), cause


def test_no_mistake_with_the_residual_looks_right_and_no_two_look_the_same():
    inputs = compression.TopKAverage().trials(seed=3)[0].inputs
    answers = [("right", compression.simulated(inputs)), *compression.TopKAverage().mistakes(inputs)]
    for number, (cause, steps) in enumerate(answers):
        for told, other in answers[:number]:
            assert told == cause or not alike(steps, other, ROUNDING), (cause, told)


def test_a_rank_that_keeps_silent_about_its_calls_is_counted_by_the_operating_system():
    silent = [{"calls": []}, {"calls": [["all_reduce", 1 << 20, float(1 << 20)]]}]
    own = Traffic([[0, 0], [0, 0]], exact=True)
    assert [sent_by(rank, silent, own) for rank in range(2)] == [0, 1 << 20]
    outside = Traffic([[0, 1 << 20], [(1 << 20) + 999, 0]], exact=False)
    assert [sent_by(rank, silent, outside) for rank in range(2)] == [1 << 20, 1 << 20]  # 999 bytes are headers
    few = Traffic([[0, 4096], [0, 0]], exact=False)
    assert sent_by(0, silent, few) == 0  # and so are a few thousand of several small calls
    assert sent_by(0, silent, outside, beforehand=1 << 20) == 0


@pytest.mark.parametrize("sizes, cap, buckets", [
    ([], 10, []), ([3], 2, [[0]]), ([4, 6], 10, [[1, 0]]), ([4, 7], 10, [[1], [0]]),
    ([1, 20, 1, 1], 10, [[3, 2], [1], [0]]),
])
def test_buckets_hold_what_fits_from_the_last_to_the_first(sizes, cap, buckets):
    assert filled(sizes, cap) == buckets


@pytest.mark.parametrize("given", [
    "nothing (None)", "a Tensor", [], [[]], [[0]], [[99]], [[0, 0]], [[0, 1, 2, 3, 4, 5], [0]],
    [[5], [4], [3], [2], [1], [0], []],
])
def test_plans_of_any_form_are_refused_with_words(given):
    asked = Buckets()
    assert asked.judge(asked.trials(seed=5)[0], [given], Traffic([[0]], exact=True)).cause


def test_shards_are_refused_for_what_is_wrong_with_them():
    assert not_a_partition([[0, 2], [1]], 3) is None
    assert not_a_partition([[], [1], [0]], 2) is None
    for shards, words in (([[0], [1]], "1 samples are on no rank, the 1 beyond 2 equal parts"),
                          ([[0, 1], [2, 0]], "learned twice"), ([[0, 1], [0, 1]], "the same samples"),
                          ([[0, 1, 2], []], "differ by one at most"), ([[0, 3], [1]], "there is an index 3"),
                          ([[0, 1], [1]], "different orders")):
        assert words in not_a_partition(shards, 3)
    straight, other = [[0, 2, 4, 6], [1, 3, 5, 7]], [[7, 2, 4, 6], [1, 3, 5, 0]]
    assert "nothing is shuffled" in not_shuffled([straight, straight], 8)
    assert "same order" in not_shuffled([other, other], 8)
    assert not_shuffled([straight, other], 8) is None


GRADIENT, WAIT, BEGIN = ["gradient", "w"], ["wait", 0], ["begin", 100]


@pytest.mark.parametrize("order, hidden", [
    ([GRADIENT, BEGIN, GRADIENT, BEGIN, WAIT, WAIT], 100),  # the second one begins when nothing is left to compute
    ([GRADIENT, BEGIN, WAIT, GRADIENT, BEGIN, WAIT], 0),
    ([GRADIENT, GRADIENT, BEGIN, BEGIN, WAIT, WAIT], 0),
    ([GRADIENT, BEGIN, BEGIN, GRADIENT, WAIT, WAIT], 200),
    ([GRADIENT, BEGIN, GRADIENT, WAIT, BEGIN, GRADIENT], 200),  # one message at a time, each under way meanwhile
    ([], 0),
])
def test_a_message_is_hidden_if_a_gradient_comes_before_anybody_waits(order, hidden):
    assert hidden_bytes(order) == hidden


def test_making_a_call_is_not_waiting_for_it():
    assert calls_apart([GRADIENT, BEGIN, WAIT, GRADIENT, BEGIN, WAIT, WAIT]) == [GRADIENT, BEGIN, GRADIENT, BEGIN, WAIT]


def test_par_is_what_one_bucket_cannot_hide():
    asked = OverlappedStep()
    for trial in asked.trials(seed=3):
        sizes = [filled([each.nbytes for name, each in rank["weights"].items() if name not in rank["frozen"]],
                        rank["cap"]) for rank in trial.inputs]
        assert len(sizes[0]) > 1 and 0 < asked.par(trial) < 0.5


def test_the_smallest_batch_takes_as_long_as_the_buckets_of_a_ring():
    asked = SmallestBatch()
    for trial in asked.trials(seed=4):
        N, B, n, flops_per_s, alpha_s, beta, length = trial.inputs[0]
        messages_s = B * collective_time("all_reduce", "ring", 4 * N / B, n, Link(alpha_s, beta))
        backward_s = [4 * N * sequences * length / flops_per_s for sequences in (asked.expected(*trial.inputs[0]) - k
                                                                                 for k in (0, 1))]
        assert backward_s[0] >= messages_s > backward_s[1]


def test_at_the_most_devices_backward_and_the_all_reduce_take_equally_long():
    asked, N = MostDevices(), 1.3e9
    (flops_per_s, bytes_per_s), n = asked.rates(), asked.expected()
    backward_s = 4 * N * asked.BATCH / n / flops_per_s
    assert backward_s == pytest.approx(2 * (n - 1) / n * 4 * N / bytes_per_s)
