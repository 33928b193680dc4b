"""Count what a rank communicates: `with record_communication() as log:` around calls of torch.distributed.

A TorchDispatchMode sits below autograd and below every front end (`dist.all_reduce`, DDP's C++ reducer, FSDP2, DTensor,
the functional collectives, pipelining), where each call arrives as one c10d operator with its tensors and its process
group. It costs some 5 us a torch operator: use it to count, not to time. What counts as sent is in operations.py.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from html import escape
from typing import Any

import torch
import torch.distributed as dist

from course_lib.runtime.instruments.recordings import (
    OperatorWatcher,
    Recording,
    Run,
    keep_recording,
    this_rank,
    watch_operators,
)
from course_lib.runtime.operations import NAMESPACES, NOT_COUNTED, POINT_TO_POINT, Operation, Transfer, find_operation
from course_lib.runtime.tensors import tensors_in
from course_lib.runtime.torch_private import OpOverload, group_of_name

MAX_NAMED_GROUPS = 4  # a table cell names this many groups or pairs, and counts more


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


@cache
def _look_up(operator: OpOverload) -> tuple[str, Operation | None, tuple[str, ...]]:
    """The operator's name, its row, and the names of its arguments in their order."""
    schema = operator._schema
    return schema.name, find_operation(schema.name), tuple(argument.name for argument in schema.arguments)


def describe_call(rank: int, operator: OpOverload, args: Sequence[Any]) -> CommunicationEvent | None:
    """The event of one call of a c10d operator with positional `args`; None where nothing is communicated."""
    full_name, row, names = _look_up(operator)
    namespace, _, name = full_name.partition("::")
    if row is None and name in NOT_COUNTED:
        return None
    named = dict(zip(names, args))
    group = process_group(named)
    group_ranks = tuple(dist.get_process_group_ranks(group))
    if row is None:
        dtype = next((tensor.dtype for tensor in tensors_in(args)), None)
        return CommunicationEvent(rank, f"{namespace}.{name}", None, None, dtype, group_ranks)

    message = row.in_c10d if namespace == "c10d" else row.in_functional
    tensors = tensors_in(args[message.argument]) if message else []
    dtype = tensors[0].dtype if tensors else None
    other_end = named.get(row.peer)
    peer = None if other_end is None else group_ranks[other_end]
    if any(tensor.layout is not torch.strided for tensor in tensors):
        return CommunicationEvent(rank, row.name, None, None, dtype, group_ranks, peer)
    n = group.size()
    M = sum(map(num_bytes, tensors)) * (n if message and message.one_block else 1)
    root = named.get("root_rank", named.get("src", 0))
    kept = kept_bytes(tensors, named, n, group.rank()) if row.name == "all_to_all" else 0
    sent = row.sent_bytes(Transfer(M, n, group.rank(), root, kept))
    return CommunicationEvent(rank, row.name, M, int_if_whole(sent), dtype, group_ranks, peer)


def process_group(named: dict[str, Any]) -> dist.ProcessGroup:
    """The process group among an operator's arguments: boxed in c10d, elsewhere a name or the group."""
    if "process_group" in named:
        return dist.ProcessGroup.unbox(named["process_group"])
    group = named["group_name"]
    return group_of_name(group) if isinstance(group, str) else group


def kept_bytes(tensors: list[torch.Tensor], named: dict[str, Any], n: int, r: int) -> int:
    """What an all_to_all with the input blocks `tensors` leaves on rank r of n itself."""
    if "input_tensors" in named:  # one tensor a destination
        return num_bytes(tensors[r])
    rows = named.get("input_split_sizes") or [1] * n  # no sizes given: n equal blocks
    return num_bytes(tensors[0]) * int(rows[r]) // max(int(sum(rows)), 1)


def num_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def int_if_whole(number: int | Fraction) -> int | Fraction:
    return int(number) if number == int(number) else number


