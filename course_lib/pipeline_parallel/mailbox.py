"""What stages send each other: activations on the way forward, gradients on the way back.

A schedule says who sends what to whom and in which order, so a rank knows what will come before it comes. It has the
next two messages of each neighbour posted, which travel while it computes. Its sends never wait: what it has sent, it
keeps, until a later message of the receiver proves that the receiver has used it.

In the first step with batches of a shape, nothing is posted before it is needed, and messages go through the hosts'
memory. NCCL's send and receive are kernels that spin on the GPU until the other end has come. A kernel that runs for
the first time has to be loaded, which may wait for all that runs on the GPU. (CUDA's guide names that hazard: "Lazy
loading", concurrent execution. On an H100 a new kernel waited 404 ms for one that spun for 400.) If the other end comes
only after this rank has sent more, it waits for ever. In later steps the kernels are loaded. cudaFree waits in every
step: where memory is so full that torch's allocator gives back blocks in the middle of a step, AHEAD has to be 0.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.groups.membership import Member, describe
from course_lib.pipeline_parallel.schedules import Schedule
from course_lib.pipeline_parallel.validate import Result, leaves, needs

AHEAD = 2  # messages of each neighbour that are posted before they are needed
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
MAX_DIMS = 8


@dataclass(frozen=True)
class StageMessage:
    """`content` on its way from `source` to `dest`, places in the group.

    `sent_at` and `needed_at` are positions in the actions of the one and of the other. `number` counts the messages
    from this source to this dest.
    """

    content: Result
    source: int
    dest: int
    sent_at: int
    needed_at: int
    number: int

    @property
    def boundary(self) -> int:
        """The stage in front of the boundary that it crosses. Gradients look like the activations there."""
        return self.content.stage - (self.content.what == "gradient")


def messages_of(schedule: Schedule) -> list[StageMessage]:
    """Every message of a valid schedule; those of one source in the order in which it sends them."""
    made: dict[Result, tuple[int, int]] = {}
    for rank, position, action in schedule.positions():
        made[leaves(action, schedule.stages[rank][action.chunk])] = rank, position
    transfers = []
    for rank, position, action in schedule.positions():
        for content in needs(action, schedule.stages[rank][action.chunk], schedule.num_stages):
            source, sent_at = made[content]
            if source != rank:
                transfers.append((source, sent_at, rank, position, content))
    counts: Counter[tuple[int, int]] = Counter()
    messages = []
    for source, sent_at, dest, needed_at, content in sorted(transfers):
        messages.append(StageMessage(content, source, dest, sent_at, needed_at, counts[source, dest]))
        counts[source, dest] += 1
    return messages


class Mailbox:
    """This rank's messages. In each step `open`, then `take` and `give` as the actions need and make them, `close`."""

    def __init__(self, schedule: Schedule, me: Member, device: torch.device) -> None:
        messages = messages_of(schedule)
        self.outgoing = {message.content: message for message in messages if message.source == me.r}
        self.expected: dict[int, list[StageMessage]] = {}  # from each source, in the order in which it sends
        for message in messages:
            if message.dest == me.r:
                self.expected.setdefault(message.source, []).append(message)
        self.incoming = {message.content: message for queue in self.expected.values() for message in queue}
        self.me, self.device = me, device
        self.wire = me.wire(device)  # where messages of this step have to lie
        self.ranks = dist.get_process_group_ranks(me.group)
        self.group_of_link = groups_of_links({(message.source, message.dest) for message in messages}, me, device)
        self.shapes: dict[int, tuple[tuple[int, ...], torch.dtype]] = {}  # of the activations at each boundary
        self.ahead = 0
        self.local: dict[Result, Tensor] = {}  # what this rank needs itself: both sides of the V's tip

    def open(self, new_shapes: bool) -> None:
        """Begin a step. `new_shapes`: activations may look different from those of the last step."""
        if new_shapes:
            self.shapes.clear()
        self.ahead = 0 if new_shapes else AHEAD
        self.wire = self.me.wire(torch.device("cpu") if new_shapes else self.device)
        self.to_post = {source: deque(queue) for source, queue in self.expected.items()}
        self.posted: dict[Result, tuple[dist.Work, Tensor]] = {}
        self.kept: dict[int, list[tuple[StageMessage, dist.Work, Tensor]]] = {}
        for source in self.to_post:
            self._post_ahead(source)

    def give(self, content: Result, tensor: Tensor) -> None:
        """Send `tensor` to the rank that needs it. Returns at once."""
        message = self.outgoing.get(content)
        if message is None:
            self.local[content] = tensor
            return
        known = self.shapes.get(message.boundary)
        looks = tuple(tensor.shape), tensor.dtype
        # A gradient looks like the activations that crossed the same boundary, so one header serves both directions.
        if known is None:
            # Two tags for each message: a header and its tensor may be under way at the same time.
            self._send(message, header_of(tensor, message.boundary).to(self.wire), tag=2 * message.number)
            self.shapes[message.boundary] = looks
        elif looks != known:
            expected = torch.empty(known[0], dtype=known[1], device="meta")
            raise ValueError(f"the {content} are {describe(tensor)}: expected "
                             f"{describe(expected, tensor.device)}, as for the first micro-batch")
        self._send(message, tensor.to(self.wire).contiguous(), tag=2 * message.number + 1)

    def take(self, content: Result) -> Tensor:
        """Wait for what another rank, or this one, has made."""
        message = self.incoming.get(content)
        if message is None:
            return self.local.pop(content)
        # What the source sends before it is posted before it: messages come in the order of sending.
        while content not in self.posted:
            self._post_next(message.source)
        work, tensor = self.posted.pop(content)
        work.wait()
        self._post_ahead(message.source)
        self._release(message)
        return tensor.to(self.device)

    def close(self) -> None:
        """End a step: wait until everything has been sent."""
        for sent in self.kept.values():
            for _, work, _ in sent:
                work.wait()
        self.kept.clear()

    def _send(self, message: StageMessage, tensor: Tensor, tag: int) -> None:
        work = dist.isend(tensor, self.ranks[message.dest], self.group_of_link[message.source, message.dest], tag)
        # Kept, since the tensor must live until its bytes have left; and not waited for, or two ranks that send to each
        # other at the same time would wait for ever.
        self.kept.setdefault(message.dest, []).append((message, work, tensor))

    def _receive(self, message: StageMessage, tensor: Tensor, tag: int) -> dist.Work:
        return dist.irecv(tensor, self.ranks[message.source], self.group_of_link[message.source, message.dest], tag)

    def _post_next(self, source: int) -> None:
        message = self.to_post[source].popleft()
        if message.boundary not in self.shapes:  # only an activation can be the first to cross a boundary
            # A receiver has to name a size. The first message over a boundary brings it, and all later ones look alike.
            header = torch.empty(MAX_DIMS + 2, dtype=torch.int64, device=self.wire)
            self._receive(message, header, tag=2 * message.number).wait()
            self.shapes[message.boundary] = looks_in(header)
        shape, dtype = self.shapes[message.boundary]
        tensor = torch.empty(shape, dtype=dtype, device=self.wire)
        self.posted[message.content] = self._receive(message, tensor, tag=2 * message.number + 1), tensor

    def _post_ahead(self, source: int) -> None:
        """In the order in which they are sent, because NCCL matches messages by their order alone."""
        queue = self.to_post.get(source, ())
        waiting = sum(self.incoming[content].source == source for content in self.posted)
        while queue and waiting < self.ahead and queue[0].boundary in self.shapes:
            self._post_next(source)
            waiting += 1

    def _release(self, arrived: StageMessage) -> None:
        """Forget what has been used: whoever sent `arrived` had by then done all its actions before."""
        sent = self.kept.get(arrived.source, [])
        for entry in [entry for entry in sent if entry[0].needed_at <= arrived.sent_at]:
            entry[1].wait()  # it is done; this tells gloo and NCCL so
            sent.remove(entry)


