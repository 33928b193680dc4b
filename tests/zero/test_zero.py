"""Sharded optimisers and sharded models take the steps of one process on the whole batch, and those of torch's own;
and what a reader may do between backward and step does what it does in one process, or is refused."""

import functools

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.runtime import launch
from course_lib.zero import FullyShardedDataParallel, ZeroOptimizer
from tests.data_parallel import cases
from tests.data_parallel.cases import MODELS, batch, make, mine
from tests.ranks import on_ranks
from tests.zero.cases import SMALL_BUCKETS_MB, STAGES, Run, difference, sharded, weights

FEW = ("Difficult", "Gpt")
RUNS = [(2, FEW, {"micro_batches": 2}), (3, tuple(MODELS), {"clip_to": 0.1}),
        (1, FEW, {"clip_to": 0.1}), (4, tuple(MODELS), {"clip_to": 0.1, "micro_batches": 2})]


@pytest.mark.sweep("run", few=RUNS[:2], all=RUNS, ids=lambda run: f"{run[0]} ranks", words="2 and 3 ranks of 1 to 4")
def test_five_adamw_steps_end_where_one_process_on_the_whole_batch_ends(run):
    world_size, kinds, how = run

    # In float64: the gradient of an attention's key bias is zero, and AdamW makes whole steps of its rounding errors,
    # which are others when a batch is cut. MixedDtypes has layers of both kinds.
    def body():
        for kind in kinds:
            alone = Run(kind, seed=0, steps=5, **how).alone()
            for stage in STAGES:
                off = difference(Run(kind, steps=5, **how).stage(stage), alone)
                assert off < (1e-6 if kind == "MixedDtypes" else 1e-12), (kind, stage)

    launch(body, world_size=world_size, timeout=120)


@pytest.mark.sweep("world_size", few=[3], all=[1, 2, 3, 4], words="3 ranks of 1 to 4")
def test_they_agree_with_fully_shard_and_with_zero_redundancy_optimizer(world_size):
    def body():
        how = {"micro_batches": 2, "clip_to": 0.1, "steps": 4}
        torchs = Run("Gpt", **how).torch_zero(), Run("Gpt", seed=0, **how).torch_fsdp()
        for stage in STAGES:
            ours = Run("Gpt", **how).stage(stage)
            assert max(difference(ours, theirs) for theirs in torchs) < 1e-12, stage

    launch(body, world_size=world_size)


MATRICES = {"should_shard": lambda _, module: isinstance(module, nn.Linear)}
WAYS = [(stage, {}) for stage in STAGES] + [
    (1, {"offload": True}), (2, {"offload": True}), (2, {"bucket_cap_mb": 25}), (3, {"offload": True, "prefetch": 0}),
    (3, {"prefetch": 3}), (3, {"reshard_after_forward": False}), (3, {"should_shard": lambda path, _: path == ""}),
    (3, MATRICES)]


@on_ranks(2)
def test_every_option_and_optimiser_gives_the_same_numbers():
    for optimizer, ways in (("AdamW", WAYS), ("SGD", WAYS[:3]), ("Adam", WAYS[:3])):
        alone = Run("Gpt", optimizer=optimizer, seed=0, steps=4, clip_to=0.1).alone()
        for stage, how in ways:
            run = Run("Gpt", optimizer=optimizer, steps=4, clip_to=0.1).stage(stage, **how)
            assert difference(run, alone) < 1e-12, (optimizer, stage, how)
            if how is MATRICES:  # what is in no unit is replicated, and counts once in the norm
                shapes = {name: tuple(p.shape) for name, p in run.sharded.module.named_parameters()}
    assert (shapes["gpt.norm.weight"], shapes["gpt.blocks.0.mlp.input.weight"]) == ((16,), (512,))


@on_ranks(2)
def test_parameter_groups_and_schedulers_work_as_in_torch():
    def run(make_optimizer, rows):
        model = make("Tied")
        optimizer = make_optimizer([{"params": model.first.parameters(), "lr": 1e-2},
                                    {"params": [model.second.bias, *model.last.parameters()], "weight_decay": 0.5}])
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
        for step in range(5):
            optimizer.zero_grad()
            model(*rows(batch("Tied", step))).backward()
            optimizer.step()
            scheduler.step()
        return model, [options["lr"] for options in optimizer.param_groups]

    alone, rates = run(functools.partial(torch.optim.AdamW, lr=3e-3), lambda whole: whole)
    for stage in (1, 2):
        model, ours = run(functools.partial(ZeroOptimizer, optimizer_class=torch.optim.AdamW, stage=stage, lr=3e-3),
                          mine)
        assert ours == rates and cases.difference(model, alone) < 1e-12


class Branches(nn.Module):
    """Parameters with a gradient, with one of zeros, with one of minus zeros, on one rank only, and with none; on rank
    2 the loss reaches no parameter at all."""

    def __init__(self):
        super().__init__()
        self.used, self.zeros, self.minus, self.rank_1, self.unused = (nn.Parameter(torch.ones(5)) for _ in range(5))

    def forward(self, x):
        if dist.get_rank() == 2:
            return x.sum()
        branch = self.rank_1 if dist.get_rank() == 1 else 1.0
        return (x * self.used + 0.0 * self.zeros + torch.full((5,), -0.0) * self.minus + branch).sum()