@dataclass(frozen=True, repr=False)
class CommunicationLog(Recording):
    """Every operation that `ranks` called, in order for each rank. All ranks are global, all sizes bytes."""

    ranks: tuple[int, ...]
    events: list[CommunicationEvent] = field(default_factory=list)
    records = "communication"

    @classmethod
    def merge(cls, logs: Iterable[Recording]) -> "CommunicationLog":
        """One log of all communication logs among `logs`, rank by rank."""
        own = [log for log in logs if isinstance(log, cls)]
        ranks = tuple(sorted({rank for log in own for rank in log.ranks}))
        events = [event for log in own for event in log.events]
        return cls(ranks, sorted(events, key=lambda event: event.rank))

    def by_rank(self, rank: int) -> "CommunicationLog":
        """What one rank recorded. ValueError for a rank that recorded nothing at all."""
        self.check_has(rank)
        return CommunicationLog((rank,), [event for event in self.events if event.rank == rank])

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
        """Bytes sent: collectives by the ring convention, send as it is. An int wherever it is whole."""
        return int_if_whole(sum((event.sent_bytes for event in self._countable(None)), Fraction(0)))

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
        return f"sent {sent} bytes in {self.calls()} call{'s' * (self.calls() > 1)} ({each})"

    def html(self) -> str | None:
        return table(self) if self.events else None


@contextmanager
def record_communication() -> Iterator[CommunicationLog]:
    """Record every communication call of this rank inside the block; the log can be read at any time.

    Recorders nest: the outer one also holds what the inner one saw.
    """
    log = CommunicationLog((this_rank(),))
    with keep_recording(log), watch_operators(_CommunicationWatcher(log)):
        yield log


class _CommunicationWatcher(OperatorWatcher):
    """Writes each operation into `log`."""

    def __init__(self, log: CommunicationLog) -> None:
        self.log = log

    def wrap(self, operator: Any, run: Run) -> Run:
        if operator.namespace not in NAMESPACES:
            return run

        def run_and_record(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
            # Described before it runs (a sparse all_reduce changes its tensor), kept only when it did run.
            event = describe_call(self.log.ranks[0], operator, args)
            result = run(args, kwargs)
            if event is not None:
                self.log.events.append(event)
            return result

        return run_and_record


def table(log: CommunicationLog) -> str:
    """The log as HTML: a row for each operation, number type and kind of partner; a column for each rank."""
    rows: dict[tuple[str, ...], list[CommunicationEvent]] = {}
    for event in log.events:
        dtype = str(event.dtype).removeprefix("torch.") if event.dtype else ""
        partners = "pair" if event.op in POINT_TO_POINT else f"group of {len(event.group)}"
        rows.setdefault((event.op, dtype, partners), []).append(event)
    ranks = log.ranks if len(log.ranks) > 1 else ()
    head = ["operation", "between ranks", "dtype", "calls", "message bytes", "sent bytes",
            *(f"rank {rank} sent" for rank in ranks)]
    body = [[op, list_partners(events), dtype, *counts(events, ranks)] for (op, dtype, _), events in rows.items()]
    lines = ["<table>", f"<caption>{escape(log.finding().partition(': ')[2])}</caption>"]
    for tag, cells in [("th", head), *(("td", row) for row in [*body, ["all", "", "", *counts(log.events, ranks)]])]:
        aligned = ["left"] * 3 + ["right"] * (len(cells) - 3)  # words, then numbers
        lines.append("<tr>" + "".join(f'<{tag} style="text-align:{side}">{escape(cell)}</{tag}>'
                                      for cell, side in zip(cells, aligned)) + "</tr>")
    return "\n".join([*lines, "</table>"])


def counts(events: list[CommunicationEvent], ranks: Iterable[int]) -> list[str]:
    """Calls, message bytes, sent bytes of `events`, then the bytes that each of `ranks` sent."""
    columns = [[event.message_bytes for event in events], [event.sent_bytes for event in events],
               *([event.sent_bytes for event in events if event.rank == rank] for rank in ranks)]
    return [number(len(events)), *(number(sum_or_none(column)) for column in columns)]


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
