"""What comes back from a rank, which may be anything: checked, and only then believed to be tensors and numbers.

What a student hears when a trial has no answers: an error, a process that ended, a run that does not.
"""

import io
import json
import zipfile
from typing import Any

import torch

from course_lib.grading.trusted.inside.rank import LOADED


class NoAnswers(Exception):
    """The trial has no answers: what a student should hear. `kind`: "not written", "refused" or ""."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


def read(payload: bytes, max_bytes: int) -> dict[str, Any]:
    """A rank's reply as plain data: {"answer", "sent"}. NoAnswers for all else; sizes are checked before it is read."""
    try:
        # A compressed file of a few kB may unpack to gigabytes; torch.save does not compress.
        with zipfile.ZipFile(io.BytesIO(payload)) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise NoAnswers("the result is not as torch.save writes it")
        # On "meta" tensors have a size and no memory: a small file may describe a huge tensor.
        sizes = torch.load(io.BytesIO(payload), weights_only=True, map_location="meta")
        check(sizes, max_bytes)
        reply = torch.load(io.BytesIO(payload), weights_only=True)
        if type(reply) is not dict or "answer" not in reply:
            raise NoAnswers("the result is not as the grader wrote it")
        return reply
    except NoAnswers:
        raise
    except Exception as error:  # whatever a forged file makes torch or zipfile raise: it is their word that it is bad
        raise NoAnswers(f"the result cannot be read as tensors and numbers ({type(error).__name__})") from None


def check(value: Any, max_bytes: int, depth: int = 0) -> int:
    """Bytes of all tensors in `value`. NoAnswers above `max_bytes`, and for types that no answer needs."""
    if depth > 10:
        raise NoAnswers("the result is nested too deeply")
    if type(value) is torch.Tensor:
        if value.layout is not torch.strided or value.is_quantized:
            raise NoAnswers("the result holds a tensor that is not a plain one")
        total = value.numel() * value.element_size()
    elif type(value) in (list, tuple, dict):
        parts = [*value.keys(), *value.values()] if type(value) is dict else value
        total = sum(check(part, max_bytes, depth + 1) for part in parts)
    elif value is None or type(value) in (bool, int, float, str):
        total = 0
    else:
        raise NoAnswers(f"the result holds a {type(value).__name__}: expected tensors, numbers, strings, lists and "
                        "dicts")
    if total > max_bytes:
        raise NoAnswers(f"the result holds more than {max_bytes:,} bytes")
    return total


def error_in(payload: bytes) -> dict[str, str]:
    """What a rank says of its error; it may say anything."""
    try:
        error = json.loads(payload[:20_000])
        return {key: str(error.get(key, ""))[:2000] for key in ("kind", "name", "words", "where")}
    except (ValueError, AttributeError, RecursionError):
        return {"words": "sent nonsense"}


def worst(failures: list[tuple[int, dict | None]]) -> NoAnswers:
    """The failure that explains the others: a process that ended, else the first error that is not its echo."""
    def is_echo(error: dict | None) -> bool:
        return error is not None and "onnection" in error["words"]  # "Connection closed by peer": another one ended
    rank, error = next((one for one in failures if not is_echo(one[1])), failures[0])
    if error is None:
        return NoAnswers(f"rank {rank} ended without an answer: its process was ended (os._exit, a crash, or a limit "
                         "on memory, time or the size of files)")
    if error.get("kind") == "not written":
        return NoAnswers(f"rank {rank}: {error['words']}", "not written")
    where = f" ({error['where']})" if error.get("where") else ""
    if error.get("kind") == "refused":
        return NoAnswers(error["words"] + where, "refused")
    what = ": ".join(filter(None, (error.get("name"), error["words"])))
    return NoAnswers(f"rank {rank}: {what}{where}")


def too_late(kind: bytes, who: str, timeout_s: float) -> str:
    """The sentence for a rank that was not done in time, by what it was doing."""
    if kind == LOADED:
        return f"the solution cell itself did not end within {timeout_s:g} s on {who}: keep experiments in other cells"
    return (f"{who} did not finish within {timeout_s:g} s: look for a receive that nobody sends to, a circle in which "
            "all send first, or a loop without an end")
