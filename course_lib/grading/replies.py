"""What comes back from a rank, which may be anything: checked, and only then believed to be tensors and numbers."""

import io
import zipfile
from typing import Any

import torch


class Failed(Exception):
    """The trial has no answers: what a student should hear. `kind`: "not written", "refused" or ""."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


def read(payload: bytes, max_bytes: int) -> dict[str, Any]:
    """A rank's reply: checked for its sizes first, then read as plain data, then taken apart. Failed for all else."""
    try:
        with zipfile.ZipFile(io.BytesIO(payload)) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise Failed("the result is not as torch.save writes it")
        # On "meta" tensors have a size and no memory: a small file may describe a huge tensor.
        sizes = torch.load(io.BytesIO(payload), weights_only=True, map_location="meta")
        check(sizes, max_bytes)
        reply = torch.load(io.BytesIO(payload), weights_only=True)
        if type(reply) is not dict or "answer" not in reply:
            raise Failed("the result is not as the grader wrote it")
        return reply
    except Failed:
        raise
    except Exception as error:  # whatever a forged file makes torch or zipfile raise: it is their word that it is bad
        raise Failed(f"the result cannot be read as tensors and numbers ({type(error).__name__})") from None


def check(value: Any, max_bytes: int, depth: int = 0) -> int:
    """Bytes of all tensors in `value`. Failed above `max_bytes`, and for types that no answer needs."""
    if depth > 10:
        raise Failed("the result is nested too deeply")
    if type(value) is torch.Tensor:
        if value.layout is not torch.strided or value.is_quantized:
            raise Failed("the result holds a tensor that is not a plain one")
        total = value.numel() * value.element_size()
    elif type(value) in (list, tuple, dict):
        parts = [*value.keys(), *value.values()] if type(value) is dict else value
        total = sum(check(part, max_bytes, depth + 1) for part in parts)
    elif value is None or type(value) in (bool, int, float, str):
        total = 0
    else:
        raise Failed(f"the result holds a {type(value).__name__}: expected tensors, numbers, strings, lists and dicts")
    if total > max_bytes:
        raise Failed(f"the result holds more than {max_bytes:,} bytes")
    return total
