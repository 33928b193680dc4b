"""Count what a rank communicates: `with record_communication() as log:` around calls of torch.distributed.

Seen is each call, of any thread and through any API (arrivals.py), and the size of its message. What a collective then
sends is *counted as a ring would send it*: operations.py has the formulas, and a backend may send otherwise. What
really crossed the wire is counted by the operating system (wire.py), and stands beside it where it can be asked.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from html import escape
from typing import Any

import torch
import torch.distributed as dist

from course_lib.runtime.instruments.arrivals import Arrival, Run, handle_arrivals
from course_lib.runtime.instruments.pending import listen
from course_lib.runtime.instruments.recordings import Recording, keep_recording, this_rank
from course_lib.runtime.instruments.wire import WireCounter
from course_lib.runtime.operations import POINT_TO_POINT, Transfer
from course_lib.runtime.tensors import tensors_in

MAX_NAMED_GROUPS = 4  # a table cell names this many groups or pairs, and counts more
HEADER_BYTES = 48  # of a message of gloo's


@dataclass(frozen=True)
class CommunicationEvent:
    """One operation as one rank called it. Ranks are global.

    `peer` is the other end of a send or recv (None for a collective, and for a recv from any rank). The byte
    counts are None for an operation without a rule: an operator unknown to operations.py, or a sparse tensor.
    """

    rank: int
    op: str
    message_bytes: int | None
    sent_bytes: int | Fraction | None
    dtype: torch.dtype | None
    group: tuple[int, ...]
    peer: int | None = None


def describe_call(rank: int, arrival: Arrival) -> CommunicationEvent:
    """The event of one call on a process group."""
    row, named, group = arrival.row, arrival.arguments, arrival.group
    group_ranks = tuple(dist.get_process_group_ranks(group))
    if row is None:
        dtype = next((tensor.dtype for tensor in tensors_in(tuple(named.values()))), None)
        return CommunicationEvent(rank, arrival.operator.replace("::", "."), None, None, dtype, group_ranks)

    tensors = tensors_in([*named.values()][row.message.argument]) if row.message else []
    dtype = tensors[0].dtype if tensors else None
    other_end = named.get(row.peer)
    peer = None if other_end is None else group_ranks[other_end]
    if any(tensor.layout is not torch.strided for tensor in tensors):
        return CommunicationEvent(rank, row.name, None, None, dtype, group_ranks, peer)
    n = group.size()
    M = sum(map(num_bytes, tensors)) * (n if row.message and row.message.one_block else 1)
    kept = kept_bytes(tensors, named, n, group.rank()) if row.name == "all_to_all" else 0
    sent = row.sent_bytes(Transfer(M, n, group.rank(), named.get("root_rank", 0), kept))
    return CommunicationEvent(rank, row.name, M, int_if_whole(sent), dtype, group_ranks, peer)


def kept_bytes(tensors: list[torch.Tensor], named: dict[str, Any], n: int, r: int) -> int:
    """What an all_to_all with the input blocks `tensors` leaves on rank r of n itself."""
    if "input_tensors" in named:  # one tensor a destination
        return num_bytes(tensors[r])
    rows = named.get("input_split_sizes") or [1] * n  # no sizes given: n equal blocks
    return num_bytes(tensors[0]) * int(rows[r]) // max(int(sum(rows)), 1)


def add_up(one: dict[str, int] | None, other: dict[str, int] | None) -> dict[str, int] | None:
    """Bytes by operation of two recordings of a rank."""
    return None if one is None or other is None else dict(Counter(one) + Counter(other))


def wire_of(wire: dict[str, int], op: str | None) -> int | None:
    """What a rank wrote for `op` alone; None where `op` shared the wire with others."""
    if op is None:
        return sum(wire.values())
    return None if any(op in ops.split(" + ") for ops in wire if ops != op) else wire.get(op, 0)


def bounds_on_wire(event: CommunicationEvent) -> tuple[int | Fraction, int | Fraction]:
    """The least and the most bytes that gloo writes on this rank for a call.

    They are a ring's, but an all-reduce's for a reduce-scatter, up to log2(n) messages for a broadcast (a tree), and up
    to one message more for a reduce. A short call has up to 12 headers for each other rank (and is made n times of a
    list, by a reduce-scatter); a long one is cut into more messages, whose headers are less than 1 %.
    """
    n, M, ring = len(event.group), event.message_bytes, event.sent_bytes
    least, most, calls = ring, ring, 1
    if event.op == "reduce_scatter":
        least, most, calls = 2 * ring, 2 * ring, n
    elif event.op == "broadcast":
        least, most = 0, (n - 1).bit_length() * M
    elif event.op == "reduce":
        most = ring + M
    return least, most + most // 100 + 12 * calls * (n - 1) * HEADER_BYTES


def num_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def int_if_whole(number: int | Fraction) -> int | Fraction:
    return int(number) if number == int(number) else number


@dataclass(frozen=True, repr=False)
class CommunicationLog(Recording):
    """Every operation that `ranks` called, in order for each rank. All ranks are global, all sizes bytes."""

    ranks: tuple[int, ...]
    events: list[CommunicationEvent] = field(default_factory=list)
    wire: dict[int, dict[str, int] | None] = field(default_factory=dict)  # by rank and operation; None: not measured
    records = "communication"

    @classmethod
    def merge(cls, logs: Iterable[Recording]) -> "CommunicationLog":
        """One log of all communication logs among `logs`, rank by rank."""
        own = [log for log in logs if isinstance(log, cls)]
        merged = cls(tuple(sorted({rank for log in own for rank in log.ranks})),
                     sorted((event for log in own for event in log.events), key=lambda event: event.rank))
        for log in own:
            for rank, wire in log.wire.items():
                merged.wire[rank] = add_up(merged.wire.get(rank, {}), wire)
        return merged

    def by_rank(self, rank: int) -> "CommunicationLog":
        """What one rank recorded. ValueError for a rank that recorded nothing at all."""
        self.check_has(rank)
        return CommunicationLog((rank,), [event for event in self.events if event.rank == rank],
                                {other: wire for other, wire in self.wire.items() if other == rank})

    def calls(self, op: str | None = None) -> int:
        """Number of calls of `op` ("all_reduce", "send", ...), or of all operations."""
        return len(self._select(op))

    def message_bytes(self, op: str | None = None) -> int:
        """Sum of the messages of `op`, or of all operations, each as large as one rank sees it.

        A merged log adds what every rank saw: an all_reduce of 4 kB on 4 ranks counts 16 kB.
        """
        return sum(event.message_bytes for event in self._countable(op))

    @property
    def sent_bytes(self) -> int | Fraction:
        """Bytes sent, collectives counted as a ring would send them, send as it is. An int wherever it is whole."""
        return int_if_whole(sum((event.sent_bytes for event in self._countable(None)), Fraction(0)))

    def wire_bytes(self, op: str | None = None) -> int | None:
        """Bytes that the ranks' operating system saw them write for `op`, or for all operations; None where it does not
        count (a GPU's wire, another system), or where other operations were under way at the same time.
        """
        known = [None if wire is None else wire_of(wire, op) for wire in (self.wire.get(rank) for rank in self.ranks)]
        return None if not known or None in known else sum(known)

    def agrees_with_wire(self) -> bool:
        """Whether the system saw what was counted, as gloo sends it; True where nobody counts, or has a rule."""
        written = self.wire_bytes()
        if written is None or any(event.sent_bytes is None for event in self.events):
            return True
        least, most = map(sum, zip((0, 0), *map(bounds_on_wire, self.events)))
        return least <= written <= most

    def _select(self, op: str | None) -> list[CommunicationEvent]:
        return [event for event in self.events if op is None or event.op == op]

    def _countable(self, op: str | None) -> list[CommunicationEvent]:
        events = self._select(op)
        for event in events:
            if event.message_bytes is None:
                raise ValueError(f"{event.op} on group {event.group} has no rule for its bytes (an operator unknown to "
                                 "operations.py, or a sparse tensor); .events and .calls() still work")
        return events

    def finding(self) -> str:
        if not self.ranks:
            return "CommunicationLog: nothing was recorded; wrap the code in `with record_communication():`"
        logs = [self.by_rank(rank) for rank in self.ranks]
        if len({log._summary() for log in logs}) == 1:
            return f"CommunicationLog: {self.who()} {logs[0]._summary()}"
        finding = f"CommunicationLog: {len(logs)} ranks {self._summary()}"
        sent = {log.ranks[0]: sum_or_none(event.sent_bytes for event in log.events) for log in logs}
        if None in sent.values():
            return finding
        most = max(sent, key=lambda rank: sent[rank])
        return f"{finding}; most from rank {most}: {number(sent[most])}"

    def _summary(self) -> str:
        if not self.events:
            return "communicated nothing"
        calls = Counter(event.op for event in self.events)
        each = ", ".join(f"{count} {op}" for op, count in calls.items())
        sent = number(sum_or_none(event.sent_bytes for event in self.events))
        convention = ", counted as a ring" * any(op not in (*POINT_TO_POINT, "barrier") for op in calls)
        return f"sent {sent} bytes{convention}, in {self.calls()} call{'s' * (self.calls() > 1)} ({each})"

    def html(self) -> str | None:
        return table(self) if self.events else None


@contextmanager
def record_communication() -> Iterator[CommunicationLog]:
    """Record every communication call of this rank inside the block; the log can be read at any time.

    Recorders nest: the outer one also holds what the inner one saw.
    """
    log = CommunicationLog((this_rank(),))

    def write_down(arrival: Arrival, run: Run) -> Any:
        # Described before it runs (a sparse all_reduce changes its tensor), kept only when it did run.
        event = describe_call(log.ranks[0], arrival)
        result = run()
        log.events.append(event)
        return result

    counter = WireCounter()
    with keep_recording(log):
        try:
            with listen(counter), handle_arrivals(write_down):
                yield log
        finally:
            log.wire[log.ranks[0]] = counter.close()


def table(log: CommunicationLog) -> str:
    """The log as HTML: a row for each operation, number type and kind of partner; a column for each rank."""
    rows: dict[tuple[str, ...], list[CommunicationEvent]] = {}
    for event in log.events:
        dtype = str(event.dtype).removeprefix("torch.") if event.dtype else ""
        partners = "pair" if event.op in POINT_TO_POINT else f"group of {len(event.group)}"
        rows.setdefault((event.op, dtype, partners), []).append(event)
    ranks = log.ranks if len(log.ranks) > 1 else ()
    head = ["operation", "between ranks", "dtype", "calls", "message bytes", "sent, as a ring", "on the wire",
            *(f"rank {rank} sent" for rank in ranks)]
    several = Counter(op for op, *_ in rows)  # of one operation, with different types or partners
    body = [[op, list_partners(events), dtype,
             *counts(events, ranks, "" if several[op] > 1 else wire_text(log, op))]
            for (op, dtype, _), events in rows.items()]
    lines = ["<table>", f"<caption>{escape(log.finding().partition(': ')[2])}</caption>"]
    body.append(["all", "", "", *counts(log.events, ranks, wire_text(log, None))])
    for tag, cells in [("th", head), *(("td", row) for row in body)]:
        aligned = ["left"] * 3 + ["right"] * (len(cells) - 3)  # words, then numbers
        lines.append("<tr>" + "".join(f'<{tag} style="text-align:{side}">{escape(cell)}</{tag}>'
                                      for cell, side in zip(cells, aligned)) + "</tr>")
    return "\n".join([*lines, "</table>"])


def counts(events: list[CommunicationEvent], ranks: Iterable[int], on_wire: str) -> list[str]:
    """Calls, message bytes, sent bytes of `events`, what was on the wire, then the bytes that each of `ranks` sent."""
    columns = [[event.message_bytes for event in events], [event.sent_bytes for event in events],
               *([event.sent_bytes for event in events if event.rank == rank] for rank in ranks)]
    message, sent, *by_rank = (number(sum_or_none(column)) for column in columns)
    return [number(len(events)), message, sent, on_wire, *by_rank]


def wire_text(log: CommunicationLog, op: str | None) -> str:
    measured = log.wire_bytes(op)
    if measured is not None:
        return number(measured)
    return "not measured" if any(log.wire.get(rank) is None for rank in log.ranks) else "with others"


def list_partners(events: list[CommunicationEvent]) -> str:
    """The partners of `events`: `0 → 1` for a send, `1 ← 0` for a recv, `(0, 1, 2)` for a group."""
    arrow = {"send": "→", "recv": "←"}.get(events[0].op)
    different = list(dict.fromkeys(
        f"{event.rank} {arrow} {'any' if event.peer is None else event.peer}" if arrow
        else f"({', '.join(map(str, event.group))})" for event in events))
    if len(different) > MAX_NAMED_GROUPS:
        return f"{len(different)} {'pairs' if arrow else 'groups'}"
    return ", ".join(different)


def sum_or_none(values: Iterable[int | Fraction | None]) -> int | Fraction | None:
    """The sum of `values`, or None when one of them is not known."""
    known = list(values)
    return None if None in known else int_if_whole(sum(known, Fraction(0)))


def number(value: int | Fraction | None) -> str:
    """`value` for a reader: 1,536, a fraction to one decimal, "unknown" for None."""
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int) else f"{float(value):,.1f}"
