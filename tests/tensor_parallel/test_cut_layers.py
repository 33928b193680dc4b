"""Each layer in parts equals the whole one, begins with its slices, and keeps to its options."""

import itertools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_lib import tensor_parallel as tp
from course_lib.runtime import record_communication
from tests.ranks import on_ranks
from tests.tensor_parallel.cases import off

B, T = 2, 12


def piece(tensor, dim):
    return tensor.chunk(dist.get_world_size(), dim)[dist.get_rank()]


def inputs(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def agree(whole, cut, x):
    """Whether output and gradient of x are the same: of squares, summed."""
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    y, expected = cut(ours), whole(theirs)
    y.square().sum().backward()
    expected.square().sum().backward()
    return max(off(y, expected), off(ours.grad, theirs.grad)) < 1e-12


@on_ranks(3)
def test_a_new_layer_has_the_slices_of_the_unsplit_one_with_the_same_seed():
    for whole, cut, dims in [
        (lambda: nn.Linear(6, 12), lambda: tp.ColumnParallelLinear(6, 12), {"weight": 0, "bias": 0}),
        (lambda: nn.Linear(12, 6), lambda: tp.RowParallelLinear(12, 6), {"weight": 1}),
        (lambda: nn.Linear(12, 6, bias=False), lambda: tp.RowParallelLinear(12, 6, bias=False), {"weight": 1}),
        (lambda: nn.Embedding(12, 6), lambda: tp.VocabParallelEmbedding(12, 6), {"weight": 0}),
    ]:
        torch.manual_seed(3)
        expected = {key: piece(value, dims[key]) if key in dims else value
                    for key, value in whole().state_dict().items()}
        torch.manual_seed(3 + dist.get_rank())  # place 0's numbers count
        found = cut().state_dict()
        assert found.keys() == expected.keys() and all(torch.equal(found[key], expected[key]) for key in expected)


@on_ranks(1, 2, 3)
def test_columns_and_rows_equal_the_whole_matrix_where_they_take_and_return_all_of_it():
    """In parts: test_models.py."""
    whole, x = nn.Linear(6, 12).double(), inputs(B, T, 6)
    assert agree(whole, tp.ColumnParallelLinear.from_unsplit(whole, gather_output=True), x)
    cut = tp.RowParallelLinear.from_unsplit(whole, input_is_parallel=False)
    assert agree(whole, cut, x) and repr(cut) == f"RowParallelLinear(6 / {dist.get_world_size()}, 12, bias=True)"


@on_ranks(2)
def test_the_gradient_of_a_bias_after_dealt_out_tokens_is_a_part_until_it_is_summed():
    whole, x = nn.Linear(12, 6).double(), inputs(B, T, 12)
    cut = tp.RowParallelLinear.from_unsplit(whole, sequence_parallel=True)
    for layer, given in ((whole, x), (cut, piece(x, -1))):
        layer(given).square().sum().backward()
    assert off(cut.bias.grad, whole.bias.grad) > 0.01
    tp.sum_partial_gradients([cut.bias])
    assert off(cut.bias.grad, whole.bias.grad) < 1e-12


@on_ranks(3)
def test_an_embedding_in_parts_equals_the_whole_one_padding_included():
    for padding in (None, 7):
        whole = nn.Embedding(12, 6, padding_idx=padding).double()
        cut = tp.VocabParallelEmbedding.from_unsplit(whole)
        tokens = torch.arange(24).view(2, 12) % 12
        for layer in (whole, cut):
            layer(tokens).square().sum().backward()
        assert off(cut(tokens), whole(tokens)) < 1e-12
        assert off(cut.weight.grad, piece(whole.weight.grad, 0)) < 1e-12


LOSSES = [{"ignore_index": ignore, "label_smoothing": smoothing, "reduction": reduction}
          for ignore, smoothing, reduction in itertools.product((-100, 5), (0.0, 0.1, 1.0), ("mean", "sum", "none"))]


@on_ranks(1, 3)
def test_cross_entropy_of_logits_in_parts_equals_torchs_with_every_option():
    logits, targets = inputs(B, T, 12) * 5, torch.arange(B * T).view(B, T) % 12
    logits[0, 0] += 1e4  # overflows where the maximum is forgotten
    for (dtype, limit), how in itertools.product(((torch.float64, 1e-12), (torch.float32, 1e-5)), LOSSES):
        marked = targets.masked_fill(targets == 3, how["ignore_index"])
        ours, theirs = (x.detach().to(dtype).requires_grad_() for x in (piece(logits, -1), logits))
        loss = tp.vocab_parallel_cross_entropy(ours, marked, **how)
        expected = F.cross_entropy(theirs.flatten(0, 1), marked.flatten(), **how).view(loss.shape)
        for value in (loss, expected):
            (value * torch.arange(1.0, value.numel() + 1, dtype=dtype).view(value.shape)).sum().backward()
        assert max(off(loss, expected), off(ours.grad, piece(theirs.grad, -1))) < limit, (dtype, how)


@on_ranks(3)
def test_cross_entropy_sends_three_numbers_a_token_whatever_the_vocabulary_and_nothing_backward():
    for V, (smoothing, numbers) in itertools.product((12, 1200), ((0.0, 3), (0.1, 4))):
        logits, targets = inputs(B, T, V)[..., :V // 3].float().requires_grad_(), torch.ones(B, T).long()
        with record_communication() as log:
            loss = tp.vocab_parallel_cross_entropy(logits, targets, label_smoothing=smoothing)
        with record_communication() as backward:
            loss.backward()
        assert (log.calls("all_reduce"), log.message_bytes(), backward.calls()) == (3, numbers * B * T * 4, 0)


@on_ranks(2)
def test_all_targets_ignored_is_nan_as_in_torch_and_in_16_bits_the_sum_over_v_is_not_lost():
    assert tp.vocab_parallel_cross_entropy(inputs(3, 6), torch.full((3,), -100)).isnan()
    uniform = tp.vocab_parallel_cross_entropy(torch.zeros(2, 3000, dtype=torch.bfloat16), torch.tensor([0, 5999]))
    assert uniform.dtype == torch.bfloat16 and abs(uniform.item() - 8.6995) < 0.04  # log 6000


@on_ranks(2)
def test_under_autocast_a_layer_in_parts_computes_in_the_dtype_of_the_whole_one():
    whole, x = nn.Linear(8, 4), torch.randn(2, 4, 8)
    for cut in (tp.ColumnParallelLinear.from_unsplit(whole, gather_output=True),
                tp.RowParallelLinear.from_unsplit(whole, input_is_parallel=False)):
        with torch.autocast("cpu", torch.bfloat16):
            y, expected = cut(x), whole(x)
        y.sum().backward()
        assert y.dtype == expected.dtype and torch.allclose(y, expected, atol=0.05)
        assert cut.weight.grad.dtype == torch.float32


@on_ranks(2)
def test_half_of_the_layers_of_an_mlp_may_be_frozen_and_an_input_without_gradient_sends_nothing_back():
    column, row = tp.ColumnParallelLinear(4, 8), tp.RowParallelLinear(8, 4)
    column.weight.requires_grad_(False)
    with record_communication() as log:
        row(column(torch.ones(1, 2, 4))).sum().backward()
    assert log.calls() == 1 and column.weight.grad is None
    assert column.bias.grad is not None and row.weight.grad is not None
    y = row(column(torch.ones(0, 2, 4)))  # a batch may be empty
    y.sum().backward()
    assert y.shape == (0, 2, 4)


@on_ranks(2)
def test_a_backward_pass_for_x_alone_sends_its_gradient_and_one_for_the_weight_alone_nothing():
    column, x = tp.ColumnParallelLinear(4, 8), torch.ones(1, 2, 4, requires_grad=True)
    y = column(x).square().sum()
    expected = torch.autograd.grad(y, [x, column.weight], retain_graph=True)
    for wanted, gradient, calls in ((x, expected[0], 1), (column.weight, expected[1], 0)):
        with record_communication() as log:
            assert torch.equal(torch.autograd.grad(y, wanted, retain_graph=True)[0], gradient)
        assert log.calls() == calls
