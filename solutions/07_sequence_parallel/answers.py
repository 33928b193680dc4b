"""Chapter 7: right and wrong answers, what each text stresses, each docstring's example; tools/answers.py reads it."""
# ruff: noqa: F821

from fractions import Fraction

import numpy
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from tools.answers import example, right, term, wrong


def door(forward, backward):
    """An autograd.Function of what it does to what comes in, forward and backward."""
    class Door(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return forward(x)

        @staticmethod
        def backward(ctx, dy):
            return backward(dy)

    return Door.apply


def gathered(x, dim=1):
    pieces = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, x.contiguous())
    return torch.cat(pieces, dim)


def padded(dy, dim=1):
    """This rank's gradient among zeros."""
    t, r = dist.get_world_size(), dist.get_rank()
    return torch.cat([dy if i == r else torch.zeros_like(dy) for i in range(t)], dim)


def total(tensor):
    tensor = tensor.clone()
    dist.all_reduce(tensor)
    return tensor


def to_the_left(tensor):
    R, r = dist.get_world_size(), dist.get_rank()
    arriving = torch.empty_like(tensor)
    if R == 1:
        return arriving
    for request in dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, (r - 1) % R),
                                           dist.P2POp(dist.irecv, arriving, (r + 1) % R)]):
        request.wait()
    return arriving


def nested(tensor):
    return str(tensor.tolist()).replace(".0", ".")


