"""Claims about the training loop: it learns from context, repeats bit for bit, and fails loudly."""

import copy
import math
import pickle
from dataclasses import replace

import cloudpickle
import pytest
import torch
from torch import nn

from course_lib.reference import (
    GPT,
    GPTConfig,
    TrainingLog,
    batches,
    evaluate,
    load_text,
    split_text,
    train,
    unigram_entropy,
)

TINY = GPTConfig(num_layers=1, hidden_size=16, num_heads=2, sequence_length=16)
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Sums in one order, so that runs can be compared bit for bit; and kind to a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tiny_model(seed: int = 0) -> GPT:
    torch.manual_seed(seed)
    return GPT(TINY)


@pytest.fixture(scope="module")
def default_run() -> TrainingLog:
    torch.manual_seed(0)
    return train(GPT(GPTConfig()))


def test_the_default_run_brings_held_out_loss_below_the_unigram_entropy_and_travels_from_a_rank_unchanged(default_run):
    everything, held_out = load_text(), split_text(load_text())[1]
    assert default_run.unigram_entropy == unigram_entropy(held_out)
    assert default_run.held_out_before == pytest.approx(math.log(256), abs=0.3)
    assert default_run.held_out_after < min(unigram_entropy(everything), unigram_entropy(held_out)) - 0.1
    assert default_run.learned_from_context
    assert (len(default_run.losses), default_run.tokens_seen) == (60, 60 * 16 * 64)
    assert pickle.loads(pickle.dumps(default_run)) == default_run


def test_the_picture_shows_every_loss_and_the_held_out_ones_at_their_steps_beside_the_entropy(default_run, monkeypatch):
    monkeypatch.setattr("course_lib.pictures.painter.to_png", lambda figure: figure)
    (axes,) = default_run.png().axes
    training, held_out, entropy = [list(zip(*line.get_data())) for line in axes.lines]
    both = [(0, default_run.held_out_before), (60, default_run.held_out_after)]
    assert training == list(enumerate(default_run.losses)) and held_out == both
    assert {loss for _, loss in entropy} == {default_run.unigram_entropy}
    assert [text.get_text() for text in axes.texts] == [f"{loss:.2f}" for _, loss in both]
    (axes,) = replace(default_run, held_out_before=None, held_out_after=None).png().axes
    assert len(axes.lines) == 2 and not axes.texts


def test_the_log_draws_itself_and_says_in_words_what_is_the_same_everywhere(default_run):
    bundle = default_run._repr_mimebundle_(include=None, exclude=None)
    assert bundle["image/png"].startswith(PNG_SIGNATURE) and b"Software" not in bundle["image/png"]
    assert bundle["image/png"] == default_run._repr_mimebundle_()["image/png"]
    words = "TrainingLog: 60 steps, 61,440 tokens; held-out loss below the unigram entropy of the text"
    assert bundle["text/plain"] == repr(default_run) == words
    log = TrainingLog(losses=(3.5,), unigram_entropy=3.2, tokens_seen=64, held_out_before=5.5, held_out_after=3.4)
    assert not log.learned_from_context and log._headline().startswith("Not yet learned from context")
    assert repr(log).endswith("held-out loss not below the unigram entropy of the text")
    log = train(tiny_model(), steps=2, held_out=False)
    assert log.held_out_before is None and log.held_out_after is None
    assert repr(log) == "TrainingLog: 2 steps, 512 tokens"
    assert log.alternative().startswith(f"{log}. Training loss went from {log.losses[0]:.2f} to ")
    assert log._repr_mimebundle_()["image/png"].startswith(PNG_SIGNATURE)


@pytest.mark.parametrize("rank, world_size", [(0, 1), (2, 3)])
def test_the_loop_is_plain_adamw_on_the_ranks_rows_from_the_same_seed_to_the_bit(rank, world_size):
    by_hand, ours, losses = tiny_model(), tiny_model(), []
    optimizer = torch.optim.AdamW(by_hand.parameters(), lr=1e-3, betas=(0.9, 0.95))
    for step in range(3):
        loss = by_hand(*batches(step, rank, world_size, batch_size=4, sequence_length=16))[1]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    how = {"steps": 3, "batch_size": 4, "rank": rank, "world_size": world_size}
    log = train(ours, **how)
    assert log.losses == tuple(losses) and all(map(torch.equal, by_hand.parameters(), ours.parameters()))
    assert train(tiny_model(), **how, seed=1).losses != log.losses
    shipped = cloudpickle.loads(cloudpickle.dumps(lambda: train(tiny_model(), **how)))  # as to a rank
    assert shipped() == log and train(Wrapper(tiny_model()), **how) == log


class Wrapper(nn.Module):
    """Keeps the model in `module`."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, *arguments):
        return self.module(*arguments)


def test_what_after_backward_writes_into_the_gradients_is_what_the_update_uses():
    frozen = tiny_model()
    start = copy.deepcopy(frozen.state_dict())
    calls = []

    def no_gradient(model: nn.Module) -> None:
        calls.append(model)
        for parameter in model.parameters():
            parameter.grad = None

    train(frozen, steps=3, after_backward=no_gradient)
    assert calls == [frozen] * 3
    assert all(torch.equal(start[name], value) for name, value in frozen.state_dict().items())


def test_evaluation_is_repeatable_and_leaves_no_trace():
    torch.manual_seed(0)
    model = GPT(GPTConfig(1, 16, 2, 256, 16, dropout=0.5))
    random_state = torch.get_rng_state()
    assert evaluate(model) == evaluate(model)
    assert model.training
    evaluate(model.eval())
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), random_state)


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_step():
    def break_third_step(model: nn.Module) -> None:
        seen.append(model)
        if len(seen) == 3:
            model.head.weight.data.fill_(math.nan)

    seen: list[nn.Module] = []
    with pytest.raises(FloatingPointError, match="the loss is nan at step 3"):
        train(tiny_model(), steps=9, after_backward=break_third_step)
    seen.clear()
    with pytest.raises(FloatingPointError, match="the loss is nan after step 2"):
        train(tiny_model(), steps=3, after_backward=break_third_step)


@pytest.mark.parametrize("arguments, message", [
    ({"steps": 0}, "steps must be at least 1, got 0"),
    ({"rank": 2, "world_size": 2}, "got rank=2, world_size=2"),
    ({"tokens": torch.full((500,), 256)}, "below the model's vocab_size=256, got a token 256"),
    ({"tokens": torch.zeros(160, dtype=torch.uint8)}, "too short for sequence_length=16"),
    ({"model": nn.Linear(2, 2)}, r"model must be a GPT, or a wrapper .* got Linear"),
])
def test_a_run_that_cannot_be_is_refused_with_what_was_given(arguments, message):
    with pytest.raises(ValueError, match=message):
        train(**{"model": tiny_model(), **arguments})


def test_progress_is_shown_by_rank_0_alone_and_nowhere_where_output_is_compared(capsys, monkeypatch):
    monkeypatch.delenv("PYTEST_CURRENT_TEST")
    monkeypatch.delenv("COURSE_LIB_STABLE_OUTPUT", raising=False)
    short = {"steps": 2, "batch_size": 2, "held_out": False}
    train(tiny_model(), **short)
    assert "loss=5." in capsys.readouterr().err
    train(tiny_model(), **short, rank=1, world_size=2)
    train(tiny_model(), **short, progress=False)
    for variable in ("COURSE_LIB_STABLE_OUTPUT", "PYTEST_CURRENT_TEST"):
        with monkeypatch.context() as patch:
            patch.setenv(variable, "1")
            train(tiny_model(), **short)
    assert capsys.readouterr() == ("", "")
