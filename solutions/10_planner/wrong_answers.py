"""Wrong answers to the exercises of chapter 10, as learners write them; tests/test_exercises.py has each refused.

The imports and the solutions are those of the notebook beside this file, in whose names it runs.
"""
# ruff: noqa: F821

import math

from tools.answers import wrong


def memory(layers, hidden, vocab, tokens, batch_rows, layout, stage, under_way=None, ends=None, gradient_bytes=4,
           cut=lambda zero, first: zero >= first, made_again=1):
    dp, tp, pp, rows, zero = (layout[key] for key in ("dp", "tp", "pp", "rows", "zero"))
    ends = (stage == 0) + (stage == pp - 1) if ends is None else ends
    numbers = (layers / pp * 12 * hidden**2 + ends * vocab * hidden) / tp
    one, m = tokens * rows * hidden / tp, batch_rows // (dp * rows)
    flight = min(pp - stage, m) if under_way is None else under_way(pp, m)
    kept, again = (2 * one, 34 * one * made_again) if layout["recompute"] else (34 * one, 0)
    return {
        "parameters": 2 * numbers / (dp if cut(zero, 3) else 1),
        "gradients": gradient_bytes * numbers / (dp if cut(zero, 2) else 1),
        "optimizer_state": 12 * numbers / (dp if cut(zero, 1) else 1),
        "activations": kept * layers / pp * flight + again,
        "logits": 4 * tokens * rows * vocab / tp if stage == pp - 1 else 0,
    }


@wrong("10.1", "all micro-batches are held, as in GPipe: 1F1B has min(pp - stage, m) under way")
def memory_of_gpipe(*asked):
    return memory(*asked, under_way=lambda pp, m: m)


@wrong("10.1", "min(pp, m) micro-batches are on stage 0 only: each stage has one less than the stage before, pp - "
       "stage")
def memory_of_stage_0_everywhere(*asked):
    return memory(*asked, under_way=min)


@wrong("10.1", "that is one micro-batch: pp - stage of them are under way on a stage of 1F1B, and never more than "
       "there are")
def memory_of_one_micro_batch(*asked):
    return memory(*asked, under_way=lambda pp, m: 1)


@wrong("10.1", "2 bytes are taken for a gradient: here they are kept and added up in 32 bits")
def memory_of_short_gradients(*asked):
    return memory(*asked, gradient_bytes=2)


@wrong("10.1", "the embedding is left out, which this stage has")
def memory_of_layers_alone(*asked):
    return memory(*asked, ends=0)


@wrong("10.1", "every kind is cut at every stage: ZeRO 1 cuts the optimiser's state alone")
def memory_cut_at_every_stage(*asked):
    return memory(*asked, cut=lambda zero, first: zero > 0)


@wrong("10.1", "each stage cuts its own kind only: stages add up")
def memory_cut_one_kind_a_stage(*asked):
    return memory(*asked, cut=lambda zero, first: zero == first)


@wrong("10.1", "the layer that is made again is left out: while it goes backward it holds all 34 s b h of one "
       "micro-batch")
def memory_of_inputs_alone(*asked):
    return memory(*asked, made_again=0)


def ends_of(layout, stage):
    return (stage == 0) + (stage == layout["pp"] - 1)


ENDS = [wrong("10.1", says)(lambda *asked, ends=ends: memory(*asked, ends=ends(*asked[-2:]))) for ends, says in (
    (lambda layout, stage: 2,
     "ends of the model are counted that this stage has not: the embedding is on stage 0, the read-out on pp - 1"),
    (lambda layout, stage: ends_of(layout, stage) * layout["tp"],
     "tp cuts the layers and not the ends: it cuts the vocabulary, too"),
    (lambda layout, stage: stage == 0, "the read-out is left out, which this stage has"),
    (lambda layout, stage: min(ends_of(layout, stage), 1), "without a pipeline embedding and read-out are both here"))]


def kinds_of_other(kinds, change):
    """my_memory, but `kinds` of what `change` makes of the arguments."""
    def answer(*asked):
        return my_memory(*asked) | {kind: my_memory(*change(*asked))[kind] for kind in kinds}

    return answer


def another_layout(**cut):
    return lambda *asked: (*asked[:5], asked[5] | cut, asked[6])


def all_layers(layers, *rest):
    return layers * rest[4]["pp"], *rest


