"""Each mark of each widget's scene stands where the model's number belongs, and its hint and words say that number.

The numbers come from the model, a closed form or a count here, never from what draws; the places from the scene's own
ticks. `Reading.finish` finds a mark that nobody asked for.
"""

import math
import re
from collections import Counter
from fractions import Fraction
from itertools import groupby, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib import facts, pipeline_parallel, widgets
from course_lib.collectives.plan import plan
from course_lib.costs.flops import activation_bytes_per_layer, activation_terms
from course_lib.costs.memory import MIB, device_memory
from course_lib.costs.network import network_of
from course_lib.costs.overlap import MACHINES, MODELS, simulate_overlap
from course_lib.costs.scaling import simulate_stragglers
from course_lib.costs.splitting import visible_pairs
from course_lib.hybrid_parallel.layout import ParallelLayout
from course_lib.pipeline_parallel import SCHEDULES
from course_lib.sequence_parallel import layout_order
from course_lib.why_distribute import plan_run
from course_lib.widgets import expert_load, mesh_explorer, token_dispatch
from course_lib.widgets.base import Explorable, SteppedExplorable
from course_lib.widgets.layout_planner import estimate_layout
from course_lib.widgets.matrix_cut import product_steps
from tests.widgets.marks import Reading, Ruler, quantities, require_numbers
from tests.widgets.pictures import scene_with

SCENES = [kind for name in widgets.__all__ if isinstance(kind := getattr(widgets, name), type)
          and issubclass(kind, Explorable) and kind is not Explorable]
FREE = 0.9  # of a device that may be used
SHAPES = {"half a node": (4, 1), "one node": (8, 1), "two whole nodes": (16, 1), "every other GPU": (8, 2),
          "one of each node": (2, 8)}  # of a group: ranks, and how far apart they stand


def activation_memory(read, model, tokens, split, recompute):
    t = {"t = 4": 4, "t = 8": 8}.get(split[-5:], 1)
    sequence, shape = "sequence" in split, facts.model(model).shape
    at, dropout = read.ticks(), shape.learned_positions
    for number, term in enumerate(activation_terms(shape, 1, tokens, dropout=dropout)):
        kept = 0 if recompute == "full" and number else term.bytes_on_rank(recompute, t, sequence)
        read.rect(f"{term.name} in all", at.span(0, term.num_bytes), role="room")
        read.rect(f"{term.name} kept", at.span(0, kept), hint=[*[4] * term.name.count("4"), kept])
        beside = [kept, term.num_bytes][kept == term.num_bytes:] if kept else []
        read.text(f"{term.name} amounts to", *beside, beside=f"{term.name} kept")
        read.text(f"{term.name} is", beside=f"{term.name} kept")

    n = t if t > 1 else 8
    ways = {"nothing split": (1, False, "none"), f"tensor parallel, t = {n}": (n, False, "none"),
            "... and sequence": (n, True, "none"), "tensor, core recomputed": (n, False, "selective"),
            "... and sequence, core": (n, True, "selective"), "layers recomputed": (1, False, "full")}
    held = {name: activation_bytes_per_layer(shape, 1, tokens, recompute=policy, dropout=dropout, tensor_parallel=each,
                                             sequence_parallel=cut) for name, (each, cut, policy) in ways.items()}
    present = next((name for name, way in ways.items() if way == (t, sequence, recompute)), "none of them")
    read.bars([(name, amount, [amount]) for name, amount in held.items()], present)


def bucket_overlap(read, bucket_cap_mb, num_ranks, machine, model):
    on, at = MACHINES[machine], read.ticks()

    def step(cap):
        return simulate_overlap(MODELS[model].pieces(on.flops_per_s), cap * MIB, num_ranks, on.wires)

    shown = step(bucket_cap_mb)
    for name, start, end in shown.blocks:
        read.rect(f"backward of {name}", at.span(start, end), role="backward")
        read.inside(f"backward of {name}", *map(int, re.findall(r"\d+", name)))
    for number, bucket in enumerate(shown.buckets):
        read.rect(f"bucket {number}", at.span(bucket.start_s, bucket.end_s), hint=[bucket.num_bytes])
        read.inside(f"bucket {number}", bucket.num_bytes)
    if shown.exposed_s:
        read.rect("exposed", at.span(shown.backward_s, shown.end_s), role="idle")
    read.line("end of backward", at(shown.backward_s))
    read.text("backward takes", shown.backward_s)
    read.text("exposed is", shown.exposed_s)
    caps = {"each alone": 0, **{f"{cap} MiB": cap for cap in sorted({1, 2, 5, 10, 25, 50, 100, 250, 500} | (
        {bucket_cap_mb} - {0, 10_000}))}, "all in one": 10_000}
    exposed = {name: step(cap).exposed_s for name, cap in caps.items()}
    tallest = max(read.marks[f"{name} would expose"].at[3] for name in caps) / (max(exposed.values()) or 1)
    foot = read.box("each alone would expose")[3]
    lefts = [read.box(f"{name} would expose")[0] for name in caps]
    assert lefts == sorted(lefts)
    for name, cap in caps.items():
        left, _, right, _ = read.box(f"{name} would expose")
        read.rect(f"{name} would expose", y=(foot - tallest * exposed[name], foot),
                  role="present" if cap == bucket_cap_mb else "other")
        for key, *numbers in ((f"{name} exposes", exposed[name]), (name, *[cap * MIB] * name[0].isdigit())):
            read.text(key, *numbers)
            assert left < read.marks[key].at[0] < right


