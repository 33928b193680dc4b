"""Stragglers: one rank is slow. Who waits, how many steps does the cluster make, and how old are its gradients?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from course_lib.costs.scaling import (
    COMMUNICATES,
    COMPUTES,
    SCHEMES,
    SLOWLY,
    WAITS,
    WHO,
    Span,
    StragglerRun,
    simulate_stragglers,
)
from course_lib.pictures.scene import Scene, Sheet, axis, bars, legend
from course_lib.widgets.base import BadParameter, Control, Explorable, OneOf, Setting, WholeNumber, chooser, slider

NUM_RANKS, STEP_S, SYNC = 4, 0.1, 0.25  # an ordinary step computes for 100 ms and communicates for a quarter of that
HORIZON = 24  # ordinary steps that the timeline shows
SLACKS = (0, 1, 2, 4, 8, 16, 32, None)
LARGEST = SLACKS[-2]
SLOWDOWNS = tuple(range(1, 11))
ROLES = {COMPUTES: "compute", SLOWLY: "late", COMMUNICATES: "message", WAITS: "idle"}


def run(scheme: str, who: str, slowdown: int, slack: int | None) -> StragglerRun:
    return simulate_stragglers(scheme, slack, float(slowdown), who, NUM_RANKS, SYNC)


def possible(scheme: str, who: str, slowdown: int, slack: int | None) -> float:
    """Steps per second of all ranks together if nobody ever waited."""
    others = NUM_RANKS - 1
    durations = ([1.0] * others + [float(slowdown)] if who == WHO[0]
                 else [(others + slowdown) / NUM_RANKS] * NUM_RANKS)
    sync = SYNC / (slack + 1) if scheme == "local" else SYNC
    return sum(1 / (duration + sync) for duration in durations) / STEP_S


LEFT, RIGHT, TOP, ROW, TALL = 80, 805, 38, 36, 29
BAR_LEFT, BAR_RIGHT, BAR_ROW = 200, 620, 26


def scene_of(scheme: str, who: str, slowdown: int, slack: int | None) -> Scene:
    """What every rank does in the first seconds, and what all the schemes achieve."""
    shown, sheet = run(scheme, who, slowdown, slack), Sheet()
    headline, detail = texts(shown, scheme, who, slowdown, slack)
    legend(sheet, LEFT, 14, [(role, what) for what, role in ROLES.items()])
    for rank, spans in enumerate(shown.spans):
        add_rank(sheet, rank, spans, f"waits {shown.waiting(rank):.0%}")
    bottom = TOP + NUM_RANKS * ROW
    axis(sheet, LEFT, RIGHT, bottom, HORIZON, [(at, f"{at * STEP_S:g} s") for at in range(0, HORIZON + 1, 4)])
    compared = comparison(scheme, who, slowdown, slack)
    sheet.text("chart", "label", 8, bottom + 48, f"All schemes, steps/s per rank, {slowness_words(who, slowdown)}")
    bars(sheet, BAR_LEFT, BAR_RIGHT, bottom + 62, BAR_ROW, compared)
    foot = bottom + 62 + BAR_ROW * len(compared)
    sheet.text("note", "quiet", 8, foot + 18, "a step: 100 ms of computing, 25 ms of communication; "
               "stale: by how many steps the furthest rank is ahead of a gradient")
    name = scheme_words(scheme, None if scheme == "synchronous" else slack)
    waits = ", ".join(f"rank {rank} {shown.waiting(rank):.0%}" for rank in range(NUM_RANKS))
    asked = f"{name}, {slowness_words(who, slowdown)}"
    others = "; ".join(f"{name} {words}" for name, _, words, _ in compared)
    return sheet.scene("Stragglers", f"{scheme} | {who} | x{slowdown} | slack={slack}", asked, headline, detail,
                       foot + 30, f"Waiting: {waits}. All schemes: {others}",
                       f"Stragglers, {asked}: {headline}. {detail}")


def add_rank(sheet: Sheet, rank: int, spans: Sequence[Span], waits: str) -> None:
    y, scale = TOP + rank * ROW, (RIGHT - LEFT) / HORIZON
    sheet.text(f"rank {rank}", "label", LEFT - 9, y + TALL / 2, f"rank {rank}", "end")
    for number, (what, start, end) in enumerate(spans):
        if start < HORIZON:
            sheet.rect(f"rank {rank} span {number}", ROLES[what], LEFT + scale * start, y,
                       scale * (min(end, HORIZON) - start), TALL)
    sheet.text(f"rank {rank} waits", "alarm", RIGHT + 9, y + TALL / 2, waits)


def comparison(scheme: str, who: str, slowdown: int, slack: int | None) -> list[tuple[str, float, str, bool]]:
    """(name, steps/s per rank, words, whether it is what is shown) of every scheme, with this slack and without."""
    bounded = LARGEST if slack is None else slack
    rows = []
    all_schemes = (("synchronous", 0), ("local", bounded), ("asynchronous", bounded), ("asynchronous", None))
    for other, with_slack in all_schemes:
        ran = run(other, who, slowdown, with_slack)
        rate = ran.throughput() / STEP_S / NUM_RANKS
        present = other == scheme and (other == "synchronous" or with_slack == slack)
        rows.append((scheme_words(other, with_slack), rate, f"{rate:.1f} steps/s, {staleness_words(ran, with_slack)}",
                     present))
    return rows


def texts(shown: StragglerRun, scheme: str, who: str, slowdown: int, slack: int | None) -> tuple[str, str]:
    """Headline and detail."""
    waiting = sum(map(shown.waiting, range(NUM_RANKS))) / NUM_RANKS
    stale = staleness_words(shown, 0 if scheme == "synchronous" else slack)
    rate, at_best = shown.throughput() / STEP_S / NUM_RANKS, possible(scheme, who, slowdown, slack) / NUM_RANKS
    return (f"{rate:.1f} of {at_best:.1f} possible steps/s per rank: ranks wait {waiting:.0%} of their time, "
            f"gradients {stale}",
            explanation(shown, scheme, who, slowdown, slack))


def explanation(run: StragglerRun, scheme: str, who: str, slowdown: int, slack: int | None) -> str:
    """Why it is so."""
    if slowdown == 1:
        return "All ranks are equally fast, so nobody has to wait."
    if scheme == "synchronous":
        return "Every step ends when its slowest rank has done it, and all the others wait."
    if slack == 0:
        return "Without slack it is the synchronous scheme: every step waits for its slowest rank."
    if slack is None:
        return (f"Nobody waits, but nothing bounds the staleness: it grew to {run.staleness()[1]:,} steps while "
                "the slowest rank made 400.")
    if scheme == "local":
        return (f"Rank 1 is late in every round of {slack + 1} steps: only the averaging is rarer."
                if who == WHO[0] else
                f"Over {slack + 1} steps hiccups even out between the ranks, so a round waits less.")
    return (f"A rank may be {slack} steps ahead. Once it is, it waits again: in the long run all go at rank "
            "1's pace." if who == WHO[0] else
            f"A hiccup stops the others only where they are {slack} steps ahead already.")


def scheme_words(scheme: str, slack: int | None | str = "unsaid") -> str:
    """`local SGD, H = 5`; without a slack only the name."""
    name = {"synchronous": "synchronous", "local": "local SGD", "asynchronous": "asynchronous"}[scheme]
    if slack == "unsaid" or scheme == "synchronous":
        return name
    return f"{name}, {slack_words(scheme, slack)}"


def slack_words(scheme: str, slack: int | None) -> str:
    if scheme == "synchronous":
        return "none"
    return f"H = {slack + 1}" if scheme == "local" else "no bound" if slack is None else f"s = {slack}"


def slowness_words(who: str, slowdown: int) -> str:
    if slowdown == 1:
        return "no rank slow"
    return (f"rank 1 takes {slowdown} times as long" if who == WHO[0] else
            f"in each step a random rank takes {slowdown} times as long")


def staleness_words(run: StragglerRun, slack: int | None) -> str:
    most = run.staleness()[1]
    if slack is None and most:
        return "ever more stale"
    return f"up to {most} step{'s' * (most != 1)} stale" if most else "never stale"


class Stragglers(Explorable, draw=scene_of):
    """Four ranks that train together by `scheme`, one of them `slowdown` times slower (1 to 10).

    who: "always rank 1" is slow, or "a random rank each step". slack: how many steps a rank may be ahead of the
    slowest; local SGD averages every slack + 1 steps, asynchronous training takes None for no bound, and synchronous
    training has none.
    """

    scheme = OneOf(SCHEMES[0], SCHEMES)
    who = OneOf(WHO[0], WHO)
    slowdown = WholeNumber(3, SLOWDOWNS[0], SLOWDOWNS[-1])
    slack = Setting(4)

    @classmethod
    def check_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        slack = settings["slack"]
        if slack is not None and (type(slack) is not int or not 0 <= slack <= LARGEST):
            raise BadParameter(f"slack={slack!r}: expected a whole number from 0 to {LARGEST}, or None for no bound")
        if settings["scheme"] == "local" and slack is None:
            raise BadParameter("slack=None: expected a number for local SGD, which would never average without a bound")
        return settings

    @classmethod
    def list_controls(cls, settings: dict[str, Any]) -> list[Control]:
        scheme, slack = settings["scheme"], settings["slack"]
        bounded = LARGEST if slack is None else slack  # local SGD needs a bound
        return [chooser("scheme", "scheme", SCHEMES, scheme_words,
                        lambda name: {"scheme": name, "slack": bounded if name == "local" else slack}),
                chooser("slow is", "who", WHO),
                slider("slowdown", "slowdown", SLOWDOWNS, settings["slowdown"], "× {}".format),
                slider("slack", "slack", SLACKS[:-1] if scheme == "local" else SLACKS, slack,
                       lambda each: slack_words(scheme, each), enabled=scheme != "synchronous")]  # it has none
