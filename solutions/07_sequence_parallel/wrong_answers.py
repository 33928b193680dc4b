"""Wrong answers to the exercises of chapter 7, as learners write them; tests/test_exercises.py has each refused.

The imports and the solutions are those of the notebook beside this file, in whose names it runs.
"""
# ruff: noqa: F821

import torch
import torch.distributed as dist

from course_lib.grading.wrong_answers import wrong


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


def own(x):
    return x.chunk(dist.get_world_size(), 1)[dist.get_rank()]


def summed(x):
    """With an all-reduce: right, and twice the bytes."""
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return own(total).contiguous()


def padded(dy):
    """This rank's gradient among zeros."""
    t, r = dist.get_world_size(), dist.get_rank()
    return torch.cat([dy if i == r else torch.zeros_like(dy) for i in range(t)], 1)


@wrong("7.1", "backward of gather takes this rank's piece of this rank's gradient alone")
def gather_that_forgets_the_sum():
    return door(gathered, own), door(summed, gathered)


@wrong("7.1", "backward of scatter fills the other ranks' tokens with zeros")
def scatter_that_fills_with_zeros():
    return door(gathered, summed), door(summed, padded)


@wrong("7.1", "adds nothing up")
def scatter_that_cuts_only():
    return door(gathered, summed), door(own, gathered)


@wrong("7.1", "scatter makes the mean")
def scatter_that_averages():
    return door(gathered, summed), door(lambda h: summed(h) / dist.get_world_size(), gathered)


@wrong("7.1", "joined along dim 0")
def gather_along_the_batch():
    return door(lambda x: gathered(x, 0), summed), door(summed, gathered)


@wrong("7.1", "reduce_scatter sends half of what all_reduce does")
def doors_with_all_reduces():
    return door(gathered, summed), door(summed, gathered)


@wrong("7.1", "it uses course_lib.collectives")
def doors_of_the_library():
    from course_lib.collectives import gather_from_group, reduce_scatter_to_group

    return gather_from_group, reduce_scatter_to_group


def maximum(lse):
    highest = lse.clone()
    dist.all_reduce(highest, dist.ReduceOp.MAX)
    return highest


def total(tensor):
    tensor = tensor.clone()
    dist.all_reduce(tensor)
    return tensor


def merge(out, lse, highest):
    weight = (lse - highest).exp().unsqueeze(-1)
    sums = total(torch.cat([weight * out, weight], -1))
    return sums[..., :-1], sums[..., -1]


@wrong("7.2", "the plain mean of the ranks' results")
def merge_by_the_mean(out, lse):
    return total(out) / dist.get_world_size(), my_merged_attention(out, lse)[1]


@wrong("7.2", "not divided by the sum of the weights")
def merge_without_dividing(out, lse):
    highest = maximum(lse)
    values, weights = merge(out, lse, highest)
    return values, highest + weights.log()


@wrong("7.2", "the answer is not a number")
def merge_without_a_maximum(out, lse):
    values, weights = merge(out, lse, torch.zeros_like(lse))
    return values / weights[..., None], weights.log()


@wrong("7.2", "was not added to the logarithm again")
def merge_that_forgets_the_maximum(out, lse):
    values, weights = merge(out, lse, maximum(lse))
    return values / weights[..., None], weights.log()


@wrong("7.2", "lse is the largest of the ranks' lse")
def merge_with_the_largest_lse(out, lse):
    return my_merged_attention(out, lse)[0], maximum(lse)


@wrong("7.2", "add up on the way")
def merge_of_gathered_parts(out, lse):
    both = torch.cat([out, lse[..., None]], -1)
    parts = [torch.empty_like(both) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, both)
    lses = torch.stack([part[..., -1] for part in parts])
    weights = lses.softmax(0)[..., None]
    return sum(weight * part[..., :-1] for weight, part in zip(weights, parts)), lses.logsumexp(0)


def pieces(length, start=0):
    return torch.arange(start, start + length).chunk(2 * dist.get_world_size())


@wrong("7.3", "zigzag of the whole row")
def positions_in_one_zigzag(lengths):
    R, r = dist.get_world_size(), dist.get_rank()
    each = pieces(sum(lengths))
    return torch.cat([each[r], each[2 * R - 1 - r]])


@wrong("7.3", "every R-th token of the row")
def positions_striped(lengths):
    return torch.arange(sum(lengths))[dist.get_rank()::dist.get_world_size()]


@wrong("7.3", "contiguous pieces of the row")
def positions_contiguous(lengths):
    return torch.arange(sum(lengths)).chunk(dist.get_world_size())[dist.get_rank()]


@wrong("7.3", "Take 2R-1-r")
def positions_not_turned(lengths):
    R, r, start, own = dist.get_world_size(), dist.get_rank(), 0, []
    for length in lengths:
        own += [pieces(length, start)[r], pieces(length, start)[r + R]]
        start += length
    return torch.cat(own)


