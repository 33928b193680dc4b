"""A model that is cut computes what one process computes, and what torch's DTensors compute."""

import copy

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.utils.checkpoint import checkpoint

from course_lib.collectives import all_gather_along
from course_lib.reference import GPT, GPTConfig
from course_lib.runtime import launch
from course_lib.tensor_parallel import (
    Column,
    Entry,
    Row,
    Tokenwise,
    Vocabulary,
    full_state_dict,
    load_full_state_dict,
    parallelize,
)
from course_lib.tensor_parallel.dtensor import dtensor_gpt
from tests.tensor_parallel.cases import (
    HEADS,
    WAYS,
    D,
    LlamaLayer,
    T,
    batch,
    five_steps,
    make,
    off,
    one_pass,
    rotary,
    whole_gradients,
)

KINDS = ("GPT", "Llama", "GroupedLlama", "Difficult")


def kinds(world_size):
    return [kind for kind in KINDS if (kind, world_size) != ("GroupedLlama", 3)]


def above(found, limit):
    return {case: {name: value for name, value in of_case.items() if not value < limit[case[-1]]}
            for case, of_case in found.items() if any(not value < limit[case[-1]] for value in of_case.values())}


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_logits_loss_and_every_gradient_equal_those_of_one_process(world_size):
    def body():
        return {(kind, way, dtype): one_pass(kind, dtype, **how) for kind, dtype in
                [*((kind, torch.float64) for kind in kinds(world_size)), ("GPT", torch.float32)]
                for way, how in WAYS.items()}

    for of_rank in launch(body, world_size=world_size, timeout=120):
        assert above(of_rank, {torch.float64: 1e-10, torch.float32: 1e-5}) == {}


@pytest.mark.parametrize("world_size, cases", [
    (2, [("GPT", torch.float32), ("GroupedLlama", torch.float64), ("Difficult", torch.float64)]),
    (3, [("GPT", torch.float64)]),
])
def test_five_adamw_steps_with_clipping_end_where_one_process_ends(world_size, cases):
    def body():
        return {(kind, way, dtype): five_steps(kind, dtype, **WAYS[way]) for kind, dtype in cases
                for way in ("TP", "TP+SP")}

    for of_rank in launch(body, world_size=world_size, timeout=120):
        assert above(of_rank, {torch.float64: 1e-10, torch.float32: 1e-5}) == {}


