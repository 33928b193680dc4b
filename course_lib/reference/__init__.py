"""The single-process reference every chapter is held to: one small GPT, its text, its training loop."""

from course_lib.lazy import load_on_use
from course_lib.reference.gpt import (
    GPT,
    MLP,
    Block,
    CausalSelfAttention,
    Embedding,
    GPTConfig,
    causal_attention,
    next_token_loss,
)
from course_lib.reference.text import batches, held_out_rows, load_text, split_text, unigram_entropy
from course_lib.reference.training import TrainingLog, evaluate, train

load_on_use(__name__)