STATE = ("parameters", "gradients", "optimizer_state")
OTHERS = [wrong("10.1", says)(kinds_of_other(kinds, change)) for kinds, change, says in (
    (STATE, all_layers, "all layers are counted: a stage has layers / pp"),
    (["activations"], all_layers, "all layers are counted: a stage has layers / pp"),
    (STATE, another_layout(tp=1), "it is not cut by tp, which cuts every matrix"),
    (["activations"], another_layout(tp=1),
     "it is not cut by tp: with sequence parallelism it cuts everything that a layer keeps"),
    (["logits"], another_layout(tp=1), "logits are not cut: tp cuts the vocabulary"),
    (STATE, another_layout(zero=0),
     "nothing is cut over dp: ZeRO cuts the optimiser's state from stage 1 on, gradients from 2, weights at 3"),
    (["activations", "logits"], another_layout(rows=1), "a micro-batch has several rows, which are left out"),
    (["logits"], another_layout(rows=1), "a micro-batch has several rows, which are left out"),
    (["activations"], another_layout(recompute=0), "recomputing is left out: a layer keeps 2 s b h of a micro-batch"),
    (["activations"], lambda *asked: (*asked[:4], 10**9, *asked[5:]),
     "there are only m micro-batches, fewer than pp - stage"),
    (["activations"], lambda *asked: (*asked[:6], asked[5]["pp"] - 1 - asked[6]),
     "stages are counted from the wrong end: stage 0 has most micro-batches under way"),
    (["logits"], lambda *asked: (*asked[:6], asked[5]["pp"] - 1),
     "logits are on the last stage only, where the loss is"))]
TIMES = [wrong("10.1", says)(lambda *asked, times=times, kind=kind: my_memory(*asked) | {
    kind: times * my_memory(*asked)[kind]}) for kind, times, says in (
        ("parameters", 2, "4 bytes are taken for a weight: the one in 32 bits belongs to the optimiser"),
        ("optimizer_state", 2 / 3, "the weights in 32 bits are left out: AdamW's two and they are 12 bytes"),
        ("optimizer_state", 1 / 3, "one number is counted: weights in 32 bits and AdamW's two are 12 bytes"),
        ("logits", 0, "logits are left out: the last stage holds those of one micro-batch"),
        ("logits", 1 / 2, "2 bytes are taken for a logit: the loss is computed in 32 bits"))]


@wrong("10.1", "one layer at a time is made again, for one micro-batch")
def memory_of_all_layers_made_again(*asked):
    return memory(*asked, made_again=asked[0] / asked[5]["pp"])


@wrong("10.1", "it uses course_lib.costs")
def memory_of_the_library(layers, hidden, vocab, tokens, batch_rows, layout, stage):
    from course_lib.costs.memory import training_memory

    return training_memory(12 * layers * hidden**2, "mixed", layout["zero"], layout["dp"]).by_kind()


def bubble_share(num_devices, tp, pp, v, batch_rows, rows, num_layers, head, replicas=None, slowest=None, way=None):
    m = batch_rows / ((replicas or num_devices / (tp * pp)) * rows)
    work, slowest = num_layers + head, slowest or num_layers / pp + head
    step = m * slowest + (work - slowest if way is None else way) / v
    return 1 - m * work / (pp * step)


@wrong("10.2", "the chunks are left out: with v of them the way past the other stages is v times shorter")
def bubble_without_chunks(num_devices, tp, pp, v, *rest):
    return bubble_share(num_devices, tp, pp, 1, *rest)


@wrong("10.2", "the read-out is left out, or dealt out over all stages: it makes the last one slower, and all others "
       "wait for it")
def bubble_without_the_read_out(*asked):
    return bubble_share(*asked[:-1], 0)


@wrong("10.2", "the read-out is left out, or dealt out over all stages: it makes the last one slower, and all others "
       "wait for it")
def bubble_of_the_mean_stage(*asked):
    return bubble_share(*asked, slowest=(asked[6] + asked[7]) / asked[2])


@wrong("10.2", "the way past the other stages is not pp - 1 times the slowest: it takes each one's own time")
def bubble_at_the_slowest_pace(*asked):
    return bubble_share(*asked, way=(asked[2] - 1) * (asked[6] / asked[2] + asked[7]))


@wrong("10.2", "rows are taken for micro-batches: each has several of them")
def bubble_of_rows(N, tp, pp, v, batch_rows, rows, *rest):
    return bubble_share(N, tp, pp, v, batch_rows, 1, *rest)


@wrong("10.2", "tensor parallel ranks are taken for replicas: dp = devices / (tp pp)")
def bubble_of_tensor_ranks(N, tp, pp, *rest):
    return bubble_share(N, tp, pp, *rest, replicas=N / pp)


@wrong("10.2", "this is the share of the ideal time: here that of the whole step is asked")
def bubble_of_the_ideal(*asked):
    share = bubble_share(*asked)
    return share / (1 - share)


def idle_on(num_devices, tp, pp, v, batch_rows, rows, num_layers, head, layers):
    """The idle share of a stage with so many layers, the read-out among them."""
    m = batch_rows / (num_devices / (tp * pp) * rows)
    return 1 - m * layers / (m * (num_layers / pp + head) + (num_layers - num_layers / pp) / v)


