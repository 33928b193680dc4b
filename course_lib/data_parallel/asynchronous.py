"""Not every step waits for everybody: local SGD averages now and then, a parameter server never stops for all.

LocalSGD: steps without communication, and an average of the parameters every H-th step.

    H = sync_every      M bytes of parameters      2 (n-1)/n M / H bytes sent a step, on average

For SGD, with or without momentum, H = 1 is data parallelism: the average of n steps is the step with the average
gradient. For Adam it is not, since each rank divides by its own second moments. With a larger H the ranks drift apart
between two averages, and a straggler is waited for once in H steps only.

AsyncParameterServer: place 0 holds the parameters, the others compute.

    W = n - 1 workers      c the clock of a worker: how many gradients it has pushed      s = max_staleness

A worker pulls the parameters, computes, pushes its gradient, and the server applies it at once: by then others may have
changed the parameters, and the gradient is stale. Stale synchronous parallel bounds that: parameters are given out only
to a worker whose clock is at most s ahead of the slowest. So the slowest never waits, the fastest waits at times, and
between a pull and its push the others apply at most (2s + 1) (W - 1) gradients. s = 0 is in step, None without a bound.
Every step moves the parameters down and the gradients up on each worker's link, and all W links end at the server.

Sources: Stich 2019, "Local SGD Converges Fast and Communicates Little"; Lin et al. 2020, "Don't Use Large Mini-Batches,
Use Local SGD"; Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server"; Ho et al. 2013, "More
Effective Distributed ML via a Stale Synchronous Parallel Parameter Server".
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.groups.gradients import add_up, broadcast, cut_tensors, pack, unpack_into
from course_lib.groups.membership import is_whole, member


class LocalSGD:
    """Use it like `optimizer`, which trains `module` on this rank: after every `sync_every`-th step() all are averaged.

    Rank 0's parameters and buffers are broadcast at the start. Averaged are the parameters that require gradients, and
    the buffers of floating point; the optimizer's state stays each rank's own. Call synchronize() after the last step.
    All ranks take as many steps. ValueError for a sync_every below 1.
    """

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer, sync_every: int,
                 group: dist.ProcessGroup | None = None) -> None:
        if not is_whole(sync_every, 1):
            raise ValueError(f"sync_every={sync_every!r}: expected a number of steps, at least 1")
        self.module, self.optimizer, self.sync_every, self.member = module, optimizer, sync_every, member(group)
        self.num_steps = 0  # since the last average
        broadcast([*module.parameters(), *module.buffers()], self.member)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The inner optimizer's zero_grad."""
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the optimizer, and an average where it is time. Returns what the optimizer returned."""
        result = self.optimizer.step(closure)
        self.num_steps += 1
        if self.num_steps == self.sync_every:
            self.synchronize()
        return result

    def synchronize(self) -> None:
        """Average now, unless that was just done: afterwards all ranks hold the same."""
        if self.num_steps:
            trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
            # Counters, such as a batch norm's number of batches, are equal already and have no mean.
            buffers = [buffer for buffer in self.module.buffers() if buffer.is_floating_point()]
            for tensors in (trained, buffers):
                add_up(tensors, self.member, divide_by=self.member.n)
        self.num_steps = 0


PULL, PUSH, DONE, FAILED = range(4)
HOST = torch.device("cpu")


@dataclass(frozen=True)
class Update:
    """One gradient that the server applied. Versions count the updates before.

    worker: the global rank it came from.  clock: how many the worker had pushed before.  lead: how many clocks it was
    ahead of the slowest when it got its parameters, of version `read`.  written: the version that it changed.
    """

    worker: int
    clock: int
    lead: int
    read: int
    written: int

    @property
    def staleness(self) -> int:
        """How many updates the gradient did not know of."""
        return self.written - self.read


class AsyncParameterServer:
    """A model whose parameters place 0 of `group` serves, and on which the others work. The same object on all ranks:

        server = AsyncParameterServer(model, optimizer, max_staleness=2)
        if server.is_server:
            updates = server.serve()              # returns when all workers are done
        else:
            with server:                          # says at the end that this worker is done
                for inputs, targets in my_batches:
                    server.pull()
                    model(inputs, targets)[1].backward()
                    server.push()                 # and sets the gradients to None

    The optimizer's steps are taken by the server, one for each push; that of a worker is not used and may be None.
    After serve() and the end of the block, all ranks hold the server's last parameters. Workers may push different
    numbers of times. NCCL cannot receive from whoever comes first, so messages are sends and receives of
    the host's memory, by gloo.
    ValueError for what cannot work, and for a pull or push out of turn.
    """

    def __init__(self, module: nn.Module, optimizer: torch.optim.Optimizer | None = None,
                 max_staleness: int | None = 2, group: dist.ProcessGroup | None = None) -> None:
        self.member = me = member(group)
        if me.n < 2:
            raise ValueError("a parameter server on 1 rank has no workers: expected a group of at least 2")
        if me.wire(HOST) != HOST:
            raise ValueError(f"the group's backend is {dist.get_backend(me.group)}, which sends nothing from the "
                             "host's memory: expected a group with gloo, such as those of launch")
        if max_staleness is not None and not is_whole(max_staleness, 0):
            raise ValueError(f"max_staleness={max_staleness!r}: expected a number of clocks of at least 0, or None")
        self.is_server = me.r == 0
        if self.is_server and optimizer is None:
            raise ValueError("optimizer=None on the server: expected that of its module, which takes the steps")
        self.module, self.optimizer = module, optimizer
        self.bound = math.inf if max_staleness is None else max_staleness
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.clock, self.version, self.pulled = 0, 0, False
        broadcast([*module.parameters(), *module.buffers()], me)

    # The server

    def serve(self) -> list[Update]:
        """Answer until every worker is done; returns the updates in the order in which they were applied."""
        if not self.is_server:
            raise ValueError("serve() on a worker: expected pull() and push() there, serve() on place 0 of the group")
        working = dict.fromkeys(range(1, self.member.n), 0)  # place -> clock
        asking: set[int] = set()
        leads: dict[int, int] = {}
        updates: list[Update] = []
        done: list[int] = []
        while working:
            place, kind, read, used = self._next_request()
            if kind == PULL:
                asking.add(place)
            elif kind == PUSH:
                rank = dist.get_global_rank(self.member.group, place)
                updates.append(Update(rank, working[place], leads[place], read, self.version))
                self._apply(place, used)
                working[place] += 1
            else:
                del working[place]
                done += [place] if kind == DONE else []
            slowest = min(working.values(), default=0)
            # Looked at after every request: a push, or a worker that is done, may let several others go.
            for place in sorted(place for place in asking if working[place] - slowest <= self.bound):
                leads[place] = working[place] - slowest
                self._give(place)
                asking.remove(place)
        # The last parameters, at the very end, so that all ranks leave with the same.
        for place in done:
            self._give(place)
        return updates

    def _next_request(self) -> tuple[int, int, int, list[bool]]:
        header = torch.empty(2 + len(self.parameters), dtype=torch.int64, device=HOST)
        rank = dist.recv(header, group=self.member.group)  # from whoever comes first
        kind, read, *used = header.tolist()
        return dist.get_group_rank(self.member.group, rank), kind, read, [bool(flag) for flag in used]

    def _give(self, place: int) -> None:
        self.member.send(torch.tensor([self.version], device=HOST), place)
        for flat in pack_by_dtype(self.parameters):
            self.member.send(flat, place)

    def _apply(self, place: int, used: list[bool]) -> None:
        gradients = [torch.empty_like(parameter) for parameter in self.parameters]
        self._receive_into(gradients, place)
        for parameter, gradient, has_one in zip(self.parameters, gradients, used):
            parameter.grad = gradient if has_one else None
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.version += 1

    # The workers

    def __enter__(self) -> "AsyncParameterServer":
        if self.is_server:
            raise ValueError("`with` on the server: expected serve() on place 0 of the group")
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        self._ask(DONE if kind is None else FAILED)  # said in any case: the server must not wait for this worker
        if kind is None:
            self._receive_parameters()

    def pull(self) -> None:
        """Fill the module with the server's parameters; waits while this worker is too far ahead."""
        self._ask(PULL)
        self._receive_parameters()
        self.pulled = True

    def push(self) -> None:
        """Send the gradients, and set them to None."""
        if not self.pulled:
            raise ValueError("push() without a pull() since the last push: expected pull, backward, push in turn")
        self._ask(PUSH)
        for flat in pack_by_dtype([torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]):
            self.member.send(flat, to=0)
        for parameter in self.parameters:
            parameter.grad = None
        self.clock += 1
        self.pulled = False

    def _ask(self, kind: int) -> None:
        if self.is_server:
            raise ValueError("pull() or push() on the server: expected serve() on place 0 of the group")
        used = [parameter.grad is not None for parameter in self.parameters]
        self.member.send(torch.tensor([kind, self.version, *used], device=HOST), to=0)

    def _receive_parameters(self) -> None:
        self.version = int(self.member.receive(torch.empty(1, dtype=torch.int64, device=HOST), source=0))
        self._receive_into(self.parameters, source=0)

    @torch.no_grad()
    def _receive_into(self, tensors: list[Tensor], source: int) -> None:
        for some in cut_tensors(tensors, math.inf):
            flat = torch.empty(sum(tensor.numel() for tensor in some), dtype=some[0].dtype, device=HOST)
            unpack_into(some, self.member.receive(flat, source))


@torch.no_grad()
def pack_by_dtype(tensors: list[Tensor]) -> list[Tensor]:
    """One flat tensor in the host's memory for each dtype."""
    return [pack(some)[0].cpu() for some in cut_tensors(tensors, math.inf)]
