"""The few numbers that no data sheet holds: what each means, its value, and how sure it is.

Each begins at a `prior`, what a data sheet, a paper or a measured curve says, with a relative uncertainty. planner.fit
moves it only as far as the rows marked "calibration" ask for, and leaves `value` and its own `uncertainty`; a test fits
again and compares. Where no row says anything the value stays at its prior, and so does its uncertainty.
"""

from dataclasses import dataclass, fields, make_dataclass

from course_lib.costs.reached import across_step_s, reached


@dataclass(frozen=True)
class Constant:
    """`uncertainty`, `prior_uncertainty`: relative, one standard deviation. `source`: of the prior."""

    name: str
    value: float
    uncertainty: float
    unit: str
    meaning: str
    prior: float
    prior_uncertainty: float
    source: str


GUESS = "a guess of its order of magnitude"
CONSTANTS: tuple[Constant, ...] = (
    Constant("matmul_a100", 0.8902, 0.04, "share", "of the best product ever measured (MAMF) that training keeps up",
             0.92, 0.20, "clocks under load, " + GUESS),
    Constant("matmul_h100", 0.7375, 0.05, "share", "the same: 700 W hold these clocks less well",
             0.80, 0.20, "clocks under load, " + GUESS),
    Constant("matmul_h200", 0.8844, 0.07, "share", "the same, with newer libraries",
             0.85, 0.20, "clocks under load, " + GUESS),
    Constant("spread", 0.0105, 0.49, "share", "of devices' speeds, one standard deviation: all wait for the slowest",
             0.01, 0.50, GUESS),
    Constant("power", 0.3838, 0.32, "exponent", "speed of a device whose power is capped: share of power to this",
             0.5, 0.40, "between constant voltage (1) and free voltage (1/3)"),
    Constant("fp8", 0.6032, 0.40, "share", "of the gain that fp8 promises in linear layers, after its conversions",
             0.6, 0.40, GUESS),
    Constant("flash1", 0.3219, 0.14, "share of peak", "attention that stores no scores, first generation (2022)",
             0.33, 0.15, "Dao 2023, FlashAttention-2: 25 to 40 % of the peak for version 1"),
    Constant("flash2_a100", 0.55, 0.15, "share of peak", "second generation, on what it was written for",
             0.55, 0.15, "Dao 2023: 50 to 73 %, causal and backward at its lower end"),
    Constant("flash2_h100", 0.3791, 0.06, "share of peak", "second generation, on Hopper",
             0.36, 0.15, "Shah et al. 2024, FlashAttention-3: version 2 reaches 35 % of an H100"),
    Constant("flash3", 0.5538, 0.20, "share of peak", "third generation, or cuDNN's, on Hopper",
             0.55, 0.20, "Shah et al. 2024: up to 75 % forward, less backward and causal"),
    Constant("passes_fused", 1.938, 0.17, "passes", "over each byte that forward keeps, where kernels are fused",
             1.5, 0.40, "written once, read once, some fused away"),
    Constant("passes_eager", 2.59, 0.24, "passes", "the same, one kernel an operation",
             2.5, 0.40, "written once, read once, and what is between"),
    Constant("launch_s", 0.0005, 0.50, "s", "to launch the kernels of one pass of a layer, fused",
             0.5e-3, 0.50, "some 50 kernels of 10 us"),
    Constant("launch_nanotron_s", 0.001827, 0.06, "s", "the same, nanotron", 1.4e-3, 0.50, "some 140 calls of 10 us"),
    Constant("launch_deepspeed_s", 0.002968, 0.05, "s", "the same, Megatron-DeepSpeed in 2022",
             2.5e-3, 0.50, "some 140 calls of 18 us"),
    Constant("across_s", 1.519e-05, 0.39, "s", "a step of a ring from node to node, InfiniBand",
             across_step_s("InfiniBand NDR"), 0.40, "what NCCL itself reckons with (facts.STEP_LATENCY)"),
    Constant("across_cloud_s", 5.477e-05, 0.14, "s", "the same on a cloud's Ethernet (EFA)",
             across_step_s("EFA v2"), 0.15, "an all-gather of 32 MB on 32 nodes (costs.reached)"),
    Constant("network", 0.8026, 0.05, "share", "of the data sheet's network that a ring gets",
             reached().card, 0.08, "an all-to-all of 2 GB on two nodes (costs.reached)"),
    Constant("tp_hidden", 0.5237, 0.36, "share", "of tensor parallelism's messages that Megatron-Core hides",
             0.5, 0.40, GUESS),
    Constant("tp_copies", 7.495, 0.36, "passes", "over a message that DTensor makes, to cut and join it",
             3.0, 1.00, "a cut and a join are two each"),
    Constant("drag", 0.2339, 0.39, "share", "of a hidden message's time that computing beside it is slowed by",
             0.15, 0.60, "NCCL takes some of the processors and of the memory's bandwidth"),
    Constant("p2p_s", 9.901e-05, 0.50, "s", "until kernels flow again behind a message that everybody waited for",
             0.1e-3, 0.50, "some ten launches"),
    Constant("experts_eager", 0.1734, 0.09, "share", "of a dense product's speed that experts reach, not compiled",
             0.5, 1.00, GUESS),
    Constant("step_s", 0.005235, 0.70, "s", "of each step for what is left: clipping, data, logging",
             5e-3, 0.70, GUESS),
)
# Not of time, so fitted apart: what is in memory.
ACTIVATIONS_EAGER = Constant(
    "activations_eager", 1.39, 0.05, "times", "what the formula of activations says, one kernel an operation",
    1.21, 0.10, "q, k and v once more for rotation and layout, norms in 32 bits: 5 of 24 more")
LOGIT_BYTES = 10  # of a logit at the loss: 2 from the product, 4 for the loss, 4 for its gradient
OTHER_BYTES = 2**30  # workspaces and buffers of libraries

Constants = make_dataclass("Constants", [(c.name, float, c.value) for c in CONSTANTS], frozen=True)
Constants.__doc__ = "A value for each of CONSTANTS; Constants() are the committed ones."
FITTED = Constants()


def priors() -> Constants:
    return Constants(**{c.name: c.prior for c in CONSTANTS})


def names() -> tuple[str, ...]:
    return tuple(field.name for field in fields(Constants))
