"""Wrong answers to the exercises of chapter 10, as learners write them; tests/test_exercises.py has each refused.

The imports and the solutions are those of the notebook beside this file, in whose names it runs.
"""
# ruff: noqa: F821

import math

from course_lib.grading.wrong_answers import wrong


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


@wrong("10.1", "all micro-batches are held, as in GPipe")
def memory_of_gpipe(*asked):
    return memory(*asked, under_way=lambda pp, m: m)


@wrong("10.1", "each stage has one less than the stage before")
def memory_of_stage_0_everywhere(*asked):
    return memory(*asked, under_way=min)


@wrong("10.1", "that is one micro-batch")
def memory_of_one_micro_batch(*asked):
    return memory(*asked, under_way=lambda pp, m: 1)


@wrong("10.1", "2 bytes are taken for a gradient")
def memory_of_short_gradients(*asked):
    return memory(*asked, gradient_bytes=2)


@wrong("10.1", "the embedding is left out, which this stage has")
def memory_of_layers_alone(*asked):
    return memory(*asked, ends=0)


@wrong("10.1", "ZeRO 1 cuts the optimiser's state alone")
def memory_cut_at_every_stage(*asked):
    return memory(*asked, cut=lambda zero, first: zero > 0)


@wrong("10.1", "stages add up")
def memory_cut_one_kind_a_stage(*asked):
    return memory(*asked, cut=lambda zero, first: zero == first)


@wrong("10.1", "the layer that is made again is left out")
def memory_of_inputs_alone(*asked):
    return memory(*asked, made_again=0)


@wrong("10.1", "it uses course_lib.costs")
def memory_of_the_library(layers, hidden, vocab, tokens, batch_rows, layout, stage):
    from course_lib.costs.memory import training_memory

    return training_memory(12 * layers * hidden**2, "mixed", layout["zero"], layout["dp"]).by_kind()


def bubble_share(num_devices, tp, pp, v, batch_rows, rows, num_layers, head, replicas=None, slowest=None, way=None):
    m = batch_rows / ((replicas or num_devices / (tp * pp)) * rows)
    work, slowest = num_layers + head, slowest or num_layers / pp + head
    step = m * slowest + (work - slowest if way is None else way) / v
    return 1 - m * work / (pp * step)


@wrong("10.2", "the chunks are left out")
def bubble_without_chunks(num_devices, tp, pp, v, *rest):
    return bubble_share(num_devices, tp, pp, 1, *rest)


@wrong("10.2", "the read-out is left out")
def bubble_without_the_read_out(*asked):
    return bubble_share(*asked[:-1], 0)


@wrong("10.2", "or dealt out over all stages")
def bubble_of_the_mean_stage(*asked):
    return bubble_share(*asked, slowest=(asked[6] + asked[7]) / asked[2])


@wrong("10.2", "it takes each one's own time")
def bubble_at_the_slowest_pace(*asked):
    return bubble_share(*asked, way=(asked[2] - 1) * (asked[6] / asked[2] + asked[7]))


@wrong("10.2", "rows are taken for micro-batches")
def bubble_of_rows(N, tp, pp, v, batch_rows, rows, *rest):
    return bubble_share(N, tp, pp, v, batch_rows, 1, *rest)


@wrong("10.2", "tensor parallel ranks are taken for replicas")
def bubble_of_tensor_ranks(N, tp, pp, *rest):
    return bubble_share(N, tp, pp, *rest, replicas=N / pp)


@wrong("10.2", "the share of the ideal time")
def bubble_of_the_ideal(*asked):
    share = bubble_share(*asked)
    return share / (1 - share)