BUBBLES = [wrong("10.2", says)(answer) for answer, says in (
    (lambda N, tp, pp, v, *rest: bubble_share(N, tp, pp, 1 / v, *rest),
     "v chunks are taken for v times as many stages: they make the bubble shorter"),
    (lambda *asked: bubble_share(*asked, way=asked[6] + asked[7]),
     "the slowest stage is counted m times and once more on the way"),
    (lambda *asked: bubble_share(*asked, replicas=1), "the whole batch is taken for one replica's: divide it by dp"),
    (lambda N, tp, *rest: bubble_share(N, tp, *rest, replicas=N / tp),
     "stages are taken for replicas: dp = devices / (tp pp)"),
    (lambda N, *rest: bubble_share(N, *rest, replicas=N), "all devices are taken for replicas: dp = devices / (tp pp)"),
    (lambda *asked: bubble_share(*asked[:3], 1, *asked[4:]) / asked[3],
     "all idle time is divided by v: only the way past the other stages is, and not the waiting for the slowest stage"),
    (lambda *asked: bubble_share(*asked, slowest=asked[6] / asked[2] + asked[7] / asked[3]),
     "the read-out is dealt out over the chunks: it is on the last one, and the stage takes all of it"),
    (lambda *asked: idle_on(*asked, layers=asked[6] / asked[2]),
     "that is a stage without the read-out: the last one idles less, and the share is that of all stages"),
    (lambda *asked: idle_on(*asked, layers=asked[6] / asked[2] + asked[7]),
     "that is the slowest stage alone: the others wait for it besides, and the share is that of all stages"),
    (lambda *asked: 1 - bubble_share(*asked), "this is the share of useful work: 1 minus it is asked"),
    (lambda *asked: 100 * bubble_share(*asked), "these are per cent: a share is asked"))]


