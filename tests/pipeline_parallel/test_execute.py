"""A schedule run on ranks gives the loss and the gradients of one process; it sends what the formula says, keeps no
more activations than the schedule does, and says what cannot work on every rank."""

import re

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.pipeline_parallel import (
    SCHEDULES,
    Action,
    PipelineParallel,
    Schedule,
    gpipe,
    interleaved_1f1b,
    mailbox,
    measured_step,
    one_f_one_b,
    simulate,
    zb_v,
)
from course_lib.pipeline_parallel.mailbox import AHEAD
from course_lib.pipeline_parallel.validate import leaves, needs
from course_lib.reference.gpt import next_token_loss
from course_lib.runtime import RankFailed, launch, record_communication, record_memory, record_timeline
from tests.pipeline_parallel.cases import WIDTH, any_schedule, case, gpt, my_stages, off_from_alone, pipeline_of

# Same numbers

@pytest.mark.parametrize("kind, p, steps", [*(("gpt", p, 1) for p in (1, 2, 3, 4)), ("sequential", 3, 2)])
def test_every_schedule_gives_the_loss_and_the_gradients_of_one_process(kind, p, steps):
    """The GPT's embedding is its head, on both ends; the other has frozen, unused and twice used parameters."""
    def body():
        return {(name, m): off_from_alone(kind, make(p, m), steps=steps) for name, make in SCHEDULES.items()
                for m in ({p, 2 * p + 1} if kind == "gpt" else {p + 1})}

    for of_rank in launch(body, world_size=p):
        assert max(of_rank.values()) < 1e-12, of_rank


class Holds(nn.Module):
    """A linear layer, beside a parameter that two stages hold and use where they are told to."""

    def __init__(self, used):
        super().__init__()
        self.layer, self.common, self.used = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.ones(WIDTH)), used
        self.shared = {"common": "common"}

    def forward(self, x):
        return self.layer(x) * self.common if self.used else self.layer(x)


@pytest.mark.parametrize("used", [(), (0,), (1,), (0, 1)])
def test_a_parameter_on_two_stages_has_the_sum_on_both_or_where_neither_uses_it_no_gradient(used):
    def body():
        stage = Holds(dist.get_rank() in used)
        pipeline = PipelineParallel([stage], gpipe(2, 2), None, nn.functional.mse_loss)
        for step in range(2):
            pipeline.step(torch.ones(2, WIDTH), torch.zeros(2, WIDTH))
            if step == 0 and stage.common.grad is not None:
                stage.common.grad = torch.ones(WIDTH)  # what earlier steps left
        return stage.common.grad

    first, second = launch(body, world_size=2)
    assert first is second is None or torch.equal(first, second) and not torch.equal(first, torch.ones(WIDTH))
    assert (first is None) == (used == ())


@pytest.mark.parametrize("group_for_each_link", [False, True], ids=["gloo", "as NCCL needs them"])
def test_whatever_is_legal_runs_stages_anywhere_and_messages_needed_in_another_order_than_sent(group_for_each_link):
    def body():
        if group_for_each_link:
            mailbox.works_off_in_order = lambda me, device: True
        return [off_from_alone("gpt", any_schedule(3, 3, 5, seed)) for seed in range(4)]

    for offs in launch(body, world_size=3):
        assert max(offs) < 1e-12, offs


def test_batches_of_another_size_may_follow_and_two_pipelines_may_share_the_world():
    def body():
        group = [dist.new_group(ranks) for ranks in ([0, 2], [3, 1])][dist.get_rank() % 2]
        pipeline, inputs, targets = pipeline_of("gpt", gpipe(2, 2), 8, group)
        offs = [off_from_alone("gpt", zb_v(2, 4), rows=rows, group=group) for rows in (4, 8)]
        for rows in (2, 8):
            expected = next_token_loss(gpt()(inputs[:rows])[0], targets[:rows])
            offs.append((pipeline.step(inputs[:rows], targets[:rows]) - expected).abs().item())
        return offs

    for offs in launch(body):
        assert max(offs) < 1e-12


