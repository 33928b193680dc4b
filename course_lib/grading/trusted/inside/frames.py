"""Messages between the grader and the processes it starts: a kind (one byte), a length, then that many bytes.

What a rank sends may be anything, so the length is checked before a byte of it is kept, and nothing is ever unpickled.
"""

import socket
import struct

HEADER = struct.Struct("!cQ")
PIECE = 1 << 16


class BadFrame(ValueError):
    """What arrived is no message, or longer than allowed."""


class Inbox:
    """Puts messages together from pieces as they arrive. BadFrame for a message of more than `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._bytes = bytearray()

    def feed(self, piece: bytes) -> None:
        """Take bytes as they come, a message or a part of one."""
        self._bytes += piece
        self._length()

    def _length(self) -> int | None:
        """Of the next message, None while its header is not here."""
        if len(self._bytes) < HEADER.size:
            return None
        _, length = HEADER.unpack_from(self._bytes)
        if length > self.limit:
            raise BadFrame(f"a message of {length:,} bytes: expected at most {self.limit:,}")
        return length

    def take(self) -> tuple[bytes, bytes] | None:
        """(kind, payload) of the next message, None while it is not complete."""
        length = self._length()
        if length is None or len(self._bytes) < HEADER.size + length:
            return None
        kind, _ = HEADER.unpack_from(self._bytes)
        payload = bytes(self._bytes[HEADER.size:HEADER.size + length])
        del self._bytes[:HEADER.size + length]
        return kind, payload


def send(connection: socket.socket, kind: bytes, payload: bytes = b"") -> None:
    """Send one message: its kind, its length, its bytes."""
    connection.sendall(HEADER.pack(kind, len(payload)) + payload)


def receive(connection: socket.socket, limit: int = 1 << 30) -> tuple[bytes, bytes]:
    """The next message; waits for it as long as the connection's own timeout says.

    EOFError when the other end closed, BadFrame for a message of more than `limit` bytes.
    """
    header = _exactly(connection, HEADER.size)
    kind, length = HEADER.unpack(header)
    if length > limit:
        raise BadFrame(f"a message of {length:,} bytes: expected at most {limit:,}")
    return kind, _exactly(connection, length)


def _exactly(connection: socket.socket, num_bytes: int) -> bytes:
    received = bytearray()
    while len(received) < num_bytes:
        piece = connection.recv(min(PIECE, num_bytes - len(received)))
        if not piece:
            raise EOFError("the other end closed the connection")
        received += piece
    return bytes(received)
