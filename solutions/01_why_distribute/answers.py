"""Chapter 1: right and wrong answers, what each text stresses, each docstring's example; tools/answers.py reads it."""
# ruff: noqa: F821

import math
from decimal import Decimal
from fractions import Fraction

import numpy
import torch
import torch.distributed as dist

from course_lib.facts import accelerator
from tools.answers import example, right, term, wrong

SHARES = [
    wrong("1.3", "only the forward pass is counted, 2 FLOPs: training needs 6")(lambda *asked: my_mfu(*asked) / 3),
    wrong("1.3", "these are per cent: a share from 0 to 1 is asked")(lambda *asked: my_mfu(*asked) * 100),
    wrong("1.3", "numerator and denominator are swapped: a share is at most 1")(lambda *asked: 1 / my_mfu(*asked)),
    wrong("1.4", "that is the speed-up S: what share P explains it?")(lambda n, single_s, parallel_s:
                                                                      single_s / parallel_s),
    wrong("1.4", "S is turned around: the speed-up is the time alone over the time together")(
        lambda n, single_s, parallel_s: my_parallel_share(n, parallel_s, single_s))]


# ---- 1.1 my_training_bytes
RIGHT_1_1 = [
    right("1.1", "a Fraction")(
        lambda N, stage, n: (
            Fraction(int(N))
            * sum(Fraction(size, n if stage >= first else 1) for size, first in ((12, 1), (2, 2), (2, 3))))),
    right("1.1", "numpy's number")(
        lambda N, stage, n: (
            numpy.float64(N) * numpy.dot([12, 2, 2], numpy.where(stage >= numpy.array([1, 2, 3]), 1 / n, 1))))]


@wrong("1.1", "these are the weights alone: to train, gradients and the optimiser's state lie beside them")
def bytes_of_the_weights(num_parameters, zero_stage, num_devices):
    return 2 * num_parameters / (num_devices if zero_stage == 3 else 1)


@wrong("1.1", "everything is divided by the devices at every stage: stage 1 cuts the optimiser's state alone")
def bytes_cut_everything_at_every_stage(num_parameters, zero_stage, num_devices):
    return 16 * num_parameters / (num_devices if zero_stage else 1)


@wrong("1.1", "the optimiser's 8 bytes lack the master weights, 4 more in 32 bits")
def bytes_without_master_weights(num_parameters, zero_stage, num_devices):
    N, n = num_parameters, num_devices
    cut = [n if zero_stage >= stage else 1 for stage in (1, 2, 3)]
    return N * (8 / cut[0] + 2 / cut[1] + 2 / cut[2])


@wrong("1.1", "each stage cuts its own group and nothing else: stages add up, stage 2 cuts what stage 1 cuts too")
def bytes_cut_one_group_a_stage(num_parameters, zero_stage, num_devices):
    group = {0: 1, 1: 12, 2: 2, 3: 2}[zero_stage]
    return num_parameters * (16 - group + group / num_devices)


@wrong("1.1", "it uses course_lib.why_distribute")
def bytes_by_the_chapter_itself(num_parameters, zero_stage, num_devices):
    from course_lib.why_distribute import training_memory

    return training_memory(num_parameters, "mixed", zero_stage, num_devices).total


@wrong("1.1", "the gradients are missing: 2 bytes for each parameter")
def bytes_without_gradients(num_parameters, zero_stage, num_devices):
    cut = [num_devices if zero_stage >= stage else 1 for stage in (1, 2, 3)]
    return num_parameters * (12 / cut[0] + 2 / cut[2])


@wrong("1.1", "4 bytes are taken for a gradient: here gradients have 16 bits, 2 bytes")
def bytes_with_long_gradients(num_parameters, zero_stage, num_devices):
    gradients = 2 * num_parameters / (num_devices if zero_stage >= 2 else 1)
    return my_training_bytes(num_parameters, zero_stage, num_devices) + gradients


@wrong("1.1", "the stages come in another order: first the optimiser's state, then gradients, then parameters")
def bytes_with_the_stages_turned(num_parameters, zero_stage, num_devices):
    cut = [num_devices if zero_stage >= stage else 1 for stage in (1, 2, 3)]
    return num_parameters * (2 / cut[0] + 2 / cut[1] + 12 / cut[2])


BYTES_IN_DECIMAL = right("1.1", "a Decimal")(lambda *asked: Decimal(my_training_bytes(*asked)))


