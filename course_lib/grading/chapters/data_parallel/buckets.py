"""Exercise 3.2: which gradients travel together."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from course_lib.grading.compare import describe
from course_lib.grading.exercise import Exercise, Traffic, Trial
from course_lib.grading.spent import Spent

Plan = list[list[int]]
KIB = 1024


def filled(sizes: Sequence[int], cap: int, order: Sequence[int] | None = None, fits: Callable = int.__le__) -> Plan:
    """Indices into `sizes`, the last first, in buckets of at most `cap` bytes; what is larger goes alone."""
    plan: Plan = []
    held = 0
    for index in reversed(range(len(sizes))) if order is None else order:
        if plan and fits(held + sizes[index], cap):
            plan[-1].append(index)
            held += sizes[index]
        else:
            plan.append([index])
            held = sizes[index]
    return plan


class Buckets(Exercise):
    number = "3.2"
    function = "my_buckets"
    points = 2
    budget = "as few buckets as one pass from the last gradient to the first gives, each at most cap_bytes"
    hints = (
        "Keep the bucket that is open and the bytes in it. For each gradient there is one question: does it still fit? "
        "One that is larger than the cap never does, and travels alone.",
        "Go from the last index to the first. Two cases: there is no bucket yet, or this gradient would make the open "
        "one larger than the cap; then open a new one. In both cases the gradient goes into the last bucket of all.",
        "for i in reversed(range(len(sizes_bytes))): if ...: buckets.append([]) and held_bytes = 0. Behind the if, for "
        "every i: buckets[-1].append(i) and held_bytes += sizes_bytes[i]. The condition is left to you.",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        # exact fits, one larger than the cap in the middle, one at the end, and small ones that would fit further ahead
        fixed = [[10, 60, 40, 300, 30, 70], [40, 10, 100, 90, 20, 80, 250], [100], [20, 20, 20]]
        drawn = torch.randint(1, 60, (200,), generator=generator).tolist()
        inputs = [[[size * KIB for size in sizes], 100 * KIB] for sizes in (*fixed, drawn)]
        return [Trial([each], f"{len(each[0])} gradient{'s' * (len(each[0]) > 1)}, at most 100 KiB") for each in inputs]

    @staticmethod
    def run(function: Callable, inputs: list[Any]) -> Any:
        sizes, cap = inputs
        return as_plan(function(list(sizes), cap))

    def arguments(self, trial: Trial) -> Sequence[Any]:
        return trial.inputs[0]

    def expected(self, sizes: list[int], cap: int) -> list[Plan]:
        return [filled(sizes, cap)]

    def mistakes(self, sizes: list[int], cap: int) -> Iterable[tuple[str, list[Plan]]]:
        right = filled(sizes, cap)
        yield ("the buckets begin with the first parameter, where backward ends: the last parameter's gradient is "
               "ready first", [filled(sizes, cap, order=range(len(sizes)))])
        yield "the last bucket is missing: after the loop one is still open", [right[:-1]]
        yield ("a gradient that fills a bucket exactly still fits: at most cap_bytes",
               [filled(sizes, cap, fits=int.__lt__)])
        yield "every gradient has a bucket of its own", [[[index] for index in reversed(range(len(sizes)))]]
        yield "all gradients are in one bucket, which has to wait for the very last", [[[*reversed(range(len(sizes)))]]]
        yield ("the buckets are right, but in the opposite order: the first one sent has the last parameter",
               [right[::-1]])

    def cause(self, given: list[Any], sizes: list[int], cap: int) -> str:
        return super().cause(given, sizes, cap) or self.fault(*given, sizes, cap, filled(sizes, cap))

    @staticmethod
    def fault(given: Any, sizes: list[int], cap: int, expected: Plan) -> str:
        """What is wrong with a plan that no known mistake gives."""
        if as_plan(given) != given or type(given) is str:
            return f"expected a list of buckets, each a list of indices, but my_buckets returned {describe(given)}"
        inside = [index for bucket in given for index in bucket]
        if [] in given:
            return f"bucket {given.index([])} is empty: close the open one only when there is something in it"
        missing = sorted(set(range(len(sizes))) - set(inside))
        if missing:
            return f"gradient {missing[0]} is in no bucket"
        if len(inside) > len(sizes):
            return "some gradient is in more than one bucket, or there are indices of none"
        for bucket in given:
            held = sum(sizes[index] for index in bucket)
            if held > cap and len(bucket) > 1:
                return f"bucket {bucket} holds {held // KIB} KiB: ask whether the gradient still fits before it goes in"
        if inside != [*reversed(range(len(sizes)))]:
            return ("the gradients are not in the order in which they are ready. A bucket that was closed is on its "
                    "way: what comes later cannot join it, even where there is room")
        return f"there are {len(given)} buckets, {given[:4]}: expected {len(expected)}, {expected[:4]}"

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> list[Spent]:
        return [Spent("made", len(answers[0]), len(filled(*trial.inputs[0])), "bucket")]


def as_plan(returned: Any) -> Any:
    """Lists of lists of int, or words for anything else."""
    if isinstance(returned, list | tuple) and all(isinstance(bucket, list | tuple) for bucket in returned):
        if all(type(index) is int for bucket in returned for index in bucket):
            return [list(bucket) for bucket in returned]
        return "lists of something else than int"
    return "nothing (None)" if returned is None else f"a {type(returned).__name__}"