@wrong("7.3", "Positions are counted in the row")
def positions_in_the_document(lengths):
    R, r = dist.get_world_size(), dist.get_rank()
    return torch.cat([part for length in lengths for part in (pieces(length)[r], pieces(length)[2 * R - 1 - r])])


@wrong("7.3", "it uses course_lib.sequence_parallel")
def positions_of_the_library(lengths):
    from course_lib.sequence_parallel import local_positions

    return local_positions(sum(lengths))


def to_the_left(tensor):
    R, r = dist.get_world_size(), dist.get_rank()
    arriving = torch.empty_like(tensor)
    if R == 1:
        return arriving
    for request in dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, (r - 1) % R),
                                           dist.P2POp(dist.irecv, arriving, (r + 1) % R)]):
        request.wait()
    return arriving


def go_around(block, use, source, steps=0, shift=None):
    """R + steps uses; source(r, i) is said of the block in step i."""
    R, r = dist.get_world_size(), dist.get_rank()
    for step in range(R + steps):
        use(block, source(r, step) % R)
        if step < R + steps - 1:
            block = shift(block) if shift else to_the_right(block)()


@wrong("7.4", "the blocks come from the right: send to rank r + 1, so that")
def ring_the_other_way_round(block, use):
    go_around(block, use, lambda r, i: r + i, shift=to_the_left)


@wrong("7.4", "but their owners are not")
def ring_with_the_wrong_owners(block, use):
    go_around(block, use, lambda r, i: r + i)


@wrong("7.4", "source is the left neighbour")
def ring_where_all_comes_from_the_neighbour(block, use):
    go_around(block, use, lambda r, i: r - min(i, 1))


@wrong("7.4", "the last block is not used")
def ring_one_step_short(block, use):
    go_around(block, use, lambda r, i: r - i, steps=-1)


@wrong("7.4", "its own block R times")
def ring_that_keeps_its_block(block, use):
    for step in range(dist.get_world_size()):
        if dist.get_world_size() > 1:
            to_the_right(block)()
        use(block, (dist.get_rank() - step) % dist.get_world_size())


@wrong("7.4", "need not go home")
def ring_that_takes_the_block_home(block, use):
    R, r = dist.get_world_size(), dist.get_rank()
    for step in range(R):
        use(block, (r - step) % R)
        if R > 1:
            block = to_the_right(block)()


@wrong("7.4", "do not gather")
def ring_of_gathered_blocks(block, use):
    R, r = dist.get_world_size(), dist.get_rank()
    blocks = [torch.empty_like(block) for _ in range(R)]
    dist.all_gather(blocks, block)
    for step in range(R):
        use(blocks[(r - step) % R], (r - step) % R)


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


@wrong("7.5", "dropout has another mask in backward")
def recompute_with_other_masks(function, x):
    return recomputed(function, x, old_state=False)


@wrong("7.5", "the generator was left where the second run put it")
def recompute_that_leaves_the_old_state(function, x):
    return recomputed(function, x, put_back=False)


@wrong("7.5", "the gradients of the weights are missing")
def recompute_of_the_input_alone(function, x):
    return recomputed(function, x, weights=False)


@wrong("7.5", "the gradient that came in is ignored")
def recompute_without_dy(function, x):
    return recomputed(function, x, use_dy=False)


@wrong("7.5", "is kept for backward")
def recompute_nothing(function, x):
    return function(x)


@wrong("7.5", "it uses torch.utils.checkpoint")
def recompute_by_torch(function, x):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(function, x, use_reentrant=False)


def layer_bytes(n, h, f, H, K, t, cut_outside, cut_inside=True, kv=None, mlp=4):
    inside = 2 * (2 * h + 2 * h * (kv or K) / H + mlp * f) + 4 * H
    return n * (8 * h / (t if cut_outside else 1) + inside / (t if cut_inside else 1))


@wrong("7.6", "everything is divided by t")
def layer_bytes_all_divided(n, h, f, H, K, t, sequence_parallel):
    return layer_bytes(n, h, f, H, K, t, True)


@wrong("7.6", "with sequence parallelism each has a t-th")
def layer_bytes_without_sequence_parallelism(n, h, f, H, K, t, sequence_parallel):
    return layer_bytes(n, h, f, H, K, t, False)


@wrong("7.6", "k and v are taken to be as wide as q")
def layer_bytes_with_all_heads_of_k(n, h, f, H, K, t, sequence_parallel):
    return layer_bytes(n, h, f, H, K, t, sequence_parallel, kv=H)


@wrong("7.6", "nothing is divided by t")
def layer_bytes_undivided(n, h, f, H, K, t, sequence_parallel):
    return layer_bytes(n, h, f, H, K, t, False, False)


