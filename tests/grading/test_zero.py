"""The exercises of chapter 6 compare with one process that holds everything, and weigh."""

import pytest
import torch

from course_lib.grading.compare import alike
from course_lib.grading.exercise import SentBytes
from course_lib.grading.judges.models import ROUNDING, own_gradients, weighted_sum
from course_lib.grading.judges.zero.hooks import ScatteredGradients, WholeStep, memory_usage, pieces
from course_lib.grading.judges.zero.shards import (
    ADAMW_STEPS,
    BytesPerRank,
    ClipOverShards,
    MasterSteps,
    MostShardingDevices,
    ShardedAdamW,
    pieces_bytes,
)
from course_lib.grading.on_rank.zero import (
    SETTINGS,
    NothingPastItsStorage,
    await_release,
    coupled_gradient,
    piece_data,
)
from course_lib.zero import device_memory, held_bytes


@pytest.mark.parametrize("stage", (0, 1, 2, 3))
@pytest.mark.parametrize("precision, per_element", [("mixed", (2, 2, 12)), ("fp32", (4, 4, 8))])
def test_bytes_per_rank_are_those_of_the_chapter_and_of_the_paper_where_n_divides(stage, precision, per_element):
    asked = BytesPerRank()
    assert asked.solve([640, 64], 16, stage, *per_element) == device_memory(704, 16, stage, precision).total
    sizes = [1000, 9, 7, 5]
    held = held_bytes(sizes, 4, 3)  # fp32, with 4 bytes for each tensor's count of steps
    assert asked.solve(sizes, 4, 3, 4, 4, 8) == held.total - 4 * len(sizes)


def adamw(weights, gradient_at, decays, num_steps=ADAMW_STEPS):
    """AdamW as in the paper (Loshchilov & Hutter 2019, algorithm 2); decays: 1 where weights decay, else 0."""
    (b1, b2), lr = SETTINGS["betas"], SETTINGS["lr"]
    m = v = torch.zeros_like(weights)
    for t in range(1, num_steps + 1):
        gradient = gradient_at(t - 1, weights)
        m, v = b1 * m + (1 - b1) * gradient, b2 * v + (1 - b2) * gradient**2
        step = m / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + SETTINGS["eps"])
        weights = weights - lr * (step + SETTINGS["weight_decay"] * decays * weights)
    return weights


def test_expected_weights_are_those_of_the_papers_adamw_with_decay_for_the_first_of_them():
    asked = ShardedAdamW()
    for trial in asked.trials(seed=1):
        inputs = trial.inputs[0]
        decays = (torch.arange(len(inputs["weights"])) < inputs["num_decayed"]).double()
        right = adamw(inputs["weights"], lambda _, weights, inputs=inputs: coupled_gradient(inputs, weights), decays,
                      inputs["num_steps"])
        assert alike(asked.solve(trial.inputs), [right] * trial.world_size, ROUNDING)


def test_expected_pieces_are_those_of_the_papers_adamw_and_the_mean_of_the_ranks_gradients():
    asked = WholeStep()
    for trial in asked.trials(seed=5)[1:]:
        start, n = trial.inputs[0]["weights"], trial.world_size

        def in_shapes(flat, start=start):
            parts = flat.split([weight.numel() for weight in start.values()])
            return {name: part.view_as(weight) for (name, weight), part in zip(start.items(), parts)}

        def gradient_at(step, flat, trial=trial, in_shapes=in_shapes):
            own = [own_gradients({**rank, "weights": in_shapes(flat)}, [step]) for rank in trial.inputs]
            return torch.cat([each.flatten() for each in weighted_sum(own, 1 / trial.world_size).values()])

        trained = in_shapes(adamw(torch.cat([weight.flatten() for weight in start.values()]), gradient_at, 1.0))
        right = [[pieces(weight, n)[r] for weight in trained.values()] for r in range(n)]
        assert alike(asked.solve(trial.inputs), right, ROUNDING)


