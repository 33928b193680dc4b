"""Chapter 8: right and wrong answers, what each text stresses, each docstring's example; tools/answers.py reads it."""
# ruff: noqa: F821

import math
import random
from fractions import Fraction

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F

from tools.answers import example, right, term, wrong

NOTHING_LEADS_BACK = ("the forward pass is right, but nothing has a gradient: what is returned does not lead back to "
                      "the arguments")


def short(number):
    """As the docstrings write numbers: .5 and 2."""
    text = f"{number:.6g}"
    return text.removeprefix("0") if text.startswith("0.") else text


def row(numbers, mark="|"):
    """In two groups."""
    half = len(numbers) // 2
    first, second = (" ".join(map(short, part)) for part in (numbers[:half], numbers[half:]))
    return f"{first} {mark} {second}"


def listed(numbers):
    return f"[{', '.join(map(short, numbers))}]"


# ---- 8.1 my_gate
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


def best_of_groups(by, k, num_groups):
    by = by.unflatten(1, (num_groups, -1))
    first = torch.arange(num_groups).unsqueeze(1) * by.shape[-1]
    return (by.topk(k // num_groups).indices + first).flatten(1)


def weighed(scores, experts, scale, total=None):
    chosen = scores.gather(1, experts)
    return experts, scale * chosen / (chosen.sum(1, keepdim=True) if total is None else total)


@wrong("8.1", "the bias is in the weights: it chooses, and the scores without it weigh")
def gate_that_weighs_by_the_bias(logits, bias, k, num_groups, scale):
    scores = logits.sigmoid() + bias
    return weighed(scores, best_of_groups(scores, k, num_groups), scale)


@wrong("8.1", "the bias is added to the logits, where it counts for less: an expert is chosen by sigmoid(logit) + bias")
def gate_that_chooses_by_logits(logits, bias, k, num_groups, scale):
    return weighed(logits.sigmoid(), best_of_groups(logits + bias, k, num_groups), scale)


@wrong("8.1", "the bias is inside of the sigmoid, and so in the weights, too: it is added to the score, and helps to "
       "choose only")
def gate_with_the_bias_in_the_sigmoid(logits, bias, k, num_groups, scale):
    scores = (logits + bias).sigmoid()
    return weighed(scores, best_of_groups(scores, k, num_groups), scale)


@wrong("8.1", "the k best of all experts are chosen: here the k/G best of each group are")
def gate_without_groups(logits, bias, k, num_groups, scale):
    scores = logits.sigmoid()
    return weighed(scores, (scores + bias).topk(k).indices, scale)


@wrong("8.1", "all of them come from the first group: topk counts from 0 in each group, so add where the group begins")
def gate_that_stays_in_the_first_group(logits, bias, k, num_groups, scale):
    scores = logits.sigmoid()
    by = (scores + bias).unflatten(1, (num_groups, -1))
    return weighed(scores, by.topk(k // num_groups).indices.flatten(1), scale)


@wrong("8.1", "each group's weights are divided by their own sum: all k of a token add up to scale")
def gate_with_a_sum_for_each_group(logits, bias, k, num_groups, scale):
    scores = logits.sigmoid()
    experts = best_of_groups(scores + bias, k, num_groups)
    chosen = scores.gather(1, experts).unflatten(1, (num_groups, -1))
    return experts, (scale * chosen / chosen.sum(-1, keepdim=True)).flatten(1)


@wrong("8.1", "scores are a softmax over the experts: here each expert's is the sigmoid of its own logit")
def gate_with_a_softmax(logits, bias, k, num_groups, scale):
    scores = logits.softmax(-1)
    return weighed(scores, best_of_groups(scores + bias, k, num_groups), scale)


@wrong("8.1", "the scores are divided by the sum over all experts: the sum over the chosen ones is asked")
def gate_divided_by_everything(logits, bias, k, num_groups, scale):
    scores = logits.sigmoid()
    experts = best_of_groups(scores + bias, k, num_groups)
    return weighed(scores, experts, scale, scores.sum(1, keepdim=True))


@wrong("8.1", NOTHING_LEADS_BACK)
def gate_without_a_gradient(logits, bias, k, num_groups, scale):
    with torch.no_grad():
        return my_gate(logits, bias, k, num_groups, scale)


@wrong("8.1", "the weights are right, but the sum that they are divided by gives no gradient: do not detach it")
def gate_with_a_detached_sum(logits, bias, k, num_groups, scale):
    scores = logits.sigmoid()
    experts = best_of_groups(scores + bias, k, num_groups)
    return weighed(scores, experts, scale, scores.gather(1, experts).sum(1, keepdim=True).detach())


@wrong("8.1", "expert e is taken for one of group e % G: the first E/G experts are group 0, and so on")
def gate_with_groups_dealt(logits, bias, k, num_groups, scale):
    dealt = torch.arange(len(bias)).view(-1, num_groups).T.flatten()
    experts, weights = my_gate(logits[:, dealt], bias[dealt], k, num_groups, scale)
    return dealt[experts], weights


@wrong("8.1", "the weights are a softmax of the chosen logits: they are the chosen sigmoids, divided by their sum")
def gate_with_a_softmax_of_the_chosen(logits, bias, *numbers):
    experts, _ = my_gate(logits, bias, *numbers)
    return experts, numbers[-1] * logits.gather(1, experts).softmax(1)


GATES = [
    wrong("8.1", "the bias is left out: an expert is chosen by score + bias")(
        lambda logits, bias, *numbers: my_gate(logits, 0 * bias, *numbers)),
    wrong("8.1", "scale is left out: a token's weights add up to scale")(
        lambda logits, bias, k, num_groups, scale: my_gate(logits, bias, k, num_groups, 1.0)),
    wrong("8.1", "the weights are not divided by their sum")(
        lambda logits, bias, k, num_groups, scale: weighed(
            logits.sigmoid(), my_gate(logits, bias, k, num_groups, scale)[0], scale, total=1.0))]


@wrong("8.1", "it uses course_lib.expert_parallel")
def gate_of_the_library(logits, bias, k, num_groups, scale):
    from course_lib.expert_parallel import route

    chosen = route(logits, k, "sigmoid", bias=bias, num_groups=num_groups, top_groups=num_groups)
    return chosen.experts, scale * chosen.weights


def example_of_gate(inputs, answers):
    k, G, scale = inputs[0]["numbers"]
    weights = answers[0]["y"][0].tolist()
    chosen = [expert for expert, weight in enumerate(weights) if weight]
    return (
        f"scores {row(inputs[0]['given']['logits'].sigmoid()[0].tolist())}, bias {row(inputs[0]['bias'].tolist())}, "
        f"k = {k}, G = {G}, scale {scale}: experts {chosen[0]} and {chosen[1]}, "
        f"weights {short(weights[chosen[0]])} and {short(weights[chosen[1]])}")


TEXT_8_1 = [
    term("8.1", "its k/G best ones of each group", "(in_group + first).flatten(1)", "(scores + bias).topk(k).indices"),
    term("8.1", "the sigmoid of its own logit", "logits.sigmoid()", "logits.softmax(1)"),
    term("8.1", "scores + bias, and not logits", "(scores + bias)", "(logits + bias)"),
    term("8.1", "a bias helps to choose", "(scores + bias)", "scores"),
    term("8.1", "and does not weigh", "scores.gather(1, experts)", "(scores + bias).gather(1, experts)"),
    term("8.1", "group g has the experts from g E/G on", "torch.arange(num_groups).unsqueeze(1) * by.shape[-1]",
         "torch.zeros(num_groups, 1, dtype=torch.int64)"),
    term("8.1", "scale", "scale * chosen", "chosen"),
    term("8.1", "divided by the sum", "/ chosen.sum(1, keepdim=True)", ""),
    term("8.1", "of all k", "chosen.sum(1, keepdim=True)",
         "chosen.view(len(chosen), num_groups, -1).sum(2).repeat_interleave(k // num_groups, 1)"),
    term("8.1", "autograd goes through the weights", "scores.gather", "scores.detach().gather"),
    term("8.1", "also through their sum", "chosen.sum(1, keepdim=True)", "chosen.sum(1, keepdim=True).detach()"),
    example("8.1", example_of_gate)]


# ---- 8.2 my_block_rows
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


def block_rows(tokens, experts, weights, padded_of, order=None, owner_of=None, order_back=None, owner_back=None,
               weigh=True, put=torch.Tensor.index_add):
    """Rows whose experts begin where padded_of(counts) says, and the way back. owner_of(slots): their tokens."""
    flat, k = experts.flatten(), experts.shape[1]
    order = flat.argsort(stable=True) if order is None else order
    owner = owner_of(order) if owner_of else order // k
    counts = flat.bincount(minlength=int(flat.max()) + 1)
    padded = padded_of(counts)
    place = torch.arange(len(flat)) + ((padded.cumsum(0) - padded) - (counts.cumsum(0) - counts))[flat[order]]
    rows = tokens.new_zeros(int(padded.sum()), tokens.shape[1]).index_copy(0, place, tokens[owner])

    def back(y):
        to = owner if owner_back is None else owner_back
        scales = weights.flatten()[order if order_back is None else order_back].unsqueeze(1)
        return put(torch.zeros_like(tokens), 0, to, y[place] * scales if weigh else y[place])

    return rows, back


def up_to(block):
    return lambda counts: (counts + block - 1) // block * block


@wrong("8.2", "rows lie one behind the other without a gap: each expert's rows are filled up with zeros to a multiple "
       "of `block`")
def rows_without_blocks(tokens, experts, weights, num_experts, block):
    return block_rows(tokens, experts, weights, lambda counts: counts)


@wrong("8.2", "an expert whose rows fill their blocks gets another one: round up, n_e of 8 are 2 blocks of 4")
def rows_with_one_block_more(tokens, experts, weights, num_experts, block):
    return block_rows(tokens, experts, weights, lambda counts: torch.where(counts > 0, counts // block + 1, 0) * block)


@wrong("8.2", "an expert without tokens gets a block of zeros: it has no rows")
def rows_of_experts_without_tokens(tokens, experts, weights, num_experts, block):
    return block_rows(tokens, experts, weights, lambda counts: up_to(block)(counts.clamp(min=1)))


@wrong("8.2", "each expert has as many rows as the busiest one: round up each expert's own number")
def rows_as_many_as_the_busiest(tokens, experts, weights, num_experts, block):
    def alike(counts):
        return up_to(block)(counts).amax().expand(num_experts)

    flat = experts.flatten()
    if int(flat.max()) + 1 < num_experts:  # as bincount with minlength makes it
        rows, back = block_rows(tokens, experts, weights, lambda counts: alike(counts)[:len(counts)])
        missing = num_experts - int(flat.max()) - 1
        empty = rows.new_zeros(missing * len(rows) // (num_experts - missing), rows.shape[1])
        return torch.cat([rows, empty]), back
    return block_rows(tokens, experts, weights, alike)


@wrong("8.2", "rows are right, and back takes each result times the weight of another slot: sort the weights as the "
       "rows are")
def rows_with_weights_as_they_were(tokens, experts, weights, num_experts, block):
    return block_rows(tokens, experts, weights, up_to(block), order_back=torch.arange(experts.numel()))


@wrong("8.2", "rows are right, and back leaves the weights out")
def rows_unweighed(tokens, experts, weights, num_experts, block):
    return block_rows(tokens, experts, weights, up_to(block), weigh=False)


@wrong("8.2", "rows are right, and back keeps one of a token's k results: write them with index_add, as an assignment "
       "keeps the last one")
def rows_put_and_not_added(tokens, experts, weights, num_experts, block):
    return block_rows(tokens, experts, weights, up_to(block), put=torch.Tensor.index_copy)


@wrong("8.2", "only the end of all rows is filled up: each expert's rows are, so that no block has two experts")
def rows_filled_up_at_the_end(tokens, experts, weights, num_experts, block):
    def padded_of(counts):
        return torch.cat([counts[:-1], counts[-1:] + -experts.numel() % block])

    return block_rows(tokens, experts, weights, padded_of)


@wrong("8.2", "rows of the same expert are in another order: first come, first placed, so sort with stable=True")
def rows_last_come_first(tokens, experts, weights, num_experts, block):
    order = experts.numel() - 1 - experts.flatten().flip(0).argsort(stable=True)
    return block_rows(tokens, experts, weights, up_to(block), order)


@wrong("8.2", "rows are right, and back makes the mean of a token's results: the weights are all that weighs them")
def rows_averaged(tokens, experts, *others):
    rows, back = my_block_rows(tokens, experts, *others)
    return rows, lambda y: back(y) / experts.shape[1]


ROWS = [
    wrong("8.2", "slots are taken for tokens: the flattened slot s belongs to token s // k")(
        lambda tokens, experts, weights, num_experts, block: block_rows(
            tokens, experts, weights, up_to(block), owner_of=lambda slots: slots % len(tokens))),
    wrong("8.2", "rows are right, and back returns each result to another token: the i-th result belongs to the token "
          "of the row at place i")(lambda tokens, experts, weights, num_experts, block: block_rows(
              tokens, experts, weights, up_to(block), owner_back=torch.arange(experts.numel()) // experts.shape[1])),
    wrong("8.2", "the results are right, but rows do not lead back to the tokens: index_copy goes the way of autograd")(
        lambda tokens, *others: my_block_rows(tokens.detach(), *others)),
    wrong("8.2", "the results are right, but nothing leads back to the weights")(
        lambda tokens, experts, weights, *others: my_block_rows(tokens, experts, weights.detach(), *others)),
    wrong("8.2", "the results are right, but nothing has a gradient")(
        lambda tokens, experts, weights, *others: my_block_rows(tokens.detach(), experts, weights.detach(), *others))]


@wrong("8.2", "a matrix that says for each row and token whether they belong together is larger than both: hold "
       "places, as index_copy and index_add take them")
def rows_by_a_matrix(tokens, experts, weights, num_experts, block):
    N, k = experts.shape
    flat = experts.flatten()
    counts = flat.bincount(minlength=num_experts)
    padded = up_to(block)(counts)
    before = torch.nn.functional.one_hot(flat, num_experts).cumsum(0)[torch.arange(N * k), flat] - 1
    place = (padded.cumsum(0) - padded)[flat] + before
    goes = torch.nn.functional.one_hot(place, int(padded.sum())).to(tokens.dtype)  # (N k, M)
    rows = goes.T @ tokens.repeat_interleave(k, 0)
    return rows, lambda y: (weights.unsqueeze(-1) * (goes @ y).unflatten(0, (N, k))).sum(1)


@wrong("8.2", "it uses course_lib.expert_parallel")
def rows_of_the_library(tokens, experts, weights, num_experts, block):
    from course_lib.expert_parallel import permute, unpermute

    rows, order = permute(tokens, experts)
    return rows, lambda y: unpermute(y, order, weights)


def row_names(tokens, rows):
    """Of each row, the token that lies there."""
    names = {tuple(token): f"token {place}" for place, token in enumerate(tokens.tolist())}
    return ", ".join(names.get(tuple(own), "zeros") for own in rows.tolist())


TEXT_8_2 = [
    term("8.2", "filled up to whole blocks", "(counts + block - 1) // block * block", "counts"),
    term("8.2", "full blocks are full", "(counts + block - 1)", "(counts + block)"),
    term("8.2", "each expert's rows are", "(counts + block - 1) // block * block",
         "torch.cat([counts[:-1], counts[-1:] - counts.sum() + -(-counts.sum() // block) * block])"),
    term("8.2", "an expert without tokens has no rows", "(counts + block - 1)", "(counts.clamp(min=1) + block - 1)"),
    term("8.2", "in the order of the tokens", "flat.argsort(stable=True)",
         "N * k - 1 - flat.flip(0).argsort(stable=True)"),
    term("8.2", "the weight of its own slot", "[order].unsqueeze(1)", ".unsqueeze(1)"),
    term("8.2", "the sum over its k experts", ".index_add(0, order // k, weighed)",
         ".index_copy(0, order // k, weighed)"),
    term("8.2", "of weight * its row", "y[place] * weights.flatten()[order].unsqueeze(1)", "y[place]"),
    term("8.2", "empty rows are forgotten", "weighed = y[place]", "weighed = y[:N * k]"),
    term("8.2", "autograd goes to the tokens", "place, tokens[order // k])", "place, tokens.detach()[order // k])"),
    term("8.2", "and to the weights", "weights.flatten()[order]", "weights.detach().flatten()[order]"),
    term("8.2", "no matrix of tokens by rows", "return torch.zeros_like(tokens).index_add(0, order // k, weighed)",
         "goes = torch.nn.functional.one_hot(place, len(y)).to(y.dtype)\n"
         "        weighed = goes @ y * weights.flatten()[order].unsqueeze(1)\n"
         "        return torch.zeros_like(tokens).index_add(0, order // k, weighed)"),
    example("8.2", lambda inputs, answers: (
        f"k = 1, experts {', '.join(map(str, inputs[0]['experts'].flatten().tolist()))}, two experts, "
        f"block {inputs[0]['numbers'][1]}: rows = {row_names(inputs[0]['given']['tokens'], answers[0]['rows'])}"))]


# ---- 8.3 my_dispatch
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


def dispatch(tokens, choices, goes=None, columns=None, way_home=None):
    """goes (N, R): how often a token goes to a rank; columns(to, token): what is said of it; way_home(home, token)."""
    R = dist.get_world_size()
    by_rank = choices.view(len(tokens), R, -1)
    goes = by_rank.amax(-1).long() if goes is None else goes
    sent = goes.sum(0)
    came = torch.empty_like(sent)
    dist.all_to_all_single(came, sent)
    sent, came = sent.tolist(), came.tolist()
    pairs = goes.T.nonzero().repeat_interleave(goes.T[goes.T > 0], 0)
    to, token = pairs.unbind(1)

    def travel(rows, there, here):
        arrived = rows.new_empty(sum(there), *rows.shape[1:])
        dist.all_to_all_single(arrived, rows.contiguous(), there, here)
        return arrived

    said = by_rank[token, to] if columns is None else columns(to, token)

    def back(y):
        home = travel(y, sent, came)
        return torch.zeros_like(tokens).index_add(0, token, home) if way_home is None else way_home(home, token)

    return travel(tokens[token], came, sent), travel(said, came, sent), back


@wrong("8.3", "a token is sent once for each of its experts: once to each rank is enough, with its choices there")
def dispatch_of_k_rows(tokens, choices):
    goes = choices.view(len(tokens), dist.get_world_size(), -1).sum(-1)
    return dispatch(tokens, choices, goes)


@wrong("8.3", "theirs has all E columns: a rank wants to know of its own E/R experts")
def dispatch_of_all_choices(tokens, choices):
    return dispatch(tokens, choices, columns=lambda to, token: choices[token])


@wrong("8.3", "results come home in the order in which they were sent, by rank, and back takes it for the order of the "
       "tokens: token[i] says whose the i-th is")
def dispatch_home_unsorted(tokens, choices):
    return dispatch(tokens, choices, way_home=lambda home, token: torch.zeros_like(tokens).index_add(
        0, token.sort().values, home))


@wrong("8.3", "back keeps what one rank made of a token: where several did, add their results up, with index_add")
def dispatch_home_overwritten(tokens, choices):
    def put(home, token):
        result = torch.zeros_like(tokens)
        for i, t in enumerate(token.tolist()):
            result[t] = home[i]
        return result

    return dispatch(tokens, choices, way_home=put)


@wrong("8.3", "every rank has all tokens: only those go to a rank that have experts there")
def dispatch_of_everything(tokens, choices):
    return dispatch(tokens, choices, torch.ones(len(tokens), dist.get_world_size(), dtype=torch.int64))


@wrong("8.3", "theirs says nothing of this rank's experts: of a token's choices send the E/R columns of the rank that "
       "it goes to")
def dispatch_of_the_first_columns(tokens, choices):
    return dispatch(tokens, choices, columns=lambda to, token: choices.chunk(dist.get_world_size(), 1)[0][token])


@wrong("8.3", "back makes the mean of what the ranks made of a token: add it up")
def dispatch_home_averaged(tokens, choices):
    goes = choices.view(len(tokens), dist.get_world_size(), -1).amax(-1).sum(1, keepdim=True)
    received, theirs, back = my_dispatch(tokens, choices)
    return received, theirs, lambda y: back(y) / goes


@wrong("8.3", "tokens are received in another order: by the rank that they come from, and as they were there")
def dispatch_backwards(tokens, choices):
    received, theirs, back = my_dispatch(tokens.flip(0), choices.flip(0))
    return received, theirs, lambda y: back(y).flip(0)


@wrong("8.3", "tokens and choices arrive, but nothing comes home")
def dispatch_without_return(tokens, choices):
    return *my_dispatch(tokens, choices)[:2], lambda y: None


@wrong("8.3", "as many tokens as there are, each once to a rank, however many of its experts are there. No rows that "
       "are filled up, nothing that is gathered, and choices travel as they are, a byte each")
def dispatch_padded(tokens, choices):
    """Right, with as many rows for each rank as the most that anybody sends to anybody."""
    R = dist.get_world_size()
    by_rank = choices.view(len(tokens), R, -1)
    most = by_rank.amax(-1).sum(0).amax().long()
    dist.all_reduce(most, dist.ReduceOp.MAX)
    places = [by_rank[:, s].amax(-1).nonzero().flatten() for s in range(R)]
    full = tokens.new_zeros(R, int(most), tokens.shape[1] + by_rank.shape[-1] + 1)
    for s, own in enumerate(places):
        full[s, :len(own)] = torch.cat([tokens[own], by_rank[own, s].double(), torch.ones(len(own), 1).double()], 1)
    arrived = torch.empty_like(full)
    dist.all_to_all_single(arrived, full)
    real = arrived[..., -1] > 0

    def back(y):
        rows = tokens.new_zeros(R, int(most), tokens.shape[1])
        rows[real] = y
        home = torch.empty_like(rows)
        dist.all_to_all_single(home, rows)
        result = torch.zeros_like(tokens)
        for s, own in enumerate(places):
            result[own] += home[s, :len(own)]
        return result

    return arrived[real][:, :tokens.shape[1]], arrived[real][:, tokens.shape[1]:-1].to(torch.uint8), back


DISPATCH_AS = [right("8.3", words)(lambda tokens, choices, makes=makes: (
    lambda received, theirs, back: (received, makes(theirs), back))(*my_dispatch(tokens, choices)))
    for words, makes in (("theirs says yes and no", torch.Tensor.bool), ("theirs in 64 bits", torch.Tensor.long))]


TEXT_8_3 = [
    term("8.3", "once to each rank", "goes = by_rank.amax(-1)\n",
         "choices = (choices.unsqueeze(1) * torch.eye(len(choices[0]), dtype=torch.uint8)).flatten(0, 1)\n"
         "    tokens = tokens.repeat_interleave(len(choices[0]), 0)\n"
         "    by_rank = choices.view(len(tokens), R, -1)\n    goes = by_rank.amax(-1)\n"),
    term("8.3", "how many will come", "dist.all_to_all_single(arriving, leaving)", "arriving.copy_(leaving)"),
    term("8.3", "this rank's experts", "by_rank[token, to]", "by_rank[token, 0]"),
    term("8.3", "in the order that they have there", "goes.T.nonzero()", "goes.T.flip(1).nonzero()"),
    term("8.3", "rank 0's first", "goes.T.nonzero().unbind(1)", "goes.nonzero().flip(1).unbind(1)"),
    term("8.3", "the sum of what the ranks made of it", ".index_add(0, token, home)", ".index_copy(0, token, home)"),
    term("8.3", "each result to its own token", ".index_add(0, token, home)", ".index_add(0, token.sort()[0], home)"),
    term("8.3", "E/R bytes of choices", "    dist.all_to_all_single(theirs, by_rank[token, to], came, sent)\n",
         "    theirs = theirs.double()\n    dist.all_to_all_single(theirs, by_rank[token, to].double(), came, sent)\n"
         "    theirs = theirs.byte()\n"),
    term("8.3", "four collectives", "def back(y):\n", "def back(y):\n        dist.all_reduce(leaving.clone())\n"),
    example("8.3", lambda inputs, answers: [
        "rank 0's goes to experts {}, {} and {}".format(*inputs[0]["choices"][0].nonzero().flatten().tolist()),
        "rank 1's to expert {}".format(*inputs[1]["choices"][0].nonzero().flatten().tolist()),
        f"rank 0 receives both, theirs {answers[0]['theirs'].tolist()}",
        f"rank 1 receives rank 0's, theirs {answers[1]['theirs'].tolist()}"])]


# ---- 8.4 my_balance_loss
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


def by_rank(scores):
    """(N, E) -> (R,): the mean over the tokens, summed over each rank's experts."""
    return scores.mean(0).view(dist.get_world_size(), -1).sum(1)


def balance_loss(logits, k, owner=None, parts=None, reduce=True, slots=None, P=None):
    """P(f): instead of the right one."""
    R, E = dist.get_world_size(), logits.shape[1]
    parts = parts or R
    owner = owner or (lambda experts: experts // (E // parts))
    counts = owner(logits.topk(slots or k).indices).flatten().bincount(minlength=parts).double()
    if reduce:
        dist.all_reduce(counts)
    f = counts / counts.sum()
    return parts * (f * (P(f) if P else logits.softmax(-1).mean(0).view(parts, -1).sum(1))).sum()


@wrong("8.4", "this is the loss that balances experts, E sum f_i P_i over each of them: add f and P up over the "
       "experts of a rank first")
def loss_of_experts(logits, k):
    return balance_loss(logits, k, parts=logits.shape[1])


@wrong("8.4", "f is this rank's: a few tokens of its own need not be balanced, all ranks' together should be, so add "
       "the counts up over the ranks")
def loss_of_own_tokens(logits, k):
    return balance_loss(logits, k, reduce=False)


@wrong("8.4", "P is the mean over all ranks' tokens: all_reduce cuts the way back. This rank's own tokens make P, and "
       "the ranks' losses are averaged afterwards")
def loss_with_everybodys_scores(logits, k):
    P = by_rank(logits.softmax(-1)).detach()
    dist.all_reduce(P)
    return balance_loss(logits, k, P=lambda f: P / dist.get_world_size())


@wrong("8.4", "f counts the best expert of a token only: all k choices bring work, so count them all")
def loss_of_the_first_choice(logits, k):
    return balance_loss(logits, k, slots=1)


@wrong("8.4", "expert e is taken to live on rank e % R: rank r has those from r E/R on")
def loss_of_experts_dealt(logits, k):
    R = dist.get_world_size()
    return balance_loss(logits, k, lambda experts: experts % R,
                        P=lambda f: logits.softmax(-1).mean(0).view(-1, R).sum(0))


LOSSES = [
    wrong("8.4", NOTHING_LEADS_BACK)(lambda logits, k: my_balance_loss(logits.detach(), k)),
    wrong("8.4", "R is left out: with it the loss is 1 when all ranks have equally much")(
        lambda logits, k: my_balance_loss(logits, k) / dist.get_world_size()),
    wrong("8.4", "R times too much: f adds up to 1 over the ranks, so divide by the choices of all ranks, k N R, and "
          "multiply by R once")(lambda logits, k: my_balance_loss(logits, k) * dist.get_world_size()),
    wrong("8.4", "k times too much: f is a share of all k N R choices and adds up to 1")(
        lambda logits, k: my_balance_loss(logits, k) * k),
    wrong("8.4", "P_d is a mean over the experts of rank d: it is their sum, and adds up to 1")(
        lambda logits, k: my_balance_loss(logits, k) * dist.get_world_size() / logits.shape[1]),
    wrong("8.4", "these are the experts' f and P, times R: add both up over the experts of a rank first")(
        lambda logits, k: balance_loss(logits, k, parts=logits.shape[1]) * dist.get_world_size() / logits.shape[1]),
    wrong("8.4", "f is used twice and P not at all: counts have no gradient, so there is nothing to learn from")(
        lambda logits, k: balance_loss(logits, k, P=lambda f: f)),
    wrong("8.4", "P is used twice and f not at all: that balances scores, and not how often a rank is chosen")(
        lambda logits, k: dist.get_world_size() * by_rank(logits.softmax(-1)).square().sum()),
    wrong("8.4", "P is made of the logits: it is the mean of their softmax")(
        lambda logits, k: balance_loss(logits, k, P=lambda f: by_rank(logits))),
    wrong("8.4", "P is made of sigmoids: it is the mean of the softmax over the experts")(
        lambda logits, k: balance_loss(logits, k, P=lambda f: by_rank(logits.sigmoid())))]


@wrong("8.4", "R counts of each rank are enough: add up those of a rank's experts before they travel")
def loss_with_counts_of_experts(logits, k):
    R, E = dist.get_world_size(), logits.shape[1]
    counts = logits.topk(k).indices.flatten().bincount(minlength=E).double()
    dist.all_reduce(counts)
    f = (counts / counts.sum()).view(R, -1).sum(1)
    return R * (f * by_rank(logits.softmax(-1))).sum()


@wrong("8.4", "it uses course_lib.expert_parallel")
def loss_of_the_library(logits, k):
    from course_lib.expert_parallel import load_balancing_loss

    return load_balancing_loss(logits.softmax(-1), logits.topk(k).indices)


def example_of_losses(inputs, answers):
    shares = [rank["given"]["logits"].softmax(-1) for rank in inputs]
    P = [each.mean(0).view(2, -1).sum(1).tolist() for each in shares]
    counts = sum((each.argmax(1) // 2).bincount(minlength=2) for each in shares)
    f = (counts / counts.sum()).tolist()
    first, second = (" and ".join(row(token) for token in each.tolist()) for each in shares)
    return [
        f"k = {inputs[0]['k']}; softmax {first} on rank 0, {second} on rank 1",
        f"f = [{counts[0]}/{counts.sum()}, {counts[1]}/{counts.sum()}] on both; P = {listed(P[0])} on rank 0",
        f"loss 2 ({short(f[0] * P[0][0])} + {short(f[1] * P[0][1])}) = {short(answers[0]['y'].item())}",
        f"P = {listed(P[1])} on rank 1, loss {short(answers[1]['y'].item())}"]


@right("8.4", "counts and shares in float32")
def balance_in_float32(logits, k):
    R = dist.get_world_size()
    ids, counts = logits.topk(k).indices // (logits.shape[1] // R), torch.zeros(R)
    for rank in range(R):
        counts[rank] = (ids == rank).sum()
    dist.all_reduce(counts)
    P = logits.softmax(1).unflatten(1, (R, -1)).sum(2).mean(0)
    return R * torch.dot((counts / counts.sum()).double(), P)


TEXT_8_4 = [
    term("8.4", "busy ranks, not busy experts", """    counts = ranks.flatten().bincount(minlength=R).double()
    dist.all_reduce(counts)
    P = p.mean(0).view(R, -1).sum(1)
    return R *""", """    counts = logits.topk(k).indices.flatten().bincount(minlength=logits.shape[1]).double()
    dist.all_reduce(counts)
    P = p.mean(0)
    return len(P) *"""),
    term("8.4", "all ranks' choices", "dist.all_reduce(counts)", "pass"),
    term("8.4", "f_d is a share", "counts / counts.sum()", "counts / len(logits)"),
    term("8.4", "k experts", "topk(k)", "topk(1)"),
    term("8.4", "the largest ones", "topk(k)", "topk(k, largest=False)"),
    term("8.4", "rank d holds experts from d E/R on", "// (logits.shape[1] // R)", "% R"),
    term("8.4", "a mean over this rank's tokens", "p.mean(0)", "p.sum(0)"),
    term("8.4", "summed over rank d's experts", ".view(R, -1).sum(1)", ".view(R, -1).mean(1)"),
    term("8.4", "of softmax", "logits.softmax(1)", "logits.sigmoid()"),
    term("8.4", "R times", "return R * ", "return "),
    term("8.4", "a gradient through P", "P = p.", "P = p.detach()."),
    term("8.4", "one all-reduce", "dist.all_reduce(counts)", "dist.all_reduce(counts)\n    dist.all_reduce(counts)"),
    term("8.4", "of R numbers", "dist.all_reduce(counts)",
         "counts = counts.repeat(2)\n    dist.all_reduce(counts)\n    counts = counts[:R]"),
    example("8.4", example_of_losses)]


# ---- 8.5 my_kept
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


def kept(where, key, capacity):
    kept = torch.zeros_like(where, dtype=torch.bool).flatten()
    for value in where.unique():
        slots = (where.flatten() == value).nonzero().flatten()
        kept[slots[key.flatten()[slots].argsort(descending=True, stable=True)[:capacity]]] = True
    return kept.view_as(where)


def kept_and_safe(where, weights, protected, capacity):
    safe = protected.unsqueeze(1)
    return kept(where, weights + 2.0 * safe, capacity) | safe


@wrong("8.5", "C is shared out evenly over a rank's experts: a hot one may take what its neighbours leave")
def kept_by_expert(experts, weights, protected, num_experts, num_ranks, capacity):
    return kept_and_safe(experts, weights, protected, capacity * num_ranks // num_experts)


@wrong("8.5", "first come, first kept: the largest weights are asked")
def kept_first_come(experts, weights, protected, num_experts, num_ranks, capacity):
    return kept_and_safe(experts // (num_experts // num_ranks), 0 * weights, protected, capacity)


@wrong("8.5", "protected tokens are dropped like others: their rows are kept in any case")
def kept_without_protection(experts, weights, protected, num_experts, num_ranks, capacity):
    return kept(experts // (num_experts // num_ranks), weights, capacity)


@wrong("8.5", "where more rows are protected than fit, some of them are dropped: all of them are kept, also then")
def kept_as_many_protected_as_fit(experts, weights, protected, num_experts, num_ranks, capacity):
    return kept(experts // (num_experts // num_ranks), weights + 2.0 * protected.unsqueeze(1), capacity)


@wrong("8.5", "protected rows are not counted: they take room as others do, so that fewer of these fit")
def kept_with_protected_rows_on_top(experts, weights, protected, num_experts, num_ranks, capacity):
    safe = protected.unsqueeze(1)
    return kept(experts // (num_experts // num_ranks), weights - 2.0 * safe, capacity) | safe


@wrong("8.5", "rows of the smallest weights are kept: drop these")
def kept_the_smallest(experts, weights, protected, num_experts, num_ranks, capacity):
    return kept_and_safe(experts // (num_experts // num_ranks), -weights, protected, capacity)


@wrong("8.5", "first come, first kept, all tokens' best experts before the second ones: the largest weights are asked")
def kept_first_slots_first(experts, weights, protected, num_experts, num_ranks, capacity):
    place = torch.arange(weights.numel()).view(*weights.T.shape).T / weights.numel()
    return kept_and_safe(experts // (num_experts // num_ranks), 1 - place, protected, capacity)


@wrong("8.5", "a token loses all of its rows where one is dropped: each of the k rows is kept or dropped by itself")
def kept_all_or_none(*arguments):
    kept = my_kept(*arguments)
    return kept & kept.all(1, keepdim=True)


KEPT = [
    wrong("8.5", "what is dropped is returned: True is for rows that are kept")(
        lambda *arguments: ~my_kept(*arguments)),
    wrong("8.5", "a rank keeps one row too few: C of them fit")(
        lambda *arguments: my_kept(*arguments[:-1], arguments[-1] - 1)),
    wrong("8.5", "C is taken for the capacity of an expert: it is that of a rank, for all of its experts together")(
        lambda experts, weights, protected, E, R, C: kept_and_safe(experts, weights, protected, C)),
    wrong("8.5", "C is taken for all ranks together: each rank takes C rows")(
        lambda experts, weights, protected, E, R, C: kept_and_safe(0 * experts, weights, protected, C)),
    wrong("8.5", "expert e is taken to live on rank e % R: rank r has the experts from r E/R on")(
        lambda experts, weights, protected, E, R, C: kept_and_safe(experts % R, weights, protected, C))]


@wrong("8.5", "it uses course_lib.expert_parallel")
def kept_by_the_library(experts, weights, protected, num_experts, num_ranks, capacity):
    from course_lib.expert_parallel import capacity_mask

    return capacity_mask(experts // (num_experts // num_ranks), num_ranks, capacity, weights)


def example_of_kept(inputs, answers):
    experts, weights, protected, E, R, C = inputs[0]
    kept = answers[0]["returned"].flatten().nonzero().flatten().tolist()
    return [
        f"experts {' '.join(map(str, experts.flatten().tolist()))} of four on two ranks",
        f"weights {' '.join(map(short, weights.flatten().tolist()))}, token {protected.nonzero().item()} protected",
        f"capacity {C}: tokens {kept[0]}, {kept[1]} and {kept[2]} are kept"]


KEPT_AS = [right("8.5", words)(lambda *asked, makes=makes: makes(my_kept(*asked))) for words, makes in (
    ("lists", torch.Tensor.tolist), ("an array of numpy", torch.Tensor.numpy), ("0 and 1", torch.Tensor.byte))]


TEXT_8_5 = [
    term("8.5", "a rank's capacity, not an expert's", "(experts * num_ranks // num_experts)", "experts"),
    term("8.5", "rank r has the experts from r E/R on", "experts * num_ranks // num_experts", "experts % num_ranks"),
    term("8.5", "protected rows are kept", "protected.repeat", "(protected & False).repeat"),
    term("8.5", "also where they are more than fit", "[:capacity]]] = True\n",
         "[capacity:]]] = False\n        kept[slots[key[slots].argsort(descending=True)[:capacity]]] = True\n"),
    term("8.5", "and take room", "torch.inf", "-torch.inf"),
    term("8.5", "the largest weights", "key = weights.", "key = -weights."),
    term("8.5", "as many as there is room left", "[:capacity]", "[:capacity - 1]"),
    term("8.5", "no more than capacity", "[:capacity]", "[:capacity + 1]"),
    example("8.5", example_of_kept)]


# ---- 8.6 my_placement
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


def place_by_sums(loads, num_ranks, num_slots, copies=None):
    """The largest first, where least is to do, over all batches together."""
    together = [sum(rows) for rows in zip(*loads)]
    copies = copies or [1] * len(together)
    ranks, rows = [[] for _ in range(num_ranks)], [0.0] * num_ranks
    for e in sorted(range(len(together)), key=lambda e: -together[e] / copies[e]):
        for _ in range(copies[e]):
            free = [r for r in range(num_ranks) if len(ranks[r]) < num_slots and e not in ranks[r]]
            if free:
                r = min(free, key=lambda r: rows[r])
                ranks[r].append(e)
                rows[r] += together[e] / copies[e]
    return ranks


@wrong("8.6", "a slot is free and the hottest expert has no copy: its rows would be shared out between both")
def placement_without_copies(loads, num_ranks, num_slots):
    return place_by_sums(loads, num_ranks, num_slots)


@wrong("8.6", "over all batches together the ranks have equally much, but experts that are hot in the same batch live "
       "on one rank. Everybody waits in every batch, so look at each")
def placement_by_sums(loads, num_ranks, num_slots):
    together, copies = [sum(rows) for rows in zip(*loads)], [1] * len(loads[0])
    for _ in range(num_ranks * num_slots - len(together)):
        hottest = max(range(len(together)), key=lambda e: together[e] / copies[e])
        copies[hottest] += 1
    return place_by_sums(loads, num_ranks, num_slots, copies)


@wrong("8.6", "experts, and 7 slots")
def placement_without_slots(loads, num_ranks, num_slots):
    """Where least is to do, as if every rank had room for all experts."""
    return place_by_sums(loads, num_ranks, len(loads[0]))


@wrong("8.6", "over all batches together the ranks have equally much, but experts that are hot in the same batch live "
       "on one rank. Everybody waits in every batch, so look at each")
def placement_in_order(loads, num_ranks, num_slots):
    E = len(loads[0])
    return [[(r * num_slots + i) % E for i in range(num_slots)] for r in range(num_ranks)]


@wrong("8.6", "times the mean, most of it for expert 14: place those with most rows first, always where least is to do")
def placement_dealt(loads, num_ranks, num_slots):
    E = len(loads[0])
    return [[(r + i * num_ranks) % E for i in range(num_slots)] for r in range(num_ranks)]


@wrong("8.6", "is on no rank")
def placement_of_the_hottest(loads, num_ranks, num_slots):
    together = [sum(rows) for rows in zip(*loads)]
    return [sorted(range(len(together)), key=lambda e: -together[e])[:num_slots] for _ in range(num_ranks)]


@wrong("8.6", "it uses course_lib.expert_parallel")
def placement_of_the_library(loads, num_ranks, num_slots):
    from course_lib.expert_parallel import place_experts

    return place_experts([sum(rows) for rows in zip(*loads)], num_ranks, num_ranks * num_slots)


PLACEMENT_IN_SETS = right("8.6", "a set of experts for each rank")(
    lambda *asked: [set(experts) for experts in my_placement(*asked)])


TEXT_8_6 = [
    term("8.6", "in every batch, not in their sum", "for load in loads))", "for load in [together]))"),
    term("8.6", "the busiest rank, not all of them", "sum(max(sum(load[e]", "sum(sum(sum(load[e]"),
    term("8.6", "hot ones get a second copy", "+= 1", "+= 0"),
    term("8.6", "free slots for those with most rows", "together[e] / copies[e])] += 1",
         "-together[e] / copies[e])] += 1"),
    term("8.6", "for each copy", "together[e] / copies[e])] += 1", "together[e])] += 1"),
    term("8.6", "copies share the rows", "load[e] / copies[e]", "load[e]"),
    term("8.6", "a second copy on the same rank is not allowed", "if a[i] in b or b[j] in a:", "if False:"),
    term("8.6", "so that nobody has more copies than there are ranks", "if copies[e] < num_ranks", ""),
    term("8.6", "at most num_slots", "num_ranks * num_slots - len(together)", "num_ranks * num_slots - len(loads)"),
    term("8.6", "each expert at least once", "pieces = [e for e in range(len(together))",
         "pieces = [e for e in range(len(together) - 1)"),
    example("8.6", lambda inputs, answers: (
        f"Four experts, two ranks of two slots, batches {inputs[0]['loads'][0]} and {inputs[0]['loads'][1]}: "
        f"{answers[0]} has score 1"))]


# ---- 8.7 my_expert_gradients
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


def average(experts, router, divisor, over, router_divisor=None, router_over=None):
    everyone = range(dist.get_world_size())
    for weight in experts:
        gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
        weight.grad = sum_over(gradient, over) / divisor
    router.grad = sum_over(router.grad, router_over or everyone) / (router_divisor or divisor)


def tokens_of(num_tokens, ranks=None):
    return sum_over(torch.tensor(float(num_tokens)), ranks or range(dist.get_world_size()))


@wrong("8.7", "the experts' gradients are too large: they are divided by the tokens of the ranks in `same`, but those "
       "of all ranks are in them: each held its ep ranks' before you added them up")
def gradients_divided_by_those_who_hold(experts, router, num_tokens, same):
    total = tokens_of(num_tokens)
    average(experts, router, tokens_of(num_tokens, same), same, router_divisor=total)


@wrong("8.7", "the experts' gradients are summed over all ranks, and most hold other experts: sum over `same`")
def gradients_over_all_ranks(experts, router, num_tokens, same):
    everyone = range(dist.get_world_size())
    average(experts, router, tokens_of(num_tokens), everyone)


@wrong("8.7", "each rank keeps its own experts' gradients: the ranks in `same` hold these experts too, and would take "
       "another step")
def gradients_of_experts_kept(experts, router, num_tokens, same):
    average(experts, router, tokens_of(num_tokens), [dist.get_rank()])


@wrong("8.7", "the router's gradient is summed over `same` only: every rank has the router, so sum over all")
def gradients_of_the_router_over_same(experts, router, num_tokens, same):
    average(experts, router, tokens_of(num_tokens), same, router_over=same)


@wrong("8.7", "each rank keeps its own experts' gradients, of the tokens that came to it: the ranks in `same` hold "
       "these experts too, and would take another step")
def gradients_of_those_who_came(experts, router, num_tokens, same):
    ep = dist.get_world_size() // len(same)
    first = dist.get_rank() // ep * ep
    average(experts, router, tokens_of(num_tokens, range(first, first + ep)), [dist.get_rank()],
            router_divisor=tokens_of(num_tokens))


GRADIENTS = [
    wrong("8.7", "everything is divided by R: what comes in are sums over each rank's tokens, so divide by the number "
          "of all tokens")(lambda experts, router, num_tokens, same: average(
              experts, router, dist.get_world_size(), same)),
    wrong("8.7", "everything is a sum over the tokens: their mean is trained, so divide by the number of all tokens")(
        lambda experts, router, num_tokens, same: average(experts, router, 1.0, same)),
    wrong("8.7", "each rank divides by its own tokens: one number divides everybody's gradients, that of all tokens")(
        lambda experts, router, num_tokens, same: average(experts, router, num_tokens, same)),
    wrong("8.7", "the router's gradient is divided by this rank's tokens: all ranks' tokens are in it")(
        lambda experts, router, num_tokens, same: average(
            experts, router, tokens_of(num_tokens), same, router_divisor=num_tokens)),
    wrong("8.7", "nobody has the router's gradients of the others: the sum over all ranks is asked")(
        lambda experts, router, num_tokens, same: average(
            experts, router, tokens_of(num_tokens), same, router_over=[dist.get_rank()])),
    wrong("8.7", "the experts' gradients are divided by the ranks that were added up, len(same): they are sums over "
          "all ranks' tokens, so divide by the number of these")(lambda experts, router, num_tokens, same: average(
              experts, router, len(same), same, router_divisor=tokens_of(num_tokens))),
    wrong("8.7", "the router's gradient is the mean over `same` only: every rank has the router, so sum over all")(
        lambda experts, router, num_tokens, same: average(
            experts, router, tokens_of(num_tokens), same, tokens_of(num_tokens, same), same))]


@wrong("8.7", "an expert to which no token came is left without a gradient: it takes part with zeros, and has the "
       "share of the others afterwards")
def gradients_without_zeros(experts, router, num_tokens, same):
    everyone = range(dist.get_world_size())
    total = tokens_of(num_tokens)
    for weight in experts:
        if weight.grad is not None:
            weight.grad = sum_over(weight.grad, same) / total
    router.grad = sum_over(router.grad, everyone) / total


@wrong("8.7", "gradients of experts that other ranks hold are sent, too: only those in `same` want these, so sum over "
       "`same`")
def gradients_of_all_experts_everywhere(experts, router, num_tokens, same):
    """Right, by one all-reduce of what all E experts have."""
    ep = dist.get_world_size() // len(same)
    own = torch.stack([torch.zeros_like(each) if each.grad is None else each.grad for each in experts])
    every = own.new_zeros(ep, *own.shape)
    every[dist.get_rank() % ep] = own
    dist.all_reduce(every)
    total = tokens_of(num_tokens)
    for weight, gradient in zip(experts, every[dist.get_rank() % ep]):
        weight.grad = gradient / total
    router.grad = sum_over(router.grad, range(dist.get_world_size())) / total


@wrong("8.7", "no new process group can be made here: send and receive reach any rank, alone and in batches")
def gradients_in_a_new_group(experts, router, num_tokens, same):
    ep = dist.get_world_size() // len(same)
    groups = [dist.new_group(list(range(first, dist.get_world_size(), ep))) for first in range(ep)]
    for weight in experts:
        weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
        dist.all_reduce(weight.grad, group=groups[dist.get_rank() % ep])
    average(experts, router, tokens_of(num_tokens), [dist.get_rank()])


@wrong("8.7", "it uses course_lib.expert_parallel")
def gradients_by_the_library(experts, router, num_tokens, same):
    from course_lib.expert_parallel import average_replicated_gradients

    average_replicated_gradients([router])


TEXT_8_7 = [
    term("8.7", "everybody's tokens", "sum_over(torch.tensor(float(num_tokens)), everyone)", "float(num_tokens)"),
    term("8.7", "tokens of all ranks, and not of `same`", "sum_over(torch.tensor(float(num_tokens)), everyone)",
         "sum_over(torch.tensor(float(num_tokens)), same)"),
    term("8.7", "the number of tokens, and not of ranks", "sum_over(torch.tensor(float(num_tokens)), everyone)",
         "len(everyone)"),
    term("8.7", "`same` hold the same experts", "sum_over(weight.grad, same)", "weight.grad"),
    term("8.7", "the others hold other ones", "sum_over(weight.grad, same)", "sum_over(weight.grad, everyone)"),
    term("8.7", "the router is on all", "sum_over(router.grad, everyone)", "sum_over(router.grad, same)"),
    term("8.7", ".grad None where no token came", "            weight.grad = torch.zeros_like(weight)\n",
         "            continue\n"),
    term("8.7", "the mean, of experts", "sum_over(weight.grad, same) / total", "sum_over(weight.grad, same)"),
    term("8.7", "and of the router", "sum_over(router.grad, everyone) / total", "sum_over(router.grad, everyone)"),
    example("8.7", lambda inputs, answers: [
        f"{inputs[0]['num_tokens']} and {inputs[1]['num_tokens']} tokens",
        "The experts' gradients, {} and {}, become {} and {}".format(
            *(short(rank["gradients"][0].item()) for rank in inputs),
            *(short(answer["experts"][0].item()) for answer in answers)),
        "The router's, {} and {}, become {} on both".format(
            *(listed(rank["router"].flatten().tolist()) for rank in inputs),
            *{listed(answer["router"].flatten().tolist()) for answer in answers})])]


# ---- 8.8 my_smallest_expert
WIDE = [
    right("8.8", "a Fraction")(lambda k, shared, m, G, out, home, C, W: (
        Fraction(m * (G - 1), G) * (out + home) * Fraction(C) / Fraction(W) / (6 * (k + shared)))),
    right("8.8", "both times of some width, a tensor")(lambda k, shared, m, G, out, home, C, W: (
        torch.tensor(m - m / G).double() * (out + home) * 4096 / W / ((k + shared) * 3 * 2 * 4096 / C))),
    right("8.8", "numpy's numbers")(lambda *case: numpy.float64(my_smallest_expert(*map(numpy.float64, case))))]
WIDTHS = [
    wrong("8.8", "a row for each expert is sent, where a token goes once to each of m nodes and is handed on")(
        lambda k, shared, m, *case: my_smallest_expert(k, shared, k, *case)),
    wrong("8.8", "shared experts are left out, which compute too while tokens travel")(
        lambda k, shared, *case: my_smallest_expert(k, 0, *case)),
    wrong("8.8", "no token stays at home, where its own node is one of its m with probability m/G, so that (G-1)/G of "
          "them are crossed to")(lambda *case: my_smallest_expert(*case) * case[3] / (case[3] - 1)),
    wrong("8.8", "an expert has two matrices, where here it has three: gate, up and down, of 2 D F FLOPs each")(
        lambda *case: my_smallest_expert(*case) * 6 / 4),
    wrong("8.8", "a product takes one FLOP for each number of the matrix, where it takes 2")(
        lambda *case: my_smallest_expert(*case) * 2),
    wrong("8.8", "computing is forward and backward, and sending forward only")(
        lambda *case: my_smallest_expert(*case) / 3),
    wrong("8.8", "both are forward and backward, three times the FLOPs and twice the bytes, where forward only is "
          "asked")(lambda *case: my_smallest_expert(*case) * 2 / 3),
    wrong("8.8", "only the longer of both ways is counted, where a rank's tokens go out and others' results home, one "
          "after the other")(
        lambda k, shared, m, G, out, home, *wires: my_smallest_expert(k, shared, m, G, max(out, home), 0, *wires)),
    wrong("8.8", "F is rounded, where the width at which both take equally long need not be a whole number")(
        lambda *case: round(my_smallest_expert(*case))),
    wrong("8.8", "F is rounded up, where the width at which both take equally long need not be a whole number")(
        lambda *case: math.ceil(my_smallest_expert(*case))),
    wrong("8.8", "one expert computes, where k + shared of them work on each token")(
        lambda k, shared, *case: my_smallest_expert(1, 0, *case)),
    wrong("8.8", "only the way out is counted, and results come home too")(
        lambda k, shared, m, G, out, home, *wires: my_smallest_expert(k, shared, m, G, out, 0, *wires)),
    wrong("8.8", "only the way home is counted, and tokens go out first")(
        lambda k, shared, m, G, out, home, *wires: my_smallest_expert(k, shared, m, G, 0, home, *wires)),
    wrong("8.8", "both ways have the bytes of the way out")(
        lambda k, shared, m, G, out, home, *wires: my_smallest_expert(k, shared, m, G, out, out, *wires)),
    wrong("8.8", "both ways have the bytes of the way home")(
        lambda k, shared, m, G, out, home, *wires: my_smallest_expert(k, shared, m, G, home, home, *wires)),
    wrong("8.8", "an eighth: a rank has one card, not the eight of its node, since the others send rows of their own "
          "over theirs at the same time (or bits were taken for bytes)")(
        lambda *case: my_smallest_expert(*case[:-1], 8 * case[-1])),
    wrong("8.8", "bytes were taken for bits, a factor of 8")(lambda *case: my_smallest_expert(*case) * 8)]
TEXT_8_8 = [
    term("8.8", "at most m nodes, once to each", "return m * (G", "return k * (G"),
    term("8.8", "its own node is one of its m with probability m/G", "(G - 1) / G", "1"),
    term("8.8", "goes out", "(out_bytes + home_bytes)", "home_bytes"),
    term("8.8", "and comes home", "(out_bytes + home_bytes)", "out_bytes"),
    term("8.8", "one after the other", "(out_bytes + home_bytes)", "max(out_bytes, home_bytes)"),
    term("8.8", "shared ones compute, too", "(k + shared)", "k"),
    term("8.8", "k of them", "(k + shared)", "(1 + shared)"),
    term("8.8", "three matrices", "(6 * (k", "(4 * (k"),
    term("8.8", "forward only", "(6 * (k", "(18 * (k"),
    term("8.8", "need not be a whole number", "flops_per_s / (6 * (k + shared) * bytes_per_s)",
         "flops_per_s // (6 * (k + shared) * bytes_per_s)"),
    example("8.8", lambda inputs, answers: [
        "k = {}, one shared, m = {}, G = {}, {} bytes out and {} home, {} FLOP/s, {} bytes/s".format(
            *inputs[0][:1], *inputs[0][2:]),
        f"so F = {short(answers[0]['value'])}"])]
