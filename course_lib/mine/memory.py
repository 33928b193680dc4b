"""What a rank keeps of a model: all of it, a shard (ZeRO), what goes into a layer, or a file for another day.

    n ranks hold a parameter of N numbers, r this one; S = N/n, rounded up: the numbers that this rank steps on

    ZeRO 0   `owned` are the parameters        9.3 adds their gradients up over dp and cp
         1   `owned` are (S,) of each          2.1 behind backward, 2.2 behind the step
         2   the same                          6.3 in backward, 2.2 behind the step
         3   these are all that there is       2.2 before a layer, and in backward again (7.5); then 2.1
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.collectives import ring_all_gather, ring_reduce_scatter
from course_lib.groups.membership import Member
from course_lib.mine.holes import AnswerFailed, hole
from course_lib.pipeline_parallel import Stage
from course_lib.sequence_parallel import recompute

Named = dict[str, nn.Parameter]
FILES = "your_own_*.pt"  # one of each rank

my_ring_reduce_scatter = hole("2.1", lambda tensor, among: ring_reduce_scatter(tensor, group=among.group))
my_ring_all_gather = hole("2.2", lambda tensor, among: ring_all_gather(tensor, group=among.group))
my_recomputed = hole("7.5", lambda function, x: recompute(function)(x), compares=False)


# ZeRO

def blocks_of(tensor: Tensor, me: Member) -> Tensor:
    """A tensor of N numbers as (n, S), with zeros at the end: rank r's is block r."""
    return F.pad(tensor.detach().flatten(), (0, -tensor.numel() % me.n)).view(me.n, -1)


def scatter_sum(gradient: Tensor, me: Member) -> Tensor:
    """This rank's block (S,) of the sum of all ranks' gradients."""
    blocks = blocks_of(gradient, me)
    even = F.pad(blocks, (0, blocks.shape[1] % 2))  # 2.1 cuts each of them in two
    return my_ring_reduce_scatter(even.flatten(), among=me)[:blocks.shape[1]]


def gather_whole(owned: Tensor, shape: torch.Size, me: Member) -> Tensor:
    """The whole parameter, of which each rank has (S,)."""
    return my_ring_all_gather(owned.detach(), among=me)[:prod(shape)].view(shape)


@hole("6.3", compares=False)
def my_scattered_gradients(model: nn.Module, among: Member) -> dict[str, Tensor]:
    """A dict that hooks fill in backward: name -> this rank's piece (S,) of the mean gradient, which is then gone."""
    pieces: dict[str, Tensor] = {}

    def scatter(name: str, parameter: nn.Parameter) -> None:
        pieces[name], parameter.grad = scatter_sum(parameter.grad, among) / among.n, None

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(partial(scatter, name))
    return pieces


class Shards:
    """`named`: what this rank has of the model; `owned`: what its optimiser steps on, (S,) of each under ZeRO."""

    def __init__(self, stages: Sequence[Stage], mesh: Callable[..., Member], zero: int) -> None:
        self.zero, self.sums = zero, defaultdict(float)
        self.named = {"embedding.token.weight" if name == "head.weight" else name: parameter  # one matrix, two stages
                      for stage in stages for name, parameter in stage.named_parameters()}
        self.of = {name: mesh(*(("edp",) if parameter.kind == "expert" else ("dp", "cp")))
                   for name, parameter in self.named.items()}
        self.owned = {name: nn.Parameter(blocks_of(parameter, self.of[name])[self.of[name].r].clone())
                      for name, parameter in self.named.items()} if zero else self.named
        if zero == 2:
            self.scatter_in_backward()
        if zero == 3:
            self.gather_in_layers(stages)

    def scatter_in_backward(self) -> None:
        """By hooks, which leave pieces of means; sums of them over micro-batches are kept."""
        def keep(pieces: dict[str, Tensor], key: str, name: str, parameter: nn.Parameter) -> None:
            piece, owned = pieces.pop(key, None), self.owned[name]
            if piece is None or piece.shape != owned.shape:
                raise AnswerFailed.of("6.3", f": its hook left no piece of {len(owned)} numbers")
            self.sums[name] += piece * self.of[name].n

        for me in dict.fromkeys(self.of.values()):
            names = [name for name in self.named if self.of[name] == me]
            pieces = my_scattered_gradients(nn.ParameterList(self.named[name] for name in names), among=me)
            for key, name in enumerate(names):  # registered behind the answer's hook, so it runs behind it
                self.named[name].register_post_accumulate_grad_hook(partial(keep, pieces, str(key), name))

    def gather_in_layers(self, stages: Sequence[Stage]) -> None:
        """A layer's parameters are whole while it computes, and autograd keeps nothing of them."""
        cuts = {parameter: (self.owned[name], parameter.shape, self.of[name]) for name, parameter in self.named.items()}

        def compute(layer: nn.Module, x: Tensor) -> Tensor:
            whole = {name: Gathered.apply(*cuts[parameter]) for name, parameter in layer.named_parameters()}
            return torch.func.functional_call(layer, whole, (x,))

        def keep_input(layer: nn.Module, x: Tensor) -> Tensor:  # tokens have no gradient
            return my_recomputed(partial(compute, layer), x) if x.requires_grad else compute(layer, x)

        for stage in stages:
            stage.layers = tuple(partial(keep_input, layer) for layer in stage.layers)
        for name, parameter in self.named.items():
            self.owned[name].kind, parameter.data = parameter.kind, torch.empty(0, dtype=parameter.dtype)
        self.named = self.owned

    def take_gradients(self) -> dict[str, Tensor]:
        """What backward has added up since the last step, of this rank's tokens; under ZeRO (S,) of all ranks'."""
        if self.zero == 2:
            sums, self.sums = self.sums, defaultdict(float)
            return {name: sums[name] + torch.zeros_like(each.detach()) for name, each in self.owned.items()}
        found = {name: each.new_zeros(each.shape) if each.grad is None else each.grad  # an expert that nobody asked
                 for name, each in self.named.items()}
        for parameter in self.named.values():
            parameter.grad = None
        return {name: scatter_sum(each, self.of[name]) for name, each in found.items()} if self.zero == 1 else found

    @torch.no_grad()
    def publish(self) -> None:
        """All ranks get what each has stepped on."""
        for name, parameter in self.named.items() if self.zero in (1, 2) else ():
            parameter.copy_(gather_whole(self.owned[name], parameter.shape, self.of[name]))


