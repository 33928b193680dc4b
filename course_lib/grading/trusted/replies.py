"""The grader's ends of the connections to the ranks: what they are told, what they say until time is up, and how much
they sent each other.

What comes back may be anything. It is checked, and only then believed to be tensors and numbers; where a trial has no
answers, a student hears of an error, a process that ended, a run that does not.

Who sent how much to whom is read off what the operating system counts for each connection. A rank names its connections
before it meets student code; the worker reads their counters before the inputs are given and after the answers are
there. Whatever takes another way over the network shows in the total of the network, which is the run's own. Headers of
TCP are in that total and not in a connection's count; gloo's own headers are in both.
"""

import json
import math
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from course_lib.grading.exercise import SentBytes
from course_lib.grading.trusted.inside import frames
from course_lib.grading.trusted.inside.rank import ERROR, LATE, LOADED, MAX_TRIED, NO_REPLY, QUESTION, REPLY, TRIED

MAX_QUESTION = 10_000  # bytes
SEEN = ("waits", "busy_s", "cpu_s", "clock_s")  # of a rank that is late
STILL = 0.2  # of a core: who uses no more between two looks does nothing, as at home
LOOKS_S = 5.0  # for a second look at each rank, where others have the cores
# In the answers of all ranks together; right ones have up to 25,000 and 3,000,000 (2026-11-28).
MOST_VALUES, MOST_NUMBERS = 100_000, 1 << 23  # numbers, words, lists and dicts; numbers in tensors
NOT_JUDGED = "only the time limit speaks: there are no points before your teacher has looked at it"
GIVEN_BACK = 10  # times the limit that a busy machine may take
GRACE_S = 0.5  # after the first rank failed: another one may know more
HEADERS_OF_SEGMENT = 66  # Ethernet, IPv4 and TCP with timestamps


class GraderBroken(RuntimeError):
    """Our own side did not work: nothing can be said about the student's code."""


