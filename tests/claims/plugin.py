"""After each notebook cell with headlines a test of its own, in nbval's kernel: data that contradict them, and nbval
would see it.
"""

import ast
import copy
import json
import re
import time
from pathlib import Path

import pytest
from nbformat import NotebookNode
from nbval.plugin import IPyNbCell, coalesce_streams

from course_lib.pictures.drawn import NOT_SEEN
from tests.claims.cell import headlines
from tests.claims.contradict import DOES_NOT_HOLD

ROOT = Path(__file__).resolve().parents[2]
CLAIMS = re.compile(r"Chart: |Schedules: |MemoryPanels: |RankPanels: |Timeline of \d+ ranks|Timeline of rank \d+")
WITHIN_S = 120.0


class Unchallenged(Exception):
    """Headlines that no data contradict, or without a condition."""


class Contradiction(pytest.Item):
    """The headlines of the cell that has just run, each over data that contradict it."""

    cell: IPyNbCell

    def runtest(self) -> None:
        found = self.ask()
        faults = [f"{each['source']}\n    {each['fault']}" for each in found
                  if each["fault"] and not self.has_failed(each)] + self.unseen(found)
        if faults:
            raise Unchallenged("\n".join(faults))
        self.user_properties += [("headline", each["said"]) for each in found if each["contradicted"]]

    def has_failed(self, found: dict[str, str]) -> bool:
        """Whether the cell's own test has said so: the headline does not hold here, and is stored as if it did."""
        stored = map(text_of, coalesce_streams(self.cell.cell.outputs))
        return found["fault"] == DOES_NOT_HOLD and not any(self.same(text, found["said"]) for text in stored)

    def ask(self) -> list[dict[str, str]]:
        """The verdicts of the kernel, whose names stay as the cell left them.

        This directory comes first: a package that is installed may bring a `tests` of its own (textstat does).
        """
        client = self.cell.parent.kernel.kc
        expression = (f"(__import__('sys').path.insert(0, {str(ROOT)!r}), "
                      f"__import__('tests.claims.contradict', fromlist=['']).verdicts({self.cell.cell.source!r}, "
                      f"globals()), __import__('sys').path.remove({str(ROOT)!r}))[1]")
        asked = client.execute("", silent=True, store_history=False, user_expressions={"verdicts": expression})
        deadline = time.monotonic() + WITHIN_S
        while (reply := client.get_shell_msg(timeout=deadline - time.monotonic()))["parent_header"]["msg_id"] != asked:
            pass
        answer = reply["content"]["user_expressions"]["verdicts"]
        if answer["status"] != "ok":
            raise RuntimeError(f"the headlines could not be drawn again: {answer['ename']}: {answer['evalue']}")
        return json.loads(ast.literal_eval(answer["data"]["text/plain"]))

    def unseen(self, found: list[dict[str, str]]) -> list[str]:
        """What nbval would not see: a headline that gives way and leaves the cell's output as it is stored."""
        stored = coalesce_streams(self.cell.cell.outputs)
        left = [number for number, output in enumerate(stored) if CLAIMS.match(text_of(output))]
        faults = []
        for each in found:
            said = each["said"].replace(NOT_SEEN, "") if self.has_failed(each) else each["said"]
            place = next((number for number in left if self.same(text_of(stored[number]), said)), None)
            if not each["contradicted"]:
                left = [number for number in left if number != place]
            elif place is None:
                faults.append(f"{each['source']}\n    is not in the cell's output: let the cell show it")
            else:
                left.remove(place)
                outputs = copy.deepcopy(stored)
                outputs[place].data["text/plain"] = each["contradicted"]
                if self.cell.compare_outputs(outputs, stored):
                    faults.append(f"{each['source']}\n    nbval takes {each['contradicted']!r} for the same")
        return faults + [f"{text_of(stored[number])[:90]}\n    no headline of the cell's own: .shows(..., holds=...)"
                         for number in left]

    def same(self, stored: str, said: str) -> bool:
        return self.cell.sanitize(stored) == self.cell.sanitize(said)

    def repr_failure(self, excinfo: pytest.ExceptionInfo, style: str | None = None):
        return str(excinfo.value) if excinfo.errisinstance(Unchallenged) else super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{self.path.name}::{self.name}"


def text_of(output: NotebookNode) -> str:
    return output.get("data", {}).get("text/plain", "")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for number, item in reversed(list(enumerate(items))):
        if isinstance(item, IPyNbCell) and (headlines(item.cell.source) or any(
                CLAIMS.match(text_of(output)) for output in item.cell.outputs)):
            added = Contradiction.from_parent(item.parent, name=f"{item.name}, contradicted")
            added.cell = item
            items.insert(number + 1, added)