def groups_of_links(links: Iterable[tuple[int, int]], me: Member, device: torch.device
                    ) -> dict[tuple[int, int], dist.ProcessGroup]:
    """The process group for the messages of each link (source, dest) of this rank.

    NCCL works off what a rank gives to one group in the order given: a receive posted early would stop the sends behind
    it. So there each link has a group of its two ranks: 2 (p - 1) groups for a chain of p stages, 2 p where the last
    one sends to the first, of which a rank is in two to four. gloo needs none of this.

    Kernels of several communicators run at the same time then. NCCL does not promise that they all find room on the GPU
    while others wait for them; each takes few blocks (at most NCCL_MAX_CTAS), and those of send and receive are small.
    """
    if not works_off_in_order(me, device):
        return dict.fromkeys(links, me.group)
    groups, ranks = me.groups_of_links(links), dist.get_process_group_ranks(me.group)
    for (source, dest), group in groups.items():
        # NCCL connects two ranks in their first message, and the host waits for the other end: here, where all go
        # through their links in one order, and not in the middle of a step.
        first = torch.zeros(1, device=me.wire(device))
        if me.r == source:
            dist.send(first, ranks[dest], group)
        else:
            dist.recv(first, ranks[source], group)
    return groups


def works_off_in_order(me: Member, device: torch.device) -> bool:
    """Whether messages about tensors on `device` go straight from a GPU, by NCCL."""
    return me.wire(device).type != "cpu"


def header_of(tensor: Tensor, boundary: int) -> Tensor:
    """Shape and dtype as numbers, which go ahead of the first tensor over a boundary."""
    if tensor.dtype not in DTYPES or tensor.dim() > MAX_DIMS:
        raise ValueError(f"stage {boundary} returned {describe(tensor)}: expected floating-point "
                         f"numbers, in at most {MAX_DIMS} dimensions")
    padding = [0] * (MAX_DIMS - tensor.dim())
    return torch.tensor([DTYPES.index(tensor.dtype), tensor.dim(), *tensor.shape, *padding])


def looks_in(header: Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    """(shape, dtype) of the message that a header announces."""
    dtype, dims, *shape = header.tolist()
    return tuple(shape[:dims]), DTYPES[dtype]
