"""What sharded ranks hold, put together as if nothing were sharded: for checkpoints of a plain program.

The first half is for ZeroOptimizer, whose ranks hold pieces of buckets; the second for FullyShardedDataParallel, whose
ranks hold a shard of each parameter. torch's form of an optimiser's state:

    {"state": {number of the parameter: {"exp_avg": tensor in the parameter's shape, "step": ..., ...}},
     "param_groups": [{"lr": ..., ..., "params": numbers}]}
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from course_lib.groups.exchange import agree, start_all_gather
from course_lib.groups.membership import Member
from course_lib.zero.flat import FlatBucket, FlatPiece

if TYPE_CHECKING:  # stages 1 and 2 need no units
    from course_lib.zero.units import ShardedParameter

MASTER = "master_weight"  # the key of a 32-bit copy among a parameter's state
Groups = list[dict[str, Any]]  # torch's param_groups
State = dict[nn.Parameter, dict[str, Any]]
ShardOf = Mapping[nn.Parameter, "ShardedParameter"]  # see FullyShardedDataParallel.shards


def options_of(group: dict[str, Any]) -> dict[str, Any]:
    """A parameter group without its parameters: lr and the like."""
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def pieces_in(buckets: Sequence[FlatBucket]) -> dict[nn.Parameter, FlatPiece]:
    return {piece.parameter: piece for bucket in buckets for piece in bucket.pieces}


# Stages 1 and 2: saved

@torch.no_grad()
def gather_state(groups: Groups, state: State, buckets: Sequence[FlatBucket], me: Member) -> dict[str, Any]:
    """See ZeroOptimizer.state_dict. `state`: of this rank's pieces."""
    numbers = {p: number for number, p in enumerate(p for group in groups for p in group["params"])}
    pieces = pieces_in(buckets)
    kept = {p: drop_idle_master(of_one, p, pieces[p]) for p, of_one in state.items()}
    mine = {numbers[p]: {key: form_of(value, pieces[p]) for key, value in of_one.items()} for p, of_one in kept.items()}
    forms = {number: of_one for everyones in agree(None, mine, me) for number, of_one in everyones.items()}
    gathered: dict[int, dict[str, Any]] = {}
    for bucket in buckets:
        in_bucket = [(p, forms[numbers[p]]) for p in bucket.parameters if forms.get(numbers[p])]
        for parameter, of_one in in_bucket:
            gathered[numbers[parameter]] = {key: value.clone() if isinstance(value, Tensor) else value
                                            for key, (value, _) in of_one.items()}
        cut = {(key, dtype) for _, of_one in in_bucket for key, (_, dtype) in of_one.items() if dtype is not None}
        for key, dtype in sorted(cut, key=str):
            flat = torch.zeros(me.n * bucket.S, dtype=dtype, device=bucket.device)
            for piece in bucket.pieces:
                if key in kept[piece.parameter]:
                    bucket.block_of(flat)[piece.start:piece.stop] = kept[piece.parameter][key].to(bucket.device)
            start_all_gather(flat, me, bucket.index)()
            views = bucket.views_of(flat)
            for parameter, of_one in in_bucket:
                if key in of_one and of_one[key][1] == dtype:
                    gathered[numbers[parameter]][key] = views[parameter].to("cpu", copy=True)
    return {"state": {number: gathered[number] for number in sorted(gathered)},
            "param_groups": [{**group, "params": [numbers[p] for p in group["params"]]} for group in groups]}


def drop_idle_master(of_one: dict[str, Any], parameter: Tensor, piece: FlatPiece) -> dict[str, Any]:
    """The state, without a master copy that says no more than the parameter: AdamW takes any entry for all its state.
    """
    master = of_one.get(MASTER)
    if master is not None and (parameter.dtype == master.dtype or len(of_one) == 1 and torch.equal(
            master, slice_of(parameter, piece).to(master))):
        return {key: value for key, value in of_one.items() if key != MASTER}
    return of_one


def form_of(value: Any, piece: FlatPiece) -> tuple[Any, torch.dtype | None]:
    """(None, dtype) of what is cut as the parameter is; (value, None) of what is whole, AdamW's step say."""
    if isinstance(value, Tensor) and value.shape == piece.owned.shape and value.dim():
        return None, value.dtype
    return (value.detach().cpu().clone() if isinstance(value, Tensor) else value), None


# Stages 1 and 2: loaded

def load_state(saved: dict[str, Any], groups: Groups, inner: torch.optim.Optimizer, buckets: Sequence[FlatBucket]
               ) -> None:
    """See ZeroOptimizer.load_state_dict. `inner` steps on this rank's pieces, in the order of `groups`."""
    theirs, pieces = saved["param_groups"], pieces_in(buckets)
    counts, their_counts = ([len(group["params"]) for group in some] for some in (groups, theirs))
    if counts != their_counts:
        raise ValueError(f"the saved groups have {their_counts} parameters: expected {counts}, as this optimiser's")
    number_of = {p: number for a, b in zip(groups, theirs) for p, number in zip(a["params"], b["params"])}
    masters = {p: bucket.master for bucket in buckets for p in bucket.parameters}
    state: dict[int, dict[str, Any]] = {}
    for position, parameter in enumerate(p for p in number_of if p in pieces):
        piece, of_one = pieces[parameter], saved["state"].get(number_of[parameter], {})
        mine = {key: cut_piece(key, value, parameter, piece) for key, value in of_one.items() if key != MASTER}
        if mine:
            state[position] = mine
        if masters[parameter] is not None:
            piece.owned.copy_(slice_of(of_one.get(MASTER, parameter), piece))
    inner.load_state_dict({**inner.state_dict(), "state": state})
    for own, group in zip(groups, theirs):
        own.update(options_of(group))


def cut_piece(key: str, value: Any, parameter: Tensor, piece: FlatPiece) -> Any:
    """What of one value of a parameter's state this rank keeps."""
    if isinstance(value, Tensor) and value.shape == parameter.shape and key != "step":
        return slice_of(value, piece)
    return value.clone() if isinstance(value, Tensor) else value


def slice_of(whole: Tensor, piece: FlatPiece) -> Tensor:
    """The numbers of a tensor in the parameter's shape that lie in `piece`."""
    return whole.detach().reshape(-1)[piece.first:piece.last]


# Stage 3

@torch.no_grad()
def gather_whole(shard: Tensor, parameter: "ShardedParameter", me: Member) -> Tensor:
    """All ranks' `shard` (S_i,) in the parameter's shape, on the host. Collective."""
    flat = torch.empty(me.n * parameter.S, dtype=shard.dtype, device=parameter.padded.device)
    flat.chunk(me.n)[me.r].copy_(shard)
    start_all_gather(flat, me, tag=0)()
    return flat[:parameter.shape.numel()].view(parameter.shape).to("cpu", copy=True)


def gather_module(module: nn.Module, shards: ShardOf, me: Member) -> dict[str, Tensor]:
    """See FullyShardedDataParallel.full_state_dict."""
    wholes, state = {}, {}
    named = dict(module.named_parameters(remove_duplicate=False))
    for name, value in module.state_dict().items():
        parameter = shards.get(named.get(name))
        if parameter is None:
            state[name] = value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
        else:
            if parameter not in wholes:  # a tied one is gathered once
                wholes[parameter] = gather_whole(parameter.sharded, parameter, me)
            state[name] = wholes[parameter]
    return state
