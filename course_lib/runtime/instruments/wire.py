"""What crossed the wire: bytes that the operating system counts at this rank's sockets. No formula has a part in it.

gloo joins the ranks of a group by TCP connections, on one host through its loopback. Linux keeps the bytes of each
connection (TCP_INFO in tcp(7)); their sum is what this rank has written: gloo's own headers are in it, 48 bytes a
message, those of TCP and IP are not. NCCL, shared memory and other systems have no such counter: not measured.

Calls that are under way at the same time share the bytes: these stand under all their names, "all_reduce + send".
Source: struct tcp_info in include/uapi/linux/tcp.h.
"""

import os
import socket
import struct
import threading
from collections import Counter
from typing import Any

from course_lib.runtime import context
from course_lib.runtime.instruments.pending import GroupCall
from course_lib.runtime.operations import name_of_function

INFO_BYTES = 256
NOT_SENT_AT, SENT_AT = 144, 200  # u32 not sent yet; u64 sent, u64 of these sent again


def read_sockets() -> dict[str, int] | None:
    """Bytes written to each TCP connection of this process so far, by the socket's name; None where nobody counts."""
    found = {}
    try:
        numbers = os.listdir("/proc/self/fd")
    except OSError:
        return None
    for number in numbers:
        try:
            name = os.readlink(f"/proc/self/fd/{number}")
            if not name.startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(number))) as connection:
                if connection.family not in (socket.AF_INET, socket.AF_INET6) or not is_peers(connection):
                    continue
                info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)
        except OSError:  # closed meanwhile, or not connected
            continue
        if len(info) < SENT_AT + 16:  # a kernel before 4.19, or one that only looks like Linux
            return None
        sent, sent_again = struct.unpack_from("=QQ", info, SENT_AT)
        found[name] = sent - sent_again + struct.unpack_from("=I", info, NOT_SENT_AT)[0]
    return found


def is_peers(connection: socket.socket) -> bool:
    """Whether another rank is at its other end, and not torchrun's store. OSError where nobody is."""
    port = connection.getpeername()[1]
    return connection.type == socket.SOCK_STREAM and str(port) != os.environ.get("MASTER_PORT")


class WireCounter:
    """Listens to calls, and asks at the begin and the end of each time in which any was under way."""

    def __init__(self) -> None:
        self.by_op: Counter[str] = Counter()
        self.under_way: set[int] = set()
        self.ops: set[str] = set()
        self.lock = threading.Lock()  # a call ends in a thread of the backend, while the next one may begin in ours
        self.known: dict[str, int] = {}  # a connection that was closed keeps what it had
        self.counts = context.device().type == "cpu" and self.read() is not None

    def read(self) -> int | None:
        """Bytes that this rank has written so far."""
        found = read_sockets()
        if found is None:
            return None
        self.known |= found
        return sum(self.known.values())

    def begin_call(self, call: GroupCall) -> None:
        if self.counts:
            with self.lock:
                if not self.under_way:
                    self.ops, self.before = set(), self.read()
                self.under_way.add(call.number)
                self.ops.add(name_of_function(call.op))

    def end_call(self, call: GroupCall) -> None:
        with self.lock:
            if call.number in self.under_way:
                self.under_way.remove(call.number)
                if not self.under_way:
                    self.by_op[" + ".join(sorted(self.ops))] += self.read() - self.before

    def begin_wait(self, call: GroupCall) -> Any:
        """Waiting sends nothing."""

    def end_wait(self, call: GroupCall, since: Any) -> None:
        """Nor does the end of it."""

    def close(self) -> dict[str, int] | None:
        """Bytes by operation; None where nobody counts. A call that nobody waited for counts until now."""
        with self.lock:
            if self.under_way:
                self.by_op[" + ".join(sorted(self.ops))] += self.read() - self.before
                self.under_way.clear()
        return dict(self.by_op) if self.counts else None
