"""What crossed the wire: bytes that the operating system counts at this rank's sockets. No formula has a part in it.

gloo joins the ranks of a group by TCP connections, on one host through its loopback. Linux keeps the bytes of each
connection (TCP_INFO in tcp(7)); their sum is what this rank has written: gloo's own headers are in it, 48 bytes a
message, those of TCP and IP are not. NCCL, shared memory and other systems have no such counter: not measured.

Calls that are under way at the same time share the bytes: these stand under all their names, "all_reduce + send".
Source: struct tcp_info in include/uapi/linux/tcp.h.
"""

import contextlib
import os
import socket
import stat
import struct
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from course_lib.runtime.instruments.pending import GroupCall
from course_lib.runtime.operations import name_of_function

INFO_BYTES = 256
NOT_SENT_AT, SENT_AT = 144, 200  # u32 not sent yet; u64 sent, u64 of these sent again


class Sockets:
    """The TCP connections of this process to other ranks, and what it has written to them so far."""

    def __init__(self) -> None:
        self.written: dict[int, int] = {}  # by the connection's inode; one that was closed keeps what it had
        self.open: dict[int, int] = {}  # file descriptor -> inode
        self.num_files = 0  # open files when the connections were looked for

    def read(self) -> int | None:
        """Bytes written so far; None where nobody counts them."""
        try:
            num_files = os.stat("/proc/self/fd").st_size  # 0 before Linux 6.2
            if num_files == 0 or num_files != self.num_files or not self._note():
                self._look()
                self.num_files = num_files
                self._note()
        except (OSError, NotImplementedError):
            return None
        return sum(self.written.values())

    def _look(self) -> None:
        self.open = {}
        for number in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):  # closed meanwhile
                status = os.fstat(number)
                if stat.S_ISSOCK(status.st_mode) and borrow(number, is_to_a_rank):
                    self.open[number] = status.st_ino

    def _note(self) -> bool:
        """Ask each connection; False where one is no longer what it was."""
        for number, inode in self.open.items():
            try:
                if os.fstat(number).st_ino != inode:
                    return False
                info = borrow(number, ask)
            except OSError:
                return False
            if len(info) < SENT_AT + 16:  # Linux before 4.19, or what only looks like it
                raise NotImplementedError
            sent, sent_again = struct.unpack_from("=QQ", info, SENT_AT)
            self.written[inode] = sent - sent_again + struct.unpack_from("=I", info, NOT_SENT_AT)[0]
        return True


def borrow(number: int, look: Callable[[socket.socket], Any]) -> Any:
    """What `look` says of a socket that is somebody else's: gloo's, which must stay open."""
    connection = socket.socket(fileno=number)
    try:
        return look(connection)
    finally:
        connection.detach()  # otherwise Python would close it


def ask(connection: socket.socket) -> bytes:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO_BYTES)


def is_to_a_rank(connection: socket.socket) -> bool:
    """Whether another rank is at its other end, and not torchrun's store."""
    if connection.type != socket.SOCK_STREAM or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    try:
        return str(connection.getpeername()[1]) != os.environ.get("MASTER_PORT")
    except OSError:  # it listens
        return False


class WireCounter:
    """Listens to calls, and asks at the begin and the end of each time in which any was under way."""

    def __init__(self) -> None:
        self.by_op: Counter[str] = Counter()
        self.under_way: set[int] = set()
        self.ops: set[str] = set()
        self.lock = threading.Lock()  # a call ends in a thread of the backend, while the next one may begin in ours
        self.sockets = Sockets()
        self.read = self.sockets.read
        self.counts = dist.is_initialized() and "nccl" not in dist.get_backend_config() and self.read() is not None

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
