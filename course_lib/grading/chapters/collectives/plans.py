"""Exercises 2.4 to 2.6: a tree, everybody with everybody, and two nodes with a slow link between them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.grading.chapters.collectives.trials import (
    Inputs,
    message_bytes,
    random_number,
    total,
    trials_of,
    wrong_on_all,
    wrong_pieces,
)
from course_lib.grading.compare import alike, part
from course_lib.grading.exercise import Traffic, Trial
from course_lib.grading.spent import SMALLEST_SHOWN, Spent
from course_lib.grading.tensors import AS_IT_WAS, TensorExercise


class TreeReduce(TensorExercise):
    number = "2.4"
    function = "my_tree_reduce"
    points = 3
    in_place = True
    budget = "ceil(log2 n) steps, in each of which a rank sends or receives one message; (n-1) M bytes in all"
    hints = (
        "Number the ranks from dst on: v = (r - dst) % n. A broadcast goes from v < 1 to v < 2, v < 4, ...; run the "
        "same film backwards, and add where it copies.",
        "The last step of the film comes first: of 1, 2, 4, ... below n the largest, then half of it, down to 1. In "
        "the step `know` those with know <= v < 2 know send to the one that is `know` before them, which adds.",
        "for step in reversed(range(n.bit_length())):\n"
        "    know = 1 << step\n"
        "    if v < know and v + know < n:\n"
        "        ...   # receive from (r + know) % n, and add\n"
        "    elif ...:\n"
        "        dist.send(tensor, (r - know) % n)",
    )

    @staticmethod
    def run(function: Callable, inputs: list[Any]) -> dict[str, Any]:
        """Only dst's tensor is an answer: what the others hold in the end is theirs."""
        answer = TensorExercise.run(function, inputs)
        return answer | {"tensor": answer["tensor"] if dist.get_rank() == inputs[1] else None, "held": answer["tensor"]}

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        trials = []
        for plain in trials_of(seed, lambda n, k: k, world_sizes=(3, 4, 6, 2, 1)):
            n = plain.world_size
            dst = random_number(generator, 1, n) if n > 1 else 0  # rank 0 would hide that dst is ignored
            trials.append(Trial([[tensor, dst] for tensor, in plain.inputs], f"{plain.label}, dst={dst}"))
        return trials

    def expected(self, inputs: Inputs) -> list[Tensor | None]:
        return only(total(inputs), inputs)

    def wrong(self, trial: Trial, answers: list[Any]) -> str | None:
        wrong, dst = super().wrong(trial, answers), trial.inputs[0][1]
        held, right = [part(answer, "held") for answer in answers], total(trial.inputs)
        elsewhere = [r for r, tensor in enumerate(held) if r != dst and alike(tensor, right)]
        if wrong and elsewhere:
            return f"the sum is on rank {elsewhere[0]}: the tree ends at dst, so count from there, v = (r - dst) % n"
        return wrong

    def bound(self, trial: Trial) -> int:
        return message_bytes(trial) if trial.world_size > 1 else 0

    def least(self, trial: Trial) -> int:
        return (trial.world_size - 1) * message_bytes(trial)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Tensor | None]]]:
        n, dst, x = len(inputs), inputs[0][1], [tensor for tensor, *_ in inputs]
        backwards = [1 << step for step in reversed(range(steps_of_tree(n)))]
        yield AS_IT_WAS.replace("every rank's", "dst's"), only(x[dst], inputs)
        yield ("shares are lost: some ranks send before they have received all that comes through them. The broadcast "
               "runs backwards: the largest distance first, 1 last",
               only(along_tree(x, dst, backwards[::-1])[dst], inputs))
        yield ("what arrives replaces what is there: receive it into another tensor, and add",
               only(along_tree(x, dst, backwards, keep=0)[dst], inputs))
        yield ("the first step is missing: of 1, 2, 4, ... below n the largest comes first",
               only(along_tree(x, dst, backwards[1:])[dst], inputs))
        yield ("the last step is missing: `know` goes down to 1", only(along_tree(x, dst, backwards[:-1])[dst], inputs))
        yield ("the sum is divided by the number of ranks: the sum is asked, not the mean",
               only(total(inputs) / n, inputs))

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> list[Spent]:
        n, M, dst, least = trial.world_size, message_bytes(trial), trial.inputs[0][1], self.least(trial)
        together = Spent("sent", sum(self.sent(trial, traffic)), least, on=" together", who="the ranks",
                         why="somebody's share is sent more than once", slack=traffic.slack(least), note=traffic.note(),
                         claimed=traffic.exact)
        if not traffic.exact and M < SMALLEST_SHOWN:  # headers look like messages
            return [together, *super().spent(trial, answers, traffic)]
        backwards = Traffic([list(column) for column in zip(*traffic.sent)], traffic.exact)  # a broadcast's, then
        all_to_dst = all(traffic.sent[r][dst] >= M for r in range(n) if r != dst)
        why = ("dst adds everything up itself: let others add on the way" if all_to_dst
               else "they add up in a row: in each step as many as can hand theirs to another one")
        steps = Spent("took", steps_taken(backwards, dst), steps_of_tree(n), "step", why=why, claimed=traffic.exact)
        return [together, steps, *super().spent(trial, answers, traffic)]


