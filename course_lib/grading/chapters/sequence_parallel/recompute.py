"""Exercise 7.5: keep a function's input alone, and run it again in backward, with the random numbers that it had.

    function(x) = dropout(gelu(x W1)) W2      x (T, D), W1 (D, F), W2 (F, D), F = 8 D      kept: bytes until backward
"""

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.grading.chapters.models import ROUNDING
from course_lib.grading.chapters.split import normal
from course_lib.grading.compare import alike, describe, part, plain
from course_lib.grading.exercise import Exercise, Traffic, Trial
from course_lib.grading.spent import Spent

Inputs = list[dict[str, Any]]
RNG_BYTES = 16 * 1024  # for the state of the generator, 5,056 bytes, where it is counted, and what else is small
CHECKPOINT = "torch.utils.checkpoint"
NAMES = {"y": "the result", "x": "the gradient of x", "W1": "the gradient of W1", "W2": "the gradient of W2",
         "after": "the random number that is drawn after backward"}


class Recomputed(Exercise):
    number = "7.5"
    function = "my_recomputed"
    points = 4
    tolerance = ROUNDING
    right = "result and gradients are right"
    budget = "kept between forward and backward: no more than x again; `function` runs twice"
    hints = (
        "An autograd.Function's forward runs without a graph, so nothing of what is inside is kept. What does backward "
        "need in order to do it all again, dropout included?",
        "Forward: the state of the generator, then function(x); save x. Backward: remember the state of now, set the "
        "old one, run function on a detached x that requires a gradient, set the state of now again, and go backward "
        "through it from dy. The weights that function uses get their gradients on the way.",
        "class Recompute(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, x):\n"
        "        ctx.state = torch.get_rng_state()\n"
        "        ctx.save_for_backward(x)\n"
        "        return function(x)\n"
        "    @staticmethod\n"
        "    def backward(ctx, dy):\n"
        "        x = ctx.saved_tensors[0].detach().requires_grad_()\n"
        "        ...  # set the state\n"
        "        with torch.enable_grad():\n"
        "            y = function(x)\n"
        "        ...  # set the state back\n"
        "        torch.autograd.backward(y, dy)\n"
        "        return ...\n"
        "return Recompute.apply(x)",
    )

    def trials(self, seed: int) -> list[Trial]:
        generator = torch.Generator().manual_seed(seed)
        made = []
        for T, D, p in ((3, 4, 0.5), (4, 2, 0.0), (64, 64, 0.1)):
            tensors = {"x": normal(generator, T, D), "W1": normal(generator, D, 8 * D, scale=D**-0.5),
                       "W2": normal(generator, 8 * D, D, scale=D**-0.5)}
            made.append(Trial([{"given": tensors, "dy": normal(generator, T, D), "p": p, "seed": seed % 10_000}],
                              f"x of {T} tokens with {D} numbers, dropout {p}"))
        return made

    @staticmethod
    def run(function: Callable, inputs: dict[str, Any]) -> dict[str, Any]:
        from course_lib.runtime import record_memory

        with record_memory() as log:
            return measured(inputs, function, lambda: log.current)

    def given(self, answers: list[Any]) -> list[Any]:
        return [{name: part(answer, name) for name in NAMES} for answer in answers]

    def expected(self, inputs: Inputs) -> list[Any]:
        return self.given([measured(inputs[0], lambda function, x: function(x))])

    def mistakes(self, inputs: Inputs) -> Iterable[tuple[str, list[Any]]]:
        def variant(cause: str, **changes: bool) -> tuple[str, list[Any]]:
            return cause, self.given([measured(inputs[0], lambda function, x: again(function, x, **changes))])

        yield variant("dropout has another mask in backward than it had in forward, so the gradients belong to a "
                      "function that nobody computed: set the generator's state of forward before running it again",
                      old_state=False)
        yield variant("all gradients are right, but the generator was left where the second run put it, so that what "
                      "is drawn next repeats: set its state back", put_back=False)
        yield variant("the gradients of the weights are missing: torch.autograd.grad fills those that it is asked for "
                      "only; torch.autograd.backward(y, dy) goes everywhere", weights=False)
        yield variant("the gradient that came in is ignored: go backward from dy, not from the sum of y", use_dy=False)
        yield ("the result is right, but nothing has a gradient: return the .apply of an autograd.Function",
               [{**self.expected(inputs)[0], **dict.fromkeys(("x", "W1", "W2"))}])

    def difference(self, given: list[Any], expected: list[Any]) -> str:
        name = next(name for name in NAMES if not alike(given[0][name], expected[0][name], self.tolerance))
        return f"{NAMES[name]} is {describe(given[0][name])}: expected {describe(expected[0][name])}"

    def flaw(self, trial: Trial, answers: list[Any], traffic: Traffic) -> str | None:
        return f"it uses {CHECKPOINT}: that is what you are asked to write" if answers[0]["by_torch"] else None

    def spent(self, trial: Trial, answers: list[Any], traffic: Traffic) -> list[Spent]:
        answer, x = answers[0], trial.inputs[0]["given"]["x"]
        why = "what is computed inside is kept for backward: run `function` where no graph is made"
        return [Spent("keeps", answer["kept"], x.nbytes, on=" until backward", slack=RNG_BYTES, why=why, claimed=True),
                Spent("ran the function", answer["runs"], 2, "time", why="once forward, and once more in backward",
                      claimed=True)]


def measured(inputs: dict[str, Any], function: Callable, held: Callable[[], int] = lambda: 0) -> dict[str, Any]:
    """Forward, other random numbers, backward, and one more random number. held(): the bytes of all tensors."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs["given"].items()}
    runs, by_torch = 0, False

    def feed_forward(x: Tensor) -> Tensor:
        nonlocal runs, by_torch
        runs, by_torch = runs + 1, by_torch or called_by(CHECKPOINT)
        return F.dropout(F.gelu(x @ leaves["W1"]), inputs["p"]) @ leaves["W2"]

    before, state = held(), torch.get_rng_state()
    torch.manual_seed(inputs["seed"])
    try:
        y = function(feed_forward, leaves["x"])
        kept = held() - before - (y.nbytes if isinstance(y, Tensor) else 0)
        torch.rand(5)  # others draw, too
        if isinstance(y, Tensor) and y.requires_grad and y.shape == inputs["dy"].shape:
            y.backward(inputs["dy"].clone())
        after = torch.rand(()).item()
    finally:
        torch.set_rng_state(state)
    return {"y": plain(y), **{name: plain(leaf.grad) for name, leaf in leaves.items()}, "after": after, "kept": kept,
            "runs": runs, "by_torch": by_torch}


def called_by(module: str) -> bool:
    frame = sys._getframe(1)
    while frame and frame.f_globals.get("__name__") != module:
        frame = frame.f_back
    return frame is not None


def again(function: Callable, x: Tensor, old_state: bool = True, put_back: bool = True, weights: bool = True,
          use_dy: bool = True) -> Tensor:
    """function(x), recomputed in backward; arguments but the first two are mistakes where they are False."""
    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.state = torch.get_rng_state()
            ctx.save_for_backward(x)
            return function(x)

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Tensor:
            x, now = ctx.saved_tensors[0].detach().requires_grad_(), torch.get_rng_state()
            if old_state:
                torch.set_rng_state(ctx.state)
            with torch.enable_grad():
                y = function(x)
            if put_back and old_state:
                torch.set_rng_state(now)
            dy = dy if use_dy else torch.ones_like(dy)
            if not weights:
                return torch.autograd.grad(y, x, dy)[0]
            torch.autograd.backward(y, dy)
            return x.grad

    return Again.apply(x)
