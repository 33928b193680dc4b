"""A real Jupyter kernel, as a reader's notebook has one: for what cannot be seen from a plain process."""

import os
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tools.harness.kernels import KernelManagerByFiles

_ROOT = Path(__file__).resolve().parents[2]
_HOLDS_OUTPUT_BACK = {"PYTEST_CURRENT_TEST", "COURSE_LIB_STABLE_OUTPUT"}  # set by tests, never by a reader
_LOOKS_EVERY_S = 0.05
_WITHIN_S = 75.0  # a watchdog: longer than any cell here takes on a busy machine


@dataclass
class Reply:
    """What a cell gave: its streams in the order of arrival, the value of its last line, the error it ended in."""

    number: int = 0  # of the cell, as in In[7]
    streams: list[tuple[str, str]] = field(default_factory=list)  # (stdout or stderr, text)
    shown: list[dict[str, Any]] = field(default_factory=list)  # MIME bundles of display(...)
    value: str | None = None
    error: dict[str, Any] | None = None  # ename, evalue, traceback

    def printed(self, name: str = "stdout") -> str:
        return "".join(text for stream, text in self.streams if stream == name)

    def told(self) -> str:
        """The traceback as the reader sees it; empty where there is none."""
        return "\n".join(self.error["traceback"]) if self.error else ""

    def is_at_a_prompt(self) -> bool:
        return any(stream == "prompt" for stream, _ in self.streams)


class Kernel:
    """`with Kernel() as kernel: kernel.run("1 + 1").value == "2"`."""

    def __init__(self, **environment: str) -> None:
        path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._manager = KernelManagerByFiles(kernel_name="python3")
        inherited = {name: value for name, value in os.environ.items() if name not in _HOLDS_OUTPUT_BACK}
        self._manager.start_kernel(env={**inherited, "PYTHONPATH": path, **environment})
        self._client = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=_WITHIN_S)
        self.pid: int = self._manager.provisioner.process.pid

    def __enter__(self) -> "Kernel":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def run(self, code: str, typed: Sequence[str] | None = None) -> Reply:
        """Run a cell to its end. `typed` answers its prompts in turn; None: a kernel that nobody can type to."""
        reply = Reply()
        for _ in self.watch(code, reply, typed):
            pass
        return reply

    def interrupt_once(self, code: str, come: Callable[[Reply], bool], typed: Sequence[str] | None = None) -> Reply:
        """Run a cell, and press the stop button when `come` first holds of its reply.

        A second interrupt, for the message that tells of the first one, would end IPython's own work on it.
        """
        reply, interrupted = Reply(), False
        for _ in self.watch(code, reply, typed):
            if not interrupted and come(reply):
                interrupted = True
                self.interrupt()
        return reply

    def watch(self, code: str, reply: Reply, typed: Sequence[str] | None = None) -> Iterator[None]:
        """Run a cell and fill `reply`; yields after each message, so that the caller can look while the cell runs."""
        asked = self._client.execute(code, allow_stdin=typed is not None)
        answers = iter(typed or ())
        deadline = time.monotonic() + _WITHIN_S
        while True:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the cell did not end within {_WITHIN_S:g} s: {code}")
            try:
                if typed is not None and self._client.stdin_channel.msg_ready():
                    prompt = self._client.get_stdin_msg(timeout=1.0)["content"]["prompt"]
                    reply.streams.append(("prompt", prompt))
                    if (answer := next(answers, None)) is not None:
                        self._client.input(answer)
                    yield
                message = self._client.get_iopub_msg(timeout=_LOOKS_EVERY_S)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != asked:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "execute_input":
                reply.number = content["execution_count"]
            elif kind == "stream":
                reply.streams.append((content["name"], content["text"]))
            elif kind == "display_data":
                reply.shown.append(content["data"])
                reply.streams.append(("shown", content["data"]["text/plain"]))
            elif kind == "execute_result":
                reply.value = content["data"]["text/plain"]
            elif kind == "error":
                reply.error = content
            elif kind == "status" and content["execution_state"] == "idle":
                return
            yield

    def interrupt(self) -> None:
        """As the stop button does."""
        self._manager.interrupt_kernel()

    def descendants(self) -> list[int]:
        """Process ids of all that the kernel has started, directly or not."""
        return [process.pid for process in psutil.Process(self.pid).children(recursive=True)]

    def kill(self) -> None:
        """SIGKILL to the kernel's process alone, as the system does when memory runs out."""
        psutil.Process(self.pid).kill()
