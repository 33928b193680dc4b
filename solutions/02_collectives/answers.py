"""Chapter 2: right and wrong answers, what each text stresses, each docstring's example; tools/answers.py reads it."""
# ruff: noqa: F821

import math
import threading

import numpy
import torch
import torch.distributed as dist

from tools.answers import example, right, term, wrong


def mean_of(all_reduce):
    """The sum in place, divided."""
    def divided(tensor, *dst):
        all_reduce(tensor, *dst)
        tensor /= dist.get_world_size()

    return divided


MEAN = "the sum is divided by the number of ranks: the sum is asked, not the mean"
MEANS = [wrong("2.1", MEAN)(lambda tensor: my_ring_reduce_scatter(tensor) / dist.get_world_size()),
         wrong("2.3", MEAN)(mean_of(my_ring_all_reduce)), wrong("2.4", MEAN)(mean_of(my_tree_reduce)),
         wrong("2.6", MEAN)(mean_of(my_two_node_all_reduce))]


def whole(tensor):
    return str([int(number) for number in tensor])


def brought(inputs):
    return [f"rank {rank} brings {whole(tensor)}" for rank, (tensor, *_) in enumerate(inputs)]


def returned(answers):
    return [f"rank {rank} returns {whole(answer['returned'])}" for rank, answer in enumerate(answers)]


# ---- 2.1 my_ring_reduce_scatter
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
                parts[mine, half], (r + way) % n, torch.empty_like(parts[0, 0]), (r - way) % n)
    return parts[r].flatten().clone()


def both_ways(tensor, start=1, steps=-1, leftwards=-1, add_first=True):
    """The reduce-scatter with halves that start `start` chunks further on and take n + steps steps.

    leftwards: the sign of the indices of what travels left; add_first: before a half is passed on.
    """
    n, r = dist.get_world_size(), dist.get_rank()
    halves, results = tensor.view(n, 2, -1), []
    for half, to, sign in ((0, 1, 1), (1, -1, leftwards)):
        moving = result = halves[(r - sign * start) % n, half]
        for step in range(n + steps):
            arrived = exchange(moving, (r + to) % n, torch.empty_like(moving), (r - to) % n)
            result = arrived + halves[(r - sign * (start + 1 + step)) % n, half]
            moving = result if add_first else arrived
        results.append(result)
    return torch.cat(results)


@wrong("2.1", "every half ends one rank before its home: what travels right starts with chunk r-1, what travels left "
       "with chunk r+1, neither with chunk r")
def reduce_scatter_starts_with_its_own_chunk(tensor):
    return both_ways(tensor, start=0)


@wrong("2.1", "the half that travels left is wrong, the other one right: it starts with chunk r+1, and its indices are "
       "the other's in a mirror")
def reduce_scatter_has_the_same_indices_both_ways(tensor):
    return both_ways(tensor, leftwards=1)


@wrong("2.1", "only the last two shares are in the sum: what is passed on is what has just been received, before this "
       "rank's own share is added")
def reduce_scatter_passes_on_before_adding(tensor):
    return both_ways(tensor, add_first=False)


@wrong("2.1", "every half lacks its last share: there are n-1 steps, and one is missing")
def reduce_scatter_forgets_the_last_step(tensor):
    return both_ways(tensor, steps=-2)


SCATTERED = [
    wrong("2.1", "every chunk went one step too far and got a share twice: there are n-1 steps")(
        lambda tensor: both_ways(tensor, steps=0)),
    wrong("2.1", "every rank returns its own chunk r, with nobody else's share in it")(
        lambda tensor: tensor.chunk(dist.get_world_size())[dist.get_rank()]),
    wrong("2.1", "every rank returns the whole sum: only chunk r is asked")(
        lambda tensor: my_ring_all_gather(my_ring_reduce_scatter(tensor)))]


@wrong("2.1", "the two halves of every chunk have changed places: the first one travels right, the second one left")
def reduce_scatter_joins_the_halves_the_wrong_way_round(tensor):
    first, second = my_ring_reduce_scatter(tensor).chunk(2)
    return torch.cat([second, first])


