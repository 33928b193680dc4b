"""A schedule run on ranks gives the loss and the gradients of one process and of torch's own pipelines; it sends what
the formula says, keeps no more activations than the schedule does, and says what cannot work on every rank."""

import copy
import re

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.pipeline_parallel import (
    Action,
    PipelineParallel,
    Schedule,
    gpipe,
    interleaved_1f1b,
    measured_step,
    one_f_one_b,
    simulate,
    zb_v,
)
from course_lib.pipeline_parallel.dependencies import leaves, needs
from course_lib.pipeline_parallel.mailbox import AHEAD
from course_lib.runtime import RankFailed, launch, record_communication, record_memory, record_timeline
from tests.pipeline_parallel.cases import (
    GENERATORS,
    TORCH,
    WIDTH,
    any_schedule,
    case,
    gpt,
    my_stages,
    off_from_alone,
    off_from_torch,
)

# Same numbers

@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_every_schedule_gives_the_loss_and_the_gradients_of_one_process(p):
    # The GPT's embedding is its head: the two ends of the pipeline hold one parameter.
    def body():
        return {(name, m): off_from_alone("gpt", make(p, m)) for name, make in GENERATORS.items()
                for m in {p, 2 * p + 1}}

    for of_rank in launch(body, world_size=p):
        assert max(of_rank.values()) < 1e-12, of_rank


def test_shared_frozen_unused_and_twice_used_parameters_get_what_one_process_gives_them_over_several_steps():
    def body():
        p = dist.get_world_size()
        return {name: off_from_alone("sequential", make(p, 4), steps=2) for name, make in GENERATORS.items()}

    for of_rank in launch(body, world_size=3):
        assert max(of_rank.values()) < 1e-12, of_rank


def test_a_parameter_on_two_stages_that_neither_uses_keeps_no_gradient():
    class Holds(nn.Module):
        """A linear layer, beside a parameter that two stages hold and use where they are told to."""

        def __init__(self, used):
            super().__init__()
            self.layer, self.common, self.used = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.ones(WIDTH)), used
            self.shared = {"common": "common"}

        def forward(self, x):
            return self.layer(x) * self.common if self.used else self.layer(x)

    def body(used):
        stage = Holds(dist.get_rank() in used)
        pipeline = PipelineParallel([stage], gpipe(2, 2), None, nn.functional.mse_loss)
        for step in range(2):
            pipeline.step(torch.ones(2, WIDTH), torch.zeros(2, WIDTH))
            if step == 0 and stage.common.grad is not None:
                stage.common.grad = torch.ones(WIDTH)  # what earlier steps left
        return stage.common.grad

    assert launch(body, (), world_size=2) == [None, None]
    for used in ((0,), (1,), (0, 1)):
        first, second = launch(body, used, world_size=2)
        assert torch.equal(first, second) and not torch.equal(first, torch.ones(WIDTH))


@pytest.mark.parametrize("group_for_each_link", [False, True], ids=["gloo", "as NCCL needs them"])
def test_whatever_is_legal_runs_stages_anywhere_and_messages_needed_in_another_order_than_sent(group_for_each_link):
    def body():
        from course_lib.pipeline_parallel import mailbox

        if group_for_each_link:
            mailbox.works_off_in_order = lambda me, device: True
        return [off_from_alone("gpt", any_schedule(3, 3, 5, seed)) for seed in range(4)]

    for offs in launch(body, world_size=3):
        assert max(offs) < 1e-12, offs


@pytest.mark.parametrize("p", [2, 4])
def test_gradients_equal_those_of_torchs_pipelines(p):
    def body():
        return {kind: off_from_torch(kind, 2 * p) for kind in TORCH}

    for of_rank in launch(body, world_size=p):
        assert max(of_rank.values()) < 1e-12, of_rank


