"""What a rank holds as plain numbers, for a picture: every tensor's first rows and columns beside its size."""

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.runtime.team.holdings import find_holdings
from course_lib.runtime.team.namespace import own_names

MOST_NAMES = 12
ROWS, COLUMNS = 8, 12  # of a tensor that are shown


def take_snapshot() -> dict[str, Any]:
    """In a rank: its bytes by kind, and its names, biggest first, tensors with their first values. Plain JSON."""
    names = own_names()
    held = find_holdings(names)
    return {"by_kind": held.by_kind, "more": max(0, len(held.names) - MOST_NAMES),
            "names": [asdict(each) | {"values": first_values(names[each.name])} for each in held.names[:MOST_NAMES]]}


def first_values(value: Any) -> list[list[float]]:
    """The first rows and columns of a tensor, with all dimensions but the first in one; [] for anything else."""
    plain = type(value) in (Tensor, nn.Parameter) and value.layout is torch.strided and value.numel() > 0
    if not plain or value.is_complex() or value.device.type == "meta" or not value.untyped_storage().nbytes():
        return []
    rows = value.detach().reshape(value.shape[0] if value.dim() > 1 else 1, -1)
    return rows[:ROWS, :COLUMNS].double().cpu().tolist()