@wrong("10.2", "it uses course_lib.costs")
def bubble_of_the_library(num_devices, tp, pp, v, batch_rows, rows, *rest):
    from course_lib.costs.bubbles import bubble_of_total

    return bubble_of_total(pp, batch_rows // (num_devices // (tp * pp) * rows), v)


def best_under_cap(num_devices, per_node, num_layers, batch_rows, G, A, I, cap, c,  # noqa: E741
                   flight=min, again=1, recomputed=lambda L: range(L + 1), optimizer=lambda dp: 12 / dp, backward=True,
                   filling=True):
    found = []
    for t in (t for t in range(1, per_node + 1) if per_node % t == 0):
        for p in (p for p in range(1, num_layers + 1) if num_layers % p == 0):
            if num_devices % (t * p) or batch_rows % (num_devices // (t * p)):
                continue
            dp, L = num_devices // (t * p), num_layers // p
            m = batch_rows // dp
            for k in recomputed(L):
                kept = flight(p, m) * ((L - k) * A + k * I) + (again * A if k else 0)
                if (G * (4 + optimizer(dp)) * L + kept) / t <= cap:
                    step = (m + filling * (p - 1)) * (3 * L + k * backward) * (1 + c * (t - 1)) / t
                    found.append((step, t, p, k))
    return min(found)[1:]


@wrong("10.3", "it recomputes nothing")
def layout_that_keeps_everything(*asked):
    return best_under_cap(*asked, recomputed=lambda L: [0])


@wrong("10.3", "or whole stages")
def layout_of_all_or_nothing(*asked):
    return best_under_cap(*asked, recomputed=lambda L: [0, L])


@wrong("10.3", "all m micro-batches in flight")
def layout_under_cap_for_gpipe(*asked):
    return best_under_cap(*asked, flight=lambda p, m: m)


@wrong("10.3", "it counts one micro-batch in flight")
def layout_of_one_micro_batch(*asked):
    return best_under_cap(*asked, flight=lambda p, m: 1)


@wrong("10.3", "the layer that is made again is left out")
def layout_without_room_to_recompute(*asked):
    return best_under_cap(*asked, again=0)


@wrong("10.3", "the optimiser's 12 are dealt out over dp")
def layout_without_zero(*asked):
    return best_under_cap(*asked, optimizer=lambda dp: 12)


@wrong("10.3", "if memory were without end")
def layout_without_a_cap(*asked):
    return best_under_cap(*asked[:7], math.inf, *asked[8:])


@wrong("10.3", "a pipeline is not for nothing")
def layout_of_a_free_pipeline(*asked):
    return best_under_cap(*asked, filling=False)


@wrong("10.3", "it takes recomputing for nothing")
def layout_of_free_recomputing(*asked):
    return best_under_cap(*asked, backward=False)


@wrong("10.3", "expected a divisor of the 8 devices of a node")
def layout_beyond_the_node(num_devices, per_node, *rest):
    return 2 * per_node, 1, 0


def predicted_best(layout, seconds, batch_rows, per_node, slower, fits, tensor=lambda tp: tp - 1,
                   data=lambda dp: dp - 1, pipeline=lambda pp, dp, rows: (pp - 1) * dp / rows):
    devices = math.prod(layout.values())

    def sent(tp):
        return tensor(tp) * (slower if tp > per_node else 1)

    found = []
    sizes = [size for size in range(1, devices + 1) if devices % size == 0]
    for tp, pp in ((tp, pp) for tp in sizes for pp in sizes if devices % (tp * pp) == 0):
        its = {"dp": devices // (tp * pp), "tp": tp, "pp": pp}
        if fits(its):
            work = seconds["matmul"] + seconds["tp"] / sent(layout["tp"]) * sent(tp)
            step = work * (1 + pipeline(pp, its["dp"], batch_rows))
            found.append((step + seconds["dp"] / data(layout["dp"]) * data(its["dp"]), len(found), its))
    return min(found)[-1]


@wrong("10.4", "more replicas leave each fewer micro-batches")
def better_with_the_same_micro_batches(layout, *rest):
    return predicted_best(layout, *rest, pipeline=lambda pp, dp, rows: (pp - 1) * layout["dp"] / rows)


@wrong("10.4", "the bubble is left out")
def better_without_a_bubble(*asked):
    return predicted_best(*asked, pipeline=lambda pp, dp, rows: 0)


@wrong("10.4", "tp beyond a node goes over the slow wire")
def better_over_a_fast_network(layout, seconds, batch_rows, per_node, slower, fits):
    return predicted_best(layout, seconds, batch_rows, per_node, 1, fits)


@wrong("10.4", "so it is tp - 1")
def better_with_messages_of_one_layer(*asked):
    return predicted_best(*asked, tensor=lambda tp: (tp - 1) / tp)


@wrong("10.4", "so it is dp - 1")
def better_with_equal_gradients(*asked):
    return predicted_best(*asked, data=lambda dp: (dp - 1) / dp)


@wrong("10.4", "if memory were without end")
def better_without_memory(layout, seconds, batch_rows, per_node, slower, fits):
    def layouts(its):
        return batch_rows % its["dp"] == 0 and its["pp"] <= 32

    return predicted_best(layout, seconds, batch_rows, per_node, slower, layouts)


@wrong("10.4", "another one that fits takes less")
def no_better_one(layout, *rest):
    return layout


@wrong("10.4", "and there are 256")
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


@wrong("10.5", "but a run may move")
def run_of_one_plan(look, offers, parameters, layers, hidden, tokens, batch_rows, total_tokens, deadline):
    plans = [each for each in every_plan(look, offers, layers, batch_rows) if each[2] and each[0] <= deadline]
    return [(min(plans, key=lambda each: each[1])[3], 1.0)]


@wrong("10.5", "it has to end by the date")
def run_without_a_date(look, offers, parameters, layers, hidden, tokens, batch_rows, total_tokens, deadline):
    plans = [each for each in every_plan(look, offers, layers, batch_rows) if each[2]]
    return [(min(plans, key=lambda each: each[1])[3], 1.0)]


@wrong("10.5", "the same nodes take less time under another layout")
def run_of_one_layout(look, offers, parameters, layers, hidden, tokens, batch_rows, total_tokens, deadline):
    """tp8 everywhere, pipelines as long as they can be."""
    plans = [each for each in every_plan(look, offers, layers, batch_rows)
             if each[2] and each[0] <= deadline and each[3]["tp"] == 8 and each[3]["pp"] >= 4]
    return [(min(plans, key=lambda each: each[1])[3], 1.0)]


@wrong("10.5", "costs less")
def run_of_the_fastest(look, offers, parameters, layers, hidden, tokens, batch_rows, total_tokens, deadline):
    plans = [each for each in every_plan(look, offers, layers, batch_rows) if each[2]]
    return [(min(plans, key=lambda each: each[0])[3], 1.0)]


@wrong("10.5", "GB on a device")
def run_without_memory(look, offers, parameters, layers, hidden, tokens, batch_rows, total_tokens, deadline):
    endless = {name: {**offer, "memory": math.inf} for name, offer in offers.items()}
    return my_cheapest_run(look, endless, parameters, layers, hidden, tokens, batch_rows, total_tokens, deadline)


@wrong("10.5", "give the cheaper one as much as the date allows")
def run_of_two_halves(look, *asked):
    return [(plan, 1 / 2) for plan, _ in my_cheapest_run(look, *asked)] if asked[-1] == 7 else my_cheapest_run(
        look, *asked)


@wrong("10.5", "the shares add up to 2")
def run_of_two_wholes(look, *asked):
    return [(plan, 1.0) for plan, _ in my_cheapest_run(look, *asked)]


def most_devices(num_devices, mfu, tp, pp, v, batch_rows, rows, wanted, replicas=None, p=None):
    m = batch_rows / (replicas or num_devices / (tp * pp)) / rows
    x = ((p or pp) - 1) / (v * m)
    return num_devices * (mfu * (1 + x) / wanted - 1) / x


@wrong("10.6", "the bubble that is there already is left out")
def most_devices_without_the_old_bubble(N, mfu, tp, pp, v, batch_rows, rows, wanted):
    return (mfu / wanted - 1) * v * batch_rows * tp * pp / ((pp - 1) * rows)


@wrong("10.6", "only the bubble grows with them")
def most_devices_in_proportion(N, mfu, tp, pp, v, batch_rows, rows, wanted):
    return N * mfu / wanted


@wrong("10.6", "the chunks are left out")
def most_devices_without_chunks(N, mfu, tp, pp, v, *rest):
    return most_devices(N, mfu, tp, pp, 1, *rest)


@wrong("10.6", "tensor parallel ranks are taken for replicas")
def most_devices_of_tensor_ranks(N, mfu, tp, pp, *rest):
    return most_devices(N, mfu, tp, pp, *rest, replicas=N / pp)


@wrong("10.6", "not in pp")
def most_devices_of_pp_steps(N, mfu, tp, pp, *rest):
    return most_devices(N, mfu, tp, pp, *rest, p=pp + 1)


@wrong("10.6", "does not grow in proportion to N")
def most_devices_by_the_whole_time(N, mfu, tp, pp, v, batch_rows, rows, wanted):
    m = batch_rows * tp * pp / (N * rows)
    idle = (pp - 1) / (v * m + pp - 1)
    return N * (1 - wanted * (1 - idle) / mfu) / idle


@wrong("10.6", "these are replicas")
def most_replicas(N, mfu, tp, pp, *rest):
    return most_devices(N, mfu, tp, pp, *rest) / (tp * pp)
