"""What ran: generations of training software, told apart by what they do, not by how fast they turned out.

A row says in free text what ran. Where it says nothing, the year tells: attention that stores its scores is Megatron-LM
of 2021, sharded parameters are PyTorch's FSDP, and everything else is Megatron-Core. Whoever knows whether his software
fuses kernels, and which attention it calls, is told more: software_from_answers.
"""

from dataclasses import dataclass, replace
from typing import Any


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
    message_bytes: float = 25e6  # of gradients that are reduced together
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


ONE_MESSAGE = 1e15
MEGATRON_2021 = Software("Megatron-LM 2021", passes="passes_fused", overlaps_gradients=False, overlaps_stages=False,
                         message_bytes=ONE_MESSAGE)
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
