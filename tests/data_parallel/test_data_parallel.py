"""DistributedDataParallel takes the steps of one process on the whole batch, and those of torch's own; it sends the
gradients once and no byte more, while backward still runs; and it says what cannot work."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_lib.data_parallel import DistributedDataParallel, average_each
from course_lib.runtime import RankFailed, launch, record_communication, record_timeline, span
from tests.data_parallel.cases import MODELS, SMALL_BUCKETS_MB, WIDTH, adamw, batch, compare, difference, make, mine
from tests.groups.mistakes import answers

WHOLE_MODEL_MB = 1  # one bucket


def gradient_bytes(model):
    return sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)


# Same numbers

@pytest.mark.parametrize("world_size, kinds", [(1, ("Tied", "Unused")), (2, MODELS), (3, MODELS),
                                               (4, ("UsedBySomeRows", "Gpt"))])
def test_five_adamw_steps_end_where_one_process_on_the_whole_batch_ends_and_where_torch_ends(world_size, kinds):
    # In float64: the gradient of an attention's key bias is zero, and AdamW makes whole steps of its rounding errors,
    # which are others when a batch is cut. At most two terms: no order to add them in, so the bits agree, too. With
    # three ranks or more the order depends on the place in the message, and torch's buckets hold another order.
    def body():
        return {kind: compare(kind, torch.float64) for kind in kinds}

    for of_rank in launch(body, world_size=world_size):
        for kind, found in of_rank.items():
            assert found.to_one_process < (1e-6 if kind == "MixedDtypes" else 1e-12), (kind, found)
            assert found.to_torch < (1e-6 if kind == "MixedDtypes" else 1e-12), (kind, found)
            assert found.bits_as_torch or world_size > 2, kind


def test_in_float32_two_ranks_agree_with_torch_to_the_bit_and_with_one_process_to_1e6():
    def body():
        return {kind: compare(kind, torch.float32) for kind in MODELS}

    for kind, found in launch(body, world_size=2)[0].items():
        assert found.bits_as_torch, kind
        assert found.to_one_process < 1e-6 or kind == "Gpt", (kind, found)


def test_a_rank_whose_loss_reaches_no_parameter_takes_part_with_zeros():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return (x * self.factor if dist.get_rank() == 0 else x).sum()

    def body():
        model = DistributedDataParallel(Scaled())
        model(torch.ones(3, requires_grad=True)).backward()
        return model.module.factor.grad

    assert [grad.tolist() for grad in launch(body, world_size=3)] == [pytest.approx([1 / 3] * 3)] * 3


def test_a_parameter_that_nobody_used_keeps_no_gradient_and_one_with_a_gradient_of_zeros_keeps_the_zeros():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused, self.zero = (nn.Parameter(torch.ones(2)) for _ in range(3))

        def forward(self, x):
            zero = self.zero if dist.get_rank() == 0 else self.zero.detach()
            return (x * self.used + 0 * zero).sum()

    def body():
        model = DistributedDataParallel(Branches())
        with record_communication() as log:
            model(torch.ones(2)).backward()
        parameters = model.module
        return parameters.used.grad, parameters.unused.grad, parameters.zero.grad, log.calls("all_reduce")

    for used, unused, zero, calls in launch(body, world_size=2):
        assert (used.tolist(), unused, zero.tolist(), calls) == ([1, 1], None, [0, 0], 1)  # the sum says so itself


def test_gradients_of_earlier_backward_passes_are_added_to_as_in_one_process():
    def body():
        model, alone, off = DistributedDataParallel(make("Tied")), make("Tied"), []

        def compare_gradients():
            pairs = zip(model.module.parameters(), alone.parameters())
            off.append(max((ours.grad - theirs.grad).abs().max().item() for ours, theirs in pairs))

        for step in range(3):  # no zero_grad
            model(*mine(batch("Tied", step))).backward()
            alone(*batch("Tied", step)).backward()
            compare_gradients()
        for one in (model, alone):
            one.zero_grad(set_to_none=False)
        losses = model(*mine(batch("Tied", 3))), alone(*batch("Tied", 3))
        for again in (True, False):
            for loss in losses:
                loss.backward(retain_graph=again)
            compare_gradients()
        return max(off)

    assert max(launch(body, world_size=2)) < 1e-12


def test_a_gradient_that_was_kept_from_the_last_step_stays_what_it_was():
    def body():
        model = DistributedDataParallel(make("Tied"))
        weight = model.module.first.weight
        model(*mine(batch("Tied", 0))).backward()
        kept, copy = weight.grad, weight.grad.clone()
        model.zero_grad()
        model(*mine(batch("Tied", 1))).backward()
        return torch.equal(kept, copy), torch.equal(weight.grad, copy)

    assert launch(body, world_size=2) == [(True, False)] * 2


@pytest.mark.parametrize("world_size", [1, 3])
def test_accumulation_communicates_once_and_equals_the_large_batch(world_size):
    def body(k):
        model, alone = DistributedDataParallel(make("Gpt"), bucket_cap_mb=WHOLE_MODEL_MB), make("Gpt")
        optimizers = adamw(model), adamw(alone)
        for start in range(0, 2 * k, k):
            with record_communication() as log:
                for step in range(start, start + k - 1):
                    with model.no_sync():
                        (model(*mine(batch("Gpt", step))) / k).backward()
                (model(*mine(batch("Gpt", start + k - 1))) / k).backward()
            for step in range(start, start + k):
                (alone(*batch("Gpt", step)) / k).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        n = dist.get_world_size()
        return difference(model.module, alone), log.calls(), log.sent_bytes - 2 * (n - 1) * gradient_bytes(alone) / n

    for off, calls, surplus in launch(body, 4, world_size=world_size):
        assert off < 1e-12 and (calls, surplus) == (1, 0)


def test_a_gradient_from_no_sync_counts_though_the_last_micro_batch_did_not_use_its_parameter():
    class Either(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))

        def forward(self, x, which):
            return (x * getattr(self, which)).sum()

    def body():
        model = DistributedDataParallel(Either())
        with model.no_sync():
            model(torch.full((2,), dist.get_rank() + 1.0), "a").backward()
        model(torch.ones(2), "b").backward()
        return model.module.a.grad.tolist(), model.module.b.grad.tolist()

    assert launch(body, world_size=2) == [([1.5, 1.5], [1.0, 1.0])] * 2


def test_autocast_and_a_gradient_scaler_work_as_with_torch():
    def body():
        off = []
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
            off.append((model.module, scaler.get_scale()))
        (ours, scale), (theirs, their_scale) = off
        return difference(ours, theirs), scale, their_scale, all(p.isfinite().all() for p in ours.parameters())

    assert launch(body, world_size=2) == [(0.0, 2.0**9, 2.0**9, True)] * 2


def test_rank_0s_buffers_arrive_before_a_forward_in_training_and_cost_nothing_under_no_sync_and_in_evaluation():
    def body():
        torch.manual_seed(dist.get_rank())
        model = DistributedDataParallel(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)))
        means = []
        for _ in range(2):
            model(torch.randn(4, WIDTH)).sum().backward()
            means.append(model.module[1].running_mean.clone())
        before = model.module[1].running_mean.clone()
        dist.broadcast(before, 0)
        with record_communication() as training:
            model(torch.zeros(4, WIDTH))
        with record_communication() as without:
            with model.no_sync():
                model(torch.zeros(4, WIDTH)).sum().backward()
            model.eval()
            model(torch.zeros(4, WIDTH))
        bias = model.module[0].bias.detach()
        expected = 0.9 * (0.9 * before + 0.1 * bias) + 0.1 * bias
        return torch.allclose(model.module[1].running_mean, expected), training.calls("broadcast"), without.calls()

    assert launch(body, world_size=2) == [(True, 2, 0)] * 2  # floats, and the count of batches


# Same bytes, while backward runs

@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_a_step_sends_the_gradients_by_the_formula_to_the_byte_and_nothing_else(world_size):
    def body():
        n, found = dist.get_world_size(), []
        for kind in ("Frozen", "Tied", "UsedTwice", "MixedDtypes", "Gpt"):
            model = DistributedDataParallel(make(kind), bucket_cap_mb=SMALL_BUCKETS_MB)
            with record_communication() as log:
                model(*mine(batch(kind, 0))).backward()
            assert log.calls() == log.calls("all_reduce") == len(model.buckets)
            found.append(log.sent_bytes * n - 2 * (n - 1) * gradient_bytes(model))
        return found

    assert launch(body, world_size=world_size) == [[0] * 5] * world_size


def test_parameters_and_buffers_are_broadcast_in_one_message_a_dtype():
    def body():
        torch.manual_seed(dist.get_rank())
        with record_communication() as log:
            model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3).double()))
        return log.calls("broadcast"), [p.detach() for p in model.parameters()]

    (calls, first), (_, second) = launch(body, world_size=2)
    assert calls == 3 and all(torch.equal(a, b) for a, b in zip(first, second))


def test_the_first_bucket_is_sent_before_backward_reaches_the_first_layer_and_the_naive_way_sends_none():
    def mark(_):
        with span("first layer"):
            pass

    def body(naive):
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
        return sum(sent), len(sent)

    for naive, expected in ((False, (5, 6)), (True, (0, 12))):
        assert launch(body, naive, world_size=2) == [expected] * 2


def test_buckets_hold_one_dtype_in_reverse_order_and_at_most_the_cap():
    def body():
        module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 100), nn.Linear(4, 4).double(), nn.Linear(4, 4))
        model = DistributedDataParallel(module, bucket_cap_mb=100 / 2**20)
        return [[model.names[p] for p in bucket.parameters] for bucket in model.buckets]

    assert launch(body, world_size=1)[0] == [["3.bias", "3.weight"], ["2.bias"], ["2.weight"], ["1.bias"], ["1.weight"],
                                             ["0.bias", "0.weight"]]


def test_a_group_of_some_ranks_averages_among_them():
    def body():
        pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        model = DistributedDataParallel(nn.Linear(1, 1, bias=False), pairs[dist.get_rank() % 2])
        model(torch.full((1, 1), float(dist.get_rank()))).sum().backward()
        return model.module.weight.grad.item()

    assert launch(body, world_size=4) == [1.0, 2.0, 1.0, 2.0]


# What goes wrong is said

class Checkpointed(nn.Module):
    """A layer used in two checkpoints, or in one."""

    def __init__(self, times, reentrant):
        super().__init__()
        self.layer, self.times, self.reentrant = nn.Linear(WIDTH, WIDTH), times, reentrant

    def forward(self, x):
        for _ in range(self.times):
            x = checkpoint(lambda x: self.layer(x).tanh(), x, use_reentrant=self.reentrant)
        return x.sum()


def test_checkpoints_work_and_what_cannot_is_refused():
    def body(times, reentrant):
        x = torch.full((2, WIDTH), dist.get_rank() + 1.0, requires_grad=True)
        model = DistributedDataParallel(Checkpointed(times, reentrant))
        model(x).backward()
        average = model.module.layer.weight.grad
        alone = Checkpointed(times, False)
        alone.load_state_dict(model.module.state_dict())
        loss = sum(alone(torch.full((2, WIDTH), rank + 1.0)) for rank in range(dist.get_world_size()))
        (loss / dist.get_world_size()).backward()
        return (average - alone.layer.weight.grad).abs().max().item()

    for times, reentrant in ((1, True), (1, False), (2, False)):
        assert max(launch(body, times, reentrant, world_size=2)) < 1e-6
    with pytest.raises(RankFailed, match="layer.* got a second gradient in one backward pass.*use_reentrant=False"):
        launch(body, 2, True, world_size=2)


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


def test_a_backward_that_fails_before_anything_was_sent_does_no_harm_to_the_next():
    def body():
        model = DistributedDataParallel(nn.Linear(2, 1))
        loss = model(torch.full((1, 2), dist.get_rank() + 1.0)).sum()
        loss.backward()
        try:
            loss.backward()
        except RuntimeError:
            model.zero_grad()
        model(torch.full((1, 2), dist.get_rank() + 1.0)).sum().backward()
        return model.module.weight.grad.tolist()

    assert launch(body, world_size=2) == [[[1.5, 1.5]]] * 2
