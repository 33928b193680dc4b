"""A gradient that is not there, in a message with others that are."""

import torch
from torch import Tensor


def mark_missing(part: Tensor) -> None:
    """Minus zeros: "no gradient here". Whatever is added to them wins, and only minus zeros add up to minus zeros."""
    part.fill_(-0.0)


def take_gradient(gradient: Tensor, part: Tensor) -> None:
    """Copy `gradient` into `part`, every minus zero as a zero: one pass over it, like any copy."""
    torch.add(gradient, 0.0, out=part)


def is_missing(part: Tensor) -> bool:
    """Whether no rank had this gradient. AdamW must leave such a parameter alone, and decay one with zeros.

    Every owner of a piece can say so by itself, without a further message.
    """
    return bool(part.numel()) and begins_missing(part[:1]) and begins_missing(part)


def begins_missing(part: Tensor) -> bool:
    return bool(((part == 0) & part.signbit()).all())