# ---- 7.1 my_gather_and_scatter
def two_ways(forth, back):
    class Door(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return forth(x)

        @staticmethod
        def backward(ctx, dy):
            return back(dy)
    return Door.apply


def gather_by_broadcasts(x):
    t, r = dist.get_world_size(), dist.get_rank()
    parts = [x.contiguous() if rank == r else torch.empty_like(x) for rank in range(t)]
    dist.all_gather(parts, parts[r].clone())
    return torch.cat(parts, 1)


def scatter_by_all_to_all(h):
    t = dist.get_world_size()
    going = [piece.contiguous() for piece in h.chunk(t, 1)]
    coming = [torch.empty_like(going[0]) for _ in going]
    dist.all_to_all(coming, going)
    return torch.stack(coming).sum(0)


def scatter_by_reduce_scatter(h):
    t = dist.get_world_size()
    own = torch.empty_like(h.chunk(t, 1)[0].contiguous())
    dist.reduce_scatter(own, [piece.contiguous() for piece in h.chunk(t, 1)])
    return own


@right("7.1", "an all-to-all and a sum")
def doors_by_all_to_all():
    return (two_ways(gather_by_broadcasts, scatter_by_all_to_all),
            two_ways(scatter_by_all_to_all, gather_by_broadcasts))


@right("7.1", "functional collectives, which know their way back")
def gather_and_scatter_functional():
    everybody = dist.group.WORLD
    return (lambda x: functional.all_gather_tensor_autograd(x, 1, everybody),
            lambda h: functional.reduce_scatter_tensor_autograd(h, "sum", 1, everybody))


@right("7.1", "a list of two")
def doors_in_a_list():
    return [two_ways(gather_by_broadcasts, scatter_by_reduce_scatter),
            two_ways(scatter_by_reduce_scatter, gather_by_broadcasts)]


def own(x):
    return x.chunk(dist.get_world_size(), 1)[dist.get_rank()]


def summed(x):
    """With an all-reduce: right, and twice the bytes."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return own(total).contiguous()


def mean(x):
    return summed(x) / dist.get_world_size()


@wrong("7.1", "forward is right, but backward of gather takes this rank's piece of this rank's gradient alone: all "
       "ranks have used these tokens, so the gradients are added up, a reduce-scatter")
def gather_that_forgets_the_sum():
    return door(gathered, own), door(summed, gathered)


@wrong("7.1", "forward is right, but backward of scatter fills the other ranks' tokens with zeros: h went into all "
       "pieces of the sum, so their gradients are gathered")
def scatter_that_fills_with_zeros():
    return door(gathered, summed), door(summed, padded)


@wrong("7.1", "scatter cuts out this rank's piece and adds nothing up: what comes in is a summand on every rank")
def scatter_that_cuts_only():
    return door(gathered, summed), door(own, gathered)


@wrong("7.1", "scatter makes the mean: the ranks' results are summands, so nothing is divided")
def scatter_that_averages():
    return door(gathered, summed), door(mean, gathered)


@wrong("7.1", "the pieces are joined along dim 0, as further rows of the batch: tokens lie along dim 1")
def gather_along_the_batch():
    return door(lambda x: gathered(x, 0), summed), door(summed, gathered)


@wrong("7.1", "a rank wants a piece of the sum only: reduce_scatter sends half of what all_reduce does")
def doors_with_all_reduces():
    return door(gathered, summed), door(summed, gathered)


DOORS = [
    wrong("7.1", "scatter cuts out this rank's piece and adds nothing up: what comes in is a summand on every rank")(
        lambda: (door(gathered, summed), own)),
    wrong("7.1", "scatter makes the mean: the ranks' results are summands, so nothing is divided")(
        lambda: (door(gathered, summed), door(mean, lambda dy: gathered(dy) / dist.get_world_size()))),
    wrong("7.1", "backward of gather makes the mean of the gradients: they are summands, so nothing is divided")(
        lambda: (door(gathered, mean), door(summed, gathered))),
    wrong("7.1", "every rank has rank 0's piece of the sum: rank r's tokens are the r-th piece")(
        lambda: (door(gathered, summed), door(lambda h: gathered(summed(h)).chunk(dist.get_world_size(), 1)[0],
                                              gathered))),
    wrong("7.1", "the results are right, but nothing leads back through them: return the .apply of an "
          "autograd.Function")(lambda: (gathered, lambda h: summed(h.detach())))]


@wrong("7.1", "it uses course_lib.collectives")
def doors_of_the_library():
    from course_lib.collectives import all_gather_along, reduce_scatter_along

    return all_gather_along, reduce_scatter_along


TEXT_7_1 = [
    term("7.1", "backward of gather adds up", "summed(dy)", "dy.chunk(t, dim=1)[dist.get_rank()].contiguous()"),
    term("7.1", "backward of scatter gathers", "gathered(dy)", "torch.cat([dy] * t, dim=1)"),
    term("7.1", "scatter adds up", "dist.reduce_scatter(own, pieces)", "own.copy_(pieces[dist.get_rank()])"),
    term("7.1", "tokens lie along dim 1", "torch.cat(pieces, dim=1)", "torch.cat(pieces, dim=0)"),
    term("7.1", "half of an all-reduce", "dist.reduce_scatter(own, pieces)",
         "whole = torch.cat(pieces, dim=1)\n        dist.all_reduce(whole)\n"
         "        own.copy_(whole.chunk(t, dim=1)[dist.get_rank()])"),
    example("7.1", lambda inputs, answers: [
        "x {} and {}: gather gives {} on both".format(
            *(nested(rank["x"]) for rank in inputs), nested(answers[0]["gathered"])),
        "scatter of {} on rank 0 and {} on rank 1: {} and {}".format(
            *(nested((rank["w"] * answer["gathered"]).exp().round()) for rank, answer in zip(inputs, answers)),
            *(nested(answer["scattered"].round(decimals=6)) for answer in answers))])]


# ---- 7.2 my_merged_attention
@right("7.2", "all lse are gathered, and one all-reduce adds up")
def merged_by_gathered_lse(out, lse):
    every = [torch.empty_like(lse) for _ in range(dist.get_world_size())]
    dist.all_gather(every, lse)
    whole = torch.stack(every).logsumexp(0)
    share = (lse - whole).exp()[..., None] * out
    dist.all_reduce(share)
    return share, whole


@right("7.2", "numerator and denominator in one message")
def merged_in_one_message(out, lse):
    highest = lse.clone()
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    weight = (lse - highest).exp()[..., None]
    both = torch.cat([weight * out, weight], -1)
    dist.all_reduce(both)
    return [both[..., :-1] / both[..., -1:], both[..., -1].log() + highest]


def maximum(lse):
    highest = lse.clone()
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    return highest


def merge(out, lse, highest):
    weight = (lse - highest).exp().unsqueeze(-1)
    sums = total(torch.cat([weight * out, weight], -1))
    return sums[..., :-1], sums[..., -1]


@wrong("7.2", "the lse is right, but `out` is the plain mean of the ranks' results: a rank weighs exp(lse)")
def merge_by_the_mean(out, lse):
    return total(out) / dist.get_world_size(), my_merged_attention(out, lse)[1]


@wrong("7.2", "the weighted sum is not divided by the sum of the weights")
def merge_without_dividing(out, lse):
    highest = maximum(lse)
    values, weights = merge(out, lse, highest)
    return values, highest + weights.log()


@wrong("7.2", "the answer is not a number")
def merge_without_a_maximum(out, lse):
    values, weights = merge(out, lse, torch.zeros_like(lse))
    return values / weights[..., None], weights.log()


@wrong("7.2", "the largest lse was not added to the logarithm again: lse is smaller by it")
def merge_that_forgets_the_maximum(out, lse):
    values, weights = merge(out, lse, maximum(lse))
    return values / weights[..., None], weights.log()


@wrong("7.2", "`out` is right, but lse is the largest of the ranks' lse: it is the logarithm of the sum of their "
       "exponentials")
def merge_with_the_largest_lse(out, lse):
    return my_merged_attention(out, lse)[0], maximum(lse)


@wrong("7.2", "one call for the maximum, and one for both sums together")
def merge_in_three_calls(out, lse):
    highest = maximum(lse)
    weight = (lse - highest).exp()
    return total(weight[..., None] * out) / total(weight)[..., None], highest + total(weight).log()


@wrong("7.2", "add up on the way, instead of gathering what all ranks have")
def merge_of_gathered_parts(out, lse):
    both = torch.cat([out, lse[..., None]], -1)
    parts = [torch.empty_like(both) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, both)
    lses = torch.stack([part[..., -1] for part in parts])
    weights = lses.softmax(0)[..., None]
    return sum(weight * part[..., :-1] for weight, part in zip(weights, parts)), lses.logsumexp(0)


def weigh_lse(lse, out):
    """The mean of the ranks' results, with lse itself for their weights."""
    share = torch.where(lse.isinf(), 0.0, lse)[..., None]
    return total(share * out) / total(share)


MERGES = [
    wrong("7.2", "the ranks' results are added up without weights: each is a mean over its own keys, and weighs "
          "exp(lse - lse of all)")(lambda out, lse: (total(out), my_merged_attention(out, lse)[1])),
    wrong("7.2", "`out` is right, but lse is the sum of the ranks': exponentials add up, logarithms do not")(
        lambda out, lse: (my_merged_attention(out, lse)[0], total(lse))),
    wrong("7.2", "each rank returns what it had: the other ranks' keys are missing")(lambda out, lse: (out, lse)),
    wrong("7.2", "each rank's own lse is returned beside the right `out`")(
        lambda out, lse: (my_merged_attention(out, lse)[0], lse)),
    wrong("7.2", "a rank weighs its lse: that is a logarithm, its weight is exp(lse)")(
        lambda out, lse: (weigh_lse(lse, out), my_merged_attention(out, lse)[1]))]
TEXT_7_2 = [
    term("7.2", "a rank weighs exp(lse)", "weight * out", "out"),
    term("7.2", "divided by the sum of the weights", " / sums[..., -1:]", ""),
    term("7.2", "lse may be large", "dist.all_reduce(highest, dist.ReduceOp.MAX)", "highest.zero_()"),
    term("7.2", "the largest of all ranks: some have no keys", "dist.all_reduce(highest, dist.ReduceOp.MAX)", "pass"),
    term("7.2", "the largest is added again", "highest + ", ""),
    example("7.2", lambda inputs, answers: (
        "out {:g}. and {:g}., lse log {:.0f} and log {:.0f}".format(
            *(rank["out"].item() for rank in inputs), *(rank["lse"].exp().item() for rank in inputs))
        + ": out = 3/4 * 1 + 1/4 * 5 = {:.0f}, lse = log {:.0f}".format(
            answers[0]["out"].item(), answers[0]["lse"].exp().item())))]


# ---- 7.3 my_document_positions
@right("7.3", "pairs from both ends, sorted")
def positions_in_pairs(lengths):
    R, r, start, own = dist.get_world_size(), dist.get_rank(), 0, []
    for length in lengths:
        for i in range(r, length // 2, R):
            own += [start + i, start + length - 1 - i]
        start += length
    return torch.tensor(sorted(own))


@right("7.3", "pairs turned around every other time")
def positions_by_numpy(lengths):
    R, r, start, own = dist.get_world_size(), dist.get_rank(), 0, []
    for length in lengths:
        halves = numpy.arange(start, start + length).reshape(2, -1)
        own += [halves[0][r::R], halves[1][::-1][r::R]]
        start += length
    return torch.from_numpy(numpy.concatenate(own))


@right("7.3", "greedily, from each document's end")
def positions_by_greed(lengths):
    R, r, start = dist.get_world_size(), dist.get_rank(), 0
    load, own = [0] * R, [[] for _ in range(R)]
    for length in lengths:
        for last in range(length - 1, -1, -R):
            for rank, token in zip(sorted(range(R), key=load.__getitem__), range(last, last - R, -1)):
                load[rank] += token + 1
                own[rank].append(start + token)
        start += length
    return torch.tensor(own[r])


def pieces(length, start=0):
    return torch.arange(start, start + length).chunk(2 * dist.get_world_size())


@wrong("7.3", "this is zigzag of the whole row, as if it were one document: a document begins with short work again, "
       "so deal each of them by itself")
def positions_in_one_zigzag(lengths):
    R, r = dist.get_world_size(), dist.get_rank()
    each = pieces(sum(lengths))
    return torch.cat([each[r], each[2 * R - 1 - r]])


@wrong("7.3", "every R-th token of the row, and so of each document: near, but rank R-1's tokens read more than rank "
       "0's")
def positions_striped(lengths):
    return torch.arange(sum(lengths))[dist.get_rank()::dist.get_world_size()]


@wrong("7.3", "contiguous pieces of the row: documents end within them, and late tokens read more")
def positions_contiguous(lengths):
    return torch.arange(sum(lengths)).chunk(dist.get_world_size())[dist.get_rank()]


@wrong("7.3", "rank r has the pieces r and r + R: the second one is R pieces later for all, so that nothing evens out. "
       "Take 2R-1-r")
def positions_not_turned(lengths):
    R, r, start, own = dist.get_world_size(), dist.get_rank(), 0, []
    for length in lengths:
        own += [pieces(length, start)[r], pieces(length, start)[r + R]]
        start += length
    return torch.cat(own)


@wrong("7.3", "each document is cut into R pieces, of which the last costs most: give a rank an early and a late one")
def positions_in_one_piece_of_each(lengths):
    documents = torch.arange(sum(lengths)).split(lengths)
    return torch.cat([document.chunk(dist.get_world_size())[dist.get_rank()] for document in documents])


@wrong("7.3", "Positions are counted in the row")
def positions_in_the_document(lengths):
    R, r = dist.get_world_size(), dist.get_rank()
    return torch.cat([part for length in lengths for part in (pieces(length)[r], pieces(length)[2 * R - 1 - r])])


@wrong("7.3", "it uses course_lib.sequence_parallel")
def positions_of_the_library(lengths):
    from course_lib.sequence_parallel import local_positions

    return local_positions(sum(lengths))


def work(positions, lengths):
    """How many tokens those at `positions` read together."""
    reads = [token + 1 for length in lengths for token in range(length)]
    return sum(reads[position] for position in positions.tolist())


POSITIONS_AS = [right("7.3", words)(lambda *asked, makes=makes: makes(my_document_positions(*asked)))
                for words, makes in (
    ("a list", torch.Tensor.tolist), ("an array of numpy", torch.Tensor.numpy), ("32 bits", torch.Tensor.int))]


TEXT_7_3 = [
    term("7.3", "each document by itself", "for length in lengths:", "for length in [sum(lengths)]:"),
    term("7.3", "an early and a late piece", "pieces[2 * R - 1 - r]", "pieces[R + r]"),
    term("7.3", "positions in the row", "torch.arange(start, start + length)", "torch.arange(length)"),
    example("7.3", lambda inputs, answers: (
        "documents of {0} and {1} tokens: tokens 0 to {2} read 1 to {0} and then 1 to {1} "
        "tokens, so {3} for each rank".format(
            *inputs[0][0], sum(inputs[0][0]) - 1, *{work(answer["returned"], inputs[0][0]) for answer in answers})))]


# ---- 7.4 my_pass_around
@right("7.4", "everybody sends to everybody directly")
def around_directly(block, use):
    R, r, current = dist.get_world_size(), dist.get_rank(), block
    for step in range(1, R):
        arriving = torch.empty_like(block)
        works = [dist.isend(block, (r + step) % R), dist.irecv(arriving, (r - step) % R)]
        use(current, (r - step + 1) % R)
        for work in works:
            work.wait()
        current = arriving
    use(current, (r + 1) % R)


@right("7.4", "requests in a batch, waited for after use")
def around_in_batches(block, use):
    R, r = dist.get_world_size(), dist.get_rank()
    for step in range(R - 1):
        arriving = torch.empty_like(block)
        works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, arriving, (r - 1) % R),
                                        dist.P2POp(dist.isend, block, (r + 1) % R)])
        use(block, (r - step) % R)
        for work in works:
            work.wait()
        block = arriving
    use(block, (r + 1) % R)