def test_only_the_ends_need_the_batch_every_rank_gets_the_loss_and_both_ends_the_tied_gradient_to_the_bit():
    def body():
        model, inputs, targets, loss_fn = case("gpt", 3)
        expected, last = loss_fn(model(inputs)[0], targets).item(), dist.get_rank() == 2
        pipeline = PipelineParallel(my_stages(model, gpipe(3, 3)), gpipe(3, 3), loss_fn=loss_fn if last else None)
        loss = pipeline.step(inputs if dist.get_rank() == 0 else None, targets if last else None)
        return loss.item(), expected, model.head.weight.grad

    ranks = launch(body, world_size=3)
    assert all(loss == pytest.approx(expected, abs=1e-12) for loss, expected, _ in ranks)
    assert torch.equal(ranks[0][2], ranks[2][2]), "so that an optimiser keeps both copies equal"


def test_messages_larger_than_any_buffer_cross_without_stopping_the_ranks():
    def body():
        torch.manual_seed(0)
        layers = [nn.Linear(1, 1000), nn.Tanh(), nn.Tanh(), nn.Linear(1000, 1)]
        schedule = interleaved_1f1b(2, 4, 2)  # activations go both ways, and gradients, too
        pipeline = PipelineParallel(my_stages(nn.Sequential(*layers), schedule), schedule, None, nn.MSELoss())
        return pipeline.step(torch.ones(4000, 1), torch.ones(4000, 1)).item() > 0

    assert launch(body, world_size=2) == [True, True]


# Bytes

def stepped(name, p, m):
    """A pipeline of the GPT after a first step, in which shapes travel, and a batch for the next one."""
    pipeline, inputs, targets = pipeline_of("gpt", SCHEDULES[name](p, m))
    pipeline.step(inputs, targets)
    return pipeline, inputs, targets


def test_a_micro_batch_costs_two_messages_at_each_boundary_between_ranks_and_the_tied_matrix_one_each_way():
    m, message, tied = 4, 8 * 16 * 8, 24 * 16 * 8  # bytes: tokens, hidden, a number; vocabulary, hidden, a number
    boundaries = {"GPipe": 3, "1F1B": 3, "interleaved 1F1B": 7, "ZB-H1": 3, "ZB-V": 6}

    def body():
        sent = []
        for name in boundaries:
            pipeline, inputs, targets = stepped(name, 4, m)
            with record_communication() as log:
                pipeline.step(inputs, targets)
            sent.append(log.message_bytes("send"))
        return sent

    sums = [2 * m * number * message + (0 if name == "ZB-V" else 2 * tied)  # a V holds both ends on one rank
            for name, number in boundaries.items()]
    assert [sum(sent) for sent in zip(*launch(body))] == sums


# Memory

def test_activations_held_are_those_that_the_schedule_has_in_flight():
    m, middle, message = 8, 1, 8 * 16 * 8  # rank 1 holds blocks only

    def body():
        peaks = {}
        for name in ("naive", "GPipe", "1F1B", "ZB-H1", "ZB-H2"):
            pipeline, inputs, targets = stepped(name, 4, m)
            with record_memory(model=nn.ModuleList(pipeline.stages)) as log:
                pipeline.step(inputs, targets)
            assert log.by_kind["activations"] == 0 or dist.get_rank() != middle
            peaks[name] = log.peak_by_kind["activations"]
        return peaks

    peaks = launch(body)[middle]
    one = peaks.pop("naive")
    for name, peak in peaks.items():
        in_flight = simulate(SCHEDULES[name](4, m)).peak_in_flight[middle]
        # In the naive pipeline as elsewhere, messages that were posted ahead are there, too.
        assert in_flight * (one - AHEAD * message) <= peak <= in_flight * one + AHEAD * message, (name, peak, one)


# Order and time

def recorded(name, p, m, **options):
    def body():
        pipeline, inputs, targets = pipeline_of("gpt", SCHEDULES[name](p, m), **options)
        with record_timeline():
            for _ in range(2):
                pipeline.step(inputs, targets)

    return launch(body, world_size=p).timeline


@pytest.mark.parametrize("name", ["1F1B", "ZB-H1", "ZB-V"])
def test_ranks_do_what_the_schedule_says_in_its_order_and_nothing_before_what_it_needs(name):
    schedule = SCHEDULES[name](3, 4)
    timeline = recorded(name, 3, 4)
    for step in (0, 1):
        found = measured_step(schedule, timeline, step)  # raises where the order differs
        done = {}
        for box in sorted(found.timeline, key=lambda box: box.end):
            done[leaves(box.action, box.stage)] = box.end
        for box in found.timeline:
            for need in needs(box.action, box.stage, schedule.num_stages):
                assert done[need] <= box.start, (box, need)
        assert 0 < found.bubble_fraction < 1


