"""The few numbers that no data sheet holds: what each means, its value, and how sure it is; and training software.

Each begins at a `prior`, what a data sheet, a paper or a measured curve says, with a relative uncertainty; 0: it stays
there. tools/fit_planner.py moves the others only as far as the rows marked "calibration" ask for, and leaves `value`
and `uncertainty`; a test fits again and compares. A constant that did not lessen the errors of rows that it was not
fitted on is not here (docs/decisions/planner.md has what each is worth).

Only constants were kept from seeing the rows marked "visible". Which terms the model has, what each software is said to
do, and the priors were written with all rows in view and changed where a group was missed; so errors on visible rows
are smaller than on a cluster that nobody has published.

Generations of training software stand below, told apart by what they do, not by how fast they turned out. A row says in
free text what ran. Where it says nothing, the year tells: attention that stores its scores is Megatron-LM of 2021,
sharded parameters are PyTorch's FSDP, and everything else is Megatron-Core.
"""

from dataclasses import dataclass, make_dataclass, replace
from math import inf
from typing import Any


@dataclass(frozen=True)
class Constant:
    """`uncertainty`, `prior_uncertainty`: relative, one standard deviation; 0: not fitted. `source`: of the prior."""

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
    Constant("matmul_a100", 0.9033, 0.03, "share", "of the best product ever measured (MAMF) that training keeps up",
             0.92, 0.20, "clocks under load, " + GUESS),
    Constant("matmul_h100", 0.7965, 0.04, "share", "the same, Hopper: 700 W hold these clocks less well",
             0.80, 0.20, "clocks under load, " + GUESS),
    Constant("matmul_b200", 0.6643, 0.05, "share", "the same, Blackwell", 0.80, 0.20, "clocks under load, " + GUESS),
    Constant("flash2", 0.3863, 0.04, "share of peak", "attention that stores no scores, first and second generation",
             0.36, 0.15, "Shah et al. 2024, FlashAttention-3: version 2 reaches 35 % of an H100"),
    Constant("flash3", 0.5635, 0.17, "share of peak", "third generation, or cuDNN's, on Hopper and later",
             0.55, 0.20, "Shah et al. 2024: up to 75 % forward, less backward and causal"),
    Constant("passes_fused", 2.04, 0.15, "passes", "over each byte that forward keeps, where kernels are fused",
             1.5, 0.40, "written once, read once, some fused away"),
    Constant("passes_eager", 3.517, 0.16, "passes", "the same, one kernel an operation",
             2.5, 0.40, "written once, read once, and what is between"),
    Constant("launch_eager_s", 0.001813, 0.06, "s", "to launch one pass of a layer, one kernel an operation",
             1.4e-3, 0.50, "some 140 calls of 10 µs"),
    Constant("launch_deepspeed_s", 0.002971, 0.05, "s", "the same, Megatron-DeepSpeed in 2022",
             2.5e-3, 0.50, "some 140 calls of 18 µs"),
    Constant("drag", 0.2859, 0.28, "share", "of a hidden message's time that computing beside it is slowed by",
             0.15, 0.60, "20 of 132 multiprocessors send in DeepSeek-V3's training (3.2.2)"),
    Constant("experts_eager", 0.2023, 0.07, "share", "of a dense product's speed that experts reach, not compiled",
             0.5, 1.00, GUESS),
    Constant("row_passes", 6, 0.00, "passes", "over rows sent to experts, and over those that come back, each way",
             6.0, 0.0, "sorted by expert, sent, sorted by expert again: two or three times read and written"),
    Constant("tp_hidden", 0.5, 0.00, "share", "of tensor parallelism's messages that Megatron-Core hides",
             0.5, 0.0, GUESS),
    Constant("spread", 0.01, 0.00, "share", "of devices' speeds, one standard deviation: all wait for the slowest",
             0.01, 0.0, GUESS),
    Constant("step_s", 0.005, 0.00, "s", "of each step for what is left: clipping, data, logging", 5e-3, 0.0, GUESS),
)
# What two thirds of the runs of a kind (job.kinds_of) are missed by, of those that were not fitted: predicted over
# published, or published over predicted, less 1. Written by tools/fit_planner.py, with each run's source left out of
# the fit; a kind has at least four runs.
RANGES: dict[str, float] = {
    "Composer FSDP 2023 on Ampere": 0.068,
    "Composer FSDP 2023 on Ampere, one node": 0.068,
    "FSDP on Ampere": 0.036,
    "FSDP on Ampere, one node": 0.036,
    "FSDP on Hopper": 0.046,
    "FSDP on Hopper, up to 512 devices": 0.044,
    "Megatron-Core on Blackwell with 8- or 4-bit products": 0.121,
    "Megatron-Core on Blackwell with experts and 8- or 4-bit products": 0.167,
    "Megatron-Core on Hopper": 0.146,
    "Megatron-Core on Hopper with experts": 0.133,
    "Megatron-Core on Hopper with experts and context parallelism": 0.040,
    "Megatron-Core on Hopper, more than 512 devices with experts": 0.089,
    "Megatron-Core on Hopper, up to 512 devices with experts": 0.135,
    "Megatron-Core on Hopper, up to 512 devices with experts and context parallelism": 0.040,
    "Megatron-Core on all devices with 8- or 4-bit products": 0.121,
    "Megatron-Core on all devices with experts": 0.135,
    "Megatron-Core on all devices with experts and 8- or 4-bit products": 0.167,
    "Megatron-Core on all devices with experts and context parallelism": 0.040,
    "Megatron-DeepSpeed 2022 on Ampere": 0.063,
    "Megatron-DeepSpeed 2022 on Ampere, up to 512 devices": 0.063,
    "Megatron-LM 2021 on Ampere": 0.054,
    "Megatron-LM 2021 on Ampere, one node": 0.054,
    "Megatron-LM 2021 on Ampere, up to 512 devices": 0.064,
    "all models on Hopper with context parallelism": 0.056,
    "all software on Ampere": 0.059,
    "all software on Ampere, more than 512 devices": 0.061,
    "all software on Ampere, one node": 0.054,
    "all software on Ampere, up to 512 devices": 0.063,
    "all software on Hopper": 0.087,
    "all software on Hopper, one node": 0.068,
    "all software on Hopper, up to 512 devices": 0.089,
    "nanotron 2025 on Hopper": 0.087,
    "nanotron 2025 on Hopper with tensor parallelism across nodes": 0.226,
    "nanotron 2025 on Hopper, one node": 0.050,
    "nanotron 2025 on Hopper, up to 512 devices": 0.101,
    "nanotron 2025 on Hopper, up to 512 devices with tensor parallelism across nodes": 0.226,
    "nanotron 2025 on all devices with tensor parallelism across nodes": 0.226,
}
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



