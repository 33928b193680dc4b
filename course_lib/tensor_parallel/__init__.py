"""Chapter 5: tensor parallelism. Every rank computes a part of every layer, on the same tokens.

    linear.py       a matrix by columns, then one by rows: one all-reduce for both; one gradient travels while the other
                    is computed; and what chapter 7 adds, each rank has a part of the tokens
    cut.py          which slice of a parameter a rank holds, and back
    vocabulary.py   the vocabulary in parts: the embedding, and the loss of logits that nobody has whole
    parallelize.py  a whole model
    surgery.py      how its modules are cut, as data: our GPT, Hugging Face's Llama, the reader's own; and dropout, the
                    same mask where tensors are the same, another where they are parts
    full_state.py   the state as if nothing were cut, clipping, and gradients that are sums over the ranks
    dtensor.py      the same GPT cut by torch itself, to compare with

`group=None` is the world, and every process group of torch.distributed will do.
"""

from course_lib.lazy import load_on_use
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

load_on_use(__name__)
