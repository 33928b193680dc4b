"""A schedule run on real ranks: PipelineParallel(stages, schedule, group, loss_fn).step(inputs, targets).

Every rank goes through its own list of actions. Before an action it waits for what the action needs from another rank,
after it, it sends what it has made; nothing else keeps the ranks together. The mean loss over the batch is the mean
over its micro-batches of their mean losses, so each micro-batch's loss is divided by m.

    m micro-batches      x what comes into a stage      y what leaves it, or in the last stage the loss / m

What it cannot work with it says on every rank, before any waits for another. `delay` stands in for a GPU's work: four
ranks that compute on two cores take turns, and no schedule is faster than another, so an action may be told to last at
least so long, and sleeps what is left.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.groups.exchange import agree, fingerprint, require_equal, start_agreement
from course_lib.groups.membership import Member, member
from course_lib.pipeline_parallel.mailbox import DTYPES, Mailbox
from course_lib.pipeline_parallel.schedules import Action, Schedule
from course_lib.pipeline_parallel.stages import SharedGradients, backward_input, shared_parameters
from course_lib.pipeline_parallel.validate import Result, leaves, validate
from course_lib.runtime import device, span
from course_lib.runtime.instruments.clocks import catch_up

Delay = Mapping[str, float | Sequence[float]]  # seconds by kind of action, for all stages or for each


class PipelineParallel:
    """This rank's part of a pipeline over the ranks of `group` (None: the world). Make it on all of them.

    `stages`: this rank's modules, one for each chunk of `schedule.stages[place]`; each takes a tensor and returns one
    of floating-point numbers. `loss_fn(outputs, targets)` is a mean over its rows. The first stage has no input to
    send a gradient for: there I does nothing, and W the whole backward pass.

    `delay` makes actions last at least so many seconds, by kind: {"F": 0.01, "I": 0.01, "W": [0.01, 0.02]}, one number
    or one for each stage. In a recorded timeline each action is a span, named by its kind, with the
    labels microbatch, chunk, stage and step.

    Raises ValueError, on every rank, for a schedule that cannot run and for what does not fit it.
    """

    def __init__(self, stages: Sequence[nn.Module], schedule: Schedule, group: dist.ProcessGroup | None = None,
                 loss_fn: Callable[[Tensor, Tensor], Tensor] | None = None, delay: Delay | None = None) -> None:
        self.me = member(group)
        problem = problem_with_arguments(stages, schedule, loss_fn, delay, self.me)
        mine = {} if problem else shared_parameters(stages)
        # All that can be wrong is exchanged once, here: no rank waits for a message of one that has raised.
        facts = agree(problem, (describe_schedule(schedule), sorted(mine)), self.me)
        require_equal([lines for lines, _ in facts], "schedules", "the same one")
        self.stages, self.schedule, self.loss_fn = list(stages), schedule, loss_fn
        self.stage_numbers, self.actions = schedule.stages[self.me.r], schedule.actions[self.me.r]
        self.last = schedule.num_stages - 1
        self.device = next((parameter.device for parameter in self.parameters()), device())
        self.mailbox = Mailbox(schedule, self.me, self.device)
        self.shared = SharedGradients(mine, [names for _, names in facts], self.me)
        self.seconds = None if delay is None else seconds_of(delay, schedule.num_stages)
        self.work = {"F": self._forward, "B": self._backward, "I": self._backward_input, "W": self._backward_weight}
        # Of the last batch: as long as a batch looks alike, no shape has to be sent ahead of its tensors.
        self.looks: tuple[int, int] | None = None
        self.num_steps = 0

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of all stages of this rank, each once, for an optimiser."""
        return nn.ModuleList(self.stages).parameters()

    @torch.enable_grad()
    def step(self, inputs: Tensor | None = None, targets: Tensor | None = None) -> Tensor:
        """Forward and backward for one batch, which is cut into m micro-batches of equal size along dim 0.

        Gradients are added to each parameter's .grad. Returns the mean loss, on every rank. Only the rank with the
        first stage reads `inputs`, only the one with the last `targets`. Raises ValueError, on every rank, for a batch
        that cannot be cut.
        """
        self._begin(inputs, targets)
        for action in self.actions:
            self._run(action)
        # Open by now unless this rank had no message: then it still has to hear whether the batch was right.
        self._open_mailbox().close()
        # Only after the last backward pass are the gradients of all copies complete.
        self.shared.finish()
        # Until the next step the batch is not held here.
        self.inputs = self.targets = ()
        self.num_steps += 1
        return self._loss_for_all()

    def _begin(self, inputs: Tensor | None, targets: Tensor | None) -> None:
        m, first, last = self.schedule.num_microbatches, 0 in self.stage_numbers, self.last in self.stage_numbers
        problem = problem_with_batch(inputs if first else targets, first, m) if first or last else None
        if first and last:
            problem = problem or problem_with_batch(targets, False, m)
        numbers = describe_batch(inputs if first and not problem else None,
                                        targets if last and not problem else None)
        # Begun and not waited for: it travels while the first forward pass computes.
        self.agreement = start_agreement(problem, numbers, self.me)
        # Who sees a problem must not go on to compute; the others find out before their first message.
        if problem or self.me.n == 1:
            self._open_mailbox()
        self.inputs = inputs.chunk(m) if first else ()
        self.targets = targets.chunk(m) if last else ()
        self.saved: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # (chunk, micro-batch) -> x, y
        self.deferred: dict[tuple[int, int], Callable[[], None]] = {}  # what W has to do
        self.loss = torch.zeros((), device=self.device)

    def _open_mailbox(self) -> Mailbox:
        """The mailbox, open from when all ranks know that nothing is wrong with the batch: before the first message."""
        if self.agreement:
            # Only the first message of a step waits here, and by then the agreement has usually arrived.
            everyones, self.agreement = self.agreement(), None
            looks = require_same_rows(everyones)
            self.mailbox.open(new_shapes=looks != self.looks)
            self.shared.begin()
            self.looks = looks
        return self.mailbox

    def _run(self, action: Action) -> None:
        stage = self.stage_numbers[action.chunk]
        message = self._receive(action, stage)  # what is waited for here is the bubble
        labels = {"microbatch": action.microbatch, "chunk": action.chunk, "stage": stage, "step": self.num_steps}
        with span(action.kind, **labels), last_at_least(self.seconds and self.seconds(action.kind, stage)):
            result = self.work[action.kind](action, stage, message)
        # Outside of the span: sending returns at once, and what it takes is not computing.
        if result is not None:
            self._open_mailbox().give(leaves(action, stage), result)

    def _receive(self, action: Action, stage: int) -> Tensor | None:
        if action.kind == "F" and stage > 0:
            return self._open_mailbox().take(Result("activations", action.microbatch, stage - 1))
        if action.kind in "BI" and stage < self.last:
            return self._open_mailbox().take(Result("gradient", action.microbatch, stage + 1))
        return None

    def _forward(self, action: Action, stage: int, x: Tensor | None) -> Tensor | None:
        """F: returns what the next stage needs."""
        # A leaf of this rank's own: backward stops here, and x.grad is the message to the stage before.
        x = self.inputs[action.microbatch] if stage == 0 else x.requires_grad_()
        y = tensor_of(self.stages[action.chunk](x), stage)
        if stage == self.last:
            # Divided here and not at the end, so that gradients of m micro-batches add up to those of the mean.
            y = scalar_of(self.loss_fn(y, self.targets[action.microbatch])) / self.schedule.num_microbatches
            self.loss = self.loss + y.detach()
        self.saved[action.chunk, action.microbatch] = x, y
        # Without its graph, which stays here in `saved`: only numbers travel.
        return None if stage == self.last else y.detach()

    def _backward(self, action: Action, stage: int, gradient: Tensor | None) -> Tensor | None:
        """B: adds to the gradients of the weights, and returns the one that the stage before needs."""
        # Popped: with y goes its graph, and so the micro-batch's activations.
        x, y = self.saved.pop((action.chunk, action.microbatch))
        if y.requires_grad:  # not where the first stages are frozen
            y.backward(gradient)
        if stage > 0:
            # A stage that x does not reach still owes a message: the stage before waits for one.
            return torch.zeros_like(x) if x.grad is None else x.grad

    def _backward_input(self, action: Action, stage: int, gradient: Tensor | None) -> Tensor | None:
        """I: only what the stage before needs."""
        key = action.chunk, action.microbatch
        if stage > 0:
            x, y = self.saved.pop(key)
            for_x, self.deferred[key] = backward_input(y, gradient, x)
            return for_x
        # On the first stage: nobody waits for the gradient of its input, so W does the whole pass.
        self.deferred[key] = lambda: self._backward(action, stage, gradient)

    def _backward_weight(self, action: Action, stage: int, _: None) -> None:
        """W: the rest. What autograd saved goes now."""
        self.deferred.pop((action.chunk, action.microbatch))()

    def _loss_for_all(self) -> Tensor:
        place, _ = self.schedule.where(self.last)
        # A rank without the last stage does not know the loss's dtype, and float64 holds every one exactly.
        host, loss = self.me.wire(torch.device("cpu")), self.loss.double().to(self.me.wire(self.device))
        dtype = torch.tensor(DTYPES.index(self.loss.dtype), dtype=torch.double, device=host)
        # One message, but where one of the two is on a GPU: whoever reads a number there waits for all of its work.
        messages = [torch.stack([loss, dtype])] if loss.device == host else [dtype, loss]
        for message in messages:
            dist.broadcast(message, group=self.me.group, group_src=place)
        if loss.device == host:
            loss, dtype = messages[0]
        return loss.to(self.device, DTYPES[int(dtype)])


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