@wrong("2.1", "all goes one way around: let one half of every chunk go the other way, at the same time")
def reduce_scatter_to_the_right_only(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    chunks = tensor.chunk(n)
    partial = chunks[r - 1]
    for step in range(n - 1):
        received = torch.empty_like(partial)
        exchange(partial, (r + 1) % n, received, (r - 1) % n)
        partial = received + chunks[(r - 2 - step) % n]
    return partial


@wrong("2.1", "half a chunk each way per step is enough, not the whole tensor")
def reduce_scatter_sends_whole_tensors(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    right, left = (r + 1) % n, (r - 1) % n
    rightwards, leftwards, total = tensor, tensor, tensor.clone()
    for _ in range(n - 1):
        rightwards = exchange(rightwards, right, torch.empty_like(tensor), left)
        leftwards = exchange(leftwards, left, torch.empty_like(tensor), right)
        total += rightwards
    return total.chunk(n)[r]


@wrong("2.1", "one tensor receives both halves: what came from the left is overwritten by what comes from the right, "
       "before it is added and passed on")
def reduce_scatter_receives_into_one_tensor(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    halves = tensor.view(n, 2, -1)
    rightwards, leftwards, received = halves[r - 1, 0], halves[(r + 1) % n, 1], torch.empty_like(halves[0, 0])
    for step in range(n - 1):
        from_left = exchange(rightwards, (r + 1) % n, received, (r - 1) % n)
        from_right = exchange(leftwards, (r - 1) % n, received, (r + 1) % n)
        rightwards = from_left + halves[(r - 2 - step) % n, 0]
        leftwards = from_right + halves[(r + 2 + step) % n, 1]
    return torch.cat([rightwards, leftwards])


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


@wrong("2.1", "over budget: rank 0 sent")
def scatter_in_crumbs(tensor):
    """Every piece in two messages."""
    n, r = dist.get_world_size(), dist.get_rank()
    right, left = (r + 1) % n, (r - 1) % n
    halves = tensor.view(n, 2, -1)
    rightwards, leftwards = halves[r - 1, 0], halves[right, 1]
    for step in range(n - 1):
        moved = []
        for piece, to, source in ((rightwards, right, left), (leftwards, left, right)):
            crumbs = [
                exchange(crumb.contiguous(), to, torch.empty_like(crumb), source) for crumb in piece.tensor_split(2)]
            moved.append(torch.cat(crumbs))
        rightwards = moved[0] + halves[(r - 2 - step) % n, 0]
        leftwards = moved[1] + halves[(r + 2 + step) % n, 1]
    return torch.cat([rightwards, leftwards])


START = "    rightwards, leftwards = halves[r - 1, 0]"  # what is put in front of it returns
ONE_WAY = """    moving = halves[r - 1].flatten()
    for step in range(n - 1):
        moving = exchange(moving, right, torch.empty_like(moving), left) + halves[(r - 2 - step) % n].flatten()
    return moving
"""
DIRECT = """    total = halves[r].flatten().clone()
    for step in range(1, n):
        to, source = (r + step) % n, (r - step) % n
        total += exchange(halves[to].flatten(), to, torch.empty_like(total), source)
    return total
"""
TEXT_2_1 = [
    term("2.1", "the sum of everybody's chunk", "from_left + halves", "0 * from_left + halves"),
    term("2.1", "rank r wants chunk r", "halves[r - 1, 0]", "halves[r, 0]"),
    term("2.1", "n-1 half chunks, no more", "range(n - 1)", "range(n)"),
    term("2.1", "and no fewer", "range(n - 1)", "range(n - 2)"),
    term("2.1", "the second half in the mirror", "(r + 2 + step)", "(r - 2 - step)"),
    term("2.1", "the first half, then the second", "[rightwards, leftwards]", "[leftwards, rightwards]"),
    term("2.1", "to each neighbour half of it", START, ONE_WAY + START),
    term("2.1", "nothing to anybody else", START, DIRECT + START),
    term("2.1", "as few messages as these pieces need",
         "exchange(rightwards, right, torch.empty_like(rightwards), left)",
         "torch.cat([exchange(part, right, torch.empty_like(part), left) for part in rightwards.tensor_split(2)])"),
    example("2.1", lambda inputs, answers: brought(inputs) + returned(answers))]


# ---- 2.2 my_ring_all_gather
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
                handed_around(tensor, lambda piece: torch.tensor([len(piece)])).items(), key=lambda each: each[0])])


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


def from_the_left(piece):
    """The piece of the left neighbour, who sends one as this rank does."""
    n, r = dist.get_world_size(), dist.get_rank()
    length = exchange(torch.tensor([len(piece)]), (r + 1) % n, torch.empty(1, dtype=torch.int64), (r - 1) % n)
    return exchange(piece, (r + 1) % n, piece.new_empty(int(length)), (r - 1) % n)


def arrivals(tensor):
    """The pieces in the order of their arrival, the own one first: those of ranks r, r-1, r-2, ..."""
    pieces = [tensor]
    for _ in range(dist.get_world_size() - 1):
        pieces.append(from_the_left(pieces[-1]))
    return pieces


def by_place(tensor, further=0):
    """The pieces of ranks 0, 1, 2, ..., or of those that are `further` on."""
    n, r, arrived = dist.get_world_size(), dist.get_rank(), arrivals(tensor)
    return [arrived[(r - place - further) % n] for place in range(n)]


@wrong("2.2", "the pieces lie in the order of arrival, the own one first: the piece of rank q belongs at place q")
def all_gather_appends_what_arrives(tensor):
    return torch.cat(arrivals(tensor))


