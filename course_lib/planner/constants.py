"""The few numbers that no data sheet holds: what each means, its value, and how sure it is.

Each begins at a `prior`, what a data sheet, a paper or a measured curve says, with a relative uncertainty. planner.fit
moves it only as far as the rows marked "calibration" ask for, and leaves `value` and its own `uncertainty`; a test fits
again and compares. Where no row says anything the value stays at its prior, and so does its uncertainty: such a
constant is a guess (planner.fit lists them).

Only constants were kept from seeing the rows marked "visible". Which terms the model has, what each software is said to
do, and the priors were written with all rows in view and changed where a group was missed; so errors on visible rows
are smaller than on a cluster that nobody has published. The priors alone, without any fit, tell how much
(planner.validate --leave-out).

Generations of training software stand below, told apart by what they do, not by how fast they turned out. A row says in
free text what ran. Where it says nothing, the year tells: attention that stores its scores is Megatron-LM of 2021,
sharded parameters are PyTorch's FSDP, and everything else is Megatron-Core. Whoever knows whether his software fuses
kernels, and which attention it calls, is told more: software_from_answers.
"""

from dataclasses import dataclass, make_dataclass, replace
from math import inf
from typing import Any

from course_lib.costs.links import across_step_s, reached_shares


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
    Constant("matmul_a100", 0.8898, 0.04, "share", "of the best product ever measured (MAMF) that training keeps up",
             0.92, 0.20, "clocks under load, " + GUESS),
    Constant("matmul_h100", 0.7531, 0.05, "share", "the same: 700 W hold these clocks less well",
             0.80, 0.20, "clocks under load, " + GUESS),
    Constant("matmul_h200", 0.8845, 0.06, "share", "the same, with newer libraries",
             0.85, 0.20, "clocks under load, " + GUESS),
    Constant("matmul_b200", 0.7613, 0.09, "share", "the same, Blackwell", 0.80, 0.20, "clocks under load, " + GUESS),
    Constant("spread", 0.01066, 0.48, "share", "of devices' speeds, one standard deviation: all wait for the slowest",
             0.01, 0.50, GUESS),
    Constant("power", 0.3663, 0.30, "exponent", "speed of a device whose power is capped: share of power to this",
             0.5, 0.40, "between constant voltage (1) and free voltage (1/3)"),
    Constant("fp8", 0.8619, 0.14, "share", "of the gain that fp8 promises in linear layers, after its conversions",
             0.6, 0.40, GUESS),
    Constant("fp4", 0.7019, 0.16, "share", "the same of nvfp4; some layers stay in 16 bits", 0.35, 0.50, GUESS),
    Constant("flash1", 0.3222, 0.14, "share of peak", "attention that stores no scores, first generation (2022)",
             0.33, 0.15, "Dao 2023, FlashAttention-2: 25 to 40 % of the peak for version 1"),
    Constant("flash2_a100", 0.55, 0.15, "share of peak", "second generation, on what it was written for",
             0.55, 0.15, "Dao 2023: 50 to 73 %, causal and backward at its lower end"),
    Constant("flash2_h100", 0.3641, 0.05, "share of peak", "second generation, on Hopper",
             0.36, 0.15, "Shah et al. 2024, FlashAttention-3: version 2 reaches 35 % of an H100"),
    Constant("flash3", 0.6139, 0.18, "share of peak", "third generation, or cuDNN's, on Hopper",
             0.55, 0.20, "Shah et al. 2024: up to 75 % forward, less backward and causal"),
    Constant("flash_b200", 0.4903, 0.24, "share of peak", "cuDNN's, on Blackwell",
             0.45, 0.25, "as flash3, and less, since exponentials grew less than products, " + GUESS),
    Constant("passes_fused", 1.897, 0.17, "passes", "over each byte that forward keeps, where kernels are fused",
             1.5, 0.40, "written once, read once, some fused away"),
    Constant("passes_eager", 2.89, 0.21, "passes", "the same, one kernel an operation",
             2.5, 0.40, "written once, read once, and what is between"),
    Constant("launch_s", 0.0005, 0.50, "s", "to launch the kernels of one pass of a layer, fused",
             0.5e-3, 0.50, "some 50 kernels of 10 µs"),
    Constant("launch_eager_s", 0.001823, 0.06, "s", "the same, one kernel an operation",
             1.4e-3, 0.50, "some 140 calls of 10 µs"),
    Constant("launch_deepspeed_s", 0.002968, 0.05, "s", "the same, Megatron-DeepSpeed in 2022",
             2.5e-3, 0.50, "some 140 calls of 18 µs"),
    Constant("across_s", 1.605e-05, 0.38, "s", "a step of a ring from node to node, InfiniBand",
             across_step_s("InfiniBand NDR"), 0.40, "what NCCL itself reckons with (facts.STEP_LATENCY)"),
    Constant("across_cloud_s", 5.54e-05, 0.14, "s", "the same on a cloud's Ethernet (EFA)",
             across_step_s("EFA v2"), 0.15, "an all-gather of 32 MB on 32 nodes (costs.links)"),
    Constant("network", 0.8076, 0.05, "share", "of the data sheet's network that a ring gets",
             reached_shares().card, 0.08, "an all-to-all of 2 GB on two nodes (costs.links)"),
    Constant("tp_hidden", 0.5304, 0.32, "share", "of tensor parallelism's messages that Megatron-Core hides",
             0.5, 0.40, GUESS),
    Constant("tp_copies", 2.586, 0.59, "passes", "over a message that DTensor makes, to cut and join it",
             3.0, 1.00, "a cut and a join are two each"),
    Constant("drag", 0.1392, 0.40, "share", "of a hidden message's time that computing beside it is slowed by",
             0.15, 0.60, "NCCL takes some of the processors and of the memory's bandwidth"),
    Constant("p2p_s", 9.902e-05, 0.50, "s", "until kernels flow again behind a message that everybody waited for",
             0.1e-3, 0.50, "some ten launches"),
    Constant("experts_eager", 0.1795, 0.09, "share", "of a dense product's speed that experts reach, not compiled",
             0.5, 1.00, GUESS),
    Constant("experts_grouped", 0.5042, 0.11, "share", "the same, in grouped products of fused kernels",
             0.7, 0.30, GUESS),
    Constant("row_passes", 4.937, 0.35, "passes", "over rows sent to experts, and over those that come back",
             6.0, 0.40, "sorted by expert, sent, converted, sorted back: two or three times read and written"),
    Constant("rows_s", 0.001067, 0.23, "s", "of each pass until kernels flow behind rows whose number is waited for",
             0.001, 0.70, "some 100 launches of 10 µs"),
    Constant("step_s", 0.005419, 0.70, "s", "of each step for what is left: clipping, data, logging",
             5e-3, 0.70, GUESS),
)
# Not of time, so fitted apart: what is in memory.
ACTIVATIONS_EAGER = Constant(
    "activations_eager", 1.30, 0.054, "times", "what the formula of activations says, one kernel an operation",
    1.21, 0.10, "q, k and v once more for rotation and layout, norms in 32 bits: 5 of 24 more")