TEXT_1_1 = [
    term("1.1", "master weights, mean and variance in 32 bits", "12 * N", "8 * N"),
    term("1.1", "16-bit gradients", "gradients = 2 * N", "gradients = 4 * N"),
    term("1.1", "16-bit weights beside the master weights", "return weights + ", "return "),
    term("1.1", "the optimiser's state is cut from stage 1 on", "zero_stage >= 1", "zero_stage == 1"),
    term("1.1", "0 cuts nothing", "zero_stage >= 1", "zero_stage >= 0"),
    term("1.1", "gradients from stage 2 on", "zero_stage >= 2", "zero_stage >= 1"),
    term("1.1", "not at 2 alone", "zero_stage >= 2", "zero_stage == 2"),
    term("1.1", "weights at stage 3", "zero_stage >= 3", "zero_stage >= 2"),
    term("1.1", "over the devices", "(n if zero_stage >= 3 else 1)", "(zero_stage + 1)"),
    example("1.1", lambda inputs, answers: "{:.1f}e9 parameters on {} devices: stage 0 -> {:.0f}e9".format(
        inputs[0][0] / 1e9, inputs[0][2], answers[0]["value"] / 1e9))]


# ---- 1.2 my_training_days
RIGHT_1_2 = [
    right("1.2", "a tensor")(
        lambda N, D, n, peak, share: torch.tensor(6.0 * N * D, dtype=torch.float64) / (n * peak * 1e12 * share * 86_400)
    ),
    right("1.2", "by hours, in another order")(
        lambda N, D, n, peak, share: N / n * 6 / (peak * 1e12) * D / share / 3600 / 24),
    right("1.2", "in whole seconds: six digits are right")(
        lambda N, D, n, peak, share: round(6 * N * D / (n * peak * 1e12 * share)) / 86_400)]


@wrong("1.2", "expected 1.11289 days, 1.00001 times as much")
def days_with_four_places(num_parameters, num_tokens, num_devices, peak_tflops, utilisation):
    return round(my_training_days(num_parameters, num_tokens, num_devices, peak_tflops, utilisation), 4)


@wrong("1.2", "a thousand times too short: 1 TFLOP/s is 1e12 FLOP/s. This is the error of the million seconds")
def days_with_a_thousand_lost(num_parameters, num_tokens, num_devices, peak_tflops, utilisation):
    return 6 * num_parameters * num_tokens / (num_devices * peak_tflops * 1e15 * utilisation) / 86_400


@wrong("1.2", "only the forward pass is counted, 2ND: the backward pass does twice as much again")
def days_of_the_forward_pass(num_parameters, num_tokens, num_devices, peak_tflops, utilisation):
    return 2 * num_parameters * num_tokens / (num_devices * peak_tflops * 1e12 * utilisation) / 86_400


@wrong("1.2", "the time was multiplied by the utilisation: a device in half use takes twice as long")
def days_times_utilisation(num_parameters, num_tokens, num_devices, peak_tflops, utilisation):
    return 6 * num_parameters * num_tokens / (num_devices * peak_tflops * 1e12) * utilisation / 86_400


@wrong("1.2", "these are seconds: a day has 86,400")
def days_in_seconds(num_parameters, num_tokens, num_devices, peak_tflops, utilisation):
    return 6 * num_parameters * num_tokens / (num_devices * peak_tflops * 1e12 * utilisation)


DAYS = [
    wrong("1.2", "the backward pass counts twice the forward pass, not once: 6ND and not 4ND")(
        lambda *asked: my_training_days(*asked) * 4 / 6),
    wrong("1.2", "8ND counts a forward pass that is done twice: only with recomputation")(
        lambda *asked: my_training_days(*asked) * 8 / 6),
    wrong("1.2", "peak_tflops was taken for FLOP/s: a TFLOP is 1e12")(lambda *asked: my_training_days(*asked) * 1e12),
    wrong("1.2", "the utilisation is left out")(lambda *asked: my_training_days(*asked) * asked[-1]),
    wrong("1.2", "the utilisation is taken for per cent: it is a share, from 0 to 1")(
        lambda *asked: my_training_days(*asked) * 100),
    wrong("1.2", "these are hours: a day has 24")(lambda *asked: my_training_days(*asked) * 24),
    wrong("1.2", "the devices are left out: the work is shared by all of them")(
        lambda *asked: my_training_days(*asked) * asked[2])]