def test_a_frozen_parameter_has_no_pieces_and_needs_no_bytes():
    asked = ScatteredGradients()
    trial = asked.trials(seed=3)[1]
    expected = asked.solve(trial.inputs)
    assert all("0.bias" not in rank for rank in expected)
    assert sum(piece.nbytes for piece in expected[0].values()) == pieces_bytes(trial) == trial.inputs[0]["awaited"]


def test_pieces_are_equally_long_and_together_the_tensor():
    tensor = torch.arange(10.0).view(2, 5)
    assert [piece.tolist() for piece in pieces(tensor, 3)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 0]]
    assert torch.cat(pieces(tensor, 5)).shape == (10,)


def test_weights_are_the_rounding_of_the_master_weights_bit_by_bit():
    asked = MasterSteps()
    for trial in asked.trials(seed=2):
        before, n = trial.inputs[0]["weights"], trial.world_size
        masters = torch.cat(asked.solve(trial.inputs))
        assert masters.mean() < before.float().mean() and masters.shape == before.shape
        short, long = masters.chunk(n), masters.double().chunk(n)
        rounded = masters.bfloat16()
        one_off = rounded.clone()
        one_off[0] += 1 / 64
        for given, weights, words in (
            (short, rounded, None),
            (long, rounded, "expected its master weights"),
            ([None] * n, rounded, "nothing"),
            (short, one_off, "what the master weights of all ranks are when they are rounded"),
        ):
            sent = [["all_gather", 2, float(asked.bound(trial))]]
            answers = [{"weights": weights, "master": own, "calls": sent, "held": []} for own in given]
            cause = asked.judge(trial, answers, SentBytes([[0] * n] * n, exact=True)).cause
            assert cause is None if words is None else words in cause


def test_clipped_pieces_have_the_norm_that_torch_clips_to():
    asked = ClipOverShards()
    for trial in asked.trials(seed=4)[1:]:
        whole = torch.nn.Parameter(torch.zeros(14 * trial.world_size, dtype=torch.float64))
        whole.grad = torch.cat([piece for rank in trial.inputs for piece in rank["pieces"]])
        norm = torch.nn.utils.clip_grad_norm_([whole], trial.inputs[0]["max_norm"]).item()
        expected = asked.solve(trial.inputs)
        together = torch.cat([piece for rank in expected for piece in rank["pieces"]])
        assert alike(together, whole.grad, asked.tolerance)
        assert all(abs(rank["norm"] - norm) <= 1e-9 * norm for rank in expected)


def test_a_norm_of_zero_is_left_alone_whatever_divides_by_it():
    asked = ClipOverShards()
    trial = asked.trials(seed=4)[-1]
    answers = [{**rank, "calls": [["all_reduce", 8, 8.0]]} for rank in asked.solve(trial.inputs)]
    assert asked.judge(trial, answers, SentBytes([[0] * 2] * 2, exact=True)).cause is None
    divided = [{**answer, "pieces": [piece / 0.0 for piece in answer["pieces"]]} for answer in answers]
    assert "pieces, 0 is float64[5] = [nan" in asked.judge(trial, divided, SentBytes([[0] * 2] * 2, exact=True)).cause


def test_pieces_that_do_not_fit_the_model_are_told_by_their_number_and_kind():
    asked = WholeStep()
    trial = asked.trials(seed=4)[1]
    right = asked.solve(trial.inputs)
    for given, words in (([right[0][:1]] * 3, "has 1 parameters, where the model has 4"),
                         ([["a DTensor"] * 4] * 3, "has the pieces a DTensor"),
                         ([None] * 3, "it returned nothing (None): return the optimiser")):
        answers = [{"pieces": each, "calls": []} for each in given]
        assert words in asked.judge(trial, answers, SentBytes([[0] * 3] * 3, exact=True)).cause


