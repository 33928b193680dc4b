"""Compressed gradients: what each hook sends, what error feedback gives back, what it costs in loss. And the mean
of unequal batches."""


import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import compression
from course_lib import data_parallel as dp
from course_lib.runtime import record_communication
from tests.data_parallel.cases import WIDTH, batch, compare, make, normal
from tests.ranks import on_ranks


class Given(nn.Module):
    """Parameters whose gradients on this rank are the tensors given to forward."""

    def __init__(self, *shapes):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])

    def forward(self, *gradients):
        return sum((weight * gradient).sum() for weight, gradient in zip(self.weights, gradients))


def averaged(model, *gradients):
    """The gradients that DDP makes of these."""
    model.zero_grad()
    model(*gradients).backward()
    return [weight.grad.clone() for weight in model.module.weights]


# Every hook of the table

@on_ranks(1, 2, 3)
def test_each_hook_sends_what_its_row_says_and_all_ranks_get_the_same():
    shapes, n = ((20, 30), (300,), (3, 4, 50), (40, 50)), dist.get_world_size()
    for name, published in dp.HOOKS.items():
        model = dp.DistributedDataParallel(Given(*shapes), hook=published.make())
        generator = torch.Generator().manual_seed(dist.get_rank())
        with record_communication() as log:
            received = torch.cat([g.flatten() for g in averaged(model, *(normal(s, generator) for s in shapes))])
        assert log.sent_bytes == pytest.approx(published.sent_bytes(shapes, n)), name
        rank_0s = received.clone()
        dist.broadcast(rank_0s, 0)
        assert torch.equal(received, rank_0s) and published.source, name


@on_ranks(2)
def test_with_each_hook_an_infinite_gradient_is_handed_on_and_does_not_stay():
    ones = torch.ones(20, 30)
    for name, published in dp.HOOKS.items():
        model = dp.DistributedDataParallel(Given((20, 30)), hook=published.make())
        (bad,) = averaged(model, ones * (float("inf") if dist.get_rank() else 1))
        good = [averaged(model, ones)[0] for _ in range(2)][-1]
        assert not bad.isfinite().all() and good.isfinite().all(), name


@on_ranks(1, 2, 3)
def test_what_a_hook_gave_and_kept_adds_up_to_the_exact_average():
    made = [published.make() for published in dp.HOOKS.values()]
    hooks = [(dp.top_k_hook(1.0), True), (dp.power_sgd_hook(100), True),  # all numbers, or of a rank that no matrix has
             *((hook, False) for hook in made if hasattr(hook, "error"))]
    assert len(hooks) > 3
    for hook, is_exact in hooks:
        model = dp.DistributedDataParallel(Given((20, 30), 7, (3, 4, 5), ()), hook=hook)
        generator = torch.Generator().manual_seed(dist.get_rank())
        total, received = torch.zeros(668), torch.zeros(668)
        for _ in range(3):
            gradients = [normal(weight.shape, generator) for weight in model.module.weights]
            total += torch.cat([gradient.flatten() for gradient in gradients]) / dist.get_world_size()
            received += torch.cat([gradient.flatten() for gradient in averaged(model, *gradients)])
        held = model.hook.error[model.buckets[0]].clone()  # in the order of the bucket: reversed
        for summed in (total, held):
            dist.all_reduce(summed)
        sizes = [weight.numel() for weight in model.module.weights][::-1]
        kept = torch.cat([part.flatten() for part in held.split(sizes)][::-1])
        assert (received + kept - total).abs().max() < 1e-4 and (not held.any()) == is_exact


@on_ranks(2)
def test_no_hook_makes_the_host_wait_for_a_number_once_a_parameter():
    class Waits(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func is torch.ops.aten._local_scalar_dense.default)
            return func(*args, **(kwargs or {}))

    for name, published in dp.HOOKS.items():
        model = dp.DistributedDataParallel(Given(*[(20, 30)] * 9), hook=published.make())
        for _ in range(2):
            seen = []
            with Waits():  # backward of the CPU runs in this thread
                averaged(model, *[torch.ones(20, 30)] * 9)
            assert sum(seen) == 0 < len(seen), name


# Each hook by itself

@on_ranks(2)
def test_16_bit_hooks_round_to_their_precision():
    exact, off = normal(1000, torch.Generator().manual_seed(dist.get_rank())), []
    average = exact.clone()
    dist.all_reduce(average)
    for hook in (dp.fp16_hook, dp.bf16_hook):
        model = dp.DistributedDataParallel(Given(1000), hook=hook)
        (gradient,) = averaged(model, exact)
        off.append((gradient - average / 2).abs().max().item())
    assert 0 < off[0] < 4 * 2**-11 and off[0] < off[1] < 4 * 2**-8  # numbers up to 4


@on_ranks(2)
def test_top_k_sends_the_largest_error_feedback_the_rest_later_and_a_warm_up_everything():
    gradient = torch.zeros(8)
    gradient[2 * dist.get_rank()] = -8.0  # each rank has its own largest
    gradient[7] = 3.0
    model = dp.DistributedDataParallel(Given(8), hook=dp.top_k_hook(1 / 8))
    with record_communication() as log:
        assert averaged(model, gradient)[0].tolist() == [-4, 0, -4, 0, 0, 0, 0, 0]
    assert log.message_bytes() == 2 * 8  # one float32 and one int32
    assert averaged(model, torch.zeros(8))[0].tolist() == [0, 0, 0, 0, 0, 0, 0, 3]
    assert averaged(model, torch.zeros(8))[0].tolist() == [0] * 8
    model = dp.DistributedDataParallel(Given((20, 30)), hook=dp.top_k_hook(0.01, warm_up=2))
    gradient = torch.arange(600.0).reshape(20, 30) * (dist.get_rank() + 1)
    assert [averaged(model, gradient)[0].count_nonzero() for _ in range(3)] == [599, 599, 6]