def only(answer: Tensor, inputs: Inputs) -> list[Tensor | None]:
    """The answers where dst has this one, and of the others none is looked at."""
    return [answer if r == inputs[0][1] else None for r in range(len(inputs))]


def along_tree(x: Sequence[Tensor], root: int, distances: Sequence[int], keep: int = 1) -> list[Tensor]:
    """What all ranks hold after steps of these distances towards root; keep=0 overwrites where others add."""
    n, held = len(x), list(x)
    for know in distances:
        for v in range(know):
            if v + know < n:
                to, source = (v + root) % n, (v + know + root) % n
                held[to] = keep * held[to] + held[source]
    return held


def steps_of_tree(n: int) -> int:
    """ceil(log2 n)."""
    return (n - 1).bit_length()


def steps_taken(traffic: Traffic, src: int) -> int:
    """The fewest steps in which messages can have gone from src to all as they did, each rank telling one at a time.

    A rank learns it from whoever sent it most, and tells first those below whom most is still to be done.
    """
    n = len(traffic.sent)
    teller = {r: max(range(n), key=lambda q: traffic.sent[q][r]) for r in range(n) if r != src}

    def below(rank: int) -> int:
        longest_first = sorted((below(r) for r, by in teller.items() if by == rank), reverse=True)
        return max((step + further for step, further in enumerate(longest_first, start=1)), default=0)

    return below(src)


class AllToAll(TensorExercise):
    number = "2.5"
    function = "my_all_to_all"
    points = 2
    budget = "each rank sends (n-1)/n M bytes: every piece but the one that stays"
    hints = (
        "n-1 steps. In step s rank r sends to rank r+s; who sends to rank r then?",
        "In step s send the piece of rank r+s to it, and receive from rank r-s into the place of rank r-s. Your own "
        "piece, chunks[r], stays and is copied.",
        "result = torch.empty_like(tensor)\n"
        "places = result.chunk(n)\n"
        "places[r].copy_(...)\n"
        "for step in range(1, n):\n"
        "    to, source = (r + step) % n, ...\n"
        "    exchange(chunks[to], to, ..., source)\n"
        "return result",
    )

    def trials(self, seed: int) -> list[Trial]:
        return trials_of(seed, lambda n, k: n * k)

    def expected(self, inputs: Inputs) -> list[Tensor]:
        x = pieces(inputs)
        return [torch.cat([x[q][r] for q in range(len(x))]) for r in range(len(x))]

    def bound(self, trial: Trial) -> int:
        return message_bytes(trial) * (trial.world_size - 1) // trial.world_size

    def least(self, trial: Trial) -> int:
        return trial.world_size * self.bound(trial)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Tensor]]]:
        x = pieces(inputs)
        n = len(x)

        def received(chunk: Any, place: Any = lambda q, r: q) -> list[Tensor]:
            """Rank r has at place(q, r) the piece chunk(q, r) of rank q."""
            rows = [{place(q, r) % n: x[q][chunk(q, r) % n] for q in range(n)} for r in range(n)]
            return [torch.cat([row[at] for at in sorted(row)]) for row in rows]

        yield "every rank returns its own input: nothing has been exchanged", [tensor for tensor, *_ in inputs]
        yield ("the pieces lie in the order of their arrival: the piece of rank q belongs at place q",
               received(lambda q, r: r, lambda q, r: r - q))
        yield ("the piece that arrives in step s lies at the place of the rank that was sent to: it came from "
               "rank r-s, so it belongs at place r-s", received(lambda q, r: r, lambda q, r: 2 * r - q))
        yield ("every rank sends each time the piece of its own number: rank `to` needs chunks[to]",
               received(lambda q, r: q))
        yield ("every rank sends chunks[source]: rank `to` needs chunks[to]", received(lambda q, r: 2 * q - r))

    def cause(self, given: list[Any], inputs: Inputs) -> str | None:
        if wrong_on_all(given, self.expected(inputs), lambda r: r):
            return "every rank lacks the piece that stays: nobody sends it, copy chunks[r] to place r"
        return super().cause(given, inputs)

    def waste(self, trial: Trial, traffic: Traffic) -> str:
        return "rank j needs one piece of you, chunks[j]: do not send it the whole tensor"


