"""Messages between the grader and the processes it starts: a kind (one byte), a length, then that many bytes.

What a rank sends may be anything, so the length is checked before a byte of it is kept, and nothing is ever unpickled.
An answer comes as its form in JSON and, behind it, the numbers of its tensors. Such a text costs what its length says:
it has no references, by which a few kB could be a tree without end, and nothing in it is a program, as a pickle is. So
it takes no process of its own to read it: the longest one that is taken takes 0.2 s and 60 MB (2026-11-28).
"""

import json
import math
import socket
import struct
from typing import Any

import torch

HEADER = struct.Struct("!cQ")
PIECE = 1 << 16
LENGTH = struct.Struct("!Q")  # of the JSON, in front of it
LONGEST_FORM = 1 << 20  # bytes
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128)}
NEEDED = "expected tensors, numbers, strings, lists and dicts"
DEEPEST = 10  # lists in lists


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


def pack(answer: Any) -> bytes:
    """`answer` as bytes that `unpack` reads. TypeError for what no answer holds."""
    tensors: list[torch.Tensor] = []
    text = json.dumps(_form(answer, tensors)).encode()
    numbers = [tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes() for tensor in tensors]
    return b"".join([LENGTH.pack(len(text)), text, *numbers])


def _form(value: Any, tensors: list[torch.Tensor]) -> Any:
    """What JSON has is itself, but for a list of three kinds: ["list", ...], ["dict", [key, value], ...], and a tensor
    as ["tensor", dtype, shape]."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (list, tuple):
        return [type(value).__name__, *(_form(each, tensors) for each in value)]
    if type(value) is dict:
        return ["dict", *([_form(key, tensors), _form(each, tensors)] for key, each in value.items())]
    if type(value) is torch.Tensor and value.layout is torch.strided and str(value.dtype)[6:] in DTYPES:
        tensors.append(value)
        return ["tensor", str(value.dtype)[6:], list(value.shape)]
    raise TypeError(f"the result holds a {type(value).__name__}: {NEEDED}")


class Unpacked:
    """Reads what `pack` has written, and anything else: `value`, or ValueError with a sentence.

    At most `most_values` numbers, strings, lists and dicts, and `most_numbers` in all tensors together.
    """

    def __init__(self, payload: bytes, most_values: int, most_numbers: int) -> None:
        self.values_left, self.numbers_left = most_values, most_numbers
        length = LENGTH.unpack_from(payload)[0] if len(payload) >= LENGTH.size else LONGEST_FORM + 1
        self.at = LENGTH.size + length  # of the next tensor's bytes
        if length > LONGEST_FORM or len(payload) < self.at:
            raise ValueError(f"it holds more than {LONGEST_FORM:,} bytes beside its tensors, or is cut off")
        self.payload = bytearray(payload)  # tensors look into it
        self.value = self._value(json.loads(payload[LENGTH.size:self.at]), DEEPEST)

    def _value(self, form: Any, deepest: int) -> Any:
        self.values_left -= 1
        if self.values_left < 0 or not deepest:
            raise ValueError("it holds more values than any answer, or is nested too deeply")
        match form:
            case None | bool() | int() | float() | str():
                return form
            case ["tensor", name, shape]:
                return self._tensor(name, shape)
            case ["dict", *pairs]:
                return {self._value(key, deepest - 1): self._value(part, deepest - 1) for key, part in pairs}
            case ["list" | "tuple" as kind, *parts]:
                values = [self._value(part, deepest - 1) for part in parts]
                return values if kind == "list" else tuple(values)
        raise ValueError("it is not as the grader wrote it")

    def _tensor(self, name: str, shape: list[int]) -> torch.Tensor:
        if len(shape) > DEEPEST or not all(type(size) is int and 0 <= size <= self.numbers_left for size in shape):
            raise ValueError("it holds more numbers than any answer")
        dtype, count = DTYPES[name], math.prod(shape)
        self.numbers_left -= count
        if self.numbers_left < 0:
            raise ValueError("it holds more numbers than any answer")
        read = torch.uint8 if dtype is torch.bool else dtype  # a bool that is neither 0 nor 1 would be a riddle
        flat = torch.frombuffer(self.payload, dtype=read, count=count, offset=self.at) if count else torch.empty(
            0, dtype=read)
        self.at += count * dtype.itemsize
        return flat.to(dtype, copy=True).reshape(shape)