SILU = "SiLU of the gate"  # kernels that do gate, SiLU and product in one keep gate and up alone


@dataclass(frozen=True, eq=False)
class Software:
    """`passes`, `launch`, `experts`: names of CONSTANTS."""

    name: str
    like: str = ""  # of whose kind its runs are; "": of its own
    passes: str = "passes_eager"
    launch: str = ""  # "": kernels are launched ahead of the device
    attention: str = "flash2"  # or flash3: what the device then reaches is a constant
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
    experts: str = ""  # constant: share of a dense product's speed
    overlaps_experts: bool = False  # rows travel beside the products of another micro-batch
    sends_rows_once: bool = False  # to each node, or each rank of one, that has experts of the row
    nodes_of_row: int = 0  # a row goes to at most so many nodes; 0: to all that have an expert of its choice
    row_bytes: float = 0.0  # of a number on the way to an expert and back, on average; 0: of an activation
    one_card: bool = False  # rings use one network card of a node, not all
    made_again: tuple[str, ...] = (SILU,)  # terms of costs.flops that backward makes again, at no cost in time
    keeps_narrow: tuple[str, ...] = ()  # terms that are kept in 8 bits though no product reads them
    gradient_bytes: int = 2  # of a gradient where it is kept and reduced, unless a run says otherwise
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
                         overlaps_tensor=True, loss="fused", message_bytes=2e8, gradient_bytes=4,
                         made_again=(SILU, "rows that come back"),  # router's weights before the last product
                         light_modules=("layernorm", "mla_up_proj", "moe_act"))
