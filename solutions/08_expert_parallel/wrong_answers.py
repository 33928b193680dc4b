"""Wrong answers to the exercises of chapter 8, as learners write them; tests/test_exercises.py has each refused.

The imports and the solutions are those of the notebook beside this file, in whose names it runs.
"""
# ruff: noqa: F821

import torch
import torch.distributed as dist

from course_lib.grading.wrong_answers import wrong


def best_of_groups(by, k, num_groups):
    by = by.unflatten(1, (num_groups, -1))
    first = torch.arange(num_groups).unsqueeze(1) * by.shape[-1]
    return (by.topk(k // num_groups).indices + first).flatten(1)


def weighed(scores, experts, scale, total=None):
    chosen = scores.gather(1, experts)
    return experts, scale * chosen / (chosen.sum(1, keepdim=True) if total is None else total)


@wrong("8.1", "the bias is in the weights")
def gate_that_weighs_by_the_bias(logits, bias, k, num_groups, scale):
    scores = logits.sigmoid() + bias
    return weighed(scores, best_of_groups(scores, k, num_groups), scale)


@wrong("8.1", "the k best of all experts are chosen")
def gate_without_groups(logits, bias, k, num_groups, scale):
    scores = logits.sigmoid()
    return weighed(scores, (scores + bias).topk(k).indices, scale)


@wrong("8.1", "topk counts from 0 in each group")
def gate_that_stays_in_the_first_group(logits, bias, k, num_groups, scale):
    scores = logits.sigmoid()
    by = (scores + bias).unflatten(1, (num_groups, -1))
    return weighed(scores, by.topk(k // num_groups).indices.flatten(1), scale)


@wrong("8.1", "each group's weights are divided by their own sum")
def gate_with_a_sum_for_each_group(logits, bias, k, num_groups, scale):
    scores = logits.sigmoid()
    experts = best_of_groups(scores + bias, k, num_groups)
    chosen = scores.gather(1, experts).unflatten(1, (num_groups, -1))
    return experts, (scale * chosen / chosen.sum(-1, keepdim=True)).flatten(1)


@wrong("8.1", "are a softmax over the experts")
def gate_with_a_softmax(logits, bias, k, num_groups, scale):
    scores = logits.softmax(-1)
    return weighed(scores, best_of_groups(scores + bias, k, num_groups), scale)


@wrong("8.1", "the sum over all experts")
def gate_divided_by_everything(logits, bias, k, num_groups, scale):
    scores = logits.sigmoid()
    experts = best_of_groups(scores + bias, k, num_groups)
    return weighed(scores, experts, scale, scores.sum(1, keepdim=True))


@wrong("8.1", "nothing has a gradient")
def gate_without_a_gradient(logits, bias, k, num_groups, scale):
    with torch.no_grad():
        return my_gate(logits, bias, k, num_groups, scale)


@wrong("8.1", "it uses course_lib.expert_parallel")
def gate_of_the_library(logits, bias, k, num_groups, scale):
    from course_lib.expert_parallel import route

    chosen = route(logits, k, "sigmoid", bias=bias, num_groups=num_groups, top_groups=num_groups)
    return chosen.experts, scale * chosen.weights


def block_rows(tokens, experts, weights, padded_of, order_back=None, weigh=True, put=torch.Tensor.index_add):
    """Rows whose experts begin where padded_of(counts) says, and the way back."""
    flat, k = experts.flatten(), experts.shape[1]
    order = flat.argsort(stable=True)
    counts = flat.bincount(minlength=int(flat.max()) + 1)
    padded = padded_of(counts)
    place = torch.arange(len(flat)) + ((padded.cumsum(0) - padded) - (counts.cumsum(0) - counts))[flat[order]]
    rows = tokens.new_zeros(int(padded.sum()), tokens.shape[1]).index_copy(0, place, tokens[order // k])

    def back(y):
        scales = weights.flatten()[order if order_back is None else order_back].unsqueeze(1)
        return put(torch.zeros_like(tokens), 0, order // k, y[place] * scales if weigh else y[place])

    return rows, back


def up_to(block):
    return lambda counts: (counts + block - 1) // block * block


@wrong("8.2", "without a gap")
def rows_without_blocks(tokens, experts, weights, num_experts, block):
    return block_rows(tokens, experts, weights, lambda counts: counts)


@wrong("8.2", "gets another one")
def rows_with_one_block_more(tokens, experts, weights, num_experts, block):
    return block_rows(tokens, experts, weights, lambda counts: torch.where(counts > 0, counts // block + 1, 0) * block)


@wrong("8.2", "as many rows as the busiest one")
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


@wrong("8.2", "times the weight of another slot")
def rows_with_weights_as_they_were(tokens, experts, weights, num_experts, block):
    return block_rows(tokens, experts, weights, up_to(block), order_back=torch.arange(experts.numel()))


@wrong("8.2", "back leaves the weights out")
def rows_unweighed(tokens, experts, weights, num_experts, block):
    return block_rows(tokens, experts, weights, up_to(block), weigh=False)


@wrong("8.2", "keeps one of a token's k results")
def rows_put_and_not_added(tokens, experts, weights, num_experts, block):
    return block_rows(tokens, experts, weights, up_to(block), put=torch.Tensor.index_copy)


@wrong("8.2", "a matrix that says for each row and token")
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


@wrong("8.3", "a token is sent once for each of its experts")
def dispatch_of_k_rows(tokens, choices):
    goes = choices.view(len(tokens), dist.get_world_size(), -1).sum(-1)
    return dispatch(tokens, choices, goes)


@wrong("8.3", "theirs has all E columns")
def dispatch_of_all_choices(tokens, choices):
    return dispatch(tokens, choices, columns=lambda to, token: choices[token])


@wrong("8.3", "takes it for the order of the tokens")
def dispatch_home_unsorted(tokens, choices):
    return dispatch(tokens, choices, way_home=lambda home, token: torch.zeros_like(tokens).index_add(
        0, token.sort().values, home))


@wrong("8.3", "back keeps what one rank made")
def dispatch_home_overwritten(tokens, choices):
    def put(home, token):
        result = torch.zeros_like(tokens)
        for i, t in enumerate(token.tolist()):
            result[t] = home[i]
        return result

    return dispatch(tokens, choices, way_home=put)


@wrong("8.3", "every rank has all tokens")
def dispatch_of_everything(tokens, choices):
    return dispatch(tokens, choices, torch.ones(len(tokens), dist.get_world_size(), dtype=torch.int64))


@wrong("8.3", "over budget")
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


def balance_loss(logits, k, owner=None, parts=None, reduce=True, slots=None, P=None):
    R, E = dist.get_world_size(), logits.shape[1]
    parts = parts or R
    owner = owner or (lambda experts: experts // (E // parts))
    counts = owner(logits.topk(slots or k).indices).flatten().bincount(minlength=parts).double()
    if reduce:
        dist.all_reduce(counts)
    P = logits.softmax(-1).mean(0).view(parts, -1).sum(1) if P is None else P
    return parts * (counts / counts.sum() * P).sum()


@wrong("8.4", "this is the loss that balances experts")
def loss_of_experts(logits, k):
    return balance_loss(logits, k, parts=logits.shape[1])


@wrong("8.4", "f is this rank's")
def loss_of_own_tokens(logits, k):
    return balance_loss(logits, k, reduce=False)


@wrong("8.4", "all_reduce cuts the way back")
def loss_with_everybodys_scores(logits, k):
    R = dist.get_world_size()
    P = logits.softmax(-1).mean(0).view(R, -1).sum(1).detach()
    dist.all_reduce(P)
    return balance_loss(logits, k, P=P / R)


@wrong("8.4", "f counts the best expert of a token only")
def loss_of_the_first_choice(logits, k):
    return balance_loss(logits, k, slots=1)


@wrong("8.4", "R is left out")
def loss_without_r(logits, k):
    return my_balance_loss(logits, k) / dist.get_world_size()


@wrong("8.4", "add up those of a rank's experts before they travel")
def loss_with_counts_of_experts(logits, k):
    R, E = dist.get_world_size(), logits.shape[1]
    counts = logits.topk(k).indices.flatten().bincount(minlength=E).double()
    dist.all_reduce(counts)
    f = (counts / counts.sum()).view(R, -1).sum(1)
    return R * (f * logits.softmax(-1).mean(0).view(R, -1).sum(1)).sum()


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


@wrong("8.5", "C is shared out evenly over a rank's experts")
def kept_by_expert(experts, weights, protected, num_experts, num_ranks, capacity):
    safe = protected.unsqueeze(1)
    return kept(experts, weights + 2.0 * safe, capacity * num_ranks // num_experts) | safe


@wrong("8.5", "first come, first kept")
def kept_first_come(experts, weights, protected, num_experts, num_ranks, capacity):
    safe = protected.unsqueeze(1)
    return kept(experts // (num_experts // num_ranks), torch.zeros_like(weights) + safe, capacity) | safe


@wrong("8.5", "protected tokens are dropped like others")
def kept_without_protection(experts, weights, protected, num_experts, num_ranks, capacity):
    return kept(experts // (num_experts // num_ranks), weights, capacity)


@wrong("8.5", "protected rows are not counted")
def kept_with_protected_rows_on_top(experts, weights, protected, num_experts, num_ranks, capacity):
    safe = protected.unsqueeze(1)
    return kept(experts // (num_experts // num_ranks), weights - 2.0 * safe, capacity) | safe


@wrong("8.5", "rows of the smallest weights are kept")
def kept_the_smallest(experts, weights, protected, num_experts, num_ranks, capacity):
    safe = protected.unsqueeze(1)
    return kept(experts // (num_experts // num_ranks), -weights + 2.0 * safe, capacity) | safe


@wrong("8.5", "what is dropped is returned")
def kept_the_other_way_round(*arguments):
    return ~my_kept(*arguments)


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


@wrong("8.6", "the hottest expert has no copy")
def placement_without_copies(loads, num_ranks, num_slots):
    return place_by_sums(loads, num_ranks, num_slots)


@wrong("8.6", "experts that are hot in the same batch")
def placement_by_sums(loads, num_ranks, num_slots):
    together, copies = [sum(rows) for rows in zip(*loads)], [1] * len(loads[0])
    for _ in range(num_ranks * num_slots - len(together)):
        hottest = max(range(len(together)), key=lambda e: together[e] / copies[e])
        copies[hottest] += 1
    return place_by_sums(loads, num_ranks, num_slots, copies)


@wrong("8.6", "place those with most rows first")
def placement_in_order(loads, num_ranks, num_slots):
    E = len(loads[0])
    return [[(r * num_slots + i) % E for i in range(num_slots)] for r in range(num_ranks)]


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


def tokens_of(num_tokens, ranks):
    return sum_over(torch.tensor(float(num_tokens)), ranks)


@wrong("8.7", "they are divided by the tokens of the ranks in `same`")
def gradients_divided_by_those_who_hold(experts, router, num_tokens, same):
    total = tokens_of(num_tokens, range(dist.get_world_size()))
    average(experts, router, tokens_of(num_tokens, same), same, router_divisor=total)


@wrong("8.7", "most hold other experts")
def gradients_over_all_ranks(experts, router, num_tokens, same):
    everyone = range(dist.get_world_size())
    average(experts, router, tokens_of(num_tokens, everyone), everyone)


@wrong("8.7", "keeps its own experts' gradients")
def gradients_of_experts_kept(experts, router, num_tokens, same):
    average(experts, router, tokens_of(num_tokens, range(dist.get_world_size())), [dist.get_rank()])


@wrong("8.7", "the router's gradient is summed over `same` only")
def gradients_of_the_router_over_same(experts, router, num_tokens, same):
    average(experts, router, tokens_of(num_tokens, range(dist.get_world_size())), same, router_over=same)


@wrong("8.7", "everything is divided by R")
def gradients_divided_by_ranks(experts, router, num_tokens, same):
    average(experts, router, dist.get_world_size(), same)


@wrong("8.7", "an expert to which no token came")
def gradients_without_zeros(experts, router, num_tokens, same):
    everyone = range(dist.get_world_size())
    total = tokens_of(num_tokens, everyone)
    for weight in experts:
        if weight.grad is not None:
            weight.grad = sum_over(weight.grad, same) / total
    router.grad = sum_over(router.grad, everyone) / total


@wrong("8.7", "it uses course_lib.expert_parallel")
def gradients_by_the_library(experts, router, num_tokens, same):
    from course_lib.expert_parallel import average_replicated_gradients

    average_replicated_gradients([router])


def smallest_expert(k, shared, m, G, out_bytes, home_bytes, flops_per_s, bytes_per_s, stays=True, flops=6):
    away = (G - 1) / G if stays else 1
    return m * away * (out_bytes + home_bytes) * flops_per_s / (flops * (k + shared) * bytes_per_s)


@wrong("8.8", "a row for each expert is sent")
def smallest_expert_of_rows(k, shared, m, *case):
    return smallest_expert(k, shared, k, *case)


@wrong("8.8", "shared experts are left out")
def smallest_expert_without_shared(k, shared, *case):
    return smallest_expert(k, 0, *case)


@wrong("8.8", "no token stays at home")
def smallest_expert_of_all_tokens(*case):
    return smallest_expert(*case, stays=False)


@wrong("8.8", "an expert has two matrices")
def smallest_expert_of_two_matrices(*case):
    return smallest_expert(*case, flops=4)


@wrong("8.8", "only the way out is counted")
def smallest_expert_one_way(k, shared, m, G, out_bytes, home_bytes, *wires):
    return smallest_expert(k, shared, m, G, out_bytes, 0, *wires)
