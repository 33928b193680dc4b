"""A real Jupyter kernel, as a reader's notebook has one: for what cannot be seen from a plain process."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tools.harness.kernels import KernelManagerByFiles

_ROOT = Path(__file__).resolve().parents[2]
_HOLDS_OUTPUT_BACK = {"PYTEST_CURRENT_TEST", "COURSE_LIB_STABLE_OUTPUT"}  # set by tests, never by a reader
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

    def run(self, code: str, typed: Sequence[str] | None = None,
            each: Callable[[Reply], object] = lambda reply: None) -> Reply:
        """Run a cell to its end. `typed` answers its prompts in turn; None: a kernel that nobody can type to.

        `each` sees the reply so far after every message, while the cell runs.
        """
        reply, answers = Reply(), iter(typed or ())

        def hear(message: dict[str, Any]) -> None:
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
            each(reply)

        def prompt(message: dict[str, Any]) -> None:
            reply.streams.append(("prompt", message["content"]["prompt"]))
            if (answer := next(answers, None)) is not None:
                self._client.input(answer)
            each(reply)

        self._client.execute_interactive(code, allow_stdin=typed is not None, timeout=_WITHIN_S, output_hook=hear,
                                         stdin_hook=prompt)
        return reply

    def interrupt_once(self, code: str, come: Callable[[Reply], bool], typed: Sequence[str] | None = None) -> Reply:
        """Run a cell, and press the stop button when `come` first holds of its reply.

        A second interrupt, for the message that tells of the first one, would end IPython's own work on it.
        """
        waiting = [self._manager.interrupt_kernel]
        return self.run(code, typed, lambda reply: waiting and come(reply) and waiting.pop()())

    def descendants(self) -> list[int]:
        """Process ids of all that the kernel has started, directly or not."""
        return [process.pid for process in psutil.Process(self.pid).children(recursive=True)]

    def kill(self) -> None:
        """SIGKILL to the kernel's process alone, as the system does when memory runs out."""
        psutil.Process(self.pid).kill()
