"""Wrong answers to the exercises of chapter 2, as learners write them; tests/test_exercises.py has each refused.

`exchange` and the solutions are those of the notebook beside this file, in whose names it runs.
"""
# ruff: noqa: F821

import torch
import torch.distributed as dist

from course_lib.grading.wrong_answers import wrong


@wrong("2.1", "you return chunk r+1 where chunk r is asked")
def reduce_scatter_starts_with_its_own_chunk(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    chunks = tensor.chunk(n)
    partial = chunks[r]
    for step in range(n - 1):
        received = torch.empty_like(partial)
        exchange(partial, (r + 1) % n, received, (r - 1) % n)
        partial = received + chunks[(r - 1 - step) % n]
    return partial


@wrong("2.1", "before this rank's own share is added")
def reduce_scatter_passes_on_before_adding(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    chunks = tensor.chunk(n)
    outgoing, partial = chunks[r - 1], chunks[r - 1]
    for step in range(n - 1):
        received = torch.empty_like(outgoing)
        exchange(outgoing, (r + 1) % n, received, (r - 1) % n)
        partial = received + chunks[(r - 2 - step) % n]
        outgoing = received
    return partial


@wrong("2.1", "n-1 steps, and one is missing")
def reduce_scatter_forgets_the_last_step(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    chunks = tensor.chunk(n)
    partial = chunks[r - 1]
    for step in range(n - 2):
        received = torch.empty_like(partial)
        exchange(partial, (r + 1) % n, received, (r - 1) % n)
        partial = received + chunks[(r - 2 - step) % n]
    return partial


@wrong("2.1", "not the whole tensor")
def reduce_scatter_sends_whole_tensors(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    passing, total = tensor, tensor.clone()
    for _ in range(n - 1):
        received = torch.empty_like(tensor)
        passing = exchange(passing, (r + 1) % n, received, (r - 1) % n)
        total += passing
    return total.chunk(n)[r]


@wrong("2.1", "circle of sends that nobody receives")
def reduce_scatter_sends_first_and_receives_then(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    chunks = tensor.chunk(n)
    partial = chunks[r - 1]
    for step in range(n - 1):
        received = torch.empty_like(partial)
        dist.send(partial, (r + 1) % n)
        dist.recv(received, (r - 1) % n)
        partial = received + chunks[(r - 2 - step) % n]
    return partial


@wrong("2.2", "in the order of arrival, the own one first")
def all_gather_appends_what_arrives(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    pieces = [tensor]
    for _ in range(n - 1):
        pieces.append(exchange(pieces[-1], (r + 1) % n, torch.empty_like(tensor), (r - 1) % n))
    return torch.cat(pieces)


@wrong("2.2", "pass on the newest piece")
def all_gather_sends_its_own_piece_again_and_again(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    pieces = tensor.new_empty(n, len(tensor))
    pieces[r] = tensor
    for step in range(n - 1):
        exchange(tensor, (r + 1) % n, pieces[(r - step - 1) % n], (r - 1) % n)
    return pieces.flatten()


@wrong("2.2", "lacks the piece of rank r+1, the last to arrive")
def all_gather_forgets_the_last_step(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    pieces = tensor.new_zeros(n, len(tensor))
    pieces[r] = tensor
    for step in range(n - 2):
        exchange(pieces[(r - step) % n], (r + 1) % n, pieces[(r - step - 1) % n], (r - 1) % n)
    return pieces.flatten()


@wrong("2.2", "torch.distributed's own all_gather")
def all_gather_of_the_library(tensor):
    n = dist.get_world_size()
    result = tensor.new_empty(n * len(tensor))
    dist.all_gather_into_tensor(result, tensor)
    return result


@wrong("2.3", "everything goes through rank 0")
def all_reduce_through_a_root(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    if r == 0:
        received = torch.empty_like(tensor)
        for source in range(1, n):
            dist.recv(received, source)
            tensor += received
        for to in range(1, n):
            dist.send(tensor, to)
    else:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)


@wrong("2.3", "fill up with zeros to a multiple of n")
def all_reduce_leaves_out_what_is_beyond_equal_chunks(tensor):
    n = dist.get_world_size()
    even = len(tensor) // n * n
    tensor[:even] = my_ring_all_gather(my_ring_reduce_scatter(tensor[:even].clone()))


@wrong("2.3", "only moves the name")
def all_reduce_assigns_to_the_name(tensor):
    n, N = dist.get_world_size(), len(tensor)
    filled = torch.cat([tensor, tensor.new_zeros(-N % n)])
    tensor = my_ring_all_gather(my_ring_reduce_scatter(filled))[:N]


@wrong("2.3", "the result is returned, but the tensor is as it was")
def all_reduce_returns_the_sum(tensor):
    n, N = dist.get_world_size(), len(tensor)
    filled = torch.cat([tensor, tensor.new_zeros(-N % n)])
    return my_ring_all_gather(my_ring_reduce_scatter(filled))[:N]


@wrong("2.3", "torch.distributed's own all_reduce")
def all_reduce_of_the_library(tensor):
    dist.all_reduce(tensor)


@wrong("2.4", "the tree starts at src")
def broadcast_from_rank_0_whatever_src_is(tensor, src):
    n, r = dist.get_world_size(), dist.get_rank()
    know = 1
    while know < n:
        if r < know and r + know < n:
            dist.send(tensor, r + know)
        elif know <= r < 2 * know:
            dist.recv(tensor, r - know)
        know *= 2


@wrong("2.4", "only those that know may tell")
def broadcast_lets_ranks_tell_what_they_do_not_know_yet(tensor, src):
    n, r = dist.get_world_size(), dist.get_rank()
    v = (r - src) % n
    know = 1
    while know < n:
        if v % (2 * know) == 0 and v + know < n:
            dist.send(tensor, (r + know) % n)
        elif v % (2 * know) == know:
            dist.recv(tensor, (r - know) % n)
        know *= 2


@wrong("2.4", "src tells everybody itself")
def broadcast_by_src_alone(tensor, src):
    if dist.get_rank() == src:
        for to in range(dist.get_world_size()):
            if to != src:
                dist.send(tensor, to)
    else:
        dist.recv(tensor, src)


@wrong("2.4", "in a row")
def broadcast_down_the_line(tensor, src):
    n, r = dist.get_world_size(), dist.get_rank()
    if r != src:
        dist.recv(tensor, (r - 1) % n)
    if (r + 1) % n != src:
        dist.send(tensor, (r + 1) % n)


@wrong("2.4", "which has already returned")
def broadcast_for_powers_of_two_only(tensor, src):
    n, r = dist.get_world_size(), dist.get_rank()
    v = (r - src) % n
    know = 1
    while know < n:
        if v < know:
            dist.send(tensor, (r + know) % n)
        elif v < 2 * know:
            dist.recv(tensor, (r - know) % n)
        know *= 2


@wrong("2.5", "the pieces lie in the order of their arrival")
def all_to_all_appends_what_arrives(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    chunks = tensor.chunk(n)
    arrived = [chunks[r]]
    for step in range(1, n):
        to, source = (r + step) % n, (r - step) % n
        arrived.append(exchange(chunks[to], to, torch.empty_like(chunks[r]), source))
    return torch.cat(arrived)


@wrong("2.5", "copy chunks[r] to place r")
def all_to_all_forgets_the_piece_that_stays(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    chunks, result = tensor.chunk(n), torch.zeros_like(tensor)
    places = result.chunk(n)
    for step in range(1, n):
        to, source = (r + step) % n, (r - step) % n
        exchange(chunks[to], to, places[source], source)
    return result


@wrong("2.5", "do not send it the whole tensor")
def all_to_all_sends_everything_to_everybody(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    rows = [tensor] * n
    for step in range(1, n):
        to, source = (r + step) % n, (r - step) % n
        rows[source] = exchange(tensor, to, torch.empty_like(tensor), source)
    return torch.cat([row.chunk(n)[r] for row in rows])


@wrong("2.5", "Are the two mixed up?")
def all_to_all_receives_from_where_it_sends(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    chunks, result = tensor.chunk(n), torch.empty_like(tensor)
    places = result.chunk(n)
    places[r].copy_(chunks[r])
    for step in range(1, n):
        to = (r + step) % n
        exchange(chunks[to], to, places[to], to)
    return result


@wrong("2.6", "the nodes have not exchanged anything")
def two_nodes_each_for_itself(tensor):
    neighbour = dist.get_rank() ^ 1
    tensor += exchange(tensor, neighbour, torch.empty_like(tensor), neighbour)


@wrong("2.6", "in the last step they give each other theirs")
def two_nodes_without_the_last_step(tensor):
    r = dist.get_rank()
    neighbour, twin = r ^ 1, (r + 2) % 4
    mine, other = tensor.chunk(2) if r % 2 == 0 else reversed(tensor.chunk(2))
    received = torch.empty_like(mine)
    mine += exchange(other, neighbour, received, neighbour)
    mine += exchange(mine, twin, received, twin)


@wrong("2.6", "send only one half of that sum across")
def two_nodes_with_whole_tensors_to_the_twin(tensor):
    r = dist.get_rank()
    for partner in (r ^ 1, (r + 2) % 4):
        tensor += exchange(tensor, partner, torch.empty_like(tensor), partner)


@wrong("2.6", "a ring over all four ranks")
def two_nodes_as_one_ring(tensor):
    my_ring_all_reduce(tensor)


@wrong("2.6", "goes through one rank")
def two_nodes_through_their_first_ranks(tensor):
    r = dist.get_rank()
    neighbour, received = r ^ 1, torch.empty_like(tensor)
    if r % 2 == 1:
        dist.send(tensor, neighbour)
        dist.recv(tensor, neighbour)
        return
    dist.recv(received, neighbour)
    tensor += received
    tensor += exchange(tensor, (r + 2) % 4, received, (r + 2) % 4)
    dist.send(tensor, neighbour)
