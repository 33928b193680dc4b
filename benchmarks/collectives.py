"""All-reduce from send and receive against the backend's own: 1 KiB to 64 MiB of float32, 2 and 4 ranks."""

import socket
import threading
from collections.abc import Callable
from functools import cache, partial

import torch
import torch.distributed as dist

from benchmarks.harness import Both, Goal, Seconds, benchmark
from benchmarks.ranks import Times, now, over_ranks, seconds_together
from course_lib.collectives import halving_doubling_all_reduce, recursive_doubling_all_reduce, ring_all_reduce
from course_lib.runtime import launch

KIB, MIB = 1 << 10, 1 << 20
SIZES = {"1KiB": KIB, "32KiB": 32 * KIB, "1MiB": MIB, "4MiB": 4 * MIB, "16MiB": 16 * MIB, "64MiB": 64 * MIB}
GOALS = {"ring_4_ranks_64MiB": Goal(1.0, "ratio")}
AllReduce = Callable[[torch.Tensor], object]


def alternate(sides: tuple[AllReduce, AllReduce], num_bytes: int, rounds: int) -> Times:
    """On a rank: seconds of each side in each round, an untimed call before each timed one."""
    tensor = torch.zeros(num_bytes // 4)
    times = []
    for _ in range(rounds):
        took = []
        for side, all_reduce in enumerate(sides):
            now(side)
            all_reduce(tensor)
            took.append(seconds_together(partial(all_reduce, tensor)))
        times.append(took)
    return times


def side_by_side(ours: AllReduce, num_bytes: int, world_size: int, theirs: AllReduce) -> list[Seconds]:
    """Seconds of both in one launch."""
    rounds = 9 if num_bytes >= MIB else 31
    return over_ranks(launch(alternate, (ours, theirs), num_bytes, rounds, world_size=world_size))


@cache
def neighbours() -> tuple[socket.socket, socket.socket]:
    """On a rank: connections from the left one and to the right one."""
    listener = socket.create_server(("127.0.0.1", 0))
    ports = [0] * dist.get_world_size()
    dist.all_gather_object(ports, listener.getsockname()[1])
    right = socket.create_connection(("127.0.0.1", ports[(dist.get_rank() + 1) % len(ports)]))
    return listener.accept()[0], right


def copy_alone(tensor: torch.Tensor) -> None:
    """The bytes of a ring all-reduce through the kernel, out of the tensor and into it; nothing is added up."""
    (left, right), n = neighbours(), dist.get_world_size()
    sent, received, *_ = (memoryview(chunk.numpy()).cast("B") for chunk in tensor.tensor_split(n))
    sender = threading.Thread(target=lambda: [right.sendall(sent) for _ in range(2 * (n - 1))])
    sender.start()
    for _ in range(2 * (n - 1)):
        left.recv_into(received, len(received), socket.MSG_WAITALL)
    sender.join()


@benchmark(runs=3, goal=Goal(None, "ratio"))
def ring_4_ranks_64MiB_over_its_copies() -> Both:
    """The ring of 64MiB against the kernel's copies alone: its bytes into a socket and out of one, nothing added."""
    return partial(side_by_side, ring_all_reduce, SIZES["64MiB"], 4, copy_alone)


def register(name: str, ours: AllReduce, size: str, world_size: int) -> None:
    def make() -> Both:
        return partial(side_by_side, ours, SIZES[size], world_size, dist.all_reduce)

    make.__name__ = f"{name}_{world_size}_ranks_{size}"
    make.__doc__ = f"All-reduce of {size} on {world_size} ranks, {ours.__name__} against the backend's own."
    benchmark(runs=5, goal=GOALS.get(make.__name__))(make)


for world_size in (2, 4):
    for size in SIZES:
        register("ring", ring_all_reduce, size, world_size)
        register("halving_doubling", halving_doubling_all_reduce, size, world_size)
        if SIZES[size] <= 32 * KIB:  # what it is for
            register("recursive_doubling", recursive_doubling_all_reduce, size, world_size)