@on_ranks(2)
def test_power_sgd_sends_two_thin_matrices_and_is_exact_for_a_gradient_of_that_rank():
    column, row, r = torch.arange(1.0, 21).unsqueeze(1), torch.arange(1.0, 31).unsqueeze(0), dist.get_rank()
    model = dp.DistributedDataParallel(Given((20, 30), 7), hook=dp.power_sgd_hook(rank=1))
    with record_communication() as log:
        matrix, vector = averaged(model, (r + 1) * column @ row, torch.full((7,), 2.0 * r))
    assert (matrix / (1.5 * column @ row) - 1).abs().max() < 1e-5 and vector.tolist() == [1.0] * 7
    assert log.message_bytes("all_reduce") == 4 * (20 + 30 + 7)
    assert averaged(model, torch.zeros(20, 30), torch.zeros(7))[0].abs().max() < 1e-3


@on_ranks(1)
def test_warm_start_approaches_the_best_approximation_of_a_gradient_that_stays():
    off = []
    for warm in (True, False):
        hook = dp.power_sgd_hook(rank=1)
        model = dp.DistributedDataParallel(Given((12, 12)), hook=hook)
        gradient = normal((12, 12), torch.Generator().manual_seed(0))
        for _ in range(60):
            hook.error.clear()  # only the warm start is looked at
            if not warm:
                hook.Q.clear()
            (given,) = averaged(model, gradient)
        U, S, Vh = torch.linalg.svd(gradient)
        off.append((given - S[0] * U[:, :1] @ Vh[:1]).norm() / S[0])
    assert off[0] < 0.05 < off[1]


@on_ranks(2)
def test_hooks_work_in_every_dtype_and_leave_parameters_alone_that_nobody_uses():
    for hook, least, most in ((lambda: dp.top_k_hook(1.0), 0, 1e-6), (lambda: dp.power_sgd_hook(50), 0, 1e-6),
                              (lambda: dp.fp16_hook, 1e-9, 0.1), (lambda: dp.bf16_hook, 1e-9, 0.1)):
        for kind in ("MixedDtypes", "Difficult"):
            assert least <= compare(kind, torch.float64, hook())[0] < most, kind


@pytest.mark.parametrize("hook, words, arguments", [
    (dp.top_k_hook, "expected the part of the numbers to send", [(0,), (1.5,), ("1%",)]),
    (dp.top_k_hook, "expected the steps that send everything", [(0.01, -1), (0.01, 1.5), (0.01, None)]),
    (dp.power_sgd_hook, "rank=0: expected the rank of the approximation", [(0,)])])
def test_a_hooks_mistakes_are_answered_with_what_was_expected(hook, words, arguments):
    for wrong in arguments:
        with pytest.raises(ValueError, match=words):
            hook(*wrong)


# What chapter 3 says of compression over several seeds rests on runs that differ in the hook alone

@on_ranks(2)
def test_momentum_is_kept_on_the_ranks_and_restarts_where_it_was_sent():
    model = dp.DistributedDataParallel(Given((4,)), hook=compression.MomentumCorrectedTopK(0.5, warm_up=0))
    first, second = (averaged(model, torch.tensor([8.0, 4.0, 2.0, 1.0]))[0].tolist() for _ in range(2))
    assert first == pytest.approx([0.8, 0.4, 0, 0])
    # what stayed behind moves by 0.9 of its momentum more: 0.2 + (0.9 · 0.2 + 0.1 · 2)
    assert second == pytest.approx([0.8, 0, 0.58, 0])


@pytest.mark.parametrize("seeds, steps", [(0, 120), (1, 20)])
def test_too_few_seeds_or_steps_are_refused(seeds, steps):
    with pytest.raises(ValueError, match="more than 20 steps"):
        compression.main(seeds, steps)


# The mean

@on_ranks(3)
def test_the_naive_averages_and_the_weighted_mean_of_unequal_batches_are_those_of_one_process():
    for average, total in ((None, None), (None, 12), (dp.average_each, 12), (dp.average_flat, None)):
        model, alone = make("Tied"), make("Tied")
        alone(*batch("Tied", 0)).backward()
        x, y = (tensor.split((1, 4, 7))[dist.get_rank()] for tensor in batch("Tied", 0))
        weight = dp.loss_weight(len(x), total=total)
        ((model if average else dp.DistributedDataParallel(model))(x, y) * weight).backward()
        if average:
            average(model.parameters())
        for a, b in zip(model.parameters(), alone.parameters()):
            assert b.grad is None or (a.grad - b.grad).abs().max() < 1e-12


@on_ranks(2)
def test_a_rank_without_rows_weighs_nothing_and_no_rows_at_all_is_refused():
    model = dp.DistributedDataParallel(nn.Linear(WIDTH, 1))
    x = torch.ones(3 * dist.get_rank(), WIDTH)
    out = model(x)
    loss = out.mean() if len(x) else (0 * out).sum()
    (loss * dp.loss_weight(len(x))).backward()
    assert model.module.weight.grad.tolist() == [[1.0] * WIDTH]
    with pytest.raises(ValueError, match="total=0 rows on all ranks, 0 of them here: expected at least one"):
        dp.loss_weight(0)
    with pytest.raises(ValueError, match="num_rows=-1: expected the number of rows"):
        dp.loss_weight(-1)
