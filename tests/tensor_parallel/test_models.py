"""A model that is cut computes what one process computes, and what torch's DTensors compute."""

import copy
from collections import OrderedDict
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.utils.checkpoint import checkpoint

from course_lib import tensor_parallel as tp
from course_lib.collectives import all_gather_along
from course_lib.reference import GPT, GPTConfig
from course_lib.tensor_parallel.dtensor import dtensor_gpt
from tests.ranks import on_ranks
from tests.tensor_parallel import cases


def kinds(world_size):
    return [kind for kind in cases.MODELS if (kind, world_size) != ("GroupedLlama", 3)]


@on_ranks(1, 2, 3, 4, timeout=120)
def test_logits_loss_and_every_gradient_equal_those_of_one_process():
    n, rank = dist.get_world_size(), dist.get_rank()
    for way, how in cases.WAYS.items():
        for kind in kinds(n):
            cut = tp.parallelize(cases.make(kind, seed=rank), **how)  # place 0's numbers count
            assert not cases.wrong(cases.make(kind), cut, cases.one_pass), (kind, way)
        cut = tp.parallelize(cases.make("GPT", torch.float32), **how)
        assert not cases.wrong(cases.make("GPT", torch.float32), cut, cases.one_pass, limit=1e-5), way
        if n == 4:  # a group may be part of the world
            pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
            cut = tp.parallelize(cases.make("GPT", seed=rank % 2), pair, **how)
            assert not cases.wrong(cases.make("GPT"), cut, partial(cases.one_pass, group=pair)), way


@on_ranks(2, 3, timeout=120)
def test_five_adamw_steps_with_clipping_end_where_one_process_ends():
    for kind in ("GPT", "GroupedLlama", "Difficult") if dist.get_world_size() == 2 else ("GPT",):
        dtype, limit = (torch.float32, 1e-5) if dist.get_world_size() == 2 and kind == "GPT" else (torch.float64, 1e-10)
        for way in ("TP", "TP+SP"):
            cut = tp.parallelize(cases.make(kind, dtype), **cases.WAYS[way])
            assert not cases.far(*cases.five_steps(cases.make(kind, dtype), cut), limit), (kind, way)


def slice_of(gradient):
    """What of it this rank has to have; torch leaves the sums of a norm's gradients to the optimiser."""
    if not isinstance(gradient, DTensor):
        return gradient
    return gradient.to_local() if gradient.placements[0].is_shard() else gradient.full_tensor()


@on_ranks(2)
def test_logits_loss_and_gradients_equal_those_of_torchs_dtensors():
    for sequence_parallel in (False, True):
        ours = tp.parallelize(cases.make("GPT"), None, sequence_parallel)
        theirs = dtensor_gpt(cases.make("GPT"), None, sequence_parallel)
        logits, loss = ours(*cases.batch())
        loss.backward()
        with loss_parallel():
            their_logits, their_loss = theirs(*cases.batch())
            their_loss.backward()
        assert not cases.far({"loss": loss, "logits": logits, **{name: p.grad for name, p in ours.named_parameters()}},
                             {"loss": their_loss.full_tensor(), "logits": their_logits.to_local(),
                              **{name: slice_of(p.grad) for name, p in theirs.named_parameters()}})


