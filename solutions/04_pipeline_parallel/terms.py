"""What the texts of chapter 4 stress, and the solutions without it: tools/terms.py."""

from tools.terms import term

TERMS = [
    term("4.1", "layers are weighed, not counted", "sum(costs[a:b])", "b - a"),
    term("4.1", "the most expensive stage", "key=lambda cuts: max(", "key=lambda cuts: -min("),
    term("4.1", "every stage at least one layer", "range(1, len(costs))", "range(len(costs))"),
    term(
        "4.2",
        "g forward and back, then the next g",
        "range(start, min(start + num_in_flight, num_microbatches))",
        "range(start, min(start + num_ranks, num_microbatches))",
    ),
    term(
        "4.2", "the last round may not be full", "min(start + num_in_flight, num_microbatches)", "start + num_in_flight"
    ),
    term(
        "4.2",
        "all forward before the first comes back",
        'for kind in "FB" for i in some',
        'for i in some for kind in "FB"',
    ),
    term("4.3", "the pace of the slowest", "* max(stage_costs)", "* stage_costs[-1]"),
    term(
        "4.3",
        "the first goes at the pace of each",
        "step = sum(stage_costs)",
        "step = len(stage_costs) * max(stage_costs)",
    ),
    term(
        "4.3",
        "of the total or of the ideal time",
        'if of == "total" else idle / work',
        'if of != "total" else idle / work',
    ),
    term("4.4", "a head start of p - 1 - r", "num_ranks - 1 - rank", "num_ranks - 1"),
    term("4.4", "m may be smaller than p", "min(num_ranks - 1 - rank, num_microbatches)", "num_ranks - 1 - rank"),
    term("4.4", "one forward, then one backward", '[f"F{warmup + i}", f"B{i}"]', '[f"B{i}", f"F{warmup + i}"]'),
    term("4.5", "the mean over the micro-batches", " / m).backward()", ").backward()"),
    term("4.5", "first one first", "enumerate(saved):", "reversed(list(enumerate(saved))):"),
    term("4.5", "the gradient of what came in", "dist.send(x.grad, r - 1)", "dist.send(y.detach().clone(), r - 1)"),
    term(
        "4.5",
        "the tied weight's parts are added up",
        "        tied.grad += other\n",
        "        tied.grad.copy_(other)\n",
    ),
    term("4.6", "W waits, as long as there is room", 'W{i - rank}"] if i >= rank', 'W{i}"] if True'),
    term("4.6", "W before the end", '[f"W{i - rank}"] if i >= rank else []', "[]"),
    term("4.6", "a head start", "num_ranks - 1 - rank", "0 * rank"),
    term("4.7", "the head start passes all chunks", "(v - 1) * p + p - 1 - rank", "p - 1 - rank"),
    term("4.7", "groups of p", "range(start, start + p) for start in range(0, m, p)", "range(m)"),
    term("4.7", "backward from the last chunk to the first", "range(v)[::-1]", "range(v)"),
    term(
        "4.7",
        "one forward and one backward in turns",
        "for pair in zip(forwards[ahead:], backwards) for action in pair",
        "for pair in zip(backwards, forwards[ahead:]) for action in pair",
    ),
    term("4.8", "min(p, m) micro-batches in flight", "min(p, m)", "p"),
    term(
        "4.8",
        "a batch may have fewer micro-batches than stages",
        "num_devices % p == 0",
        "num_devices % p == 0 and m >= p",
    ),
    term("4.8", "m + p - 1 turns", "(m + p - 1)", "(m + p)"),
    term("4.8", "small micro-batches are slow", " + overhead)", ")"),
    term("4.8", "it has to fit", "held <= device_gb", "True"),
    term("4.8", "to the brim", "held <= device_gb", "held < device_gb"),
    term("4.8", "m divides a replica's sequences", " and own % m == 0", ""),
    term("4.9", "chunks", "(num_chunks * idle)", "idle"),
    term("4.9", "of the total time", "* (1 - idle) /", "/"),
    term("4.9", "whole micro-batches", "math.ceil(", "("),
    term("4.9", "every replica its own", "(tensor_parallel * num_stages)", "tensor_parallel"),
    term("4.9", "tensor parallelism", "(tensor_parallel * num_stages)", "num_stages"),
]