class Gathered(torch.autograd.Function):
    """The whole parameter from all ranks' (S,); of its gradient, this rank's (S,) of the sum."""

    @staticmethod
    def forward(ctx: Any, owned: Tensor, shape: torch.Size, me: Member) -> Tensor:
        ctx.me = me
        return gather_whole(owned, shape, me)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return scatter_sum(gradient, ctx.me), None, None


# Files, of which any layout reads what any other has written

@hole("9.5")
def my_resharded(offsets: list[int], shape: list[int], saved: dict[str, tuple], read: Callable) -> Tensor:
    """A box of a tensor. All of the tensor is read for it, where 9.5 reads no more than the box."""
    ends = [[start + length for start, length in zip(*box)] for box in saved.values()]
    whole = torch.empty([max(of_dim) for of_dim in zip(*ends)], dtype=torch.float64)
    for (file, (start, size)), end in zip(saved.items(), ends):
        whole[tuple(map(slice, start, end))] = read(file, [0] * len(size), size)
    return whole[tuple(slice(start, start + length) for start, length in zip(offsets, shape))]


def boxes_of(named: Named, adamw: torch.optim.AdamW) -> Iterator[tuple[str, nn.Parameter, list[int], Tensor]]:
    """(name, parameter, offsets in the whole, box) of all that a checkpoint has: q | k | v are three boxes."""
    for name, parameter in named.items():
        state, (dim, starts, length) = adamw.state[parameter], getattr(parameter, "cut", (0, [0], len(parameter)))
        for what in ("exp_avg", "exp_avg_sq"):
            state.setdefault(what, torch.zeros_like(parameter.data))
        for what, tensor in {"": parameter.data, **state}.items():
            for start, box in zip(starts, tensor.split(length, dim) if what != "step" else ()):
                yield f"{name} {what}", parameter, [start * (at == dim) for at in range(tensor.dim())], box


def save(folder: Path, step: int, about: str, named: Named, adamw: torch.optim.AdamW, writes: Callable[[str], bool]
         ) -> None:
    """This rank's file: all boxes of the kinds that it `writes`. about: the run. Collective."""
    boxes = [(name, offsets, box.clone()) for name, parameter, offsets, box in boxes_of(named, adamw)
             if writes(parameter.kind)]
    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(FILES):
            old.unlink()
    dist.barrier()
    torch.save((step, about, boxes), folder / FILES.replace("*", str(dist.get_rank())))
    dist.barrier()


def load(folder: Path, about: str, named: Named, adamw: torch.optim.AdamW) -> int:
    """This rank's boxes, out of what all ranks of the run before wrote. Returns how many steps it has taken."""
    saved: dict[str, dict[str, tuple[list[int], Tensor]]] = {}
    paths = sorted(folder.glob(FILES))
    if not paths:
        raise ValueError(f"no checkpoint in {folder}: expected {FILES}, as save writes them")
    for path in paths:
        step, saved_about, boxes = torch.load(path, mmap=True)
        if saved_about != about:
            raise ValueError(f"the run in {folder} is one of {saved_about}: expected {about}")
        for number, (name, offsets, box) in enumerate(boxes):
            saved.setdefault(name, {})[f"{path.name}, box {number}"] = offsets, box

    def read(name: str, file: str, start: list[int], stop: list[int]) -> Tensor:
        return saved[name][file][1][tuple(slice(int(a), int(b)) for a, b in zip(start, stop))].double()

    for name, parameter, offsets, box in boxes_of(named, adamw):
        of_name = {file: (at, list(part.shape)) for file, (at, part) in saved[name].items()}
        box.copy_(my_resharded(offsets, list(box.shape), of_name, partial(read, name)))
        adamw.state[parameter]["step"] = torch.tensor(float(step))
    return step