def test_ten_adamw_steps_end_where_one_process_ends_and_the_copies_of_the_tied_matrix_stay_equal_to_the_bit():
    def body():
        model, inputs, targets, loss_fn = case("gpt", 8)
        single = copy.deepcopy(model)
        schedule = one_f_one_b(4, 4)
        pipeline = PipelineParallel(my_stages(model, schedule), schedule, None, loss_fn)
        optimizers = [torch.optim.AdamW(module.parameters(), lr=1e-2) for module in (pipeline, single)]
        for _ in range(10):
            for optimizer in optimizers:
                optimizer.zero_grad()
            pipeline.step(inputs, targets)
            loss_fn(single(inputs)[0], targets).backward()
            for optimizer in optimizers:
                optimizer.step()
        ours = {name: p.detach() for stage in pipeline.stages for name, p in stage.named_parameters()}
        parameters = dict(single.named_parameters(remove_duplicate=False))
        # AdamW makes whole steps of rounding errors where a gradient is zero: the key's bias
        off = max((ours[name] - parameters[name]).abs().max().item() for name in ours if "qkv.bias" not in name)
        return off, ours.get("embedding.token.weight", ours.get("head.weight"))

    ranks = launch(body)
    assert max(off for off, _ in ranks) < 1e-6
    assert torch.equal(ranks[0][1], ranks[3][1])


def test_batches_of_another_size_may_follow_and_two_pipelines_may_share_the_world():
    def body():
        members = [[0, 2], [3, 1]][dist.get_rank() % 2]
        groups = [dist.new_group(ranks) for ranks in ([0, 2], [3, 1])]
        group = groups[dist.get_rank() % 2]
        assert sorted(dist.get_process_group_ranks(group)) == sorted(members)
        offs = [off_from_alone("gpt", zb_v(2, 4), rows=rows, group=group) for rows in (4, 8)]
        model, inputs, targets, loss_fn = case("gpt", 8)
        pipeline = PipelineParallel(my_stages(model, gpipe(2, 2), group), gpipe(2, 2), group, loss_fn)
        small, large = (pipeline.step(inputs[:rows], targets[:rows]) for rows in (2, 8))
        full = gpt()
        expected = [loss_fn(full(inputs[:rows])[0], targets[:rows]) for rows in (2, 8)]
        return [*offs, (small - expected[0]).abs().item(), (large - expected[1]).abs().item()]

    for offs in launch(body):
        assert max(offs) < 1e-12


def test_only_the_ends_of_the_pipeline_need_the_batch_and_every_rank_gets_the_loss():
    def body():
        model, inputs, targets, loss_fn = case("gpt", 3)
        last = dist.get_rank() == 2
        pipeline = PipelineParallel(my_stages(model, gpipe(3, 3)), gpipe(3, 3), loss_fn=loss_fn if last else None)
        loss = pipeline.step(inputs if dist.get_rank() == 0 else None, targets if last else None)
        return loss.item(), loss_fn(gpt()(inputs)[0], targets).item()

    for loss, expected in launch(body, world_size=3):
        assert loss == pytest.approx(expected, abs=1e-12)


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
    schedule = GENERATORS[name](p, m)
    model, inputs, targets, loss_fn = case("gpt", m)
    pipeline = PipelineParallel(my_stages(model, schedule), schedule, None, loss_fn)
    pipeline.step(inputs, targets)
    return pipeline, inputs, targets


def test_a_micro_batch_costs_two_messages_at_each_boundary_between_ranks_and_the_tied_matrix_one_each_way():
    rows, sequence, hidden, vocabulary, size = 1, 8, 16, 24, 8

    m, boundaries = 4, {"gpipe": 3, "1f1b": 3, "interleaved": 7, "zb_h1": 3, "zb_v": 6}

    def body():
        sent = {}
        for name in boundaries:
            pipeline, inputs, targets = stepped(name, 4, m)
            with record_communication() as log:
                pipeline.step(inputs, targets)
            sent[name] = log.message_bytes("send")
        return sent

    ranks = launch(body)
    for name, number in boundaries.items():
        activations = rows * sequence * hidden * size
        tied = 0 if name == "zb_v" else 2 * vocabulary * hidden * size  # a V holds both ends on one rank
        assert sum(sent[name] for sent in ranks) == 2 * m * number * activations + tied, name


