"""Rotary positions, of tokens that may stand anywhere in the row.

    B rows      H heads      t tokens of this rank      d head size, even

Pair i of a head's numbers, (x_i, x_{i + d/2}), is turned by the angle p base^(-2i/d), p being the token's position: the
score of two tokens then depends on how far they are apart. Which pairs belong together is Llama's choice (halves).

Source: Su et al. 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding".
"""

import torch
from torch import Tensor


def rotary(x: Tensor, positions: Tensor, base: float = 10_000.0) -> Tensor:
    """x (B, H, t, d) turned by the positions (t,) of its tokens in the whole row: local_positions(T), not 0 to t-1.

    ValueError for an odd head size, or another number of positions than tokens.
    """
    t, d = x.shape[-2:]
    if d % 2 or positions.shape != (t,):
        raise ValueError(f"x {list(x.shape)} and positions {list(positions.shape)}: expected an even head size and one "
                         f"position for each of the {t} tokens")
    rates = base ** (-torch.arange(0, d, 2, dtype=torch.float64, device=x.device) / d)  # (d/2,)
    angles = positions.to(x.device, torch.float64)[:, None] * rates  # (t, d/2)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
