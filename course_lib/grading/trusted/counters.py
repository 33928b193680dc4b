"""Who sent how much to whom, from what the operating system counts for each connection.

A rank names its connections before it meets student code; the worker reads their counters before the inputs are given
and after the answers are there. Whatever takes another way over the network shows in the total of the network, which is
the run's own. Headers of TCP are in that total and not in a connection's count; gloo's own headers are in both.
"""

import json
from typing import Any

from course_lib.grading.exercise import SentBytes
from course_lib.grading.trusted.replies import NoAnswers

HEADERS_OF_SEGMENT = 66  # Ethernet, IPv4 and TCP with timestamps


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
