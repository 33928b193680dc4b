"""nano3d.py is what it says: three axes on one page, with the numbers of one process."""

import functools
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from course_lib import nano3d
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.runtime import launch, record_communication
from tests.hybrid_parallel.cases import off, off_by_name

ROOT = Path(__file__).resolve().parent.parent
CONFIG = GPTConfig(num_layers=4, hidden_size=16, num_heads=4, vocab_size=256, sequence_length=16)
BATCH, STEPS, RATE = 12, 3, 1e-3
# Any two axes together; in .ci/run all three, each alone, and a stage in the middle.
DP_PP_TP_M = [(1, 2, 2, 3), (2, 2, 1, 3),
              *(pytest.param(*each, marks=pytest.mark.ci) for each in
                [(2, 2, 2, 3), (1, 3, 1, 4), (1, 1, 1, 1), (1, 1, 2, 3), (1, 2, 1, 1), (3, 1, 1, 2)])]


@functools.cache
def alone():
    """One process: losses, norms, the last step's clipped gradient, the parameters in the end."""
    torch.manual_seed(0)
    model = GPT(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        _, loss = model(*batches(step, batch_size=BATCH, sequence_length=CONFIG.sequence_length))
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
        losses.append(loss.item())
    named = dict(model.named_parameters())
    return losses, norms, {name: p.grad for name, p in named.items()}, {name: p.detach() for name, p in named.items()}


def slice_of(name, whole, t, r):
    """What rank r of t has of a parameter: said once more, in other words than nano3d's."""
    if "qkv" in name:
        return whole.view(3, t, -1, *whole.shape[1:])[:, r].flatten(0, 1)
    if name.endswith("output.weight"):
        return whole.chunk(t, 1)[r]
    return whole.chunk(t)[r] if "mlp.input" in name or "token" in name else whole


def on_ranks(dp, pp, tp, m, losses, norms, *whole):
    """On a rank: how far losses, norms, gradients and parameters are from those of one process; losses and names."""
    stage, adamw = nano3d.make(CONFIG, dp, pp, tp, RATE)
    rows = [batches(step, stage.mesh.dp.place, dp, batch_size=BATCH, sequence_length=CONFIG.sequence_length)
            for step in range(STEPS)]
    own_losses, own_norms = zip(*(nano3d.train_step(stage, adamw, *some, m) for some in rows))
    mine = {name.replace("head.weight", "embedding.token.weight"): p for name, p in stage.named_parameters()}
    found = [off(own_losses, losses), off(own_norms, norms)]
    for kind, expected in zip((lambda p: p.grad, lambda p: p.detach()), whole):
        found.append(off_by_name({name: kind(p) for name, p in mine.items()},
                                 {name: slice_of(name, expected[name], tp, stage.mesh.tp.place) for name in mine}))
    return found, own_losses, sorted(mine)


@pytest.mark.parametrize("dp, pp, tp, m", DP_PP_TP_M)
def test_losses_norms_gradients_and_weights_are_those_of_one_process(dp, pp, tp, m):
    ranks = launch(on_ranks, dp, pp, tp, m, *alone(), world_size=dp * pp * tp)
    for (loss, norm, gradient, parameter), losses, _ in ranks:
        assert max(loss, norm, gradient) < 1e-5 and parameter < 1e-3, (loss, norm, gradient, parameter)
        assert losses == ranks[0][1]
    assert {name for *_, names in ranks for name in names} == set(alone()[3])


def bytes_of_a_step(batch_size, m):
    """On a rank of pp2 tp2: bytes in sends, in all-reduces, and of parameters; its place along pp."""
    stage, adamw = nano3d.make(CONFIG, 1, 2, 2, RATE)
    rows = batches(0, batch_size=batch_size, sequence_length=CONFIG.sequence_length)
    with record_communication() as log:
        nano3d.train_step(stage, adamw, *rows, m)
    held = sum(p.nbytes for p in stage.parameters())
    return log.message_bytes("send"), log.message_bytes("all_reduce"), held, stage.mesh.pp.place


def test_each_rank_sends_what_the_formulas_say():
    B, m, T, D, V = 2, 3, CONFIG.sequence_length, CONFIG.hidden_size, CONFIG.vocab_size
    for sent, summed, held, place in launch(bytes_of_a_step, m * B, m, world_size=4):
        assert sent == 4 * (m * B * T * D + V * D / 2)  # activations or their gradients; the tied gradient
        along_tp = (4 * 2 + 1) * B * T * D + place * 3 * B * T  # two blocks; embedding, or head and three for the loss
        assert summed == 4 * m * along_tp + held + 16  # dp of one: its own gradients; loss and norm


def test_a_stage_runs_ahead_by_the_stages_behind_it_and_does_everything_once():
    for p in range(1, 6):
        for m in range(1, 8):
            for place in range(p):
                actions = nano3d.one_f_one_b(nano3d.Axis(p, place, None), m)
                in_flight = [sum(1 if kind == "forward" else -1 for kind, _ in actions[:end])
                             for end in range(len(actions) + 1)]
                assert sorted(actions) == sorted((kind, i) for kind in ("forward", "backward") for i in range(m))
                assert max(in_flight) == min(p - place, m) and min(in_flight) == 0


@pytest.mark.parametrize("p, m", [(2, 1), (2, 7), (3, 2), (4, 3), (4, 7), (5, 2), (5, 7)])
def test_no_stage_waits_for_ever_even_where_a_batch_of_messages_ends_only_with_the_last_of_them(p, m):
    """As NCCL's do: a message is over when both its ends stand at their batches with it."""
    batches_of = []  # by place, in order: the messages of which each batch consists
    for place in range(p):
        made, steps = set(), []
        for kind, i in (*nano3d.one_f_one_b(nano3d.Axis(p, place, None), m), (None, None)):
            source, dest = {"forward": (place - 1, place + 1), "backward": (place + 1, place - 1)}.get(kind, (-1, -1))
            steps.append(made | ({(kind, i, source, place)} if 0 <= source < p else set()))
            made = {(kind, i, place, dest)} if 0 <= dest < p else set()
        batches_of.append(steps)
    done: set = set()
    while any(batches_of):
        standing = [steps[0] if steps else set() for steps in batches_of]
        done |= {message for message in set().union(*standing)
                 if message in standing[message[2]] and message in standing[message[3]]}
        through = [steps for steps in batches_of if steps and steps[0] <= done]
        assert through, standing
        for steps in through:
            steps.pop(0)


REFUSED = [
    ((2, 1, 1), {"batch_size": 9}, "batch_size=9 with dp=2, tp=1, m=4: expected a multiple of 8"),
    ((1, 1, 2), {"config": GPTConfig(num_heads=1)}, "num_heads=1 with dp=1, tp=2, m=4: expected a multiple of 2"),
    ((1, 2, 1), {"config": GPTConfig(num_layers=1)}, "a block for each stage"),
    ((1, 1, 2), {"config": GPTConfig(dropout=0.1)}, "and no dropout"),
    ((2, 2, 1), {}, "dp=2, pp=2, tp=1 on 2 ranks, .*: expected dp \\* pp \\* tp ranks"),
]


def test_what_does_not_fit_is_refused_before_anything_is_sent():
    def body():
        for sizes, options, said in REFUSED:
            with pytest.raises(ValueError, match=said):
                nano3d.train(options.get("config", CONFIG), *sizes, 1, batch_size=options.get("batch_size", 16))

    launch(body, world_size=2)


@pytest.mark.ci
def test_torchrun_runs_it():
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m",
               "course_lib.nano3d", "--dp", "1", "--pp", "1", "--tp", "2", "--steps", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["0", "1"]
