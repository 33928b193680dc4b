"""Chapter 9 on a rank: two levels of groups, gradients added up over axes, one norm, files to read, layouts to look at.

    groups  {"cp,dp": the ranks that differ from this one along these axes only, ...}, axes sorted, "" is the rank alone
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.grading.on_rank import count_calls, data, kind, number, on_memory_of, plain, ring_bytes


def two_levels(function: Callable, inputs: list[Any]) -> Any:
    """9.2: two lists of groups, in one order whatever they came in; else words for what is returned."""
    levels = data(function(*inputs))
    try:
        return [sorted(map(sorted, groups)) for groups in levels]
    except TypeError:  # no lists of lists of numbers
        return levels if isinstance(levels, str | None) else f"{kind(levels)} that is no two lists of groups"


def reduced_gradients(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
    """9.3: the gradients afterwards, and the bytes that were sent to add them up."""
    gradients = {name: gradient.clone() for name, gradient in inputs["gradients"].items()}
    sent: list[int] = []

    def all_reduce(tensor: Tensor, *axes: str) -> None:
        sent.append(add_up(tensor, axes, inputs["groups"]))

    given = dict(zip(gradients, on_memory_of([*gradients.values()])))
    function(given, inputs["kinds"], torch.tensor(inputs["num_tokens"], dtype=torch.float64), all_reduce)
    return {"gradients": {name: plain(gradient) for name, gradient in gradients.items()}, "sent": sum(sent)}


def add_up(tensor: Tensor, axes: Sequence[str], groups: dict[str, list[int]]) -> int:
    """All-reduce over the group of these axes, in place. Returns the bytes sent, by the ring convention.

    No process group is made: every rank sends what it has to every other one, and adds up in the same order.
    """
    if group_key(axes) not in groups:
        raise ValueError(f"all_reduce over {list(axes)}: expected names of axes, dp, pp, cp and tp, or ep and edp in "
                         "place of dp, cp and tp")
    group = groups[group_key(axes)]
    lengths = [int(length) for length in exchange(torch.tensor([tensor.numel()]), group)]
    if len(set(lengths)) > 1:
        raise ValueError(f"all_reduce over {', '.join(axes)}: this rank came with {tensor.numel()} numbers, and its "
                         f"group with {lengths}. Over pp only what both stages hold can be added up")
    tensor.detach().copy_(sum(exchange(tensor.detach().contiguous(), group)))
    return ring_bytes(tensor.nbytes, len(group))


def group_key(axes: Iterable[str]) -> str:
    """One name for a set of axes, whatever the order in which they were named."""
    return ",".join(sorted(set(map(str, axes))))


def exchange(own: Tensor, group: list[int]) -> list[Tensor]:
    """What every rank of the group came with, in the group's order."""
    arriving = {other: torch.empty_like(own) for other in group if other != dist.get_rank()}
    requests = [dist.P2POp(op, tensor, other) for other, there in arriving.items()
                for op, tensor in ((dist.isend, own), (dist.irecv, there))]
    for request in dist.batch_isend_irecv(requests) if requests else ():
        request.wait()
    return [arriving.get(rank, own) for rank in group]


def global_norm(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
    """9.4: a number, or a tensor of one."""
    gradients = {name: gradient.clone() for name, gradient in inputs["gradients"].items()}
    returned, calls = count_calls(function, gradients, *(
        inputs[name] for name in ("kinds", "coordinates", "norm_type", "zero")))
    return {**number(lambda: returned, []), "calls": calls}


def reshard(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
    """9.5: this rank's piece, and the bytes that were read."""
    num_bytes: list[int] = []

    def read(file: str, start: Sequence[int], stop: Sequence[int]) -> Tensor:
        tensor, start, stop = inputs["contents"][file], list(start), list(stop)
        if not len(start) == len(stop) == tensor.dim() or any(
                not 0 <= a < b <= size for a, b, size in zip(start, stop, tensor.shape)):
            raise ValueError(f"read of {file} from {start} to {stop}: it has {list(tensor.shape)}. start and stop "
                             "count from the file's own corner, and start lies before stop in every dim")
        found = tensor[tuple(map(slice, start, stop))].clone()
        num_bytes.append(found.nbytes)
        return found

    saved = {file: tuple(box) for file, box in inputs["saved"].items()}
    returned = function(inputs["offsets"], inputs["shape"], saved, read)
    return {"returned": plain(returned), "read": sum(num_bytes)}


def cheapest_layout(function: Callable, inputs: list[Any], ask: Callable) -> dict[str, Any]:
    """9.7: a layout, else words for what is returned. Whoever asks `look` is answered by the judge, who counts."""
    return {"layout": data(function(lambda layout: tuple(ask(data(layout))), *inputs))}