def test_a_group_may_be_part_of_the_world():
    def body():
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        return {(way, torch.float64): one_pass("GPT", torch.float64, pairs[dist.get_rank() // 2], **how)
                for way, how in WAYS.items()}

    for of_rank in launch(body, world_size=4):
        assert above(of_rank, {torch.float64: 1e-10}) == {}


def slice_of(gradient):
    """What of it this rank has to have; torch leaves the sums of a norm's gradients to the optimiser."""
    if not isinstance(gradient, DTensor):
        return gradient
    return gradient.to_local() if gradient.placements[0].is_shard() else gradient.full_tensor()


def test_logits_loss_and_gradients_equal_those_of_torchs_dtensors():
    def differences(sequence_parallel):
        ours = parallelize(make("GPT"), None, sequence_parallel)
        theirs = dtensor_gpt(make("GPT"), None, sequence_parallel)
        tokens, targets = batch()
        logits, loss = ours(tokens, targets)
        loss.backward()
        with loss_parallel():
            their_logits, their_loss = theirs(tokens, targets)
            their_loss.backward()
        own = dict(ours.named_parameters())
        local = {name: slice_of(p.grad) for name, p in theirs.named_parameters()}
        return {"loss": off(loss, their_loss.full_tensor()), "logits": off(logits, their_logits.to_local()),
                **{name: off(own[name].grad, gradient) for name, gradient in local.items()}}

    for of_rank in launch(lambda: {(way, torch.float64): differences(way) for way in (False, True)}, world_size=2):
        assert above(of_rank, {torch.float64: 1e-10}) == {}


def test_one_block_takes_and_returns_whole_tensors_whatever_lies_between():
    def body():
        found = {}
        for way, how in WAYS.items():
            torch.manual_seed(0)
            alone = LlamaLayer().double()
            cut = parallelize(copy.deepcopy(alone), **how)
            xs = [torch.randn(2, T, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
                  for _ in range(2)]
            outputs = [layer(x, position_embeddings=rotary(T, D // HEADS, x)) for layer, x in zip((alone, cut), xs)]
            for output in outputs:
                output.square().sum().backward()
            expected, gradients = {name: p.grad for name, p in alone.named_parameters()}, whole_gradients(cut)
            found[way, torch.float64] = {"y": off(outputs[1], outputs[0]), "x": off(xs[1].grad, xs[0].grad)} | {
                name: off(gradients[name], expected[name]) for name in expected}
        return found

    for of_rank in launch(body, world_size=2):
        assert above(of_rank, {torch.float64: 1e-10}) == {}


class Step(torch.nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


class TheReaders(torch.nn.Module):
    """A model with names of its own, and a norm before the first layer."""

    def __init__(self):
        super().__init__()
        self.words, self.before = torch.nn.Embedding(48, 8), torch.nn.LayerNorm(8)
        self.steps = torch.nn.ModuleList(Step(torch.nn.LayerNorm(8), torch.nn.Linear(8, 32), torch.nn.GELU(),
                                              torch.nn.Linear(32, 8)) for _ in range(2))
        self.read = torch.nn.Linear(8, 48)

    def forward(self, tokens):
        x = self.before(self.words(tokens))
        for step in self.steps:
            x = step(x)
        return self.read(x)


def test_a_readers_own_model_is_cut_by_a_plan_of_a_few_lines():
    plan = {"words": Vocabulary(), "steps.0": Entry(), "steps.?.0": Tokenwise(), "steps.?.1": Column(),
            "steps.?.3": Row(), "read": Column(gather_output=True, last=True)}

    def body():
        found = {}
        for way, how in WAYS.items():
            torch.manual_seed(0)
            alone = TheReaders().double()
            cut = parallelize(copy.deepcopy(alone), plan=plan, **how)
            tokens, targets = batch()
            for model in (alone, cut):
                F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
            gradients = whole_gradients(cut)
            found[way, torch.float64] = {name: off(gradients[name], p.grad) for name, p in alone.named_parameters()}
        return found

    for of_rank in launch(body, world_size=2):
        assert above(of_rank, {torch.float64: 1e-10}) == {}


def test_a_state_dict_comes_out_as_it_went_in_at_any_number_of_ranks():
    def body():
        found = []
        for kind in kinds(dist.get_world_size()):
            states = [make(kind, seed=seed).state_dict() for seed in (0, 1)]
            model = make(kind)
            model.load_state_dict(states[1])
            cut = parallelize(model, sequence_parallel=True)
            out = full_state_dict(cut)
            load_full_state_dict(cut, states[0])
            for state, back in zip(states, (full_state_dict(cut), out)):
                found.append(list(back) == list(state) and all(torch.equal(back[name], state[name]) for name in state))
            if kind == "GPT":
                tied = cut.head.weight is cut.embedding.token.weight
                found.append(tied and out["head.weight"] is out["embedding.token.weight"])
        return found

    for world_size in (1, 2, 3, 4):
        assert all(all(of_rank) for of_rank in launch(body, world_size=world_size)), world_size


def test_a_copy_of_a_cut_model_has_its_mode_and_its_gradients_and_none_of_its_memory():
    def body():
        cut = parallelize(make("GPT").eval(), sequence_parallel=True)
        copied = copy.deepcopy(cut)
        for model in (cut, copied):
            model(*batch())[1].backward()
        with torch.no_grad():
            for parameter in cut.parameters():
                parameter.zero_()
        return not any(module.training for module in copied.modules()) and all(
            torch.equal(p.grad, q.grad) and q.abs().sum() > 0 for p, q in zip(cut.parameters(), copied.parameters()))

    assert launch(body, world_size=2) == [True, True]


# Dropout

def pattern(tensor):
    return tensor != 0


def masks(sequence_parallel):
    """On a rank: which masks of a pass in training are the same on all ranks, and what the ranks' embeddings are."""
    torch.manual_seed(dist.get_rank())  # parallelize makes the ranks agree
    model = parallelize(GPT(GPTConfig(2, D, HEADS, 48, T, dropout=0.5)), None, sequence_parallel)
    drawn = {}

    def attend(q, k, v, dropout_p):
        drawn[f"attention {len(drawn)}"] = pattern(F.dropout(torch.ones_like(q), dropout_p))
        return v

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Dropout):
            module.register_forward_hook(lambda _, inputs, out, name=name: drawn.update({name: pattern(out)}))
        if hasattr(module, "attend"):
            module.attend.attend = attend
    model(*batch())[1].backward()
    everyones = {name: all_gather_along(mask.unsqueeze(0).double(), 0) for name, mask in drawn.items()}
    common = torch.rand(1).item()
    return {name.split()[0]: bool((masks == masks[0]).all()) for name, masks in everyones.items()}, common


def test_masks_agree_where_ranks_hold_the_same_and_differ_where_they_hold_parts():
    (found, common), *others = launch(masks, False, world_size=2)
    assert found == {"embedding.dropout": True, "attention": False, "blocks.0.attention.dropout": True,
                     "blocks.0.mlp.dropout": True, "blocks.1.attention.dropout": True, "blocks.1.mlp.dropout": True}
    assert [other for _, other in others] == [common]
    (found, common), *others = launch(masks, True, world_size=2)
    assert found == {"embedding.dropout": True, "attention": False, "blocks.0.attention.dropout": False,
                     "blocks.0.mlp.dropout": False, "blocks.1.attention.dropout": False, "blocks.1.mlp.dropout": False}
    assert [other for _, other in others] == [common]


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_with_dropout_recomputing_a_block_gives_the_gradients_of_keeping_it_and_evaluation_draws_nothing(
        sequence_parallel):
    def body():
        found = []
        for again in (False, True):
            torch.manual_seed(0)
            model = parallelize(GPT(GPTConfig(2, D, HEADS, 48, T, dropout=0.5)).double(), None, sequence_parallel)
            torch.manual_seed(1)
            for block in model.blocks if again else []:
                forward = block.forward
                block.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=False)
            model(*batch())[1].backward()
            found.append([p.grad for p in model.parameters()])
        before = torch.get_rng_state()
        model.eval()(*batch())
        return all(torch.equal(a, b) for a, b in zip(*found)), torch.equal(before, torch.get_rng_state())

    assert launch(body, world_size=2) == [(True, True)] * 2
