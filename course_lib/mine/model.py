"""What a rank has of the model: its layers, and of them its heads, its features and its rows of the vocabulary.

    tp   parts of matrices, sums between them    5.1 5.4 5.5    Shoeybi et al. 2019
    cp   tokens of each row, attention           7.3 7.7        Liu et al. 2023
    pp   layers                                  4.1            Huang et al. 2019

    B rows of T tokens      D hidden size      F features      H heads      V vocabulary      t, c  ranks of tp, cp
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.collectives import all_gather_along, copy_to_group, reduce_from_group
from course_lib.groups.membership import Member
from course_lib.mine.holes import hole
from course_lib.pipeline_parallel import Stage
from course_lib.pipeline_parallel.stages import balanced_cuts, layer_costs, layers_of
from course_lib.reference import GPT, GPTConfig
from course_lib.sequence_parallel import local_positions
from course_lib.tensor_parallel import vocab_parallel_cross_entropy

Door = Callable[[Tensor], Tensor]  # what x goes through before a matrix, or behind it
same = nn.Identity()


# tp: parts of matrices

@hole("5.1")
def my_f_and_g(among: Member) -> tuple[Door, Door]:
    """f passes x on and adds up its gradient; g adds up x and passes its gradient on."""
    return partial(copy_to_group, group=among), partial(reduce_from_group, group=among)


@hole("5.4")
def my_qkv_rows(weight: Tensor, H: int, K: int, among: Member) -> Tensor:
    """This rank's heads of q | k | v: (3 D, N) -> (3 D/t, N). For K = H."""
    return torch.cat([third.chunk(among.n)[among.r] for third in weight.chunk(3)])


@hole("5.5")
def my_vocab_loss(logits: Tensor, targets: Tensor, c: float, among: Member) -> tuple[Tensor, Tensor]:
    """logits (B, T, V/t), targets (B, T) -> the loss, and its gradient (B, T, V/t). For c = 0, without z-loss."""
    with torch.enable_grad():
        logits = logits.detach().requires_grad_()
        loss = vocab_parallel_cross_entropy(logits, targets, among)
    return loss.detach(), *torch.autograd.grad(loss, logits)


def own(numbers: Tensor) -> nn.Parameter:
    """A parameter of these numbers alone, a slice along tp."""
    parameter = nn.Parameter(numbers.detach().clone())
    parameter.kind = "split"
    return parameter


class SplitLinear(nn.Module):
    """Some of the outputs, x (B, T, D) -> (B, T, F/t), behind `before`; or some of the inputs, with `behind` after."""

    def __init__(self, weight: Tensor, bias: Tensor | None, before: Door = same, behind: Door = same) -> None:
        super().__init__()
        self.weight, self.bias, self.before, self.behind = weight, bias, before, behind

    def forward(self, x: Tensor) -> Tensor:
        y = self.behind(F.linear(self.before(x), self.weight))
        return y if self.bias is None else y + self.bias  # once, behind the sum


class Embedding(nn.Module):
    """Tokens (B, T) -> (B, T, D): those of this rank's rows (V/t, D), and zeros for all others."""

    def __init__(self, whole: nn.Module, leave: Door, tp: Member, positions: Tensor) -> None:
        super().__init__()
        self.token, self.position, self.leave, self.tp = whole.token, whole.position, leave, tp
        self.token.weight, self.positions = own(whole.token.weight.chunk(tp.n)[tp.r]), positions

    def forward(self, tokens: Tensor) -> Tensor:
        rows = tokens - self.tp.r * len(self.token.weight)
        elsewhere = (rows < 0) | (rows >= len(self.token.weight))
        x = F.embedding(rows.masked_fill(elsewhere, 0), self.token.weight).masked_fill(elsewhere.unsqueeze(-1), 0)
        return self.leave(x) + F.embedding(self.positions, self.position.weight)


class SplitLoss(torch.autograd.Function):
    """The mean loss of logits (B, T, V/t), whose gradient comes with it."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, tp: Member) -> Tensor:
        loss, gradient = my_vocab_loss(logits, targets, 0.0, among=tp)
        ctx.save_for_backward(gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        return dy * ctx.saved_tensors[0], None, None


def split_matrices(model: GPT, tp: Member, positions: Tensor) -> None:
    """Each rank of tp gets its heads, its features, its rows of the vocabulary."""
    enter, leave = my_f_and_g(among=tp)
    H = model.config.num_heads
    for block in model.blocks:
        attention, mlp, qkv = block.attention, block.mlp, block.attention.qkv
        bias = my_qkv_rows(qkv.bias.unsqueeze(1), H, H, among=tp).squeeze(1)
        attention.qkv = SplitLinear(own(my_qkv_rows(qkv.weight, H, H, among=tp)), own(bias), enter)
        mlp.input = SplitLinear(own(mlp.input.weight.chunk(tp.n)[tp.r]), own(mlp.input.bias.chunk(tp.n)[tp.r]), enter)
        for layer in (attention, mlp):
            columns = own(layer.output.weight.chunk(tp.n, dim=1)[tp.r])
            layer.output = SplitLinear(columns, layer.output.bias, behind=leave)
    model.embedding = Embedding(model.embedding, leave, tp, positions)
    model.head = SplitLinear(model.embedding.token.weight, None, enter)  # one matrix, as in the whole model


# cp: some of the tokens of each row

@hole("7.3")
def my_document_positions(lengths: list[int], among: Member) -> Tensor:
    """Which tokens (T/c,) of a row are this rank's: in a zigzag, as if it were a single document."""
    return local_positions(sum(lengths), among) if among.n > 1 else torch.arange(sum(lengths))


@hole("7.7")
def my_whole_ring(q: Tensor, k: Tensor, v: Tensor, positions: Sequence[Tensor], among: Member) -> Tensor:
    """Attention of q (B, H, T/c, d) to the tokens of all ranks, each of which gathers all keys and values."""
    k, v = (all_gather_along(each, dim=2, group=among) for each in (k, v))  # (B, H, T, d)
    is_seen = torch.cat(positions) <= positions[among.r].unsqueeze(1)  # (T/c, T)
    return F.scaled_dot_product_attention(q, k, v, is_seen)


# pp: some of the layers

@hole("4.1")
def my_partition(costs: list[float], num_stages: int) -> list[int]:
    """How many layers each stage has."""
    starts = [*balanced_cuts(costs, num_stages), len(costs)]
    return [end - start for start, end in zip(starts, starts[1:])]


def make_model(config: GPTConfig, seed: int) -> GPT:
    """The whole model in 64 bits, the same on every rank."""
    torch.manual_seed(seed)
    return GPT(config).double()


def make_stage(model: GPT, pp: Member, tp: Member, cp: Member, positions: Sequence[Tensor]) -> Stage:
    """This rank's layers, in its parts. positions: of each rank of cp, its tokens in a row (T/c,)."""
    counts = my_partition(layer_costs(model), pp.n)  # before anything is cut
    for block in model.blocks:
        block.attention.attend = lambda q, k, v, _: my_whole_ring(q, k, v, positions, among=cp)
    split_matrices(model, tp, positions[cp.r])
    for parameter in model.parameters():
        parameter.kind = getattr(parameter, "kind", "replicated")
    model.embedding.token.weight.kind = "tied" if pp.n > 1 else "split"
    first = sum(counts[:pp.r])
    return Stage(layers_of(model)[first:first + counts[pp.r]], {})