@right("7.4", "all messages to the others are begun at once, and waited for in the end")
def around_with_early_sends(block, use):
    R, r = dist.get_world_size(), dist.get_rank()
    sending = [dist.isend(block, (r + step) % R) for step in range(1, R)]
    current = block
    for step in range(R):
        arriving = torch.empty_like(block)
        request = dist.irecv(arriving, (r - step - 1) % R) if step < R - 1 else None
        use(current, (r - step) % R)
        if request:
            request.wait()
        current = arriving
    for request in sending:
        request.wait()


def go_around(block, use, source, steps=0, shift=None):
    """R + steps uses; source(r, i) is said of the block in step i."""
    R, r = dist.get_world_size(), dist.get_rank()
    for step in range(R + steps):
        use(block, source(r, step) % R)
        if step < R + steps - 1:
            block = shift(block) if shift else to_the_right(block)()


@wrong("7.4", "the blocks come from the right: send to rank r + 1, so that in step i rank r has the block of rank r - "
       "i")
def ring_the_other_way_round(block, use):
    go_around(block, use, lambda r, i: r + i, shift=to_the_left)


@wrong("7.4", "the blocks are right, but their owners are not: what arrives from the left is that of rank r - i, not r "
       "+ i")
def ring_with_the_wrong_owners(block, use):
    go_around(block, use, lambda r, i: r + i)


@wrong("7.4", "the blocks are right, but source is the left neighbour: it is the rank that the block came from at "
       "first, r - i")
def ring_where_all_comes_from_the_neighbour(block, use):
    go_around(block, use, lambda r, i: r - min(i, 1))


