"""Each layer in parts equals the whole one, begins with its slices, and keeps to its options."""

import copy
import itertools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_lib.collectives import all_gather_along
from course_lib.groups.membership import member
from course_lib.runtime import launch, record_communication
from course_lib.tensor_parallel import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    qkv_sections,
    sum_partial_gradients,
    vocab_parallel_cross_entropy,
)
from tests.tensor_parallel.cases import off

B, T = 2, 12


def piece(tensor, dim):
    return tensor.chunk(dist.get_world_size(), dim)[dist.get_rank()]


def inputs(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def both(whole, cut, x, y_of=lambda y: y, x_of=lambda x: x):
    """Differences of output and gradient of x between `whole` on x and `cut` on its part, each squared and summed."""
    ours = x_of(x).clone().requires_grad_()
    theirs = x.clone().requires_grad_()
    y, expected = cut(ours), whole(theirs)
    y.square().sum().backward()
    expected.square().sum().backward()
    return [off(y, y_of(expected)), off(ours.grad, x_of(theirs.grad))]


def test_a_new_layer_has_the_slices_of_the_unsplit_one_with_the_same_seed():
    def body():
        made = {}
        for name, whole, cut in [
            ("column", lambda: nn.Linear(6, 12), lambda: ColumnParallelLinear(6, 12)),
            ("row", lambda: nn.Linear(12, 6), lambda: RowParallelLinear(12, 6)),
            ("no bias", lambda: nn.Linear(12, 6, bias=False), lambda: RowParallelLinear(12, 6, bias=False)),
            ("vocabulary", lambda: nn.Embedding(12, 6), lambda: VocabParallelEmbedding(12, 6)),
        ]:
            torch.manual_seed(3)
            whole = whole()
            torch.manual_seed(3 + dist.get_rank())  # place 0's numbers count
            cut, dims = cut(), {"column": {"weight": 0, "bias": 0}, "row": {"weight": 1}, "no bias": {"weight": 1},
                                "vocabulary": {"weight": 0}}[name]
            made[name] = [torch.equal(value, piece(whole.state_dict()[key], dims[key]) if key in dims
                                      else whole.state_dict()[key]) for key, value in cut.state_dict().items()]
        return made

    for of_rank in launch(body, world_size=3):
        assert of_rank == {"column": [True, True], "row": [True, True], "no bias": [True], "vocabulary": [True]}


def test_columns_and_rows_equal_the_whole_matrix_with_every_option():
    def body():
        me, found = member(), {}
        for bias, dealt in itertools.product((True, False), (False, True)):
            whole, x, z = nn.Linear(6, 12, bias).double(), inputs(B, T, 6), inputs(B, T, 12)
            down = nn.Linear(12, 6, bias).double()
            tokens = (lambda y: piece(y, 1)) if dealt else (lambda y: y)
            for again in (False, True):
                cut = ColumnParallelLinear.from_unsplit(whole, sequence_parallel=dealt, gather_again=again)
                found["column", bias, dealt, again] = both(copy.deepcopy(whole), cut, x, lambda y: piece(y, -1), tokens)
            cut = RowParallelLinear.from_unsplit(down, sequence_parallel=dealt)
            alone = copy.deepcopy(down)
            found["row", bias, dealt] = both(alone, cut, z, tokens, lambda y: piece(y, -1))
            if bias:
                if dealt:
                    sum_partial_gradients([cut.bias])
                found["row's bias", dealt] = [off(cut.bias.grad, alone.bias.grad)]
            found["row's weight", bias, dealt] = [off(cut.weight.grad, piece(alone.weight.grad, 1))]
        whole, x = nn.Linear(6, 12).double(), inputs(B, T, 6)
        cut = ColumnParallelLinear.from_unsplit(whole, gather_output=True)
        found["gather_output"] = both(copy.deepcopy(whole), cut, x)
        cut = RowParallelLinear.from_unsplit(whole, input_is_parallel=False)
        found["input is whole"] = both(whole, cut, x)
        found["names"] = [float(repr(cut) != f"RowParallelLinear(6 / {me.n}, 12, bias=True)")]
        return found

    for world_size in (1, 2, 3):
        for of_rank in launch(body, world_size=world_size):
            assert {case: values for case, values in of_rank.items() if not max(values) < 1e-12} == {}


def test_a_fused_matrix_is_cut_in_each_of_its_sections():
    def body():
        me = member()
        fused = nn.Linear(4, 24)
        fused.weight.data[:] = torch.arange(24.0).unsqueeze(1)
        layer = ColumnParallelLinear.from_unsplit(fused, sections=qkv_sections(6, 3, 2), unit=2)
        cut = layer.cuts["weight"]
        return layer.weight[:, 0].tolist(), torch.equal(cut.join(layer.weight, me), fused.weight)

    expected = [[0, 1, 2, 3, 12, 13, 18, 19], [4, 5, 6, 7, 14, 15, 20, 21], [8, 9, 10, 11, 16, 17, 22, 23]]
    assert launch(body, world_size=3) == [(rows, True) for rows in expected]


def test_an_embedding_in_parts_equals_the_whole_one_padding_included():
    def body():
        found = {}
        for padding in (None, 7):
            whole = nn.Embedding(12, 6, padding_idx=padding).double()
            cut = VocabParallelEmbedding.from_unsplit(whole)
            tokens = torch.arange(24).view(2, 12) % 12
            for layer in (whole, cut):
                layer(tokens).square().sum().backward()
            found[padding] = [off(cut(tokens), whole(tokens)), off(cut.weight.grad, piece(whole.weight.grad, 0))]
        return found

    for of_rank in launch(body, world_size=3):
        assert max(max(values) for values in of_rank.values()) < 1e-12


LOSSES = [{"ignore_index": ignore, "label_smoothing": smoothing, "reduction": reduction}
          for ignore, smoothing, reduction in itertools.product((-100, 5), (0.0, 0.1, 1.0), ("mean", "sum", "none"))]


def test_cross_entropy_of_logits_in_parts_equals_torchs_with_every_option():
    def body():
        V, found = 12, {}
        logits, targets = inputs(B, T, V) * 5, torch.arange(B * T).view(B, T) % V
        logits[0, 0] += 1e4  # overflows where the maximum is forgotten
        for dtype in (torch.float64, torch.float32):
            for how in LOSSES:
                marked = targets.masked_fill(targets == 3, how["ignore_index"])
                ours, theirs = (x.detach().to(dtype).requires_grad_() for x in (piece(logits, -1), logits))
                loss = vocab_parallel_cross_entropy(ours, marked, **how)
                expected = F.cross_entropy(theirs.flatten(0, 1), marked.flatten(), **how).view(loss.shape)
                for value in (loss, expected):
                    (value * torch.arange(1.0, value.numel() + 1, dtype=dtype).view(value.shape)).sum().backward()
                found[dtype, str(how)] = (off(loss, expected), off(ours.grad, piece(theirs.grad, -1)))
        return found

    for world_size in (1, 3):
        for of_rank in launch(body, world_size=world_size):
            limit = {torch.float64: 1e-12, torch.float32: 1e-5}
            assert {case: values for case, values in of_rank.items() if not max(values) < limit[case[0]]} == {}


def test_cross_entropy_sends_three_numbers_a_token_whatever_the_vocabulary_and_nothing_backward():
    def body():
        found = []
        for V in (12, 1200):
            logits, targets = inputs(B, T, V)[..., :V // 3].float().requires_grad_(), torch.ones(B, T).long()
            with record_communication() as log:
                loss = vocab_parallel_cross_entropy(logits, targets)
            with record_communication() as backward:
                loss.backward()
            with record_communication() as smooth:
                vocab_parallel_cross_entropy(logits, targets, label_smoothing=0.1)
            found += [log.calls("all_reduce"), log.message_bytes(), backward.calls(), smooth.calls("all_reduce"),
                      smooth.message_bytes()]
        return found

    assert launch(body, world_size=3)[0] == [3, 3 * B * T * 4, 0, 3, 4 * B * T * 4] * 2


def test_all_targets_ignored_is_nan_as_in_torch_and_in_16_bits_the_sum_over_v_is_not_lost():
    def body():
        targets = torch.full((3,), -100)
        nothing = vocab_parallel_cross_entropy(inputs(3, 6), targets)
        logits = torch.zeros(2, 3000, dtype=torch.bfloat16)
        uniform = vocab_parallel_cross_entropy(logits, torch.tensor([0, 5999]))
        return nothing.isnan().item(), uniform.dtype, uniform.item()

    for is_nan, dtype, uniform in launch(body, world_size=2):
        assert is_nan and dtype == torch.bfloat16 and abs(uniform - 8.6995) < 0.04  # log 6000


def test_under_autocast_a_layer_in_parts_computes_in_the_dtype_of_the_whole_one():
    def body():
        whole, x = nn.Linear(8, 4), torch.randn(2, 4, 8)
        column = ColumnParallelLinear.from_unsplit(whole, gather_output=True)
        row = RowParallelLinear.from_unsplit(whole, input_is_parallel=False)
        with torch.autocast("cpu", torch.bfloat16):
            outputs = [layer(x) for layer in (whole, column, row)]
        for output in outputs[1:]:
            output.sum().backward()
        whole_output, *others = outputs
        return [y.dtype == whole_output.dtype and torch.allclose(y, whole_output, atol=0.05) for y in others], \
            [layer.weight.grad.dtype for layer in (column, row)]

    assert launch(body, world_size=2)[0] == ([True, True], [torch.float32, torch.float32])


def test_half_of_the_layers_of_an_mlp_may_be_frozen_and_an_input_without_gradient_sends_nothing_back():
    def body():
        column, row = ColumnParallelLinear(4, 8), RowParallelLinear(8, 4)
        column.weight.requires_grad_(False)
        with record_communication() as log:
            row(column(torch.ones(1, 2, 4))).sum().backward()
        return log.calls(), column.weight.grad, column.bias.grad is not None, row.weight.grad is not None

    assert launch(body, world_size=2) == [(1, None, True, True)] * 2


def test_a_backward_pass_for_x_alone_sends_its_gradient_and_one_for_the_weight_alone_nothing():
    def body():
        column = ColumnParallelLinear(4, 8)
        x = torch.ones(1, 2, 4, requires_grad=True)
        y, found = column(x).square().sum(), []
        for wanted in ([x], [column.weight], [x, column.weight]):
            with record_communication() as log:
                found.append((log, torch.autograd.grad(y, wanted, retain_graph=True)))
        (_, (dx,)), (_, (d_weight,)), (_, both) = found
        return [log.calls() for log, _ in found], torch.equal(dx, both[0]) and torch.equal(d_weight, both[1])

    assert launch(body, world_size=2) == [([1, 0, 1], True)] * 2


def test_a_batch_may_be_empty():
    def body():
        column, row = ColumnParallelLinear(4, 8), RowParallelLinear(8, 4)
        y = row(column(torch.ones(0, 2, 4)))
        y.sum().backward()
        return y.shape, all_gather_along(y, 0).shape, column.weight.grad.abs().sum().item()

    assert launch(body, world_size=2) == [((0, 2, 4), (0, 2, 4), 0.0)] * 2