def expert_load_shares(read, balancing, strength, gain):
    shown = expert_load.run(balancing, strength, gain)
    step, share = read.ticks(), Ruler((0, read.marks["all of them"].at[1]), (0.5, read.marks["half of them"].at[1]),
                                      (1, read.marks["none of them"].at[1]))
    top = read.box("step 4 expert 0")[1]
    for column in range(60):  # four steps wide, up to the step whose shares it shows
        end, gone = 4 * (column + 1), 0.0
        for expert, part in enumerate(shown.shares[end]):
            y = (top + share.unit * gone, top + share.unit * (gone + part))
            read.rect(f"step {end} expert {expert}", step.span(end - 4, end), y, [expert, end, part], f"rank {expert}")
            gone += part
    last = shown.shares[-1]
    for expert in range(8):
        if f"expert {expert} is" in read.marks:
            read.text(f"expert {expert} is", expert, last[expert], beside=f"step 240 expert {expert}")
    ends = {way: expert_load.run(way, strength, gain).shares[-1] for way in ("none", "auxiliary loss", "bias")}
    read.bars([(way, 8 * max(shares), [8 * max(shares), sum(part < 1 / 80 for part in shares)])
               for way, shares in ends.items()], balancing)


def fits_or_not(read, model, device, num_devices, precision):
    at, there = read.ticks(), facts.accelerator(device).memory_bytes
    whole = facts.accelerator("A100")  # bytes are the same on any device
    read.rect("stays free", at.span(FREE * there, there))
    read.line("limit", at(there))
    stages = [key.removesuffix(" in all") for key in read.marks if key.endswith(" in all")]
    assert ["whole" in stages[0], *(f"ZeRO-{k}" in stages[k] for k in (1, 2, 3))] == [True] * 4
    for stage, name in enumerate(stages):
        needed = plan_run(facts.model(model), whole, num_devices, precision, stage).needed
        stack(read, at.cut, f"{name}: ", needed.by_kind())
        fits = needed.total <= FREE * there
        read.text(f"{name} in all", needed.total, beside=f"{name}: parameters", role="verdict" if fits else "refusal")
        read.text(name, beside=f"{name}: parameters")
        assert read.marks[name].text == name and read.marks[f"{name} in all"].text[0] == "✗✓"[fits]
    read.text("limit is", *(number for number, _ in quantities(device)), there)


def stack(read, span, before, amounts):
    """Rectangles one after the other, each with its amount as its hint."""
    held = 0.0
    for kind, amount in amounts.items():
        name = kind.replace("_", " ")
        key = f"{before}{kind}" if f"{before}{kind}" in read.marks else f"{before}{name}"
        read.rect(key, span(held, held + amount), hint=[amount])
        assert read.marks[key].hint.startswith(name)
        held += amount


def layout_planner(read, run, devices, cut, how):
    planned = estimate_layout(run, devices, cut, how)
    found, there = planned.estimate, planned.estimate.job.cluster.usable_bytes
    left = read.box("held parameters")[0]
    at = Ruler((0, left), (there, read.marks["limit"].at[0]), end=left + 1.5 * (read.marks["limit"].at[0] - left))
    read.line("limit")
    read.text("limit is", there)
    stack(read, at.cut, "held ", {kind: held for kind, held in found.memory.items()
                                 if held or f"held {kind}" in read.marks})
    held = sum(found.memory.values())
    read.text("held in all", held, beside="held parameters", role="verdict" if held <= there else "refusal")
    seconds, gone = read.ticks(), 0.0
    for cause in [key.removeprefix("time ") for key in read.marks if key.startswith("time ")]:
        took = found.seconds[cause]
        read.rect(f"time {cause}", seconds.span(gone, gone + took))
        read.text(f"{cause} takes", *[took, took / found.step_s] if took else [], beside=f"time {cause}")
        read.text(f"{cause} is", beside=f"time {cause}")
        gone += took
    assert gone == pytest.approx(sum(found.seconds.values()))
    if planned.published_s:
        read.line("published", seconds(planned.published_s))
        read.text("published is", planned.published_s)


