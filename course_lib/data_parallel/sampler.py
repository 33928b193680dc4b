"""Which rank reads which samples: the data sets cut as evenly as they can be, and no sample lost.

    N samples      n ranks      rank r reads positions r, r + n, ... of one order that all ranks agree on

The order is a pure function of (seed, epoch), so that ranks agree without a message; it is the one of torch's own
DistributedSampler. When n does not divide N, some ranks would have a batch more than others, and would wait in its
all-reduce for ranks that have finished. Either the first samples are read twice (torch's way), or lengths differ by one
and the loop sees to it. torch's third way, drop_last, loses up to n - 1 samples an epoch; it is not offered.
"""

from collections.abc import Iterator, Sized

import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from course_lib.groups.membership import is_whole


class ShardedSampler(Sampler[int]):
    """The indices of this rank's samples, for DataLoader(data, sampler=...).

    data: anything with a length N, or N itself. rank and world_size: those of this process where they are not given.
    equal_lengths=True: ceil(N / n) samples on every rank, as many as needed of them twice. False: every sample exactly
    once, on the first N mod n ranks one more than on the others (with N < n, some have none).

    Call set_epoch before each epoch: otherwise every epoch has the order of the first. ValueError for what cannot work.

    >>> [list(ShardedSampler(5, rank, world_size=2, shuffle=False)) for rank in range(2)]  # sample 0 is read twice
    [[0, 2, 4], [1, 3, 0]]
    """

    def __init__(self, data: Sized | int, rank: int | None = None, world_size: int | None = None, shuffle: bool = True,
                 seed: int = 0, equal_lengths: bool = True) -> None:
        if (rank is None) != (world_size is None):
            raise ValueError(f"rank={rank}, world_size={world_size}: expected both, or neither to take this process's")
        if rank is None:
            if not dist.is_initialized():
                raise ValueError("there is no process group: expected rank and world_size, or a call inside a launch")
            rank, world_size = dist.get_rank(), dist.get_world_size()
        self.num_samples = data if isinstance(data, int) else len(data)
        if self.num_samples < 1:
            raise ValueError(f"there are {self.num_samples} samples to share: expected at least 1")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} of world_size={world_size}: expected 0 <= rank < world_size")
        self.rank, self.world_size, self.shuffle, self.seed = rank, world_size, shuffle, seed
        self.equal_lengths, self.epoch = equal_lengths, 0

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is that of `epoch`, on every rank."""
        if not is_whole(epoch, 0):
            raise ValueError(f"epoch={epoch!r}: expected a whole number of at least 0")
        self.epoch = epoch

    def order(self) -> list[int]:
        """All samples in the order of this epoch: the same list on every rank."""
        if not self.shuffle:
            return list(range(self.num_samples))
        generator = torch.Generator("cpu").manual_seed(self.seed + self.epoch)
        return torch.randperm(self.num_samples, generator=generator, device="cpu").tolist()

    def __iter__(self) -> Iterator[int]:
        order = self.order()
        if self.equal_lengths:
            total = len(self) * self.world_size
            order = [order[position % self.num_samples] for position in range(total)]  # begin again where it ends
        # Strided, as torch's own: the first samples of the order go to different ranks, whatever N is.
        return iter(order[self.rank::self.world_size])

    def __len__(self) -> int:
        if self.equal_lengths:
            return -(-self.num_samples // self.world_size)
        return len(range(self.rank, self.num_samples, self.world_size))
