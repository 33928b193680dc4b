"""A hole: a function of the training loop in whose place the reader's own is called, where it is right.

    @hole("5.1")
    def my_f_and_g(among): ...      the body is what the course has there
    f, g = my_f_and_g(among=tp)     the reader's function in the world `among`, or the body

An exercise is written for the world: dist.get_rank(), dist.all_reduce(x). In training the same lines work for the two
ranks of tp, or the four of dp. So the reader's cells run once for each group, and what they import as torch.distributed
is a World: a call that names no group goes to `among`, whose ranks count from 0. Nothing of torch is changed. (To make
`among` torch's default group while an answer runs would not do: an autograd.Function of the reader's sends in backward,
long after the answer has returned.)
"""

import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.grading import recorded
from course_lib.grading.compare import describe
from course_lib.groups.membership import Member, member
from course_lib.mine.find import ANSWER, Answers, run_cells
from course_lib.runtime.instruments.communication import CommunicationLog
from course_lib.runtime.instruments.recordings import open_recording
from course_lib.runtime.tensors import tensors_in

HOLES: dict[str, Callable] = {}  # by exercise
TOLERANCE = 1e-6  # of the largest number, between an answer and the course's own: another order of summation
PEERS = ("src", "dst", "peer")  # ranks of the world for torch; their names in a group begin with group_
_runs: list["Run"] = []  # the run whose answers are in the holes on this rank, while it trains


class AnswerFailed(RuntimeError):
    """An answer that passed its check raised in training, or gave something else than the course's own."""

    @classmethod
    def of(cls, number: str, what: str) -> "AnswerFailed":
        """What became of the answer to exercise `number`, and the way out."""
        return cls(f"your {number}, {recorded.of_exercise(number, 'exercises')[0]}{what}. It passes its check, and "
                   f"training asks more of it. To train with the course's own in its place: --without {number}")


def hole(number: str, course: Callable | None = None, compares: bool = True, **instead: Callable) -> Callable:
    """A function of the form that exercise `number` asks for, with `among`, a Member, where it needs a world. Decorates
    the course's own, or is given it.

    compares: the first time in a world the answer's result is held to that of `course`, with the same arguments.
    instead: what a call of torch.distributed by the reader's chapter is, all_reduce=my_ring_all_reduce say.
    """
    if course is None:
        return functools.partial(hole, number, compares=compares, **instead)

    @functools.wraps(course)
    def call(*arguments: Any, among: Member | None = None) -> Any:
        is_alone = among is not None and among.n == 1  # a world in which there is nobody to talk to
        if _runs and number in _runs[-1].answers.numbers and not is_alone:
            return _runs[-1].call(number, arguments, among)
        return course(*arguments) if among is None else course(*arguments, among=among)

    call.course, call.compares, call.instead = course, compares, instead
    HOLES[number] = call
    return call


@contextmanager
def filled(answers: Answers, compare: bool = True) -> Iterator["Run"]:
    """On a rank: inside, `answers` are in the holes. AnswerFailed, with its line, for an answer that raises.

    compare: the first result of each in each world is compared with what the course's own gives.
    """
    _runs.append(Run(answers, compare))
    try:
        yield _runs[-1]
    except Exception as error:
        found, traceback = None, error.__traceback__
        while traceback is not None:
            label = number_in(traceback.tb_frame.f_code.co_filename)
            found = (label, traceback.tb_frame.f_code.co_filename, traceback.tb_lineno) if label else found
            traceback = traceback.tb_next
        if found is None or isinstance(error, AnswerFailed):
            raise
        number, file, line = found  # of the innermost answer
        where = f" in {file.partition(' in ')[2]}, line {line}: {type(error).__name__}: {error}"
        raise AnswerFailed.of(number, where) from error
    finally:
        _runs.pop()


def number_in(label: str) -> str:
    """The exercise that has a hole and whose answer a code's file name is of; "" for any other code."""
    found = ANSWER.fullmatch(label)
    return found[1] if found and found[1] in HOLES else ""


