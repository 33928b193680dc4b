"""The grader's ends of the connections to the ranks: what they are told, and what they say until time is up."""

import json
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from course_lib.grading.trusted.inside import frames
from course_lib.grading.trusted.inside.rank import ERROR, LATE, NO_REPLY, QUESTION, REPLY
from course_lib.grading.trusted.replies import NoAnswers, error_in, too_late, worst

MAX_QUESTION = 10_000  # bytes
GRACE_S = 0.5  # after the first rank failed: another one may know more


class Deadline:
    """A point in time, which can come nearer, and goes away while a busy machine keeps the run from its work.

    lost_s: seconds that were lost so far because others had the cores. They are given back, up to twice the timeout,
    or marks would depend on what else runs.
    """

    def __init__(self, timeout_s: float, lost_s: Callable[[float], float] | None) -> None:
        self._start, self._timeout_s, self._lost_s = time.monotonic(), timeout_s, lost_s
        self._at = self._start + timeout_s

    def at_most(self, timeout_s: float) -> None:
        """Bring it forward to `timeout_s` from now, if that is earlier; then nothing is given back."""
        self._lost_s = None
        self._at = min(self._at, time.monotonic() + timeout_s)

    def left_s(self) -> float:
        """Seconds until then; negative when it has passed."""
        now = time.monotonic()
        if now >= self._at and self._lost_s:
            lost = min(self._lost_s(now - self._start), 2 * self._timeout_s)
            self._at = max(self._at, self._start + self._timeout_s + lost)
        return self._at - now


class RankConnections:
    """The grader's ends of the connections to the ranks of one trial. lost_s: as a Deadline has it."""

    def __init__(self, connections: list[socket.socket], trial_s: float, result_bytes: int,
                 lost_s: Callable[[float], float]) -> None:
        self.connections = connections
        self.trial_s = trial_s
        self.lost_s = lost_s
        self.inboxes = [frames.Inbox(result_bytes) for _ in connections]
        self.asked = [0] * len(connections)  # questions of each rank

    def tell(self, kind: bytes, payloads: list[bytes]) -> None:
        """Send each rank its payload. NoAnswers where one has ended already."""
        for rank, (connection, payload) in enumerate(zip(self.connections, payloads)):
            connection.settimeout(self.trial_s)
            try:
                frames.send(connection, kind, payload)
            except OSError:
                raise NoAnswers(f"rank {rank} ended before it was asked anything") from None

    def wait(self, kind: bytes, timeout_s: float, reply: Callable[[Any], Any] | None = None) -> list[bytes]:
        """One message of this kind from every rank. NoAnswers where a rank fails, ends, or is late.

        reply: answers what a rank asks before that, with a ValueError for what cannot be asked.
        """
        received: dict[int, bytes] = {}
        failures: list[tuple[int, dict | None]] = []  # rank, and its error; None where its process ended
        places: dict[int, str] = {}  # where a rank was when time was nearly up
        deadline = Deadline(timeout_s, self.lost_s)
        for rank, got, payload in self._messages(deadline):
            if got == kind and rank not in received:
                received[rank] = payload
                if len(received) == len(self.connections):
                    return [received[rank] for rank in range(len(received))]
            elif got == QUESTION and reply:
                self.asked[rank] += 1
                self._reply(self.connections[rank], reply, payload)
            elif got == LATE:
                places[rank] = error_in(payload).get("where", "")
            elif rank not in received:
                error = error_in(payload) if got == ERROR else None if got is None else {"words": "sent nonsense"}
                failures.append((rank, error))
                deadline.at_most(GRACE_S)  # the others often hang then, and waiting longer tells nothing more
                if len(failures) + len(received) == len(self.connections):
                    break
        if failures:
            raise worst(failures)
        waiting = [rank for rank in range(len(self.connections)) if rank not in received]
        ranks = ", ".join(map(str, waiting))
        at = "".join(f"\nrank {rank} was at {places[rank]}" for rank in waiting if places.get(rank))
        raise NoAnswers(too_late(kind, f"rank{'s' * (len(waiting) > 1)} {ranks}", timeout_s) + at)

    def _reply(self, connection: socket.socket, reply: Callable[[Any], Any], payload: bytes) -> None:
        try:
            answer = REPLY, reply(json.loads(payload[:MAX_QUESTION]))
        except ValueError as error:  # also of json: what is no question
            answer = NO_REPLY, str(error)[:2000]
        except Exception as error:  # whatever else a question that nobody thought of may raise
            answer = NO_REPLY, f"that cannot be asked ({type(error).__name__})"
        with suppress(OSError):  # it ended, or does not listen: that shows by itself
            frames.send(connection, answer[0], json.dumps(answer[1]).encode())

    def _messages(self, deadline: Deadline) -> Iterator[tuple[int, bytes | None, bytes]]:
        """(rank, kind, payload) as they come, kind None for a rank that ended; until time is up."""
        with selectors.DefaultSelector() as selector:
            for rank, connection in enumerate(self.connections):
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ, rank)
                try:
                    while (message := self.inboxes[rank].take()) is not None:  # came along with the one before
                        yield rank, *message
                except frames.BadFrame:
                    yield rank, b"?", b""
            while selector.get_map() and (timeout := deadline.left_s()) > 0:
                for key, _ in selector.select(timeout):
                    rank = key.data
                    try:
                        piece = key.fileobj.recv(frames.PIECE)
                        self.inboxes[rank].feed(piece)
                        while (message := self.inboxes[rank].take()) is not None:
                            yield rank, *message
                    except BlockingIOError:
                        continue
                    except (OSError, frames.BadFrame):
                        selector.unregister(key.fileobj)
                        yield rank, b"?", b""
                        continue
                    if not piece:
                        selector.unregister(key.fileobj)
                        yield rank, None, b""
