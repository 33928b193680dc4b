"""Chapter 7: what is left to split are the activations, along the tokens; or not to keep them at all.

    layouts.py     which rank holds which tokens, where they stand in the row, and the way back; rotary positions, and a
                   whole GPT on its part of the tokens, with its loss
    ring.py        ring attention, keys and values go around; and the online softmax that adds up their blocks
    fused.py       attention to a block, forward and backward, by one kernel of the device
    ulysses.py     tokens for heads and back, by all-to-all; and both together
    recompute.py   full and selective recomputation, by calls whose saved tensors are made again

What is kept, sent and computed is counted in course_lib.costs: activations.py and splitting.py, overlap.py for what
hides behind computing, and flops.py for what recomputation costs. Megatron's sequence parallelism is a switch of
chapter 5's layers: tensor_parallel/linear.py.
"""

from course_lib.costs.flops import (
    ActivationTerm,
    activation_bytes,
    activation_bytes_per_layer,
    activation_terms,
    recomputed_flops,
)
from course_lib.costs.overlap import ring_attention_tokens
from course_lib.costs.splitting import (
    LAYOUTS,
    imbalance,
    ring_attention_bytes,
    ring_work,
    ulysses_attention_bytes,
    visible_pairs,
)
from course_lib.lazy import load_on_use
from course_lib.sequence_parallel.layouts import (
    context_parallel,
    context_parallel_loss,
    gather_tokens,
    layout_order,
    local_positions,
    restore_order,
    rotary,
)
from course_lib.sequence_parallel.recompute import RepeatableCall, recompute
from course_lib.sequence_parallel.ring import KeyBlock, OnlineSoftmax, ring_attention
from course_lib.sequence_parallel.ulysses import ulysses_attention, ulysses_ring_attention

load_on_use(__name__)
