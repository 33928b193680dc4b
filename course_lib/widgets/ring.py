"""RingAllReduce: one all-reduce around the ring, chunk by chunk. Why does nobody send more than twice its buffer?"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from course_lib.collectives.holdings import Cell
from course_lib.collectives.plan import Plan, plan, times
from course_lib.pictures.scene import WIDTH, Scene, Sheet
from course_lib.plots.cell_style import CellStyle, key_to_cells
from course_lib.widgets.base import Control, SteppedExplorable, WholeNumber, player, slider

MIN_RANKS, MAX_RANKS = 2, 8
HIGH, LANES_Y, LANES = 110, 27, 62  # of a rank's box, and of the places in it
CHUNK = (17, 40)  # width and height of one that travels


def scene_of(num_ranks: int, step: int) -> Scene:
    """The boxes of the ranks on an ellipse, and on the links between them the chunks of this step."""
    sheet, ring, circle, n = Sheet(), plan("all_reduce", "ring", num_ranks), ellipse(num_ranks), num_ranks
    messages = ring.steps[step - 1].messages if step else ()
    for rank in range(n):
        sheet.curve(f"link {rank}", "track", *circle.links[rank])
    arrived = {(message.dst, into) for message in messages for into in message.into}
    for rank in range(n):
        add_rank(sheet, circle, rank, ring.states[step].cells[rank], {into for dst, into in arrived if dst == rank})
    for message in messages:
        (chunk,) = message.chunks
        add_chunk(sheet, circle, message.src, chunk, ring.states[step - 1].cells[message.src][chunk])
    add_middle(sheet, circle, ring, step)
    sheet.text("key", "quiet", WIDTH / 2, circle.height - 12, key_to_cells(CellStyle(n, adds=True)), "middle")
    headline, why = f"Step {step} of {ring.num_steps}: {finding(ring, step)}", detail(ring, step)
    return sheet.scene("RingAllReduce", f"n={n} step={step}", f"{n} ranks", headline, why, circle.height,
                       sentence=f"RingAllReduce, {n} ranks: s{headline[1:]}")


class Ellipse:
    """Where the n ranks stand, and the links between them. Places on it count ranks: 0.5 is between ranks 0 and 1."""

    def __init__(self, n: int) -> None:
        self.n, self.wide = n, max(96, 19 * n + 18)  # of a rank's box
        self.rx = WIDTH / 2 - self.wide / 2 - (60 if n <= 4 else 12)
        self.ry = 190 if n <= 4 else 225 if n <= 6 else 262
        self.x, self.y = WIDTH / 2, self.ry + HIGH / 2 + 14
        self.height = self.y + self.ry + HIGH / 2 + 34
        self.links = [self.arc(*self.stretch(rank, 6, 6)) for rank in range(n)]
        self.ways = [self.arc(*self.stretch(rank, CHUNK[0] + 10, CHUNK[1] + 10)) for rank in range(n)]

    def angle(self, place: float) -> float:
        """Rank 0 is at the top, the others follow clockwise."""
        return 2 * math.pi * place / self.n - math.pi / 2

    def point(self, place: float) -> tuple[float, float]:
        return self.x + self.rx * math.cos(self.angle(place)), self.y + self.ry * math.sin(self.angle(place))

    def stretch(self, rank: int, wide: float, tall: float) -> tuple[float, float]:
        """The part of the link behind `rank` on which what is so large covers neither of its boxes."""
        def covers(other: int, place: float) -> bool:
            (x, y), (box_x, box_y) = self.point(place), self.point(other)
            return abs(x - box_x) < (self.wide + wide) / 2 and abs(y - box_y) < (HIGH + tall) / 2

        free = [place for place in (rank + part / 200 for part in range(201))
                if not covers(rank, place) and not covers(rank + 1, place)]
        return free[0], free[-1]

    def arc(self, first: float, last: float) -> list[float]:
        """From place to place as the points of a Bézier curve."""
        start, end = self.angle(first), self.angle(last)
        far = 4 / 3 * math.tan((end - start) / 4)
        (x1, y1), (x2, y2) = self.point(first), self.point(last)
        return [x1, y1, x1 - far * self.rx * math.sin(start), y1 + far * self.ry * math.cos(start),
                x2 + far * self.rx * math.sin(end), y2 - far * self.ry * math.cos(end), x2, y2]


ellipse = cache(Ellipse)


def add_rank(sheet: Sheet, circle: Ellipse, rank: int, cells: tuple[Cell, ...], arrived: set[int]) -> None:
    """A box with a place for each chunk; what has just arrived is framed."""
    x, y = circle.point(rank)
    left, top = round(x - circle.wide / 2), round(y - HIGH / 2)
    column = (circle.wide - 18) / circle.n
    sheet.rect(f"rank {rank}", f"buffer of rank {rank}", left, top, circle.wide, HIGH)
    sheet.text(f"rank {rank} is", "strong", left + 10, top + 15, f"rank {rank}")
    for chunk, cell in enumerate(cells):
        frame = (left + 10 + chunk * column, top + LANES_Y, column - 2, LANES)
        sheet.rect(f"rank {rank} chunk {chunk}", "arrived" if chunk in arrived else "cell", *frame,
                   shares=shares_in(cell, circle.n), waits=True)
        sheet.text(f"rank {rank} chunk {chunk} is", "strong" if chunk in arrived else "quiet",
                   left + 9 + (chunk + 0.5) * column, top + HIGH - 11, f"{chunk}", "middle", waits=True)


def add_chunk(sheet: Sheet, circle: Ellipse, rank: int, chunk: int, cell: Cell) -> None:
    """What `rank` sends, in the middle of its way; its name stands on the outer side, where no box is."""
    wide, tall = CHUNK
    points = circle.ways[rank]
    x, y = ((one + 3 * two + 3 * three + four) / 8 for one, two, three, four in (points[::2], points[1::2]))
    key, way = f"message of rank {rank}", f"way {rank}"
    sheet.curve(way, "way", *points)
    sheet.rect(key, "cell", x - wide / 2, y - tall / 2, wide, tall, shares=shares_in(cell, circle.n), along=way)
    words = f"chunk {chunk}" if circle.n <= 4 else f"{chunk}"
    right, down = math.cos(circle.angle(rank + 0.5)), math.sin(circle.angle(rank + 0.5))
    if abs(right) > abs(down) - 0.01:
        x += math.copysign(wide / 2 + 4, right)
        sheet.text(f"{key} is", "strong", x, y, words, "start" if right > 0 else "end", along=way)
    else:
        sheet.text(f"{key} is", "strong", x, y + math.copysign(tall / 2 + 9, down), words, "middle", along=way)


def shares_in(cell: Cell, num_ranks: int) -> str:
    """A Mark's `shares`."""
    ranks = {share.rank for share in cell}
    return "".join("1" if rank in ranks else "0" for rank in range(num_ranks))


