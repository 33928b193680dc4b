"""One MoE layer with its experts dealt out, and the same in one process: each rank's tokens, one shard after the other.

Apart from the tests, since ranks import it in every launch: pytest would cost them time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import expert_parallel as ep
from course_lib.costs.splitting import (
    combine_bytes,
    count_bytes,
    dispatch_bytes,
    dropped_rows,
    expert_capacity,
    slow_rows,
    two_level_bytes,
)
from course_lib.expert_parallel.gradients import gather_experts
from course_lib.runtime import device, record_communication

LIMITS = {torch.float64: 1e-10, torch.float32: 1e-5}
N, D, F = 14, 6, 10


@dataclass(frozen=True)
class Case:
    num_experts: int = 8
    k: int = 2
    capacity_factor: float | None = None
    num_shared: int = 0
    skew: float = 0.0  # all tokens go to expert 0, and then 1: a whole layer's ranks but one get nothing
    activation: str = "gelu"
    dtype: torch.dtype = torch.float64
    options: tuple = ()


def cases(dtypes: tuple[torch.dtype, ...] = (torch.float64, torch.float32)) -> Iterator[Case]:
    for E, k, factor, shared, skew, dtype in product((4, 8), (1, 2), (None, 0.75), (0, 2), (0.0, 50.0), dtypes):
        yield Case(E, k, factor, shared, skew, "swiglu" if shared else "gelu", dtype)
    for how in ({"scoring": "sigmoid"}, {"normalize": False}, {"num_groups": 4, "top_groups": 2}, {"bias": False}):
        yield Case(k=3, dtype=dtypes[0], options=tuple(how.items()))


def few() -> Iterator[Case]:
    """Of each kind one."""
    yield from (Case(k=k, capacity_factor=factor, skew=skew, num_shared=k - 1)
                for k, factor, skew in product((1, 2), (None, 0.75), (0.0, 50.0)))


def layer_alone(case: Case) -> ep.MoELayer:
    """With all of its experts, the same on every rank."""
    layer = ep.MoELayer(D, F, case.num_experts, case.k, case.capacity_factor, ep.SINGLE, case.activation,
                        num_shared=case.num_shared, seed=0, **dict(case.options))
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(case.num_experts, D, generator=generator, dtype=torch.float64, device="cpu")
    weight[:, 0] += torch.arange(case.num_experts, 0, -1, device="cpu") * case.skew
    with torch.no_grad():
        layer.router.weight.copy_(weight)
    return layer.to(device(), case.dtype)


def tokens_of(rank: int, case: Case) -> list[Tensor]:
    """The tokens (N, D) of a rank and the gradient of what becomes of them. Feature 0 is above 0: skew works on it."""
    generator = torch.Generator().manual_seed(100 + rank)
    drawn = torch.randn(2, N, D, generator=generator, dtype=torch.float64, device="cpu")
    drawn[0, :, 0] = drawn[0, :, 0].abs() + 1
    return [each.to(device(), case.dtype) for each in drawn]


def shards_in_one_process(case: Case, num_shards: int) -> tuple[list[Tensor], list[Tensor], dict[str, Tensor], list]:
    """Outputs and token gradients of each shard, gradients of all parameters of the mean loss, counts [shard][expert]
    of the rows kept."""
    layer, outputs, inputs, counts = layer_alone(case), [], [], []
    for rank in range(num_shards):
        tokens, gradient = tokens_of(rank, case)
        out = layer(tokens.requires_grad_())
        (out * gradient).sum().div(num_shards).backward()
        outputs.append(out.detach())
        inputs.append(tokens.grad * num_shards)
        counts.append(ep.tokens_per_expert(layer.routing.experts, case.num_experts, layer.kept).tolist())
    return outputs, inputs, {name: p.grad for name, p in layer.named_parameters()}, counts


def off(given: Tensor | None, expected: Tensor) -> float:
    if given is None or given.dtype != expected.dtype:
        return float("inf")
    return (given - expected).abs().max().item() / max(1.0, expected.abs().max().item())


def gradients_with_all_experts(layer: ep.MoELayer) -> dict[str, Tensor | None]:
    return {name: gather_experts(p.grad, layer.num_experts, layer.member) if name.startswith("experts.") else p.grad
            for name, p in layer.named_parameters()}


def problems_of(case: Case, groups: tuple, **how: Any) -> Iterator[str]:
    """In words. groups: (of those that share the experts, of those that hold the same). how: options of MoELayer."""
    W, rank, R = dist.get_world_size(), dist.get_rank(), groups[0].size()
    outputs, inputs, gradients, counts = shards_in_one_process(case, W)
    layer = ep.MoELayer.from_unsplit(layer_alone(case), groups[0], **how)
    tokens, gradient = tokens_of(rank, case)
    with record_communication() as forward:
        out = layer(tokens.requires_grad_())
    with record_communication() as backward:
        (out * gradient).sum().backward()
    ep.average_gradients(layer, None, groups[1])
    found = {"out": out.detach(), "tokens": tokens.grad, **gradients_with_all_experts(layer)}
    for name, expected in {"out": outputs[rank], "tokens": inputs[rank], **gradients}.items():
        if not off(found[name], expected) <= LIMITS[case.dtype]:
            yield f"{case} {how} on {R} of {W}: {name} is off by {off(found[name], expected):.1e}"
    place = groups[0].rank()
    of_group, w = counts[rank - place:rank - place + R], case.dtype.itemsize
    if "nodes" in how:
        expected_bytes = two_level_expected(layer, how["nodes"])
        sent = tuple(sum(event.sent_bytes for event in log.events if len(event.group) == how["nodes"][1].size() and
                         (rank + how["nodes"][0].size()) % W in event.group) for log in (forward, backward))
    else:
        there_and_back = sum(f(of_group, D, w)[place] for f in (dispatch_bytes, combine_bytes))
        said = how.get("num_chunks", 1) * count_bytes(case.num_experts, R, place) if R > 1 else 0
        expected_bytes, sent = (there_and_back + said, there_and_back), (forward.sent_bytes, backward.sent_bytes)
    factor = case.capacity_factor
    drops = 0 if factor is None else dropped_rows(layer.tokens_per_expert().tolist(),
                                                  expert_capacity(factor, case.k, N, case.num_experts))
    dropped = 0 if layer.kept is None else int((~layer.kept).sum())
    state, whole = ep.full_state_dict(layer), layer_alone(case).state_dict()
    different = [name for name, value in whole.items() if not torch.equal(state[name], value.cpu())]
    for what, given, expected in (("bytes", sent, expected_bytes), ("rows dropped", dropped, drops),
                                  ("different in the full state", different, [])):
        if given != expected:
            yield f"{case} {how}: {what} {given}, expected {expected}"


def two_level_expected(layer: ep.MoELayer, nodes: tuple) -> tuple[int, int]:
    """(forward, backward): bytes that this rank sends over the slow wire, by the formula."""
    intra, inter = nodes
    E_n = layer.num_experts // inter.size()
    kept = torch.ones_like(layer.routing.experts, dtype=torch.bool) if layer.kept is None else layer.kept
    needed = [{int(e) // E_n for e, k in zip(*of_token) if k} for of_token in zip(layer.routing.experts, kept)]
    everyones: list = [None] * inter.size()
    dist.all_gather_object(everyones, needed, group=inter)
    rows = slow_rows(needed, inter.rank())[1]  # what I send, and
    back = sum(inter.rank() in of_token for place, tokens in enumerate(everyones) if place != inter.rank()
               for of_token in tokens)  # what I send back
    w, k = layer.router.weight.dtype.itemsize, layer.router.k
    there, _ = two_level_bytes(rows, k, D, w, w)
    _, home = two_level_bytes(back, k, D, w, w)
    return there + home + 8 * (inter.size() - 1), rows * D * w + back * (D + k) * w


def run(drawn: list[Case], ranks_per_group: int, ranks_per_node: int = 0, **how: Any) -> list[str]:
    """On each rank: what went wrong, in words."""
    groups = ep.make_groups(ranks_per_group)
    if ranks_per_node:
        how["nodes"] = ep.make_groups(ranks_per_node)
    return [problem for case in drawn for problem in problems_of(case, groups, **how)]