def sent_by_hand(first, second, t):
    """All-reduce 2(t-1)/t, all-gather (t-1)/t of what it makes whole: y is as large as x, h four times."""
    to_y = {"columns": 1, "rows": 2}[second]
    to_h = {("columns", "rows"): 0, ("columns", "columns"): 1}.get((first, second), 2)
    return Fraction(t - 1, t) * (to_y + 4 * to_h)


def matrix_cut(read, first, second, t, step):
    now = product_steps(first, second, t)[step]
    for rank, name in product(range(t), "xAhBy"):
        x, y, right, bottom = read.box(f"rank {rank} {name}")
        read.rect(f"rank {rank} {name}", role="room")
        if held := now.held.get(name):
            wide, tall = (right - x, bottom - y)
            if held == "part" and {"A": first, "B": second}.get(name) == "rows":
                y, tall = y + rank * tall / t, tall / t
            elif held == "part":
                x, wide = x + rank * wide / t, wide / t
            role = "parameters" if name in "AB" else "late" if held == "summand" else "activations"
            read.rect(f"rank {rank} {name} held", (x, x + wide), (y, y + tall), [rank], role)
        if now.op:
            read.text(f"rank {rank} takes part", beside=f"rank {rank} A")
            read.text(f"rank {rank} sends", now.sent, beside=f"rank {rank} A")
    for rank in range(t):
        read.text(f"rank {rank}", rank, beside=f"rank {rank} A")
    read.grid({(rank, 0): f"rank {rank} A" for rank in range(t)})
    line, place = read.take("at work").at, read.box(f"rank 0 {now.at}")
    assert (line[0], line[2]) == place[::2]
    orders = list(product(("columns", "rows"), repeat=2))
    read.bars([(" then ".join(order), sent_by_hand(*order, t), [sent_by_hand(*order, t)]) for order in orders],
              f"{first} then {second}")


