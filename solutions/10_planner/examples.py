"""The docstrings' examples of chapter 10, made of the first trials: tools/examples.py."""

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


EXAMPLES = {
    "10.1": layout_memory,
    "10.2": lambda inputs, answers: [
        "{} devices, tp {}, pp {}, {} chunk, {} rows, {} row a micro-batch, {} layers and a head of {}:".format(
            *inputs[0]),
        f"/ 36 = 1/{1 / answers[0]['value']:.0f}",
    ],
    "10.3": layout_under_cap,
    "10.4": better_layout,
    "10.5": cheapest_run,
    "10.6": lambda inputs, answers: (
        "{} devices at {:.0%}, tp {}, pp {}, one chunk, {} rows, rows {}: m = 8, x = 3/8; down to {:.0%}: ".format(
            *inputs[0][:4], *inputs[0][5:]).replace("%", " %")
        + f"{answers[0]['value']:.1f} devices as it comes"
    ),
}
