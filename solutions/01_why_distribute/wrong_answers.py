"""Wrong answers to the exercises of chapter 1, as learners write them; tests/test_exercises.py has each refused.

Solutions are those of the notebook beside this file, in whose names it runs.
"""
# ruff: noqa: F821

import math

import torch
import torch.distributed as dist

from course_lib.facts import accelerator
from tools.answers import wrong


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
        lambda *asked: my_training_days(*asked) * asked[2]),
]


@wrong("1.3", "that is HFU: 8 FLOPs count the forward pass that is done twice. The model needs 6")
def mfu_counts_recomputed_flops(num_parameters, tokens_per_step, step_s, num_devices, peak_flops_per_s, recompute):
    return (8 if recompute else 6) * num_parameters * tokens_per_step / (step_s * num_devices * peak_flops_per_s)


@wrong("1.3", "recomputed FLOPs are taken off: they were never among the 6 that the model needs")
def mfu_takes_recomputation_off(num_parameters, tokens_per_step, step_s, num_devices, peak_flops_per_s, recompute):
    return (4 if recompute else 6) * num_parameters * tokens_per_step / (step_s * num_devices * peak_flops_per_s)


@wrong("1.3", "the number of devices is left out: the peak is that of all of them")
def mfu_of_one_device(num_parameters, tokens_per_step, step_s, num_devices, peak_flops_per_s, recompute):
    return 6 * num_parameters * tokens_per_step / (step_s * peak_flops_per_s)


SHARES = [
    wrong("1.3", "only the forward pass is counted, 2 FLOPs: training needs 6")(lambda *asked: my_mfu(*asked) / 3),
    wrong("1.3", "these are per cent: a share from 0 to 1 is asked")(lambda *asked: my_mfu(*asked) * 100),
    wrong("1.3", "numerator and denominator are swapped: a share is at most 1")(lambda *asked: 1 / my_mfu(*asked)),
    wrong("1.4", "that is the speed-up S: what share P explains it?")(lambda n, single_s, parallel_s:
                                                                      single_s / parallel_s),
    wrong("1.4", "S is turned around: the speed-up is the time alone over the time together")(
        lambda n, single_s, parallel_s: my_parallel_share(n, parallel_s, single_s)),
]


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


@wrong("1.4", "more devices that make it slower bring nothing: 0, not a share below it")
def share_below_nothing(num_devices, single_s, parallel_s):
    return (1 - parallel_s / single_s) / (1 - 1 / num_devices)
