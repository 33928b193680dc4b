"""Chapter 5: tensor parallelism. Every rank computes a part of every layer, on the same tokens.

    cut.py            which slice of a parameter a rank holds, and back
    linear.py         a matrix by columns, then one by rows: one all-reduce for both
    product.py        the backward pass of columns: one gradient travels while the other is computed;
                      gathered_product.py, what chapter 7 adds: each rank has a part of the tokens
    embedding.py      the vocabulary in parts
    cross_entropy.py  the loss, of logits that nobody has whole
    shared.py         parameters whose gradient is a sum over the ranks: norms under sequence parallelism
    streams.py        dropout: the same mask where tensors are the same, another where they are parts
    plan.py           how the modules of a model are cut, as data: our GPT, Hugging Face's Llama, the reader's own
    parallelize.py    a whole model; surgery.py, what it does to the modules
    norms.py          clipping: slices add up, what all ranks have counts once
    full_state.py     the state as if nothing were cut
    dtensor.py        the same GPT cut by torch itself, to compare with

`group=None` is the world, and every process group of torch.distributed will do.
"""

from course_lib.tensor_parallel.cut import Cut, heads_per_rank, qkv_sections
from course_lib.tensor_parallel.full_state import (
    clip_grad_norm_,
    full_state_dict,
    share_parameters,
    sum_partial_gradients,
)
from course_lib.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear
from course_lib.tensor_parallel.parallelize import TensorParallelGPT, parallelize
from course_lib.tensor_parallel.surgery import (
    GPT_PLAN,
    LLAMA_PLAN,
    Column,
    Entry,
    Region,
    Row,
    Tokenwise,
    Vocabulary,
    own_stream,
)
from course_lib.tensor_parallel.vocabulary import VocabParallelEmbedding, vocab_parallel_cross_entropy

__all__ = [
    "GPT_PLAN",
    "LLAMA_PLAN",
    "Column",
    "ColumnParallelLinear",
    "Cut",
    "Entry",
    "Region",
    "Row",
    "RowParallelLinear",
    "TensorParallelGPT",
    "Tokenwise",
    "VocabParallelEmbedding",
    "Vocabulary",
    "clip_grad_norm_",
    "full_state_dict",
    "heads_per_rank",
    "own_stream",
    "parallelize",
    "qkv_sections",
    "share_parameters",
    "sum_partial_gradients",
    "vocab_parallel_cross_entropy",
]