class Step(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


def readers_own():
    """A model with names of its own, and a norm before the first layer."""
    steps = [Step(nn.LayerNorm(8), nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(2)]
    return nn.Sequential(OrderedDict(words=nn.Embedding(48, 8), before=nn.LayerNorm(8), steps=nn.Sequential(*steps),
                                     read=nn.Linear(8, 48)))


def mean_loss(model):
    tokens, targets = cases.batch()
    loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    loss.backward()
    return {"loss": loss}


def squares(layer):
    torch.manual_seed(1)
    x = torch.randn(2, cases.T, cases.D, dtype=torch.float64, requires_grad=True)
    y = layer(x, position_embeddings=cases.rotary(cases.T, cases.D // cases.HEADS, x))
    y.square().sum().backward()
    return {"y": y, "x": x.grad}


PLAN = {"words": tp.Vocabulary(), "steps.0": tp.Entry(), "steps.?.0": tp.Tokenwise(), "steps.?.1": tp.Column(),
        "steps.?.3": tp.Row(), "read": tp.Column(gather_output=True, last=True)}


@on_ranks(2)
def test_a_readers_own_model_is_cut_by_a_plan_of_a_few_lines_and_one_block_takes_and_returns_whole_tensors():
    for alone, run, plan in ((readers_own(), mean_loss, {"plan": PLAN}), (cases.LlamaLayer(), squares, {})):
        for way, how in cases.WAYS.items():
            alone = alone.double()
            alone.zero_grad()
            assert not cases.wrong(alone, tp.parallelize(copy.deepcopy(alone), **plan, **how), run), way


@on_ranks(1, 2, 3, 4)
def test_a_state_dict_comes_out_as_it_went_in():
    for kind in kinds(dist.get_world_size()):
        model = cases.make(kind)
        state = {name: value.clone() for name, value in model.state_dict().items()}
        cut = tp.parallelize(model, sequence_parallel=True)
        out = tp.full_state_dict(cut)
        assert list(out) == list(state) and all(torch.equal(out[name], state[name]) for name in state), kind
        if kind == "GPT":
            assert cut.head.weight is cut.embedding.token.weight
            assert out["head.weight"] is out["embedding.token.weight"]


@on_ranks(2)
def test_a_copy_of_a_cut_model_has_its_mode_and_its_gradients_and_none_of_its_memory():
    cut = tp.parallelize(cases.make("GPT").eval(), sequence_parallel=True)
    copied = copy.deepcopy(cut)
    for model in (cut, copied):
        model(*cases.batch())[1].backward()
    with torch.no_grad():
        for parameter in cut.parameters():
            parameter.zero_()
    assert not any(module.training for module in copied.modules())
    assert all(torch.equal(p.grad, q.grad) and q.abs().sum() > 0 for p, q in zip(cut.parameters(), copied.parameters()))


# Dropout

DROPS = GPTConfig(2, cases.D, cases.HEADS, 48, cases.T, dropout=0.5)


@pytest.mark.parametrize("sequence_parallel", [False, True])
@on_ranks(2)
def test_masks_agree_where_ranks_hold_the_same_and_differ_where_they_hold_parts(sequence_parallel):
    torch.manual_seed(dist.get_rank())  # parallelize makes the ranks agree
    model = tp.parallelize(GPT(DROPS), None, sequence_parallel)
    drawn = {}

    def attend(q, k, v, dropout_p):
        drawn["attention"] = F.dropout(torch.ones_like(q), dropout_p) != 0
        return v

    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda _, inputs, out, name=name: drawn.update({name: out != 0}))
        if hasattr(module, "attend"):
            module.attend.attend = attend
    model(*cases.batch())[1].backward()
    drawn["what is drawn afterwards"] = torch.rand(1)
    everyones = {name: all_gather_along(mask.unsqueeze(0).double(), 0) for name, mask in drawn.items()}
    of_blocks = [name for name in drawn if name.startswith("blocks.")]
    assert len(of_blocks) == 4
    assert {name: torch.equal(*masks) for name, masks in everyones.items()} == {
        "embedding.dropout": True, "attention": False, "what is drawn afterwards": True,
        **dict.fromkeys(of_blocks, not sequence_parallel)}


@pytest.mark.parametrize("sequence_parallel", [False, True])
@on_ranks(2)
def test_with_dropout_recomputing_a_block_gives_the_gradients_of_keeping_it_and_evaluation_draws_nothing(
        sequence_parallel):
    found = []
    for again in (False, True):
        torch.manual_seed(0)
        model = tp.parallelize(GPT(DROPS).double(), None, sequence_parallel)
        torch.manual_seed(1)
        for block in model.blocks if again else []:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        model(*cases.batch())[1].backward()
        found.append([p.grad for p in model.parameters()])
    before = torch.get_rng_state()
    model.eval()(*cases.batch())
    assert all(map(torch.equal, *found)) and torch.equal(before, torch.get_rng_state())