# Megatron adds gradients up and reduces them in 32 bits unless --grad-reduce-in-bf16 is given (megatron/training/
# arguments.py), torchtitan knows no other (mixed_precision_reduce: Literal["float32"]). NVIDIA's recipes for these
# tables set grad_reduce_in_fp32=False (Megatron-Bridge, scripts/performance; NeMo 2, recipes). Runs in fp16 keep 16.
BRIDGE = replace(MEGATRON_CORE, name="Megatron-Bridge", like="Megatron-Core", gradient_bytes=2)
# FSDP in a pipeline; "FP32 gradient accumulation during backward computation over multiple micro-batches and also
# reduce-scatter gradients in FP32" (Llama Team 2024, 3.3.2).
# Without recomputation their run fits if what one kernel makes of gate and up is made again; nobody published it.
META = replace(MEGATRON_CORE, name="Meta 2024", like="Megatron-Core", shards_layers=True,
               made_again=(SILU, "their product"))
# 20 of 132 multiprocessors send; rows go out in 8 bits and come back in 16, to at most 4 nodes (DeepSeek-AI 2024, 3.2).
HAI_LLM = replace(MEGATRON_CORE, name="DeepSeek HAI-LLM 2024", like="Megatron-Core", sends_rows_once=True,
                  nodes_of_row=4, row_bytes=1.5, overlaps_experts=True, keeps_narrow=("gate", "up"))
NEMO = Software("NeMo 2024", passes="passes_fused", overlaps_parameters=True, overlaps_tensor=True, loss="fused",
                message_bytes=2e8)
COMPOSER = Software("Composer FSDP 2023", launch="launch_eager_s", shards_layers=True, early_stop=True)
FSDP = Software("FSDP", launch="launch_eager_s", shards_layers=True, early_stop=True, even_layers=True,
                activations_eager=True, made_again=())
# What these hold is read in their sources: torchtitan@f6a9daa13 train.py, parallelisms/*.py; PyTorch
# tensor/parallel/loss.py.
# DTensor keeps what it gathers for a product, torch.distributed.pipelining each stage's outputs until the step ends.
TORCHTITAN = Software("torchtitan 2024", passes="passes_fused", shards_layers=True, early_stop=True, even_layers=True,
                      ring_layout="contiguous", loss="cut", keeps_gathered=True, keeps_outputs=True,
                      gradient_bytes=4)
FSDP2_EAGER = Software("FSDP2, not compiled", launch="launch_eager_s", attention="flash3", shards_layers=True,
                       early_stop=True, even_layers=True, experts="experts_eager", activations_eager=True,
                       made_again=(), keeps_gathered=True, keeps_outputs=True, gradient_bytes=4)
FSDP2 = Software("FSDP2, compiled", passes="passes_fused", attention="flash3", shards_layers=True, early_stop=True,
                 even_layers=True, keeps_gathered=True, keeps_outputs=True, gradient_bytes=4)
EAGER = Software("one kernel an operation", launch="launch_eager_s", activations_eager=True, made_again=())
COMPILED = Software("FSDP, compiled", passes="passes_fused", shards_layers=True, early_stop=True, even_layers=True)
NANOTRON = Software("nanotron 2025", launch="launch_eager_s", matrix_by_matrix=True, whole_layers=True,
                    overlaps_columns=True, activations_eager=True, made_again=(), frees_late=True)
SOFTWARE: tuple[Software, ...] = (
    MEGATRON_CORE, BRIDGE, META, HAI_LLM, MEGATRON_2021, MEGATRON_DEEPSPEED, DEEPSPEED_2021, NEMO, COMPOSER, FSDP,
    FSDP2, FSDP2_EAGER, TORCHTITAN, NANOTRON, EAGER, COMPILED)
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
    ("nemo", NEMO), ("bridge", BRIDGE), ("meta", META), ("hai-llm", HAI_LLM), ("megatron", MEGATRON_CORE),
    ("automodel", BRIDGE),
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

