"""A hole: a function of the training loop in whose place the reader's own is called, where it is right.

    @hole("5.1")
    def my_f_and_g(among): ...      the body is what the course has there
    f, g = my_f_and_g(among=tp)     the reader's function in the world `among`, or the body

An exercise is written for the world: dist.get_rank(), dist.all_reduce(x). In training the same lines work for the two
ranks of tp, or the four of dp. So the reader's cells run once for each hole and group, and what they import as
torch.distributed is a World: its ranks are those of `among`, counted from 0. Nothing of torch is changed. (To make
`among` torch's default group while an answer runs would not do: an autograd.Function of the reader's sends in backward,
long after the answer has returned.)
"""

import builtins
import functools
import inspect
import linecache
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from course_lib.grading.trusted.inside.student_code import prepare
from course_lib.groups.membership import Member, member
from course_lib.runtime.instruments.communication import CommunicationLog
from course_lib.runtime.instruments.recordings import open_recording

Cells = list[dict[str, Any]]  # of a notebook: what `prepare` asks of each
HOLES: dict[str, Callable] = {}  # by exercise
PEERS = ("src", "dst", "peer")  # ranks of the world for torch; their names in a group begin with group_
_runs: list["Run"] = []  # the run whose answers are in the holes on this rank, while it trains


def hole(number: str) -> Callable[[Callable], Callable]:
    """Decorates what the course has in the place of the answer to exercise `number`: a function of that name and form,
    with `among`, a Member, where it needs a world. A world of a single rank needs no answer.
    """
    def open_hole(course: Callable) -> Callable:
        @functools.wraps(course)
        def call(*arguments: Any, **world: Member) -> Any:
            me = member(world.get("among")) if _runs else None
            if me is None or number not in _runs[-1].answers or world and me.n == 1:
                return course(*arguments, **world)
            _runs[-1].calls[number] += 1
            return _runs[-1].answer(number, me)(*arguments)

        HOLES[number] = call
        return call

    return open_hole


@contextmanager
def fill_holes(answers: Mapping[str, Cells]) -> Iterator["Run"]:
    """On a rank, inside: the reader's functions are in the holes. answers: of each exercise, the cells that have it."""
    _runs.append(Run(answers))
    try:
        yield _runs[-1]
    finally:
        _runs.pop()


class Run:
    """The answers of a run on this rank, each in the world of the group that it works for, and their ledger.

    calls: of each answer. sent: bytes by each answer's own calls of torch.distributed, while they are recorded.
    """

    def __init__(self, answers: Mapping[str, Cells]) -> None:
        self.answers, self.calls, self.sent = answers, Counter(), Counter()
        self.functions: dict[tuple[str, Member], Callable] = {}

    def answer(self, number: str, me: Member) -> Callable:
        """The answer to exercise `number` in the world of `me`. Where it calls that of another, it calls the hole."""
        if (number, me) not in self.functions:
            world = World(me, number, self.sent)
            names, _ = run_cells(self.answers[number], {
                "torch.distributed": world, "torch": SimpleNamespace(**{**vars(torch), "distributed": world})})
            for other, each in HOLES.items():
                if other != number and each.__name__ in names:
                    takes_world = "among" in inspect.signature(each).parameters
                    names[each.__name__] = functools.partial(each, among=me) if takes_world else each
            self.functions[number, me] = names[HOLES[number].__name__]
        return self.functions[number, me]


def run_cells(cells: Cells, modules: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """(the names that the cells define, a line for each statement that raises): what the class grader would run.

    modules: what they import instead of the modules of these names, torch and torch.distributed say.
    """
    def give(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        found = __import__(name, globals, locals, fromlist, level)
        return modules.get(name if fromlist else name.partition(".")[0], found)

    names: dict[str, Any] = {"__name__": "your_answers", "__builtins__": {**vars(builtins), "__import__": give}}
    code = prepare(cells, None)
    errors = [code.refusal] if code.refusal else []
    for label, source in code.sources.items():
        linecache.cache[label] = (len(source), None, source.splitlines(True), label)  # for tracebacks
    for statement in code.statements:
        try:
            statement.run(names)
        except Exception as error:
            errors.append(f"{statement.code.co_filename}: {type(error).__name__}: {error}")
    return names, errors


class World:
    """torch.distributed, whose world is the group of `me`; what it sends is added to sent[number]."""

    def __init__(self, me: Member, number: str, sent: Counter[str]) -> None:
        self._me, self._number, self._sent = me, number, sent

    def __getattr__(self, name: str) -> Any:
        found = getattr(dist, name)
        is_called = inspect.isfunction(found) or found is dist.P2POp
        return functools.partial(self._call, found) if is_called else found

    def _call(self, function: Callable, *args: Any, **kwargs: Any) -> Any:
        signature = inspect.signature(function)
        given = dict(signature.bind(*args, **kwargs).arguments)
        if "group" in signature.parameters:
            given["group"] = self._me.group
            given |= {f"group_{peer}": given.pop(peer) for peer in PEERS if given.get(peer) is not None}
        if function is dist.P2POp:
            given["op"] = given["op"].args[0]  # torch's own isend or irecv, which is behind ours
        log = open_recording(CommunicationLog)
        before = len(log.events) if log else 0
        result = function(**given)
        for event in log.events[before:] if log else ():
            self._sent[self._number] += event.sent_bytes or Fraction(0)
        return result
