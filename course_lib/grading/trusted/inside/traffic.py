"""What the operating system says of what ranks send: bytes, and whether a library's collective was among it.

Bytes are read of each connection, and where the network is the run's own also of all that crossed it. Gloo begins each
message with a head of six numbers. The third one, the slot, says what it belongs to: a number below 2^32, the tag, for
send and recv; for a collective also what it is, in its highest byte (gloo/types.h, gloo/transport/tcp/pair.h). Heads
that announce a message travel alone, so a packet filter (classic BPF) finds them. Nothing in a rank can change that.
"""

import ctypes
import re
import socket
import struct
import subprocess
from contextlib import suppress

SOCKET_LINE = re.compile(r"\s\S+:(\d+)\s+\S+:(\d+)\s")
BYTES_SENT, BYTES_SENT_AGAIN = re.compile(r"\bbytes_sent:(\d+)"), re.compile(r"\bbytes_retrans:(\d+)")
ETH_P_ALL, SO_ATTACH_FILTER = 3, 26
HEAD_BYTES, ANNOUNCE_SEND, ANNOUNCE_RECEIVE = 48, 2, 3

# linux/filter.h; a load is big-endian, and gloo's numbers are little-endian.
BYTE, BYTE_AT_X, WORD_AT_X, HEADER_TO_X, TO_X = 0x30, 0x50, 0x40, 0xB1, 0x07
AND, SHIFT_RIGHT, SHIFT_LEFT, ADD_X, EQUAL, GOTO, RETURN, LOAD_X = 0x54, 0x74, 0x64, 0x0C, 0x15, 0x05, 0x06, 0x01


def swapped(number: int) -> int:
    """A word of 32 bits as a load of the filter sees it."""
    return int.from_bytes(number.to_bytes(4, "little"), "big")


# Instructions (operation, number, where to go if equal, where else); a text is a place. X becomes the payload of TCP.
FIND_HEADS = [
    (BYTE, 0), (AND, 0xF0), (EQUAL, 0x40, "IPv4", "IPv6"),
    "IPv6", (BYTE, 6), (EQUAL, socket.IPPROTO_TCP, "X6", "no"), "X6", (LOAD_X, 40), (GOTO, "TCP"),
    "IPv4", (BYTE, 9), (EQUAL, socket.IPPROTO_TCP, "X4", "no"), "X4", (HEADER_TO_X, 0),
    "TCP", (BYTE_AT_X, 12), (SHIFT_RIGHT, 4), (SHIFT_LEFT, 2), (ADD_X, 0), (TO_X, 0),
    (WORD_AT_X, 0), (EQUAL, swapped(HEAD_BYTES), "size", "no"), "size", (WORD_AT_X, 4), (EQUAL, 0, "kind", "no"),
    "kind", (WORD_AT_X, 12), (EQUAL, 0, "what", "no"), "what", (WORD_AT_X, 8),
    (EQUAL, swapped(ANNOUNCE_SEND), "slot", "other"), "other", (EQUAL, swapped(ANNOUNCE_RECEIVE), "slot", "no"),
    "slot", (WORD_AT_X, 20), (EQUAL, 0, "no", "yes"), "yes", (RETURN, 1), "no", (RETURN, 0),
]


def assemble(lines: list) -> bytes:
    """The program as the kernel takes it: struct sock_filter, 8 bytes each."""
    instructions = [line for line in lines if not isinstance(line, str)]
    places = {line: sum(not isinstance(each, str) for each in lines[:at])
              for at, line in enumerate(lines) if isinstance(line, str)}
    program = b""
    for at, (operation, *rest) in enumerate(instructions):
        steps = [places[each] - at - 1 if isinstance(each, str) else each for each in rest]
        number, if_equal, otherwise = (steps + [0, 0])[:3]
        program += struct.pack("HBBI", operation, if_equal, otherwise, number)
    return program


def watch_for_collectives() -> socket.socket:
    """A socket to which the heads of gloo's collectives come, in this network. OSError where we may not look at it."""
    program = ctypes.create_string_buffer(assemble(FIND_HEADS))
    watch = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
    watch.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER,
                     struct.pack("HL", len(program) // 8, ctypes.addressof(program)))
    watch.setblocking(False)
    return watch


def count_heads(watch: socket.socket) -> int:
    """How many heads of collectives came since the last time."""
    found = 0
    with suppress(BlockingIOError):
        while True:
            watch.recv(1)
            found += 1
    return found


def count_bytes(ss: str, separate: bool) -> dict:
    """(own port, other port, bytes sent, of these sent again) of every connection, by the command `ss`; in a network of
    our own also all bytes that crossed it.
    """
    listing = subprocess.run([ss, "-tinHO"], capture_output=True, text=True, timeout=10)
    listing.check_returncode()
    connections = [(int(ends[1]), int(ends[2]), *(int(found[1]) if (found := counter.search(line)) else 0
                                                  for counter in (BYTES_SENT, BYTES_SENT_AGAIN)))
                   for line in listing.stdout.splitlines() if (ends := SOCKET_LINE.search(line))]
    return {"connections": connections, **(network_totals() if separate else {})}


def network_totals() -> dict:
    """What this network has carried: bytes over its one device, TCP segments; and its open local (Unix) sockets."""
    with open("/proc/net/dev") as devices:
        lo = next(line for line in devices if line.strip().startswith("lo:"))
    with open("/proc/net/snmp") as protocols:
        names, values = [line.split() for line in protocols if line.startswith("Tcp:")]
    with open("/proc/net/unix") as local:
        num_local = len(local.readlines()) - 1
    return {"lo_bytes": int(lo.split(":")[1].split()[0]), "segments": int(values[names.index("OutSegs")]),
            "local_sockets": num_local}
