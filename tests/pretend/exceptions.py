"""Cells, checks and trials that do not pass in a mode, or print another text there, each with the reason."""

from tools.cells import Outcome, cell_with

GPUS = ("nccl", "gloo-cuda")
REASONS = {  # (chapter, text of the cell) -> (modes, why)
    ("00", "sent.against("): (["nccl"], "nobody counts what NCCL writes"),
    ("02", "def of_gloo("): (["nccl"], "nobody counts what NCCL writes"),
    ("03", "def under_autocast("): (GPUS, "the pretended device has no autocast"),
    ("06", "def watched("): (
        GPUS, "AdamW keeps its step counts, 208 bytes here, on the host, and the cell asks for the peak on the GPU"),
    ("06", "def on_the_clock("): (
        ["nccl"], "the timeline names what was sent: NCCL has collectives where gloo's ranks send and receive"),
    ("06", "def train_ours("): (GPUS, "DeepSpeed knows its own list of devices, in which the pretended one is not"),
    ("07", "def fused("): (GPUS, "the pretended device has no fused attention: torch keeps the whole matrix there"),
}
EXCEPTIONS = {(cell_with(*cell), mode): why for cell, (modes, why) in REASONS.items() for mode in modes}
"""(what, mode) -> why: ("00[29]", "nccl"). An entry that passes is a failure too: it has to go."""


def complaints(mode: str, outcomes: list[Outcome]) -> list[str]:
    """What nobody has explained, one line each: a failure, another output, an exception that is none any more."""
    found = []
    for each in outcomes:
        said = each.error if not each.passed else each.other_output and f"prints {each.other_output}"
        reason = EXCEPTIONS.get((each.what, mode))
        if said and not reason:
            found.append(f"{each.what} under {mode}: {said}")
        if reason and not said:
            found.append(f"{each.what} under {mode} passes: its entry in exceptions.py ({reason}) has to go")
    return found
