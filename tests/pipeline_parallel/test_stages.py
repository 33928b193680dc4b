"""partition cuts a model where the costliest stage is cheapest; I and W of a stage are its backward pass, split."""

import itertools

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from course_lib.pipeline_parallel import partition
from course_lib.pipeline_parallel.stages import backward_input, balanced_cuts, layer_costs
from course_lib.reference import GPT, GPTConfig
from course_lib.reference.gpt import Block

SMALL = GPTConfig(num_layers=4, hidden_size=16, num_heads=2, vocab_size=32, sequence_length=8)


@pytest.mark.parametrize("num_stages", [1, 2, 3, 4, 7])
def test_the_stages_together_are_the_model_with_its_names_and_its_own_parameters(num_stages):
    model = GPT(SMALL)
    stages = partition(model, num_stages)
    tokens = torch.randint(32, (2, 8))
    x = tokens
    for stage in stages:
        x = stage(x)
    assert torch.equal(x, model(tokens)[0])
    together = {name: value for stage in stages for name, value in stage.state_dict().items()}
    assert list(together) == list(model.state_dict())
    assert all(value.data_ptr() == model.state_dict()[name].data_ptr() for name, value in together.items())


def test_a_tied_matrix_is_named_on_both_of_its_stages_and_nothing_is_where_one_stage_has_it_all():
    first, middle, last = partition(GPT(SMALL), 3)
    assert first.shared == {"embedding.token.weight": "embedding.token.weight"}
    assert middle.shared == {}
    assert last.shared == {"head.weight": "embedding.token.weight"}
    assert partition(GPT(SMALL), 1)[0].shared == {}


def test_no_cut_has_a_cheaper_most_expensive_stage():
    generator = torch.Generator().manual_seed(0)
    for num_layers in range(1, 9):
        costs = torch.randint(1, 20, (num_layers,), generator=generator).tolist()
        for num_stages in range(1, num_layers + 1):
            def worst(cuts, costs=costs):
                ends = [*cuts[1:], len(costs)]
                return max(sum(costs[start:end]) for start, end in zip(cuts, ends))

            best = min(worst([0, *cuts]) for cuts in itertools.combinations(range(1, num_layers), num_stages - 1))
            cuts = balanced_cuts(costs, num_stages)
            assert worst(cuts) == best and len(cuts) == num_stages and cuts[0] == 0


def test_a_block_costs_its_matrices_and_attention_and_an_embedding_only_the_rows_it_looks_up():
    costs = layer_costs(GPT(SMALL))
    vectors = 13 * 16  # biases and norms of a block
    assert costs == [2 * 16, *[12 * 16**2 + vectors + 2 * 8 * 16] * 4, 2 * 16, 32 * 16]


def test_a_large_head_is_counted_so_that_the_last_stage_has_fewer_blocks():
    config = GPTConfig(num_layers=6, hidden_size=16, num_heads=2, vocab_size=2 * 12 * 16, sequence_length=8)
    blocks = [sum(isinstance(module, Block) for module in stage.modules()) for stage in partition(GPT(config), 2)]
    assert blocks == [4, 2]
    measured = partition(nn.Sequential(*(nn.Linear(2, 2) for _ in range(4))), 2, costs=[3, 1, 1, 1])
    assert [len(stage.layers) for stage in measured] == [1, 3]


@pytest.mark.parametrize("model, num_stages, costs, said", [
    (nn.Linear(2, 2), 2, None, "a Linear cannot be cut into stages: expected a GPT or an nn.Sequential"),
    (GPT(SMALL), 8, None, "num_stages=8: expected 1 to 7"),
    (nn.Sequential(nn.Tanh(), nn.Tanh()), 0, None, "num_stages=0: expected 1 to 2"),
    (nn.Sequential(nn.Tanh(), nn.Tanh()), 2, [1], "costs has 1 numbers for 2 layers: expected one for each of 0, 1")])
def test_what_cannot_be_cut_is_named(model, num_stages, costs, said):
    with pytest.raises(ValueError, match=said):
        partition(model, num_stages, costs=costs)


# I and W

class Gated(nn.Module):
    """Parameters used more than once, one that is not used, a branch with two outputs, and a way around all of it."""

    def __init__(self):
        super().__init__()
        self.scale, self.layer, self.unused = nn.Parameter(torch.randn(8)), nn.Linear(8, 16), nn.Linear(3, 3)

    def forward(self, x):
        a, b = self.layer(x * self.scale + self.scale).chunk(2, -1)
        return a * b.sigmoid() + x + self.scale.exp() * self.scale


def twice():
    layer, frozen = nn.Linear(8, 8), nn.Linear(8, 8)
    frozen.weight.requires_grad_(False)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), frozen, nn.ReLU(), layer)


STAGES = {"blocks": lambda: nn.Sequential(Block(SMALL), Block(SMALL)), "gated": Gated, "twice": twice,
          "no parameters": lambda: nn.Sequential(nn.Tanh()), "nothing": nn.Identity}


@pytest.mark.parametrize("kind", STAGES)
def test_i_and_w_together_are_the_backward_pass_and_i_alone_touches_no_parameter(kind):
    torch.manual_seed(0)
    stage = STAGES[kind]().double()
    x = torch.randn(2, 8, 16 if kind == "blocks" else 8, dtype=torch.float64)
    gradient = torch.randn_like(x)
    whole = x.clone().requires_grad_()
    stage(whole).backward(gradient)
    expected = {name: parameter.grad for name, parameter in stage.named_parameters()}
    stage.zero_grad()
    split = x.clone().requires_grad_()
    for_x, weights = backward_input(stage(split), gradient, split)
    assert all(parameter.grad is None for parameter in stage.parameters())
    weights()
    torch.testing.assert_close(for_x, whole.grad)
    for name, parameter in stage.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name])


def test_each_matrix_product_of_the_backward_pass_is_done_once_either_by_i_or_by_w():
    stage, x = nn.Sequential(Block(SMALL), Block(SMALL)), torch.randn(2, 8, 16).requires_grad_()
    output, loss = stage(x), stage(x).sum()
    with FlopCounterMode(display=False) as in_i:
        _, weights = backward_input(output, torch.ones_like(output), x)
    with FlopCounterMode(display=False) as in_w:
        weights()
    with FlopCounterMode(display=False) as whole:
        loss.backward()
    assert in_w.get_total_flops() == 2 * 2 * (2 * 8) * 12 * 16**2  # two blocks; 16 tokens by 12 h^2 weights
    assert in_i.get_total_flops() + in_w.get_total_flops() == whole.get_total_flops()
