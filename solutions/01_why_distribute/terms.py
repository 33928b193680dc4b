"""What the texts of chapter 1 stress, and the solutions without it: tools/terms.py."""

from tools.terms import term

TERMS = [
    term("1.3", "recomputed FLOPs do not count", "6 * ", "(8 if recompute else 6) * "),
    term("1.4", "0 where it got slower", "max(0.0, ", "max(-1.0, "),
    term("1.4", "the share, not the speed-up's", " / (1 - 1 / num_devices)", ""),
    term("1.6", "the state has to fit", "max(in_time, in_memory)", "in_time"),
    term("1.6", "in time", "max(in_time, in_memory)", "in_memory"),
    term("1.6", "half of the memory", "0.5 * device", "device"),
    term("1.6", "whole nodes, and enough", "math.ceil(", "round("),
]
