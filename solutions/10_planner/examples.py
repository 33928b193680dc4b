"""The docstrings' examples of chapter 10, made of the first trials: tools/answers.py."""

from course_lib.grading.judges.planner.plans import costs_of, seconds_of
from course_lib.grading.judges.planner.runs import run_of


def layout_memory(inputs, answers):
    layers, hidden, vocab, tokens, batch_rows, layout, _ = inputs[0]
    held = {kind: f"{size:,.0f}" for kind, size in answers[0].items()}
    return [
        f"{layers} layers of hidden size {hidden}, a vocabulary of {vocab}, {tokens} tokens a row, a batch of "
        f"{batch_rows} rows in one micro-batch (rows {layout['rows']})",
        f"parameters {held['parameters']} bytes, gradients {held['gradients']}, optimizer_state "
        f"{held['optimizer_state']}, activations 34 * 8 * 3 * 10 * 2 = {held['activations']}, logits 4 * 8 * 3 * 100 = "
        f"{held['logits']}",
    ]


def layout_under_cap(inputs, answers):
    held, step = costs_of(*inputs[0])[tuple(answers[0])]
    asked = "{} devices, {} a node, {} layers, {} rows, G {}, A {}, I {}, cap {}, c {}:".format(*inputs[0])
    return [asked, "({}, {}, {}) holds".format(*answers[0]), f"= {held:g} and takes (4 + 1) * 6 * 1.1 / 2 = {step:g}"]


def better_layout(inputs, answers):
    *asked, _ = inputs[0]
    run, seconds, batch_rows, per_node, slower = asked
    its = {name: seconds_of(layout, *asked) for name, layout in (
        ("best", answers[0]), ("tp 4", {"dp": 1, "tp": 4, "pp": 1}), ("dp 4", {"dp": 4, "tp": 1, "pp": 1}))}
    total = {name: sum(by_cause.values()) for name, by_cause in its.items()}
    return [
        f"A run on 4 devices, {per_node} a node, slower {slower:g}, {batch_rows} rows, with "
        + ", ".join(f"{axis} {size}" for axis, size in run.items())
        + ": " + ", ".join(f"{cause} {seconds[cause]:g} s" for cause in ("matmul", "tp", "bubble", "dp")),
        f"= {its['tp 4']['tp']:g} s for tp, beyond the node, {total['tp 4']:g} s in all",
        f"for dp, whose ring has both cards of a node, {total['dp 4']:g} s in all; every layout fits, and "
        + ", ".join(f"{axis} {answers[0][axis]}" for axis in run)
        + f" is the fastest: 4 + 0.2 + 4.2 / 8 + 0 = {total['best']:g} s",
    ]


def cheapest_run(inputs, answers):
    offers, *model, deadline = inputs[0]
    looks = {plan["offer"]: run_of(plan, {"small": 0.1, "restart": 0.0}, offers[plan["offer"]], *model)
             for plan, _ in answers[0]}
    days, dollars = (sum(share * looks[plan["offer"]][place] for plan, share in answers[0]) for place in (0, 1))
    return [
        "look says {:.0f} days, {:,.0f} dollars for old, {:.0f} days, {:,.0f} dollars for new".format(
            *looks["old"][:2], *looks["new"][:2]),
        f"Deadline {deadline}: half of the tokens under each takes {days:.0f} days, {dollars:,.0f} dollars",
    ]


def reading(inputs, answers):
    plans, limit, runs = inputs[0]
    steps = [sum(plan["seconds"].values()) for plan in plans]
    held = [sum(plan["memory"].values()) for plan in plans]
    names = ["dp{dp} tp{tp} pp{pp}".format(**plan) for plan in plans]
    words = [f'("{word}", {count})' for word, count in answers[0]]
    more = plans[1]["seconds"]["tp"] - plans[0]["seconds"]["tp"]
    less = plans[3]["memory"]["gradients"] * (1 - 1 / plans[3]["dp"])
    inside = [run["devices"] for run in runs if run["device"] == "H100"]
    return [
        f"With limit {limit} and runs on {inside[0]}, {inside[1]} and {inside[2]} H100",
        f"{names[0]} takes {steps[0]:g} s and holds {held[0]} GiB, {words[0]}",
        f"{names[1]} takes {steps[1]:g} s, tp adds {more:g} s of them, {words[1]}",
        f"{names[2]} takes {steps[2]:g} s and holds {held[2]} GiB, {words[2]}",
        f"{names[3]} takes {steps[3]:g} s and holds {held[3]} GiB, with ZeRO 2 {less:g} GiB less, {words[3]}",
    ]


def wrong_term(inputs, answers):
    planned, measured = inputs[0]
    runs = [", ".join(f"{run[cause]:g}" for cause in ("matmul", "memory", "tp", "bubble", "dp")) for run in planned]
    cause, factor = answers[0]
    return [*(f"{run} measured {seconds:g} s" for run, seconds in zip(runs, measured)), f'("{cause}", {factor:.1f})']


def missing_term(inputs, answers):
    (first, second), (unseen,) = inputs[0]
    sizes = "pp {pp}, {micro_batches} micro-batches, v {v}"
    return [
        f"matmul {first['matmul']:g}, pp {first['pp']}, measured {first['measured']}",
        f"matmul {second['matmul']:g}, dp {second['dp']}, {sizes.format(**second)}",
        f"= {second['measured']}. Unseen: matmul {unseen['matmul']:g}, memory {unseen['memory']:g}, tp {unseen['tp']}",
        f"optimiser {unseen['optimiser']}, {sizes.format(**unseen)}: (10 + 2) *",
        f"[{answers[0][0]:.1f}]",
    ]


EXAMPLES = {
    "10.1": layout_memory,
    "10.2": reading,
    "10.3": layout_under_cap,
    "10.4": better_layout,
    "10.5": cheapest_run,
    "10.6": lambda inputs, answers: "[" + ", ".join(f'"{name}"' for name in answers[0]) + "]",
    "10.7": wrong_term,
    "10.8": missing_term,
}
