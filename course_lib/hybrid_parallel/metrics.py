"""What a step is worth knowing of: loss, speed, and what was sent along each axis and held, as a line of JSON.

What is sent and held is counted in one step, since counting slows it down; every further step has the same.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path

import torch

from course_lib.costs.flops import utilisation
from course_lib.facts import reported_as
from course_lib.hybrid_parallel.layout import PLANE, ParallelLayout
from course_lib.runtime import device, seconds
from course_lib.runtime.instruments.communication import CommunicationEvent, CommunicationLog, int_if_whole

AXES_BY_NAME = (("tp",), ("cp",), ("pp",), ("dp",), ("dp", "cp"))


@dataclass(frozen=True)
class StepMetrics:
    """One step. `tokens` are those of the whole batch; mfu is None where the device's peak is not known.

    bytes_by_axis: what all ranks sent, and memory_by_kind: the most that any rank held of each kind; None but in the
    one step where they are counted.
    """

    step: int
    loss: float
    gradient_norm: float
    learning_rate: float
    step_s: float
    tokens: int
    mfu: float | None
    bytes_by_axis: dict[str, int] | None = None
    memory_by_kind: dict[str, int] | None = None

    @property
    def tokens_per_s(self) -> float:
        """Tokens of all ranks together, a second."""
        return self.tokens / self.step_s


def write_line(path: Path | str, metrics: StepMetrics) -> None:
    """Append the step as a line of JSON to `path`."""
    with open(path, "a", encoding="utf-8") as lines:
        lines.write(json.dumps({**asdict(metrics), "tokens_per_s": metrics.tokens_per_s}) + "\n")


# Bytes

def bytes_by_axis(log: CommunicationLog, layout: ParallelLayout) -> dict[str, int | Fraction]:
    """What the ranks of `log` sent, by the axis of their group: "tp", "dp+cp" for both, "world" and so on."""
    alike: dict[tuple, list[CommunicationEvent]] = {}
    for event in log.events:
        if event.sent_bytes:
            alike.setdefault((event.rank, event.op == "all_to_all", event.group), []).append(event)
    found: dict[str, int | Fraction] = {}
    # A step has thousands of events and a few groups: the axis is looked up once for each group.
    for events in alike.values():
        axis = axis_of(events[0], layout)
        found[axis] = int_if_whole(found.get(axis, 0) + sum(event.sent_bytes for event in events))
    return found


def axis_of(event: CommunicationEvent, layout: ParallelLayout) -> str:
    """Groups of several axes may be the same ranks: then the first of AXES_BY_NAME, and ep or etp for an all-to-all.

    "dp+cp+tp" are all ranks of a stage, among which experts' choices are counted.
    """
    ranks, dealt_out = list(event.group), layout.ep * layout.etp > 1
    by_experts = (("ep",), ("etp",)) if event.op == "all_to_all" and dealt_out else ()
    for axes in (*by_experts, *AXES_BY_NAME, *([("edp",)] if dealt_out else [])):
        if layout.group_of(event.rank, *axes) == ranks:
            return "+".join(axes)
    return "dp+cp+tp" if layout.pp > 1 and layout.group_of(event.rank, *PLANE) == ranks else "world"


def sum_by_axis(of_ranks: list[Mapping[str, int | Fraction]]) -> dict[str, int]:
    """The sum over the ranks, axis by axis."""
    totals: dict[str, Fraction] = {}
    for of_rank in of_ranks:
        for axis, sent in of_rank.items():
            totals[axis] = totals.get(axis, Fraction(0)) + Fraction(sent)
    return {axis: round(totals[axis]) for axis in sorted(totals)}


# Speed

def mfu(flops: int, step_s: float, world_size: int, peak_flops_per_s: float | None) -> float | None:
    """The share of the peak that the model's FLOPs reach; None where the device's peak is not known."""
    return None if peak_flops_per_s is None else utilisation(flops, step_s, world_size, peak_flops_per_s)


def peak_of_device(dtype: torch.dtype) -> float | None:
    """FLOP/s of this rank's device in `dtype`: on a data sheet, or on a CPU those of the fastest of a few products.

    On a CPU all ranks measure at the same time, as they will compute; so it is the share that each gets. None for a GPU
    that facts does not know.
    """
    here = device()
    if here.type == "cpu":
        # Large enough to reach the peak, small enough to take milliseconds on each start.
        a = torch.ones(256, 256, dtype=dtype, device="cpu")
        return 2 * len(a)**3 / min(seconds(torch.mm, a, a) for _ in range(4))
    known = reported_as(torch.get_device_module(here).get_device_name(here))
    number_format = {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(dtype, "fp32")
    return known.peak_flops_per_s(number_format) if known else None
