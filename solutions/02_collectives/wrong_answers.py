"""Wrong answers to the exercises of chapter 2, as learners write them; tests/test_exercises.py has each refused.

`exchange` and the solutions are those of the notebook beside this file, in whose names it runs.
"""
# ruff: noqa: F821

import math

import torch
import torch.distributed as dist

from course_lib.facts import interconnect
from course_lib.grading.wrong_answers import wrong


@wrong("2.1", "neither with chunk r")
def reduce_scatter_starts_with_its_own_chunk(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    right, left = (r + 1) % n, (r - 1) % n
    halves = tensor.view(n, 2, -1)
    rightwards, leftwards = halves[r]
    for step in range(n - 1):
        rightwards = exchange(rightwards, right, torch.empty_like(rightwards), left) + halves[(r - 1 - step) % n, 0]
        leftwards = exchange(leftwards, left, torch.empty_like(leftwards), right) + halves[(r + 1 + step) % n, 1]
    return torch.cat([rightwards, leftwards])


@wrong("2.1", "its indices are the other's in a mirror")
def reduce_scatter_has_the_same_indices_both_ways(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    right, left = (r + 1) % n, (r - 1) % n
    halves = tensor.view(n, 2, -1)
    rightwards, leftwards = halves[r - 1]
    for step in range(n - 1):
        rightwards = exchange(rightwards, right, torch.empty_like(rightwards), left) + halves[(r - 2 - step) % n, 0]
        leftwards = exchange(leftwards, left, torch.empty_like(leftwards), right) + halves[(r - 2 - step) % n, 1]
    return torch.cat([rightwards, leftwards])


@wrong("2.1", "before this rank's own share is added")
def reduce_scatter_passes_on_before_adding(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    right, left = (r + 1) % n, (r - 1) % n
    halves = tensor.view(n, 2, -1)
    from_left, from_right = halves[r - 1, 0], halves[right, 1]
    for step in range(n - 1):
        from_left = exchange(from_left, right, torch.empty_like(from_left), left)
        from_right = exchange(from_right, left, torch.empty_like(from_right), right)
        rightwards = from_left + halves[(r - 2 - step) % n, 0]
        leftwards = from_right + halves[(r + 2 + step) % n, 1]
    return torch.cat([rightwards, leftwards])


@wrong("2.1", "n-1 steps, and one is missing")
def reduce_scatter_forgets_the_last_step(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    right, left = (r + 1) % n, (r - 1) % n
    halves = tensor.view(n, 2, -1)
    rightwards, leftwards = halves[r - 1, 0], halves[right, 1]
    for step in range(n - 2):
        rightwards = exchange(rightwards, right, torch.empty_like(rightwards), left) + halves[(r - 2 - step) % n, 0]
        leftwards = exchange(leftwards, left, torch.empty_like(leftwards), right) + halves[(r + 2 + step) % n, 1]
    return torch.cat([rightwards, leftwards])


@wrong("2.1", "have changed places")
def reduce_scatter_joins_the_halves_the_wrong_way_round(tensor):
    first, second = my_ring_reduce_scatter(tensor).chunk(2)
    return torch.cat([second, first])


@wrong("2.1", "all goes one way around")
def reduce_scatter_to_the_right_only(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    chunks = tensor.chunk(n)
    partial = chunks[r - 1]
    for step in range(n - 1):
        received = torch.empty_like(partial)
        exchange(partial, (r + 1) % n, received, (r - 1) % n)
        partial = received + chunks[(r - 2 - step) % n]
    return partial


@wrong("2.1", "not the whole tensor")
def reduce_scatter_sends_whole_tensors(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    right, left = (r + 1) % n, (r - 1) % n
    rightwards, leftwards, total = tensor, tensor, tensor.clone()
    for _ in range(n - 1):
        rightwards = exchange(rightwards, right, torch.empty_like(tensor), left)
        leftwards = exchange(leftwards, left, torch.empty_like(tensor), right)
        total += rightwards
    return total.chunk(n)[r]


@wrong("2.1", "circle of sends that nobody receives")
def reduce_scatter_sends_first_and_receives_then(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    halves = tensor.view(n, 2, -1)
    rightwards = halves[r - 1, 0]
    for step in range(n - 1):
        received = torch.empty_like(rightwards)
        dist.send(rightwards, (r + 1) % n)
        dist.recv(received, (r - 1) % n)
        rightwards = received + halves[(r - 2 - step) % n, 0]
    return rightwards


@wrong("2.2", "in the order of arrival, the own one first")
def all_gather_appends_what_arrives(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    right, left = (r + 1) % n, (r - 1) % n
    pieces = [tensor]
    for _ in range(n - 1):
        length = exchange(torch.tensor([len(pieces[-1])]), right, torch.empty(1, dtype=torch.int64), left)
        pieces.append(exchange(pieces[-1], right, tensor.new_empty(int(length)), left))
    return torch.cat(pieces)


@wrong("2.2", "pass on the newest piece")
def all_gather_sends_its_own_piece_again_and_again(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    right, left = (r + 1) % n, (r - 1) % n
    pieces = [tensor] * n
    for step in range(n - 1):
        length = exchange(torch.tensor([len(tensor)]), right, torch.empty(1, dtype=torch.int64), left)
        pieces[(r - step - 1) % n] = exchange(tensor, right, tensor.new_empty(int(length)), left)
    return torch.cat(pieces)


@wrong("2.2", "lacks the piece of rank r+1, the last to arrive")
def all_gather_forgets_the_last_step(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    right, left = (r + 1) % n, (r - 1) % n
    pieces = [tensor.new_empty(0)] * n
    pieces[r] = tensor
    for step in range(n - 2):
        newest = pieces[(r - step) % n]
        length = exchange(torch.tensor([len(newest)]), right, torch.empty(1, dtype=torch.int64), left)
        pieces[(r - step - 1) % n] = exchange(newest, right, tensor.new_empty(int(length)), left)
    return torch.cat(pieces)


@wrong("2.2", "as long as it is: not filled up")
def all_gather_fills_up_to_the_longest(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    right, left = (r + 1) % n, (r - 1) % n
    lengths = [len(tensor)] * n
    for step in range(n - 1):
        arriving = exchange(torch.tensor([lengths[(r - step) % n]]), right, torch.empty(1, dtype=torch.int64), left)
        lengths[(r - step - 1) % n] = int(arriving)
    rows = tensor.new_zeros(n, max(lengths))
    rows[r, :len(tensor)] = tensor
    for step in range(n - 1):
        exchange(rows[(r - step) % n], right, rows[(r - step - 1) % n], left)
    return torch.cat([row[:length] for row, length in zip(rows, lengths)])


@wrong("2.2", "torch.distributed's own all_gather")
def all_gather_of_the_library(tensor):
    pieces = [None] * dist.get_world_size()
    dist.all_gather_object(pieces, tensor)
    return torch.cat(pieces)


@wrong("2.2", "has a different size")
def all_gather_takes_all_pieces_for_as_long_as_its_own(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    pieces = [torch.empty_like(tensor) for _ in range(n)]
    pieces[r] = tensor
    for step in range(n - 1):
        exchange(pieces[(r - step) % n], (r + 1) % n, pieces[(r - step - 1) % n], (r - 1) % n)
    return torch.cat(pieces)


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


@wrong("2.3", "fill up with zeros to a multiple of 2n")
def all_reduce_leaves_out_what_is_beyond_equal_chunks(tensor):
    n = dist.get_world_size()
    even = len(tensor) // (2 * n) * 2 * n
    tensor[:even] = my_ring_all_gather(my_ring_reduce_scatter(tensor[:even].clone()))


@wrong("2.3", "only moves the name")
def all_reduce_assigns_to_the_name(tensor):
    n, N = dist.get_world_size(), len(tensor)
    filled = torch.cat([tensor, tensor.new_zeros(-N % (2 * n))])
    tensor = my_ring_all_gather(my_ring_reduce_scatter(filled))[:N]


@wrong("2.3", "the result is returned, but the tensor is as it was")
def all_reduce_returns_the_sum(tensor):
    n, N = dist.get_world_size(), len(tensor)
    filled = torch.cat([tensor, tensor.new_zeros(-N % (2 * n))])
    return my_ring_all_gather(my_ring_reduce_scatter(filled))[:N]


@wrong("2.3", "torch.distributed's own all_reduce")
def all_reduce_of_the_library(tensor):
    dist.all_reduce(tensor)


@wrong("2.4", "the tree ends at dst")
def reduce_to_rank_0_whatever_dst_is(tensor, dst):
    my_tree_reduce(tensor, 0)


@wrong("2.4", "the largest distance first")
def reduce_with_the_shortest_way_first(tensor, dst):
    n, r = dist.get_world_size(), dist.get_rank()
    v, know, received = (r - dst) % n, 1, torch.empty_like(tensor)
    while know < n:
        if v < know and v + know < n:
            dist.recv(received, (r + know) % n)
            tensor += received
        elif know <= v < 2 * know:
            dist.send(tensor, (r - know) % n)
        know *= 2


@wrong("2.4", "what arrives replaces what is there")
def reduce_receives_into_the_tensor_itself(tensor, dst):
    n, r = dist.get_world_size(), dist.get_rank()
    v = (r - dst) % n
    for know in (4, 2, 1):
        if v < know and v + know < n:
            dist.recv(tensor, (r + know) % n)
        elif know <= v < 2 * know:
            dist.send(tensor, (r - know) % n)


@wrong("2.4", "dst adds everything up itself")
def reduce_by_dst_alone(tensor, dst):
    received = torch.empty_like(tensor)
    if dist.get_rank() != dst:
        dist.send(tensor, dst)
        return
    for source in range(dist.get_world_size()):
        if source != dst:
            dist.recv(received, source)
            tensor += received


@wrong("2.4", "in a row")
def reduce_down_the_line(tensor, dst):
    n, r = dist.get_world_size(), dist.get_rank()
    received = torch.empty_like(tensor)
    if (r - 1) % n != dst and n > 1:
        dist.recv(received, (r - 1) % n)
        tensor += received
    if r != dst:
        dist.send(tensor, (r + 1) % n)


@wrong("2.4", "circle of receives")
def reduce_for_powers_of_two_only(tensor, dst):
    n, r = dist.get_world_size(), dist.get_rank()
    v, received = (r - dst) % n, torch.empty_like(tensor)
    for step in reversed(range((n - 1).bit_length())):
        know = 1 << step
        if v < know:
            dist.recv(received, (r + know) % n)
            tensor += received
        elif v < 2 * know:
            dist.send(tensor, (r - know) % n)


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


@wrong("2.7", "the ring has two loops")
def crossover_with_half_a_ring(alpha_s, beta_s_per_byte, n):
    L = math.log2(n)
    return alpha_s * (n - 1 - L) / (beta_s_per_byte * (L - (n - 1) / n))


@wrong("2.7", "it moves one chunk, M/n")
def crossover_with_whole_messages_around_the_ring(alpha_s, beta_s_per_byte, n):
    L = math.log2(n)
    return alpha_s * (2 * (n - 1) - L) / (beta_s_per_byte * (L - 2 * (n - 1)))


@wrong("2.7", "log2 n steps are all")
def crossover_with_a_tree(alpha_s, beta_s_per_byte, n):
    L = 2 * math.log2(n)
    return alpha_s * (2 * (n - 1) - L) / (beta_s_per_byte * (L - 2 * (n - 1) / n))


@wrong("2.7", "whatever n is")
def crossover_of_one_message(alpha_s, beta_s_per_byte, n):
    return alpha_s / beta_s_per_byte


@wrong("2.7", "no beta to pay, so the ring never wins")
def crossover_without_two_ranks(alpha_s, beta_s_per_byte, n):
    L = math.log2(n)
    return alpha_s * (2 * (n - 1) - L) / (beta_s_per_byte * (L - 2 * (n - 1) / n))


@wrong("2.7", "% longer than the better choice")
def crossover_of_the_notebooks_laptop(alpha_s, beta_s_per_byte, n):
    return 64 * 1024


@wrong("2.8", "seven of eight cards have nothing to do")
def largest_model_around_one_ring(num_nodes, seconds):
    n, card = 8 * num_nodes, interconnect("InfiniBand NDR").one_way_bytes_per_s
    return seconds * card / (2 * (n - 1) / n) / 2


@wrong("2.8", "the whole M crosses between the nodes")
def largest_model_with_everything_across(num_nodes, seconds):
    nvlink, card = (interconnect(name).one_way_bytes_per_s for name in ("NVLink 4 (H100)", "InfiniBand NDR"))
    return seconds / (2 * 7 / 8 / nvlink + 2 * (num_nodes - 1) / num_nodes / card) / 2


@wrong("2.8", "one way it has 450")
def largest_model_by_the_data_sheet(num_nodes, seconds):
    return seconds / (2 * 7 / 8 / 900e9 + 2 * (num_nodes - 1) / num_nodes / 8 / 50e9) / 2


@wrong("2.8", "twice too large")
def largest_model_in_bytes(num_nodes, seconds):
    return 2 * my_largest_model(num_nodes, seconds)