def test_an_action_lasts_at_least_as_long_as_its_delay_says_and_what_was_not_recorded_is_no_measurement():
    schedule, delay = one_f_one_b(2, 2), {"F": [0.01, 0.03], "I": 0.02, "W": 0.005}
    timeline = recorded("1F1B", 2, 2, delay=delay)
    for box in measured_step(schedule, timeline).timeline:
        assert box.duration >= {"F": delay["F"][box.stage], "B": 0.025}[box.action.kind]
    with pytest.raises(ValueError, match="step 7 of '1F1B' is not in the timeline as a whole: recorded were steps"):
        measured_step(schedule, timeline, step=7)
    with pytest.raises(ValueError, match="on all 2 ranks"):
        measured_step(schedule, timeline.by_rank(0))


# What cannot work

def linear(num=1):
    return [nn.Linear(WIDTH, WIDTH) for _ in range(num)]


def told(make):
    try:
        make()
    except ValueError as error:
        return str(error)
    return "nothing"


def test_what_cannot_work_is_said_on_every_rank_and_nobody_hangs(snapshot):
    def body():
        rank, mse = dist.get_rank(), nn.functional.mse_loss
        good = one_f_one_b(2, 2)
        upside_down = Schedule("mine", 1, ((0,), (1,)), ((Action("B", 0), Action("F", 0)),) * 2)
        other_m = one_f_one_b(2, 2 + 2 * rank)
        x = torch.ones(4, WIDTH)
        pipeline = PipelineParallel(linear(), good, None, mse)
        pipeline.step(x, x)
        before = [parameter.grad.clone() for parameter in pipeline.parameters()]
        wrong = {
            "has_no_length": lambda: PipelineParallel(linear()[0], good, None, mse),
            "upside_down": lambda: PipelineParallel(linear(), upside_down, None, mse),
            "no_schedule": lambda: PipelineParallel(linear(), "1f1b", None, mse),
            "three_ranks": lambda: PipelineParallel(linear(), one_f_one_b(3, 3), None, mse),
            "two_modules_on_rank_1": lambda: PipelineParallel(linear(1 + rank), good, None, mse),
            "other_m": lambda: PipelineParallel(linear(), other_m, None, mse),
            "no_loss": lambda: PipelineParallel(linear(), good),
            "bad_delay": lambda: PipelineParallel(linear(), good, None, mse, delay={"X": 1}),
            "negative_delay": lambda: PipelineParallel(linear(), good, None, mse, delay={"F": [0.1, -1]}),
            "three_rows": lambda: pipeline.step(x[:3], x[:3]),
            "no_inputs": lambda: pipeline.step(None, x),
            "fewer_targets": lambda: pipeline.step(x, x[:2]),
        }
        said = {name: told(make) for name, make in wrong.items()}
        unchanged = all(map(torch.equal, before, (parameter.grad for parameter in pipeline.parameters())))
        return said, unchanged and pipeline.step(x, x).item() > 0  # and the next good step works

    (first, first_works), (second, second_works) = launch(body, world_size=2)
    assert first_works and second_works and first == second
    for name, words in first.items():
        assert words == snapshot, name


def test_outputs_of_the_wrong_kind_are_named():
    class Gives(nn.Module):
        def __init__(self, forward):
            super().__init__()
            self.forward = forward

    widths = iter([WIDTH, WIDTH - 1])  # stage 1 can do with the first one

    def body(first):
        modules = [first if dist.get_rank() == 0 else nn.Linear(WIDTH, 1)]
        pipeline = PipelineParallel(modules, gpipe(2, 2), None, nn.functional.mse_loss)
        pipeline.step(torch.ones(2, WIDTH), torch.ones(2, 1))

    for forward, words in (
            (lambda x: x.long(), "stage 0 returned int64[1, 6] on cpu: expected floating-point numbers"),
            (lambda x: (x, x), "stage 0 returned a tuple: expected one tensor"),
            (lambda x: x[:, :next(widths)], f"expected float32[1, {WIDTH}] on cpu, as for the first micro-batch")):
        with pytest.raises(RankFailed, match=re.escape(words)):
            launch(body, Gives(forward), world_size=2)