LOGIT_BYTES = 10  # of a logit at the loss: 2 from the product, 4 for the loss, 4 for its gradient
LOGIT_FUSED = 6  # of one kernel, where the loss's 32 bits become the gradient
LOGIT_NARROW = 8  # of a loss in 16 bits: logits, their log-softmax, and the gradient of each, 2 bytes each
LOGIT_CUT = 16  # of PyTorch's loss on cut logits: log-softmax, its exponential, the targets' gradient, and their sum
OTHER_BYTES = 2**30  # workspaces and buffers of libraries

Constants = make_dataclass("Constants", [(c.name, float, c.value) for c in CONSTANTS], frozen=True)
Constants.__doc__ = "A value for each of CONSTANTS; Constants() are the committed ones."
FITTED = Constants()


def priors() -> Constants:
    """The constants before anything was fitted."""
    return Constants(**{c.name: c.prior for c in CONSTANTS})


@dataclass(frozen=True)
class Software:
    """`passes`, `launch`, `attention`, `experts`: names of planner.constants."""

    name: str
    passes: str = "passes_eager"
    launch: str = "launch_s"
    attention: str = "flash2"  # flash1, flash2 or flash3: what the device then reaches is a constant
    overlaps_gradients: bool = True  # their reduction runs beside backward
    overlaps_parameters: bool = False  # ZeRO-1 gathers them beside the next forward pass
    overlaps_tensor: bool = False  # messages of tensor parallelism run beside products
    overlaps_columns: bool = False  # in backward only, and those of matrices that are cut by columns
    gathers_by_matrix: bool = False  # q, k, v, gate and up fetch their input one by one
    overlaps_stages: bool = True  # a stage computes while its messages travel
    message_bytes: float = 25e6  # of gradients that are reduced together; inf: all are
    matrix_by_matrix: bool = False  # or each matrix has a message of its own
    shards_layers: bool = False  # FSDP: ZeRO-2 and 3 gather layer by layer, ahead of time
    early_stop: bool = False  # recomputation stops when backward has what it wants
    whole_layers: bool = False  # on each stage; False: the ends were chosen so that stages are even
    even_layers: bool = False  # on each stage as many, whatever the ends take
    whole_ends: bool = False  # in a pipeline each rank of tensor parallelism has all of the embedding and the read-out
    ring_layout: str = "zigzag"  # how tokens are dealt to ranks of context parallelism
    copies: str = ""  # constant: passes over each message of tensor parallelism
    experts: str = "experts_grouped"  # constant: share of a dense product's speed
    overlaps_experts: bool = False  # rows travel beside the products of another micro-batch
    sends_rows_once: bool = False  # to each node, or each rank of one, that has experts of the row
    waits_for_launches: bool = True  # False: kernels were captured in a graph
    waits_for_rows: bool = True  # the processor learns how many rows have come before it launches their products
    one_card: bool = False  # rings use one network card of a node, not all
    activations_eager: bool = False
    loss: str = "eager"  # "fused"; "narrow": in 16 bits; "cut": eager, on what tensor parallelism leaves of the logits
    light_modules: tuple[str, ...] = ()  # of job.MODULES: those that it can make again alone for little time
    gathers_logits: bool = False  # each rank of tensor parallelism has them all
    keeps_gathered: bool = False  # what sequence parallelism gathers for a product, until its backward pass
    frees_late: bool = False  # the input of a reduce-scatter, which is free once the network, not the code, is past it
    adds_up_whole: bool = False  # sharded gradients of several micro-batches, in 32 bits, reduced after the last
    keeps_outputs: bool = False  # the last stage has the logits of all micro-batches at the end of a step


