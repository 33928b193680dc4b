"""What cannot be cut is said, with what was given and what was expected, and nobody hangs."""

import re

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from course_lib.reference import GPT, GPTConfig
from course_lib.runtime import launch
from course_lib.tensor_parallel import (
    LLAMA_PLAN,
    Column,
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    Vocabulary,
    clip_grad_norm_,
    full_state_dict,
    load_full_state_dict,
    parallelize,
    vocab_parallel_cross_entropy,
)
from tests.tensor_parallel.cases import GroupedLlama, Llama, LlamaAttention


def said(attempt):
    try:
        attempt()
    except ValueError as error:
        return str(error)
    return "nothing"


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


def test_a_mistake_is_answered_with_what_was_given_and_what_was_expected():
    def body():
        x, r = torch.randn(2, 7, 6), dist.get_rank()
        gpt = GPTConfig(1, 12, 3, 48, 8)

        def loss(logits=(2, 7, 3), targets=(2, 7), **how):
            return vocab_parallel_cross_entropy(torch.zeros(logits), torch.zeros(targets).long(), **how)

        def load(change):
            model = parallelize(GPT(GPTConfig(1, 12, 6, 48, 8)))
            load_full_state_dict(model, change(full_state_dict(model)))

        def built_before():
            model = GPT(GPTConfig(1, 12, 6, 48, 8))
            optimizer = torch.optim.AdamW(model.parameters())
            parallelize(model)
            optimizer.step()

        no_size = LlamaAttention(24, 6, 6)
        del no_size.head_dim, no_size.num_heads
        return {
            "columns": said(lambda: ColumnParallelLinear(6, 7)),
            "rows": said(lambda: RowParallelLinear(7, 6)),
            "vocabulary": said(lambda: VocabParallelEmbedding(257, 6)),
            "heads": said(lambda: parallelize(GPT(gpt))),
            "kv heads": said(lambda: parallelize(nested("self_attn", LlamaAttention(24, 6, 3)))),
            "inside a head": said(lambda: ColumnParallelLinear(6, 12, sections=(4, 4, 4), unit=4)),
            "sections": said(lambda: ColumnParallelLinear(6, 12, sections=(4, 4))),
            "gathered sections": said(lambda: ColumnParallelLinear(6, 12, sections=(6, 6), gather_output=True)),
            "not a Linear": said(lambda: RowParallelLinear.from_unsplit(nn.Embedding(6, 6))),
            "not an Embedding": said(lambda: VocabParallelEmbedding.from_unsplit(nn.Linear(6, 6))),
            "embedding's options": said(lambda: VocabParallelEmbedding.from_unsplit(nn.Embedding(6, 6, max_norm=1.0))),
            "tokens": said(lambda: RowParallelLinear(6, 4, input_is_parallel=False, sequence_parallel=True)(x)),
            "logits": said(lambda: loss(targets=(2, 6))),
            "smoothing": said(lambda: loss(label_smoothing=2.0)),
            "reduction": said(lambda: loss(reduction="max")),
            "not a module": said(lambda: parallelize("GPT")),
            "twice": said(lambda: parallelize(parallelize(GroupedLlama()))),
            "nothing to cut": said(lambda: parallelize(nn.Sequential(nn.Linear(6, 6)))),
            "different": said(lambda: parallelize(nested("mlp", nn.Linear(2 + r, 2)), plan={"mlp": Column()})),
            "tied in two ways": said(lambda: parallelize(Tied("ways"), plan=dict(LLAMA_PLAN))),
            "tied to what is whole": said(lambda: parallelize(Tied("whole"), plan=dict(LLAMA_PLAN))),
            "unnamed in a region": said(lambda: parallelize(nested("self_attn", WithGate()))),
            "unnamed tokens": said(lambda: parallelize(Tied("ways"), None, True, plan={"up_proj": Column()})),
            "dropout": said(lambda: parallelize(nested("self_attn", with_dropout(LlamaAttention(24, 6, 6))))),
            "no head size": said(lambda: parallelize(nested("self_attn", no_size))),
            "no parts": said(lambda: clip_grad_norm_(nn.Linear(2, 2), 1.0)),
            "no parts to gather": said(lambda: full_state_dict(nn.Linear(2, 2))),
            "another state": said(lambda: load(lambda state: state | {"more": torch.ones(1)})),
            "another shape": said(lambda: load(lambda state: state | {"head.weight": torch.ones(24, 12)})),
            "built before": said(built_before),
            "wrong kind in plan": said(lambda: parallelize(Llama(), plan={"self_attn": Vocabulary()})),
        }

    expected = {
        "columns": "7 out_features over 2 ranks: expected a number that 2 divides",
        "rows": "7 in_features over 2 ranks",
        "vocabulary": "257 embeddings over 2 ranks",
        "heads": "3 heads over 2 ranks: expected a number that 2 divides, since a head stays on one rank",
        "kv heads": "3 key and value heads over 2 ranks",
        "inside a head": "1 times 4 out_features over 2 ranks",
        "sections": r"sections=\[4, 4\] of out_features, which are 12: expected sizes that add up to 12",
        "gathered sections": "gather_output of 2 sections",
        "not a Linear": "is a Embedding: expected an nn.Linear",
        "not an Embedding": "is a Linear: expected an nn.Embedding",
        "embedding's options": "max_norm=1.0: expected one without",
        "tokens": "7 elements along dim=1 of .*: expected a number that the 2 ranks of the group divide",
        "logits": r"logits float32\[2, 7, 3\] on cpu and targets int64\[2, 6\] on cpu: expected \(..., V/t\) and",
        "smoothing": "label_smoothing=2.0: expected a number from 0 to 1",
        "reduction": "reduction='max': expected one of 'mean', 'sum', 'none'",
        "not a module": "model='GPT' is a str: expected an nn.Module",
        "twice": "has tensor-parallel layers already",
        "nothing to cut": r"names no layer of this Sequential, which has \['0'\]: expected plan=",
        "different": r"place 0 has mlp.weight float32\[2, 2\] .*, place 1 has mlp.weight float32\[2, 3\]",
        "tied in two ways": r"a tied parameter of shape \[6, 6\] would be cut in two ways",
        "tied to what is whole": "weight of a Linear is tied to a parameter that is cut",
        "unnamed in a region": "self_attn.gate is a Linear with parameters that the plan does not name, and around it",
        "unnamed tokens": "down_proj is a Linear with parameters that the plan does not name, and its tokens are dealt",
        "dropout": "self_attn.dropout may drop parts, or what all ranks have",
        "no head size": "does not say how large a head is: expected an attribute head_dim",
        "no parts": "this Linear has no tensor-parallel layer",
        "no parts to gather": "this Linear has no tensor-parallel layer",
        "another state": r"the state has \['more'\] too many and lacks \[\]",
        "another shape": r"head.weight has shape \[24, 12\]: expected \[48, 12\]",
        "built before": "this AdamW was made before parallelize cut the parameters it steps on",
        "wrong kind in plan": "is a LlamaAttention: expected an nn.Embedding",
    }
    for answers in launch(body, world_size=2):
        assert answers.keys() == expected.keys()
        assert {name: answers[name] for name in expected if not re.search(expected[name], answers[name], re.S)} == {}


def test_tokens_and_targets_of_no_vocabulary_are_refused_on_all_ranks_as_torch_refuses_them():
    def body():
        found = []
        for attempt in (lambda: F.embedding(torch.tensor([6]), torch.ones(6, 2)),
                        lambda: VocabParallelEmbedding(6, 2)(torch.tensor([6])),
                        lambda: VocabParallelEmbedding(6, 2)(torch.tensor([-1])),
                        lambda: vocab_parallel_cross_entropy(torch.ones(1, 3), torch.tensor([6]))):
            try:
                found.append(attempt())
            except (IndexError, RuntimeError) as error:
                found.append("out of" in str(error))
        return found

    assert launch(body, world_size=2) == [[True] * 4] * 2
