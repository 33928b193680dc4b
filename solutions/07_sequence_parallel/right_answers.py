"""Right answers to the exercises of chapter 7 that nobody would think of first; tests/grading/test_answers.py has each
pass at ten seeds, in the names of the notebook beside this file.
"""
# ruff: noqa: F821

from fractions import Fraction

import numpy
import torch
import torch.distributed as dist

from tools.answers import right


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


@right("7.1", "a list of two")
def doors_in_a_list():
    return [two_ways(gather_by_broadcasts, scatter_by_reduce_scatter),
            two_ways(scatter_by_reduce_scatter, gather_by_broadcasts)]


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


def swap(tensor, to, source, like=None):
    arriving = torch.empty_like(tensor if like is None else like)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor.contiguous(), to),
                                        dist.P2POp(dist.irecv, arriving, source)]):
        work.wait()
    return arriving


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


RIGHT = [
    right("7.6", "a Fraction")(lambda n, h, f, H, K, t, sp: n * (Fraction(8 * h, t if sp else 1) + Fraction(
        4 * h + 4 * h * K // H + 4 * H + 8 * f, t))),
    right("7.6", "numpy's numbers")(lambda *asked: numpy.int64(my_layer_bytes(*asked))),
    right("7.8", "numpy's maximum")(lambda T, u, R, H, K, d, F, fast, slow: (
        (u - 1) / u * 4 * (H + K) * d * T / u / R / fast
        + numpy.array([numpy.maximum(2 * d * (T / R) ** 2 * H / u / F, 4 * d * K / u * T / R / slow)] * (R - 1)
                      + [2 * d * (T / R) ** 2 * H / u / F]).sum())),
    right("7.8", "step by step, a tensor")(lambda *asked: torch.tensor(played(*asked), dtype=torch.float64)),
]


def played(T, u, R, H, K, d, flops_per_s, fast, slow):
    computing, sending = (4 * d * (T / R) ** 2 / 2 * H / u / flops_per_s, 2 * 2 * d * K / u * T / R / slow)
    at = (u - 1) / u * 2 * (2 * H + 2 * K) * d * T / (u * R) / fast
    for _ in range(R - 1):
        at += max(computing, sending)
    return at + computing


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