MEGATRON_2021 = Software("Megatron-LM 2021", passes="passes_fused", overlaps_gradients=False, overlaps_stages=False,
                         message_bytes=inf)
DEEPSPEED_2021 = Software("DeepSpeed 2021", launch="launch_eager_s", matrix_by_matrix=True, one_card=True)
MEGATRON_DEEPSPEED = Software("Megatron-DeepSpeed 2022", passes="passes_fused", launch="launch_deepspeed_s",
                              overlaps_gradients=False, overlaps_stages=False, message_bytes=5e8)
MEGATRON_CORE = Software("Megatron-Core", passes="passes_fused", attention="flash3", overlaps_parameters=True,
                         overlaps_tensor=True, loss="fused", message_bytes=2e8,
                         light_modules=("layernorm", "mla_up_proj", "moe_act"))
NEMO = Software("NeMo 2024", passes="passes_fused", overlaps_parameters=True, overlaps_tensor=True, loss="fused",
                message_bytes=2e8)
COMPOSER = Software("Composer FSDP 2023", launch="launch_eager_s", attention="flash1", shards_layers=True,
                    early_stop=True)
FSDP = Software("FSDP", launch="launch_eager_s", shards_layers=True, early_stop=True, even_layers=True,
                activations_eager=True)
# What these hold is read in their sources: torchtitan@f6a9daa13 train.py, parallelisms/*.py; PyTorch
# tensor/parallel/loss.py.
# DTensor keeps what it gathers for a product, torch.distributed.pipelining each stage's outputs until the step ends.
TORCHTITAN = Software("torchtitan 2024", passes="passes_fused", shards_layers=True, early_stop=True, even_layers=True,
                      ring_layout="contiguous", loss="cut", keeps_gathered=True, keeps_outputs=True)
