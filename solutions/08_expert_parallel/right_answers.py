"""Right answers to the exercises of chapter 8 that nobody would think of first; tests/grading/test_answers.py has each
pass at ten seeds, in the names of the notebook beside this file.
"""
# ruff: noqa: F821

import random
from fractions import Fraction

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F

from tools.answers import right


@right("8.1", "an argsort of each group, and a token's experts in a shuffled order")
def gate_by_argsort_shuffled(logits, bias, k, num_groups, scale):
    scores = torch.sigmoid(logits)
    size = logits.shape[1] // num_groups
    every = []
    for start in range(0, logits.shape[1], size):
        order = (scores[:, start:start + size] + bias[start:start + size]).argsort(dim=1, descending=True)
        every.append(order[:, :k // num_groups] + start)
    experts = torch.cat(every, 1)[:, torch.randperm(k)]
    chosen = torch.take_along_dim(scores, experts, 1)
    return experts, chosen * scale / chosen.sum(1, keepdim=True)


@right("8.1", "numpy chooses, and a softmax of log-sigmoids weighs; a list")
def gate_by_numpy(logits, bias, k, num_groups, scale):
    by = (torch.sigmoid(logits.detach()) + bias).numpy().reshape(len(logits), num_groups, -1)
    best = numpy.argpartition(-by, k // num_groups - 1, axis=2)[..., :k // num_groups]
    best = best + numpy.arange(num_groups)[:, None] * by.shape[-1]
    experts = torch.from_numpy(best.reshape(len(logits), k))
    return [experts, scale * F.logsigmoid(logits).gather(1, experts).softmax(1)]


@right("8.2", "a loop over the experts with pad, and einsum for the way back")
def rows_by_a_loop(tokens, experts, weights, num_experts, block):
    parts, places, start = [], torch.empty_like(experts), 0
    for e in range(num_experts):
        token, slot = (experts == e).nonzero(as_tuple=True)
        if len(token):
            parts.append(F.pad(tokens[token], (0, 0, 0, -len(token) % block)))
            places[token, slot] = start + torch.arange(len(token))
            start += len(parts[-1])
    return torch.cat(parts), lambda y: torch.einsum("nk,nkd->nd", weights, y[places])


@right("8.2", "rows are read from the tokens and a row of zeros; a list")
def rows_by_reading(tokens, experts, weights, num_experts, block):
    N, k = experts.shape
    slots_of = [[] for _ in range(num_experts)]
    for slot, e in enumerate(experts.flatten().tolist()):
        slots_of[e].append(slot)
    slots = [slot for own in slots_of for slot in own + [N * k] * (-len(own) % block)]
    place = {slot: i for i, slot in enumerate(slots)}
    source = torch.tensor(slots) // k  # N where there is nothing
    rows = torch.cat([tokens, torch.zeros_like(tokens[:1])])[source]

    def back(y):
        total = 0
        for slot in range(k):
            own = torch.tensor([place[token * k + slot] for token in range(N)])
            total = total + y[own] * weights[:, slot, None]
        return total

    return [rows, back]


def counts_of(goes):
    came = torch.empty_like(goes)
    dist.all_to_all_single(came, goes)
    return goes.tolist(), came.tolist()


@right("8.3", "tokens and choices travel together as bytes, in three collectives")
def dispatch_of_bytes(tokens, choices):
    (N, D), R = tokens.shape, dist.get_world_size()
    by_rank = choices.view(N, R, -1)
    to, token = by_rank.transpose(0, 1).any(-1).nonzero(as_tuple=True)
    sent, came = counts_of(to.bincount(minlength=R))
    packed = torch.cat([tokens[token].contiguous().view(torch.uint8), by_rank[token, to]], 1)
    arrived = packed.new_empty(sum(came), packed.shape[1])
    dist.all_to_all_single(arrived, packed, came, sent)

    def back(y):
        home = torch.empty(sum(sent), D, dtype=y.dtype)
        dist.all_to_all_single(home, y, sent, came)
        result = torch.zeros_like(tokens)
        for row, own in zip(home, token.tolist()):
            result[own] += row
        return result

    return arrived[:, :8 * D].flatten().view(tokens.dtype).view(-1, D), arrived[:, 8 * D:], back


@right("8.3", "asynchronous calls, 32-bit counts, a list of places for each rank; a list")
def dispatch_of_places(tokens, choices):
    R = dist.get_world_size()
    parts = choices.chunk(R, dim=1)
    mine = [part.sum(1).nonzero().flatten() for part in parts]
    sent = torch.tensor([len(own) for own in mine], dtype=torch.int32)
    came = torch.empty_like(sent)
    dist.all_to_all_single(came, sent, async_op=True).wait()
    sent, came = sent.tolist(), came.tolist()
    rows, said = torch.cat([tokens[own] for own in mine]), torch.cat([part[own] for part, own in zip(parts, mine)])
    received, theirs = (each.new_empty(sum(came), each.shape[1]) for each in (rows, said))
    for work in [dist.all_to_all_single(theirs, said, came, sent, async_op=True),
                 dist.all_to_all_single(received, rows, came, sent, async_op=True)]:
        work.wait()

    def back(y):
        home = torch.empty_like(rows)
        dist.all_to_all_single(home, y, sent, came)
        return sum(torch.zeros_like(tokens).index_copy(0, own, there) for own, there in zip(mine, home.split(sent)))

    return [received, theirs, back]


@right("8.3", "choices travel as bits")
def dispatch_of_bits(tokens, choices):
    N, R = len(tokens), dist.get_world_size()
    own = choices.view(N, R, -1)
    bits = (own << torch.arange(own.shape[2], dtype=torch.uint8)).sum(-1, dtype=torch.uint8)  # (N, R)
    to, token = bits.T.nonzero(as_tuple=True)
    sent, came = counts_of(bits.ne(0).sum(0))
    received, theirs = tokens.new_empty(sum(came), tokens.shape[1]), bits.new_empty(sum(came))
    dist.all_to_all_single(received, tokens[token], came, sent)
    dist.all_to_all_single(theirs, bits[token, to], came, sent)

    def back(y):
        home = tokens.new_empty(len(token), tokens.shape[1])
        dist.all_to_all_single(home, y.contiguous(), sent, came)
        return torch.zeros_like(tokens).scatter_add(0, token[:, None].expand_as(home), home)

    return received, theirs[:, None] >> torch.arange(own.shape[2], dtype=torch.uint8) & 1, back


@right("8.4", "scatter_add counts, and what is all-reduced are shares")
def loss_by_scatter(logits, k):
    N, R = len(logits), dist.get_world_size()
    chosen = torch.zeros_like(logits).scatter_(1, logits.argsort(dim=1, descending=True)[:, :k], 1.0)
    f = chosen.view(N, R, -1).sum((0, 2)).detach() / (k * N * R)
    dist.all_reduce(f)
    return R * (logits.softmax(1).view(N, R, -1).sum(2) @ f).mean()


@right("8.4", "counts of 32 bits, one after the other, in an asynchronous call")
def loss_of_small_counts(logits, k):
    (N, E), R = logits.shape, dist.get_world_size()
    counts = torch.zeros(R, dtype=torch.int32)
    for expert in logits.topk(k, dim=1).indices.flatten().tolist():
        counts[expert * R // E] += 1
    work = dist.all_reduce(counts, async_op=True)
    p = (logits - logits.logsumexp(1, keepdim=True)).exp()
    work.wait()
    return sum(R * n.double() / (k * N * R) * own.sum() / N for n, own in zip(counts, p.chunk(R, dim=1)))


@right("8.5", "each row counts those that come before it")
def kept_by_comparing(experts, weights, protected, num_experts, num_ranks, capacity):
    rank = (experts // (num_experts // num_ranks)).flatten()
    safe = protected.repeat_interleave(experts.shape[1])
    flat = weights.flatten()
    before = (safe[None] & ~safe[:, None]) | (safe[None] == safe[:, None]) & (flat[None] > flat[:, None])
    num_before = (before & (rank[None] == rank[:, None])).sum(1)
    return (safe | (num_before < capacity)).view_as(weights)


@right("8.5", "Python's sorted, and room that is counted down")
def kept_by_room(experts, weights, protected, num_experts, num_ranks, capacity):
    kept = [[bool(safe)] * experts.shape[1] for safe in protected]
    room = [capacity] * num_ranks
    rows = [(not safe, -w, n, slot) for n, safe in enumerate(protected.tolist())
            for slot, w in enumerate(weights[n].tolist())]
    for _, _, n, slot in sorted(rows):
        rank = int(experts[n, slot]) * num_ranks // num_experts
        kept[n][slot] |= room[rank] > 0
        room[rank] -= 1
    return torch.tensor(kept)


def even_copies(loads, num_ranks, num_slots):
    """For each expert, on how many ranks it is."""
    together, copies = [sum(rows) for rows in zip(*loads)], [1] * len(loads[0])
    for _ in range(num_ranks * num_slots - len(together)):
        copies[max(range(len(together)), key=lambda e: (copies[e] < num_ranks) * together[e] / copies[e])] += 1
    return copies


def late(rows):
    """How long everybody waits, of rows[r][b], in all batches together."""
    return sum(map(max, zip(*rows)))


@right("8.6", "annealing, tuples")
def placement_by_annealing(loads, num_ranks, num_slots):
    source, copies = random.Random(0), even_copies(loads, num_ranks, num_slots)
    ranks = [[] for _ in range(num_ranks)]
    for e in sorted(range(len(copies)), key=lambda e: -copies[e]):
        for own in sorted(ranks, key=len)[:copies[e]]:
            own.append(e)
    share = [[load[e] / copies[e] for load in loads] for e in range(len(copies))]
    rows = [[sum(each) for each in zip(*(share[e] for e in own))] for own in ranks]
    best, now, heat = [tuple(own) for own in ranks], late(rows), 0.1
    lowest = now
    for _ in range(20_000):
        a, b = source.sample(range(num_ranks), 2)
        i, j = source.randrange(len(ranks[a])), source.randrange(len(ranks[b]))
        e, other = ranks[a][i], ranks[b][j]
        heat *= 0.9995
        if e in ranks[b] or other in ranks[a]:
            continue
        moved = [y - x for x, y in zip(share[e], share[other])]
        tried = [[x + m for x, m in zip(rows[a], moved)], [x - m for x, m in zip(rows[b], moved)]]
        then = late([*(own for r, own in enumerate(rows) if r not in (a, b)), *tried])
        if then <= now or source.random() < numpy.exp((now - then) / (heat * now)):
            ranks[a][i], ranks[b][j], now = other, e, then
            rows[a], rows[b] = tried
            if now < lowest:
                best, lowest = [tuple(own) for own in ranks], now
    return tuple(best)


@right("8.6", "the largest first, where the batches' busiest grow least, and then exchanges; numpy's numbers in arrays")
def placement_by_batches(loads, num_ranks, num_slots):
    copies = numpy.array(even_copies(loads, num_ranks, num_slots))
    share = numpy.array(loads).T / copies[:, None]  # (E, B)
    best = None
    for power in (1, 2, 4, 8):
        ranks, rows = [[] for _ in range(num_ranks)], numpy.zeros((num_ranks, len(loads)))
        for e in numpy.argsort(-share.max(1)):
            for _ in range(copies[e]):
                free = [r for r in range(num_ranks) if len(ranks[r]) < num_slots and e not in ranks[r]]
                if not free:
                    break
                r = min(free, key=lambda r: ((rows[r] + share[e]) ** power).sum())
                ranks[r].append(e)
                rows[r] += share[e]
        better = all(sum(e in own for own in ranks) == copies[e] for e in range(len(copies)))
        while better:
            better = False
            for a, b in itertools.permutations(range(num_ranks), 2):
                for i, j in itertools.product(range(len(ranks[a])), range(len(ranks[b]))):
                    e, other = ranks[a][i], ranks[b][j]
                    if e in ranks[b] or other in ranks[a]:
                        continue
                    tried = rows.copy()
                    tried[a] += share[other] - share[e]
                    tried[b] += share[e] - share[other]
                    if tried.max(0).sum() < rows.max(0).sum() - 1e-6:
                        ranks[a][i], ranks[b][j], rows, better = other, e, tried, True
        if best is None or rows.max(0).sum() < best[0]:
            best = rows.max(0).sum(), [numpy.array(own) for own in ranks]
    return best[1]


@right("8.7", "the router and the number in one all-reduce, the experts in one message to each")
def gradients_packed(experts, router, num_tokens, same):
    shared = torch.cat([router.grad.flatten(), torch.tensor([num_tokens], dtype=torch.float64)])
    dist.all_reduce(shared)
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in experts]
    packed = sum_over(torch.stack(gradients), same) / shared[-1]
    for weight, gradient in zip(experts, packed):
        weight.grad = gradient.clone()
    router.grad.copy_(shared[:-1].view_as(router) / shared[-1])


@right("8.7", "an all-to-all whose messages to strangers are empty, and all routers gathered")
def gradients_by_all_to_all(experts, router, num_tokens, same):
    R = dist.get_world_size()
    own = torch.cat([torch.zeros(each.numel()).double() if each.grad is None else each.grad.flatten()
                     for each in experts])
    sizes = [len(own) * (r in same) for r in range(R)]
    arrived = own.new_empty(sum(sizes))
    dist.all_to_all_single(arrived, own.repeat(len(same)), sizes, sizes)
    shared = torch.cat([router.grad.flatten(), torch.tensor([num_tokens]).double()])
    every = [torch.empty_like(shared) for _ in range(R)]
    dist.all_gather(every, shared)
    *whole, total = torch.stack(every).sum(0).tolist()
    parts = arrived.view(len(same), -1).sum(0).split([each.numel() for each in experts])
    for weight, gradient in zip(experts, parts):
        weight.grad = gradient.view_as(weight) / total
    router.grad = torch.tensor(whole, dtype=torch.float64).view_as(router) / total


WIDTHS = [
    right("8.8", "a Fraction")(lambda k, shared, m, G, out, home, C, W: (
        Fraction(m * (G - 1), G) * (out + home) * Fraction(C) / Fraction(W) / (6 * (k + shared)))),
    right("8.8", "both times of some width, a tensor")(lambda k, shared, m, G, out, home, C, W: (
        torch.tensor(m - m / G).double() * (out + home) * 4096 / W / ((k + shared) * 3 * 2 * 4096 / C))),
    right("8.8", "numpy's numbers")(lambda *case: numpy.float64(my_smallest_expert(*map(numpy.float64, case)))),
]
