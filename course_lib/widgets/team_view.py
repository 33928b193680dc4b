"""TeamView: the ranks of a team side by side, what each holds, and in which elements a tensor differs between them."""

from __future__ import annotations

import hashlib
import json
import math
import sys
import weakref
from typing import TYPE_CHECKING, Any

from course_lib.pictures.scene import WIDTH, Scene, Sheet
from course_lib.pictures.units import human_bytes
from course_lib.widgets.base import BadParameter, Control, Explorable, Setting, chooser, require_one_of

if TYPE_CHECKING:
    from course_lib.runtime import Team

ROWS, COLUMNS = 8, 12  # of a tensor, at most, that a snapshot has
MOST_RANKS = 8  # side by side
ALL_NAMES = "all names"
ROLE_OF = {"parameters": "parameters", "gradients": "gradients", "optimizer_state": "optimizer state", "other": "other"}
TOP, LINE = 74, 19
Snapshot = dict[str, Any]  # {"ranks": {"0": take_snapshot() of a rank and "where"}}


def made_up_snapshot() -> Snapshot:
    """Two ranks that have cut a weight between them: what is shown where there is no team."""
    def rank(r: int) -> dict[str, Any]:
        values = [[float(row + 4 * r + column) for column in range(4)] for row in range(4)]
        by_kind = {"parameters": 64, "gradients": 0, "optimizer_state": 0, "other": 16}
        return {"where": "has run In[3]", "by_kind": by_kind, "more": 0, "names": [
            {"name": "weight", "what": "float32[4, 4]", "num_bytes": 64, "values": values},
            {"name": "x", "what": "float32[4]", "num_bytes": 16, "values": [[1.0, 2.0, 3.0, 4.0]]},
            {"name": "loss", "what": repr(0.5 + r), "num_bytes": 0, "values": []}]}

    return {"ranks": {str(r): rank(r) for r in range(2)}}


def names_in(snapshot: Snapshot) -> list[str]:
    """All names of all ranks, in the order of the first rank that has each."""
    return list(dict.fromkeys(each["name"] for rank in snapshot["ranks"].values() for each in rank["names"]))


def find_name(rank: dict[str, Any], name: str) -> dict[str, Any] | None:
    """What a rank has under this name."""
    return next((each for each in rank["names"] if each["name"] == name), None)


def differing_elements(snapshot: Snapshot, name: str) -> set[tuple[int, int]]:
    """(row, column) of the elements shown of which not all ranks that have the name have the same."""
    tables = [held["values"] for rank in snapshot["ranks"].values() if (held := find_name(rank, name))]
    seen: dict[tuple[int, int], list[float]] = {}
    for table in tables:
        for row, values in enumerate(table):
            for column, value in enumerate(values):
                seen.setdefault((row, column), []).append(value)
    return {place for place, values in seen.items() if len(values) < len(tables) or len(set(map(repr, values))) > 1}


def scene_of(name: str, snapshot: Snapshot) -> Scene:
    """All names of each rank; or one, as a heat map for each rank."""
    ranks = dict(list(snapshot["ranks"].items())[:MOST_RANKS])
    sheet, column = Sheet(), WIDTH / max(len(ranks), 1)
    for place, (number, rank) in enumerate(ranks.items()):
        x = place * column + 6
        sheet.inside(f"rank {number}", "label", x, 8, column - 12, 16, f"rank {number}", number)
        sheet.inside(f"rank {number} where", "quiet", x, 28, column - 12, 14, rank["where"],
                     rank["where"].split(" at ")[0])
        add_bytes(sheet, number, rank, x, column - 12)
        if name == ALL_NAMES:
            add_names(sheet, number, rank, x, column - 12)
        else:
            add_values(sheet, number, find_name(rank, name), differing_elements(snapshot, name), x, column - 12)
    headline, detail = texts(name, snapshot)
    held = ". ".join(rank_words(number, rank, name) for number, rank in ranks.items())
    lines = max([len(rank["names"]) for rank in ranks.values()] + [ROWS + 2])
    digest = hashlib.sha256(json.dumps(snapshot, sort_keys=True).encode()).hexdigest()[:12]
    return sheet.scene("TeamView", f"{name} {digest}", name, headline, detail, TOP + LINE * lines + 8, held)


def add_bytes(sheet: Sheet, number: str, rank: dict[str, Any], x: float, wide: float) -> None:
    """One bar: the bytes of each kind, as wide as the column where anything is held."""
    total, left = sum(rank["by_kind"].values()), x
    for kind, role in ROLE_OF.items():
        share = rank["by_kind"].get(kind, 0) / total * wide if total else 0
        if share:
            sheet.rect(f"rank {number} {kind}", role, left, 46, share, 14,
                       hint=f"rank {number}: {kind.replace('_', ' ')} {human_bytes(rank['by_kind'][kind])}")
            left += share


def add_names(sheet: Sheet, number: str, rank: dict[str, Any], x: float, wide: float) -> None:
    """A line for each name: what it is, and its bytes."""
    for line, each in enumerate(rank["names"]):
        size = human_bytes(each["num_bytes"]) if each["num_bytes"] else ""
        full = f"{each['name']}: {each['what']}"
        sheet.inside(f"rank {number} {each['name']}", "small", x, TOP + 6 + line * LINE, wide, LINE,
                     f"{full} {size}".rstrip(), full, each["name"], each["name"][:6])


