"""A step of a pipeline on 4 ranks: ours against the same schedule of torch.distributed.pipelining, on the same GPT.

`python -m benchmarks.pipeline_parallel [--delay S]` prints another table: the measured idle share of every schedule
beside the simulated one, where waiting stands in for a GPU's work (course_lib/pipeline_parallel/delay.py).
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules

from benchmarks.harness import Work, benchmark
from course_lib.pipeline_parallel import (
    PipelineParallel,
    Schedule,
    dualpipe_v,
    gpipe,
    interleaved_1f1b,
    measured,
    naive,
    one_f_one_b,
    partition,
    simulate,
    zb_h1,
    zb_h2,
    zb_v,
)
from course_lib.reference import GPT, GPTConfig, batches
from course_lib.reference.gpt import next_token_loss
from course_lib.runtime import launch, record_timeline

WORLD_SIZE, MICROBATCHES, ROUNDS = 4, 8, 11
# Eight stages of a block each, beside the embedding and the head. 2 rows of 64 tokens in a micro-batch.
CONFIG = GPTConfig(num_layers=8, hidden_size=256, num_heads=4, vocab_size=256, sequence_length=64)
SCHEDULES = {"Schedule1F1B": lambda: one_f_one_b(WORLD_SIZE, MICROBATCHES),
             "ScheduleInterleaved1F1B": lambda: interleaved_1f1b(WORLD_SIZE, MICROBATCHES, 2),
             "ScheduleZBVZeroBubble": lambda: zb_v(WORLD_SIZE, MICROBATCHES)}
Step = Callable[[Tensor, Tensor], object]


def ours(modules: list[nn.Module], schedule: Schedule) -> Step:
    return PipelineParallel(modules, schedule, None, next_token_loss).step


def theirs(modules: list[nn.Module], schedule: Schedule, kind: str) -> Step:
    held = schedule.stages[dist.get_rank()]
    stages = [PipelineStage(module, stage, schedule.num_stages, torch.device("cpu"))
              for module, stage in zip(modules, held)]
    single = len(held) == 1
    pipeline = getattr(schedules, kind)(stages[0] if single else stages, MICROBATCHES, next_token_loss)

    def step(inputs: Tensor, targets: Tensor) -> None:
        losses: list[Tensor] = []
        last = {"target": targets, "losses": losses, "return_outputs": False} if schedule.num_stages - 1 in held else {}
        pipeline.step(*([inputs] if 0 in held else []), **last)

    return step


def alternate(kind: str, rounds: int = ROUNDS) -> list[tuple[float, float]]:
    """On a rank: seconds of a step of ours and of torch's, turn by turn. Two are not timed: shapes are agreed upon."""
    schedule = SCHEDULES[kind]()
    torch.manual_seed(0)
    model = GPT(CONFIG)
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())  # torch's would not sum tied gradients
    pair = []
    for make in (ours, lambda modules, schedule: theirs(modules, schedule, kind)):
        stages = partition(copy.deepcopy(model), schedule.num_stages)
        modules = [stages[stage] for stage in schedule.stages[dist.get_rank()]]
        pair.append((modules, make(modules, schedule)))
    inputs, targets = batches(0, 0, 1, batch_size=2 * MICROBATCHES, sequence_length=CONFIG.sequence_length)
    times = []
    for number in range(rounds + 2):
        took = [0.0, 0.0]
        for side in (0, 1) if number % 2 else (1, 0):
            modules, step = pair[side]
            for module in modules:
                module.zero_grad()
            dist.barrier()
            started = time.perf_counter()
            step(inputs, targets)
            took[side] = time.perf_counter() - started
        times.append(tuple(took))
    return times[2:]


class SideBySide:
    """Both timed in the same launch: what slows the machine for a moment slows both."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.unread: tuple[list[float], list[float]] = ([], [])

    def seconds(self, side: int) -> float:
        """Median over the rounds of one launch of the time until the last rank is done; 0 is ours, 1 is torch's."""
        if not self.unread[side]:
            ranks = launch(alternate, self.kind, world_size=WORLD_SIZE, timeout=300)
            for each in (0, 1):
                slowest = [max(rank[turn][each] for rank in ranks) for turn in range(ROUNDS)]
                self.unread[each].append(statistics.median(slowest))
        return self.unread[side].pop()


def side_by_side(kind: str) -> tuple[Work, Work]:
    pair = SideBySide(kind)
    return lambda: pair.seconds(0), lambda: pair.seconds(1)


@benchmark(runs=3)
def pipeline_1f1b_4_ranks() -> tuple[Work, Work]:
    """A step of 1F1B with 8 micro-batches on 4 ranks, ours against torch.distributed.pipelining's."""
    return side_by_side("Schedule1F1B")


@benchmark(runs=3)
def pipeline_interleaved_4_ranks() -> tuple[Work, Work]:
    """The same with interleaved 1F1B, two chunks a rank."""
    return side_by_side("ScheduleInterleaved1F1B")


@benchmark(runs=3)
def pipeline_zb_v_4_ranks() -> tuple[Work, Work]:
    """The same with ZB-V, two chunks a rank and a backward pass in two parts."""
    return side_by_side("ScheduleZBVZeroBubble")


MOST = 0.03
ALL = (naive, gpipe, one_f_one_b, lambda p, m: interleaved_1f1b(p, m, 2), zb_h1, zb_h2, zb_v, dualpipe_v)


def recorded_step(schedule: Schedule, seconds: float) -> None:
    """On a rank: one step in which F, I and W of a rank's layers for one micro-batch last `seconds` each."""
    torch.manual_seed(0)
    stages = partition(GPT(GPTConfig(num_layers=8, hidden_size=16)), schedule.num_stages)
    held = schedule.stages[dist.get_rank()]
    delay = dict.fromkeys("FIW", seconds / len(held))
    pipeline = PipelineParallel([stages[stage] for stage in held], schedule, None, next_token_loss, delay)
    inputs, targets = batches(0, 0, 1, batch_size=MICROBATCHES, sequence_length=16)
    with record_timeline():
        pipeline.step(inputs, targets)


def idle_shares(seconds: float, tries: int) -> Iterator[tuple[str, float, float, int]]:
    """(schedule, simulated, measured, tries needed): another try where they are more than MOST apart, up to `tries`."""
    for make in ALL:
        schedule = make(WORLD_SIZE, MICROBATCHES)
        plan = simulate(schedule).bubble_fraction
        found: list[float] = []
        while len(found) < tries and not (found and abs(found[-1] - plan) <= MOST):
            found.append(measured(schedule, launch(recorded_step, schedule, seconds).timeline).bubble_fraction)
        yield schedule.name, plan, min(found, key=lambda share: abs(share - plan)), len(found)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline_parallel", description=__doc__)
    parser.add_argument("--delay", type=float, default=0.1, help="seconds of F, of I and of W (default: %(default)s)")
    parser.add_argument("--tries", type=int, default=3, help="at most, on a busy machine (default: %(default)s)")
    options = parser.parse_args()
    print(f"{'idle share of the total':<24}{'simulated':>10}{'measured':>10}{'points':>8}{'tries':>7}")
    for name, plan, found, tries in idle_shares(options.delay, options.tries):
        print(f"{name:<24}{plan:>10.1%}{found:>10.1%}{100 * (found - plan):>8.1f}{tries:>7}", flush=True)


if __name__ == "__main__":
    main()