class Run:
    """The answers of one run on this rank, each in the world of the group that it works for, and their ledger.

    calls: of each answer. sent: bytes by the innermost answer on the stack, while record_communication records.
    """

    def __init__(self, answers: Answers, compare: bool) -> None:
        self.answers, self.compare, self.calls, self.sent = answers, compare, Counter(), Counter()
        self.names: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}
        self.compared: set[tuple[str, tuple[int, ...]]] = set()

    def call(self, number: str, arguments: tuple, among: Member | None) -> Any:
        """What the answer to exercise `number` returns in the world `among`."""
        me, here = member(among), HOLES[number]
        ranks = tuple(dist.get_process_group_ranks(me.group))
        answer = self.names_in(number.partition(".")[0], ranks, me)[number]
        self.calls[number] += 1
        if not (self.compare and here.compares) or (number, ranks) in self.compared:
            return answer(*arguments)
        self.compared.add((number, ranks))
        copies = [each.detach().clone() if isinstance(each, Tensor) else each for each in arguments]
        right = numbers_of(here.course(*copies) if among is None else here.course(*copies, among=me), me)
        given = answer(*arguments)
        for mine, theirs in zip(numbers_of(given, me), right):
            near = TOLERANCE * float(theirs.abs().max()) + 1e-12 if theirs.numel() else 0.0
            if mine.shape != theirs.shape or not torch.allclose(mine.double(), theirs.double(), 0.0, near):
                raise AnswerFailed.of(number, f": it gives {describe(mine)} over ranks {list(ranks)}: expected "
                                              f"{describe(theirs)}")
        return given

    def names_in(self, chapter: str, ranks: tuple[int, ...], me: Member) -> dict[str, Any]:
        """What the cells of a chapter define in the world of `me`; the answers by their numbers.

        An answer that calls another exercise's function calls the hole: so the course's, where that is not right.
        """
        if (chapter, ranks) not in self.names:
            holes = {number: each for number, each in HOLES.items() if number.startswith(f"{chapter}.")}
            world = World(me, self.sent, {name: each for hole in holes.values() for name, each in hole.instead.items()})
            notebook = next(each for each in self.answers.notebooks if each.chapter == int(chapter))
            names, _ = run_cells(notebook, {"torch.distributed": world,
                                            "torch": SimpleNamespace(**{**vars(torch), "distributed": world})})
            for number, each in holes.items():
                name = recorded.of_exercise(number, "exercises")[0]
                takes_world = "among" in inspect.signature(each.course).parameters
                names[number] = names.get(name)
                names[name] = functools.partial(each, among=me) if takes_world else each
            self.names[chapter, ranks] = names
        return self.names[chapter, ranks]


def numbers_of(result: Any, me: Member) -> list[Tensor]:
    """The tensors of a result; of a pair of functions what they make of some numbers (1, 2n, 3), and of a gradient."""
    if not (isinstance(result, tuple) and all(map(callable, result))):
        return [tensor.detach().clone() for tensor in tensors_in(result)]
    found = []
    for function in result:
        x = (torch.arange(6.0 * me.n).view(1, -1, 3) + me.r).requires_grad_()
        y = function(x)
        found += [y.detach(), *torch.autograd.grad(y, x, y.detach() + me.r)]
    return found


class World:
    """torch.distributed, whose world is the group of `me`. `instead`: other functions for calls without options."""

    def __init__(self, me: Member, sent: Counter[str], instead: dict[str, Callable]) -> None:
        self._me, self._sent, self._instead = me, sent, instead

    def __getattr__(self, name: str) -> Any:
        found = getattr(dist, name)
        if name == "P2POp":
            return self._message
        return functools.partial(self._call, found) if inspect.isfunction(found) else found

    def _call(self, function: Callable, *args: Any, **kwargs: Any) -> Any:
        instead = self._instead.get(function.__name__)
        if instead and len(args) == 1 and not kwargs and args[0].is_contiguous():
            return instead(args[0].view(-1), among=self._me)
        signature = inspect.signature(function)
        given = dict(signature.bind(*args, **kwargs).arguments)
        if "group" in signature.parameters and given.get("group") is None:
            given["group"] = self._me.group
            for peer in PEERS:
                if given.get(peer) is not None:
                    given[f"group_{peer}"] = given.pop(peer)
        log, frame = open_recording(CommunicationLog), sys._getframe()
        before = len(log.events) if log else 0
        result = function(**given)
        while frame and not number_in(frame.f_code.co_filename):
            frame = frame.f_back
        for event in log.events[before:] if log and frame else ():
            self._sent[number_in(frame.f_code.co_filename)] += event.sent_bytes or Fraction(0)
        return result

    def _message(self, op: Any, tensor: Tensor, peer: int | None = None, group: Any = None, tag: int = 0,
                 group_peer: int | None = None) -> dist.P2POp:
        op = op.args[0] if isinstance(op, functools.partial) else op
        if group is not None:
            return dist.P2POp(op, tensor, peer, group, tag, group_peer)
        return dist.P2POp(op, tensor, group=self._me.group, tag=tag,
                          group_peer=peer if group_peer is None else group_peer)