@wrong("10.2", "it uses course_lib.costs")
def bubble_of_the_library(num_devices, tp, pp, v, batch_rows, rows, *rest):
    from course_lib.costs.bubbles import bubble_of_total

    return bubble_of_total(pp, batch_rows // (num_devices // (tp * pp) * rows), v)


def best_under_cap(num_devices, per_node, num_layers, batch_rows, G, A, I, cap, c,  # noqa: E741
                   flight=min, again=lambda k: k > 0, recomputed=lambda L: range(L + 1), optimizer=lambda dp: 12 / dp,
                   forwards=1, filling=True, messages=lambda t: t - 1, stages=lambda p: True, tps=lambda t: True,
                   choose=min):
    found = []
    for t in (t for t in range(1, per_node + 1) if per_node % t == 0 and tps(t)):
        for p in (p for p in range(1, num_layers + 1) if num_layers % p == 0 and stages(p)):
            if num_devices % (t * p) or batch_rows % (num_devices // (t * p)):
                continue
            dp, L = num_devices // (t * p), num_layers // p
            m = batch_rows // dp
            for k in recomputed(L):
                kept = flight(p, m) * ((L - k) * A + k * I) + again(k) * A
                if (G * (4 + optimizer(dp)) * L + kept) / t <= cap:
                    step = (m + filling * (p - 1)) * (3 * L + k * forwards) * (1 + c * messages(t)) / t
                    found.append((step, t, p, k))
    return choose(found)[1:]


@wrong("10.3", "it recomputes nothing, or whole stages: a few layers of each may do, and take a shorter step")
def layout_that_keeps_everything(*asked):
    return best_under_cap(*asked, recomputed=lambda L: [0])


@wrong("10.3", "it recomputes nothing, or whole stages: a few layers of each may do, and take a shorter step")
def layout_of_all_or_nothing(*asked):
    return best_under_cap(*asked, recomputed=lambda L: [0, L])


@wrong("10.3", "it counts all m micro-batches in flight, as in GPipe: 1F1B has min(p, m)")
def layout_under_cap_for_gpipe(*asked):
    return best_under_cap(*asked, flight=lambda p, m: m)


@wrong("10.3", "it counts one micro-batch in flight: stage 0 has min(p, m) of them")
def layout_of_one_micro_batch(*asked):
    return best_under_cap(*asked, flight=lambda p, m: 1)


@wrong("10.3", "the layer that is made again is left out: while it goes backward, one layer holds all of A")
def layout_without_room_to_recompute(*asked):
    return best_under_cap(*asked, again=lambda k: 0)


@wrong("10.3", "16 bytes a parameter are counted: the optimiser's 12 are dealt out over dp")
def layout_without_zero(*asked):
    return best_under_cap(*asked, optimizer=lambda dp: 12)


@wrong("10.3", "this would be the shortest step if memory were without end")
def layout_without_a_cap(*asked):
    return best_under_cap(*asked[:7], math.inf, *asked[8:])


@wrong("10.3", "a pipeline is not for nothing: it fills and drains in p - 1 micro-batches' time")
def layout_of_a_free_pipeline(*asked):
    return best_under_cap(*asked, filling=False)


@wrong("10.3", "it takes recomputing for nothing: each of the k layers goes forward once more")
def layout_of_free_recomputing(*asked):
    return best_under_cap(*asked, forwards=0)


UNDER_CAP = [wrong("10.3", says)(answer) for answer, says in (
    (lambda *asked: best_under_cap(*asked, recomputed=lambda L: [L]),
     "every layer is recomputed, where some could be kept"),
    (lambda *asked: best_under_cap(*asked[:6], 0, *asked[7:]),
     "inputs of recomputed layers are left out: they are kept for each micro-batch in flight"),
    (lambda *asked: best_under_cap(*asked[:5], 0, 0, *asked[7:]), "activations are left out"),
    (lambda *asked: best_under_cap(*asked[:8], 0), "tp is taken for nothing: each rank more of it costs c"),
    (lambda *asked: best_under_cap(*asked, tps=lambda t: t == asked[1]),
     "tp as far as the node goes is not always best: where less of it fits, it costs less"),
    (lambda *asked: best_under_cap(*asked, choose=max), "this is the longest step of all that fit"),
    (lambda *asked: best_under_cap(*asked, optimizer=lambda dp: 12 / asked[0]),
     "the optimiser's 12 bytes are dealt out over all devices: over dp they are, where t and p have cut them already"),
    (lambda *asked: best_under_cap(*asked, again=lambda k: k),
     "every recomputed layer holds all of A at once: they are made again one at a time, A in all"),
    (lambda *asked: best_under_cap(*asked[:7], asked[7] * 2**30 / 1e9, *asked[8:]),
     "the cap is taken for GiB: a GB is 1e9 bytes"),
    (lambda *asked: best_under_cap(*asked, forwards=3),
     "recomputing is priced as a whole layer, 3: it is one more forward pass, 1"),
    (lambda *asked: best_under_cap(*asked, forwards=1 / 3),
     "k layers are taken for k/3: in the forward time of a layer each recomputed one takes 1 more"),
    (lambda *asked: best_under_cap(*asked, messages=lambda t: t),
     "messages are counted for tp 1 too: each rank more costs c, which makes c (t - 1)"),
    (lambda *asked: best_under_cap(*asked, stages=lambda p: p & (p - 1) == 0),
     "only powers of two are looked at: every p that divides the layers is a layout"),
    (lambda *asked: best_under_cap(*asked, choose=lambda found: min(found, key=lambda each: (each[3], each[0]))),
     "that is the layout which recomputes least: the shortest step may recompute more on fewer stages or with less tp"),
    (lambda *asked: best_under_cap(*asked, flight=lambda p, m: p),
     "p micro-batches are counted in flight where a replica has only m: min(p, m)"),
    (lambda *asked: best_under_cap(*asked, again=lambda k: 1),
     "the layer that is computed again is counted where none is: + A only where k is not 0"))]


@wrong("10.3", "it uses course_lib.grading")
def layout_of_the_judge(*asked):
    from course_lib.grading.judges.planner.plans import costs_of

    return min((step, layout) for layout, (held, step) in costs_of(*asked).items() if held <= asked[7])[1]


@wrong("10.3", "expected a divisor of the 2 devices of a node")
def layout_beyond_the_node(num_devices, per_node, *rest):
    return 2 * per_node, 1, 0


def one_wire_everywhere(n, stride, per_node, slower):
    return 1


def ring_wire(n, stride, per_node, slower):
    """How much longer than inside a node."""
    return slower * per_node / max(1, per_node // stride) if n * stride > per_node else 1


def predicted_best(layout, seconds, batch_rows, per_node, slower, fits, tensor=lambda tp: tp - 1,
                   data=lambda dp: dp - 1, pipeline=lambda pp, dp, rows: (pp - 1) * dp / rows, wire=ring_wire):
    devices = math.prod(layout.values())

    def sent(tp):
        return tensor(tp) * ring_wire(tp, 1, per_node, slower)

    def reduced(dp, tp):
        return data(dp) * wire(dp, tp, per_node, slower)

    found = []
    sizes = [size for size in range(1, devices + 1) if devices % size == 0]
    for tp, pp in ((tp, pp) for tp in sizes for pp in sizes if devices % (tp * pp) == 0):
        its = {"dp": devices // (tp * pp), "tp": tp, "pp": pp}
        if fits(its):
            work = seconds["matmul"] + seconds["tp"] / sent(layout["tp"]) * sent(tp)
            step = work * (1 + pipeline(pp, its["dp"], batch_rows))
            reduction = seconds["dp"] / reduced(layout["dp"], layout["tp"]) * reduced(its["dp"], tp)
            found.append((step + reduction, len(found), its))
    return min(found)[-1]


@wrong("10.4", "the bubble is taken to depend on pp alone: more replicas leave each fewer micro-batches, m = B/dp")
def better_with_the_same_micro_batches(layout, *rest):
    return predicted_best(layout, *rest, pipeline=lambda pp, dp, rows: (pp - 1) * layout["dp"] / rows)


@wrong("10.4", "the bubble is left out: whoever has more stages waits longer for the first micro-batch")
def better_without_a_bubble(*asked):
    return predicted_best(*asked, pipeline=lambda pp, dp, rows: 0)


@wrong("10.4", "tp beyond a node goes through the network, `slower` times as long")
def better_over_a_fast_network(layout, seconds, batch_rows, per_node, slower, fits):
    return predicted_best(layout, seconds, batch_rows, per_node, 1, fits)


@wrong("10.4", "tp's time is taken to depend on (tp - 1)/tp only: with larger tp a rank also has more layers and rows "
       "to pass, so it is tp - 1")
def better_with_messages_of_one_layer(*asked):
    return predicted_best(*asked, tensor=lambda tp: (tp - 1) / tp)


@wrong("10.4", "dp's time is taken to depend on (dp - 1)/dp only: with more replicas a rank also has more of the "
       "gradients, 1/(tp pp) = dp/N, so it is dp - 1")
def better_with_equal_gradients(*asked):
    return predicted_best(*asked, data=lambda dp: (dp - 1) / dp)


@wrong("10.4", "dp's ring is taken to have the same wire in every layout: it has a card for each of its ranks in a "
       "node, and inside a node it needs none")
def better_with_one_wire(*asked):
    return predicted_best(*asked, wire=one_wire_everywhere)


@wrong("10.4", "dp's ring is taken to have all cards of a node: it has one for each of its ranks there, and tp such "
       "rings share the node")
def better_with_all_cards(*asked):
    return predicted_best(*asked, wire=lambda n, stride, per_node, slower: slower if n * stride > per_node else 1)


@wrong("10.4", "this would be the shortest step if memory were without end: ask `fits`")
def better_without_memory(layout, seconds, batch_rows, per_node, slower, fits):
    def layouts(its):
        return batch_rows % its["dp"] == 0 and its["pp"] <= 32

    return predicted_best(layout, seconds, batch_rows, per_node, slower, layouts)


def better_by_some_causes(*causes):
    def answer(layout, seconds, *rest):
        some = {cause: took if cause in causes or cause == "matmul" else 0 for cause, took in seconds.items()}
        pipeline = {} if "bubble" in causes else {"pipeline": lambda pp, dp, rows: 0}
        return predicted_best(layout, some, *rest, **pipeline)

    return answer


CAUSES = [wrong("10.4", says)(answer) for answer, says in (
    (better_by_some_causes("bubble", "dp"), "tp's messages are left out"),
    (better_by_some_causes("bubble", "tp"), "dp's messages are left out"),
    (lambda layout, seconds, *rest: better_by_some_causes(max(("tp", "bubble", "dp"), key=seconds.get))(
        layout, seconds, *rest),
     "the seconds of the run are those of every layout: only one cause is looked at, the largest"))]


@wrong("10.4", "this is the layout of the run: another one that fits takes less")
def no_better_one(layout, *rest):
    return layout


@wrong("10.4", "that is 64 devices, and there are 4")
def better_on_fewer_devices(layout, *rest):
    return {"dp": 1, "tp": 8, "pp": 8}


@wrong("10.4", "it uses course_lib.planner")
def better_by_the_library(layout, *rest):
    from course_lib.planner import plan

    return plan(layout)


def every_plan(look, offers, layers, batch_rows):
    for name, offer in offers.items():
        for nodes in range(1, offer["nodes"] + 1):
            for tp, pp in ((tp, pp) for tp in (1, 2, 4, 8) for pp in range(1, layers + 1) if layers % pp == 0):
                if 8 * nodes % (tp * pp) == 0 and batch_rows % (8 * nodes // (tp * pp)) == 0:
                    for recompute in (0, 1):
                        plan = {"offer": name, "nodes": nodes, "tp": tp, "pp": pp, "recompute": recompute}
                        days, dollars, held = look(plan)
                        yield days, dollars, held <= offer["memory"], plan


@wrong("10.5", "one plan is looked for that does it all: a run may begin under one that is cheaper and too slow, and "
       "end under one that is faster")
def run_of_one_plan(look, offers, parameters, layers, hidden, tokens, batch_rows, total_tokens, deadline):
    plans = [each for each in every_plan(look, offers, layers, batch_rows) if each[2] and each[0] <= deadline]
    return [(min(plans, key=lambda each: each[1])[3], 1.0)]


@wrong("10.5", "it has to end by the date: more nodes for a larger part of the tokens")
def run_without_a_date(look, offers, parameters, layers, hidden, tokens, batch_rows, total_tokens, deadline):
    plans = [each for each in every_plan(look, offers, layers, batch_rows) if each[2]]
    return [(min(plans, key=lambda each: each[1])[3], 1.0)]


@wrong("10.5", "1 node of new, tp8 pp1: the same nodes take less time under another layout")
def run_of_one_layout(look, offers, parameters, layers, hidden, tokens, batch_rows, total_tokens, deadline):
    plans = [each for each in every_plan(look, offers, layers, batch_rows)
             if each[2] and each[0] <= deadline and each[3]["tp"] == 8]
    return [(min(plans, key=lambda each: each[1])[3], 1.0)]


@wrong("10.5", "that is the fastest run: until the date there is time for a cheaper one")
def run_of_the_fastest(look, offers, parameters, layers, hidden, tokens, batch_rows, total_tokens, deadline):
    plans = [each for each in every_plan(look, offers, layers, batch_rows) if each[2]]
    return [(min(plans, key=lambda each: each[0])[3], 1.0)]


@wrong("10.5", "recomputing, more stages or more tp hold less")
def run_without_memory(look, offers, parameters, layers, hidden, tokens, batch_rows, total_tokens, deadline):
    endless = {name: {**offer, "memory": math.inf} for name, offer in offers.items()}
    return my_cheapest_run(look, endless, parameters, layers, hidden, tokens, batch_rows, total_tokens, deadline)


@wrong("10.5", "each plan sees half of the tokens: the late one, which is cheaper, sees as many as the date allows, x "
       "= (deadline - days)/(late days - days)")
def run_of_two_halves(look, *asked):
    run = my_cheapest_run(look, *asked)
    return [(plan, 1 / len(run)) for plan, _ in run]


@wrong("10.5", "the shares add up to 2")
def run_of_two_wholes(look, *asked):
    return [(plan, 1.0) for plan, _ in my_cheapest_run(look, *asked)]


def most_devices(num_devices, mfu, tp, pp, v, batch_rows, rows, wanted, replicas=None, p=None):
    m = batch_rows / (replicas or num_devices / (tp * pp)) / rows
    x = ((p or pp) - 1) / (v * m)
    return num_devices * (mfu * (1 + x) / wanted - 1) / x


@wrong("10.6", "the bubble that is there already is left out: what grows no further is MFU (1 + x)")
def most_devices_without_the_old_bubble(N, mfu, tp, pp, v, batch_rows, rows, wanted):
    return (mfu / wanted - 1) * v * batch_rows * tp * pp / ((pp - 1) * rows)


@wrong("10.6", "MFU is taken to fall as devices grow in number: only the bubble grows with them")
def most_devices_in_proportion(N, mfu, tp, pp, v, batch_rows, rows, wanted):
    return N * mfu / wanted


@wrong("10.6", "the chunks are left out: a bubble is v times shorter with v of them")
def most_devices_without_chunks(N, mfu, tp, pp, v, *rest):
    return most_devices(N, mfu, tp, pp, 1, *rest)


@wrong("10.6", "tensor parallel ranks are taken for replicas: dp = devices / (tp pp)")
def most_devices_of_tensor_ranks(N, mfu, tp, pp, *rest):
    return most_devices(N, mfu, tp, pp, *rest, replicas=N / pp)


@wrong("10.6", "a pipeline of pp stages fills and drains in pp - 1 steps, not in pp")
def most_devices_of_pp_steps(N, mfu, tp, pp, *rest):
    return most_devices(N, mfu, tp, pp, *rest, p=pp + 1)


@wrong("10.6", "a share of the whole time does not grow in proportion to N: that of the ideal time does, (pp - 1)/(v "
       "m)")
def most_devices_by_the_whole_time(N, mfu, tp, pp, v, batch_rows, rows, wanted):
    m = batch_rows * tp * pp / (N * rows)
    idle = (pp - 1) / (v * m + pp - 1)
    return N * (1 - wanted * (1 - idle) / mfu) / idle


MOST = [wrong("10.6", says)(answer) for answer, says in (
    (lambda N, mfu, tp, pp, v, B, b, wanted: N + (mfu / wanted - 1) * v * B * tp * pp / ((pp - 1) * b),
     "the new bubble is added to the old one as if MFU had been measured without any: MFU (1 + x) is what stays"),
    (lambda N, mfu, tp, pp, v, B, b, wanted: most_devices(
        N, mfu, tp, pp, v + (pp - 1) * N * b / (B * tp * pp), B, b, wanted),
     "a share of the whole time is taken for one of the ideal time: x = (pp - 1)/(v m)"),
    (lambda *asked: most_devices(*asked, replicas=1), "all rows are taken for one replica's: divide them by dp"),
    (lambda *asked: most_devices(*asked[:6], 1, asked[7]),
     "rows are taken for micro-batches: each has several of them"),
    (lambda N, mfu, tp, *rest: most_devices(N, mfu, tp, *rest, replicas=N / tp),
     "stages are taken for replicas: dp = devices / (tp pp)"),
    (lambda N, *rest: most_devices(N, *rest, replicas=N),
     "all devices are taken for replicas: dp = devices / (tp pp)"),
    (lambda N, mfu, tp, pp, v, B, b, wanted: N * (1 + (mfu - wanted) * v * B * tp * pp / ((pp - 1) * N * b)),
     "MFU is taken to fall by the points by which the bubble grows: it falls by a factor, MFU (1 + x) is what stays"),
    (lambda *asked: most_devices(*asked) - asked[0], "that many are to be added: all together are asked"))]


@wrong("10.6", "these are replicas: devices are asked")
def most_replicas(N, mfu, tp, pp, *rest):
    return most_devices(N, mfu, tp, pp, *rest) / (tp * pp)


@wrong("10.1", "one micro-batch is missing: on stage r of pp there are pp - r under way, one on the last")
def memory_of_one_micro_batch_less(*asked):
    return memory(*asked, under_way=lambda pp, m: min(pp - asked[-1] - 1, m))


@wrong("10.1", "the layer that is made again is taken out of the inputs: its own input is kept as well, 34 s b h come "
       "on top")
def memory_of_a_layer_in_place_of_its_input(*asked):
    held, layout = my_memory(*asked), asked[5]
    own_input = 2 * asked[3] * layout["rows"] * asked[1] / layout["tp"]
    return held | {"activations": held["activations"] - layout["recompute"] * own_input}


UNITS = [wrong("10.1", says)(lambda *asked, unit=unit: {kind: size / unit for kind, size in my_memory(*asked).items()})
         for unit, says in ((1e9, "these are GB: bytes are asked"), (2**30, "these are GiB: bytes are asked"))]


@wrong("10.1", "rows of a micro-batch are forgotten: a replica has batch_rows / (dp rows) micro-batches")
def memory_with_rows_forgotten(layers, hidden, vocab, tokens, batch_rows, layout, stage):
    held = my_memory(layers, hidden, vocab, tokens, batch_rows, layout, stage)
    more = my_memory(layers, hidden, vocab, tokens, batch_rows * layout["rows"], layout, stage)
    return held | {"activations": more["activations"]}


def better_by(asked, bubble=lambda matmul, tensor: matmul + tensor, tp_share=lambda tp: tp - 1,
              dp_share=lambda dp: dp - 1, turns=lambda pp: pp - 1, undone=True,
              micro_batches=lambda rows, dp: rows / dp):
    layout, seconds, batch_rows, per_node, slower, fits = asked
    devices, found = math.prod(layout.values()), []

    def reach(tp):
        return tp_share(tp) * ring_wire(tp, 1, per_node, slower)

    def reduced(dp, tp):
        return dp_share(dp) * ring_wire(dp, tp, per_node, slower)

    of_run = reach(layout["tp"]) if undone else tp_share(layout["tp"])
    sizes = [size for size in range(1, devices + 1) if devices % size == 0]
    for tp, pp in ((tp, pp) for tp in sizes for pp in sizes if devices % (tp * pp) == 0):
        its = {"dp": devices // (tp * pp), "tp": tp, "pp": pp}
        tensor = seconds["tp"] / of_run * reach(tp)
        idle = bubble(seconds["matmul"], tensor) * turns(pp) / micro_batches(batch_rows, its["dp"])
        reduction = seconds["dp"] / reduced(layout["dp"], layout["tp"]) * reduced(its["dp"], tp)
        found.append((seconds["matmul"] + tensor + idle + reduction, tp, pp, its))
    return next(its for *_, its in sorted(found, key=lambda each: each[:3]) if fits(its))


BY_OTHER_RULES = [wrong("10.4", says)(answer) for answer, says in (
    (lambda *asked: better_by(asked, bubble=lambda matmul, tensor: matmul),
     "the bubble is that of matmul alone: a stage that waits, waits for tp's messages too, (matmul + tp) (pp - 1)/m"),
    (lambda *asked: better_by(asked, tp_share=lambda tp: tp, dp_share=lambda dp: dp),
     "tp's and dp's seconds are taken in proportion to tp and dp: one alone sends nothing, so it is tp - 1 and dp - 1"),
    (lambda *asked: better_by(asked, tp_share=lambda tp: tp),
     "tp's seconds are taken in proportion to tp: one alone sends nothing, so it is tp - 1"),
    (lambda *asked: better_by(asked, dp_share=lambda dp: dp),
     "dp's seconds are taken in proportion to dp: one alone sends nothing, so it is dp - 1"),
    (lambda *asked: better_by(asked, turns=lambda pp: pp),
     "a pipeline of pp stages is taken to wait for pp turns: it fills and drains in pp - 1"),
    (lambda *asked: better_by(asked, undone=False),
     "where the run's own tp is beyond a node, `slower` is in its seconds already: divide by it first"),
    (lambda layout, seconds, *rest: better_by((layout, seconds, *rest), bubble=lambda matmul, tensor: (
        seconds["bubble"] / (layout["pp"] - 1) / layout["dp"] * rest[0] if layout["pp"] > 1 else 0)),
     "the bubble is scaled from the run's own, which is 0 at pp 1: it is (matmul + tp) (pp - 1)/m"),
    (lambda *asked: better_by(asked, micro_batches=lambda batch_rows, dp: batch_rows),
     "all rows of the batch are taken for the micro-batches of each replica: m = B/dp"))]


@wrong("10.4", "KeyError")
def better_by_what_fits_is_made_of(*asked):
    return asked[-1].__globals__["best"](*asked[-1].__closure__[0].cell_contents)


def cheapest_of(found, asked, used=lambda plan: True, mixed=lambda early, late: (early, late),
                share=lambda x, late_days, deadline: x):
    """The cheapest run of these plans that fit, of at most two; the fastest where none of them is in time."""
    deadline, front = asked[-1], []
    for days, dollars, fits, plan in sorted(found, key=lambda each: each[:2]):
        if fits and used(plan) and (not front or dollars < front[-1][1]):
            front.append((days, dollars, plan))
    early = [each for each in front if each[0] <= deadline] or front[:1]
    late = [each for each in front if each[0] > deadline and each not in early]
    runs = [(early[-1][1], [(early[-1][2], 1.0)])]
    first, second = mixed(early, late)
    for days, dollars, plan in first:
        for more, fewer, slow in second:
            x = share((deadline - days) / (more - days), more, deadline)
            runs.append((x * fewer + (1 - x) * dollars, [(slow, x), (plan, 1 - x)]))
    return min(runs, key=lambda run: run[0])[1]


def cheapest_by(**rules):
    def answer(look, offers, parameters, layers, hidden, tokens, batch_rows, *rest):
        return cheapest_of(every_plan(look, offers, layers, batch_rows), rest, **rules)

    return answer


OTHER_RUNS = [wrong("10.5", says)(answer) for answer, says in (
    (cheapest_by(used=lambda plan: not plan["recompute"]),
     "is there a plan among those that were looked at which fits and is in time? With other nodes, stages or tp, or "
     "recomputing, there is"),
    (cheapest_by(used=lambda plan: plan["nodes"] & (plan["nodes"] - 1) == 0),
     "only powers of two are looked at: other numbers of nodes are plans, too, where replicas divide the rows"),
    (cheapest_by(used=lambda plan: "spot" not in plan["offer"]),
     "spot devices are left out: what their failures cost is in what look says already"),
    (cheapest_by(used=lambda plan: plan["pp"] == 1), "no plan with stages is looked at: pp may be more than 1"),
    (cheapest_by(used=lambda plan: plan["tp"] == 8), "only plans with tp 8 are looked at: less of it sends less"),
    (cheapest_by(mixed=lambda early, late: (early, late[-1:])),
     "only the cheapest of the late plans is tried: together with one that is less late a run may cost less"),
    (cheapest_by(mixed=lambda early, late: (early[:1], late)),
     "only the fastest of all plans is tried for the end: one that is slower and cheaper may do"),
    (cheapest_by(mixed=lambda early, late: (early[-1:], late[:1])),
     "only the two plans right before and behind the date are tried: two others may lie lower, on both sides"),
    (cheapest_by(share=lambda x, late_days, deadline: x * late_days / deadline),
     "these are shares of the days: of the tokens the late plan sees fewer, x = (deadline - days)/(late days - days)"))]


@wrong("10.5", "each offer is looked at by itself: a run may move from one to another")
def run_on_one_offer(look, offers, *asked):
    def cost(run):
        looks = [(look(plan), share) for plan, share in run]
        days, dollars = (sum(share * seen[place] for seen, share in looks) for place in (0, 1))
        return days > asked[-1] * (1 + 1e-9), dollars

    return min((cheapest_by()(look, {name: offer}, *asked) for name, offer in offers.items()), key=cost)


@wrong("10.5", "it uses course_lib.grading")
def run_of_the_judge(look, offers, *asked):
    from course_lib.grading.judges.planner.runs import cheapest

    return cheapest(offers, *asked)


@wrong("10.6", "it is rounded down to whole replicas: the number is asked as it comes")
def devices_in_whole_replicas(num_devices, mfu, tp, pp, *rest):
    return my_most_devices(num_devices, mfu, tp, pp, *rest) // (tp * pp) * tp * pp
