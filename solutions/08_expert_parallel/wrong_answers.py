"""Wrong answers to the exercises of chapter 8, as learners write them; tests/test_exercises.py has each refused.

The imports and the solutions are those of the notebook beside this file, in whose names it runs.
"""
# ruff: noqa: F821

import math

import torch
import torch.distributed as dist

from tools.answers import wrong

NOTHING_LEADS_BACK = ("the forward pass is right, but nothing has a gradient: what is returned does not lead back to "
                      "the arguments")


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
            logits.sigmoid(), my_gate(logits, bias, k, num_groups, scale)[0], scale, total=1.0)),
]


@wrong("8.1", "it uses course_lib.expert_parallel")
def gate_of_the_library(logits, bias, k, num_groups, scale):
    from course_lib.expert_parallel import route

    chosen = route(logits, k, "sigmoid", bias=bias, num_groups=num_groups, top_groups=num_groups)
    return chosen.experts, scale * chosen.weights


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
        lambda tokens, experts, weights, *others: my_block_rows(tokens.detach(), experts, weights.detach(), *others)),
]


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
        lambda logits, k: balance_loss(logits, k, P=lambda f: by_rank(logits.sigmoid()))),
]


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
        lambda experts, weights, protected, E, R, C: kept_and_safe(experts % R, weights, protected, C)),
]


@wrong("8.5", "it uses course_lib.expert_parallel")
def kept_by_the_library(experts, weights, protected, num_experts, num_ranks, capacity):
    from course_lib.expert_parallel import capacity_mask

    return capacity_mask(experts // (num_experts // num_ranks), num_ranks, capacity, weights)


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
            experts, router, tokens_of(num_tokens), same, tokens_of(num_tokens, same), same)),
]


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
    wrong("8.8", "bytes were taken for bits, a factor of 8")(lambda *case: my_smallest_expert(*case) * 8),
]
