"""Interrupts of the notebook that wait until what is under way is whole."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def hold_interrupts(came: threading.Event | None = None) -> Iterator[None]:
    """An interrupt that comes meanwhile is raised at the end, and `came` is set at once.

    A question to the server whose answer nobody takes would be answered to whoever asks next.
    """
    raises = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(raises):
        yield
        return
    held = threading.Event()

    def hold(number: int, frame: FrameType | None) -> None:
        held.set()
        if came is not None:
            came.set()

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, raises)
        if held.is_set():
            raises(signal.SIGINT, None)
