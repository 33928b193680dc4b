"""DistributedDataParallel takes the steps of one process on the whole batch, and those of torch's own; it sends the
gradients once and no byte more, while backward still runs; and it says what cannot work."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_lib.data_parallel import DistributedDataParallel, average_each
from course_lib.runtime import RankFailed, launch, record_communication, record_timeline, span
from tests.data_parallel.cases import MODELS, SMALL_BUCKETS_MB, WIDTH, adamw, batch, compare, difference, make, mine
from tests.groups.mistakes import answers
from tests.ranks import on_ranks


def gradient_bytes(model):
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)


def gradients_differ(a, b):
    pairs = [(p.grad, q.grad) for p, q in zip(a.parameters(), b.parameters()) if q.grad is not None]
    return max((p - q).abs().max().item() for p, q in pairs)


# Same numbers

@on_ranks(1, 2, 3, 4)
def test_five_adamw_steps_end_where_one_process_on_the_whole_batch_ends_and_where_torch_ends():
    # In float64: the gradient of an attention's key bias is zero, and AdamW makes whole steps of its rounding errors,
    # which are others when a batch is cut. At most two terms: no order to add them in, so the bits agree, too. With
    # three ranks or more the order depends on the place in the message, and torch's buckets hold another order.
    for kind in MODELS:
        to_one_process, to_torch, bits_as_torch = compare(kind, torch.float64)
        assert max(to_one_process, to_torch) < (1e-6 if kind == "MixedDtypes" else 1e-12), kind
        assert bits_as_torch or dist.get_world_size() > 2, kind
        if dist.get_world_size() == 2:
            to_one_process, _, bits_as_torch = compare(kind, torch.float32)
            assert bits_as_torch and (to_one_process < 1e-6 or kind == "Gpt"), kind


class Branches(nn.Module):
    """What the loss reaches: on rank 0 both parameters but `unused`, one of them times zero; on rank 1 one; then none.
    """

    def __init__(self):
        super().__init__()
        self.used, self.unused, self.zero = (nn.Parameter(torch.ones(2)) for _ in range(3))

    def forward(self, x):
        return (x * [self.used + 0 * self.zero, self.used, 1][dist.get_rank()]).sum()


@on_ranks(3)
def test_a_rank_takes_part_with_zeros_and_only_what_nobody_used_keeps_no_gradient():
    model = DistributedDataParallel(Branches())
    with record_communication() as log:
        model(torch.ones(2, requires_grad=True)).backward()
    found = model.module
    assert (found.used.grad.tolist(), found.unused.grad) == (pytest.approx([2 / 3] * 2), None)
    assert found.zero.grad.tolist() == [0, 0] and log.calls("all_reduce") == 1  # the sum says so itself


@on_ranks(2)
def test_gradients_of_earlier_backward_passes_are_added_to_as_in_one_process_and_one_that_was_kept_stays():
    model, alone = DistributedDataParallel(make("Tied")), make("Tied")
    for step in range(3):  # no zero_grad
        model(*mine(batch("Tied", step))).backward()
        alone(*batch("Tied", step)).backward()
        assert gradients_differ(model.module, alone) < 1e-12
    for one in (model, alone):
        one.zero_grad(set_to_none=False)
    losses = model(*mine(batch("Tied", 3))), alone(*batch("Tied", 3))
    for again in (True, False):
        for loss in losses:
            loss.backward(retain_graph=again)
        assert gradients_differ(model.module, alone) < 1e-12
    kept = model.module.first.weight.grad
    copy = kept.clone()
    model.zero_grad()
    model(*mine(batch("Tied", 1))).backward()
    assert torch.equal(kept, copy) and not torch.equal(model.module.first.weight.grad, copy)


@pytest.mark.parametrize("kind", ["Gpt", "Difficult"])  # of which the last micro-batch does not use every parameter
@on_ranks(1, 3)
def test_accumulation_communicates_once_and_equals_the_large_batch(kind):
    n, k = dist.get_world_size(), 4
    model, alone = DistributedDataParallel(make(kind)), make(kind)
    optimizers = adamw(model), adamw(alone)
    for start in range(0, 2 * k, k):
        with record_communication() as log:
            for step in range(start, start + k - 1):
                with model.no_sync():
                    (model(*mine(batch(kind, step))) / k).backward()
            (model(*mine(batch(kind, start + k - 1))) / k).backward()
        for step in range(start, start + k):
            (alone(*batch(kind, step)) / k).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert difference(model.module, alone) < 1e-12
    assert (log.calls(), n * log.sent_bytes) == (1, 2 * (n - 1) * gradient_bytes(alone))


@on_ranks(2)
def test_autocast_and_a_gradient_scaler_work_as_with_torch():
    ends = []
    for wrapper in (DistributedDataParallel, nn.parallel.DistributedDataParallel):
        model = wrapper(make("Tied", torch.float32))
        optimizer, scaler = adamw(model), torch.amp.GradScaler("cpu", init_scale=2.0**10)
        for step in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(*mine(batch("Tied", step, torch.float32)))
            if step == 2 and dist.get_rank() == 1:
                loss = loss * float("inf")  # on one rank; all must skip the step
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == 2.0**9 and all(p.isfinite().all() for p in model.parameters())
        ends.append(model.module)
    assert difference(*ends) == 0


@on_ranks(2)
def test_rank_0s_parameters_and_buffers_count_and_buffers_cost_nothing_under_no_sync_and_in_evaluation():
    torch.manual_seed(dist.get_rank())
    with record_communication() as log:
        model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH),
                                                      nn.Linear(WIDTH, 1).double()))
    assert log.calls("broadcast") == 3  # one message a dtype, and the count of batches
    for parameter in model.parameters():
        rank_0s = parameter.detach().clone()
        dist.broadcast(rank_0s, 0)
        assert torch.equal(parameter, rank_0s)
    model.module[2] = nn.Identity()
    for _ in range(2):
        model(torch.randn(4, WIDTH)).sum().backward()
    before, bias = model.module[1].running_mean.clone(), model.module[0].bias.detach()
    dist.broadcast(before, 0)
    with record_communication() as training:
        model(torch.zeros(4, WIDTH))
    with record_communication() as without:
        with model.no_sync():
            model(torch.zeros(4, WIDTH)).sum().backward()
        model.eval()
        model(torch.zeros(4, WIDTH))
    assert torch.allclose(model.module[1].running_mean, 0.9 * (0.9 * before + 0.1 * bias) + 0.1 * bias)
    assert (training.calls("broadcast"), without.calls()) == (2, 0)


# Same bytes, while backward runs

@on_ranks(1, 2, 3, 4)
def test_a_step_sends_the_gradients_by_the_formula_to_the_byte_and_nothing_else():
    n = dist.get_world_size()
    for kind in MODELS:
        model = DistributedDataParallel(make(kind), bucket_cap_mb=SMALL_BUCKETS_MB)
        with record_communication() as log:
            model(*mine(batch(kind, 0))).backward()
        assert log.calls() == log.calls("all_reduce") == len(model.buckets)
        assert n * log.sent_bytes == 2 * (n - 1) * gradient_bytes(model), kind


@pytest.mark.parametrize("naive, expected", [(False, (5, 6)), (True, (0, 12))])
@on_ranks(2)
def test_the_first_bucket_is_sent_before_backward_reaches_the_first_layer_and_the_naive_way_sends_none(naive, expected):
    def mark(_):
        with span("first layer"):
            pass

    module = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(6)])
    for parameter in module[0].parameters():
        parameter.register_post_accumulate_grad_hook(mark)
    model = module if naive else DistributedDataParallel(module, bucket_cap_mb=gradient_bytes(module[0]) / 2**20)
    with record_timeline() as timeline:
        model(torch.ones(2, WIDTH)).sum().backward()
        if naive:
            average_each(module.parameters())
    first = min(event.start_s for event in timeline.events if event.name == "first layer")
    sent = [event.start_s < first for event in timeline.events if event.name == "all_reduce"]
    assert (sum(sent), len(sent)) == expected


@on_ranks(4)
def test_a_group_of_some_ranks_averages_among_them():
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False), pairs[dist.get_rank() % 2])
    model(torch.full((1, 1), float(dist.get_rank()))).sum().backward()
    assert model.module.weight.grad.item() == 1 + dist.get_rank() % 2


# What goes wrong is said

@pytest.mark.parametrize("times, reentrant", [(1, True), (1, False), (2, False), (2, True)])
def test_checkpoints_work_and_what_cannot_is_refused(times, reentrant):
    """A layer used in two checkpoints, or in one."""
    def loss(layer, rank, **how):
        x = torch.full((2, WIDTH), rank + 1.0, requires_grad=True)
        for _ in range(times):
            x = checkpoint(lambda x: layer(x).tanh(), x, **how) if how else layer(x).tanh()
        return x.sum()

    def body():
        alone = nn.Linear(WIDTH, WIDTH)  # launch gives all ranks one seed
        model = DistributedDataParallel(nn.Sequential(copy.deepcopy(alone)))
        model.module.forward = lambda x: loss(model.module[0], dist.get_rank(), use_reentrant=reentrant)
        model(None).backward()
        (sum(loss(alone, rank) for rank in range(2)) / 2).backward()
        return gradients_differ(model.module, alone)

    if times == 2 and reentrant:
        with pytest.raises(RankFailed, match="0.* got a second gradient in one backward pass.*use_reentrant=False"):
            launch(body, world_size=2)
    else:
        assert max(launch(body, world_size=2)) < 1e-6


def test_a_mistake_is_answered_with_what_was_given_and_what_was_expected(snapshot):
    def body():
        r, linear = dist.get_rank(), nn.Linear(2, 2)
        frozen = nn.Linear(2, 2)
        frozen.bias.requires_grad_(False)
        thawed = DistributedDataParallel(frozen)
        frozen.bias.requires_grad_(True)
        sparse = DistributedDataParallel(nn.Embedding(4, 2, sparse=True))
        graph = DistributedDataParallel(nn.Linear(2, 2))
        wrong_hook = DistributedDataParallel(nn.Linear(2, 2), hook=lambda bucket: lambda: torch.zeros(1))
        x = torch.ones(1, 2)
        return answers({
            "not a module": lambda: DistributedDataParallel("model"),
            "no bucket": lambda: DistributedDataParallel(linear, bucket_cap_mb=0),
            "all frozen": lambda: DistributedDataParallel(nn.Linear(2, 2).requires_grad_(False)),
            "no hook": lambda: DistributedDataParallel(linear, hook="fp16"),
            "no group": lambda: DistributedDataParallel(linear, "world"),
            "other shape": lambda: DistributedDataParallel(nn.Linear(2, 2 + r)),
            "other buckets": lambda: DistributedDataParallel(nn.Linear(2, 2), bucket_cap_mb=1e-5 + r),
            "one more": lambda: DistributedDataParallel(nn.Sequential(*[nn.Linear(2, 2)] * (1 + r),
                                                               *[nn.Linear(2, 1)] * r)),
            "thawed": lambda: thawed(x),
            "sparse": lambda: sparse(torch.tensor([1])).sum().backward(),
            "graph": lambda: graph(x).square().sum().backward(create_graph=True),
            "hook's result": lambda: wrong_hook(x).sum().backward(),
            "out of step": lambda: wrong_hook(x),
        })

    first, second = launch(body, world_size=2)
    assert first == second == snapshot


@on_ranks(2)
def test_a_backward_that_fails_before_anything_was_sent_does_no_harm_to_the_next():
    model = DistributedDataParallel(nn.Linear(2, 1))
    loss = model(torch.full((1, 2), dist.get_rank() + 1.0)).sum()
    loss.backward()
    with pytest.raises(RuntimeError):
        loss.backward()
    model.zero_grad()
    model(torch.full((1, 2), dist.get_rank() + 1.0)).sum().backward()
    assert model.module.weight.grad.tolist() == [[1.5, 1.5]]