class NoAnswers(Exception):
    """The trial has no answers: what a student should hear. `kind`: "not written", "refused", "late" or ""."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class Deadline:
    """A point in time, which can come nearer, and goes away while a busy machine keeps the run from its work.

    lost_s: seconds that were lost so far because others had the cores. They are given back, or marks would depend on
    what else runs; up to GIVEN_BACK times the timeout, and then `starved` says that the time decided nothing.
    """

    starved = False

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
            lost, most = self._lost_s(now - self._start), GIVEN_BACK * self._timeout_s
            self.starved, lost = lost >= most, min(lost, most)
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
        self.tried: set[str] = set()  # what student code tried, as its own process says: for the teacher's eyes alone

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
        looks: dict[int, list[dict]] = {}  # what a rank said of itself when time was nearly up
        deadline = Deadline(timeout_s, self.lost_s)
        for rank, got, payload in self._messages(deadline):
            if got == kind and rank not in received:
                received[rank] = payload
                if len(received) == len(self.connections):
                    return [received[rank] for rank in range(len(received))]
            elif got == QUESTION and reply:
                self.asked[rank] += 1
                self._reply(self.connections[rank], reply, payload)
            elif got == TRIED:
                if len(self.tried) < MAX_TRIED:
                    self.tried.add(payload[:200].decode(errors="replace").strip('"'))
            elif got == LATE:
                looks[rank] = [*looks.get(rank, [])[-1:], error_in(payload)]
            elif rank not in received:
                error = error_in(payload) if got == ERROR else None if got is None else {"words": "sent nonsense"}
                failures.append((rank, error))
                deadline.at_most(GRACE_S)  # the others often hang then, and waiting longer tells nothing more
                if len(failures) + len(received) == len(self.connections):
                    break
        if failures:
            raise worst(failures)
        if deadline.starved:
            raise GraderBroken(f"this machine has too much to do: no cores in {(1 + GIVEN_BACK) * timeout_s:g} s")
        looks = {rank: looks.get(rank, []) for rank in range(len(self.connections)) if rank not in received}
        look_again = self._messages(Deadline(LOOKS_S, None))
        while not all(len(seen) > 1 for seen in looks.values()) and (message := next(look_again, None)):
            rank, got, payload = message
            if got == LATE and rank in looks:
                looks[rank] = [*looks[rank][-1:], error_in(payload)]
        raise too_late(kind, looks, timeout_s)

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


def read(payloads: list[bytes]) -> list[dict[str, Any]]:
    """The ranks' replies as plain data: {"answer", "sent"}. NoAnswers where one is something else, or too much."""
    replies = []
    for payload in payloads:
        try:
            reply = frames.Unpacked(payload, MOST_VALUES // len(payloads), MOST_NUMBERS // len(payloads)).value
        except Exception as error:  # whatever a forged one makes json or torch raise
            why = str(error) if type(error) is ValueError else type(error).__name__
            raise NoAnswers(f"the result cannot be read as tensors and numbers ({why[:200]})") from None
        if type(reply) is not dict or reply.keys() != {"answer", "sent"}:
            raise NoAnswers("the result is not as the grader wrote it")
        replies.append(reply)
    return replies


def error_in(payload: bytes) -> dict[str, str]:
    """What a rank says of its error; it may say anything."""
    try:
        error = json.loads(payload[:20_000])
        return {key: str(error.get(key, ""))[:2000] for key in ("kind", "name", "words", "where", *SEEN)}
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


def too_late(kind: bytes, looks: dict[int, list[dict]], timeout_s: float) -> NoAnswers:
    """What is said of ranks that were not done in time. looks: the last that each said of itself, two where it could.

    Ranks that all wait for another one hang. Of anything else nobody knows whether it would have ended: it is "late".
    """
    who = f"rank{'s' * (len(looks) > 1)} {', '.join(map(str, looks))}"
    last = {rank: said[-1] for rank, said in looks.items() if said}
    at = "".join(f"\nrank {rank} was at {seen['where']}" for rank, seen in last.items() if seen["where"])
    if all(map(hangs, looks.values())):
        return NoAnswers(f"it hangs: {who} wait{'s' * (len(looks) == 1)} for another rank, and nothing moves: look for "
                         f"a receive that nobody sends to, or a circle in which all send first{at}")
    used = ", ".join(f"{seconds(seen['cpu_s']):.3g} s on rank {rank}" for rank, seen in last.items())
    what = (f"the solution cell itself did not end within {timeout_s:g} s on {who}: keep experiments in other cells"
            if kind == LOADED else f"{who} did not finish within {timeout_s:g} s. Does a loop never end? Does it wait "
            "for something other than a rank?")
    return NoAnswers("\n".join([what + at, *([f"it had computed for {used}"] if used else []), NOT_JUDGED]), "late")


def hangs(looks: list[dict]) -> bool:
    """Whether a rank was in the same call to another one at both looks, and used no core in between."""
    if len(looks) < 2 or not looks[0]["waits"] or looks[0]["waits"] != looks[1]["waits"]:
        return False
    used_s, passed_s = (seconds(looks[1][name]) - seconds(looks[0][name]) for name in ("busy_s", "clock_s"))
    return used_s < STILL * passed_s


def seconds(said: str) -> float:
    """What a rank says that it used; infinite where that is no time."""
    try:
        return value if (value := float(said)) >= 0 else math.inf
    except ValueError:
        return math.inf


def owners_of(messages: list[bytes]) -> dict[tuple[int, int], tuple[int, int]]:
    """Which connection, by its two ports, leads from which rank to which. Said before any student code was there."""
    ports = [json.loads(message) for message in messages]
    rank_at = {own: rank for rank, pairs in enumerate(ports) for own, _ in pairs}
    return {(own, other): (rank_at[own], rank_at[other]) for pairs in ports for own, other in pairs if other in rank_at}


def count_traffic(owners: dict[tuple[int, int], tuple[int, int]], before: dict, after: dict,
                  world_size: int) -> SentBytes:
    """What the operating system counted between two readings. NoAnswers where bytes took another way."""
    start, end = ({(own, other): (total, again) for own, other, total, again in reading["connections"]}
                  for reading in (before, after))
    sent = [[0] * world_size for _ in range(world_size)]
    sent_again = 0  # a busy machine repeats what was not confirmed in time, also to itself
    for ends, (source, target) in owners.items():
        if ends not in start or ends not in end:
            raise NoAnswers("the connections between the ranks were closed: keep the process group as it is", "refused")
        again = end[ends][1] - start[ends][1]
        sent[source][target] += end[ends][0] - start[ends][0] - again
        sent_again += again
    if after.get("collectives"):
        raise NoAnswers("the ranks used a collective of the library, as the messages on their network say: write it "
                        "with send and recv", "refused")
    if "lo_bytes" in after:
        # The network is the run's own, so each byte that crossed it is one of: a connection's own bytes, those that
        # were sent again, and a header for each segment. What is beyond these went around the connections.
        total, segments = (after[name] - before[name] for name in ("lo_bytes", "segments"))
        known = sum(map(sum, sent))
        elsewhere = total - HEADERS_OF_SEGMENT * segments - sent_again - known
        # The counts of a reading are not of one moment: room for what was under way.
        if elsewhere > known * 0.01 + 4096 or after["local_sockets"] > 0:
            raise NoAnswers("data went between the ranks by another way than the process group: use dist.send and "
                            "dist.recv alone", "refused")
    return SentBytes(sent, exact=False)


def claimed_traffic(logs: list[Any]) -> SentBytes:
    """What the ranks themselves say they sent."""
    sent = [[0] * len(logs) for _ in logs]
    try:
        for rank, log in enumerate(logs):
            for peer, num_bytes in log:
                sent[rank][peer] += int(num_bytes)
    except (TypeError, ValueError, IndexError):
        raise NoAnswers("the count of bytes came back damaged") from None
    return SentBytes(sent, exact=True)
