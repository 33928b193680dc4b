"""One rank as the notebook's process sees it: the same from either pool."""

from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import BinaryIO


@dataclass
class RankProcess:
    """One rank as the notebook sees it."""

    rank: int
    pid: int
    connection: Connection
    streams: dict[str, BinaryIO]  # "stdout", "stderr"
    end_of_output: bytes = b""  # what ends a stream; without it, its closing does