def pieces(inputs: Inputs) -> list[tuple[Tensor, ...]]:
    """x[r][c]: chunk c of rank r."""
    return [tensor.chunk(len(inputs)) for tensor, *_ in inputs]


class TwoNodeAllReduce(TensorExercise):
    number = "2.6"
    function = "my_two_node_all_reduce"
    points = 4
    in_place = True
    budget = "each rank sends M/2 bytes to the other node"
    spent_on = " to the other node"
    hints = (
        "Share the work before you cross: let each rank of a node be responsible for one half of the tensor, for the "
        "sum inside its node. Then every rank has one half to take over the slow link.",
        "Three exchanges. With the neighbour: give it `other`, add what comes to `mine`. With the twin: give it "
        "`mine`, add what comes. With the neighbour again: give it `mine`, now complete, and take its half as `other`.",
        "received = torch.empty_like(mine)\n"
        "mine += exchange(other, neighbour, received, neighbour)\n"
        "mine += ...   # the twin\n"
        "exchange(mine, neighbour, ..., neighbour)   # nothing is added now: where does it arrive?",
    )

    def trials(self, seed: int) -> list[Trial]:
        return trials_of(seed, lambda n, k: n * k, world_sizes=(4, 4))

    def expected(self, inputs: Inputs) -> list[Tensor]:
        return [total(inputs)] * len(inputs)

    def bound(self, trial: Trial) -> int:
        return message_bytes(trial) // 2

    def least(self, trial: Trial) -> int:
        return 2 * message_bytes(trial)  # each node needs all that the other one knows

    def sent(self, trial: Trial, traffic: Traffic) -> list[int]:
        return [sum(traffic.sent[r][to] for to in range(4) if to // 2 != r // 2) for r in range(4)]

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Tensor]]]:
        x = [tensor for tensor, *_ in inputs]
        right = total(inputs)
        node = [x[r] + x[r ^ 1] for r in range(4)]
        yield "every rank has the sum of its own node: the nodes have not exchanged anything", node
        yield ("every rank has the sum of itself and its twin on the other node: its neighbour's share is missing",
               [x[r] + x[(r + 2) % 4] for r in range(4)])
        yield "the sum is divided by the number of ranks: the sum is asked, not the mean", [right / 4] * 4
        yield ("the shares of the own node are in the sum twice: what was already added is sent back and added again",
               [right + node[r] for r in range(4)])
        yield "every share is in the sum twice: the last step moves complete halves, do not add them", [2 * right] * 4

    def cause(self, given: list[Any], inputs: Inputs) -> str | None:
        right = total(inputs)
        if all(wrong_pieces(tensor, right, 2) == [1 - r % 2] for r, tensor in enumerate(given)):
            return ("every rank has one half complete and the other not: the neighbour has that one, and in the last "
                    "step they give each other theirs")
        return super().cause(given, inputs)

    def waste(self, trial: Trial, traffic: Traffic) -> str:
        crossing = self.sent(trial, traffic)
        if traffic.sent[1][2] and traffic.sent[3][0]:
            return ("a ring over all four ranks leaves each node over one link, and sends nearly everything there, "
                    "again and again: add up inside the node first")
        if min(crossing) == 0:
            return ("all that leaves the node goes through one rank: halve it, so that both ranks use their links at "
                    "the same time")
        return "add up inside the node first, and send only one half of that sum across"
