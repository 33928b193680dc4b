"""Three axes on one page: the course's GPT under dp x pp x tp, with torch.distributed and nothing else.

    torchrun --nproc-per-node 8 -m course_lib.nano3d --dp 2 --pp 2 --tp 2 --steps 20

    axis   its ranks hold               what they tell each other
    dp     copies of the same part      gradients, once a step
    pp     other blocks                 activations and their gradients, once a micro-batch, to a neighbour
    tp     parts of the same matrices   sums of activations, four in each block and micro-batch

    m micro-batches of B rows of T tokens in a step      D hidden size      V vocabulary      t ranks along tp
Results are those of one process. Sources: Shoeybi et al. 2019 (f, g, the vocabulary), Narayanan et al. 2021 (1F1B).
"""

import argparse
from collections import namedtuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.reference import GPT, GPTConfig, batches
from course_lib.runtime import launch  # starts ranks, or joins torchrun's; on a rank new tensors lie on its device

# The mesh: who is where
Mesh = namedtuple("Mesh", "dp pp tp")  # an Axis each
Axis = namedtuple("Axis", "size place group")  # how many ranks, which of them this one is, and their process group


def make_mesh(dp: int, pp: int, tp: int) -> Mesh:
    """This rank's place and groups. tp counts fastest: it talks most, and neighbours are in one node. Collective."""
    ranks = torch.arange(dp * pp * tp).view(pp, dp, tp)
    axes = {}
    for dim, name in enumerate(("pp", "dp", "tp")):
        # All ranks make all groups, in one order, those of others too: new_group is a collective of the world.
        for members in ranks.movedim(dim, -1).flatten(0, 1).tolist():
            group = dist.new_group(members)
            if dist.get_rank() in members:
                axes[name] = Axis(len(members), members.index(dist.get_rank()), group)
    return Mesh(**axes)


# f and g: where tensor parallelism talks (Shoeybi et al. 2019, figure 3)
def all_reduce(x: Tensor, tp: Axis, op: dist.ReduceOp = dist.ReduceOp.SUM) -> Tensor:
    x = x.clone(memory_format=torch.contiguous_format)  # autograd may use the original elsewhere
    dist.all_reduce(x, op, group=tp.group)
    return x


class CopyToRanks(torch.autograd.Function):
    """The paper's f. All ranks read the same x, each for its part of the output. x's gradient is the sum."""

    @staticmethod
    def forward(ctx, x: Tensor, tp: Axis) -> Tensor:
        ctx.tp = tp
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, None]:
        return all_reduce(dy, ctx.tp), None


class SumOfRanks(torch.autograd.Function):
    """The paper's g. Each rank has a summand of y. A summand's gradient is y's, which all ranks have."""

    @staticmethod
    def forward(ctx, summand: Tensor, tp: Axis) -> Tensor:
        return all_reduce(summand, tp)

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, None]:
        return dy, None


# Layers in parts: slices of the reference model's, which is the same on all ranks
def part_of(weight: Tensor, dim: int, tp: Axis, sections: int = 1) -> nn.Parameter:
    """This rank's slice along `dim`. A fused q | k | v has three sections: a slice of each, and so whole heads."""
    whole = weight.detach().chunk(sections, dim)
    part = nn.Parameter(torch.cat([section.chunk(tp.size, dim)[tp.place] for section in whole], dim))
    part.is_cut = True  # the norm of the gradient adds up parts over tp, and counts whole parameters once
    return part