@wrong("7.6", "the MLP has 3 rows of f here")
def layer_bytes_without_silu(n, h, f, H, K, t, sequence_parallel):
    return layer_bytes(n, h, f, H, K, t, sequence_parallel, mlp=3)


def all_keys(k, v, positions):
    """Everybody's k and v (B, H, T, d), in the order of the ranks, and their positions."""
    return gathered(k, 2), gathered(v, 2), torch.cat(positions)


def attend(q, k, v, own, keys, visible=torch.ge, scale=None):
    scores = q @ k.mT * (scale or q.shape[-1] ** -0.5)
    return scores.masked_fill(~visible(own[:, None], keys), float("-inf")).softmax(-1).nan_to_num() @ v


def back_to_owners(dx):
    """Of the gradient of all tokens, the sum for this rank's."""
    t, r = dist.get_world_size(), dist.get_rank()
    return total(dx).chunk(t, 2)[r].contiguous()


def whole_ring(q, k, v, positions, back=back_to_owners, **changes):
    gather = door(lambda x: gathered(x, 2), back)
    return attend(q, gather(k), gather(v), positions[dist.get_rank()], torch.cat(positions), **changes)


@wrong("7.7", "its own keys only")
def ring_attention_alone(q, k, v, positions):
    mine = positions[dist.get_rank()]
    return attend(q, k, v, mine, mine)


@wrong("7.7", "nothing is masked")
def ring_attention_without_a_mask(q, k, v, positions):
    return whole_ring(q, k, v, positions, visible=lambda own, keys: torch.ones_like(own >= keys))


@wrong("7.7", "a token does not read itself")
def ring_attention_of_earlier_tokens(q, k, v, positions):
    return whole_ring(q, k, v, positions, visible=torch.gt)


@wrong("7.7", "for contiguous pieces of the row")
def ring_attention_masked_as_contiguous(q, k, v, positions):
    c = q.shape[2]
    return whole_ring(q, k, v, list(torch.arange(len(positions) * c).split(c)))


@wrong("7.7", "are not divided by the root of d")
def ring_attention_unscaled(q, k, v, positions):
    return whole_ring(q, k, v, positions, scale=1.0)


@wrong("7.7", "the gradients of k and v are this rank's part")
def ring_attention_that_keeps_gradients(q, k, v, positions):
    t, r = dist.get_world_size(), dist.get_rank()
    return whole_ring(q, k, v, positions, back=lambda dx: dx.chunk(t, 2)[r].contiguous())


@wrong("7.7", "the gradients of k and v are another rank's")
def ring_attention_with_gradients_of_the_neighbour(q, k, v, positions):
    def one_too_far(dx):
        return to_the_left(back_to_owners(dx)) if dist.get_world_size() > 1 else back_to_owners(dx)

    return whole_ring(q, k, v, positions, back=one_too_far)


@wrong("7.7", "fits")
def ring_attention_with_all_keys(q, k, v, positions):
    def reduce_scattered(dx):
        pieces = [piece.contiguous() for piece in dx.chunk(dist.get_world_size(), 2)]
        mine = torch.empty_like(pieces[0])
        dist.reduce_scatter(mine, pieces)
        return mine

    return whole_ring(q, k, v, positions, back=reduce_scattered)


@wrong("7.7", "it uses course_lib.sequence_parallel")
def ring_attention_of_the_library(q, k, v, positions):
    from course_lib.sequence_parallel import ring_attention

    return ring_attention(q, k, v)


def attention_seconds(T, u, R, H, K, d, flops_per_s, fast, slow, pairs=0.5, heads=None, together=max, steps=-1):
    switching = (u - 1) / u * 2 * (2 * H + 2 * K) * d * T / (u * R) / fast
    computing = 4 * d * (T / R) ** 2 * pairs * H / u / flops_per_s
    sending = 2 * 2 * d * (heads or K / u) * T / R / slow
    return switching + (R + steps) * together(computing, sending) + (computing if steps else 0)


@wrong("7.8", "computing and sending are added up")
def attention_seconds_one_after_the_other(*case):
    return attention_seconds(*case, together=lambda computing, sending: computing + sending)


@wrong("7.8", "sending is left out")
def attention_seconds_without_the_ring(*case):
    return attention_seconds(*case, together=lambda computing, sending: computing)


@wrong("7.8", "half of them are hidden")
def attention_seconds_of_all_pairs(*case):
    return attention_seconds(*case, pairs=1.0)


@wrong("7.8", "nothing travels in the last step")
def attention_seconds_of_r_messages(*case):
    return attention_seconds(*case, steps=0)


@wrong("7.8", "a block has K heads of k and v")
def attention_seconds_with_all_heads_in_the_ring(T, u, R, H, K, *case):
    return attention_seconds(T, u, R, H, K, *case, heads=H / u)
