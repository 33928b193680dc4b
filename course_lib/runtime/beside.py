"""The host's memory beside a GPU's: blocks that are made once, and copies that run while the GPU computes.

The copy engine of a GPU reads and writes pinned memory on its own (the system may not move or swap such pages): 55 GB/s
on an H100, where ordinary memory has 7 to 15. To pin takes the host milliseconds, so blocks are kept and used again.
And a copy runs beside kernels only on a stream of its own, and only if no number has to be converted on the host.

On the CPU the host's memory is all there is: the same code makes ordinary tensors and copies at once.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from course_lib.runtime import context
from course_lib.runtime.instruments.clocks import side_stream
from course_lib.runtime.torch_private import count_users


class HostBlocks:
    """Memory of the host to exchange with `device`. Where it is pinned, a block that nobody uses is given again."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.made: list[Tensor] = []  # pinned

    def take(self, num_elements: int, dtype: torch.dtype) -> Tensor:
        """(num_elements,), holding anything. It is in use while a tensor other than the block's own has its memory."""
        if self.device.type == "cpu":
            return torch.empty(num_elements, dtype=dtype, device="cpu")
        for block in self.made:
            if len(block) == num_elements and block.dtype == dtype and count_users(block) == 1:
                return block[:]
        self.made.append(torch.empty(num_elements, dtype=dtype, device="cpu", pin_memory=True))
        return self.made[-1][:]


class Copy:
    """A copy under way on the stream for copies. Its two tensors keep their memory until `wait` has returned.

    A context, too: what the GPU is given inside goes behind the copy, on its stream.
    """

    def __init__(self, to: Tensor, source: Tensor, done: torch.Event, device: torch.device) -> None:
        self.tensors: tuple[Tensor, ...] = to, source
        self.done, self.device = done, device

    def __enter__(self) -> None:
        side_stream(self.device, "copies").__enter__()

    def __exit__(self, *raised: object) -> None:
        side_stream(self.device, "copies").__exit__(*raised)

    def wait(self) -> None:
        """The host waits until the numbers are there."""
        self.done.synchronize()
        self.tensors = ()

    def join(self) -> None:
        """The current stream waits: what the GPU is given from now on finds the numbers."""
        torch.accelerator.current_stream(self.device).wait_event(self.done)


class CopiesToHost:
    """Copies from `device` to the host's memory, two at most under way, so that no more of their sources have to live.

    Begun in an order and finished in it: `arrived` gives what was said about those that are there.
    """

    def __init__(self, most: int = 2) -> None:
        self.most = most
        self.under_way: deque[tuple[Copy | None, object]] = deque()

    def add(self, copy: Copy | None, about: object) -> None:
        self.under_way.append((copy, about))

    def arrived(self, everything: bool = False) -> Iterator[object]:
        """What is there; the host waits for what are too many, or for `everything`."""
        while self.under_way and (everything or self.under_way[0][0] is None or len(self.under_way) > self.most):
            copy, about = self.under_way.popleft()
            if copy is not None:
                copy.wait()
            yield about


def start_copy(to: Tensor, source: Tensor) -> Copy | None:
    """Begin to fill `to` with `source`, of the same size, after what the current stream has been given so far.

    None where both lie on one device: then it is done, in the order of its stream. Where the dtypes differ, the GPU
    rounds, in memory for one of them.
    """
    if to.device == source.device:
        to.copy_(source)
        return None
    device = source.device if to.device.type == "cpu" else to.device
    stream = side_stream(device, "copies")
    begin, done = torch.Event(device), torch.Event(device)
    begin.record(torch.accelerator.current_stream(device))
    stream.wait_event(begin)
    with stream:
        if to.device == device:
            to.copy_(source.to(device, non_blocking=True))
        else:
            to.copy_(source.to(to.dtype), non_blocking=True)
        done.record(stream)
    return Copy(to, source, done, device)


@contextmanager
def cores_of_host(stands_in_for: torch.device | None) -> Iterator[None]:
    """In here the host, which computes in the place of a GPU, may use the cores that are this rank's share.

    Where it stands in for nobody, or for a CPU, it keeps the threads that it has been given.
    """
    before = torch.get_num_threads()
    if stands_in_for is not None and stands_in_for.type != "cpu":
        torch.set_num_threads(max(before, context.count_cores() // context.count_ranks_here()))
    try:
        yield
    finally:
        torch.set_num_threads(before)