class ColumnParallelLinear(nn.Module):
    """Some of the outputs: x (B, T, D) -> y (B, T, F/t), with W (F/t, D)."""

    def __init__(self, linear: nn.Linear, tp: Axis, sections: int = 1) -> None:
        super().__init__()
        self.tp, self.weight = tp, part_of(linear.weight, 0, tp, sections)
        self.bias = None if linear.bias is None else part_of(linear.bias, 0, tp, sections)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(CopyToRanks.apply(x, self.tp), self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """Some of the inputs: x (B, T, F/t) -> y (B, T, D), with W (D, F/t)."""

    def __init__(self, linear: nn.Linear, tp: Axis) -> None:
        super().__init__()
        self.tp, self.weight, self.bias = tp, part_of(linear.weight, 1, tp), linear.bias

    def forward(self, x: Tensor) -> Tensor:
        return SumOfRanks.apply(F.linear(x, self.weight), self.tp) + self.bias  # the bias once, behind the sum


def rows_here(tokens: Tensor, num_rows: int, tp: Axis) -> tuple[Tensor, Tensor]:
    """Tokens as rows of this rank's V/t, and which tokens other ranks have."""
    rows = tokens - tp.place * num_rows
    elsewhere = (rows < 0) | (rows >= num_rows)
    return rows.masked_fill(elsewhere, 0), elsewhere


class VocabParallelEmbedding(nn.Module):
    """Some of the tokens (B, T) -> (B, T, D), with W (V/t, D). Others' tokens are zeros here."""

    def __init__(self, embedding: nn.Embedding, tp: Axis) -> None:
        super().__init__()
        self.tp, self.weight = tp, part_of(embedding.weight, 0, tp)

    def forward(self, tokens: Tensor) -> Tensor:
        rows, elsewhere = rows_here(tokens, len(self.weight), self.tp)
        x = F.embedding(rows, self.weight).masked_fill(elsewhere.unsqueeze(-1), 0)
        return SumOfRanks.apply(x, self.tp)


def vocab_parallel_loss(logits: Tensor, targets: Tensor, tp: Axis) -> Tensor:
    """Mean cross-entropy of logits (B, T, V/t), targets (B, T): three numbers a token are sent, and not V."""
    largest = all_reduce(logits.detach().amax(-1, keepdim=True), tp, dist.ReduceOp.MAX)  # (B, T, 1)
    z = logits - largest  # (B, T, V/t), at most 0: exp cannot overflow, and the loss is the same
    rows, elsewhere = rows_here(targets, z.shape[-1], tp)
    z_target = z.gather(-1, rows.unsqueeze(-1)).squeeze(-1).masked_fill(elsewhere, 0)  # (B, T)
    total = SumOfRanks.apply(z.exp().sum(-1), tp)  # (B, T)
    return (total.log() - SumOfRanks.apply(z_target, tp)).mean()


# A stage: this rank's share of the model
class Stage(nn.Module):
    """Some of the blocks, in parts. Names of parameters are the model's, so that they can be compared."""

    def __init__(self, model: GPT, mesh: Mesh) -> None:
        super().__init__()
        self.mesh, self.hidden_size, tp = mesh, model.config.hidden_size, mesh.tp
        self.is_first, self.is_last = mesh.pp.place == 0, mesh.pp.place == mesh.pp.size - 1
        numbers = torch.arange(len(model.blocks)).tensor_split(mesh.pp.size)[mesh.pp.place].tolist()
        self.blocks = nn.ModuleDict({str(number): model.blocks[number] for number in numbers})
        for block in self.blocks.values():
            # Columns, then rows: between the two each rank works on its own heads, or its own 4D/t features.
            block.attention.qkv = ColumnParallelLinear(block.attention.qkv, tp, sections=3)
            block.attention.output = RowParallelLinear(block.attention.output, tp)
            block.mlp.input = ColumnParallelLinear(block.mlp.input, tp)
            block.mlp.output = RowParallelLinear(block.mlp.output, tp)
        if self.is_first:
            self.embedding = model.embedding
            self.embedding.token = VocabParallelEmbedding(self.embedding.token, tp)
        if self.is_last:
            self.norm, self.head = model.norm, ColumnParallelLinear(model.head, tp)
        if self.is_first and self.is_last:  # one matrix again; on two stages it is two, see sum_tied_gradient
            self.head.weight = self.embedding.token.weight

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """x (B, T, D), or tokens (B, T) on the first stage -> (B, T, D), or on the last the mean loss."""
        if self.is_first:
            x = self.embedding(x)
        for block in self.blocks.values():
            x = block(x)
        return vocab_parallel_loss(self.head(self.norm(x)), targets, self.mesh.tp) if self.is_last else x


# The pipeline: forward and backward in turns
def one_f_one_b(pp: Axis, m: int) -> list[tuple[str, int]]:
    """What a stage does: as many forwards ahead as stages are behind it, so that it keeps no more than those."""
    ahead, numbers = min(pp.size - 1 - pp.place, m), range(m)
    forwards, backwards = [("forward", number) for number in numbers], [("backward", number) for number in numbers]
    turns = [action for pair in zip(forwards[ahead:], backwards) for action in pair]
    return forwards[:ahead] + turns + backwards[m - ahead:]


def exchange(pp: Axis, sends: dict[int, Tensor], receives: dict[int, Tensor]) -> None:
    """Messages to and from stages, all at once: two stages that both send first would wait for ever."""
    operations = [dist.P2POp(kind, tensor, group=pp.group, group_peer=stage)
                  for kind, tensors in ((dist.isend, sends), (dist.irecv, receives))
                  for stage, tensor in tensors.items() if 0 <= stage < pp.size]  # the first has none before it
    for work in dist.batch_isend_irecv(operations) if operations else []:
        work.wait()


def forward_backward(stage: Stage, inputs: Tensor, targets: Tensor, m: int) -> Tensor:
    """Forward and backward of (m B, T) rows: adds to .grad. Returns the mean loss on the last stage, 0 on others."""
    inputs, targets = inputs.chunk(m), targets.chunk(m)  # m of (B, T)
    pp, shape = stage.mesh.pp, (*inputs[0].shape, stage.hidden_size)
    before, behind = pp.place - 1, pp.place + 1
    kept, sends, loss = {}, {}, torch.zeros(())
    for kind, number in one_f_one_b(pp, m):
        # What the last action made leaves together with what this one needs: the neighbour has the other half of both.
        arrived = torch.empty(shape)
        exchange(pp, sends, {before if kind == "forward" else behind: arrived})
        if kind == "forward":
            x = inputs[number] if stage.is_first else arrived.requires_grad_()
            y = stage(x, targets[number])
            if stage.is_last:
                y = y / m  # so that the micro-batches' gradients add up to that of the mean loss
                loss += y.detach()
            kept[number], sends = (x, y), {behind: y.detach()}
        else:
            x, y = kept.pop(number)
            y.backward(None if stage.is_last else arrived)
            sends = {before: x.grad}
    exchange(pp, sends, {})
    return loss


# Gradients: of the whole batch, and their norm
def sum_tied_gradient(stage: Stage) -> None:
    """The embedding is also the head. On two stages each has the gradient of its own use: both take the sum."""
    if stage.is_first != stage.is_last:  # otherwise one stage has both, or this one has neither
        mine, pp = (stage.embedding.token if stage.is_first else stage.head).weight, stage.mesh.pp
        other_end, theirs = pp.size - 1 - pp.place, torch.empty_like(mine)
        exchange(pp, {other_end: mine.grad}, {other_end: theirs})
        mine.grad += theirs


def average_gradients(stage: Stage) -> None:
    """One flat message along dp for all parameters, since each message costs a start."""
    parameters = list(stage.parameters())
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters]) / stage.mesh.dp.size
    dist.all_reduce(flat, group=stage.mesh.dp.group)
    for parameter, part in zip(parameters, flat.split([parameter.numel() for parameter in parameters])):
        parameter.grad = part.view_as(parameter)


