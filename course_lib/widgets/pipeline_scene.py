"""The scene of PipelineSchedule: a lane for each rank, and the idle share of every schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from course_lib.pictures.palette import LIGHTEST
from course_lib.pictures.scene import Sheet, axis, bars, legend, round_ticks, width_of
from course_lib.pipeline_parallel import Action, Finding, Schedule, Simulation
from course_lib.pipeline_parallel.timing import write_count

RUNS, WAITS, WRONG = range(3)  # what becomes of an action
ROLES = {"F": "forward", "B": "backward", "I": "backward", "W": "weights"}
NAMES = {"F": "forward F", "B": "whole backward B", "I": "backward for input I", "W": "backward for weights W"}
LEFT, RIGHT, TOP, GAP = 66, 800, 8, 3
LEAST, MOST, ROOM = 25, 34, 160  # of a lane, and of all where they are few
BAR_LEFT, BAR_RIGHT, BAR_ROW = 140, 730, 19
Compared = list[tuple[str, float, str, bool]]


def draw_schedule(simulated: Simulation, found: list[Finding], compared: Compared, unit: str,
                  note: str) -> tuple[Sheet, float]:
    """The marks and how high they stand."""
    schedule, sheet = simulated.schedule, Sheet()
    tall = max(LEAST, min(MOST, ROOM / schedule.num_ranks))
    rows = [row_of(simulated, rank, found) for rank in range(schedule.num_ranks)]
    end = max((box[1] for row in rows for box in row), default=0) or 1.0
    for rank, row in enumerate(rows):
        add_lane(sheet, simulated, rank, row, TOP + rank * tall, tall - GAP, (RIGHT - LEFT) / end)
    y = TOP + schedule.num_ranks * tall + 4
    axis(sheet, LEFT, RIGHT, y, end, [(at, f"{at:g}") for at in round_ticks(end)], unit)
    add_legend(sheet, rows, y + 58, max(map(len, schedule.stages)) > 1)
    sheet.text("note", "quiet", LEFT, y + 78, note)
    sheet.text("chart", "label", LEFT, y + 106, f"Idle share and memory of all schedules, {schedule.num_ranks} ranks, "
               f"{schedule.num_microbatches} micro-batches")
    bars(sheet, BAR_LEFT, BAR_RIGHT, y + 118, BAR_ROW, compared)
    return sheet, y + 118 + BAR_ROW * len(compared) + 8


Row = list[tuple[float, float, Action, int]]  # start, end, action, what becomes of it


def row_of(simulated: Simulation, rank: int, found: list[Finding]) -> Row:
    """A rank's actions in order; what cannot run stands behind."""
    boxes = simulated.by_rank[rank]
    wrong = {finding.position for finding in found if finding.rank == rank}
    row = [(float(box.start), float(box.end), box.action) for box in boxes]
    at = float(simulated.makespan) + 0.5
    for action in simulated.schedule.actions[rank][len(boxes):]:
        row.append((at, at + 1, action))
        at += 1
    return [(*box, WRONG if place in wrong else RUNS if place < len(boxes) else WAITS)
            for place, box in enumerate(row)]


def add_lane(sheet: Sheet, simulated: Simulation, rank: int, row: Row, y: float, tall: float, scale: float) -> None:
    schedule = simulated.schedule
    sheet.text(f"rank {rank}", "label", LEFT - 8, y + tall / 2, f"rank {rank}", "end")
    sheet.rect(f"rank {rank} lane", "lane", LEFT, y, RIGHT - LEFT, tall)
    sheet.rect(f"rank {rank} idle", "idle", LEFT, y, scale * float(simulated.makespan), tall)
    num_chunks = len(schedule.stages[rank])
    for key, (start, end, action, becomes) in zip(keys_of(schedule, rank), row):
        frame = (LEFT + scale * start, y, scale * (end - start), tall)
        if becomes == RUNS:
            add_action(sheet, key, action, num_chunks, *frame)
        else:
            sheet.rect(key, "wrong" if becomes == WRONG else "stuck", *frame)
            sheet.inside(f"{key} is", "alarm" if becomes == WRONG else "quiet", *frame, str(action))
    peak = write_count(simulated.peak_activations[rank])
    sheet.text(f"rank {rank} in flight", "small", RIGHT + 8, y + tall / 2, f"{peak} in flight")


def keys_of(schedule: Schedule, rank: int) -> Iterator[str]:
    """"rank 0 F3.1" for each action; one that stands there once more is another mark."""
    seen: Counter[Action] = Counter()
    for action in schedule.actions[rank]:
        seen[action] += 1
        yield f"rank {rank} {action}" + (f" ({seen[action]})" if seen[action] > 1 else "")


def add_action(sheet: Sheet, key: str, action: Action, num_chunks: int, x: float, y: float, wide: float,
               tall: float) -> None:
    """Later chunks are lighter; a whole backward also makes the weight gradients: a strip in their colour."""
    tint = LIGHTEST * action.chunk / (num_chunks - 1) if num_chunks > 1 else 0.0
    sheet.rect(key, ROLES[action.kind], x, y, wide, tall, tint)
    whole = action.kind == "B"
    if whole:
        sheet.rect(f"{key} weights", "weights", x, y + 0.82 * tall, wide, 0.18 * tall, tint)
    on = "on dark" if action.kind == "F" and not action.chunk else "on light"
    sheet.inside(f"{key} is", on, x, y, wide, 0.84 * tall if whole else tall, str(action.microbatch))


def add_legend(sheet: Sheet, rows: list[Row], middle: float, several_chunks: bool) -> None:
    used = {action.kind for row in rows for _, _, action, _ in row}
    x = LEFT
    for kind in (kind for kind in NAMES if kind in used):
        sheet.rect(f"legend {kind}", ROLES[kind], x, middle - 7, 14, 14)
        if kind == "B":
            sheet.rect("legend B weights", "weights", x, middle + 4, 14, 3)
        sheet.text(f"legend {kind} is", "small", x + 20, middle, NAMES[kind])
        x += 38 + width_of(NAMES[kind], 11.5)
    x = legend(sheet, x, middle, [("idle", "idle")])
    if several_chunks:
        sheet.text("legend of chunks", "quiet", x, middle, "lighter: later chunk")
