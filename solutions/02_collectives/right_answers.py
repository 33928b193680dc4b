"""Right answers to the exercises of chapter 2 that nobody would think of first; tests/grading/test_answers.py has each
pass at ten seeds, in the names of the notebook beside this file.
"""
# ruff: noqa: F821

import numpy
import torch
import torch.distributed as dist

from tools.answers import right


@right("2.1", "both ways started at once")
def scatter_both_at_once(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    right_rank, left_rank, parts = (r + 1) % n, (r - 1) % n, tensor.view(n, 2, -1)
    going = [parts[r - 1, 0].clone(), parts[right_rank, 1].clone()]
    for step in range(n - 1):
        coming = [torch.empty_like(part) for part in going]
        works = [dist.isend(going[0], right_rank), dist.isend(going[1], left_rank),
                 dist.irecv(coming[0], left_rank), dist.irecv(coming[1], right_rank)]
        for work in works:
            work.wait()
        going = [coming[0] + parts[(r - 2 - step) % n, 0], coming[1] + parts[(r + 2 + step) % n, 1]]
    return torch.cat(going)


@right("2.1", "sums into the tensor itself, which may be overwritten")
def scatter_in_place(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    parts = tensor.view(n, 2, -1)
    for step in range(n - 1):
        for way, half in ((1, 0), (-1, 1)):
            mine, next_one = (r - way * (1 + step)) % n, (r - way * (2 + step)) % n
            parts[next_one, half] += exchange(
                parts[mine, half], (r + way) % n, torch.empty_like(parts[0, 0]), (r - way) % n
            )
    return parts[r].flatten().clone()


def handed_around(tensor, told):
    """A dict of all pieces by rank; told(piece) is what travels in front."""
    n, r = dist.get_world_size(), dist.get_rank()
    pieces, newest = {r: tensor}, tensor
    for step in range(n - 1):
        length = exchange(told(newest), (r + 1) % n, torch.empty(1, dtype=torch.int64), (r - 1) % n)
        newest = exchange(newest, (r + 1) % n, tensor.new_empty(length.item()), (r - 1) % n)
        pieces[(r - step - 1) % n] = newest
    return pieces


@right("2.2", "the pieces in a dict")
def gather_in_a_dict(tensor):
    return torch.cat(
        [
            piece
            for _, piece in sorted(
                handed_around(tensor, lambda piece: torch.tensor([len(piece)])).items(), key=lambda each: each[0]
            )
        ]
    )


@right("2.2", "lengths first, all around, and then the pieces")
def gather_lengths_first(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    lengths = [torch.tensor([len(tensor)])]
    for _ in range(n - 1):
        lengths.append(exchange(lengths[-1], (r + 1) % n, torch.empty_like(lengths[0]), (r - 1) % n))
    pieces = [tensor]
    for length in lengths[1:]:
        pieces.append(exchange(pieces[-1], (r + 1) % n, tensor.new_empty(int(length)), (r - 1) % n))
    return torch.cat([pieces[(r - rank) % n] for rank in range(n)])


@right("2.3", "a ring of its own over uneven chunks")
def all_reduce_own_ring(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    parts = tensor.tensor_split(n)
    for adds in (True, False):
        for step in range(n - 1):
            going, coming = ((r - step - i + (not adds)) % n for i in (0, 1))
            incoming = exchange(parts[going], (r + 1) % n, torch.empty_like(parts[coming]), (r - 1) % n)
            parts[coming].copy_(parts[coming] + incoming if adds else incoming)


@right("2.3", "filled up by cat, cut by narrow")
def all_reduce_by_narrow(tensor):
    zeros = tensor.new_zeros(-len(tensor) % (2 * dist.get_world_size()))
    tensor.copy_(my_ring_all_gather(my_ring_reduce_scatter(torch.cat([tensor, zeros]))).narrow(0, 0, len(tensor)))


@right("2.4", "the nearest first")
def tree_nearest_first(tensor, dst):
    n, r, far = dist.get_world_size(), dist.get_rank(), 1
    v = (r - dst) % n
    while far < n:
        if v % (2 * far):
            dist.send(tensor, (r - far) % n)
            return
        if v + far < n:
            incoming = torch.empty_like(tensor)
            dist.recv(incoming, (r + far) % n)
            tensor.add_(incoming)
        far *= 2


@right("2.4", "the upper half sends to the lower half")
def tree_by_halving(tensor, dst):
    n, r = dist.get_world_size(), dist.get_rank()
    v, left = (r - dst) % n, n
    while left > 1:
        lower = -(-left // 2)
        if lower <= v < left:
            dist.send(tensor, (v - lower + dst) % n)
        elif v < left - lower:
            incoming = torch.empty_like(tensor)
            dist.recv(incoming, (v + lower + dst) % n)
            tensor += incoming
        left = lower


@right("2.5", "all at once")
def all_to_all_at_once(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    chunks, arriving = tensor.chunk(n), torch.empty_like(tensor)
    places = arriving.chunk(n)
    places[r].copy_(chunks[r])
    works = [call(each[other], other) for other in range(n) if other != r
             for call, each in ((dist.isend, [chunk.contiguous() for chunk in chunks]), (dist.irecv, places))]
    for work in works:
        work.wait()
    return arriving


@right("2.5", "in pairs: who meets whom in each step")
def all_to_all_in_pairs(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    chunks, arrived = tensor.chunk(n), list(tensor.clone().chunk(n))
    for meeting in range(n):
        other = (meeting - r) % n
        if other != r:
            arrived[other] = exchange(chunks[other], other, torch.empty_like(chunks[other]), other)
    return torch.cat(arrived)


@right("2.6", "the halves change hands, without a sum in place")
def nodes_by_new_tensors(tensor):
    r = dist.get_rank()
    near, far = r ^ 1, r ^ 2
    halves = tensor.tensor_split(2)
    own = halves[r % 2] + exchange(halves[1 - r % 2], near, torch.empty_like(halves[r % 2]), near)
    own = own + exchange(own, far, torch.empty_like(own), far)
    other = exchange(own, near, torch.empty_like(own), near)
    tensor.copy_(torch.cat([own, other] if r % 2 == 0 else [other, own]))


@right("2.6", "sends that are not waited for at once")
def nodes_by_isend(tensor):
    r = dist.get_rank()
    halves = tensor.view(2, -1)

    def swapped(outgoing, other):
        incoming, work = torch.empty_like(outgoing), dist.isend(outgoing.clone(), other)
        dist.recv(incoming, other)
        work.wait()
        return incoming
    halves[r % 2] += swapped(halves[1 - r % 2], r ^ 1)
    halves[r % 2] += swapped(halves[r % 2], r ^ 2)
    halves[1 - r % 2] = swapped(halves[r % 2], r ^ 1)


@right("2.7", "numpy's numbers, inf where the divisor is 0")
def crossover_in_numpy(alpha_s, beta_s_per_byte, n):
    with numpy.errstate(divide="ignore"):
        steps = numpy.log2(n)
        return numpy.float64(alpha_s * (2 * (n - 1) - steps)) / numpy.float64(
            beta_s_per_byte * (steps - 2 * (n - 1) / n)
        )


@right("2.7", "found by doubling and halving")
def crossover_by_bisection(alpha_s, beta_s_per_byte, n):
    steps = math.log2(n)

    def ring_wins(M):
        return 2 * (n - 1) * (alpha_s + beta_s_per_byte * M / n) < steps * (alpha_s + beta_s_per_byte * M)
    if not ring_wins(1e30):
        return math.inf
    low, high = 0.0, 1e30
    for _ in range(300):
        middle = (low + high) / 2
        low, high = (low, middle) if ring_wins(middle) else (middle, high)
    return torch.tensor(high, dtype=torch.float64)


@right("2.8", "bits, numpy's number")
def largest_in_numpy(num_nodes, g, seconds, nvlink, card):
    bits = 8 * numpy.array([nvlink, *([g * card] if num_nodes > 1 else [])])
    n = num_nodes * g
    return numpy.float64(seconds) * bits.min() * n / (n - 1) / 2 / 16


@right("2.8", "by bisection over the parameters, a tensor")
def largest_by_bisection(num_nodes, g, seconds, nvlink, card):
    def taken(parameters):
        pieces = 2 * (num_nodes * g - 1)  # each an n-th, one after the other, and a g-th of it in each ring
        piece = 2 * parameters / (num_nodes * g)
        inside = pieces * piece / nvlink
        return inside if num_nodes == 1 else max(inside, pieces * piece / g / card)
    low, high = 0.0, 1e15
    for _ in range(200):
        low, high = (
            (sum((low, high)) / 2, high) if taken(sum((low, high)) / 2) <= seconds else (low, sum((low, high)) / 2)
        )
    return torch.tensor(low, dtype=torch.float64)