def seconds_of(delay: Delay | None, num_stages: int) -> Callable[[str, int], float]:
    """A function of (kind, stage): how many seconds such an action lasts at least.

    Kinds that are not named take 0, but B takes as long as I and W together. ValueError for what is no time.
    """
    delay = {} if delay is None else delay
    if not isinstance(delay, Mapping) or set(delay) - set("FBIW"):
        raise ValueError(f"delay={delay!r}: expected seconds by kind of action, such as "
                         "{'F': 0.01, 'I': 0.01, 'W': 0.01}; a B takes as long as I and W unless it is named")
    seconds: dict[str, list[float]] = {}
    for kind in "FIWB":
        given = delay.get(kind, 0.0)
        per_stage = [given] * num_stages if isinstance(given, Real) else list(given)
        if len(per_stage) != num_stages or not all(isinstance(s, Real) and 0 <= s < math.inf for s in per_stage):
            raise ValueError(f"delay[{kind!r}]={given!r}: expected seconds of 0 or more, one number or one for each of "
                             f"{num_stages} stages")
        seconds[kind] = [float(each) for each in per_stage]
    if "B" not in delay:
        seconds["B"] = [i + w for i, w in zip(seconds["I"], seconds["W"])]
    return lambda kind, stage: seconds[kind][stage]


@contextlib.contextmanager
def last_at_least(seconds: float | None) -> Iterator[None]:
    """What happens inside takes at least so many seconds, on a GPU as well; None: as long as it takes."""
    if seconds is None:
        yield
        return
    catch_up()  # a GPU may still wait for what the action needs, and that is the bubble
    started = time.perf_counter()
    yield
    catch_up()
    # Only what the action has not taken itself: a delay below that changes nothing.
    time.sleep(max(0.0, seconds - (time.perf_counter() - started)))
