"""Cells, checks and trials that do not pass in a mode, or print another text there, each with the reason."""

from tools.cells import Outcome, cell_with

NAMED = "the timeline names what was sent: NCCL has collectives where gloo's ranks send and receive"
AUTOCAST = "the pretended device has no autocast"
STEPS = "AdamW keeps its step counts, 208 bytes here, on the host, and the cell asks for the peak on the GPU"
FUSED = "the pretended device has no fused attention: torch computes with the whole matrix there, and keeps it"
MANY = "the cell launches more ranks than the machine has GPUs, which one rank each may have"
DEEPSPEED = "DeepSpeed knows its own list of devices, in which the pretended one is not"

EXCEPTIONS: dict[tuple[str, str], str] = {
    **{(cell_with("03", "def under_autocast("), mode): AUTOCAST for mode in ("nccl", "gloo-cuda", "any")},
    (cell_with("05", "def played_layer("), "any"): MANY,
    (cell_with("09", "sixty_four = "), "any"): MANY,
    **{(cell_with("06", "def watched("), mode): STEPS for mode in ("nccl", "gloo-cuda", "any")},
    **{(cell_with("06", "def on_the_clock("), mode): NAMED for mode in ("nccl", "any")},
    **{(cell_with("07", "def fused("), mode): FUSED for mode in ("nccl", "gloo-cuda", "any")},
    **{(cell_with("06", "def train_ours("), mode): DEEPSPEED for mode in ("nccl", "gloo-cuda", "any")},
}
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
