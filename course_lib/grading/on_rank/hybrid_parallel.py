"""Chapter 9 on a rank: two levels of groups, gradients added up over axes, one norm, files to read, layouts to look at.

    groups  {"cp,dp": the ranks that differ from this one along these axes only, ...}, axes sorted, "" is the rank alone
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.grading.on_rank.plain import count_calls, number, plain

Layout = dict[str, int]  # dp, pp, tp, rows of a micro-batch, zero stage (0, 1, 3), recompute (0, 1)
KEYS = ("dp", "pp", "tp", "rows", "zero", "recompute")


def two_levels(function: Callable, inputs: list[Any]) -> Any:
    """9.2: two lists of groups, in one order whatever they came in; else words for what is returned."""
    returned = function(*inputs)
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        return plain(returned)
    return [sorted(sorted(int(rank) for rank in group) for group in groups) for groups in returned]


def reduced_gradients(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
    """9.3: the gradients afterwards, and the bytes that were sent to add them up."""
    gradients = {name: gradient.clone() for name, gradient in inputs["gradients"].items()}
    sent: list[int] = []

    def all_reduce(tensor: Tensor, *axes: str) -> None:
        sent.append(add_up(tensor, axes, inputs["groups"]))

    function(gradients, inputs["kinds"], torch.tensor(inputs["num_tokens"], dtype=torch.float64), all_reduce)
    return {"gradients": {name: plain(gradient) for name, gradient in gradients.items()}, "sent": sum(sent)}


def add_up(tensor: Tensor, axes: Sequence[str], groups: dict[str, list[int]]) -> int:
    """All-reduce over the group of these axes, in place. Returns the bytes sent, by the ring convention.

    No process group is made: every rank sends what it has to every other one, and adds up in the same order.
    """
    if group_key(axes) not in groups:
        raise ValueError(f"all_reduce over {list(axes)}: expected names of axes, dp, pp, cp and tp, or ep and edp in "
                         "place of dp and cp")
    group = groups[group_key(axes)]
    lengths = [int(length) for length in exchange(torch.tensor([tensor.numel()]), group)]
    if len(set(lengths)) > 1:
        raise ValueError(f"all_reduce over {', '.join(axes)}: this rank came with {tensor.numel()} numbers, and its "
                         f"group with {lengths}. Over pp only what both stages hold can be added up")
    tensor.detach().copy_(sum(exchange(tensor.detach().contiguous(), group)))
    return ring_bytes(tensor.nbytes, len(group))


def group_key(axes: Iterable[str]) -> str:
    return ",".join(sorted(set(map(str, axes))))


def exchange(own: Tensor, group: list[int]) -> list[Tensor]:
    """What every rank of the group came with, in the group's order."""
    arriving = {other: torch.empty_like(own) for other in group if other != dist.get_rank()}
    requests = [dist.P2POp(op, tensor, other) for other, there in arriving.items()
                for op, tensor in ((dist.isend, own), (dist.irecv, there))]
    for request in dist.batch_isend_irecv(requests) if requests else ():
        request.wait()
    return [arriving.get(rank, own) for rank in group]


def ring_bytes(num_bytes: int, n: int) -> int:
    """What a rank sends in an all-reduce over n ranks."""
    return -(-2 * (n - 1) * num_bytes // n)


def global_norm(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
    """9.4: a number, or a tensor of one."""
    gradients = {name: gradient.clone() for name, gradient in inputs["gradients"].items()}
    returned, calls = count_calls(function, gradients, *(
        inputs[name] for name in ("kinds", "coordinates", "norm_type", "zero")))
    norm = returned.item() if isinstance(returned, Tensor) and returned.numel() == 1 else returned
    return {**number(lambda: norm, []), "calls": calls}


def resharded(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
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


def cheapest_layout(function: Callable, inputs: list[Any]) -> dict[str, Any]:
    """9.7: a layout, else words for what is returned, and how many were looked at."""
    looks = []

    def look(layout: Layout) -> tuple[float, float]:
        looks.append(1)
        if fault := fault_of(layout, *inputs):
            raise ValueError(f"look({layout}): {fault}")
        return step_of(layout, *inputs)

    layout = function(look, *inputs)
    if isinstance(layout, dict) and all(type(value) in (int, bool) for value in layout.values()):
        return {"layout": {str(key): int(value) for key, value in layout.items()}, "looks": len(looks)}
    return {"layout": plain(layout), "looks": len(looks)}


def step_of(layout: Layout, devices: int, per_node: int, memory: float, flops_per_s: float, fast: float, slow: float,
            parameters: float, layers: int, hidden: int, tokens: int, batch_rows: int) -> tuple[float, float]:
    """(seconds of a step, bytes on a device) of a GPT in bf16 with AdamW; ranks count along tp, then dp, then pp."""
    dp, pp, tp, rows, zero, recompute = (layout[key] for key in KEYS)
    part, micro_batches = parameters / (pp * tp), batch_rows // (dp * rows)
    activation = 2 * rows * tokens * hidden  # bytes between two layers

    def seconds(num_bytes: float, reach: int) -> float:
        return num_bytes / (fast if reach <= per_node else slow)  # reach: how many ranks apart its members are

    computing = (8 if recompute else 6) * part * rows * tokens / flops_per_s
    tensor = seconds((6 if recompute else 4) * layers / pp * 2 * (tp - 1) / tp * activation, tp)
    pipe = seconds(2 * activation / tp, devices) if pp > 1 else 0.0
    gathers = seconds(2 * 2 * part * (dp - 1) / dp, tp * dp) if zero == 3 else 0.0
    gradients = seconds(2 * 2 * part * (dp - 1) / dp, tp * dp)
    step = (micro_batches + pp - 1) * max(computing + tensor + pipe, gathers) + gradients
    state = part * {0: 16, 1: 4 + 12 / dp, 3: 16 / dp}[zero]  # weights and gradients 2 + 2, the optimiser's 12
    kept = (2 if recompute else 34) / 2 * activation * layers / (pp * tp) * min(pp, micro_batches)
    return step, state + kept


def fault_of(layout: Any, devices: int, *cluster: Any) -> str | None:
    """Why this is no layout of so many devices; `cluster` as step_of has it."""
    values = [layout.get(key) for key in KEYS] if isinstance(layout, dict) and len(layout) == len(KEYS) else [None]
    if not all(isinstance(value, int) for value in values) or min(values[:4]) < 1 or values[4] not in (0, 1, 3) or (
            values[5] not in (0, 1)):
        return (f"expected a dict with {', '.join(KEYS)}, and nothing else: whole numbers, zero 0, 1 or 3, recompute 0 "
                "or 1, the others at least 1")
    dp, pp, tp, rows, *_ = values
    layers, batch_rows = cluster[-4], cluster[-1]
    if dp * pp * tp != devices:
        return f"dp * pp * tp is {dp * pp * tp}, and there are {devices} devices"
    if pp > layers:
        return f"{pp} stages of {layers} layers: every stage needs one"
    if batch_rows % (dp * rows):
        return f"dp * rows is {dp * rows}, which does not divide the {batch_rows} rows of the batch"
    return None
