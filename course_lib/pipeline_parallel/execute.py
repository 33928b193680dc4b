"""A schedule run on real ranks: PipelineParallel(stages, schedule, group, loss_fn).step(inputs, targets).

Every rank goes through its own list of actions. Before an action it waits for what the action needs from another rank,
after it, it sends what it has made; nothing else keeps the ranks together. The mean loss over the batch is the mean
over its micro-batches of their mean losses, so each micro-batch's loss is divided by m.

    m micro-batches      x what comes into a stage      y what leaves it, or in the last stage the loss / m
"""

from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.groups.agreement import agree, require_equal, start_agreement
from course_lib.groups.membership import member
from course_lib.pipeline_parallel import checks
from course_lib.pipeline_parallel.actions import Action, Schedule
from course_lib.pipeline_parallel.delay import Delay, lasting, seconds_of
from course_lib.pipeline_parallel.dependencies import Result, leaves
from course_lib.pipeline_parallel.mailbox import DTYPES, Mailbox
from course_lib.pipeline_parallel.shared import SharedGradients, shared_parameters
from course_lib.pipeline_parallel.split_backward import backward_input
from course_lib.runtime import device, span


class PipelineParallel:
    """This rank's part of a pipeline over the ranks of `group` (None: the world). Make it on all of them.

    `stages`: this rank's modules, one for each chunk of `schedule.stages[place]`; each takes a tensor and returns one
    of floating-point numbers. `loss_fn(outputs, targets)` is a mean over its rows. The first stage has no input to
    send a gradient for: there I does nothing, and W the whole backward pass.

    `delay` makes actions last at least so many seconds, by kind: {"F": 0.01, "I": 0.01, "W": [0.01, 0.02]}, one number
    or one for each stage (see delay.py). In a recorded timeline each action is a span, named by its kind, with the
    labels microbatch, chunk, stage and step.

    Raises ValueError, on every rank, for a schedule that cannot run and for what does not fit it.
    """

    def __init__(self, stages: Sequence[nn.Module], schedule: Schedule, group: dist.ProcessGroup | None = None,
                 loss_fn: Callable[[Tensor, Tensor], Tensor] | None = None, delay: Delay | None = None) -> None:
        self.me = member(group)
        problem = checks.problem_with_arguments(stages, schedule, loss_fn, delay, self.me)
        mine = {} if problem else shared_parameters(stages)
        # All that can be wrong is exchanged once, here: no rank waits for a message of one that has raised.
        facts = agree(problem, (checks.describe_schedule(schedule), sorted(mine)), self.me)
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
        problem = checks.problem_with_batch(inputs if first else targets, first, m) if first or last else None
        if first and last:
            problem = problem or checks.problem_with_batch(targets, False, m)
        numbers = checks.describe_batch(inputs if first and not problem else None,
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
            looks = checks.require_same_rows(everyones)
            self.mailbox.open(new_shapes=looks != self.looks)
            self.shared.begin()
            self.looks = looks
        return self.mailbox

    def _run(self, action: Action) -> None:
        stage = self.stage_numbers[action.chunk]
        message = self._receive(action, stage)  # what is waited for here is the bubble
        labels = {"microbatch": action.microbatch, "chunk": action.chunk, "stage": stage, "step": self.num_steps}
        with span(action.kind, **labels), lasting(self.seconds and self.seconds(action.kind, stage)):
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
        y = checks.tensor_of(self.stages[action.chunk](x), stage)
        if stage == self.last:
            # Divided here and not at the end, so that gradients of m micro-batches add up to those of the mean.
            y = checks.scalar_of(self.loss_fn(y, self.targets[action.microbatch])) / self.schedule.num_microbatches
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
        dtype = torch.full_like(self.loss, DTYPES.index(self.loss.dtype))
        # One message: a rank without the last stage does not know the loss's dtype, and float64 holds every one
        # exactly.
        packed = torch.stack([self.loss, dtype]).double().to(self.mailbox.wire)
        dist.broadcast(packed, group=self.me.group, group_src=place)
        return packed[0].to(self.device, DTYPES[int(packed[1])])
