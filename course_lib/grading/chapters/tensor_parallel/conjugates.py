"""Exercise 5.1: f and g, which autograd goes through backwards.

    x  the same on all t ranks      w  of each rank      c  the same, the gradient that comes back
    h = exp(w (f(x) + x))    s = g(h)    loss = sum(c s)

exp keeps its result for backward, and f(x) + x gives both its terms the same gradient: whoever writes into what came in
is found out.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.calls import count_calls, num_calls
from course_lib.grading.chapters.split import (
    PartsExercise,
    all_reduce_bytes,
    both_add,
    f,
    g,
    normal,
    nothing,
    scaled_back,
)
from course_lib.grading.compare import describe, plain
from course_lib.grading.exercise import Trial, ranks_of
from course_lib.grading.spent import Spent, amount

Answers = list[dict[str, Any]]
NAMES = {"f": "f(x)", "g": "g(h)", "w": "the gradient of w", "x": "the gradient of x", "h": "after g(h), h"}
WRITTEN_OVER = ("g adds into the tensor that came in, which somebody else still needs, here exp for its gradient: add "
                "up a copy")


class FAndG(PartsExercise):
    number = "5.1"
    function = "my_f_and_g"
    points = 3
    parts = NAMES
    right = "f and g are right"
    budget = "one all-reduce each: f's in backward, g's in forward; 2(t-1)/t M bytes sent by each rank for each"
    hints = (
        "An autograd.Function is two static methods. Forward gets ctx and x, backward gets ctx and the gradient of "
        "what forward returned. Neither may write into the tensor that it got: others hold it too.",
        "One of f's methods returns what it got, the other one adds up a copy over the ranks; g has them the other way "
        "round. x.clone() is a copy; dist.all_reduce works in place on it. A forward that returns its input returns a "
        "view of it, x.view_as(x).",
        "class CopyToRanks(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x):\n"
        "        return x.view_as(x)\n"
        "    @staticmethod\n"
        "    def backward(ctx, dy):\n"
        "        ...  # the sum of all ranks' dy, in a copy\n"
        "class AddOverRanks(torch.autograd.Function):\n"
        "    ...  # the other way round\n"
        "return CopyToRanks.apply, AddOverRanks.apply",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for t, size in ((3, 4), (2, 3), (1, 3), (4, 1 << 13)):
            x, c = normal(generator, size, scale=0.5), normal(generator, size)
            made.append(Trial([{"x": x, "w": normal(generator, size, scale=0.5), "c": c} for _ in range(t)],
                              f"{ranks_of(t)}, {amount(8 * size)} of x"))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        x, w = (inputs[name].clone().requires_grad_() for name in ("x", "w"))
        answer: dict[str, Any] = {}

        def there_and_back() -> None:
            pair = function()
            if not isinstance(pair, tuple | list) or len(pair) != 2 or not all(map(callable, pair)):
                answer["f"] = said(pair)
                return
            copied = applied(pair[0], x, "f")
            answer["f"] = plain(copied)
            h = torch.exp(w * (copied + x))
            s = applied(pair[1], h, "g")
            answer["g"], answer["h"] = plain(s), plain(h)
            if s.requires_grad:
                (inputs["c"] * s).sum().backward()
            answer["w"], answer["x"] = plain(w.grad), plain(x.grad)

        try:
            _, calls = count_calls(there_and_back)
        except RuntimeError as error:
            if "inplace operation" in str(error):
                error.add_note(WRITTEN_OVER)
            raise
        return {**answer, "calls": calls}

    def expected(self, inputs: list[dict[str, Any]]) -> Answers:
        return there(inputs, f, g)

    def mistakes(self, inputs: list[dict[str, Any]]) -> Iterable[tuple[str, Answers]]:
        t, right = len(inputs), self.expected(inputs)
        yield ("f sends nothing in backward, so each rank has its own part of the gradient of x, though forward is "
               "right: every rank uses x, so its gradient is the sum over the ranks", there(inputs, nothing, g))
        yield ("g adds up in backward as well: each of its summands goes into every rank's sum once, and the gradient "
               "is the same on all ranks already, so pass it on as it is", there(inputs, f, both_add))
        yield "f and g are the other way round", there(inputs, g, f)
        yield ("f adds up in forward as well: what comes in is whole already, so pass it on as it is",
               there(inputs, both_add, g))
        yield "f and g both add up in both directions: each of them does so in one", there(inputs, both_add, both_add)
        yield "g sends nothing in forward: what it returns is the sum over the ranks", there(inputs, f, nothing)
        for back in (1, t):
            yield ("g makes the mean: the ranks' results are summands, so nothing is divided",
                   there(inputs, f, lambda hs, back=back: [s / t for s in scaled_back(g(hs), back)]))
        yield ("f makes the mean of the gradients: they are summands, so nothing is divided",
               there(inputs, lambda xs: scaled_back(f(xs), 1 / t), g))
        total = right[0]["g"]
        own = [rank["c"] * total * rank["w"] for rank in inputs]
        yield WRITTEN_OVER, [{**answer, "h": total, "w": 2 * rank["c"] * total * rank["x"], "x": each + sum(own)}
                             for answer, rank, each in zip(right, inputs, own)]
        own = [rank["c"] * answer["h"] * rank["w"] for answer, rank in zip(right, inputs)]
        yield ("f adds into the gradient that came in, which belongs to others too, here to the second term of a sum: "
               "add up a copy", [{**answer, "x": 2 * sum(own)} for answer in right])
        yield ("the results are right, but nothing leads back through them: return the .apply of an autograd.Function",
               [{**answer, "w": None, "x": None} for answer in right])

    def cause(self, given: list[Any], inputs: list[dict[str, Any]]) -> str | None:
        if not isinstance(given[0]["f"], Tensor):  # f was not called: what it returns was looked at
            return f"it returned {describe(given[0]['f'])}: expected two functions, f and g"
        return super().cause(given, inputs)

    def kept(self, trial: Trial, answers: list[Any]) -> list[Spent]:
        return [num_calls(answers, 2, "f sends in backward only, and g in forward only")]

    def bound(self, trial: Trial) -> int:
        return 2 * all_reduce_bytes(trial, trial.inputs[0]["x"].numel())


def there(inputs: list[dict[str, Any]], first: Callable, second: Callable) -> Answers:
    """What the ranks answer with `first` for f and `second` for g."""
    xs, ws = ([rank[name].clone().requires_grad_() for rank in inputs] for name in ("x", "w"))
    copied = first(xs)
    hs = [torch.exp(w * (a + x)) for w, a, x in zip(ws, copied, xs)]
    sums = second(hs)
    sum((rank["c"] * s).sum() for rank, s in zip(inputs, sums)).backward()
    return [{"f": plain(a), "g": plain(s), "h": plain(h), "w": plain(w.grad), "x": plain(x.grad)}
            for a, s, h, w, x in zip(copied, sums, hs, ws, xs)]


def applied(function: Callable, x: Tensor, name: str) -> Tensor:
    y = function(x)
    if not isinstance(y, Tensor):
        raise TypeError(f"{name} returned {said(y)}: expected a tensor. Does its forward end with `return`?")
    return y


def said(value: Any) -> str:
    return describe(plain(value))