def squares_to_count(stage: Stage) -> Tensor:
    """The sum of squares of the gradients that no other rank counts: over the world each number counts once."""
    total = torch.zeros(())
    for name, parameter in stage.named_parameters():
        is_copy = (stage.mesh.dp.place > 0  # averaged: the same on all
                   or stage.mesh.tp.place > 0 and not hasattr(parameter, "is_cut")  # norms, positions, biases of rows
                   or name == "head.weight")  # tied: the first stage counts it
        total += 0 if is_copy else parameter.grad.square().sum()
    return total


# Training
def train_step(stage: Stage, adamw: torch.optim.AdamW, inputs: Tensor, targets: Tensor, m: int) -> tuple[float, float]:
    """One step on this copy's rows. The loss of the whole batch, and the norm of its gradient before clipping."""
    adamw.zero_grad()
    loss = forward_backward(stage, inputs, targets, m)
    sum_tied_gradient(stage)
    average_gradients(stage)
    # Two numbers in one message. Ranks of tp have the same loss, and those of dp the parts of a mean.
    both = torch.stack([loss / (stage.mesh.tp.size * stage.mesh.dp.size), squares_to_count(stage)]).double()
    dist.all_reduce(both)
    loss, norm = both[0].item(), both[1].sqrt().item()
    for parameter in stage.parameters():
        parameter.grad *= min(1.0, 1.0 / (norm + 1e-6))  # a step follows no gradient longer than 1
    adamw.step()
    return loss, norm