def mesh(read, mesh, order, axis, rank):
    layout = ParallelLayout.from_string(mesh, order)
    along = {each.axis: each for each in mesh_explorer.traffic(layout)}

    def averaged_over(axis):
        return ("dp", "cp") if axis == "dp" else (axis,)  # the ranks of both hold the same parameters

    groups = {each: next(group for group in layout.groups(*averaged_over(each)) if rank in group) for each in along}
    read.grid({divmod(other, 8): f"rank {other}" for other in range(64)})
    for other in range(64):
        mine = [each for each in groups if other in groups[each]]
        colours = {"tp": "forward", "cp": "activations", "ep": "late", "dp": "weights", "pp": "backward"}
        own = axis if axis in mine else next((each for each in reversed(along) if each in mine), None)
        read.rect(f"rank {other}", hint=[other, *layout.coordinates(other).values()],
                  role=colours.get(own, "spare"), tint=0.0 if own in (axis, None) else 0.62)
        read.text(f"rank {other} is", other, inside=f"rank {other}")
        if other % 8 == 0:
            read.text(f"node {other // 8}", other // 8, beside=f"rank {other}")
    left, top, right, bottom = read.box(f"rank {rank}")
    read.outline("chosen", (left, right), (top, bottom))
    read.lengths({f"{name} takes": each.seconds for name, each in along.items()})
    for name, each in along.items():
        bar = f"{name} takes"
        read.rect(f"{name} colour", role=colours[name])
        nodes = [{other // 8 for other in group} for group in layout.groups(*averaged_over(name))]
        read.rect(bar, role="late" if any(len(of_group) > 1 for of_group in nodes) else "present")
        for key, number in {"is": len(groups[name]), "times": each.times, "sends": each.sent,
                            "took": each.seconds}.items():
            read.text(f"{name} {key}", number, beside=bar)
        read.text(f"{name} link", each.bytes_per_s)
    orders = ("tp,cp,dp,pp", "tp,cp,pp,dp", "dp,cp,pp,tp", "pp,cp,dp,tp")
    took = {f"{each[:2]} innermost, {each[-2:]} outermost": sum(
        one.seconds for one in mesh_explorer.traffic(ParallelLayout.from_string(mesh, each))) for each in orders}
    read.bars([(name, seconds, [seconds]) for name, seconds in took.items()],
              f"{order[:2]} innermost, {order[-2:]} outermost")


def simulated(name, p, m, v, slow):
    """Each of a rank's passes takes 1, shared out among its chunks; twice as long on the slow one."""
    schedule = SCHEDULES[name](p, m, v)
    cost = {stage: Fraction(1 + (rank == slow), len(chunks)) for rank, chunks in enumerate(schedule.stages)
            for stage in chunks}
    return pipeline_parallel.simulate(schedule, *3 * [[cost[stage] for stage in range(schedule.num_stages)]])


def pipeline_schedule(read, order, p, m, v, slow, **rest):
    at, shown = read.ticks(), simulated(order, p, m, v, slow)
    colours = {"F": "forward", "B": "backward", "I": "backward", "W": "weights"}
    for rank, boxes in enumerate(shown.by_rank):
        read.rect(f"rank {rank} lane")
        read.rect(f"rank {rank} idle", at.span(0, float(shown.makespan)), role="idle")
        read.text(f"rank {rank}", rank, beside=f"rank {rank} lane")
        read.text(f"rank {rank} in flight", float(shown.peak_activations[rank]), beside=f"rank {rank} lane")
        lane = read.box(f"rank {rank} lane")[1::2]
        for box in boxes:
            key, x = f"rank {rank} {box.action}", at.span(float(box.start), float(box.end))
            read.rect(key, x, lane, role=colours[box.action.kind])
            if box.action.kind == "B":
                read.rect(f"{key} weights", x, role="weights")
            read.inside(key, box.action.microbatch)
    read.grid({(rank, 0): f"rank {rank} lane" for rank in range(p)})
    every = {name: simulated(name, p, m, v, slow) for name in SCHEDULES}
    read.bars([(name, each.bubble_fraction, [each.bubble_fraction, float(max(each.peak_activations))])
               for name, each in every.items()], order)


def ring_attention(read, token_layout, num_ranks, step):
    R, T = num_ranks, 840 * 16
    owner = {token: rank for rank, tokens in enumerate(layout_order(4 * R, R, token_layout).chunk(R))
             for token in tokens.tolist()}
    for piece in range(4 * R):
        read.rect(f"piece {piece}", hint=[owner[piece]], tint=0.85 * owner[piece] / (R - 1))
        read.text(f"piece {piece} of", owner[piece], inside=f"piece {piece}")
    read.grid({(0, piece): f"piece {piece}" for piece in range(4 * R)})
    work = [[visible_pairs(rank, (rank - each) % R, T, R, token_layout) for rank in range(R)] for each in range(R)]
    cells = {(rank, each): f"rank {rank} in step {each}" for rank, each in product(range(R), repeat=2)}
    read.grid(cells)
    for (rank, each), key in cells.items():
        share, block = work[each][rank] / (T // R) ** 2, (rank - each) % R
        read.rect(key, hint=[rank, each, share], role="work" if share else "idle",
                  tint=0.75 * (1 - share) if share else 0)
        words = f"{key} has"
        read.text(words, *[block, share][:1 + (":" in read.marks[words].text)], inside=key)
        if each:
            left, _, right, _ = read.box(key)
            read.rect(f"gradients in step {each} on {rank}", (left, left + (right - left) * each / (R - 1)),
                      hint=[each, R - 1, block])
    left, top, right, _ = read.box(f"rank 0 in step {step}")
    read.outline("present", (left, right), (top, read.box(f"rank {R - 1} in step 0")[3]), slack=10)
    for each in range(R):
        read.text(f"step {each}", each, role="strong" if each == step else "quiet")
        assert left <= read.marks[f"step {step}"].at[0] <= right
    totals = [sum(of_rank) * R / sum(map(sum, work)) for of_rank in zip(*work)]
    read.lengths({f"rank {rank} in all": part for rank, part in enumerate(totals)})
    for rank, part in enumerate(totals):
        read.text(f"rank {rank} does", part, beside=f"rank {rank} in all")
        read.text(f"rank {rank}", rank, beside=f"rank {rank} in step 0")

    def lock_step(layout):
        pairs = [[visible_pairs(rank, (rank - each) % R, T, R, layout) for rank in range(R)] for each in range(R)]
        return sum(map(max, pairs)) * R / sum(map(sum, pairs))

    read.bars([(layout, lock_step(layout), [lock_step(layout)]) for layout in ("contiguous", "zigzag", "striped")],
              token_layout)


def ring_all_reduce(read, num_ranks, step):
    n, gathered = num_ranks, step - (num_ranks - 1)  # how many chunks each rank has received complete

    def shares(rank, chunk):
        if 0 < step < n and chunk == (rank - 1 - step) % n:
            ranks = {(rank - back) % n for back in range(step + 1)}  # the sum that has just arrived
        else:
            ranks = set(range(n)) if 0 <= (rank - chunk) % n <= gathered else {rank}
        return "".join("01"[each in ranks] for each in range(n))

    middles = [((left + right) / 2, (top + bottom) / 2) for left, top, right, bottom in
               (read.box(f"rank {rank}") for rank in range(n))]
    centre = sum(y for _, y in middles) / n
    wide = (middles[1][0] - 450) / math.sin(2 * math.pi / n) if n > 2 else 0
    for rank, (x, y) in enumerate(middles):  # clockwise on an ellipse, the first one at the top
        angle, tall = 2 * math.pi * rank / n, centre - middles[0][1]
        assert (x, y) == pytest.approx((450 + wide * math.sin(angle), centre - tall * math.cos(angle)), abs=1), rank
    for rank in range(n):
        read.rect(f"rank {rank}", role=f"buffer of rank {rank}")
        read.text(f"rank {rank} is", rank, inside=f"rank {rank}")
        read.leads(f"link {rank}", f"rank {rank}", f"rank {(rank + 1) % n}", slack=8)
        cells = {(0, chunk): f"rank {rank} chunk {chunk}" for chunk in range(n)}
        read.grid(cells)
        for chunk, key in enumerate(cells.values()):
            new = step > 0 and chunk == (rank - 1 - step) % n
            read.rect(key, role="arrived" if new else "cell", shares=shares(rank, chunk))
            read.text(f"{key} is", chunk, role="strong" if new else "quiet")
            assert read.box(key)[0] < read.marks[f"{key} is"].at[0] < read.box(key)[2]
            assert read.marks[key].waits and read.marks[f"{key} is"].waits
        key, chunk = f"message of rank {rank}", (rank - step) % n
        if step:
            sent = {(rank - back) % n for back in range(step)} if step < n else set(range(n))
            read.rect(key, role="cell", shares="".join("01"[each in sent] for each in range(n)))
            read.text(f"{key} is", chunk)
            read.carried(key, f"way {rank}")
            assert read.marks[f"{key} is"].along == f"way {rank}"
        else:
            assert key not in read.marks
    left, _, right, _ = read.box("to send")
    read.rect("to send")
    read.rect("sent", (left, left + (right - left) * step / (2 * n - 2)))
    read.rect("half of it", ((left + right) / 2 - 1, (left + right) / 2 + 1))
    read.text("sent is", step / n)
    read.text("to send is", 2, 2 * (n - 1) / n)


def collective_explorer(read, op, algorithm, num_ranks, step):
    n, shown = num_ranks, plan(op, algorithm, num_ranks)
    adds = any(len(cell) > 1 for state in shown.states for cells in state.cells for cell in cells)
    messages = shown.steps[step - 1].messages if step else ()
    arrived = {(message.dst, into) for message in messages for into in message.into}
    places = len(shown.states[step].cells[0])
    for half in range(0, places, shown.num_chunks):
        read.grid({(rank, place): f"{rank}[{place}]" for rank in range(n)
                   for place in range(half, half + shown.num_chunks)})
    for place in range(places):
        read.text(f"place {place}", place % n)
        assert read.box(f"0[{place}]")[0] < read.marks[f"place {place}"].at[0] < read.box(f"0[{place}]")[2]
    for rank, cells in enumerate(shown.states[step].cells):
        read.rect(f"rank {rank}", role=f"rank {rank}")
        read.text(f"rank {rank} is", rank, beside=f"rank {rank}")
        for place, cell in enumerate(cells):
            key, ranks, new = f"{rank}[{place}]", {share.rank for share in cell}, (rank, place) in arrived
            if adds and cell:
                shares = "".join("01"[each in ranks] for each in range(n))
                read.rect(key, role="arrived" if new else "cell", shares=shares)
            else:
                read.rect(key, role=f"rank {cell[0].rank}{' arrived' * new}" if cell else "empty", shares="")
            if cell and not adds:
                read.text(f"{key} is", cell[0].chunk, inside=key)
            assert read.marks[key].waits
    for message in messages:
        way = f"{message.src} to {message.dst}"
        read.rect(f"{way} sends", role=f"rank {message.src}")
        read.carried(f"{way} sends", way)
        read.leads(way, f"rank {message.src}", f"rank {message.dst}", slack=10)
    read.line("bound")
    read.text("bound is", shown.bound)
    at = Ruler((0, read.box("0 sent")[0]), (float(shown.bound), read.marks["bound"].at[0]))
    for rank, name in product(range(n), ("sent", "received")):
        amount = {"sent": shown.sent_by_rank, "received": shown.received_by_rank}[name](step)[rank]
        role = {"sent": ("present", "too much"), "received": ("other", "too much of other")}[name]
        read.rect(f"{rank} {name}", at.span(0, float(amount)), role=role[amount > shown.bound])
        read.text(f"{rank} {name} is", amount, beside=f"{rank} {name}")
    assert read.take("in all").text.lower() == shown.detail().lower()


def stragglers(read, scheme, who, slowdown, slack):
    def run(scheme, slack):
        return simulate_stragglers(scheme, slack, float(slowdown), who, 4, 0.25)

    at, shown = read.ticks(), run(scheme, slack)
    colours = {"computes": "compute", "computes slowly": "late", "communicates": "message", "waits": "idle"}
    for rank, spans in enumerate(shown.spans):
        read.text(f"rank {rank}", rank, beside=f"rank {rank} span 0")
        read.text(f"rank {rank} waits", shown.waiting(rank), beside=f"rank {rank} span 0")
        for number, (what, start, end) in enumerate(spans):
            if start < 24:  # ordinary steps, of 0.1 s
                read.rect(f"rank {rank} span {number}", at.cut(0.1 * start, 0.1 * end), role=colours[what])
    read.grid({(rank, 0): f"rank {rank} span 0" for rank in range(4)})
    bound, rows = 32 if slack is None else slack, []
    for name, how in {"synchronous": ("synchronous", 0), f"local SGD, H = {bound + 1}": ("local", bound),
                      f"asynchronous, s = {bound}": ("asynchronous", bound),
                      "asynchronous, no bound": ("asynchronous", None)}.items():
        if how[0] == scheme and (scheme == "synchronous" or how[1] == slack):
            present = name
        ran = run(*how)
        end = max(steps[-1][0] for steps in ran.steps)
        rate = sum(end / 2 < when - 1e-9 * end <= end for steps in ran.steps for when, _ in steps) / (end / 2) / 0.4
        stale = max(stale for steps in ran.steps for _, stale in steps)
        rows.append((name, rate, [rate, *[stale] * (stale > 0 and how[1] is not None)]))
    read.bars(rows, present)


def team_view(read, name, snapshot):
    ranks = snapshot["ranks"]
    tables = [each["values"] for rank in ranks.values() for each in rank["names"] if each["name"] == name]
    for number, rank in ranks.items():
        read.text(f"rank {number}", int(number))
        bars, gone = {f"rank {number} {kind}": held for kind, held in rank["by_kind"].items() if held}, 0
        left, wide = read.box(next(iter(bars)))[0], sum(read.marks[bar].at[2] for bar in bars)
        at = Ruler((0, left), (sum(bars.values()), left + wide))
        for bar, held in bars.items():
            kind = bar.removeprefix(f"rank {number} ").replace("_", " ")
            read.rect(bar, at.span(gone, gone + held), hint=[int(number), held], role=kind)
            gone += held
        assert read.take(f"rank {number} where").text == rank["where"]
        lines = [each for each in rank["names"] if name in ("all names", each["name"])]
        for each in lines:
            assert read.take(f"rank {number} {each['name']}").text.startswith(f"{each['name']}: {each['what']}")
        heights = [read.marks[f"rank {number} {each['name']}"].at[1] for each in lines]
        assert heights == sorted(set(heights))
        if name != "all names":
            values = lines[0]["values"]
            every = [value for row in values for value in row]
            for i, row in enumerate(values):
                for j, value in enumerate(row):
                    differs = len({table[i][j] for table in tables}) > 1
                    read.rect(f"rank {number} {i},{j}", hint=[int(number), i, j, value],
                              tint=0.75 * (1 - (value - min(every)) / (max(every) - min(every))),
                              role=f"rank {number}" if differs else "other")
            if every:
                read.grid({(i, j): f"rank {number} {i},{j}" for i, row in enumerate(values) for j in range(len(row))})


def token_dispatch_queues(read, skew, k, capacity_factor, balancing):
    shown = token_dispatch.dispatch(skew, k, capacity_factor, balancing)
    queues = {expert: [] for expert in range(8)}
    for rank, of_rank in enumerate(shown.choices):
        names = {(slot, token): f"token {rank}.{token} choice {slot}" for slot in range(k) for token in range(16)}
        read.grid(names)
        for (slot, token), key in names.items():
            expert, kept = of_rank[token][slot], shown.kept[rank][token][slot]
            read.rect(key, hint=[token, rank, expert], role=f"rank {rank}" if kept else "wrong")
            assert ("no room" in read.marks[key].hint) != kept
            read.inside(key, expert)
            if kept:
                queues[expert].append((rank, token, slot))
        assert read.box(f"token {rank}.0 choice 0")[1] <= read.take(f"rank {rank}").at[1] <= read.box(
            f"token {rank}.0 choice {k - 1}")[3]
    for expert, queue in queues.items():
        room = read.box(f"expert {expert} has room")
        read.rect(f"expert {expert} has room", role="spare")
        read.text(f"expert {expert}", expert, beside=f"expert {expert} has room")
        keys = {divmod(place, 2)[::-1]: f"token {rank}.{token} choice {slot} waits"
                for place, (rank, token, slot) in enumerate(sorted(queue))}
        if keys:
            assert read.box(keys[0, 0])[:2] == room[:2]
            read.grid(keys)
        for (rank, token, _), key in zip(sorted(queue), keys.values()):
            read.rect(key, hint=[token, rank, expert], role=f"rank {rank}")
        if capacity_factor:
            place = (room[3] - room[1]) / 2  # two rows of squares
            read.line(f"expert {expert} is full", room[0] + place * 4 * -(-capacity_factor * k * 16 // 8) / 2)
    work = [len(queues[2 * rank]) + len(queues[2 * rank + 1]) for rank in range(4)]
    for rank, rows in enumerate(work):
        busiest = rows == max(work) > min(work)
        read.text(f"rank {rank} computes", rank, rows, role="finding" if busiest else "small")
    others = {None: "no limit", 2.0: "factor 2", 1.5: "factor 1.5", 1.0: "factor 1"}
    rows = []
    for factor, name in others.items():
        other = token_dispatch.dispatch(skew, k, factor, balancing)
        kept = [expert // 2 for of_rank, held in zip(other.choices, other.kept)
                for experts, fits in zip(of_rank, held) for expert, fit in zip(experts, fits) if fit]
        busiest = max(Counter(kept).values()) / (16 * k)
        rows.append((name, busiest, [busiest, 64 * k - len(kept)]))
    read.bars(rows, others[capacity_factor])


def which_wire(read, call, group, device):
    n, stride = SHAPES[group]
    groups = [[block + start + stride * place for place in range(n)]
              for block in range(0, 16, n * stride) for start in range(stride)]
    read.grid({divmod(rank, 8): f"GPU {rank}" for rank in range(16)})
    for number, ranks in enumerate(groups):
        role, tint = f"rank {number % 8}", 0.6 if number else 0.0
        for place, rank in enumerate(ranks):
            node, beside = rank // 8, (ranks[place - 1], ranks[(place + 1) % n])
            inside = any(other // 8 == node and other != rank for other in ranks)
            card = len({other // 8 for other in ranks}) == 2 and (call != "ring" or any(
                other // 8 != node for other in beside))
            read.rect(f"GPU {rank}", hint=[rank, number], role=role, tint=tint)
            read.text(f"GPU {rank} is", rank, inside=f"GPU {rank}")
            read.rect(f"card {rank}", role=role if card else "spare", tint=tint if card else 0.0)
            middle = sum(read.box(f"GPU {rank}")[::2]) / 2
            for wire, one, other, on in ((f"{rank} to the switch", f"switch {node}", f"GPU {rank}", inside),
                                         (f"{rank} to the card", f"GPU {rank}", f"card {rank}", card),
                                         (f"{rank} to the network", f"card {rank}", "network", card)):
                upper, lower = sorted((read.box(one), read.box(other)), key=lambda box: box[1])
                if on:
                    read.rect(wire, (middle - 2.5, middle + 2.5), (upper[3], lower[1]), role=role, tint=tint)
                else:
                    read.line(wire, middle)
                    assert read.marks[wire].at[1::2] == (upper[3], lower[1])
    read.rect("network")
    for node in range(2):
        read.rect(f"switch {node}")
        read.text(f"node {node}", node, beside=f"GPU {8 * node}")
    network, wires = network_of(device), [facts.interconnect(name) for name in facts.accelerator(device).links]
    for name, wire in zip((wires[0].technology, "a card"), wires):
        read.text(f"{name} carries", 1e9 * wire.one_way.value)
    calls = {"all_gather": "collective in rings", "all_to_all": "all-to-all", "ring": "point-to-point ring"}
    read.bars([(words, rate := network.group(n, stride).bytes_per_s(name), [rate]) for name, words in calls.items()],
              calls[call])
    read.bars([(name, rate := network.group(*shape).bytes_per_s(call), [rate]) for name, shape in SHAPES.items()],
              group)


def zero_memory(read, model, num_devices, stage, recipe):
    precision = next(name for words, name in (("alone", "pure 16-bit"), ("with fp32", "mixed, fp32 gradients"),
                                              ("bf16", "mixed"), ("fp32", "fp32")) if words in recipe)
    optimizer, offload = "sgd with momentum" if "SGD" in recipe else "adam", "on the host" in recipe

    def held(n):
        alone = offload and stage == 0  # each process's host has all of it
        return device_memory(facts.model(model).parameters.value, 1 if alone else n, int(alone) or stage, precision,
                             optimizer, offload)

    at, needed = read.ticks(), held(num_devices)
    stack(read, at.cut, "device: ", dict(list(needed.by_kind().items())[:3]))
    read.text("device in all", needed.total, beside="device: parameters")
    if needed.host:
        read.rect("host: optimizer state", at.cut(0, needed.host))
        read.text("host in all", needed.host, beside="host: optimizer state")
    if needed.total <= at.end:
        for key in [key for key in read.marks if key == "held" or key.startswith("held above")]:
            read.line(key, at(needed.total))
    gpus = sorted((device for device in facts.ACCELERATORS if device.kind == "GPU"), key=lambda gpu: gpu.memory_bytes)
    rooms = [key.removesuffix(" usable") for key in read.marks if key.endswith(" usable")]
    for (there, same), label in zip(groupby(gpus, key=lambda gpu: gpu.memory_bytes), rooms, strict=True):
        assert label.startswith(next(same).name)
        read.rect(f"{label} usable", at.span(0, FREE * there), role="room")
        read.rect(f"{label} free", at.span(FREE * there, there), role="spare")
        read.text(label, *(number for number, _ in quantities(label)), beside=f"{label} usable")
        require_numbers(label.rpartition(": ")[2], [there])
        words, room = read.marks[f"{label} verdict"].text, FREE * there
        first = 1 if "one device" in words else None
        if first is None and words != "✗ at no number of devices":
            first = int(words.split()[-3].replace(",", ""))
        assert held(first).total <= room if first else held(10**9).total > room
        assert first in (None, 1) or held(first - 1).total > room
        assert words[0] == "✗✓"[needed.total <= room]
        read.text(f"{label} verdict", *[first] * ((first or 1) > 1), beside=f"{label} usable",
                  role="verdict" if needed.total <= room else "refusal")
    assert all(read.box(f"{one} usable")[1] < read.box(f"{next_one} usable")[1] for one, next_one in pairwise(rooms))


MODEL_OF = {
    "ActivationMemory": activation_memory, "BucketOverlap": bucket_overlap, "CollectiveExplorer": collective_explorer,
    "ExpertLoad": expert_load_shares,
    "FitsOrNot": fits_or_not, "LayoutPlanner": layout_planner, "MatrixCut": matrix_cut, "MeshExplorer": mesh,
    "PipelineSchedule": pipeline_schedule, "RingAllReduce": ring_all_reduce, "RingAttentionSteps": ring_attention,
    "Stragglers": stragglers,
    "TeamView": team_view, "TokenDispatch": token_dispatch_queues, "WhichWire": which_wire, "ZeroMemory": zero_memory}


def require_marks(kind, chosen):
    """AssertionError where a mark of this scene is not what the model says, and where nobody has asked for one."""
    read = Reading(scene_with(kind, chosen))
    MODEL_OF[kind.__name__](read, **chosen)
    read.finish()


def settings_after(kind, walk):
    """The settings of a new widget after some choices: (which control, which of its choices)."""
    chosen = kind().settings()
    for control, choice in walk:
        controls = kind.list_controls(chosen)
        choices = controls[control % len(controls)].choices
        chosen |= choices[choice % len(choices)].change
        if issubclass(kind, SteppedExplorable):
            chosen["step"] = min(chosen["step"], kind.last_step(chosen))  # as a widget does
    return chosen


@pytest.mark.parametrize("kind", SCENES, ids=lambda kind: kind.__name__)
def test_every_mark_stands_for_its_number_of_the_model_whatever_control_is_moved(kind):
    chosen = kind().settings()
    for control in kind.list_controls(chosen):
        for choice in control.choices:
            require_marks(kind, chosen | choice.change)


@pytest.mark.parametrize("kind", SCENES, ids=lambda kind: kind.__name__)
@settings(max_examples=8)
@given(walk=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99)), min_size=2, max_size=5))
def test_every_mark_stands_for_its_number_after_several_choices(kind, walk):
    require_marks(kind, settings_after(kind, walk))


@pytest.mark.parametrize("kind, own", [
    (widgets.BucketOverlap, {"bucket_cap_mb": 40}), (widgets.FitsOrNot, {"num_devices": 24, "model": "GPT-3"}),
    (widgets.ZeroMemory, {"num_devices": 10_000, "stage": 3}), (widgets.ActivationMemory, {"tokens": 3000}),
    (widgets.Stragglers, {"slack": 3, "scheme": "local"}), (widgets.TokenDispatch, {"balancing": 7, "k": 2}),
    (widgets.PipelineSchedule, {"order": "interleaved 1F1B", "v": 3, "p": 2, "m": 4, "slow": 1})])
def test_every_mark_stands_for_its_number_at_values_that_only_python_sets(kind, own):
    require_marks(kind, kind(**own).settings())
