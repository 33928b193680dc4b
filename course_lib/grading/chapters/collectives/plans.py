"""Exercises 2.4 to 2.6: a tree, everybody with everybody, and two nodes with a slow link between them."""

from collections.abc import Iterable
from typing import Any

import torch
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
from course_lib.grading.compare import alike
from course_lib.grading.exercise import Traffic, Trial
from course_lib.grading.spent import SMALLEST_SHOWN, Spent
from course_lib.grading.tensors import TensorExercise


class TreeBroadcast(TensorExercise):
    number = "2.4"
    function = "my_tree_broadcast"
    points = 3
    in_place = True
    budget = "ceil(log2 n) steps, in each of which a rank sends or receives one message; (n-1) M bytes in all"
    hints = (
        "Number the ranks from src on: v = (r - src) % n. Those with v < 1, 2, 4, ... know; in each step each of them "
        "tells the one that is `know` further on.",
        "With `know` who know: if v < know and v + know < n, send to (r + know) % n; if know <= v < 2 * know, receive "
        "from (r - know) % n. Then know *= 2.",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        trials = []
        for plain in trials_of(seed, lambda n, k: k):
            n = plain.world_size
            src = random_number(generator, 1, n) if n > 1 else 0  # rank 0 would hide that src is ignored
            trials.append(Trial([[tensor, src] for tensor, in plain.inputs], f"{plain.label}, src={src}"))
        return trials

    def expected(self, inputs: Inputs) -> list[Tensor]:
        src = inputs[0][1]
        return [inputs[src][0]] * len(inputs)

    def bound(self, trial: Trial) -> int:
        return message_bytes(trial) * steps_of_tree(trial.world_size)  # what src sends: it is in every step

    def least(self, trial: Trial) -> int:
        return (trial.world_size - 1) * message_bytes(trial)

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Tensor]]]:
        yield ("every rank ends with rank 0's tensor: the tree starts at src, so count from there, v = (r - src) % n",
               [inputs[0][0]] * len(inputs))

    def cause(self, given: list[Any], inputs: Inputs) -> str | None:
        known = super().cause(given, inputs)
        if known:
            return known
        src = inputs[0][1]
        for r, tensor in enumerate(given):
            origin = next((q for q in range(len(inputs)) if alike(tensor, inputs[q][0])), src)
            if origin == r != src:
                return f"nobody has told rank {r}: its tensor is as it was"
            if origin != src:
                return (f"rank {r} ends with rank {origin}'s own tensor: rank {origin} sent before it had received; "
                        "only those that know may tell")
        return None

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> list[Spent]:
        n, M, src, least = trial.world_size, message_bytes(trial), trial.inputs[0][1], self.least(trial)
        together = Spent("sent", sum(self.sent(trial, traffic)), least, on=" together", who="the ranks",
                         why="some are told more than once", slack=traffic.slack(least), note=traffic.note(),
                         claimed=traffic.exact)
        if not traffic.exact and M < SMALLEST_SHOWN:  # headers look like messages
            return [together, *super().spent(trial, answers, traffic)]
        root_tells_all = all(traffic.sent_by(r) < M for r in range(n) if r != src)
        why = ("src tells everybody itself: those that know should help" if root_tells_all
               else "they tell one another in a row: in each step all that know tell one each")
        steps = Spent("took", steps_taken(traffic, src), steps_of_tree(n), "step", why=why, claimed=traffic.exact)
        return [together, steps, *super().spent(trial, answers, traffic)]


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
        "to, source = (r + s) % n, (r - s) % n: send chunks[to], receive into place `source`. Your own piece, "
        "chunks[r], stays and is copied.",
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
        "mine, other = halves[r % 2], halves[1 - r % 2]. Swap halves with your neighbour r ^ 1 and add; swap `mine` "
        "with your twin (r + 2) % 4 and add; swap complete halves with your neighbour.",
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