# Memory

def test_activations_held_are_those_that_the_schedule_has_in_flight():
    m, middle, message = 8, 1, 8 * 16 * 8  # rank 1 holds blocks only

    def body():
        peaks = {}
        for name in ("naive", "gpipe", "1f1b", "zb_h1", "zb_h2"):
            pipeline, inputs, targets = stepped(name, 4, m)
            with record_memory(model=nn.ModuleList(pipeline.stages)) as log:
                pipeline.step(inputs, targets)
            assert log.by_kind["activations"] == 0 or dist.get_rank() != middle
            peaks[name] = log.peak_by_kind["activations"]
        return peaks

    peaks = launch(body)[middle]
    one = peaks.pop("naive")
    for name, peak in peaks.items():
        in_flight = simulate(GENERATORS[name](4, m)).peak_in_flight[middle]
        # In the naive pipeline as elsewhere, messages that were posted ahead are there, too.
        assert in_flight * (one - AHEAD * message) <= peak <= in_flight * one + AHEAD * message, (name, peak, one)


# Order and time

def recorded(name, p, m, **options):
    def body():
        schedule = GENERATORS[name](p, m)
        model, inputs, targets, loss_fn = case("gpt", m)
        pipeline = PipelineParallel(my_stages(model, schedule), schedule, None, loss_fn, **options)
        with record_timeline():
            for _ in range(2):
                pipeline.step(inputs, targets)

    return launch(body, world_size=p).timeline


@pytest.mark.parametrize("name", ["1f1b", "zb_h1", "zb_v"])
def test_ranks_do_what_the_schedule_says_in_its_order_and_nothing_before_what_it_needs(name):
    schedule = GENERATORS[name](3, 4)
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


def test_an_action_lasts_at_least_as_long_as_its_delay_says():
    delay = {"F": [0.01, 0.03], "I": 0.02, "W": 0.005}
    found = measured_step(one_f_one_b(2, 2), recorded("1f1b", 2, 2, delay=delay))
    for box in found.timeline:
        assert box.duration >= {"F": delay["F"][box.stage], "B": 0.025}[box.action.kind]


def test_a_step_that_was_not_recorded_as_a_whole_is_no_measurement():
    timeline = recorded("1f1b", 2, 2)
    with pytest.raises(ValueError, match="step 7 of '1F1B' is not in the timeline as a whole: recorded were steps"):
        measured_step(one_f_one_b(2, 2), timeline, step=7)
    with pytest.raises(ValueError, match="on all 2 ranks"):
        measured_step(one_f_one_b(2, 2), timeline.by_rank(0))


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
        return said, pipeline.step(x, x).item() > 0  # and the next good step works

    (first, first_works), (second, second_works) = launch(body, world_size=2)
    assert first_works and second_works and first == second
    for name, words in first.items():
        assert words == snapshot, name


def test_a_step_that_is_refused_leaves_the_gradients_of_earlier_ones():
    def body():
        model, inputs, targets, loss_fn = case("gpt", 4)
        pipeline = PipelineParallel(my_stages(model, gpipe(2, 2)), gpipe(2, 2), None, loss_fn)
        pipeline.step(inputs, targets)
        before = [parameter.grad.clone() for parameter in pipeline.parameters()]
        said = told(lambda: pipeline.step(inputs, targets[:3]))
        return said, all(map(torch.equal, before, (parameter.grad for parameter in pipeline.parameters())))

    for said, unchanged in launch(body, world_size=2):
        assert "at place 1 of the group: targets has 3 rows" in said and unchanged


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