def test_at_the_most_devices_the_slower_pass_computes_as_long_as_it_sends():
    asked = MostShardingDevices()
    for trial in asked.trials(seed=4):
        tokens, F, G, nvlink, card, w, g = trial.inputs[0]
        W = min(nvlink, G * card)
        T = tokens / asked.solve(*trial.inputs[0])
        spare = [2 * T / F - w / W, 4 * T / F - (w + g) / W]  # seconds for each parameter, forward and backward
        assert abs(min(spare)) < 1e-9 * T / F
        assert asked.solve(*trial.inputs[0]) > 2 * G  # several nodes, as the text says
    assert [int(asked.solve(3e6, 395.8e12, G, 450e9, 50e9, 2, 4)) for G in (8, 1)] == [2021, 252]


def test_a_rank_that_keeps_silent_about_its_calls_is_counted_by_the_operating_system():
    asked = ShardedAdamW()
    trial = asked.trials(seed=6)[3]
    state = 2 * trial.inputs[0]["weights"].nbytes // 4
    answers = [{"weights": weights, "calls": [], "kind": "AdamW", "state": state, "held": []}
               for weights in asked.solve(trial.inputs)]
    silent = asked.judge(trial, answers, SentBytes([[0] * 4] * 4, exact=True))
    assert not silent.right and "the ranks sent 0 B together, where 1.2 MB is the least" in silent.cause
    outside = asked.judge(trial, answers, SentBytes([[1 << 20] * 4] * 4, exact=False))
    assert outside.right and "rank 0 sent 4.2 MB, where 294.9 kB will do" in outside.cause
    assert outside.figures(believed=False).count("4.2 MB") == 1


def test_an_optimiser_without_the_moments_of_its_piece_did_not_take_the_steps():
    asked = ShardedAdamW()
    trial = asked.trials(seed=6)[1]
    sent = [["all_gather", 8, float(asked.bound(trial))]]
    answers = [{"weights": weights, "calls": sent, "kind": "NoneType", "state": 0, "held": []}
               for weights in asked.solve(trial.inputs)]
    judged = asked.judge(trial, answers, SentBytes([[0] * 3] * 3, exact=True))
    assert not judged.right and "it returned a NoneType that holds 0 B of state, where two moments" in judged.cause


def test_weighing_waits_for_what_is_about_to_be_freed_and_not_for_ever():
    falling = iter([30, 20, 10, 0])
    assert await_release(lambda: next(falling), 10) == 10
    assert await_release(lambda: 30, 10) == 30


@pytest.mark.parametrize("num_bytes", (0, 12))
@pytest.mark.parametrize("write", (lambda weight: weight.copy_(torch.ones(3)), lambda weight: weight.data.mul_(2),
                                   lambda weight: torch.add(torch.ones(3), 1, out=weight)),
                         ids=("copied", "multiplied", "out"))
def test_a_write_past_the_end_of_a_storage_is_an_error_and_not_a_crash(num_bytes, write):
    weight = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64), requires_grad=False)
    weight.untyped_storage().resize_(num_bytes)
    with NothingPastItsStorage():
        assert torch.empty_like(weight).detach().shape == (3,)  # nothing is written
        with pytest.raises(ValueError, match=f"a storage of {num_bytes} bytes is too small for 3 numbers of 8 bytes"):
            write(weight)
        weight.untyped_storage().resize_(weight.nbytes)
        write(weight)


def test_a_piece_without_memory_is_told_in_words():
    piece = torch.arange(3.0)
    assert torch.equal(piece_data(piece), piece)
    piece.untyped_storage().resize_(0)
    assert piece_data(piece) == "a tensor whose storage is empty"
    assert piece_data(None) is None and piece_data(3) == "an int"


@pytest.mark.parametrize("held, words", [
    ([10, 10, 10], None), ([99, 10, 10], "rank 1 holds 99 B of weights at first"),
    ([10, 12, 99], "rank 1 holds 12 B of weights in forward")])
def test_what_outlives_its_use_is_told_by_the_first_point_at_which_it_is_there(held, words):
    answers = [{"held": [list(look) for look in zip(("at first", "in forward", "in the end"), each)]}
               for each in ([10, 10, 10], held)]
    told = memory_usage(answers, 10, "weights").complaint
    assert told is None if words is None else words in told
