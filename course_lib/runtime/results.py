"""What launch returns: the ranks' results in rank order, with what was recorded on the way."""

from typing import Any

from course_lib.runtime.instruments.communication import CommunicationLog
from course_lib.runtime.instruments.memory import MemoryLog
from course_lib.runtime.instruments.timeline import Timeline


class Results(list):
    """A list, one result per rank. `recorded[r]` holds the logs that rank r closed, in order."""

    def __init__(self, results: list[Any], recorded: list[list[Any]]) -> None:
        super().__init__(results)
        self.recorded = recorded

    @property
    def communication(self) -> CommunicationLog:
        """Every record_communication() of every rank, as one log."""
        return CommunicationLog.merge(self._logs(CommunicationLog, "record_communication"))

    @property
    def memory(self) -> MemoryLog:
        """Every record_memory() of every rank, as one log."""
        return MemoryLog.merge(self._logs(MemoryLog, "record_memory"))

    @property
    def timeline(self) -> Timeline:
        """Every record_timeline() of every rank, as one timeline."""
        return Timeline.merge(self._logs(Timeline, "record_timeline"))

    def _logs(self, kind: type, recorder: str) -> list[Any]:
        logs = [log for of_rank in self.recorded for log in of_rank if isinstance(log, kind)]
        if not logs:
            raise ValueError(f"nothing was recorded: use `with {recorder}(): ...` inside the launched function")
        return logs