@wrong("7.4", "the last block is not used: R steps, in the last of which nothing is sent")
def ring_one_step_short(block, use):
    go_around(block, use, lambda r, i: r - i, steps=-1)


@wrong("7.4", "each rank uses its own block R times: what has arrived is the next one to use, and to send")
def ring_that_keeps_its_block(block, use):
    for step in range(dist.get_world_size()):
        if dist.get_world_size() > 1:
            to_the_right(block)()
        use(block, (dist.get_rank() - step) % dist.get_world_size())


@wrong("7.4", "a block that everybody has used need not go home: R - 1 messages, nothing in the last step")
def ring_that_takes_the_block_home(block, use):
    R, r = dist.get_world_size(), dist.get_rank()
    for step in range(R):
        arriving = to_the_right(block) if R > 1 else None
        use(block, (r - step) % R)
        block = arriving() if arriving else None


@wrong("7.4", "a ring needs the block in use and the one that arrives; do not gather, and let go of what was used")
def ring_of_gathered_blocks(block, use):
    R, r = dist.get_world_size(), dist.get_rank()
    blocks = [torch.empty_like(block) for _ in range(R)]
    dist.all_gather(blocks, block)
    for step in range(R):
        use(blocks[(r - step) % R], (r - step) % R)


@wrong("7.4", "the blocks are used in the order of the ranks: as they arrive, this rank's own first")
def ring_in_the_order_of_the_ranks(block, use):
    blocks = {}
    my_pass_around(block, lambda block, source: blocks.update({source: block}))
    for source in sorted(blocks):
        use(blocks[source], source)


RINGS = [
    wrong("7.4", "the owners are right, but the blocks come from the right: send to rank r + 1")(
        lambda block, use: go_around(block, use, lambda r, i: r - i, shift=to_the_left)),
    wrong("7.4", "every block is said to be this rank's own: source is the rank that it came from at first, r - i")(
        lambda block, use: go_around(block, use, lambda r, i: r)),
    wrong("7.4", "this rank's own block is not used: it comes first, in step 0")(
        lambda block, use: my_pass_around(block, lambda *given: given[1] == dist.get_rank() or use(*given)))]


@wrong("7.4", "it waits for the next block before it uses this one: begin, use, and wait then")
def ring_that_waits_and_then_uses(block, use):
    R, r = dist.get_world_size(), dist.get_rank()
    for step in range(R):
        arrived = to_the_right(block)() if step < R - 1 else None
        use(block, (r - step) % R)
        block = arrived


@wrong("7.4", "the next block is sent when this one has been used: begin, use, and wait then")
def ring_that_uses_and_then_sends(block, use):
    go_around(block, use, lambda r, i: r - i)


@wrong("7.4", "the next block is asked for when this one has been used: begin to receive it before, with dist.irecv")
def ring_that_receives_late(block, use):
    R, r = dist.get_world_size(), dist.get_rank()
    for step in range(R):
        request = dist.isend(block, (r + 1) % R) if step < R - 1 else None
        use(block, (r - step) % R)
        if request:
            arriving = torch.empty_like(block)
            dist.recv(arriving, (r - 1) % R)
            request.wait()
            block = arriving


@wrong("7.4", "the block is sent on when it has been used: begin to send it before, with dist.isend")
def ring_that_sends_late(block, use):
    R, r = dist.get_world_size(), dist.get_rank()
    for step in range(R):
        arriving = torch.empty_like(block)
        request = dist.irecv(arriving, (r - 1) % R) if step < R - 1 else None
        use(block, (r - step) % R)
        if request:
            dist.send(block, (r + 1) % R)
            request.wait()
            block = arriving


TEXT_7_4 = [
    term("7.4", "every rank's block", "range(R)", "range(R - 1)"),
    term("7.4", "nothing is sent in the last step", "if step < R - 1 else", "if R > 1 else"),
    term("7.4", "source, around the end", "(r - step) % R", "r - step"),
    term("7.4", "a message travels while a block is in use",
         "use(block, (r - step) % R)\n        block = arriving() if arriving else None",
         "following = arriving() if arriving else None\n        use(block, (r - step) % R)\n        block = following"),
    term("7.4", "use what you have, then what came", "arriving() if arriving else None",
         "(arriving and arriving(), block)[1]"),
    example("7.4", lambda inputs, answers: [
        "Three ranks with blocks {}, {}, {}".format(*(nested(rank["block"]) for rank in inputs)),
        "rank 0 uses those of ranks {}, {}, {}".format(*(source for source, _ in answers[0]["used"])),
        "rank 1 those of ranks {}, {}, {}".format(*(source for source, _ in answers[1]["used"]))])]


# ---- 7.5 my_recomputed
@right("7.5", "hooks that pack and unpack what autograd saves")
def recomputed_by_saved_tensors_hooks(function, x):
    state, names, again = torch.get_rng_state(), [], []

    def pack(tensor):
        names.append(len(names))
        return names[-1]

    def unpack(name):
        if not again:
            with torch.random.fork_rng(devices=[]), torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(
                    again.append, lambda name: None):
                torch.set_rng_state(state)
                function(x.detach().requires_grad_())
        return again[name]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return function(x)


@right("7.5", "torch.random.fork_rng around the second run")
def recomputed_in_a_fork(function, x):
    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.state, ctx.x = torch.get_rng_state(), x.detach()
            return function(ctx.x)

        @staticmethod
        def backward(ctx, dy):
            x = ctx.x.requires_grad_()
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                torch.set_rng_state(ctx.state)
                torch.autograd.backward(function(x), dy)
            return x.grad
    return Again.apply(x.clone())


@right("7.5", "the generator's own methods")
def recomputed_by_the_generator(function, x):
    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.state = torch.default_generator.get_state()
            ctx.save_for_backward(x)
            return function(x)

        @staticmethod
        def backward(ctx, dy):
            after = torch.default_generator.get_state()
            torch.default_generator.set_state(ctx.state)
            with torch.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                function(x).backward(dy)
            torch.default_generator.set_state(after)
            return x.grad
    return Again.apply(x)