def make(config: GPTConfig, dp: int, pp: int, tp: int, learning_rate: float) -> tuple[Stage, torch.optim.AdamW]:
    """What a rank trains, and with what. Collective."""
    torch.manual_seed(0)  # every rank makes the whole model, the same one, and keeps its own part
    stage = Stage(GPT(config), make_mesh(dp, pp, tp))
    return stage, torch.optim.AdamW(stage.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.01)


def require_fitting(config: GPTConfig, dp: int, pp: int, tp: int, batch_size: int, m: int) -> None:
    """ValueError, before anything is sent, for what would wait for ever or compute something else."""
    if dist.get_world_size() != dp * pp * tp or pp > config.num_layers or config.dropout:
        raise ValueError(f"dp={dp}, pp={pp}, tp={tp} on {dist.get_world_size()} ranks, {config}: expected dp * pp * tp "
                         "ranks, a block for each stage, and no dropout")
    for name, size, divisor in (("num_heads", config.num_heads, tp), ("vocab_size", config.vocab_size, tp),
                                ("batch_size", batch_size, dp * m)):
        if size % divisor:
            raise ValueError(f"{name}={size} with dp={dp}, tp={tp}, m={m}: expected a multiple of {divisor}")


def train(config: GPTConfig, dp: int, pp: int, tp: int, steps: int, *, batch_size: int = 16, m: int = 4,
          learning_rate: float = 1e-3, verbose: bool = False) -> list[float]:
    """On each of dp * pp * tp ranks: the loss of each step, the same on all. ValueError for what does not fit."""
    require_fitting(config, dp, pp, tp, batch_size, m)
    stage, adamw = make(config, dp, pp, tp, learning_rate)
    losses = []
    for step in range(steps):
        # The ranks of a copy read the same rows, each copy others: a function of the step's number alone.
        rows = batches(step, stage.mesh.dp.place, dp, batch_size=batch_size, sequence_length=config.sequence_length)
        loss, norm = train_step(stage, adamw, *rows, m)
        losses.append(loss)
        if verbose and dist.get_rank() == 0:
            print(f"step {step:4}   loss {loss:.4f}   gradient norm {norm:.3f}", flush=True)
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train the course's GPT under dp x pp x tp.")
    for name, default in {"dp": 2, "pp": 2, "tp": 2, "steps": 20, "batch-size": 16, "m": 4}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    launch(train, GPTConfig(), **vars(args), verbose=True, world_size=args.dp * args.pp * args.tp, timeout=86400)