TEXT_1_2 = [
    term("1.2", "six FLOPs a parameter and token", "6 * num", "2 * num"),
    term("1.2", "all devices work", "num_devices * peak", "peak"),
    term("1.2", "at their utilisation", " * utilisation", ""),
    term("1.2", "a TFLOP is 1e12", "1e12", "1e15"),
    term("1.2", "days", "86_400", "3_600"),
    example("1.2", lambda inputs, answers: (
        "{:.0f}e9 parameters, {:.0f}e9 tokens, {} devices of {} TFLOP/s at {} -> {:.3f} days".format(
            inputs[0][0] / 1e9, inputs[0][1] / 1e9, *inputs[0][2:], answers[0]["value"])))]


# ---- 1.3 my_mfu
RIGHT_1_3 = [
    right("1.3", "numpy's number, clipped to a share")(
        lambda N, T, s, n, peak, recompute: numpy.clip(6 * N * T / s / n / peak, 0, 1)),
    right("1.3", "from what forward and backward take apart")(
        lambda N, T, s, n, peak, recompute: (2 * N * T + 4 * N * T) / (n * peak) / s)]


@wrong("1.3", "that is HFU: 8 FLOPs count the forward pass that is done twice. The model needs 6")
def mfu_counts_recomputed_flops(num_parameters, tokens_per_step, step_s, num_devices, peak_flops_per_s, recompute):
    return (8 if recompute else 6) * num_parameters * tokens_per_step / (step_s * num_devices * peak_flops_per_s)


@wrong("1.3", "recomputed FLOPs are taken off: they were never among the 6 that the model needs")
def mfu_takes_recomputation_off(num_parameters, tokens_per_step, step_s, num_devices, peak_flops_per_s, recompute):
    return (4 if recompute else 6) * num_parameters * tokens_per_step / (step_s * num_devices * peak_flops_per_s)


@wrong("1.3", "the number of devices is left out: the peak is that of all of them")
def mfu_of_one_device(num_parameters, tokens_per_step, step_s, num_devices, peak_flops_per_s, recompute):
    return 6 * num_parameters * tokens_per_step / (step_s * peak_flops_per_s)


TEXT_1_3 = [
    term("1.3", "recomputed FLOPs do not count", "6 * ", "(8 if recompute else 6) * "),
    term("1.3", "forward and backward", "6 * ", "2 * "),
    term("1.3", "the peak of all devices", "step_s * num_devices", "step_s"),
    term("1.3", "in the seconds of the step", "(step_s * num", "(num"),
    example("1.3", lambda inputs, answers: (
        "{:.0f}e9 parameters, {:.0f}e6 tokens, {} s on {} devices of {:.0f}e12 FLOP/s -> {}".format(
            inputs[0][0] / 1e9, inputs[0][1] / 1e6, inputs[0][2], inputs[0][3], inputs[0][4] / 1e12, answers[0]["value"]
        )))]


# ---- 1.4 my_parallel_share
def solved(n, one, many):
    low, high = 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if one * (1 - middle + middle / n) > many else (low, middle)
    return low


RIGHT_1_4 = [
    right("1.4", "solved by bisection")(lambda n, one, many: solved(n, one, many)),
    right("1.4", "from the speed-up, a tensor")(
        lambda n, one, many: torch.tensor(max(0.0, (1 - 1 / (one / many)) / (1 - 1 / n)), dtype=torch.float64))]


@wrong("1.4", "that is the serial share, 1 - P: the parallel one is asked")
def share_that_is_serial(num_devices, single_s, parallel_s):
    return 1 - (1 - parallel_s / single_s) / (1 - 1 / num_devices)


@wrong("1.4", "that is the efficiency, S/n: it says how much each device gave, not which share could be split")
def share_that_is_efficiency(num_devices, single_s, parallel_s):
    return single_s / parallel_s / num_devices


@wrong("1.4", "1 - 1/S is P only for infinitely many devices: P/n of the time is parallel work, too")
def share_for_infinitely_many(num_devices, single_s, parallel_s):
    return 1 - parallel_s / single_s


@wrong("1.4", "that is Gustafson's share, S = (1 - P) + P n: here the work is fixed, not the time")
def share_of_gustafson(num_devices, single_s, parallel_s):
    return (single_s / parallel_s - 1) / (num_devices - 1)


@wrong("1.4", "more devices that make it slower bring nothing: 0, not a share below it")
def share_below_nothing(num_devices, single_s, parallel_s):
    return (1 - parallel_s / single_s) / (1 - 1 / num_devices)


SHARE_ROUNDED = [wrong("1.4", "it is rounded: six digits of the share are asked")(
    lambda *asked, digits=digits: round(my_parallel_share(*asked), digits)) for digits in (2, 3)]