def recomputed(function, x, old_state=True, put_back=True, weights=True, use_dy=True):
    class Recompute(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.state = torch.get_rng_state()
            ctx.save_for_backward(x)
            return function(x)

        @staticmethod
        def backward(ctx, dy):
            x, now = ctx.saved_tensors[0].detach().requires_grad_(), torch.get_rng_state()
            if old_state:
                torch.set_rng_state(ctx.state)
            with torch.enable_grad():
                y = function(x)
            if put_back and old_state:
                torch.set_rng_state(now)
            if not weights:
                return torch.autograd.grad(y, x, dy)[0]
            y.backward(dy if use_dy else torch.ones_like(dy))
            return x.grad

    return Recompute.apply(x)


@wrong("7.5", "dropout has another mask in backward than it had in forward, so the gradients belong to a function that "
       "nobody computed: set the generator's state of forward before running it again")
def recompute_with_other_masks(function, x):
    return recomputed(function, x, old_state=False)


@wrong("7.5", "all gradients are right, but the generator was left where the second run put it, so that what is drawn "
       "next repeats: set its state back")
def recompute_that_leaves_the_old_state(function, x):
    return recomputed(function, x, put_back=False)


@wrong("7.5", "the gradients of the weights are missing: torch.autograd.grad fills those that it is asked for only; "
       "torch.autograd.backward(y, dy) goes everywhere")
def recompute_of_the_input_alone(function, x):
    return recomputed(function, x, weights=False)


@wrong("7.5", "the gradient that came in is ignored: go backward from dy, not from the sum of y")
def recompute_without_dy(function, x):
    return recomputed(function, x, use_dy=False)


@wrong("7.5", "the result is right, but nothing has a gradient: return the .apply of an autograd.Function")
@torch.no_grad()
def recompute_without_a_graph(function, x):
    return function(x)


@wrong("7.5", "what is computed inside is kept for backward: run `function` where no graph is made")
def recompute_nothing(function, x):
    return function(x)


@wrong("7.5", "it uses torch.utils.checkpoint")
def recompute_by_torch(function, x):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(function, x, use_reentrant=False)


def recomputed_from_a_seed(function, x, in_forward, in_backward):
    class Recompute(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            in_forward()
            ctx.save_for_backward(x)
            return function(x)

        @staticmethod
        def backward(ctx, dy):
            x, now = ctx.saved_tensors[0].detach().requires_grad_(), torch.get_rng_state()
            in_backward()
            with torch.enable_grad():
                y = function(x)
            torch.set_rng_state(now)
            y.backward(dy)
            return x.grad

    return Recompute.apply(x)


FIXED_SEEDS = [
    wrong("7.5", "the random numbers of forward are others than without recomputation: save the state that is there, "
          "and do not seed")(lambda function, x: recomputed_from_a_seed(
              function, x, *[lambda: torch.manual_seed(0)] * 2)),
    wrong("7.5", "the random numbers of forward begin again where the program began: save the state that is there, and "
          "do not seed")(lambda function, x: recomputed_from_a_seed(
              function, x, *[lambda: torch.manual_seed(torch.initial_seed())] * 2)),
    wrong("7.5", "in backward the random numbers begin where the program began, and in forward they had gone on since: "
          "save the state of forward")(lambda function, x: recomputed_from_a_seed(
              function, x, lambda: None, lambda: torch.manual_seed(torch.initial_seed())))]
LAST = {}


@wrong("7.5", "the state of the last forward is used for all backward passes: keep it with its own call, in ctx")
def recompute_with_one_state_for_all(function, x):
    LAST["state"] = torch.get_rng_state()
    return recomputed_from_a_seed(function, x, lambda: None, lambda: torch.set_rng_state(LAST["state"]))


@wrong("7.5", "it uses torch.utils.checkpoint")
def recomputed_by_the_function_of_the_library(function, x):
    from torch.utils.checkpoint import CheckpointFunction

    return CheckpointFunction.apply(function, True, x)


TEXT_7_5 = [
    term("7.5", "the same dropout masks", "torch.set_rng_state(ctx.state)", "pass"),
    term("7.5", "the generator's state, which no seed gives", "ctx.state = torch.get_rng_state()",
         "ctx.state = torch.Generator().manual_seed(torch.initial_seed()).get_state()"),
    term("7.5", "each call has its own state", "ctx.state", "my_recomputed.state"),
    term("7.5", "nobody who draws afterwards may notice", "torch.set_rng_state(now)", "pass"),
    term("7.5", "the weights' gradients, too", "torch.autograd.backward(y, dy)\n            return x.grad",
         "return torch.autograd.grad(y, x, dy)[0]"),
    term("7.5", "one copy of x", "ctx.save_for_backward(x)", "ctx.save_for_backward(x, x.clone(), x.clone())"),
    term("7.5", "it runs twice", "                y = function(x)",
         "                y = function(function(x) * 0 + x)"),
    example("7.5", lambda inputs, answers: (
        "{} tokens with {} numbers: {} bytes are kept of it, function runs {} times".format(
            *inputs[0]["given"]["x"].shape, inputs[0]["given"]["x"].nbytes, answers[0]["runs"])))]


# ---- 7.6 my_layer_bytes
RIGHT_7_6 = [
    right("7.6", "a Fraction")(lambda n, h, f, H, K, t, sp: n * (Fraction(8 * h, t if sp else 1) + Fraction(
        4 * h + 4 * h * K // H + 4 * H + 8 * f, t))),
    right("7.6", "numpy's numbers")(lambda *asked: numpy.int64(my_layer_bytes(*asked)))]


def layer_bytes(n, h, f, H, K, t, cut_outside, cut_inside=True, mlp=4, keys=2, own=2, lse=4):
    inside = 2 * (own * h + keys * h * K / H + mlp * f) + lse * H
    return n * (8 * h / (t if cut_outside else 1) + inside / (t if cut_inside else 1))


@wrong("7.6", "everything is divided by t: without sequence parallelism what lies outside of the branches, norms and "
       "their results, is whole on every rank")
def layer_bytes_all_divided(n, h, f, H, K, t, sequence_parallel):
    return layer_bytes(n, h, f, H, K, t, True)


@wrong("7.6", "what lies outside of the branches is whole on every rank here: with sequence parallelism each has a "
       "t-th of the tokens")
def layer_bytes_without_sequence_parallelism(n, h, f, H, K, t, sequence_parallel):
    return layer_bytes(n, h, f, H, K, t, False)


@wrong("7.6", "norms' inputs or their results are divided by t: both lie outside of the cut, and without sequence "
       "parallelism every rank has them whole")
def layer_bytes_with_half_of_the_outside_divided(*asked):
    return my_layer_bytes(*asked) if asked[-1] else (layer_bytes(*asked) + my_layer_bytes(*asked[:-1], True)) / 2


@wrong("7.6", "the inputs of the column matrices are counted whole, as if what is gathered were kept: the table's rows "
       "say that shards are, and are gathered again")
def layer_bytes_with_what_is_gathered(*asked):
    return (my_layer_bytes(*asked) + my_layer_bytes(*asked[:-1], False)) / 2


LAYERS = [
    wrong("7.6", "k and v are taken to be as wide as q: they have K heads of the H")(
        lambda *asked: layer_bytes(*asked, keys=2 * asked[3] / asked[4])),
    wrong("7.6", "nothing is divided by t: what lies between a column and a row matrix is cut over the ranks")(
        lambda *asked: layer_bytes(*asked[:-1], False, cut_inside=False)),
    wrong("7.6", "the MLP has 3 rows of f here: gate, silu(gate), up and their product are kept")(
        lambda *asked: layer_bytes(*asked, mlp=3)),
    wrong("7.6", "these are numbers: each has 2 bytes, and an lse 4")(lambda *asked: layer_bytes(*asked, lse=2) / 2),
    wrong("7.6", "an lse has 2 bytes here: it is kept in 32 bits")(lambda *asked: layer_bytes(*asked, lse=2)),
    wrong("7.6", "the lse of attention is missing: 4 bytes for each head and token")(
        lambda *asked: layer_bytes(*asked, lse=0)),
    wrong("7.6", "the MLP has 2 rows of f here: gate, silu(gate), up and their product are kept")(
        lambda *asked: layer_bytes(*asked, mlp=2)),
    wrong("7.6", "k or v is missing: both are kept")(lambda *asked: layer_bytes(*asked, keys=1)),
    wrong("7.6", "attention's result, which the output matrix reads, is missing")(
        lambda *asked: layer_bytes(*asked, own=1))]
TEXT_7_6 = [
    term("7.6", "outside of the branches nothing is cut", "(t if sequence_parallel else 1)", "t"),
    term("7.6", "with sequence parallelism it is", "(t if sequence_parallel else 1)", "1"),
    term("7.6", "inside all is cut", "inside / t", "inside"),
    term("7.6", "fewer heads of k and v", "h * K / H", "h"),
    term("7.6", "lse has 4 bytes", "4 * H", "2 * H"),
    term("7.6", "gate, silu(gate), up and the product", "4 * f", "3 * f"),
    example("7.6", lambda inputs, answers: [
        "n = {}, h = {}, f = {}, H = {}, K = {}, t = {}, without sequence parallelism".format(*inputs[0][:-1]),
        f"= {answers[0]['value']:g} bytes"])]


# ---- 7.7 my_whole_ring
def swap(tensor, to, source, like=None):
    arriving = torch.empty_like(tensor if like is None else like)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor.contiguous(), to),
                                        dist.P2POp(dist.irecv, arriving, source)]):
        work.wait()
    return arriving


def scores_of(q, k, mine, theirs):
    return (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~(mine[:, None] >= theirs), -torch.inf)


@right("7.7", "queries go around, and keys and values stay")
def ring_of_queries(q, k, v, positions):
    R, r = dist.get_world_size(), dist.get_rank()

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            outs, lses = [], []
            for step in range(R):
                to, source = (r + step) % R, (r - step) % R
                theirs = swap(q, to, source) if step else q
                scores = scores_of(theirs, k, positions[source], positions[r])
                lse = scores.logsumexp(-1, keepdim=True)
                out = (scores - lse.nan_to_num(neginf=0.0)).exp() @ v
                both = torch.cat([out, lse], -1)
                both = swap(both, source, to) if step else both
                outs.append(both[..., :-1])
                lses.append(both[..., -1:])
            lse = torch.stack(lses).logsumexp(0)
            out = sum((part - lse).exp() * own for part, own in zip(lses, outs))
            ctx.save_for_backward(q, k, v, out, lse)
            return out

        @staticmethod
        def backward(ctx, dout):
            q, k, v, out, lse = ctx.saved_tensors
            delta = (dout * out).sum(-1, keepdim=True)
            dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
            for step in range(R):
                to, source = (r + step) % R, (r - step) % R
                sent = torch.cat([q, dout, lse, delta], -1)
                sent = swap(sent, to, source) if step else sent
                theirs, dy, top, drop = sent.split([q.shape[-1], q.shape[-1], 1, 1], -1)
                weights = (scores_of(theirs, k, positions[source], positions[r]) - top).exp()
                dv += weights.mT @ dy
                ds = weights * (dy @ v.mT - drop) * q.shape[-1] ** -0.5
                dk += ds.mT @ theirs
                dq += swap(ds @ k, source, to) if step else ds @ k
            return dq, dk, dv
    return Attention.apply(q, k, v)


@right("7.7", "gradients are sent to their owners directly")
def ring_with_direct_gradients(q, k, v, positions):
    R, r = dist.get_world_size(), dist.get_rank()

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            out, lse = torch.zeros_like(q), torch.full_like(q[..., :1], -torch.inf)
            for step in range(R):
                to, source = (r + step) % R, (r - step) % R
                pair = swap(torch.stack([k, v]), to, source) if step else torch.stack([k, v])
                scores = scores_of(q, pair[0], positions[r], positions[source])
                own = scores.logsumexp(-1, keepdim=True)
                new = torch.logaddexp(lse, own)
                out = (lse - new).exp() * out + (scores - new).exp() @ pair[1]
                lse = new
            ctx.save_for_backward(q, k, v, out, lse)
            return out

        @staticmethod
        def backward(ctx, dout):
            q, k, v, out, lse = ctx.saved_tensors
            delta, dq = (dout * out).sum(-1, keepdim=True), torch.zeros_like(q)
            pair_grad = torch.zeros_like(torch.stack([k, v]))
            for step in range(R):
                to, source = (r + step) % R, (r - step) % R
                pair = swap(torch.stack([k, v]), to, source) if step else torch.stack([k, v])
                weights = (scores_of(q, pair[0], positions[r], positions[source]) - lse).exp()
                ds = weights * (dout @ pair[1].mT - delta) * q.shape[-1] ** -0.5
                dq += ds @ pair[0]
                grads = torch.stack([ds.mT @ q, weights.mT @ dout])
                pair_grad += swap(grads, source, to) if step else grads
            return dq, pair_grad[0], pair_grad[1]
    return Attention.apply(q, k, v)


def attend(q, k, v, own, keys, visible=torch.ge, scale=None, softmax=lambda scores: scores.softmax(-1), local=None):
    """local: the keys from which q has its gradient, where they are not all."""
    scores = (q @ k.mT if local is None else q.detach() @ k.mT + (q - q.detach()) @ local.mT)
    scores = scores * (scale or q.shape[-1] ** -0.5)
    return softmax(scores.masked_fill(~visible(own[:, None], keys), float("-inf"))).nan_to_num() @ v


def back_to_owners(dx):
    """Of the gradient of all tokens, the sum for this rank's."""
    t, r = dist.get_world_size(), dist.get_rank()
    return total(dx).chunk(t, 2)[r].contiguous()


def whole_ring(q, k, v, positions, back=back_to_owners, **changes):
    gather = door(lambda x: gathered(x, 2), back)
    return attend(q, gather(k), gather(v), positions[dist.get_rank()], torch.cat(positions), **changes)


@wrong("7.7", "each rank attends to its own keys only: those of all ranks have to come by")
def ring_attention_alone(q, k, v, positions):
    mine = positions[dist.get_rank()]
    return attend(q, k, v, mine, mine)


@wrong("7.7", "nothing is masked: a token reads those at its own position and before")
def ring_attention_without_a_mask(q, k, v, positions):
    return whole_ring(q, k, v, positions, visible=lambda own, keys: torch.ones_like(own >= keys))


@wrong("7.7", "a token does not read itself: hide positions that are larger, not those that are equal")
def ring_attention_of_earlier_tokens(q, k, v, positions):
    return whole_ring(q, k, v, positions, visible=torch.gt)


@wrong("7.7", "the mask takes the ranks' tokens for contiguous pieces of the row: compare `positions`, of the rank "
       "that the block came from")
def ring_attention_masked_as_contiguous(q, k, v, positions):
    c = q.shape[2]
    return whole_ring(q, k, v, list(torch.arange(len(positions) * c).split(c)))


@wrong("7.7", "scores are not divided by the root of d")
def ring_attention_unscaled(q, k, v, positions):
    return whole_ring(q, k, v, positions, scale=1.0)


@wrong("7.7", "forward is right, but the gradients of k and v are this rank's part: those of the other ranks, which "
       "used this block too, have to come home")
def ring_attention_that_keeps_gradients(q, k, v, positions):
    t, r = dist.get_world_size(), dist.get_rank()
    return whole_ring(q, k, v, positions, back=lambda dx: dx.chunk(t, 2)[r].contiguous())


def on_the_left(dx):
    return to_the_left(back_to_owners(dx))


def on_the_right(dx):
    return to_the_right(back_to_owners(dx))()


@wrong("7.7", "forward is right, but the gradients of k and v are another rank's: what goes behind a block has to "
       "arrive where the block came from")
def ring_attention_with_gradients_of_the_neighbour(q, k, v, positions):
    return whole_ring(q, k, v, positions, back=on_the_left if len(positions) > 1 else back_to_owners)


@wrong("7.7", "forward is right, but the gradients of k and v are another rank's: one message too many, or the wrong "
       "way round")
def ring_attention_with_gradients_one_too_far(q, k, v, positions):
    return whole_ring(q, k, v, positions, back=on_the_right if len(positions) > 1 else back_to_owners)


@wrong("7.7", "forward is right, but the gradient of q knows this rank's own keys only")
def ring_attention_with_a_local_gradient(q, k, v, positions):
    return whole_ring(q, k, v, positions, local=padded(k.detach(), 2))


@wrong("7.7", "forward is right, but in backward nothing is subtracted from dy v^T: the gradient of softmax is weights "
       "* (dy v^T - delta), delta the sum of dy * out over d")
def ring_attention_without_delta(q, k, v, positions):
    def softmax(scores):
        weights, scores = scores.detach().softmax(-1), torch.where(scores.isinf(), 0.0, scores)
        return weights * (1 + scores - scores.detach())

    return whole_ring(q, k, v, positions, softmax=softmax)


@wrong("7.7", "every block is masked like this rank's own: compare with `positions` of the rank that it came from")
def ring_attention_masked_as_its_own(q, k, v, positions):
    return whole_ring(q, k, v, [positions[dist.get_rank()]] * len(positions))


@wrong("7.7", "the blocks' results are added up as they are: each is a mean over its own keys, and weighs exp(lse of "
       "the block - lse of all)")
def ring_attention_added_up(q, k, v, positions):
    return whole_ring(q, k, v, positions, softmax=lambda scores: torch.cat(
        [block.softmax(-1).nan_to_num() for block in scores.chunk(len(positions), -1)], -1))


@wrong("7.7", "keys and values go around once in each direction of time, R - 1 messages, and the gradient of a block "
       "from the first other rank that uses it home, R - 1 more")
def ring_attention_that_takes_its_blocks_home(q, k, v, positions):
    if len(positions) > 1:
        to_the_right(torch.stack([k, v]))()
    return my_whole_ring(q, k, v, positions)


@wrong("7.7", "it uses course_lib.sequence_parallel")
def ring_attention_of_the_library(q, k, v, positions):
    from course_lib.sequence_parallel import ring_attention

    return ring_attention(q, k, v)


NOT_ALL = ("the scores of one block at a time, and in backward compute them again from lse: neither all keys nor what "
           "autograd keeps of each block fits")


def reduce_scattered(dx):
    pieces = [piece.contiguous() for piece in dx.chunk(dist.get_world_size(), 2)]
    mine = torch.empty_like(pieces[0])
    dist.reduce_scatter(mine, pieces)
    return mine


@wrong("7.7", NOT_ALL)
def ring_attention_with_all_keys(q, k, v, positions):
    return whole_ring(q, k, v, positions, back=reduce_scattered)


@wrong("7.7", NOT_ALL)
def ring_attention_by_torch_over_all_keys(q, k, v, positions):
    gather = door(lambda x: gathered(x, 2), reduce_scattered)
    mask = positions[dist.get_rank()][:, None] >= torch.cat(list(positions))
    return torch.nn.functional.scaled_dot_product_attention(q, gather(k), gather(v), attn_mask=mask)


TEXT_7_7 = [
    term("7.7", "no rank ever holds the whole row", "                new = torch",
         "                ctx.kept = [*getattr(ctx, 'kept', []), block]\n                new = torch"),
    term("7.7", "a token reads itself", "positions[source] > positions[r]", "positions[source] >= positions[r]"),
    term("7.7", "where the block's tokens stand", "positions[source]", "positions[r]"),
    term("7.7", "q k^T / sqrt(d)", "q @ k.mT * scale", "q @ k.mT"),
    term("7.7", "all keys have one softmax", "out * (lse - new).exp()", "out"),
    term("7.7", "the gradient of softmax", " - delta) * scale", ") * scale"),
    term("7.7", "scores are scaled on the way back, too", " - delta) * scale", " - delta)"),
    term("7.7", "the gradients of the other ranks come home", "own += travelling()", "travelling()"),
    term("7.7", "they add up on the way", "d_block += travelling()", "travelling()"),
    term("7.7", "R - 1 messages", "                own += travelling()",
         "                own += travelling()\n                to_the_right(own)()"),
    example("7.7", lambda inputs, answers: [
        "Two ranks with tokens {}, {} and {}, {}, q all 0, v 1, 2, 3, 4 in the row".format(
            *(token for positions in inputs[0]["positions"] for token in positions.tolist())),
        "rank 0 gets {:g}., {:g}, rank 1 gets {:g}, {:g}.".format(
            *(token for answer in answers for token in answer["y"][0, 0, :, 0].tolist()))])]


# ---- 7.8 my_attention_seconds
def played(T, u, R, H, K, d, flops_per_s, fast, slow):
    computing, sending = (4 * d * (T / R) ** 2 / 2 * H / u / flops_per_s, 2 * 2 * d * K / u * T / R / slow)
    at = (u - 1) / u * 2 * (2 * H + 2 * K) * d * T / (u * R) / fast
    for _ in range(R - 1):
        at += max(computing, sending)
    return at + computing


RIGHT_7_8 = [
    right("7.8", "numpy's maximum")(lambda T, u, R, H, K, d, F, fast, slow: (
        (u - 1) / u * 4 * (H + K) * d * T / u / R / fast
        + numpy.array([numpy.maximum(2 * d * (T / R) ** 2 * H / u / F, 4 * d * K / u * T / R / slow)] * (R - 1)
                      + [2 * d * (T / R) ** 2 * H / u / F]).sum())),
    right("7.8", "step by step, a tensor")(lambda *asked: torch.tensor(played(*asked), dtype=torch.float64))]


def attention_seconds(T, u, R, H, K, d, flops_per_s, fast, slow, pairs=0.5, heads=None, together=max, steps=-1,
                      switch=1.0, block=1.0):
    switching = switch * (u - 1) / u * 2 * (2 * H + 2 * K) * d * T / (u * R) / fast
    computing = 4 * d * (T / R) ** 2 * pairs * H / u / flops_per_s
    sending = block * 2 * 2 * d * (heads or K / u) * T / R / slow
    return switching + (R + steps) * together(computing, sending) + (computing if steps else 0)


@wrong("7.8", "computing and sending are added up: the next block travels while this one is used, so a step takes the "
       "longer of the two")
def attention_seconds_one_after_the_other(*case):
    return attention_seconds(*case, together=lambda computing, sending: computing + sending)


@wrong("7.8", "sending is left out: where a block takes longer to send than to use, a step waits for it")
def attention_seconds_without_the_ring(*case):
    return attention_seconds(*case, together=lambda computing, sending: computing)


@wrong("7.8", "twice the pairs: under a causal mask half of them are hidden, and zigzag shares out the other half "
       "evenly")
def attention_seconds_of_all_pairs(*case):
    return attention_seconds(*case, pairs=1.0)


@wrong("7.8", "nothing travels in the last step, so R - 1 steps can wait for a message")
def attention_seconds_of_r_messages(*case):
    return attention_seconds(*case, steps=0)


@wrong("7.8", "the keys' heads are taken to be as many as the queries': a block has K heads of k and v")
def attention_seconds_with_all_heads_in_the_ring(T, u, R, H, K, *case):
    return attention_seconds(T, u, R, H, K, *case, heads=H / u)


SECONDS = [
    wrong("7.8", "half of the computing: a pair takes 4 d FLOPs, 2 d for its score and 2 d for its value")(
        lambda *case: attention_seconds(*case, pairs=0.25)),
    wrong("7.8", "half of a block: k and v both go around")(lambda *case: attention_seconds(*case, block=0.5)),
    wrong("7.8", "the ring sends all K heads: behind the all-to-all each rank has K/u of them")(
        lambda T, u, *case: attention_seconds(T, u, *case, block=u)),
    wrong("7.8", "each rank computes all H heads: behind the all-to-all it has H/u of them")(
        lambda T, u, *case: attention_seconds(T, u, *case, pairs=u / 2)),
    wrong("7.8", "the all-to-alls are left out: nobody computes while they run")(
        lambda *case: attention_seconds(*case, switch=0.0)),
    wrong("7.8", "q and the result go through an all-to-all as k and v do: 2 H + 2 K heads")(
        lambda T, u, R, H, K, *case: attention_seconds(T, u, R, H, K, *case, switch=(H + 2 * K) / (2 * H + 2 * K))),
    wrong("7.8", "the all-to-alls stay in the node, on the fast wire")(
        lambda *case: attention_seconds(*case, switch=case[-2] / case[-1])),
    wrong("7.8", "the ring has eight cards, as an all-gather would: here each rank sends a block of its own to the "
          "next, and the block that leaves a node has one card")(
        lambda *case: attention_seconds(*case[:-1], 8 * case[-1]))]
TEXT_7_8 = [
    term("7.8", "the (u-1)/u that are not for itself", "(u - 1) / u * 2", "2"),
    term("7.8", "q and the result, k and v", "(2 * H + 2 * K)", "(H + 2 * K)"),
    term("7.8", "the longer of the two", "max(computing, sending)", "(computing + sending)"),
    term("7.8", "sending may take longer", "max(computing, sending)", "computing"),
    term("7.8", "nothing travels in the last step", "(R - 1) * max(computing, sending) + computing",
         "R * max(computing, sending)"),
    term("7.8", "half of the pairs are hidden", "/ 2 * H / u / flops_per_s", "* H / u / flops_per_s"),
    term("7.8", "a rank has H/u heads", "/ 2 * H / u / flops_per_s", "/ 2 * H / flops_per_s"),
    term("7.8", "and K/u of k and v", "d * K / u * T", "d * K * T"),
    term("7.8", "the slow wire", "T / R / slow", "T / R / fast"),
    example("7.8", lambda inputs, answers: [
        "T = {}, u = {}, R = {}, H = {}, K = {}, d = {}, {} FLOP/s, {} and {} bytes/s:".format(*inputs[0]),
        f"= {answers[0]['value']:g} s"])]
