"""What nobody measured: constants that no row moves, and numbers of the model that are not constants at all.

An error beside an advice is honest only if a reader can also see what the model was given. A constant that ends where
it began, as unsure as before, is its prior: whoever calls it fitted says too much. The other numbers were never up for
fitting; most follow from what is computed, some are guesses. A test asks that each of these names has its number here.
"""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.costs.network import FEWEST_IN_SWITCH, TREE_ACROSS_S, TREE_INSIDE_S
from course_lib.planner.cluster import TORUS_STEP_S
from course_lib.planner.constants import (
    CONSTANTS,
    GUESS,
    LOGIT_BYTES,
    LOGIT_CUT,
    LOGIT_FUSED,
    LOGIT_NARROW,
    OTHER_BYTES,
    Constant,
)
from course_lib.planner.estimate import UNEXPLAINED
from course_lib.planner.expert_layer import LAUNCHED_BY_EXPERTS, ROUTER_BYTES, ROUTER_PASSES
from course_lib.planner.layer import BACKWARD_OF_FLASH, LAUNCHED_BY_ATTENTION
from course_lib.planner.least_squares import ROW_ERROR
from course_lib.planner.software import FSDP, MEGATRON_CORE, MEGATRON_DEEPSPEED
from course_lib.planner.state import GATHERED_LAYERS
from course_lib.planner.step import MATRICES, STATE_PASSES

MOVED = 0.02  # of its value: less is not moved
SURER = 0.9  # of its prior uncertainty: more is as unsure as before


@dataclass(frozen=True)
class Assumed:
    """A number that is not fitted. `name`: as in the code, or where it stands there."""

    name: str
    value: float
    unit: str
    meaning: str
    source: str


DERIVED = "follows from what is computed"
ASSUMED: tuple[Assumed, ...] = (
    Assumed("BACKWARD_OF_FLASH", BACKWARD_OF_FLASH, "times", "products of attention backward over forward", DERIVED),
    Assumed("LOGIT_BYTES", LOGIT_BYTES, "bytes", "of a logit at the loss", DERIVED),
    Assumed("LOGIT_FUSED", LOGIT_FUSED, "bytes", "the same, where one kernel makes loss and gradient", DERIVED),
    Assumed("LOGIT_NARROW", LOGIT_NARROW, "bytes", "the same, of a loss in 16 bits", DERIVED),
    Assumed("LOGIT_CUT", LOGIT_CUT, "bytes", "the same, cut over ranks by PyTorch, kernel by kernel", DERIVED),
    Assumed("GATHERED_LAYERS", GATHERED_LAYERS, "layers", "whole at a time under ZeRO-3", DERIVED),
    Assumed("head's gathers under ZeRO", 0.75, "share", "of a gather of both ends' matrices that nothing hides", GUESS),
    Assumed("gather before forward", 0.5, "share", "of a backward pass that hides ZeRO-1's gather of weights", DERIVED),
    Assumed("MATRICES", MATRICES, "messages", "of a layer, where each matrix is sent on its own", DERIVED),
    Assumed("LAUNCHED_BY_ATTENTION", LAUNCHED_BY_ATTENTION, "share", "of a layer's operations", GUESS),
    Assumed("LAUNCHED_BY_EXPERTS", LAUNCHED_BY_EXPERTS, "share", "of a layer's operations, more with experts", GUESS),
    Assumed("ROUTER_BYTES", ROUTER_BYTES, "bytes", "of a number in the router", DERIVED),
    Assumed("ROUTER_PASSES", ROUTER_PASSES, "passes", "over the router's scores", "counted by hand"),
    Assumed("STATE_PASSES", STATE_PASSES, "passes", "over what the optimiser reads and writes", GUESS),
    Assumed("OTHER_BYTES", OTHER_BYTES, "bytes", "workspaces and buffers of libraries", GUESS),
    Assumed("TREE_INSIDE_S", TREE_INSIDE_S, "s", "a step of a tree in a node", "NCCL's own table (facts)"),
    Assumed("TREE_ACROSS_S", TREE_ACROSS_S, "s", "a step of a tree from node to node", "NCCL's own table (facts)"),
    Assumed("FEWEST_IN_SWITCH", FEWEST_IN_SWITCH, "ranks", "for which a switch adds up", "8 H200 measured (facts)"),
    Assumed("TORUS_STEP_S", TORUS_STEP_S, "s", "a step of a ring between TPUs", GUESS),
    Assumed("message_bytes, others", FSDP.message_bytes, "bytes", "of gradients reduced together",
            "PyTorch DDP's default"),
    Assumed("message_bytes, Megatron-Core", MEGATRON_CORE.message_bytes, "bytes", "the same", GUESS),
    Assumed("message_bytes, DeepSpeed", MEGATRON_DEEPSPEED.message_bytes, "bytes", "the same",
            "DeepSpeed's default reduce_bucket_size"),
    Assumed("ROW_ERROR", ROW_ERROR, "share", "that a good row is expected to be missed by, in the fit", GUESS),
    Assumed("UNEXPLAINED", UNEXPLAINED, "share", "that stays in an estimate's range when all constants are known",
            "what fitted rows are missed by: too small for others"),
)


def is_guess(constant: Constant) -> bool:
    """No row moved it, and none made it surer."""
    return (abs(constant.value / constant.prior - 1) < MOVED
            and constant.uncertainty > SURER * constant.prior_uncertainty)


def guesses() -> tuple[Constant, ...]:
    """The constants that are their priors still."""
    return tuple(constant for constant in CONSTANTS if is_guess(constant))


def table_of_guesses() -> str:
    """Both kinds of guesses as text, a line each."""
    lines = ["Constants that no row moves:"]
    lines += [f"    {c.name:30s} {c.value:<10.4g} {c.unit:14s} {c.source}" for c in guesses()]
    lines += ["Numbers that are not fitted:"]
    return "\n".join(lines + [f"    {a.name:30s} {a.value:<10.4g} {a.unit:14s} {a.source}" for a in ASSUMED])
