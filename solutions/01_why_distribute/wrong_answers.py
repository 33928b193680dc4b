"""Wrong answers to the exercises of chapter 1, as learners write them; tests/test_exercises.py has each refused.

Solutions are those of the notebook beside this file, in whose names it runs.
"""
# ruff: noqa: F821

import math

import torch
import torch.distributed as dist

from course_lib.facts import accelerator
from course_lib.grading.wrong_answers import wrong


@wrong("1.1", "weights alone")
def bytes_of_the_weights(num_parameters, zero_stage, num_devices):
    return 2 * num_parameters / (num_devices if zero_stage == 3 else 1)


@wrong("1.1", "stage 1 cuts the optimiser's state alone")
def bytes_cut_everything_at_every_stage(num_parameters, zero_stage, num_devices):
    return 16 * num_parameters / (num_devices if zero_stage else 1)


@wrong("1.1", "lack the master weights")
def bytes_without_master_weights(num_parameters, zero_stage, num_devices):
    N, n = num_parameters, num_devices
    cut = [n if zero_stage >= stage else 1 for stage in (1, 2, 3)]
    return N * (8 / cut[0] + 2 / cut[1] + 2 / cut[2])


@wrong("1.1", "stages add up")
def bytes_cut_one_group_a_stage(num_parameters, zero_stage, num_devices):
    group = {0: 1, 1: 12, 2: 2, 3: 2}[zero_stage]
    return num_parameters * (16 - group + group / num_devices)


@wrong("1.1", "it uses course_lib.why_distribute")
def bytes_by_the_chapter_itself(num_parameters, zero_stage, num_devices):
    from course_lib.why_distribute import training_memory

    return training_memory(num_parameters, "mixed", zero_stage, num_devices).total


@wrong("1.2", "error of the million seconds")
def days_with_a_thousand_lost(num_parameters, num_tokens, num_devices, peak_tflops, utilisation):
    return 6 * num_parameters * num_tokens / (num_devices * peak_tflops * 1e15 * utilisation) / 86_400


@wrong("1.2", "only the forward pass")
def days_of_the_forward_pass(num_parameters, num_tokens, num_devices, peak_tflops, utilisation):
    return 2 * num_parameters * num_tokens / (num_devices * peak_tflops * 1e12 * utilisation) / 86_400


@wrong("1.2", "multiplied by the utilisation")
def days_times_utilisation(num_parameters, num_tokens, num_devices, peak_tflops, utilisation):
    return 6 * num_parameters * num_tokens / (num_devices * peak_tflops * 1e12) * utilisation / 86_400


@wrong("1.2", "these are seconds")
def days_in_seconds(num_parameters, num_tokens, num_devices, peak_tflops, utilisation):
    return 6 * num_parameters * num_tokens / (num_devices * peak_tflops * 1e12 * utilisation)


@wrong("1.3", "that is HFU")
def mfu_counts_recomputed_flops(num_parameters, tokens_per_step, step_s, num_devices, peak_flops_per_s, recompute):
    return (8 if recompute else 6) * num_parameters * tokens_per_step / (step_s * num_devices * peak_flops_per_s)


@wrong("1.3", "they were never among the 6")
def mfu_takes_recomputation_off(num_parameters, tokens_per_step, step_s, num_devices, peak_flops_per_s, recompute):
    return (4 if recompute else 6) * num_parameters * tokens_per_step / (step_s * num_devices * peak_flops_per_s)


@wrong("1.3", "the peak is that of all of them")
def mfu_of_one_device(num_parameters, tokens_per_step, step_s, num_devices, peak_flops_per_s, recompute):
    return 6 * num_parameters * tokens_per_step / (step_s * peak_flops_per_s)


@wrong("1.4", "the serial share")
def share_that_is_serial(num_devices, single_s, parallel_s):
    return 1 - (1 - parallel_s / single_s) / (1 - 1 / num_devices)


@wrong("1.4", "that is the efficiency")
def share_that_is_efficiency(num_devices, single_s, parallel_s):
    return single_s / parallel_s / num_devices


@wrong("1.4", "infinitely many devices")
def share_for_infinitely_many(num_devices, single_s, parallel_s):
    return 1 - parallel_s / single_s


@wrong("1.4", "Gustafson's share")
def share_of_gustafson(num_devices, single_s, parallel_s):
    return (single_s / parallel_s - 1) / (num_devices - 1)


@wrong("1.5", "every rank reads every row")
def rows_of_all_for_all(tokens, s):
    return torch.stack([tokens[i * s: i * s + s + 1] for i in range((len(tokens) - 1) // s)])


@wrong("1.5", "a block of its own")
def rows_in_blocks(tokens, s):
    each, rank = (len(tokens) - 1) // s // dist.get_world_size(), dist.get_rank()
    return torch.stack([tokens[i * s: i * s + s + 1] for i in range(rank * each, (rank + 1) * each)])


@wrong("1.5", "lack the token that follows")
def rows_without_the_answer(tokens, s):
    rows = range(dist.get_rank(), (len(tokens) - 1) // s, dist.get_world_size())
    return torch.stack([tokens[i * s: i * s + s] for i in rows])


@wrong("1.5", "row i starts at i s")
def rows_that_skip_a_token(tokens, s):
    rows = range(dist.get_rank(), len(tokens) // (s + 1), dist.get_world_size())
    return torch.stack([tokens[i * (s + 1): (i + 1) * (s + 1)] for i in rows])


@wrong("1.5", "it is no whole row")
def rows_with_a_short_one_at_the_end(tokens, s):
    rows = range(dist.get_rank(), -(-len(tokens) // s), dist.get_world_size())
    return torch.stack([tokens[i * s: i * s + s + 1] for i in rows])


@wrong("1.6", "cannot hold the model")
def nodes_that_are_in_time(num_parameters, num_tokens, days, utilisation):
    H100 = accelerator("H100").peak_flops_per_s() * utilisation
    return math.ceil(6 * num_parameters * num_tokens / (days * 86_400 * H100) / 8)


@wrong("1.6", "and are not in time")
def nodes_that_hold_the_state(num_parameters, num_tokens, days, utilisation):
    return math.ceil(16 * num_parameters / (0.5 * accelerator("H100").memory_bytes) / 8)


@wrong("1.6", "these are devices")
def nodes_counted_as_devices(num_parameters, num_tokens, days, utilisation):
    return 8 * my_nodes_to_order(num_parameters, num_tokens, days, utilisation)


@wrong("1.6", "that share of their peak")
def nodes_at_their_peak(num_parameters, num_tokens, days, utilisation):
    return my_nodes_to_order(num_parameters, num_tokens, days, 1.0)