def add_values(sheet: Sheet, number: str, held: dict[str, Any] | None, differ: set[tuple[int, int]], x: float,
               wide: float) -> None:
    """Grey where all ranks have the same, in the rank's colour where they differ; the darker, the larger. The name
    moves up from its line among all names.
    """
    if held is None:
        sheet.inside(f"rank {number} has none", "quiet", x, TOP, wide, LINE, "has no such name", "none")
        return
    sheet.inside(f"rank {number} {held['name']}", "small", x, TOP, wide, LINE, f"{held['name']}: {held['what']}",
                 held["name"], held["name"][:6])
    finite = [value for row in held["values"] for value in row if math.isfinite(value)]
    lowest, highest = min(finite, default=0.0), max(finite, default=0.0)
    cell = min(wide / COLUMNS, 20.0)
    x += (wide - cell * max(map(len, held["values"]), default=0)) / 2
    for row, values in enumerate(held["values"]):
        for column, value in enumerate(values):
            known = highest > lowest and math.isfinite(value)
            tint = 0.75 * (1 - (value - lowest) / (highest - lowest)) if known else 0.3
            role = f"rank {int(number) % 8}" if (row, column) in differ else "other"
            sheet.rect(f"rank {number} {row},{column}", role, x + column * cell, TOP + LINE + 6 + row * cell, cell,
                       cell, tint=tint, hint=f"rank {number} [{row}, {column}]: {value:.6g}")


def texts(name: str, snapshot: Snapshot) -> tuple[str, str]:
    """Headline and detail."""
    ranks = snapshot["ranks"]
    more = f"; the first {MOST_RANKS} of {len(ranks)} are shown" if len(ranks) > MOST_RANKS else ""
    if not ranks:
        return "no rank is alive", "the team is closed, or has ended"
    if name == ALL_NAMES:
        totals = [sum(rank["by_kind"].values()) for rank in ranks.values()]
        each = (f"each hold {human_bytes(totals[0])}" if len(set(totals)) == 1 and len(totals) > 1
                else f"hold {', '.join(map(human_bytes, totals))}")
        return (f"{len(ranks)} rank{'s' * (len(ranks) > 1)} {each} of tensors",
                f"bars: parameters, gradients, optimizer state and the rest; choose a name to see its values{more}")
    holdings = [held for rank in ranks.values() if (held := find_name(rank, name))]
    shown = max((sum(map(len, held["values"])) for held in holdings), default=0)
    kinds = {held["what"] for held in holdings}
    if not shown:
        same = "is the same in all ranks" if len(kinds) == 1 else "differs between ranks"
        where = " and ".join(sorted(kinds)) or "in no rank"
        return f"The value of {name} {same}", f"it is {where}, and has no values to show{more}"
    differ = len(differing_elements(snapshot, name))
    return (f"In {name} {differ} of {shown} elements differ between ranks" if differ else
            f"In {name} all {shown} elements are the same in all ranks",
            f"grey is the same everywhere, darker is larger; at most {ROWS} rows and {COLUMNS} columns are shown{more}")


def rank_words(number: str, rank: dict[str, Any], name: str) -> str:
    """One rank, for who cannot see it."""
    held = find_name(rank, name)
    if name == ALL_NAMES:
        names = ", ".join(f"{each['name']} {each['what']}" for each in rank["names"])
        return f"rank {number} {rank['where']}: {names or 'nothing'}"
    return f"rank {number}: {held['what'] if held else 'none'}"


class TeamView(Explorable, draw=scene_of):
    """What the ranks of a team hold: `TeamView.of(team, "loss")`, which is drawn anew after each cell."""

    name = Setting(ALL_NAMES)
    snapshot = Setting(made_up_snapshot())

    @classmethod
    def of(cls, team: Team, name: str = ALL_NAMES) -> TeamView:
        """A view of `team`, which follows it from cell to cell. name: the tensor to open first."""
        view = cls(name, snapshot_of(team))
        if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()) is not None:
            follow(view, team, shell)
        return view

    def refresh(self, team: Team) -> None:
        """Show what the team holds now. One at work stays as it was, and one that is closed as it was last."""
        if not team.is_busy and team.alive:
            snapshot = snapshot_of(team)
            with self.hold_trait_notifications():
                if self.name != ALL_NAMES and self.name not in names_in(snapshot):
                    self.name = ALL_NAMES
                self.snapshot = snapshot

    @classmethod
    def list_controls(cls, settings: dict[str, Any]) -> list[Control]:
        return [chooser("show", "name", [ALL_NAMES, *names_in(settings["snapshot"])])]

    @classmethod
    def check_settings(cls, settings: dict[str, Any]) -> dict[str, Any]:
        held = settings["snapshot"]
        if not (isinstance(held, dict) and isinstance(held.get("ranks"), dict)):
            raise BadParameter(f"snapshot={held!r:.60}: expected what a team held, as TeamView.of(team) takes it")
        require_one_of("name", settings["name"], [ALL_NAMES, *names_in(held)])
        return settings


def snapshot_of(team: Team) -> Snapshot:
    """What the living ranks of a team hold now."""
    return {"ranks": {str(rank): held for rank, held in team.snapshot().items()}}


def follow(view: TeamView, team: Team, shell: Any) -> None:
    """Refresh the view after each cell, for as long as both are there."""
    seen, shown = weakref.ref(view), weakref.ref(team)

    def refresh_after_cell(result: Any) -> None:
        view, team = seen(), shown()
        if view is None or team is None:
            shell.events.unregister("post_run_cell", refresh_after_cell)
        else:
            view.refresh(team)

    shell.events.register("post_run_cell", refresh_after_cell)
