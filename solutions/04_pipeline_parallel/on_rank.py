"""Chapter 4 on a rank: lists of counts and of actions, and one stage of a pipeline that has gone forward.

    m  micro-batches of B rows      D  width of every layer
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.grading.on_rank import data, kind, plain
from course_lib.runtime import record_communication
from course_lib.runtime.instruments.communication import CommunicationLog

MOST = 4000  # in a list: more are no answer


def counts_or_actions(function: Callable, inputs: list[Any]) -> Any:
    """All but 4.3, 4.5 and 4.9: a list of counts, or of actions such as "F0"; words for anything else."""
    returned = data(function(*inputs))
    if not isinstance(returned, list):
        return returned if isinstance(returned, str | None) else kind(returned)
    others = [each for each in returned if type(each) not in (int, str)]
    odd = f"a number that is not whole, {others[0]:g}," if others and type(others[0]) is float else "something else"
    return f"a list with {odd} in it" if others else returned[:MOST + 1]


class Watch:
    """What a rank had sent and received whenever it computed the gradient of a micro-batch."""

    def __init__(self, log: CommunicationLog) -> None:
        self.log, self.num_received = log, 0
        self.gradients: list[list[int]] = []  # [micro-batch, messages called for by then, of these received]

    def mark(self, tensor: Tensor, number: int) -> None:
        """When `tensor` gets its gradient, note its number, how many calls were made by then and how many messages
        came.
        """
        tensor.register_hook(lambda _: self.gradients.append([number, len(self.log.events), self.num_received]))

    @contextmanager
    def receiving(self) -> Iterator[None]:
        """Count each dist.recv that has returned."""
        recv = dist.recv

        def counting_recv(*arguments: Any, **named: Any) -> Any:
            source = recv(*arguments, **named)
            self.num_received += 1
            return source

        dist.recv = counting_recv
        try:
            yield
        finally:
            dist.recv = recv


def backward(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
    """4.5: the gradients of this rank's stage, which is linear, with tanh but for the last; and how they came about.

    `messages`: [op, peer, bytes] in the order of the calls; `order`: of each micro-batch's gradient, as Watch has it.
    """
    weight, bias = (nn.Parameter(inputs[name].clone()) for name in ("weight", "bias"))  # (D, D), (D,)
    saved = []
    for x in inputs["xs"]:  # (B, D): computed beforehand, so that all that is sent, the reader's function sends
        x = x.clone().requires_grad_(not inputs["first"])
        y = nn.functional.linear(x, weight, bias)
        saved.append((x, y if inputs["last"] else torch.tanh(y)))
    tied = weight if inputs["first"] != inputs["last"] else None
    with record_communication() as log:
        watch = Watch(log)
        for number, (x, y) in enumerate(saved):
            watch.mark(y if inputs["first"] else x, number)
        with watch.receiving():
            function(saved, inputs["targets"], tied)
    messages = [[event.op, event.peer, event.message_bytes] for event in log.events]
    return {"gradients": {"weight": plain(weight.grad), "bias": plain(bias.grad)}, "messages": messages,
            "order": watch.gradients}