@wrong("2.2", "every piece that arrives is the left neighbour's own: pass on the newest piece, not your own again")
def all_gather_sends_its_own_piece_again_and_again(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    pieces = [tensor] * n
    for step in range(n - 1):
        pieces[(r - step - 1) % n] = from_the_left(tensor)
    return torch.cat(pieces)


@wrong("2.2", "rank r lacks the piece of rank r+1, the last to arrive: there are n-1 steps, and one is missing")
def all_gather_forgets_the_last_step(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    pieces = [tensor.new_empty(0)] * n
    pieces[r] = tensor
    for step in range(n - 2):
        pieces[(r - step - 1) % n] = from_the_left(pieces[(r - step) % n])
    return torch.cat(pieces)


GATHERED = [
    wrong("2.2", "the pieces lie in the order of arrival, the own one last: the piece of rank q belongs at place q")(
        lambda tensor: torch.cat(arrivals(tensor)[::-1])),
    wrong("2.2", "every piece lies one place too far to the left: in step s the piece of rank r-s-1 arrives")(
        lambda tensor: torch.cat(by_place(tensor, further=1))),
    wrong("2.2", "every rank lacks its own piece: nobody sends it, put it into its place before the first step")(
        lambda tensor: torch.cat([each for q, each in enumerate(by_place(tensor)) if q != dist.get_rank()])),
    wrong("2.2", "the pieces are filled up with zeros to the length of the longest: each is as long as it was")(
        lambda tensor: torch.nn.utils.rnn.pad_sequence(by_place(tensor), batch_first=True).flatten())]


@wrong("2.2", "send one piece per step, as long as it is: not filled up, and not the whole result")
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


LENGTH = "exchange(torch.tensor([len(newest)]), right, torch.empty(1, dtype=torch.int64), left)"
PIECE = "exchange(newest, right, tensor.new_empty(int(length)), left)"
TEXT_2_2 = [
    term("2.2", "pieces differ in length", "tensor.new_empty(int(length))", "torch.empty_like(tensor)"),
    term("2.2", "in the order of ranks", "torch.cat(pieces)", "torch.cat(pieces[r:] + pieces[:r])"),
    term("2.2", "all of them", "range(n - 1)", "range(n - 2)"),
    term("2.2", "n-1 pieces are sent", "range(n - 1)", "range(n)"),
    term("2.2", "passed on around the ring", "newest = pieces[(r - step) % n]", "newest = tensor"),
    term("2.2", "the own one, too", "pieces[r] = tensor", "pieces[r] = tensor[:0]"),
    term("2.2", "as long as they are", PIECE, "exchange(torch.cat([newest, newest.new_zeros(64)]), right, "
         "tensor.new_empty(int(length) + 64), left)[:-64]"),
    term("2.2", "8 bytes for the length", LENGTH,
         "exchange(torch.tensor([len(newest), 0]), right, torch.empty(2, dtype=torch.int64), left)[0]"),
    term("2.2", "only to the right neighbour", "    for step in range(n - 1):", "    for step in range(n - 1):\n"
         "        exchange(torch.ones(1), left, torch.ones(1), right)"),
    example("2.2", lambda inputs, answers: [*brought(inputs), f"both return {whole(answers[0]['returned'])}"])]


# ---- 2.3 my_ring_all_reduce
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


@wrong("2.3", "everything goes through rank 0, in and out again, while the others wait: let chunks go around the ring, "
       "so that all send the same")
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


def filled(tensor):
    """With zeros up to a multiple of 2n."""
    return torch.cat([tensor, tensor.new_zeros(-len(tensor) % (2 * dist.get_world_size()))])


def all_reduce_turned_by(places):
    """The all-reduce after a reduce-scatter that leaves chunk r + places on rank r."""
    def all_reduce(tensor):
        x = filled(tensor)
        my_ring_all_reduce(x)
        tensor.copy_(x.roll(-places * len(x) // dist.get_world_size())[:len(tensor)])

    return all_reduce


TURNED = [
    wrong("2.3", "the chunks are right, but lie in the wrong order: the all-gather takes rank r's piece for chunk r, "
          "so the reduce-scatter has to leave chunk r there")(all_reduce_turned_by(places)) for places in (1, -1)]


@wrong("2.3", "a share is added a second time: the all-gather moves complete sums, and overwrites what lies there")
def all_reduce_adds_the_sum(tensor):
    tensor += my_ring_all_gather(my_ring_reduce_scatter(filled(tensor)))[:len(tensor)]


@wrong("2.3", "only rank 0 has the sum: it has to travel back to the others")
def all_reduce_to_rank_0_alone(tensor):
    my_tree_reduce(tensor if dist.get_rank() == 0 else tensor.clone(), 0)


@wrong("2.3", "send chunks, not the whole tensor: a reduce-scatter, then an all-gather")
def all_reduce_of_whole_tensors(tensor):
    n, r, passed = dist.get_world_size(), dist.get_rank(), tensor.clone()
    for _ in range(n - 1):
        passed = exchange(passed, (r + 1) % n, torch.empty_like(tensor), (r - 1) % n)
        tensor += passed


@wrong("2.3", "only what n equal chunks hold is right, and the rest is left out: fill up with zeros to a multiple of "
       "2n")
def all_reduce_leaves_out_what_is_beyond_equal_chunks(tensor):
    n = dist.get_world_size()
    even = len(tensor) // (2 * n) * 2 * n
    tensor[:even] = my_ring_all_gather(my_ring_reduce_scatter(tensor[:even].clone()))


@wrong("2.3", "only moves the name")
def all_reduce_assigns_to_the_name(tensor):
    tensor = my_ring_all_gather(my_ring_reduce_scatter(filled(tensor)))[:len(tensor)]


@wrong("2.3", "the result is returned, but the tensor is as it was")
def all_reduce_returns_the_sum(tensor):
    return my_ring_all_gather(my_ring_reduce_scatter(filled(tensor)))[:len(tensor)]


@wrong("2.3", "torch.distributed's own all_reduce")
def all_reduce_of_the_library(tensor):
    dist.all_reduce(tensor)


@wrong("2.3", "must match the size of tensor")
def all_reduce_cuts_from_the_end(tensor):
    pad = -len(tensor) % (2 * dist.get_world_size())
    filled = torch.cat([tensor, tensor.new_zeros(pad)])
    total = my_ring_all_gather(my_ring_reduce_scatter(filled))[:-pad]
    tensor.copy_(total)


@wrong("2.3", "more zeros than are needed: where 2n divides the length there is nothing to fill up")
def all_reduce_fills_up_always(tensor):
    n, N = dist.get_world_size(), len(tensor)
    filled = tensor.new_zeros(N + 2 * n - N % (2 * n))
    filled[:N] = tensor
    tensor.copy_(my_ring_all_gather(my_ring_reduce_scatter(filled))[:N])


@wrong("2.3", "a tensor that is shorter than the ring is a tensor too: fill it up")
def all_reduce_breaks_below_n(tensor):
    if len(tensor) < 2 * dist.get_world_size():
        raise ValueError("a tensor that is shorter than the ring is a tensor too: fill it up")
    my_ring_all_reduce(tensor)


@wrong("2.3", "and tensor.data = ... the memory under it")
def all_reduce_gives_it_other_memory(tensor):
    summed = tensor.clone()
    my_ring_all_reduce(summed)
    tensor.data = summed


@wrong("2.3", "and tensor.data = ... the memory under it")
def all_reduce_sets_its_storage(tensor):
    summed = tensor.clone()
    my_ring_all_reduce(summed)
    tensor.set_(summed)


TEXT_2_3 = [
    term("2.3", "any length", "-(-N // (2 * n)) * 2 * n", "N // (2 * n) * 2 * n"),
    term("2.3", "which 2n divides", "-(-N // (2 * n)) * 2 * n", "-(-N // n) * n"),
    term("2.3", "filled up, and no further", "-(-N // (2 * n)) * 2 * n", "(N // (2 * n) + 1) * 2 * n"),
    term("2.3", "in place", "tensor.copy_(", "("),
    term("2.3", "everybody has the sum", "tensor.copy_(", "(tensor.copy_ if dist.get_rank() == 0 else id)("),
    term("2.3", "not through one root", "    tensor.copy_(my_ring_all_gather(my_ring_reduce_scatter(filled))[:N])",
         "    my_tree_reduce(tensor, 0)\n    for r in range(1, n):\n        if dist.get_rank() == 0:\n"
         "            dist.send(tensor, r)\n        elif dist.get_rank() == r:\n            dist.recv(tensor, 0)"),
    example("2.3", lambda inputs, answers: [
        "rank 0 has {}, rank 1 has {}".format(*(whole(tensor) for tensor, in inputs)),
        f"both have {whole(answers[0]['tensor'])}"])]


# ---- 2.4 my_tree_reduce
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


def along_tree(tensor, dst, distances, add=True):
    """The tree to dst that takes these steps; add=False overwrites where others add."""
    n, r = dist.get_world_size(), dist.get_rank()
    v, received = (r - dst) % n, torch.empty_like(tensor)
    for know in distances:
        if v < know and v + know < n:
            dist.recv(received, (r + know) % n)
            tensor.copy_(received + tensor if add else received)
        elif know <= v < 2 * know:
            dist.send(tensor, (r - know) % n)


def backwards():
    """Of 1, 2, 4, ... below n the largest first."""
    return [1 << step for step in reversed(range((dist.get_world_size() - 1).bit_length()))]


@wrong("2.4", "the sum is on rank 0: the tree ends at dst, so count from there, v = (r - dst) % n")
def reduce_to_rank_0_whatever_dst_is(tensor, dst):
    my_tree_reduce(tensor, 0)


@wrong("2.4", "shares are lost: some ranks send before they have received all that comes through them. The broadcast "
       "runs backwards: the largest distance first, 1 last")
def reduce_with_the_shortest_way_first(tensor, dst):
    along_tree(tensor, dst, backwards()[::-1])


@wrong("2.4", "that is a tree for at most eight ranks: of 1, 2, 4, ... below n the largest comes first")
def reduce_for_eight_ranks(tensor, dst):
    along_tree(tensor, dst, [know for know in (4, 2, 1) if know < dist.get_world_size()])


@wrong("2.4", "what arrives replaces what is there: receive it into another tensor, and add")
def reduce_receives_into_the_tensor_itself(tensor, dst):
    along_tree(tensor, dst, backwards(), add=False)


REDUCED = [
    wrong("2.4", "dst's tensor is as it was: an assignment `tensor = ...` only moves the name, write into the tensor "
          "itself, as tensor.copy_ and tensor += do")(lambda tensor, dst: my_tree_reduce(tensor.clone(), dst)),
    wrong("2.4", "the first step is missing: of 1, 2, 4, ... below n the largest comes first")(
        lambda tensor, dst: along_tree(tensor, dst, backwards()[1:])),
    wrong("2.4", "the last step is missing: `know` goes down to 1")(
        lambda tensor, dst: along_tree(tensor, dst, backwards()[:-1])),
    wrong("2.4", "somebody's share is sent more than once: each rank but dst sends one message")(
        lambda tensor, dst: my_ring_all_reduce(tensor))]


@wrong("2.4", "dst adds everything up itself: let others add on the way")
def reduce_by_dst_alone(tensor, dst):
    received = torch.empty_like(tensor)
    if dist.get_rank() != dst:
        dist.send(tensor, dst)
        return
    for source in range(dist.get_world_size()):
        if source != dst:
            dist.recv(received, source)
            tensor += received


@wrong("2.4", "they add up in a row: in each step as many as can hand theirs to another one")
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


TREE = """    for step in reversed(range(n.bit_length())):  # ..., 4, 2, 1
        know = 1 << step
        if v < know and v + know < n:
            dist.recv(received, (r + know) % n)
            tensor += received
        elif know <= v < 2 * know:
            dist.send(tensor, (r - know) % n)"""
IN_A_ROW = """    if v + 1 < n:
        dist.recv(received, (r + 1) % n)
        tensor += received
    if v > 0:
        dist.send(tensor, (r - 1) % n)"""
TO_ALL = """    my_ring_all_reduce(tensor)"""
@wrong("2.4", "they add up in a row: in each step as many as can hand theirs to another one")
def tree_of_a_heap(tensor, dst):
    """Two below each: of seven ranks the first one has two behind it who both have two steps to do."""
    n, r = dist.get_world_size(), dist.get_rank()
    v, received = (r - dst) % n, torch.empty_like(tensor)
    for below in range(2 * v + 1, min(2 * v + 3, n)):
        dist.recv(received, (below + dst) % n)
        tensor += received
    if v:
        dist.send(tensor, ((v - 1) // 2 + dst) % n)


TEXT_2_4 = [
    term("2.4", "the sum arrives at dst", "v = (r - dst) % n", "v = r"),
    term("2.4", "the film runs backwards", "reversed(range(n.bit_length()))", "range(n.bit_length())"),
    term("2.4", "and adds where it copied", "tensor += received", "tensor.copy_(received)"),
    term("2.4", "any n", "if v < know and v + know < n", "if v < know"),
    term("2.4", "more than eight, too", "range(n.bit_length())", "range(min(3, n.bit_length()))"),
    term("2.4", "in place", "tensor += received", "tensor = tensor + received"),
    term("2.4", "ceil(log2 n) steps", TREE, IN_A_ROW),
    term("2.4", "every rank but dst sends once", TREE, TO_ALL),
    term("2.4", "dst receives few messages only", TREE, """    if v > 0:
        dist.send(tensor, dst)
    for other in range(1, n if v == 0 else 0):
        dist.recv(received, (r + other) % n)
        tensor += received"""),
    example("2.4", lambda inputs, answers: [
        "dst = {}: they have {}, {}, {}".format(inputs[0][1], *(whole(tensor) for tensor, _ in inputs)),
        f"rank 1 ends with {whole(answers[1]['tensor'])}"])]


# ---- 2.5 my_all_to_all
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


@right("2.5", "a thread sends, while this one receives")
def all_to_all_by_a_sending_thread(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    chunks, arrived = tensor.chunk(n), torch.empty_like(tensor)
    places = arrived.chunk(n)

    def send_all():
        for step in range(1, n):
            dist.send(chunks[(r + step) % n].contiguous(), (r + step) % n)

    sender = threading.Thread(target=send_all)
    sender.start()
    for step in range(1, n):
        dist.recv(places[(r - step) % n], (r - step) % n)
    sender.join()
    places[r].copy_(chunks[r])
    return arrived


@right("2.5", "in pairs: who meets whom in each step")
def all_to_all_in_pairs(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    chunks, arrived = tensor.chunk(n), list(tensor.clone().chunk(n))
    for meeting in range(n):
        other = (meeting - r) % n
        if other != r:
            arrived[other] = exchange(chunks[other], other, torch.empty_like(chunks[other]), other)
    return torch.cat(arrived)


def pairwise(tensor, piece=lambda to, source: to, place=lambda to, source: source):
    """The all-to-all that sends chunks[piece(to, source)] in each step, and keeps what arrives at place(to, source)."""
    n, r = dist.get_world_size(), dist.get_rank()
    chunks, result = tensor.chunk(n), tensor.clone()
    for step in range(1, n):
        to, source = (r + step) % n, (r - step) % n
        exchange(chunks[piece(to, source)], to, result.chunk(n)[place(to, source)], source)
    return result


@wrong("2.5", "the pieces lie in the order of their arrival: the piece of rank q belongs at place q")
def all_to_all_appends_what_arrives(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    return torch.cat([my_all_to_all(tensor).chunk(n)[(r - step) % n] for step in range(n)])


EXCHANGED = [
    wrong("2.5", "every rank returns its own input: nothing has been exchanged")(lambda tensor: tensor),
    wrong("2.5", "the piece that arrives in step s lies at the place of the rank that was sent to: it came from rank "
          "r-s, so it belongs at place r-s")(lambda tensor: pairwise(tensor, place=lambda to, source: to)),
    wrong("2.5", "every rank sends each time the piece of its own number: rank `to` needs chunks[to]")(
        lambda tensor: pairwise(tensor, piece=lambda to, source: dist.get_rank())),
    wrong("2.5", "every rank sends chunks[source]: rank `to` needs chunks[to]")(
        lambda tensor: pairwise(tensor, piece=lambda to, source: source))]


@wrong("2.5", "pieces are received into chunks that are still to be sent: what arrives in one step leaves again in a "
       "later one, so receive into another tensor")
def all_to_all_receives_into_what_is_to_be_sent(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    chunks = tensor.chunk(n)
    for step in range(1, n):
        to, source = (r + step) % n, (r - step) % n
        exchange(chunks[to].clone(), to, chunks[source], source)
    return tensor


@wrong("2.5", "every rank lacks the piece that stays: nobody sends it, copy chunks[r] to place r")
def all_to_all_forgets_the_piece_that_stays(tensor):
    result = my_all_to_all(tensor)
    result.chunk(dist.get_world_size())[dist.get_rank()].zero_()
    return result


@wrong("2.5", "rank j needs one piece of you, chunks[j]: do not send it the whole tensor")
def all_to_all_sends_everything_to_everybody(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    rows = [tensor] * n
    for step in range(1, n):
        to, source = (r + step) % n, (r - step) % n
        rows[source] = exchange(tensor, to, torch.empty_like(tensor), source)
    return torch.cat([row.chunk(n)[r] for row in rows])


@wrong("2.5", "rank j needs one piece of you, chunks[j]: do not send it the whole tensor")
def all_to_all_hides_the_whole_tensor_in_threads(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    rows = [torch.empty_like(tensor) for _ in range(n)]
    threads = [threading.Thread(target=dist.send, args=(tensor, other)) for other in range(n) if other != r]
    for thread in threads:
        thread.start()
    for other in range(n):
        if other != r:
            dist.recv(rows[other], other)
    for thread in threads:
        thread.join()
    return torch.cat([(tensor if other == r else row).chunk(n)[r] for other, row in enumerate(rows)])


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


@wrong("2.5", "compare shapes and dtypes")
def all_to_all_in_float32(tensor):
    n, r = dist.get_world_size(), dist.get_rank()
    chunks = list(tensor.chunk(n))
    arrived = {r: chunks[r]}
    for step in range(1, n):
        to, source = (r + step) % n, (r - step) % n
        arrived[source] = exchange(chunks[to], to, torch.empty(len(tensor) // n), source)
    return torch.cat([arrived[rank] for rank in range(n)])


TEXT_2_5 = [
    term("2.5", "chunk j goes to rank j", "exchange(chunks[to], to,", "exchange(chunks[r], to,"),
    term("2.5", "in the order of their senders", "places[source], source", "places[to], source"),
    term("2.5", "one piece stays", "places[r].copy_(chunks[r])", "places[r].zero_()"),
    term("2.5", "everyone gets one", "range(1, n)", "range(2, n)"),
    term("2.5", "every piece but the one that stays", "exchange(chunks[to], to, places[source], source)",
         "places[source].copy_(exchange(tensor, to, torch.empty_like(tensor), source).chunk(n)[r])"),
    example("2.5", lambda inputs, answers: brought(inputs) + returned(answers))]


# ---- 2.6 my_two_node_all_reduce
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


@wrong("2.6", "every rank has the sum of its own node: the nodes have not exchanged anything")
def two_nodes_each_for_itself(tensor):
    neighbour = dist.get_rank() ^ 1
    tensor += exchange(tensor, neighbour, torch.empty_like(tensor), neighbour)


@wrong("2.6", "every rank has the sum of itself and its twin on the other node: its neighbour's share is missing")
def two_nodes_without_the_neighbour(tensor):
    twin = dist.get_rank() ^ 2
    tensor += exchange(tensor, twin, torch.empty_like(tensor), twin)


@wrong("2.6", "the shares of the own node are in the sum twice: what was already added is sent back and added again")
def two_nodes_with_the_own_one_twice(tensor):
    neighbour, twin = dist.get_rank() ^ 1, dist.get_rank() ^ 2
    tensor += exchange(tensor, neighbour, torch.empty_like(tensor), neighbour)
    tensor += exchange(tensor, twin, torch.empty_like(tensor), twin) + tensor


@wrong("2.6", "every share is in the sum twice: the last step moves complete halves, do not add them")
def two_nodes_with_everything_twice(tensor):
    my_two_node_all_reduce(tensor)
    tensor *= 2


@wrong("2.6", "every rank has one half complete and the other not: the neighbour has that one, and in the last step "
       "they give each other theirs")
def two_nodes_without_the_last_step(tensor):
    r = dist.get_rank()
    neighbour, twin = r ^ 1, (r + 2) % 4
    mine, other = tensor.chunk(2) if r % 2 == 0 else reversed(tensor.chunk(2))
    received = torch.empty_like(mine)
    mine += exchange(other, neighbour, received, neighbour)
    mine += exchange(mine, twin, received, twin)


@wrong("2.6", "add up inside the node first, and send only one half of that sum across")
def two_nodes_with_whole_tensors_to_the_twin(tensor):
    r = dist.get_rank()
    for partner in (r ^ 1, (r + 2) % 4):
        tensor += exchange(tensor, partner, torch.empty_like(tensor), partner)


@wrong("2.6", "a ring over all four ranks leaves each node over one link, and sends nearly everything there, again and "
       "again: add up inside the node first")
def two_nodes_as_one_ring(tensor):
    my_ring_all_reduce(tensor)


@wrong("2.6", "all that leaves the node goes through one rank: halve it, so that both ranks use their links at the "
       "same time")
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


@wrong("2.6", "N is even, and need not be a multiple of 4: [1, 2] has two halves and no quarters")
def nodes_by_quarters(tensor):
    r = dist.get_rank()
    neighbour, twin, first = r ^ 1, (r + 2) % 4, 2 * (r % 2)
    quarters = tensor.chunk(4)
    for own, given in ((first, 2 - first), (first + 1, 3 - first)):
        quarters[own].add_(exchange(quarters[given], neighbour, torch.empty_like(quarters[own]), neighbour))
        quarters[own].add_(exchange(quarters[own], twin, torch.empty_like(quarters[own]), twin))
        exchange(quarters[own], neighbour, quarters[given], neighbour)


TEXT_2_6 = [
    term("2.6", "add up inside the node", "mine += exchange(other, neighbour, received, neighbour)", "pass"),
    term("2.6", "between the nodes", "mine += exchange(mine, twin, received, twin)", "pass"),
    term("2.6", "both halves in the end", "exchange(mine, neighbour, other, neighbour)", "pass"),
    term("2.6", "inside the node first",
         "    mine += exchange(other, neighbour, received, neighbour)\n"
         "    mine += exchange(mine, twin, received, twin)",
         "    tensor += exchange(tensor, twin, torch.empty_like(tensor), twin)\n"
         "    mine += exchange(other, neighbour, received, neighbour)"),
    term("2.6", "every rank only its half across", "mine += exchange(mine, twin, received, twin)",
         "received = exchange(tensor, twin, torch.empty_like(tensor), twin).chunk(2)[r % 2]\n    mine += received"),
    term("2.6", "every rank, not one for both", "    received = torch.empty_like(mine)",
         "    my_tree_reduce(tensor, 0)\n    if r > 0:\n        dist.recv(tensor, r - 1)\n    if r < 3:\n"
         "        dist.send(tensor, r + 1)\n    return\n    received = torch.empty_like(mine)"),
    example("2.6", lambda inputs, answers: [" ".join(["The ranks have", *(whole(tensor) for tensor, in inputs)]),
                                    f"{whole(answers[0]['tensor'])} everywhere"])]


# ---- 2.7 my_crossover_bytes
@right("2.7", "numpy's numbers, inf where the divisor is 0")
def crossover_in_numpy(alpha_s, beta_s_per_byte, n):
    with numpy.errstate(divide="ignore"):
        steps = numpy.log2(n)
        return numpy.float64(alpha_s * (2 * (n - 1) - steps)) / numpy.float64(
            beta_s_per_byte * (steps - 2 * (n - 1) / n))


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


@wrong("2.7", "the ring has two loops of n-1 steps, the reduce-scatter and the all-gather: one is missing. Or doubling "
       "has twice its steps, as a tree there and back: all exchange at once, log2 n steps are all")
def crossover_with_half_a_ring(alpha_s, beta_s_per_byte, n):
    L = math.log2(n)
    return alpha_s * (n - 1 - L) / (beta_s_per_byte * (L - (n - 1) / n))


@wrong("2.7", "every step of the ring is taken to move the whole message: it moves one chunk, M/n, so that its bytes "
       "are 2(n-1)/n M")
def crossover_with_whole_messages_around_the_ring(alpha_s, beta_s_per_byte, n):
    L = math.log2(n)
    return alpha_s * (2 * (n - 1) - L) / (beta_s_per_byte * (L - 2 * (n - 1)))


@wrong("2.7", "the ring has two loops of n-1 steps, the reduce-scatter and the all-gather: one is missing. Or doubling "
       "has twice its steps, as a tree there and back: all exchange at once, log2 n steps are all")
def crossover_with_a_tree(alpha_s, beta_s_per_byte, n):
    L = 2 * math.log2(n)
    return alpha_s * (2 * (n - 1) - L) / (beta_s_per_byte * (L - 2 * (n - 1) / n))


@wrong("2.7", "that is alpha over beta: where one message's latency costs as much as its bytes, whatever n is")
def crossover_of_one_message(alpha_s, beta_s_per_byte, n):
    return alpha_s / beta_s_per_byte


CROSSOVERS = [
    wrong("2.7", "these are elements of 4 bytes: bytes are asked")(lambda *case: my_crossover_bytes(*case) / 4),
    wrong("2.7", "these are bytes of one chunk: M is the whole message")(
        lambda alpha_s, beta_s_per_byte, n: my_crossover_bytes(alpha_s, beta_s_per_byte, n) / n),
    wrong("2.7", "the ring's alphas alone are weighed: doubling pays log2 n of them too")(
        lambda alpha_s, beta_s_per_byte, n: 2 * alpha_s * (n - 1) / beta_s_per_byte / (math.log2(n) - 2 * (n - 1) / n))]


@wrong("2.7", "no beta to pay, so the ring never wins")
def crossover_without_two_ranks(alpha_s, beta_s_per_byte, n):
    L = math.log2(n)
    return alpha_s * (2 * (n - 1) - L) / (beta_s_per_byte * (L - 2 * (n - 1) / n))


@wrong("2.7", "two ranks move the same bytes either way: no beta to pay, so the ring never wins, math.inf")
def crossover_of_two_ranks_at_nothing(alpha_s, beta_s_per_byte, n):
    return 0 if n == 2 else my_crossover_bytes(alpha_s, beta_s_per_byte, n)


@wrong("2.7", "that is one size for every link, as for the laptop of the notebook: alpha, beta and n decide")
def crossover_of_the_notebooks_laptop(alpha_s, beta_s_per_byte, n):
    return 64 * 1024


CROSSOVER_OF_ONE = right("2.7", "a tensor of one element")(
    lambda *asked: torch.tensor([my_crossover_bytes(*asked)], dtype=torch.float64))


TEXT_2_7 = [
    term("2.7", "the ring takes 2(n-1) steps", "more_alphas = 2 * (n - 1)", "more_alphas = (n - 1)"),
    term("2.7", "doubling log2 n of them", "2 * (n - 1) - math.log2(n)", "2 * (n - 1)"),
    term("2.7", "in which all that it has is sent", "math.log2(n) - 2 * (n - 1) / n", "1 - 2 * (n - 1) / n"),
    term("2.7", "the ring sends an n-th in each", "2 * (n - 1) / n", "2 * (n - 1)"),
    term("2.7", "math.inf where it never is", "return math.inf", "return 0"),
    term("2.7", "two ranks", "if more_betas == 0:", "if False:"),
    term("2.7", "bytes", "(beta_s_per_byte * more_betas)", "(4 * beta_s_per_byte * more_betas)"),
    example("2.7", lambda inputs, answers: f"-> {answers[0][0]:,.0f} bytes")]


# ---- 2.8 my_largest_model
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
            (sum((low, high)) / 2, high) if taken(sum((low, high)) / 2) <= seconds else (low, sum((low, high)) / 2))
    return torch.tensor(low, dtype=torch.float64)


def around(k, g, seconds, bytes_per_s, passes=2.0):
    """The solution with another rate."""
    n = k * g
    return seconds * bytes_per_s / (passes * (n - 1) / n) / 2


def levels(k, g, nvlink, card):
    """Seconds for each byte inside the nodes, and between them, of a reduce-scatter, an all-reduce, an all-gather."""
    return 2 * (g - 1) / g / nvlink, 2 * (k - 1) / k / g / card


OTHER_WIRES = [wrong("2.8", says)(function) for says, function in {
    "one ring over all devices leaves each node over one card, and seven of eight cards have nothing to do: libraries "
    "make a ring for each card": lambda k, g, s, nvlink, card: around(k, g, s, nvlink if k == 1 else card),
    "these are two levels, one after the other: the cards wait while NVLink works, where rings over all cards keep "
    "both busy": lambda k, g, s, nvlink, card: s / sum(levels(k, g, nvlink, card)) / 2,
    "these are two levels at once: so few bytes would cross, but a ring takes all of M but an n-th over each node's "
    "edge": lambda k, g, s, nvlink, card: s / max(levels(k, g, nvlink, card)) / 2,
    "NVLink ends at the node: a ring over several nodes also has to cross the network":
        lambda k, g, s, nvlink, card: around(k, g, s, nvlink),
    "inside one node nothing goes over the cards: NVLink decides":
        lambda k, g, s, nvlink, card: around(k, g, s, min(nvlink, g * card)),
    "a ring goes through NVLink and the cards, one behind the other: the slower of the two decides, they do not add up":
        lambda k, g, s, nvlink, card: around(k, g, s, nvlink if k == 1 else nvlink + g * card),
    "where NVLink carries less than all cards together, NVLink decides":
        lambda k, g, s, nvlink, card: around(k, g, s, nvlink if k == 1 else g * card),
    "the cards of all nodes are added up: each node's cards carry all that goes around":
        lambda k, g, s, nvlink, card: around(k, g, s, nvlink if k == 1 else min(nvlink, k * g * card)),
    "an all-reduce sends all but an n-th of M twice, scattered and gathered; this is once":
        lambda k, g, s, nvlink, card: 2 * my_largest_model(k, g, s, nvlink, card),
    "a gradient in bf16 has 2 bytes, not 4": lambda *asked: my_largest_model(*asked) / 2}.items()]
TEXT_2_8 = [
    term("2.8", "which wires these rings use", "nvlink if num_nodes == 1 else min(nvlink, g * card)",
         "nvlink if num_nodes == 1 else min(nvlink, card)"),
    term("2.8", "a network card of its own", "min(nvlink, g * card)", "nvlink"),
    term("2.8", "which NVLink joins", "nvlink if num_nodes == 1 else min(nvlink, g * card)", "min(nvlink, g * card)"),
    term("2.8", "inside", "min(nvlink, g * card)", "g * card"),
    term("2.8", "around all devices", "(2 * (n - 1) / n)", "2"),
    term("2.8", "all-reduced", "(2 * (n - 1) / n)", "((n - 1) / n)"),
    term("2.8", "bf16", "num_bytes / 2", "num_bytes / 4"),
    term("2.8", "parameters, not bytes", "num_bytes / 2", "num_bytes"),
    term("2.8", "in so many seconds", "num_bytes = seconds * ", "num_bytes = 1 * "),
    example("2.8", lambda inputs, answers: f"over a card  -> {answers[0]['value']:g}".replace("  ", " "))]
