"""What PipelineParallel cannot work with, said before any rank waits for another."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from course_lib.groups.agreement import fingerprint
from course_lib.groups.membership import Member
from course_lib.pipeline_parallel.actions import Schedule
from course_lib.pipeline_parallel.delay import seconds_of
from course_lib.pipeline_parallel.validate import validate


def problem_with_arguments(stages: Any, schedule: Any, loss_fn: Any, delay: Any, me: Member) -> str | None:
    """What is wrong with the arguments of PipelineParallel on this rank."""
    # Returned and not raised: a rank that stopped alone would leave the others waiting.
    if not isinstance(schedule, Schedule):
        return f"schedule={schedule!r}: expected a Schedule, such as one_f_one_b(p, m)"
    try:
        validate(schedule)
        seconds_of(delay, schedule.num_stages)
    except ValueError as error:
        return str(error)
    if schedule.num_ranks != me.n:
        return f"the schedule {schedule.name!r} is for {schedule.num_ranks} ranks: expected {me.n}, as in the group"
    held = schedule.stages[me.r]
    if isinstance(stages, nn.Module) or not isinstance(stages, Sequence) \
            or not all(isinstance(stage, nn.Module) for stage in stages):
        return f"stages is a {type(stages).__name__}: expected a list of this rank's modules, one for each chunk"
    if len(stages) != len(held):
        return (f"{len(stages)} stage module{'s' * (len(stages) != 1)} given: expected {len(held)} on rank {me.r}, for "
                f"stage{'s' * (len(held) != 1)} {', '.join(map(str, held))} of the schedule {schedule.name!r}")
    if schedule.num_stages - 1 in held and not callable(loss_fn):
        return f"loss_fn={loss_fn!r}: expected a function of (outputs, targets) on the rank with the last stage"
    return None


def describe_schedule(schedule: Any) -> list[str]:
    """Lines that are the same on two ranks if the schedules are."""
    if not isinstance(schedule, Schedule):
        return ["none"]
    # A fingerprint for each list: only whether they differ is asked, and lists are long.
    actions = [f"for rank {rank} actions with the fingerprint {fingerprint(repr(actions)):x}"
               for rank, actions in enumerate(schedule.actions)]
    return [f"{schedule.name!r} with {schedule.num_microbatches} micro-batches", f"stages {schedule.stages}", *actions]


def problem_with_batch(batch: Any, inputs: bool, m: int) -> str | None:
    """What is wrong with the inputs of the first stage, or the targets of the last."""
    name, whose = ("inputs", "first") if inputs else ("targets", "last")
    if not isinstance(batch, Tensor) or not batch.dim():
        what = f"a tensor {list(batch.shape)}" if isinstance(batch, Tensor) else f"a {type(batch).__name__}"
        return f"{name} is {what}: expected a tensor of rows on the rank with the {whose} stage"
    if len(batch) % m or not len(batch):
        return (f"{name} has {len(batch)} rows, which cannot be cut into {m} micro-batches of equal size: expected a "
                f"multiple of {m}")
    return None


def describe_batch(inputs: Tensor | None, targets: Tensor | None) -> list[int]:
    """Rows and a number for shape and dtype of the inputs, rows of the targets; -1 where there are none."""
    looks = [-1, -1] if inputs is None else [len(inputs), fingerprint(f"{inputs.dtype} {list(inputs.shape)}")]
    return [*looks, -1 if targets is None else len(targets)]


def require_same_rows(everyones: list[list[int]]) -> tuple[int, int]:
    """The rows of the batch and how it looks, as all ranks know now. ValueError unless inputs and targets fit."""
    # Ranks that have no inputs or targets sent -1, so the largest number is that of the rank that has them.
    rows, looks, target_rows = (max(column) for column in zip(*everyones))
    if rows != target_rows:
        raise ValueError(f"inputs has {rows} rows and targets {target_rows}: expected as many")
    return rows, looks


def tensor_of(output: Any, stage: int) -> Tensor:
    """`output`, if it is one tensor. ValueError, naming the stage, otherwise."""
    if not isinstance(output, Tensor):
        raise ValueError(f"stage {stage} returned a {type(output).__name__}: expected one tensor")
    return output


def scalar_of(loss: Any) -> Tensor:
    """`loss` with shape (), if it is one number. ValueError otherwise."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise ValueError(f"loss_fn returned {f'a tensor {list(loss.shape)}' if isinstance(loss, Tensor) else loss!r}: "
                         "expected the mean over its rows, one number")
    return loss.reshape(())
