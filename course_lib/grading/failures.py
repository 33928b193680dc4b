"""What a student hears when a trial has no answers: an error, a process that ended, a run that does not."""

import json

from course_lib.grading.isolated_rank import LOADED
from course_lib.grading.replies import Failed


def error_in(payload: bytes) -> dict[str, str]:
    """What a rank says of its error; it may say anything."""
    try:
        error = json.loads(payload[:20_000])
        return {key: str(error.get(key, ""))[:2000] for key in ("kind", "name", "words", "where")}
    except (ValueError, AttributeError, RecursionError):
        return {"words": "sent nonsense"}


def worst(failures: list[tuple[int, dict | None]]) -> Failed:
    """The failure that explains the others: a process that ended, else the first error that is not its echo."""
    def is_echo(error: dict | None) -> bool:
        return error is not None and "onnection" in error["words"]  # "Connection closed by peer": another one ended
    rank, error = next((one for one in failures if not is_echo(one[1])), failures[0])
    if error is None:
        return Failed(f"rank {rank} ended without an answer: its process was ended (os._exit, a crash, or a limit on "
                      "memory, time or the size of files)")
    if error.get("kind") == "not written":
        return Failed(f"rank {rank}: {error['words']}", "not written")
    if error.get("kind") == "refused":
        return Failed(f"{error['words']} ({error['where']})", "refused")
    what = ": ".join(filter(None, (error.get("name"), error["words"])))
    return Failed(f"rank {rank}: {what}" + (f" ({error['where']})" if error.get("where") else ""))


def too_late(kind: bytes, who: str, timeout_s: float) -> str:
    if kind == LOADED:
        return f"the solution cell itself did not end within {timeout_s:g} s on {who}: keep experiments in other cells"
    return (f"{who} did not finish within {timeout_s:g} s: look for a receive that nobody sends to, a circle in which "
            "all send first, or a loop without an end")
