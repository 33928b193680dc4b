"""What cannot be cut is said, with what was given and what was expected, and nobody hangs."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_lib import tensor_parallel as tp
from course_lib.reference import GPT, GPTConfig
from course_lib.runtime import launch
from tests.groups.mistakes import answers
from tests.ranks import on_ranks
from tests.tensor_parallel.cases import Llama, LlamaAttention


class Tied(nn.Module):
    """A matrix of columns and one of rows in one; and one that is an embedding, too."""

    def __init__(self, wrong):
        super().__init__()
        self.up_proj, self.down_proj, self.embed_tokens = nn.Linear(6, 6), nn.Linear(6, 6), nn.Embedding(6, 6)
        self.other = nn.Linear(6, 6)
        if wrong == "ways":
            self.down_proj.weight = self.up_proj.weight
        else:
            self.other.weight = self.up_proj.weight


class WithGate(LlamaAttention):
    def __init__(self):
        super().__init__(24, 6, 6)
        self.gate = nn.Linear(24, 24)


def nested(name, module):
    around = nn.Module()
    around.add_module(name, module)
    return around


def with_dropout(module):
    module.dropout = nn.Dropout(0.1)
    return module


def test_a_mistake_is_answered_with_what_was_given_and_what_was_expected(snapshot):
    def body():
        x, r = torch.randn(2, 7, 6), dist.get_rank()
        gpt = GPTConfig(1, 12, 3, 48, 8)

        def loss(logits=(2, 7, 3), targets=(2, 7), **how):
            return tp.vocab_parallel_cross_entropy(torch.zeros(logits), torch.zeros(targets).long(), **how)

        def built_before():
            model = GPT(GPTConfig(1, 12, 6, 48, 8))
            optimizer = torch.optim.AdamW(model.parameters())
            tp.parallelize(model)
            optimizer.step()

        no_size = LlamaAttention(24, 6, 6)
        del no_size.head_dim, no_size.num_heads
        return answers({
            "columns": lambda: tp.ColumnParallelLinear(6, 7),
            "rows": lambda: tp.RowParallelLinear(7, 6),
            "vocabulary": lambda: tp.VocabParallelEmbedding(257, 6),
            "heads": lambda: tp.parallelize(GPT(gpt)),
            "kv heads": lambda: tp.parallelize(nested("self_attn", LlamaAttention(24, 6, 3))),
            "inside a head": lambda: tp.ColumnParallelLinear(6, 12, sections=(4, 4, 4), unit=4),
            "sections": lambda: tp.ColumnParallelLinear(6, 12, sections=(4, 4)),
            "gathered sections": lambda: tp.ColumnParallelLinear(6, 12, sections=(6, 6), gather_output=True),
            "not a Linear": lambda: tp.RowParallelLinear.from_unsplit(nn.Embedding(6, 6)),
            "not an Embedding": lambda: tp.VocabParallelEmbedding.from_unsplit(nn.Linear(6, 6)),
            "embedding's options": lambda: tp.VocabParallelEmbedding.from_unsplit(nn.Embedding(6, 6, max_norm=1.0)),
            "tokens": lambda: tp.RowParallelLinear(6, 4, input_is_parallel=False, sequence_parallel=True)(x),
            "logits": lambda: loss(targets=(2, 6)),
            "smoothing": lambda: loss(label_smoothing=2.0),
            "reduction": lambda: loss(reduction="max"),
            "not a module": lambda: tp.parallelize("GPT"),
            "twice": lambda: tp.parallelize(tp.parallelize(Llama())),
            "nothing to cut": lambda: tp.parallelize(nn.Sequential(nn.Linear(6, 6))),
            "different": lambda: tp.parallelize(nested("mlp", nn.Linear(2 + r, 2)), plan={"mlp": tp.Column()}),
            "tied in two ways": lambda: tp.parallelize(Tied("ways"), plan=dict(tp.LLAMA_PLAN)),
            "tied to what is whole": lambda: tp.parallelize(Tied("whole"), plan=dict(tp.LLAMA_PLAN)),
            "unnamed in a region": lambda: tp.parallelize(nested("self_attn", WithGate())),
            "unnamed tokens": lambda: tp.parallelize(Tied("ways"), None, True, plan={"up_proj": tp.Column()}),
            "dropout": lambda: tp.parallelize(nested("self_attn", with_dropout(LlamaAttention(24, 6, 6)))),
            "no head size": lambda: tp.parallelize(nested("self_attn", no_size)),
            "no parts": lambda: tp.clip_grad_norm_(nn.Linear(2, 2), 1.0),
            "no parts to gather": lambda: tp.full_state_dict(nn.Linear(2, 2)),
            "built before": built_before,
            "wrong kind in plan": lambda: tp.parallelize(Llama(), plan={"self_attn": tp.Vocabulary()}),
        })

    first, second = launch(body, world_size=2)
    assert first == second == snapshot


@on_ranks(2)
def test_tokens_and_targets_of_no_vocabulary_are_refused_on_all_ranks_as_torch_refuses_them():
    for attempt in (lambda: F.embedding(torch.tensor([6]), torch.ones(6, 2)),
                    lambda: tp.VocabParallelEmbedding(6, 2)(torch.tensor([6])),
                    lambda: tp.VocabParallelEmbedding(6, 2)(torch.tensor([-1])),
                    lambda: tp.vocab_parallel_cross_entropy(torch.ones(1, 3), torch.tensor([6]))):
        with pytest.raises((IndexError, RuntimeError), match="out of"):
            attempt()