@on_ranks(3)
def test_a_parameter_with_a_gradient_of_zeros_decays_and_one_that_nobody_used_stays():
    for stage in STAGES:
        for optimizer, expected in ((torch.optim.AdamW, [0.8, 0.9, 0.9, 0.8, 1.0]),
                                    (torch.optim.SGD, [0.9 - 0.2 / 3, 0.9, 0.9, 0.9 - 0.1 / 3, 1.0])):
            model, optimizer = sharded(stage, Branches(), optimizer, lr=0.1, weight_decay=1.0)
            model(torch.ones(5, requires_grad=True)).backward()
            optimizer.step()
            assert [value.mean().item() for value in weights(model).values()] == pytest.approx(expected, abs=1e-5)


@on_ranks(2)
def test_weights_that_are_held_or_on_their_way_when_the_optimiser_steps_are_gathered_again():
    def losses(model, rows):
        """After each step, of three. Before it an evaluation before backward, and a forward pass without backward."""
        optimizer, found = torch.optim.SGD(model.parameters(), lr=0.5), []
        for step in range(3):
            optimizer.zero_grad()
            loss = model(*rows(batch("Gpt", step)))
            with torch.no_grad():
                model.eval()(*rows(batch("Gpt", step + 2)))
            loss.backward()
            model.train()(*rows(batch("Gpt", step + 1)))
            optimizer.step()
            with torch.no_grad():
                found += [model(*rows(batch("Gpt", step + 2))), model.eval()(*rows(batch("Gpt", step)))]
        return torch.stack(found)

    expected = losses(make("Gpt"), lambda whole: whole)
    for options in ({}, {"reshard_after_forward": False}, {"reshard_after_forward": False, "prefetch": 0}):
        ours = losses(FullyShardedDataParallel(make("Gpt"), **options), mine)
        dist.all_reduce(ours)
        assert (ours / 2 - expected).abs().max() < 1e-12


# Between backward and step

def steps(model, optimizer, rows, clear=None, between=None):
    """Three steps; `between(model, optimizer, loss)` before each step()."""
    for step in range(3):
        (clear or (lambda model, optimizer: optimizer.zero_grad()))(model, optimizer)
        model(*rows(batch("Tied", step))).backward()
        if between:
            between(model, optimizer, lambda step=step: model(*rows(batch("Tied", step + 10))))
        optimizer.step()
    return model


def halve_by_hand(model, *_):
    for parameter in model.parameters():
        parameter.grad = None if parameter.grad is None else parameter.grad / 2


@torch.no_grad()
def shrink_weights(model, *_):
    for parameter in model.parameters():
        parameter.mul_(0.9)


def drop_one(model, *_):
    model.last.bias.grad = None


def clip_and_go_on(model, optimizer, loss):
    optimizer.clip_grad_norm_(0.1)
    loss().backward()


CASES = {
    "module.zero_grad": (1, {"clear": lambda model, _: model.zero_grad()}),
    "zeros stay": (1, {"clear": lambda _, optimizer: optimizer.zero_grad(set_to_none=False)}),
    "changed by hand": (1, {"between": halve_by_hand}),
    "dropped by hand": (1, {"between": drop_one}),
    "weights changed by hand": (1, {"between": shrink_weights}),
    "weights changed by hand, masters follow": (2, {"between": shrink_weights}, {"offload": True}),
    "backward after clipping": (2, {"between": clip_and_go_on}),
    "zeros": (2, {"clear": lambda _, optimizer: optimizer.zero_grad(set_to_none=False)}),
}


@on_ranks(1, 2, 3)
def test_it_ends_where_one_process_ends_that_does_the_same():
    options = {"lr": 0.1, "momentum": 0.9}
    for case, (stage, what, *how) in CASES.items():
        alone = make("Tied")
        optimizer = torch.optim.SGD(alone.parameters(), **options)
        optimizer.clip_grad_norm_ = functools.partial(nn.utils.clip_grad_norm_, list(alone.parameters()))
        steps(alone, optimizer, lambda whole: whole, **what)
        how = {"bucket_cap_mb": SMALL_BUCKETS_MB, **(how[0] if how else {})}
        ours = steps(*sharded(stage, make("Tied"), torch.optim.SGD, how, **options), mine, **what)
        assert cases.difference(ours, alone) < 1e-12, case


@pytest.mark.parametrize("stage", [1, 2])
@on_ranks(2)
def test_a_backward_pass_that_broke_off_costs_stage_1_nothing_and_stage_2_its_place_among_the_others(stage):
    def breaks(_):
        raise OSError("no such file")

    layers = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])
    optimizer = ZeroOptimizer(layers.parameters(), torch.optim.SGD, stage, bucket_cap_mb=1e-5)
    hidden = layers[0](torch.ones(1, 4))
    hidden.register_hook(breaks)
    with pytest.raises(OSError, match="no such file"):
        layers[1:](hidden).sum().backward()
    for attempt in (optimizer.zero_grad, optimizer.step):
        if stage == 1:
            attempt()
        else:
            with pytest.raises(RuntimeError, match="out of step with the others"):
                attempt()
    dist.barrier()
