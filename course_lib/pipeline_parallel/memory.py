"""How many activations a rank holds, counted from its order alone: what a rank does, it does in that order.

F puts the activations of one chunk for one micro-batch on the shelf. B takes them away. Where backward is split, I
still needs to leave most of them for W: W takes them away.
"""

from collections.abc import Sequence

from course_lib.pipeline_parallel.actions import Action


def in_flight(actions: Sequence[Action]) -> list[int]:
    """After the start of each action: how many activations, of one chunk for one micro-batch each, are held."""
    held, counts = 0, []
    for action in actions:
        held += action.kind == "F"
        counts.append(held)
        held -= action.kind in "BW"
    return counts
