"""A sharded optimiser's state in torch's own form, and back: pieces of every rank become whole tensors.

torch's form: {"state": {number of the parameter: {"exp_avg": tensor in the parameter's shape, "step": ..., ...}},
"param_groups": [{"lr": ..., ..., "params": numbers}]}.
"""

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.groups.exchange import start_all_gather
from course_lib.groups.membership import Member

if TYPE_CHECKING:
    from course_lib.zero.optimizer import ZeroOptimizer

MASTER = "master_weight"  # the key of a 32-bit copy among a parameter's state


def numbered(groups: list[dict[str, Any]]) -> dict[nn.Parameter, int]:
    """Each parameter's number in torch's form: counted through the groups."""
    parameters = [parameter for options in groups for parameter in options["params"]]
    return {parameter: number for number, parameter in enumerate(parameters)}


def packed_groups(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    numbers = numbered(groups)
    return [{**options, "params": [numbers[p] for p in options["params"]]} for options in groups]


@torch.no_grad()
def state_dict(optimizer: "ZeroOptimizer") -> dict[str, Any]:
    """See ZeroOptimizer.state_dict."""
    me, numbers, kept = optimizer.member, numbered(optimizer.param_groups), worth_saving(optimizer)
    kinds = described_everywhere({numbers[p]: {key: described(value, optimizer.pieces[p].owned)
                                               for key, value in of_one.items()} for p, of_one in kept.items()}, me)
    state: dict[int, dict[str, Any]] = {}
    for bucket in optimizer.buckets:
        for parameter in bucket.parameters:
            scalars = kinds.get(numbers[parameter], {})
            if scalars:
                state[numbers[parameter]] = {key: value.clone() if isinstance(value, Tensor) else value
                                             for key, (value, _) in scalars.items()}
        tensor_kinds = {(key, dtype) for p in bucket.parameters
                        for key, (_, dtype) in kinds.get(numbers[p], {}).items() if dtype is not None}
        for key, dtype in sorted(tensor_kinds, key=str):
            flat = torch.zeros(me.n * bucket.S, dtype=dtype, device=bucket.device)
            block = flat.chunk(me.n)[me.r]
            for piece in bucket.pieces:
                if key in kept[piece.parameter]:
                    block[piece.start:piece.stop] = kept[piece.parameter][key].to(block.device)
            start_all_gather(flat, me, bucket.index)()
            for parameter, whole in bucket.views(flat).items():
                if kinds.get(numbers[parameter], {}).get(key, (None, None))[1] == dtype:
                    state[numbers[parameter]][key] = whole.to("cpu", copy=True)
    return {"state": {number: state[number] for number in sorted(state)},
            "param_groups": packed_groups(optimizer.param_groups)}


def worth_saving(optimizer: "ZeroOptimizer") -> dict[nn.Parameter, dict[str, Any]]:
    """The state without master copies that say no more than the parameter: AdamW takes an entry for its whole state."""
    kept = optimizer.state
    for parameter, of_one in kept.items():
        piece, master = optimizer.pieces[parameter], of_one.get(MASTER)
        if master is not None and (parameter.dtype == master.dtype or len(of_one) == 1 and torch.equal(
                master, parameter.detach().reshape(-1)[piece.first:piece.last].to(master))):
            del of_one[MASTER]
    return kept


def described(value: Any, piece: Tensor) -> tuple[Any, torch.dtype | None]:
    """(None, dtype) of what is cut as the parameter is; (value, None) of what is whole, AdamW's step say."""
    if isinstance(value, Tensor) and value.shape == piece.shape and value.dim():
        return None, value.dtype
    return (value.detach().cpu().clone() if isinstance(value, Tensor) else value), None


def described_everywhere(mine: dict[int, dict[str, Any]], me: Member) -> dict[int, dict[str, Any]]:
    """One description of each parameter that any rank has a piece of."""
    everyones: list[Any] = [mine] * me.n
    if me.n > 1:
        dist.all_gather_object(everyones, mine, group=me.group)
    return {number: of_one for theirs in everyones for number, of_one in theirs.items()}


def load_state_dict(optimizer: "ZeroOptimizer", saved: dict[str, Any]) -> None:
    """See ZeroOptimizer.load_state_dict."""
    own, theirs = optimizer.param_groups, saved["param_groups"]
    if [len(options["params"]) for options in own] != [len(options["params"]) for options in theirs]:
        raise ValueError(f"the saved groups have {[len(options['params']) for options in theirs]} parameters: expected "
                         f"{[len(options['params']) for options in own]}, as this optimiser's")
    number_of = {p: number for a, b in zip(own, theirs) for p, number in zip(a["params"], b["params"])}
    inner = optimizer.inner.state_dict()
    positions = dict(zip(inner_order(optimizer), range(len(optimizer.pieces))))
    inner["state"] = {}
    for parameter, piece in optimizer.pieces.items():
        of_one = saved["state"].get(number_of[parameter], {})
        cut = {key: cut_as(key, value, parameter, piece) for key, value in of_one.items() if key != MASTER}
        if cut:
            inner["state"][positions[parameter]] = cut
        if optimizer.bucket_of[parameter].master is not None:
            master = of_one.get(MASTER, parameter)
            piece.owned.copy_(master.detach().reshape(-1)[piece.first:piece.last])
    optimizer.inner.load_state_dict(inner)
    for options, saved_options in zip(own, theirs):
        options.update({key: value for key, value in saved_options.items() if key not in ("params", "param_names")})


def inner_order(optimizer: "ZeroOptimizer") -> list[nn.Parameter]:
    return [p for options in optimizer.param_groups for p in options["params"] if p in optimizer.pieces]


def cut_as(key: str, value: Any, parameter: Tensor, piece: Any) -> Any:
    if isinstance(value, Tensor) and value.shape == parameter.shape and key != "step":
        return value.reshape(-1)[piece.first:piece.last]
    return value.clone() if isinstance(value, Tensor) else value