TEXT_1_4 = [
    term("1.4", "0 where it got slower", "max(0.0, ", "max(-1.0, "),
    term("1.4", "0 where it brought nothing", "max(0.0, ", "max(0.01, "),
    term("1.4", "the share, not the speed-up's", " / (1 - 1 / num_devices)", ""),
    term("1.4", "the parallel share", "(1 - parallel_s / single_s)", "(parallel_s / single_s)"),
    example("1.4", lambda inputs, answers: (
        "{} devices, {:g} s and {:g} s -> {:g}".format(*inputs[0], answers[0]["value"])))]


# ---- 1.5 my_rows
@right("1.5", "unfolded")
def rows_unfolded(tokens, s):
    return tokens.unfold(0, s + 1, s)[dist.get_rank()::dist.get_world_size()]


@right("1.5", "by index")
def rows_by_index(tokens, s):
    starts = torch.arange(0, len(tokens) - s, s)[dist.get_rank()::dist.get_world_size()]
    return tokens[starts[:, None] + torch.arange(s + 1)]


@wrong("1.5", "every rank reads every row: n devices then learn the same from each")
def rows_of_all_for_all(tokens, s):
    return torch.stack([tokens[i * s: i * s + s + 1] for i in range((len(tokens) - 1) // s)])


@wrong("1.5", "each rank reads a block of its own: no row is read twice, but rank r should begin at row r and step by "
       "n, so that all ranks together read the text in order")
def rows_in_blocks(tokens, s):
    each, rank = (len(tokens) - 1) // s // dist.get_world_size(), dist.get_rank()
    return torch.stack([tokens[i * s: i * s + s + 1] for i in range(rank * each, (rank + 1) * each)])


@wrong("1.5", "the rows lack the token that follows: without it the last one has no answer")
def rows_without_the_answer(tokens, s):
    rows = range(dist.get_rank(), (len(tokens) - 1) // s, dist.get_world_size())
    return torch.stack([tokens[i * s: i * s + s] for i in rows])


@wrong("1.5", "rows overlap in one token: row i starts at i s and not at i (s + 1)")
def rows_that_skip_a_token(tokens, s):
    rows = range(dist.get_rank(), len(tokens) // (s + 1), dist.get_world_size())
    return torch.stack([tokens[i * (s + 1): (i + 1) * (s + 1)] for i in rows])


@wrong("1.5", "rank r starts at row r but reads all that follow: step by the number of ranks")
def rows_without_a_step(tokens, s):
    rows = range(dist.get_rank(), (len(tokens) - 1) // s)
    return torch.stack([tokens[i * s: i * s + s + 1] for i in rows])


@wrong("1.5", "the last row of some rank is missing: (len(tokens) - 1) // s rows are whole")
def rows_without_the_last(tokens, s):
    rows = range(dist.get_rank(), (len(tokens) - 1) // s - 1, dist.get_world_size())
    return torch.stack([tokens[i * s: i * s + s + 1] for i in rows])


@wrong("1.5", "it is no whole row")
def rows_with_a_short_one_at_the_end(tokens, s):
    rows = range(dist.get_rank(), -(-len(tokens) // s), dist.get_world_size())
    return torch.stack([tokens[i * s: i * s + s + 1] for i in rows])


TEXT_1_5 = [
    term("1.5", "each row takes one token more", "+ s + 1]", "+ s]"),
    term("1.5", "row i begins at token i s", "i * s: i * s + s", "i * (s + 1): i * (s + 1) + s"),
    term("1.5", "rank r gets row r first", "range(dist.get_rank(), ", "range(0, "),
    term("1.5", "and then r + R", "num_rows, dist.get_world_size())", "num_rows)"),
    term("1.5", "what makes no whole row is nobody's", "(len(tokens) - 1) // s", "-(-(len(tokens) - 1) // s)"),
    term("1.5", "all whole rows are somebody's", "(len(tokens) - 1) // s", "(len(tokens) - 1) // s - 1"),
    term("1.5", "the last token begins no row", "(len(tokens) - 1) // s", "len(tokens) // s"),
    term("1.5", "nothing is sent", "    mine = ", "    dist.broadcast(tokens, 0)\n    mine = "),
    example("1.5", lambda inputs, answers: [
        "tokens {}, s = {}, two ranks".format(" ".join(map(str, inputs[0][0].tolist())), inputs[0][1]),
        *(f"rank {rank} returns {answer['returned'].tolist()}" for rank, answer in enumerate(answers))])]


# ---- 1.6 my_nodes_to_order
RIGHT_1_6 = [
    right("1.6", "numpy's ceiling")(
        lambda N, D, days, share: numpy.ceil(
            max(6 * N * D / (days * 86_400 * 989.5e12 * share), 16 * N / 40e9) / 8).astype(int)),
    right("1.6", "counted up until it will do")(
        lambda N, D, days, share: next(
            nodes
            for nodes in range(1, 10**6)
            if (6 * N * D <= 8 * nodes * days * 86_400 * 989.5e12 * share and 16 * N <= 8 * nodes * 40e9)))]


@wrong("1.6", "these nodes are in time, and cannot hold the model: its state needs more devices than the work")
def nodes_that_are_in_time(num_parameters, num_tokens, days, utilisation):
    H100 = accelerator("H100").peak_flops_per_s() * utilisation
    return math.ceil(6 * num_parameters * num_tokens / (days * 86_400 * H100) / 8)


@wrong("1.6", "these nodes hold the state, and are not in time: the work needs more devices than the memory")
def nodes_that_hold_the_state(num_parameters, num_tokens, days, utilisation):
    return math.ceil(16 * num_parameters / (0.5 * accelerator("H100").memory_bytes) / 8)


@wrong("1.6", "these are devices: a node has 8")
def nodes_counted_as_devices(num_parameters, num_tokens, days, utilisation):
    return 8 * my_nodes_to_order(num_parameters, num_tokens, days, utilisation)


@wrong("1.6", "the utilisation is left out: devices do that share of their peak")
def nodes_at_their_peak(num_parameters, num_tokens, days, utilisation):
    return my_nodes_to_order(num_parameters, num_tokens, days, 1.0)


@wrong("1.6", "only the forward pass is counted, 2ND: training takes 6ND")
def nodes_for_forward_alone(num_parameters, num_tokens, days, utilisation):
    return my_nodes_to_order(num_parameters, num_tokens / 3, days, utilisation)


@wrong("1.6", "a day has 86,400 seconds: these are hours")
def nodes_for_hours(num_parameters, num_tokens, days, utilisation):
    return my_nodes_to_order(num_parameters, num_tokens, days / 24, utilisation)


def devices(num_parameters, num_tokens, days, utilisation):
    """In time, and for the state with all of the memory."""
    device = accelerator("H100")
    return (6 * num_parameters * num_tokens / (days * 86_400 * device.peak_flops_per_s() * utilisation),
            16 * num_parameters / device.memory_bytes)


@wrong("1.6", "all of the memory is taken for the state: half of it is for activations and what else there is")
def nodes_that_hold_nothing_but_the_state(*asked):
    return math.ceil(max(devices(*asked)) / 8)


@wrong("1.6", "2 bytes a parameter are the weights alone: gradients and the optimiser's state make 16")
def nodes_that_hold_the_weights(*asked):
    in_time, state = devices(*asked)
    return math.ceil(max(in_time, 2 * state / 8) / 8)


@wrong("1.6", "devices are rounded down before they are nodes: a part of a device that is needed takes one more")
def nodes_of_whole_devices(*asked):
    in_time, state = devices(*asked)
    return math.ceil(int(max(in_time, 2 * state)) / 8)


@wrong("1.6", "nodes are rounded to the nearest whole number: the fewest that are enough are rounded up")
def nodes_rounded(*asked):
    in_time, state = devices(*asked)
    return max(1, round(max(in_time, 2 * state) / 8))


@wrong("1.6", "the two needs are added up: the same devices do both, so the larger one decides")
def nodes_for_both_needs_together(*asked):
    in_time, state = devices(*asked)
    return math.ceil((in_time + 2 * state) / 8)


TEXT_1_6 = [
    term("1.6", "the state has to fit", "max(in_time, in_memory)", "in_time"),
    term("1.6", "in time", "max(in_time, in_memory)", "in_memory"),
    term("1.6", "the same devices do both", "max(in_time, in_memory)", "(in_time + in_memory)"),
    term("1.6", "16 bytes a parameter", "16 * ", "2 * "),
    term("1.6", "half of the memory", "0.5 * device", "device"),
    term("1.6", "at the utilisation", " * utilisation)", ")"),
    term("1.6", "nodes of eight", " / 8)", ")"),
    term("1.6", "whole nodes, and enough", "math.ceil(", "round("),
    term("1.6", "no more than that", "math.ceil(", "1 + int("),
    term("1.6", "parts of devices count", "max(in_time, in_memory)", "int(max(in_time, in_memory))"),
    example("1.6", lambda inputs, answers: "{:.2f}e9 parameters, {:.0f}e12 tokens, {} days at {} -> {}".format(
        inputs[0][0] / 1e9, inputs[0][1] / 1e12, *inputs[0][2:], answers[0]["value"]))]