def add_middle(sheet: Sheet, circle: Ellipse, ring: Plan, step: int) -> None:
    """What goes on, and how much each rank has sent of what it has to send in all."""
    x, y, wide, sent = circle.x, circle.y, 270, ring.sent_by_rank(step)[0]
    phase = ring.steps[step - 1].phase if step else "all-reduce"
    doing = {"reduce-scatter": "receive a partial sum, add my share", "all-gather": "receive a finished chunk, keep it",
             "all-reduce": "of chunks around a ring"}
    sheet.text("phase", "title", x, y - 59, phase, "middle")
    sheet.text("doing", "quiet", x, y - 30, doing[phase], "middle")
    sheet.rect("to send", "trough", x - wide / 2, y - 8, wide, 13)
    sheet.rect("sent", "present", x - wide / 2, y - 8, wide * sent / ring.bound, 13)
    sheet.rect("half of it", "lane", x - 1, y - 10, 2, 17)
    sheet.text("sent is", "label", x, y + 26, f"each rank has sent {times(sent)} its buffer", "middle")
    sheet.text("to send is", "quiet", x, y + 48, f"in all 2(n-1)/n = {times(ring.bound)}, the least there is", "middle")


def finding(ring: Plan, step: int) -> str:
    n, sent = ring.num_ranks, times(ring.sent_by_rank(step)[0])
    if step == 0:
        return "every rank has only its own share of each chunk"
    if step == n - 1:
        return f"each rank has one chunk complete, having sent {sent} its buffer"
    if step == ring.num_steps:
        return f"every rank has the whole sum, having sent {sent} its buffer"
    return f"{'both' if n == 2 else f'all {n}'} links busy, {sent} the buffer sent by each rank"


def detail(ring: Plan, step: int) -> str:
    """What rank 0 sends in this step; the others do the same, one place further on."""
    if step == 0:
        return f"Chunk c sets out from rank c + 1; {ring.num_ranks - 1} steps later it comes home to rank c, complete."
    message = next(message for message in ring.steps[step - 1].messages if message.src == 0)
    (chunk,) = message.chunks
    num = len(ring.states[step - 1].cells[0][chunk])
    if message.kind == "copy":
        return f"Rank 0 sends chunk {chunk}, complete, to rank {message.dst}; the others likewise, each another chunk."
    what = "its share" if num == 1 else f"the sum of {num} shares"
    return f"Rank 0 sends {what} of chunk {chunk} to rank {message.dst}, which adds its own."


class RingAllReduce(SteppedExplorable, draw=scene_of):
    """A ring all-reduce on `num_ranks` ranks (2 to 8), after `step` of its 2(n-1) steps.

    Place in a rank's box = chunk; colour and height = the rank whose share is in the sum.
    """

    num_ranks = WholeNumber(4, MIN_RANKS, MAX_RANKS)

    @classmethod
    def last_step(cls, settings: dict[str, Any]) -> int:
        return 2 * (settings["num_ranks"] - 1)

    @classmethod
    def list_controls(cls, settings: dict[str, Any]) -> list[Control]:
        return [slider("ranks", "num_ranks", range(MIN_RANKS, MAX_RANKS + 1), settings["num_ranks"]),
                player(cls.last_step(settings))]