FSDP2_EAGER = Software("FSDP2, not compiled", launch="launch_eager_s", attention="flash3", shards_layers=True,
                       early_stop=True, even_layers=True, copies="tp_copies", experts="experts_eager",
                       activations_eager=True, keeps_gathered=True, keeps_outputs=True)
FSDP2 = Software("FSDP2, compiled", passes="passes_fused", attention="flash3", shards_layers=True, early_stop=True,
                 even_layers=True, copies="tp_copies", keeps_gathered=True, keeps_outputs=True)
EAGER = Software("one kernel an operation", launch="launch_eager_s", activations_eager=True)
COMPILED = Software("FSDP, compiled", passes="passes_fused", shards_layers=True, early_stop=True, even_layers=True)
NANOTRON = Software("nanotron 2025", launch="launch_eager_s", matrix_by_matrix=True, whole_layers=True,
                    overlaps_columns=True, activations_eager=True, frees_late=True)
SOFTWARE: tuple[Software, ...] = (
    MEGATRON_CORE, MEGATRON_2021, MEGATRON_DEEPSPEED, DEEPSPEED_2021, NEMO, COMPOSER, FSDP, FSDP2, FSDP2_EAGER,
    TORCHTITAN, NANOTRON, EAGER, COMPILED)
# What one trainer does with a software that others use otherwise, by a word of a row's free text. KempnerForge@5666d0d:
# training/loss.py; distributed/tensor_parallel.py (each matrix fetches its input; output head, which a pipeline's
# stages do not cut); training/grad.py (no_sync), distributed/parallel.py.
TRAINERS: dict[str, dict[str, Any]] = {
    "kempnerforge": {"loss": "narrow", "gathers_logits": True, "adds_up_whole": True, "gathers_by_matrix": True,
                     "whole_ends": True}}
# Words of a row's free text, the first that is found counts.
WORDS: tuple[tuple[str, Software], ...] = (
    ("nanotron", NANOTRON), ("deepspeed-2021", DEEPSPEED_2021), ("megatron-deepspeed", MEGATRON_DEEPSPEED),
    ("composer", COMPOSER), ("torchtitan", TORCHTITAN), ("not compiled", FSDP2_EAGER), ("compile", FSDP2),
    ("nemo", NEMO), ("megatron", MEGATRON_CORE), ("automodel", MEGATRON_CORE), ("bridge", MEGATRON_CORE),
    ("fsdp2", FSDP2_EAGER), ("fsdp", FSDP))


def find_software(name: str) -> Software:
    """The one of this name. ValueError, with all names, where there is none."""
    for known in SOFTWARE:
        if known.name == name:
            return known
    raise ValueError(f"no software is called {name!r}: expected one of {', '.join(s.name for s in SOFTWARE)}")


def software_of(text: str, stores_no_scores: bool, zero_stage: int) -> Software:
    """The software that a row's free text names, or, where that says nothing known, one of the row's features."""
    for word, known in WORDS:
        if word in text.lower():
            return known
    if not stores_no_scores:
        return MEGATRON_2021
    return FSDP if zero_stage == 3 else MEGATRON_CORE


def software_from_answers(fuses: bool, attention: str, zero_stage: int, stores_no_scores: bool = True) -> Software:
    """For a reader whose software is none of SOFTWARE, from two things that he knows of it: whether it `fuses` kernels,
    by hand or by a compiler, and which generation of attention it calls ("flash1", "flash2" or "flash3").
    """
    if not stores_no_scores and fuses:
        return MEGATRON_2021
    if not fuses:
        base = FSDP if zero_stage >= 2 else EAGER
    else:
        base = COMPILED if zero_stage == 3 else MEGATRON_CORE
    return replace(base, attention=attention)
