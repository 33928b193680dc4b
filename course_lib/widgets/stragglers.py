"""Stragglers: one rank is slow. Who waits, how many steps does the cluster make, and how old are its gradients?"""

from __future__ import annotations

from typing import Any

import traitlets
from matplotlib.figure import Figure

from course_lib.costs.stragglers import COMMUNICATES, COMPUTES, SCHEMES, SLOWLY, WAITS, WHO, Run, simulate
from course_lib.widgets import stragglers_picture
from course_lib.widgets.base import BadParameter, Explorable, WholeNumber

NUM_RANKS, STEP_S, SYNC = 4, 0.1, 0.25  # an ordinary step computes for 100 ms and communicates for a quarter of that
HORIZON = 24  # ordinary steps that the timeline shows
SLACKS = (0, 1, 2, 4, 8, 16, 32, None)
SLOWDOWNS = tuple(range(1, 11))
KINDS = (COMPUTES, SLOWLY, COMMUNICATES, WAITS)


class Stragglers(Explorable, script="stragglers.js"):
    """Four ranks that train together by `scheme`, one of them `slowdown` times slower (1 to 10).

    who: "always rank 1" is slow, or "a random rank each step". slack: how many steps a rank may be ahead of the
    slowest; local SGD averages every slack + 1 steps, asynchronous training takes None for no bound, and synchronous
    training has none.
    """

    scheme = traitlets.Any(SCHEMES[0]).tag(sync=True, echo_update=False)
    who = traitlets.Any(WHO[0]).tag(sync=True, echo_update=False)
    slowdown = WholeNumber(3, SLOWDOWNS[0], SLOWDOWNS[-1]).tag(sync=True, echo_update=False)
    slack = traitlets.Any(4, allow_none=True).tag(sync=True, echo_update=False)
    choices = traitlets.Dict().tag(sync=True, echo_update=False)
    parameters = ("scheme", "who", "slowdown", "slack")

    def __init__(self, **parameters: Any) -> None:
        super().__init__(**parameters)
        self.choices = {"schemes": [[name, scheme_told(name)] for name in SCHEMES], "who": list(WHO),
                        "slowdowns": list(SLOWDOWNS), "slacks": list(SLACKS)}

    @traitlets.validate("scheme", "who", "slack")
    def _there_is_such_a_run(self, proposal: Any) -> Any:
        asked = {"scheme": self.scheme, "who": self.who, "slack": self.slack}
        asked[proposal.trait.name] = proposal.value
        slack = asked["slack"]
        if slack is not None and (type(slack) is not int or not 0 <= slack <= SLACKS[-2]):
            raise BadParameter(f"slack={slack!r}: expected a whole number from 0 to {SLACKS[-2]}, or None for no bound")
        for name, known in (("scheme", SCHEMES), ("who", WHO)):
            if asked[name] not in known:
                raise BadParameter(f"{name}={asked[name]!r}: expected one of {', '.join(map(repr, known))}")
        if asked["scheme"] == "local" and slack is None:
            raise BadParameter("slack=None: expected a number for local SGD, which would never average without a bound")
        return proposal.value

    def run(self, scheme: str | None = None, slack: int | None | str = "present") -> Run:
        """The simulated training, by the widget's scheme and slack or by others."""
        return simulate(scheme or self.scheme, self.slack if slack == "present" else slack, float(self.slowdown),
                        self.who, NUM_RANKS, SYNC)

    def possible(self, scheme: str) -> float:
        """Steps a second if nobody ever waited."""
        others = NUM_RANKS - 1
        durations = ([1.0] * others + [float(self.slowdown)] if self.who == WHO[0]
                     else [(others + self.slowdown) / NUM_RANKS] * NUM_RANKS)
        sync = SYNC / (self.slack + 1) if scheme == "local" else SYNC
        return sum(1 / (duration + sync) for duration in durations) / STEP_S

    def compute(self) -> dict[str, Any]:
        run = self.run()
        return {
            **self.texts(run),
            "kinds": list(KINDS),
            "rows": [[[KINDS.index(what), start * STEP_S, min(end, HORIZON) * STEP_S]
                      for what, start, end in spans if start < HORIZON] for spans in run.spans],
            "waiting": [f"waits {run.waiting(rank):.0%}" for rank in range(NUM_RANKS)],
            "horizon_s": HORIZON * STEP_S,
            "ticks": [[at * STEP_S, f"{at * STEP_S:g} s"] for at in range(0, HORIZON + 1, 4)],
            "compared": self.compared(),
            "key": f"{self.scheme} | {self.who} | x{self.slowdown} | slack={self.slack}",
        }

    def compared(self) -> list[list[Any]]:
        """[name, steps/s, words, whether it is what is shown] of every scheme, with this slack and without a bound."""
        slack = SLACKS[-2] if self.slack is None else self.slack
        rows = []
        all_schemes = (("synchronous", 0), ("local", slack), ("asynchronous", slack), ("asynchronous", None))
        for scheme, with_slack in all_schemes:
            run = self.run(scheme, with_slack)
            rate = run.throughput() / STEP_S
            present = scheme == self.scheme and (scheme == "synchronous" or with_slack == self.slack)
            rows.append([scheme_told(scheme, with_slack), rate,
                         f"{rate:.1f} steps/s, {stale_told(run, with_slack)}", present])
        return rows

    def texts(self, run: Run) -> dict[str, str]:
        waiting = sum(map(run.waiting, range(NUM_RANKS))) / NUM_RANKS
        slack = 0 if self.scheme == "synchronous" else self.slack
        rate, possible = run.throughput() / STEP_S, self.possible(self.scheme)
        return {
            "headline": f"{rate:.1f} steps/s of {possible:.1f} possible: ranks wait {waiting:.0%} of their time, "
                        f"gradients {stale_told(run, slack)}",
            "detail": self.explained(run),
            "note": "a step: 100 ms of computing, 25 ms of communication; "
                    "stale: how many steps of the others a gradient misses",
            "chart": f"All schemes, {slow_told(self.who, self.slowdown)}",
        }

    def explained(self, run: Run) -> str:
        """Why it is so."""
        if self.slowdown == 1:
            return "All ranks are equally fast, so nobody has to wait."
        if self.scheme == "synchronous":
            return "Every step ends when its slowest rank has done it, and all the others wait."
        if self.slack == 0:
            return "Without slack it is the synchronous scheme: every step waits for its slowest rank."
        if self.slack is None:
            return (f"Nobody waits, but nothing bounds the staleness: it grew to {run.staleness()[1]:,} steps while "
                    "the slowest rank made 400.")
        if self.scheme == "local":
            return (f"Rank 1 is late in every round of {self.slack + 1} steps: only the averaging is rarer."
                    if self.who == WHO[0] else
                    f"Over {self.slack + 1} steps hiccups even out between the ranks, so a round waits less.")
        return (f"A rank may be {self.slack} steps ahead. Once it is, it waits again: in the long run all go at rank "
                "1's pace." if self.who == WHO[0] else
                f"A hiccup stops the others only where they are {self.slack} steps ahead already.")

    def sentence(self) -> str:
        said = self.texts(self.run())
        name = scheme_told(self.scheme, None if self.scheme == "synchronous" else self.slack)
        return (f"Stragglers, {name}, {slow_told(self.who, self.slowdown)}: {said['headline']}. {said['detail']}")

    def picture(self) -> Figure:
        return stragglers_picture.draw(self.compute())


def scheme_told(scheme: str, slack: int | None | str = "unsaid") -> str:
    """`local SGD, H = 5`; without a slack only the name."""
    name = {"synchronous": "synchronous", "local": "local SGD", "asynchronous": "asynchronous"}[scheme]
    if slack == "unsaid" or scheme == "synchronous":
        return name
    if scheme == "local":
        return f"{name}, H = {slack + 1}"
    return f"{name}, no bound" if slack is None else f"{name}, s = {slack}"


def slow_told(who: str, slowdown: int) -> str:
    if slowdown == 1:
        return "no rank slow"
    return (f"rank 1 takes {slowdown} times as long" if who == WHO[0] else
            f"in each step a random rank takes {slowdown} times as long")


def stale_told(run: Run, slack: int | None) -> str:
    most = run.staleness()[1]
    if slack is None and most:
        return "ever more stale"
    return f"up to {most} step{'s' * (most != 1)} stale" if most else "never stale"
